"""Files that are whole or not there, and are what their hash says."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from fedsaddle.errors import BadInput


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    with whole(path) as part, part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """The same for tensors, which are written from where they lie; and what the file's hash is.

    What clients keep may fill half of a machine's memory, so there is no second copy of it.
    """
    with whole(path) as part:
        part.touch()
        mode = part.stat().st_mode
        try:
            save_file(tensors, part)
        except SafetensorError as error:
            found = re.search(r"os error (\d+)", str(error))
            if found is None:
                raise
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from None
        part.chmod(mode)
        with part.open("r+b") as file:
            os.fsync(file.fileno())
            return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write a file that is to be at the path when it is whole."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
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


def verify(path: Path, expected: str) -> None:
    """Refuse a file that is not what the checkpoint says."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise damaged(path, f"cannot read it ({error.strerror})") from None
    if found != expected:
        raise damaged(path, "its checksum does not match")


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
