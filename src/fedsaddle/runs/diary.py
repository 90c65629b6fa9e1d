"""environment.json and clock.jsonl: when a run was started, on what, and for how long it ran."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
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


class Clock:
    """clock.jsonl: how long each algorithm had taken at each evaluation, on the clock on the wall.

    No result depends on it, and no two runs write the same, so it is no part of the checkpoint. What a kill
    has cost is not in it: a resumed run goes on from the time at its checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._known = folder / "clock.jsonl", read_clock(folder)
        self._names: list[str] = []
        self._before = self._began = 0.0

    def begin(self, names: Iterable[str], round: int) -> None:
        """Some lanes start together, after so many rounds."""
        self._names = list(dict.fromkeys(names))
        for name in self._names:
            own = self._known.get(name, {})
            self._known[name] = {at: seconds for at, seconds in own.items() if at <= round and round}
        write_atomically(self._path, "".join(map(_ticks, self._known, self._known.values())).encode())
        self._before = max((max(self._known[name].values(), default=0.0) for name in self._names), default=0)
        self._began = time.monotonic()

    def note(self, round: int) -> None:
        seconds = self._before + time.monotonic() - self._began
        for name in self._names:
            self._known[name][round] = seconds
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(_ticks(name, {round: seconds}) for name in self._names))


def _ticks(name: str, seconds: Mapping[int, float]) -> str:
    entries = ({"algorithm": name, "round": at, "seconds": round(own, 3)} for at, own in seconds.items())
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def read_clock(folder: Path) -> dict[str, dict[int, float]]:
    """Seconds by algorithm and round, as far as they were written down. A line that is broken is left out."""
    found: dict[str, dict[int, float]] = {}
    try:
        lines = (folder / "clock.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return found
    for line in lines:
        try:
            entry = json.loads(line, parse_constant=refuse_constant)
            seconds = entry["seconds"]
            if isinstance(seconds, int | float) and 0 <= seconds < 1e12 and isinstance(entry["round"], int):
                found.setdefault(str(entry["algorithm"]), {})[entry["round"]] = float(seconds)
        except (ValueError, RecursionError, TypeError, KeyError):
            continue
    return found


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
