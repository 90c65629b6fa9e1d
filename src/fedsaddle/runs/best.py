"""The best evaluation of each lane, by a metric of validation rows, kept while a run goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from fedsaddle.core import Pair
from fedsaddle.engine.course import Stop
from fedsaddle.engine.study import Study, points
from fedsaddle.metric import declared


class Seen(NamedTuple):
    """An evaluation of a lane, and where the lane was."""

    round: int
    value: float
    z: Pair


def validated_by(problem: object) -> str | None:
    """The first metric of validation rows that a problem declares."""
    return next((name for name, metric in declared(problem).items() if metric.rows == "validation"), None)


class Best:
    """Each lane's best evaluation so far; of equals, the earlier.

    A checkpoint holds it beside the lanes. If a run ends off the beat, its last evaluation is one that a
    longer run does not make: what is kept for going on to more rounds is the best without it, `on_beat`.
    """

    def __init__(self) -> None:
        self.lanes: dict[int, Seen] = {}
        self.on_beat: dict[int, Seen] = {}
        self._whole = True  # whether all evaluations so far were seen: an older version kept no best

    def see(self, study: Study, stop: Stop, every: int) -> None:
        """Look at some evaluations."""
        by = validated_by(study.problem)
        if by is None or not self._whole or not stop.rows:
            return
        cost, ends = declared(study.problem)[by].cost, points(stop.lanes.server)
        for row in stop.rows:
            value, z = row.metrics[by], ends[row.lane]
            old = self.lanes.get(row.lane)
            if old is None or cost(value) < cost(old.value):
                z = Pair(z.x.detach().cpu().clone(), z.y.detach().cpu().clone())
                self.lanes[row.lane] = Seen(row.round, value, z)
        if stop.round % every == 0:
            self.on_beat = dict(self.lanes)

    def write(self, tensors: dict[str, Tensor], rest: dict[str, Any], kept: Mapping[int, Seen]) -> None:
        """Put it into what a checkpoint holds of a state: tensors and JSON."""
        if not self._whole:
            return
        rest["best"] = [[lane, seen.round, seen.value] for lane, seen in sorted(kept.items())]
        for lane, seen in kept.items():
            tensors |= {f"best.{lane}.x": seen.z.x, f"best.{lane}.y": seen.z.y}

    def read(self, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """The inverse."""
        held: Iterable[Any] = rest.get("best", ())
        self.lanes = {
            lane: Seen(round, value, Pair(tensors[f"best.{lane}.x"], tensors[f"best.{lane}.y"]))
            for lane, round, value in held
        }
        self.on_beat, self._whole = dict(self.lanes), "best" in rest
