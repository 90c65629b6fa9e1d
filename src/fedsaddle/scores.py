"""How good a ranking is; and how good generated pictures are, as functions of what a judge saw in them.

    AUC                 the chance that a positive scores above a negative; equal scores count a half
    partial AUC         the mean rate of positives found while at most so many negatives are false alarms
    average precision   the mean over positives of the part of positives among all that score no less
    Inception Score     exp( H(mean of p) - mean of H(p) ) for the classes' probabilities p, H their entropy
    Frechet distance    |m - n|^2 + tr( C + D - 2 (C^1/2 D C^1/2)^1/2 ) between N(m, C) and N(n, D)

All are computed in float64, without asking a device for a value on the way but for the Frechet distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


def auroc(scores: Tensor, positive: Tensor) -> Tensor:
    """The AUC of the rows' scores. It is not a number where a score is not."""
    below, level, _ = _ranks(scores, positive)
    one = positive.to(torch.float64)
    return (one @ (below + level / 2)) / (one.sum() * (1 - one).sum()) + 0 * scores.sum()


def partial_auroc(scores: Tensor, positive: Tensor, most: float) -> Tensor:
    """The area under the ROC curve over false-alarm rates from 0 to `most`, divided by `most`.

    The curve is straight between the rates of two thresholds, as in `auroc`, which this is with most = 1.
    """
    below, level, fewer = _ranks(scores, positive)
    one = positive.to(torch.float64)
    ones, zeros = one.sum(), (1 - one).sum()
    # Rows with the same score are one threshold: the rates just above it and just below.
    alarms = (zeros - below - level) / zeros, (zeros - below) / zeros
    same = _ranks(scores, ~positive)[1]  # positives with this score
    found = (ones - fewer - same) / ones, (ones - fewer) / ones
    start, end = (rate.clamp(max=most) for rate in alarms)
    width = (alarms[1] - alarms[0]).clamp(min=1e-300)
    rise = (found[1] - found[0]) / width
    height = found[0] + rise * ((start + end) / 2 - alarms[0])
    # A threshold's piece is found once for each negative that has this score.
    piece = (end - start) * height / level.clamp(min=1)
    return ((1 - one) @ piece) / most + 0 * scores.sum()


def average_precision(scores: Tensor, positive: Tensor) -> Tensor:
    """The average precision of the rows' scores. It is not a number where a score is not."""
    below, _, fewer = _ranks(scores, positive)
    one = positive.to(torch.float64)
    return (one @ ((one.sum() - fewer) / (len(scores) - fewer - below))) / one.sum() + 0 * scores.sum()


def _ranks(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each row: how many negatives score below it, how many the same, and how many positives below."""
    scores = scores.contiguous()
    ordered, order = scores.sort()
    # ones[n]: how many of the n lowest rows are positive. Whole numbers add up the same in any order.
    ones = torch.nn.functional.pad(positive[order].to(torch.int64).cumsum(0), (1, 0)).to(torch.float64)
    first, last = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
    return first - ones[first], (last - first) - (ones[last] - ones[first]), ones[first]


def roc(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """The false and the true positive rate at every threshold, from none that pass to all."""
    ordered, order = scores.sort(descending=True)
    hits = positive[order].to(torch.float64).cumsum(0)
    count = torch.arange(1, len(hits) + 1, dtype=torch.float64, device=hits.device)
    last = torch.cat([ordered[1:] != ordered[:-1], torch.ones_like(positive[:1])])  # of rows with its score
    true, false = hits[last] / hits[-1], (count - hits)[last] / (count[-1] - hits[-1])
    zero = torch.zeros_like(true[:1])
    return torch.cat([zero, false]), torch.cat([zero, true])


def rightly_ranked(scores: Tensor, positive: Tensor) -> Tensor:
    """For each row, the part of all rows of the other kind that it is ranked rightly against.

    The mean over the positives is the AUC, and so is that over the others.
    """
    below, level, _ = _ranks(scores, positive)
    above, same, _ = _ranks(-scores, ~positive)
    ours = (below + level / 2) / (~positive).sum()
    return torch.where(positive, ours, (above + same / 2) / positive.sum())


def row_deviation(scores: Tensor) -> float:
    """How much scores (row,) or (row, class) differ from row to row: 0 if it is as if there were one row."""
    return float(scores.to(torch.float64).std(0, correction=0).max())


def disjoint(rows: int, count: int) -> list[slice]:
    """Rows cut into `count` runs of equal length, or nearly so."""
    ends = [rows * number // count for number in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def nested(rows: int, count: int) -> list[slice]:
    """The authors' release's splits: each holds nearly all of the one before, so their mean is smoothed."""
    return [slice(number, rows * (number + 1) // count) for number in range(count)]


SPLITS: dict[str, Callable[[int, int], list[slice]]] = {"disjoint": disjoint, "nested": nested}


def inception_score(probabilities: Tensor, splits: list[slice]) -> float:
    """The mean over splits of probabilities (row, class): 1 at the least, the number of classes at most."""
    p = probabilities.to(torch.float64)
    scores = [
        torch.exp(torch.special.entr(p[rows].mean(0)).sum() - torch.special.entr(p[rows]).sum(1).mean())
        for rows in splits
    ]
    return float(torch.stack(scores).mean())


class Moments(NamedTuple):
    """The mean and covariance of features."""

    mean: Tensor
    covariance: Tensor


def moments(features: Tensor) -> Moments:
    """Of features (row, feature)."""
    rows = features.to(torch.float64)
    centred = rows - rows.mean(0)
    return Moments(rows.mean(0), centred.mT @ centred / max(1, len(rows) - 1))


def frechet_distance(one: Moments, other: Moments) -> float:
    """Between two Gaussians, whose covariances may be singular; not a number where their moments are not."""
    if not all(torch.isfinite(moment).all() for moment in (*one, *other)):
        return math.nan
    # Symmetric all the way, so that eigenvalues are real; those that rounding made negative are zero.
    values, vectors = torch.linalg.eigh(one.covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    overlap = torch.linalg.eigvalsh(root @ other.covariance @ root).clamp(min=0).sqrt().sum()
    spread = one.covariance.trace() + other.covariance.trace() - 2 * overlap
    return max(0.0, float((one.mean - other.mean).square().sum() + spread))
