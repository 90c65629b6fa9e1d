"""What was trained, judged again: the last points of a run, by its task with other keys. Nothing is trained.

A GAN's pictures are looked at by another judge, or more of them, or in other splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from fedsaddle.app.replay import point_of
from fedsaddle.border.build import algorithms_named, bench_of
from fedsaddle.errors import BadInput
from fedsaddle.problem import Judged
from fedsaddle.report.reading import read_run
from fedsaddle.runs import read_checkpoint, read_tensors


class Rejudged(NamedTuple):
    """One trained point."""

    algorithm: str
    seed: int
    before: dict[str, float]  # at the run's last evaluation
    now: dict[str, float]


@dataclass(frozen=True)
class Rescored:
    """What the points of a run score, and what real rows do where the task knows."""

    metric: str  # that the run is judged by
    lanes: list[Rejudged]
    real_before: dict[str, float]
    real_now: dict[str, float]


def rescore(
    run: str | Path,
    settings: Sequence[str],
    algorithms: Sequence[str] = (),
    device: str | None = None,
    code: Sequence[str | Path] = (),
) -> Rescored:
    """Evaluate the last point of every seed that was alive, with keys of the problem set otherwise."""
    folder = Path(run)
    for one in settings:
        if not one.startswith("problem."):
            raise BadInput(f"--set {one}: nothing is trained again, so only keys of the problem can be set")
    done = read_checkpoint(folder)["done"]
    was = read_run(folder)
    names = algorithms_named({"algorithms": algorithms}, was.experiment["algorithms"])
    if missing := [name for name in names if name not in done]:
        raise BadInput(f"{missing[0]} has not had all rounds yet: resume the run, or name another algorithm")
    wanted = {"settings": settings, "device": device, "code": code}
    bench = bench_of(str(folder / "experiment.json"), wanted)  # type: ignore[arg-type]
    problem, place = bench.problem, torch.device(bench.device)
    sizes = [len(player) for player in problem.init(0)]
    lanes = []
    for series in (one for one in was.series if one.label in names):
        path = folder / "final" / f"{series.label}.safetensors"
        stored = read_tensors(path, done[series.label])
        for lane in series.alive:
            z = point_of(stored, lane.seed, path)
            if [len(player) for player in z] != sizes:
                raise BadInput("with these keys the task has players of other sizes: set how it is judged")
            now = problem.evaluate(z.to(place))
            lanes.append(Rejudged(series.label, lane.seed, lane.points[-1].metrics, now))
    real = problem.real_scores(place) if isinstance(problem, Judged) else {}
    metric = next((name for name in was.metrics if name in problem.metrics), None)
    if metric is None:
        raise BadInput(f"the run has {', '.join(was.metrics)}, now there are {', '.join(problem.metrics)}")
    return Rescored(metric, lanes, was.real, real)
