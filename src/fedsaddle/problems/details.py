"""What tasks tell of a point beside their metrics: curves, distributions, and how each client fares."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedsaddle.core import Pair
from fedsaddle.problem import Detail, Federation, client_means
from fedsaddle.scores import rightly_ranked, roc

BINS = 40  # of a histogram
CORNERS = 120  # of a curve: as many as a screen shows


class Ranking(Protocol):
    """A task that scores rows to tell positives from the others."""

    @property
    def away(self) -> bool: ...

    @property
    def federation(self) -> Federation: ...

    @property
    def test_rows(self) -> Federation: ...

    def all_scores(self, x: Tensor, inputs: Tensor) -> Tensor: ...


def ranking_details(problem: Ranking, z: Pair) -> dict[str, Detail]:
    """The ROC curve and the scores of test rows; and how well each client's rows are ranked."""
    test = problem.test_rows.to(z.x.device).rows
    scores, positive = problem.all_scores(z.x, test["input"]), test["positive"]
    found = tested_ranking(scores, positive)
    if problem.away:
        return found
    held = problem.federation.to(z.x.device)
    return found | client_ranking(held, problem.all_scores(z.x, held.rows["input"]))


def tested_ranking(scores: Tensor, positive: Tensor) -> dict[str, Detail]:
    return {
        "ROC on test rows": Detail("line", roc_columns(scores, positive)),
        "Scores of test rows": Detail("histogram", score_columns(scores, positive)),
    }


def client_ranking(held: Federation, scores: Tensor) -> dict[str, Detail]:
    """How well each client's rows are ranked against all rows of the other kind, whoever holds them."""
    ranked = rightly_ranked(scores, held.rows["positive"])
    return {"Clients": Detail("clients", client_means(held, ranked, "training rows ranked rightly"))}


def roc_columns(scores: Tensor, positive: Tensor) -> dict[str, list[float]]:
    """The corners of a ROC curve; of very many, as many as can be seen, evenly along it."""
    false, true = roc(scores, positive)
    right, up = false.diff(), true.diff()
    turns = (right[1:] * up[:-1] - right[:-1] * up[1:]).abs() > 1e-15
    end = torch.ones(1, dtype=torch.bool, device=turns.device)
    false, true = (rates[torch.cat([end, turns, end])] for rates in (false, true))
    along = false + true
    if len(along) <= CORNERS:
        return {"false positive rate": _short(false), "true positive rate": _short(true)}
    wanted = torch.linspace(0, 2, CORNERS, dtype=along.dtype, device=along.device)
    chosen = torch.unique(torch.searchsorted(along, wanted).clamp(max=len(along) - 1))
    return {"false positive rate": _short(false[chosen]), "true positive rate": _short(true[chosen])}


def score_columns(scores: Tensor, positive: Tensor) -> dict[str, list[float]]:
    """How many positives and others score how high."""
    low, high = (float(bound) for bound in torch.aminmax(scores))
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    edges = torch.linspace(low, high if high > low else low + 1, BINS + 1, dtype=torch.float64)
    bins = ((scores.to("cpu", torch.float64) - edges[0]) / (edges[-1] - edges[0]) * BINS).long()
    counts = [
        torch.bincount(bins[own].clamp(0, BINS - 1), minlength=BINS).tolist()
        for own in (positive.cpu(), ~positive.cpu())
    ]
    return {
        "from": _short(edges[:-1]),
        "to": _short(edges[1:]),
        "positive": counts[0],
        "others": counts[1],
    }


def _short(values: Tensor) -> list[float]:
    """Five digits, which is more than can be seen."""
    return [float(f"{value:.5g}") for value in values.tolist()]
