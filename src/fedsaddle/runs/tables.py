"""Tables that only grow: their columns, their lengths and hashes, and which rows are whose."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedsaddle.runs.files import damaged, sha256

KEYS = {
    "rounds.csv": ("algorithm", "seed", "round", "floats_up", "floats_down", "time_simulated"),
    "traffic.csv": ("algorithm", "seed", "round", "direction", "variable", "kind", "floats"),
    "events.csv": ("algorithm", "seed", "round", "event", "detail"),
}
HISTORY = "history.jsonl"


class Table:
    """A CSV or JSON Lines file that only grows, and knows its length and hash."""

    def __init__(self, path: Path, length: int = 0, expected: str | None = None) -> None:
        self.path = path
        try:
            prefix = path.read_bytes()[:length] if path.exists() else b""
        except OSError as error:
            raise damaged(path, f"cannot read it ({error.strerror})") from None
        if len(prefix) < length or (expected is not None and sha256(prefix) != expected):
            raise damaged(path, "its beginning is not what the checkpoint says")
        self._length, self._digest = length, hashlib.sha256(prefix)

    def open(self) -> None:
        """Cut off what came after the checkpoint, and go on writing there."""
        self._file = self.path.open("ab")
        self._file.truncate(self._length)

    def write(self, rows: Iterable[Iterable[object]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.append(text.getvalue())

    def append(self, text: str) -> None:
        data = text.encode()
        self._file.write(data)
        self._file.flush()
        self._length += len(data)
        self._digest.update(data)

    @property
    def empty(self) -> bool:
        return self._length == 0

    def seal(self) -> dict[str, Any]:
        """Put it on the disk and say what is there."""
        os.fsync(self._file.fileno())
        return {"length": self._length, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        self._file.close()


def own_rows(name: str, data: bytes, names: set[str], without: int | None = None) -> str:
    """What a table holds of some algorithms, perhaps without their evaluations after one round."""
    if name == HISTORY:
        lines = data.decode().splitlines(keepends=True)
        return "".join(one for one in lines if json.loads(one)["algorithm"] in names)
    rows = list(csv.reader(io.StringIO(data.decode(), newline="")))[1:]
    evaluated = name != "events.csv"
    kept = [row for row in rows if row[0] in names and not (evaluated and row[2] == str(without))]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(kept)
    return text.getvalue()


def header(name: str, data: bytes) -> str:
    return "" if name == HISTORY else data[: data.find(b"\n") + 1].decode()
