"""environment.json: when a run was started, on what, and for how long it ran."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsaddle.environment import here
from fedsaddle.runs.files import as_json, write_atomically


class Diary:
    """environment.json: a line of its own for every time a run is started, since each may be another machine.

    No result depends on it, so it is no part of the checkpoint, and one that cannot be read is begun anew.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._before = folder / "environment.json", read_environment(folder)
        self._began = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        self._seconds: dict[str, float] = {}
        self._write()

    def note(self, algorithm: str, seconds: float) -> None:
        """Write down how long an algorithm has taken since this start, on the clock on the wall."""
        self._seconds[algorithm] = round(seconds, 3)
        self._write()

    def _write(self) -> None:
        entry = {"began": self._began, **here(), "seconds": self._seconds}
        write_atomically(self._path, as_json([*self._before, entry]))


def refuse_constant(constant: str) -> None:
    """For JSON: NaN and Infinity are Python's, and nobody else can read them."""
    raise ValueError(constant)


def read_environment(folder: Path) -> list[dict[str, Any]]:
    """Each time a run was started, as far as it was written down."""
    try:
        entries = json.loads((folder / "environment.json").read_bytes(), parse_constant=refuse_constant)
    except (OSError, ValueError, RecursionError):
        return []
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
