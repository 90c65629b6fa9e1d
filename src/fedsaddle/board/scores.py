"""What a seed is worth where a budget is used up: the mean of its metric over the last quarter of the way.

A seed that diverged, or that has collapsed there, is a failure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from fedsaddle.board.costs import Terms
from fedsaddle.metric import Metric
from fedsaddle.report.reading import Lane, Series
from fedsaddle.report.statistics import area

ALONG = {"floats": "floats_up", "trips": "round", "time": "time_simulated"}
FROM = 0.75  # of the budget: from there to its end a seed is judged


class Reached(NamedTuple):
    """One seed where a budget is used up."""

    value: float  # not a number, if it diverged before
    part: float  # of the budget that it has used; less than one, if its rounds did not do
    failed: bool


def reached_by(lane: Lane, metric: str, meant: Metric, kind: str, terms: Terms) -> Reached:
    """Where a seed is at the end of a budget."""
    if lane.diverged or not lane.points:
        return Reached(math.nan, 0.0, True)
    budget = terms.budgets[kind] / (terms.phases if kind == "trips" else 1)
    end = min(budget, getattr(lane.points[-1], ALONG[kind]))
    if end <= 0:
        return Reached(math.nan, 0.0, True)
    value = _mean(lane, metric, FROM * end, end, ALONG[kind])
    return Reached(value, end / budget, not math.isfinite(value) or meant.collapsed(value))


def _mean(lane: Lane, metric: str, begin: float, end: float, along: str) -> float:
    """Of a metric, between two places of an axis."""
    whole = area(lane.points, metric, end, along) * end
    return (whole - area(lane.points, metric, begin, along) * begin) / (end - begin)


def comparable(value: float, ratios: bool) -> float:
    """A value as it is compared: by its logarithm, where values lie over decades."""
    return math.log(max(value, 1e-300)) if ratios else value


class Worth(NamedTuple):
    """What a setting is worth. Those that come first are better."""

    failed: int
    cost: float

    @property
    def usable(self) -> bool:
        return self.cost < math.inf


def worth_of(series: Series, metric: str, kind: str, terms: Terms, ratios: bool) -> Worth:
    """A setting that loses a seed comes after all that lose none."""
    meant = series.metrics[metric]
    found = [reached_by(lane, metric, meant, kind, terms) for lane in series.lanes]
    values = [one.value for one in found if math.isfinite(one.value)]
    lost = sum(one.failed for one in found) + series.seeds - len(series.lanes)
    if not values or lost >= series.seeds:
        return Worth(lost, math.inf)
    return Worth(lost, meant.cost(mean_of(values, ratios)))


def mean_of(values: Sequence[float], ratios: bool) -> float:
    """Their mean; over decades, their geometric mean."""
    return math.exp(fmean(comparable(value, True) for value in values)) if ratios else fmean(values)
