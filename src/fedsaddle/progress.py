"""How far a call from Python is, on stderr."""

from __future__ import annotations

import sys
import time

from fedsaddle.engine.course import Stop
from fedsaddle.errors import BadInput, shown


def is_shown(progress: object) -> bool:
    """Whether progress is told: as it was asked for; by default, if stderr is a terminal."""
    if progress is not None and not isinstance(progress, bool):
        raise BadInput(f"progress must be True, False or None, got {shown(progress)}")
    return sys.stderr is not None and (sys.stderr.isatty() if progress is None else progress)


class ProgressLine:
    """One line on a terminal that is written over; elsewhere, a line for about every tenth of the way."""

    def __init__(self, rounds: int, who: str = "", start: int = 0) -> None:
        self.rounds, self.began, self.who, self.start = rounds, time.monotonic(), who, start
        self.file, self.moving = sys.stderr, sys.stderr.isatty()
        self.metric, self.told, self.width = "", -rounds, 0

    def __call__(self, stop: Stop) -> None:
        if stop.rows:
            name = next(iter(stop.rows[0].metrics))
            mean = sum(row.metrics[name] for row in stop.rows) / len(stop.rows)
            self.metric = f"  {name} {mean:.4g}"
        last = stop.round == self.rounds or not any(stop.lanes.alive)
        if not (self.moving or last or stop.round - self.told >= self.rounds / 10):
            return
        self.told = stop.round
        spent = time.monotonic() - self.began
        played = stop.round - self.start
        pace = f"  {played / max(spent, 1e-9):.3g} rounds/s" if played else ""
        alive = f"{sum(stop.lanes.alive)}/{len(stop.lanes.alive)} alive"
        line = f"{self.who}round {stop.round}/{self.rounds}{self.metric}  {alive}{pace}  {spent:.0f} s"
        if self.moving:
            print(f"\r{line:<{self.width}}", end="", file=self.file, flush=True)
            self.width = len(line)
        else:
            print(line, file=self.file, flush=True)

    def close(self) -> None:
        if self.width:
            print(file=self.file)
