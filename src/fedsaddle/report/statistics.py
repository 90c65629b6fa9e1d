"""What the numbers of a report are. docs/report.md says it in words."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

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
    return Spread(len(values), fmean(values), deviation(values)) if values else None


def deviation(values: Collection[float]) -> float | None:
    """The standard deviation (n - 1). That of the standard library is exact, and ten times slower."""
    if len(values) < 2:
        return None
    if min(values) == max(values):
        return 0.0  # not what rounding the mean leaves
    mean = fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


class Share(NamedTuple):
    """So many of some, and Wilson's interval for the part of all: what few seeds say of many."""

    number: int
    of: int
    low: float
    high: float


def share(number: int, of: int) -> Share:
    """At 95 %."""
    z2 = 1.959964**2
    middle, part = of + z2, number / of
    half = math.sqrt(z2 * (part * (1 - part) * of + z2 / 4))
    # At none and at all of them an end is 0 or 1, which rounding might miss.
    low, high = (number + z2 / 2 - half) / middle, (number + z2 / 2 + half) / middle
    return Share(number, of, low if number else 0.0, high if number < of else 1.0)


# --- curves ----------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """All seeds of an algorithm at one evaluation."""

    round: int
    floats_up: float  # the seeds' mean, as is the time
    time_simulated: float
    values: Spread
    low: float
    high: float
    spent: float | None = None  # seconds on the wall's clock, if they were kept

    @property
    def band(self) -> tuple[float, float]:
        """A standard deviation below the mean, and one above."""
        mean, std = self.values.mean, self.values.std or 0.0
        return mean - std, mean + std


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
        spent = [point.spent for point in points if point.spent is not None]
        places.append(Place(round, up, time, found, min(values), max(values), max(spent) if spent else None))
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


SATURATED = 0.95  # where a share that should be 1 ends, its curves lie on each other


def scale_of(metric: Metric, curves: Collection[Sequence[Place]]) -> str:
    """How a metric is best shown: error (1 less the value, over decades), log or linear."""
    some = [one for one in curves if one]
    shown = frame(metric, some)
    if metric.better == "high" and metric.chance is not None and shown.high <= 1:
        ends = [one[-1].values.mean for one in some]
        if max(ends) >= SATURATED:
            return "error"
    return "log" if shown.over_decades else "linear"


def area(points: Sequence[Evaluation], metric: str, budget: float, along: str = "floats_up") -> float:
    """The mean of a metric over floats sent up, or `time_simulated`, from none to the budget.

    Between evaluations it goes along straight lines.
    """
    total = 0.0
    for a, b in pairwise(points):
        begin, end = getattr(a, along), getattr(b, along)
        width = min(end, budget) - begin
        if width > 0:
            low, high = a.metrics[metric], b.metrics[metric]
            high = low + (high - low) * width / (end - begin)
            total += width * (low + high) / 2
    return total / budget


def ended(lane: Lane) -> Evaluation | None:
    """Where a seed that diverged was last seen."""
    return lane.points[-1] if lane.diverged and lane.points else None


def short(values: Sequence[float], digits: int = 7) -> list[float]:
    """Seven digits are more than a screen can show."""
    return [value if isinstance(value, int) else float(f"{value:.{digits}g}") for value in values]


def short_count(value: float) -> str:
    """Large numbers as a person says them: 1.25M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
