"""Large tables whose rows cannot be taken where they lie: written once, as .npy files, into the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock

from fedsaddle.data.sources import cache
from fedsaddle.errors import BadInput, Notice, is_machines

IN_MEMORY = 1 << 28  # bytes of a table up to which nothing is written: it is read into memory


def converted(what: str, files: Iterable[str], purpose: str, write: Callable[[Path], None]) -> Path:
    """The folder into which `write` has put what is in some files: whole, once, and anew if one changes."""
    paths = [os.path.realpath(path) for path in files]
    name = hashlib.sha256(json.dumps([purpose, *paths]).encode()).hexdigest()[:24]
    folder = cache() / "tables" / name
    try:
        stamp = json.dumps([[os.stat(path).st_size, os.stat(path).st_mtime_ns] for path in paths])
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not _is_of(folder, stamp):
                _write(what, folder, stamp, write)
    except OSError as error:
        if is_machines(error):
            raise
        raise BadInput(
            f"cannot keep {what} in {folder}: {error.strerror or error}; name another folder in "
            "FEDSADDLE_DATA"
        ) from None
    return folder


def _is_of(folder: Path, stamp: str) -> bool:
    try:
        return (folder / "of.json").read_text(encoding="utf-8") == stamp
    except OSError:
        return False


def _write(what: str, folder: Path, stamp: str, write: Callable[[Path], None]) -> None:
    message = f"{what} is written to {folder}, once, so that its rows can stay on the disk"
    warnings.warn(message, Notice, stacklevel=2)
    incoming = folder.with_suffix(".incoming")
    shutil.rmtree(incoming, ignore_errors=True)  # of one who was killed
    incoming.mkdir()
    try:
        write(incoming)
        (incoming / "of.json").write_text(stamp, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        incoming.rename(folder)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
