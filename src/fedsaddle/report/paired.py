"""One algorithm against another, seed by seed, with intervals; also where one of the two has lost seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from scipy.special import bdtr, betaincinv, stdtrit

from fedsaddle.metric import Metric
from fedsaddle.report.comparing import paired_t_test
from fedsaddle.report.statistics import deviation

CONFIDENCE = 0.95
BySeed = dict[str, dict[int, float]]  # by algorithm and seed


class Interval(NamedTuple):
    low: float
    high: float


def mean_interval(values: Sequence[float]) -> Interval:
    """By Student's t."""
    varied = deviation(values)
    if varied is None:
        return Interval(-math.inf, math.inf)
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * varied / math.sqrt(len(values))
    return Interval(fmean(values) - half, fmean(values) + half)


def median_interval(values: Sequence[float]) -> Interval:
    """Between two of the values, by the sign test; everything, where there are too few."""
    ordered, n = sorted(values), len(values)
    k = 0  # values on either side that are left out
    while k < n // 2 and 2 * float(bdtr(k, n, 0.5)) <= 1 - CONFIDENCE:
        k += 1
    return Interval(ordered[k - 1], ordered[n - k]) if k else Interval(-math.inf, math.inf)


def share_interval(count: int, of: int) -> Interval:
    """Of a share that was counted, by Clopper and Pearson."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, of - count + 1, tail))
    high = 1.0 if count == of else float(betaincinv(count + 1, of - count, 1 - tail))
    return Interval(low, high)


class Compared(NamedTuple):
    """One algorithm against another, over the seeds of both. Above 0, the first is better."""

    one: str
    rival: str
    seeds: int
    effect: float
    interval: Interval
    p: float | None  # None, where a test says nothing
    by: str  # mean or median


def compare(one: str, rival: str, values: BySeed, metric: Metric, dead: Mapping[str, int]) -> Compared:
    """By the mean of the differences; by their median, where one of the two has lost seeds.

    What dies and what lives are two heaps, whose mean is in neither and follows no normal law.
    """
    common = sorted(values[one].keys() & values[rival].keys())
    pairs = [(-metric.cost(values[one][seed]), -metric.cost(values[rival][seed])) for seed in common]
    differences = [a - b for a, b in pairs]
    if not differences:
        return Compared(one, rival, 0, math.nan, Interval(-math.inf, math.inf), None, "mean")
    if dead.get(one) or dead.get(rival):
        effect, within, p = median(differences), median_interval(differences), sign_test(differences)
        return Compared(one, rival, len(common), effect, within, p, "median")
    p = paired_t_test(pairs) if len(pairs) > 1 else None
    return Compared(one, rival, len(common), fmean(differences), mean_interval(differences), p, "mean")


def sign_test(differences: Sequence[float]) -> float | None:
    """Two-sided: how likely so many of one sign are, were both as likely."""
    told = [value for value in differences if value]
    if not told:
        return None
    fewer = min(sum(value > 0 for value in told), sum(value < 0 for value in told))
    return min(1.0, 2 * float(bdtr(fewer, len(told), 0.5)))
