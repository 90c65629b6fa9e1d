"""Slopes on logarithmic axes, intervals for them by resampling seeds, and what a bound makes of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 2_000
NEAR = 0.05  # so near to the bound's exponent, a slope without an interval is called tight


class Slope(NamedTuple):
    value: float
    low: float  # of the 95 % interval; both ends are the value where there is one seed
    high: float


def slope(curve: Mapping[float, Sequence[float]]) -> Slope:
    """The least-squares slope of log(mean over seeds) on log x; whole seeds are resampled."""
    xs = sorted(curve)
    table = np.array([curve[x] for x in xs], dtype=float)  # (place, seed)
    place = np.log(np.array(xs, dtype=float))
    place = (place - place.mean()) / ((place - place.mean()) ** 2).sum()
    value = float(place @ np.log(table.mean(1)))
    seeds = table.shape[1]
    if seeds == 1:
        return Slope(value, value, value)
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    slopes = place @ np.log(table[:, drawn].mean(2))
    low, high = np.quantile(slopes, [0.025, 0.975])
    return Slope(value, float(low), float(high))


def ratio(over: Sequence[float], under: Sequence[float]) -> Slope:
    """The ratio of two means of the same seeds, with its interval."""
    a, b = np.array(over, dtype=float), np.array(under, dtype=float)
    drawn = np.random.default_rng(0).integers(len(a), size=(RESAMPLES, len(a)))
    low, high = np.quantile(a[drawn].mean(1) / b[drawn].mean(1), [0.025, 0.975])
    return Slope(float(a.mean() / b.mean()), float(low), float(high))


def ruling(found: Slope, bound: float, limit: float) -> str:
    """What a slope says about an upper bound with this exponent, refuted by an interval above the limit."""
    if found.low > limit:
        return "slower than the bound"
    single = found.low == found.high
    if (single and abs(found.value - bound) <= NEAR) or (not single and found.low <= bound <= found.high):
        return "tight"
    return "consistent with the bound"
