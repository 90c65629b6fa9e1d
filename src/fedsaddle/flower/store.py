"""The SuperLink's database. Nothing is lost with it: nodes register again, and rounds have checkpoints."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path


def check_database(path: Path, say: Callable[[str], None]) -> None:
    """Put a damaged database aside, so that the SuperLink makes a new one."""
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        for rest in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + rest).unlink(missing_ok=True)
        say(f"{path} is damaged ({found}); it is put aside as {aside.name}, and nodes register again")
