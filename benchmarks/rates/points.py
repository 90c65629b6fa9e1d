"""One place on an experiment's axis: settings and seeds, all of them lanes, and what became of each."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fedsaddle as fs
from fedsaddle.engine.course import traffic
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin

LOST = 1e6  # a lane whose |grad Phi|^2 is so many times that of its start has diverged


EIGHT, EVERYBODY = fs.Quorum(invite=8), fs.Everybody()


@dataclass(frozen=True)
class Point:
    """Lanes that differ in their setting and seed alone."""

    curve: str  # which curve it is on
    problem: Any
    settings: tuple[Any, ...]
    rounds: int
    x: float | None = None  # where on the curve; without it, the curve is over T
    xs: tuple[float, ...] = ()  # where on the curve each setting is, if none is chosen among them
    read: tuple[int, ...] = ()  # the T at which Y is read; by default after the last round
    quorum: fs.Quorum = EIGHT
    fleet: Any = EVERYBODY
    goal: float = 0.0  # stop where |grad Phi|^2 has come to it, in all seeds of some setting
    relative: bool = False  # whether the goal is a part of the start's |grad Phi|^2
    settle: bool = False  # stop where |grad Phi|^2 no longer changes
    first: int | None = None  # who are asked for gradients in the first round, if more than in the others

    @property
    def horizons(self) -> tuple[int, ...]:
        return self.read or (self.rounds,)

    def until(self, T: int) -> Point:
        """The same, read up to T alone."""
        return replace(self, rounds=T, read=tuple(own for own in self.read if own <= T))


class Line(NamedTuple):
    """One lane up to round T, or to where it was stopped."""

    setting: int  # the number of it among the point's
    seed: int
    T: int
    played: int  # rounds
    Y: float  # the mean of |grad Phi(x_t)|^2 over t < T
    late: float  # the same over the last quarter
    last: float  # at x_T
    far: float  # the largest |z_t|
    moved: float  # the mean of |z_{t+1} - z_t|^2 over the last quarter
    reached: int  # the first t at which the goal was met; -1 for never
    floats: int  # sent up so far, in answers that were used


def measure(point: Point, numbers: Sequence[int], seeds: Sequence[int]) -> list[Line]:
    """Run some of a point's settings with these seeds."""
    study = fs.make_study(
        point.problem,
        [point.settings[number] for number in numbers],
        seeds=seeds,
        names=[str(number) for number in numbers],
        quorum=point.quorum,
        fleet=point.fleet,
        batch=1,
    )
    try:
        return _lines(point, study, numbers, seeds)
    finally:
        study.close()


def _lines(point: Point, study: Any, numbers: Sequence[int], seeds: Sequence[int]) -> list[Line]:
    lanes, count, seen = begin(study), len(numbers) * len(seeds), fs.Stationarity(point.problem)
    moved = torch.zeros(point.rounds, count, dtype=torch.float64)
    far = torch.zeros(point.rounds + 1, count, dtype=torch.float64)
    goal, reached = torch.tensor(point.goal), torch.full((count,), -1)
    for t in range(point.rounds + 1):
        z, now = torch.cat(lanes.server.z, 1), seen.look(lanes)
        far[t] = z.norm(dim=1)
        if t == 0 and point.relative:
            goal = point.goal * now
        reached[(now <= goal) & (reached < 0)] = t
        over = point.goal > 0 and bool((reached.view(-1, len(seeds)) >= 0).all(1).any())
        over = over or (point.settle and t > 50 and _still(seen.values[t - 50], now))
        if over or not any(lanes.alive) or t == point.rounds:
            break
        lost = now > LOST * seen.values[0]
        if bool(lost.any()):
            still = zip(lanes.alive, lost.tolist(), strict=True)
            lanes = replace(lanes, alive=[on and not gone for on, gone in still])
        which = study
        if t == 0 and point.first is not None:
            which = replace(study, quorum=replace(point.quorum, collect=point.first))
        lanes, _ = play(which, lanes, t)
        moved[t] = (torch.cat(lanes.server.z, 1) - z).square().sum(1)
    values = torch.stack(seen.values)
    end = t  # rounds that were played
    floats = _floats(study, lanes)
    lines = []
    for T in point.horizons:
        played = min(T, end)
        some, quarter = max(1, played), played - played // 4 - 1
        for lane in range(count):
            own = values[:, lane]
            lines.append(
                Line(
                    numbers[lane // len(seeds)],
                    seeds[lane % len(seeds)],
                    T,
                    played,
                    float(own[:some].mean()),
                    float(own[max(0, quarter) : some].mean()),
                    float(own[played]),
                    float(far[: played + 1, lane].max()),
                    float(moved[max(0, quarter) : some, lane].mean()),
                    int(reached[lane]),
                    round(floats[lane] * played / max(end, 1)),
                )
            )
    return lines


def _still(before: torch.Tensor, now: torch.Tensor) -> bool:
    """Whether nothing has changed, or nothing is left but rounding."""
    return bool((((now - before).abs() <= 1e-4 * now) | (now < 1e-20)).all())


def _floats(study: Any, lanes: Any) -> list[int]:
    return [
        sum(count for flow, count in traffic(study, lanes, lane).items() if flow.direction == "up")
        for lane in range(len(study.seeds))
    ]


# --- parts: what is computed at once, kept, and never computed again --------------------------------------


class Part(NamedTuple):
    """Some settings of a point and some seeds."""

    name: str
    point: Point
    numbers: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def file(self) -> str:
        asked = repr((self.point, self.numbers, self.seeds))
        return f"{self.name}-{hashlib.sha256(asked.encode()).hexdigest()[:16]}.json"


class Kept(NamedTuple):
    """What a part has given, and the processor's seconds that it took."""

    lines: list[Line]
    seconds: float


def compute(part: Part, folder: str) -> str:
    """Compute a part and keep it in a file, which is there whole or not at all."""
    torch.set_num_threads(1)
    began = time.process_time()
    lines = measure(part.point, part.numbers, part.seeds)
    kept = {"seconds": time.process_time() - began, "lines": lines}
    path = Path(folder) / part.file
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(kept))
    beside.replace(path)
    return part.file


def read(part: Part, folder: Path) -> Kept | None:
    path = folder / part.file
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    return Kept([Line(*line) for line in found["lines"]], found["seconds"])


def parts_of(name: str, point: Point, numbers: Sequence[int], seeds: Sequence[int], most: int) -> list[Part]:
    """Settings in parts of at most so many lanes."""
    each = max(1, most // len(seeds))
    return [
        Part(name, point, tuple(numbers[at : at + each]), tuple(seeds)) for at in range(0, len(numbers), each)
    ]
