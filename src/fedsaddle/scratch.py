"""Temporary folders. Those of a process that was killed are removed by the next one that makes some.

A folder holds a lock for as long as its process lives, so nobody else's is touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK = ".lock"
_held: dict[Path, int] = {}  # the locks of this process


def begin_folder(prefix: str, where: str | None = None) -> Path:
    """A new private folder; what was left behind under the same prefix is removed."""
    root = Path(where or tempfile.gettempdir())
    for old in root.glob(f"{prefix}*"):
        if _left_behind(old):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    part = folder / f"{LOCK}.part"
    _held[folder] = os.open(part, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(_held[folder], fcntl.LOCK_EX)
    part.rename(folder / LOCK)  # it is locked when it can first be seen
    return folder


def end_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder in _held:
        os.close(_held.pop(folder))


@contextlib.contextmanager
def folder_for(prefix: str) -> Iterator[Path]:
    """A folder for as long as it is needed."""
    folder = begin_folder(prefix)
    try:
        yield folder
    finally:
        end_folder(folder)


def _left_behind(folder: Path) -> bool:
    """Whether it is this user's, and nobody holds its lock any more."""
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return False
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
