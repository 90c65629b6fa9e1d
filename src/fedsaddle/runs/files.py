"""Files that are whole or not there, and are what their hash says."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from fedsaddle.errors import BadInput


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None  # the .part is nobody's concern
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def as_json(value: object) -> bytes:
    # In the order it is in: the order of the algorithms is part of an experiment.
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def damaged(path: Path, why: str) -> BadInput:
    return BadInput(
        f"{path} is damaged: {why}. Nothing was changed; restore the folder from a copy, or start again with "
        "another --out"
    )


def verified(path: Path, expected: str, length: int | None = None) -> bytes:
    """What a file holds, or its first bytes, if that is what the checkpoint says."""
    try:
        data = path.read_bytes()[:length]
    except OSError as error:
        raise damaged(path, f"cannot read it ({error.strerror})") from None
    if sha256(data) != expected:
        raise damaged(path, "its checksum does not match")
    return data


def sealed(data: bytes) -> bytes:
    """What a file holds that no checkpoint speaks of: the data, and a line with its hash."""
    return data + f"\n{sha256(data)}\n".encode()


def unsealed(path: Path) -> bytes:
    """The data of such a file, if nobody has touched it."""
    try:
        data, _, expected = path.read_bytes().removesuffix(b"\n").rpartition(b"\n")
    except OSError as error:
        raise damaged(path, f"cannot read it ({error.strerror})") from None
    if sha256(data).encode() != expected:
        raise damaged(path, "its checksum does not match")
    return data
