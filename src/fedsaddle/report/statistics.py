"""What the numbers of a report are. docs/report.md says it in words."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from scipy.special import stdtr

from fedsaddle.metric import Metric
from fedsaddle.report.reading import Evaluation, Lane, Series


class Spread(NamedTuple):
    """Some seeds' values: how many, their mean, and their standard deviation if there are two."""

    seeds: int
    mean: float
    std: float | None

    def __str__(self) -> str:
        return f"{self.mean:.4g}" + ("" if self.std is None else f" ± {self.std:.2g}")


def spread(values: Collection[float]) -> Spread | None:
    return Spread(len(values), fmean(values), _deviation(values)) if values else None


def _deviation(values: Collection[float]) -> float | None:
    """The standard deviation (n - 1). That of the standard library is exact, and ten times slower."""
    if len(values) < 2:
        return None
    if min(values) == max(values):
        return 0.0  # not what rounding the mean leaves
    mean = fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


# --- curves ----------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """All seeds of an algorithm at one evaluation."""

    round: int
    floats_up: float  # the seeds' mean, as is the time
    time_simulated: float
    values: Spread
    low: float
    high: float


def curve(series: Series, metric: str) -> list[Place]:
    """The seeds side by side, at each evaluation those that had not diverged."""
    at: dict[int, list[Evaluation]] = defaultdict(list)
    for lane in series.lanes:
        for point in lane.points:
            if metric in point.metrics:
                at[point.round].append(point)
    places = []
    for round, points in sorted(at.items()):
        values = [point.metrics[metric] for point in points]
        up, time = (fmean(xs) for xs in zip(*((p.floats_up, p.time_simulated) for p in points), strict=True))
        found = spread(values)
        assert found is not None
        places.append(Place(round, up, time, found, min(values), max(values)))
    return places


class Frame(NamedTuple):
    """What an axis shows of a metric."""

    low: float
    high: float

    @property
    def over_decades(self) -> bool:
        """Whether a logarithmic axis shows more: all above 0, and over two decades."""
        return self.low > 0 and self.high > 100 * self.low


def frame(metric: Metric, curves: Collection[Sequence[Place]]) -> Frame:
    """All values; of a metric that should fall, up to three times the highest start.

    What explodes would press all else to the ground.
    """
    places = [place for one in curves for place in one]
    low, high = min(place.low for place in places), max(place.high for place in places)
    start = max(one[0].high for one in curves if one)
    return Frame(low, min(high, 3 * start) if start > 0 and metric.better == "low" else high)


def area(points: Sequence[Evaluation], metric: str, budget: float) -> float:
    """The mean of a metric over floats sent up, from none to the budget, along straight lines."""
    total = 0.0
    for a, b in pairwise(points):
        width = min(b.floats_up, budget) - a.floats_up
        if width > 0:
            start, end = a.metrics[metric], b.metrics[metric]
            end = start + (end - start) * width / (b.floats_up - a.floats_up)
            total += width * (start + end) / 2
    return total / budget


# --- the table -------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """An algorithm against the best of the others, over the seeds that both have finished with."""

    rival: str
    seeds: int
    difference: float  # the mean of this one's final values minus the rival's
    p: float | None  # of a two-sided paired t-test; None where it says nothing


@dataclass(frozen=True)
class Finding:
    """One algorithm over its seeds, by one metric. Values are by seed, of those that are alive."""

    label: str
    seeds: int  # that were asked for
    reached: int  # rounds
    rounds: int  # that were asked for
    final: dict[int, float]
    best: dict[int, float]
    area: dict[int, float]
    floats_up: dict[int, float]
    late: dict[int, float]
    seconds: dict[int, float]  # simulated
    abandoned: int  # rounds
    diverged: int  # seeds
    collapsed: int | None  # seeds, where the metric has a chance level
    against: Comparison | None = None


def budget(series: Sequence[Series]) -> int:
    """The most floats that every seed still alive has sent up, whatever its algorithm."""
    return min((lane.points[-1].floats_up for one in series for lane in one.alive), default=0)


def findings(series: Sequence[Series], metric: str) -> list[Finding]:
    """The table for one metric, the best final mean first and those that have none last."""
    series = [one for one in series if metric in one.metrics]
    if not series:
        return []
    equal, cost = budget(series), series[0].metrics[metric].cost
    found = [_finding(one, metric, equal) for one in series]
    order = sorted(found, key=lambda one: cost(fmean(one.final.values())) if one.final else math.inf)
    return [
        replace(one, against=_compare(one, [other for other in order if other is not one])) for one in order
    ]


def _finding(series: Series, metric: str, equal: int) -> Finding:
    reached, meant = series.reached, series.metrics[metric]
    curves = {lane.seed: [p for p in lane.points if p.round <= reached] for lane in series.alive}
    final = {seed: points[-1].metrics[metric] for seed, points in curves.items()}
    return Finding(
        series.label,
        series.seeds,
        reached,
        series.rounds,
        final,
        best={
            seed: min((p.metrics[metric] for p in points), key=meant.cost) for seed, points in curves.items()
        },
        area={lane.seed: area(lane.points, metric, equal) for lane in series.alive} if equal else {},
        floats_up={seed: float(points[-1].floats_up) for seed, points in curves.items()},
        late={lane.seed: float(lane.late) for lane in series.alive},
        seconds={seed: points[-1].time_simulated for seed, points in curves.items()},
        abandoned=series.abandoned,
        diverged=sum(bool(lane.diverged) for lane in series.lanes),
        collapsed=None if meant.chance is None else sum(map(meant.collapsed, final.values())),
    )


def _compare(one: Finding, others: Sequence[Finding]) -> Comparison | None:
    rival = next((other for other in others if other.final), None)
    common = sorted(one.final.keys() & rival.final.keys()) if rival else []
    if rival is None or not common:
        return None
    pairs = [(one.final[seed], rival.final[seed]) for seed in common]
    return Comparison(rival.label, len(pairs), fmean(a - b for a, b in pairs), paired_t_test(pairs))


def paired_t_test(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The two-sided p-value, or None where there is none: one pair, or differences that do not vary."""
    differences = [a - b for a, b in pairs]
    size, deviation = max(abs(value) for pair in pairs for value in pair), _deviation(differences)
    if deviation is None or deviation <= 1e-12 * size:  # nothing, or rounding
        return None
    t = fmean(differences) / (deviation / math.sqrt(len(pairs)))
    return float(2 * stdtr(len(pairs) - 1, -abs(t)))


def ended(lane: Lane) -> Evaluation | None:
    """Where a seed that diverged was last seen."""
    return lane.points[-1] if lane.diverged and lane.points else None
