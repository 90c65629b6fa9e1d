"""Partial AUC: rank positives above those negatives that would be false alarms first.

With s the score of a row, in [0, 1], and Q the weights on n negatives with 0 <= q_j <= 1 / (beta n), sum 1,

    P(s) = max over q in Q of  mean_i sum_j q_j (1 - s_i + s_j)^2

The squares grow with s_j, so the best q is 1 / (beta n) on the part beta of the negatives that score highest
(CVaR): P is the squared surrogate of 1 - the partial AUC at false-alarm rates up to beta. With m+ the mean
of the positives' scores and m_q that of the negatives' under q, the mean of the squares is

    Var+(s) + Var_q(s) + (1 + m_q - m+)^2 = min_a E+(s-a)^2 + min_b E_q(s-b)^2 + 1
                                            + max_alpha [ 2 (1+alpha)(m_q - m+) - alpha^2 ]

as for AUC. What is left is E_q h, h(s) = (s-b)^2 + 2 (1+alpha) s, without knowing who scores highest. h grows
with s where s > b - 1 - alpha, so the mean of its top part is h(t) + E-(h(s) - h(t))_+ / beta at its least
over t, and there the bracket is (s-t)_+ (s + t - 2b + 2 (1+alpha)). So x = (network, a, b, t), y = alpha:

    F = 1 + E+[ (s-a)^2 - 2 (1+alpha) s ] + h(t) + E-[ (s-t)_+ (s + t - 2b + 2 (1+alpha)) ] / beta - alpha^2

F is a parabola in alpha, convex in a and b, and dF/dt = 2 (t - b + 1 + alpha)(1 - P-(s > t) / beta): for
alpha > b - 1 - t it falls up to the threshold that the part beta of negatives exceeds, and rises after,
whatever the others are. So for fixed scores the saddle over (a, b, t; alpha) is P, with b = m_q,
alpha = m_q - m+ > b - 1 - t. Each row's part is its own: no pairs, no ranking of other clients' rows.
beta = 1 is AUC.

With KL weights any q may be chosen and pays c KL(q | equal ones), c the temperature. The squares are linear
in q, so the best is q_j ~ exp((1 + s_j - m+)^2 / c), and

    P(s) = Var+(s) + c log E- exp((1 + s - m+)^2 / c)

The same a, b and alpha part the means. With u = h(s) - 2 (1+alpha) b = (s-b)^2 + 2 (1+alpha)(s-b), and
c log E- exp(u / c) = min_t t + c E-[exp((u-t) / c) - 1],

    F = 1 + E+[ (s-a)^2 - 2 (1+alpha) s ] + 2 (1+alpha) b + t + c E-[ exp((u-t) / c) - 1 ] - alpha^2

F is convex in (a, b, t), and concave in alpha where E-[ (s-b)^2 exp((u-t) / c) ] < c / 2. At the saddle that
is Var_q(s) < c / 2, which holds if c > 1/2, and for less if scores are not far apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedsaddle.core import Pair, Range
from fedsaddle.data.datasets import scaled
from fedsaddle.errors import BadInput, unknown, without_effect
from fedsaddle.metric import Metric
from fedsaddle.problem import Batch, Detail, Facts
from fedsaddle.problems.details import client_ranking, tested_ranking
from fedsaddle.problems.tabled import Cells, Tabled
from fedsaddle.projections import box
from fedsaddle.ranges import Above0
from fedsaddle.scores import auroc, partial_auroc, row_deviation

EXTRA = 3  # numbers of x beside the network: a, b and t


class Weighing(Protocol):
    """How negatives are weighed."""

    @property
    def reach(self) -> tuple[float, float]:
        """Between which numbers t is."""

    def down(self, s: Tensor, b: Tensor, t: Tensor, alpha: Tensor) -> Tensor:
        """What a negative has of F."""

    def best(self, s: Tensor, positive: Tensor) -> Tensor:
        """P less Var+: at the worst weights, from all scores at once."""


class Highest(NamedTuple):
    """CVaR: the part beta of the negatives that score highest; all, with 1."""

    beta: float
    reach: tuple[float, float] = (0.0, 1.0)

    def down(self, s: Tensor, b: Tensor, t: Tensor, alpha: Tensor) -> Tensor:
        # The last bracket is positive where alpha > b - 1 - t; after a step to elsewhere, t comes back.
        top = torch.relu(s - t) * torch.relu(s + t - 2 * b + 2 * (1 + alpha)) / self.beta
        return top + (t - b) ** 2 + 2 * (1 + alpha) * t

    def best(self, s: Tensor, positive: Tensor) -> Tensor:
        one, n = positive.to(s.dtype), self.beta * (~positive).sum()
        # The k-th highest negative has all of its weight if k <= beta n, and the next one what is left.
        ranked = torch.where(positive, -1.0, s).sort(descending=True).values
        q = (n - torch.arange(len(s), dtype=s.dtype, device=s.device)).clamp(0, 1) / n
        mean, high = s @ one / one.sum(), ranked @ q
        return (ranked - high).square() @ q + (1 + high - mean) ** 2


class Tilted(NamedTuple):
    """KL: a negative weighs the more the higher its squares are, exponentially."""

    temperature: float
    reach: tuple[float, float] = (-5.0, 5.0)

    def down(self, s: Tensor, b: Tensor, t: Tensor, alpha: Tensor) -> Tensor:
        u = (s - b) ** 2 + 2 * (1 + alpha) * (s - b)
        weight = torch.exp((u - t) / self.temperature)
        return self.temperature * (weight - 1) + t + 2 * (1 + alpha) * b

    def best(self, s: Tensor, positive: Tensor) -> Tensor:
        one = positive.to(s.dtype)
        square = (1 + s - s @ one / one.sum()) ** 2 / self.temperature
        every = torch.where(positive, -torch.inf, square).logsumexp(0)
        return self.temperature * (every - (1 - one).sum().log())


WEIGHTS: dict[str, Callable[[PartialAUC], Weighing]] = {
    "cvar": lambda own: Highest(own.fpr),
    "kl": lambda own: Tilted(own.temperature),
    "all": lambda own: Highest(1.0),
}


@dataclass(frozen=True)
class PartialAUC(Tabled):
    """One class against the others, judged at few false alarms."""

    fpr: Annotated[float, Range(above=0, most=1)] = 0.1  # false-alarm rates up to this
    weights: Literal["cvar", "kl", "all"] = "cvar"  # on negatives: the highest, the higher more, as in AUC
    temperature: Above0 = 0.5  # of kl: what unequal weights cost

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise unknown("weights", self.weights, WEIGHTS)
        super().__post_init__()
        for rows, labels in (("training", self.data.labels), ("test", self.data.test_labels)):
            if not 0 < (labels == self.target).float().mean() < 1:
                raise BadInput(f"{self.dataset}: the {rows} rows must hold positives and negatives")

    @property
    def notes(self) -> list[str]:
        idle = {} if self.weights == "kl" else {"temperature": f"it is of weights kl, not of {self.weights}"}
        return super().notes + without_effect(self, idle)

    @cached_property
    def weighing(self) -> Weighing:
        return WEIGHTS[self.weights](self)

    def columns(self, test: bool) -> Cells:
        return self.cells(super().columns(test))

    def cells(self, rows: Cells) -> Cells:
        return {"input": rows["input"], "label": rows["label"], "positive": rows["label"] == self.target}

    @property
    def kinds(self) -> int:
        return 2

    def kind_of(self, rows: Cells) -> Tensor:
        return rows["positive"].long()

    def learn(self, facts: Facts) -> None:
        super().learn(facts)
        if not all(self.count):
            raise BadInput("the devices must hold positives and negatives together")

    @cached_property
    def count(self) -> tuple[float, float]:
        """Positives and negatives of all clients, which a server can add up from two numbers of each."""
        zeros, ones = self.counted.tolist()
        return float(ones), float(zeros)

    def init(self, seed: int) -> Pair:
        """PyTorch's initialisation of the network; t = 1, which nobody exceeds, and comes down."""
        return Pair(torch.cat([self.model.init(seed), torch.ones(EXTRA)]), torch.zeros(1))

    def project(self, z: Pair) -> Pair:
        """Means and thresholds of scores are in [0, 1], their differences in [-1, 1]."""
        weights, means, t = z.x.split([self.model.size, EXTRA - 1, 1])
        return Pair(
            torch.cat([weights, box(means, 0.0, 1.0), box(t, *self.weighing.reach)]), box(z.y, -1.0, 1.0)
        )

    def scores(self, weights: Tensor, inputs: Tensor) -> Tensor:
        return torch.sigmoid(self.model(weights, scaled(inputs, weights.dtype)).squeeze(1))

    def row(self, s: Tensor, positive: Tensor, a: Tensor, b: Tensor, t: Tensor, alpha: Tensor) -> Tensor:
        """F - 1 as a sum of means over positives and over negatives: what a row has of its mean.

        Constants too are the rows': a client with few has little of them, and all clients pull alike.
        """
        up = (s - a) ** 2 - 2 * (1 + alpha) * s
        return torch.where(positive, up, self.weighing.down(s, b, t, alpha)) - alpha**2 / 2

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        weights, a, b, t = z.x.split([self.model.size, 1, 1, 1])
        positive, (ones, zeros) = xi.rows["positive"], self.count
        part = self.row(self.scores(weights, xi.rows["input"]), positive, a, b, t, z.y)
        worth = xi.rows["share"] * torch.where(positive, 1 / ones, 1 / zeros)
        return 1 + xi.mean(worth * part)

    def surrogate(self, s: Tensor, positive: Tensor) -> Tensor:
        """P, from all scores at once; what F is at its saddle."""
        one = positive.to(s.dtype)
        mean = s @ one / one.sum()
        return (s - mean).square() @ one / one.sum() + self.weighing.best(s, positive)

    @property
    def metrics(self) -> dict[str, Metric]:
        guess = self.fpr / 2
        return self.known(
            {
                "test_pauc": Metric("high", rows="test", chance=guess),
                "test_auc": Metric("high", rows="test", chance=0.5),
                "train_pauc": Metric("high", rows="train", chance=guess),
                "surrogate": Metric("low", rows="train"),
                "loss": Metric("neither", rows="train"),
                **(
                    {}
                    if self.weights == "kl" or self.away
                    else {"alarm_rate": Metric("neither", rows="none")}
                ),
            }
        )

    def measure(self, z: Pair) -> dict[str, Tensor]:
        """Partial AUC on both halves, AUC, the surrogate, F, and the part above t, if that is a threshold."""
        train, test = (rows.to(z.x.device).rows for rows in (self.federation, self.test))
        weights, a, b, t = z.x.split([self.model.size, 1, 1, 1])
        s, unseen = (torch.sigmoid(self.output(weights, rows["input"]).squeeze(1)) for rows in (train, test))
        positive, (ones, zeros) = train["positive"], self.count
        part = self.row(s, positive, a, b, t, z.y)
        loss = 1 + (part * torch.where(positive, 1 / ones, 1 / zeros)).sum()
        found = {
            "test_pauc": partial_auroc(unseen, test["positive"], self.fpr),
            "test_auc": auroc(unseen, test["positive"]),
            "train_pauc": partial_auroc(s, positive, self.fpr),
            "surrogate": self.surrogate(s, positive),
            "loss": loss,
            "alarm_rate": ((s > t) & ~positive).sum() / zeros,
        }
        return {name: value for name, value in found.items() if name in self.metrics}

    def score_spread(self, z: Pair) -> float:
        """How much the scores of test rows differ."""
        outputs = self.output(z.x[: self.model.size], self.test.to(z.x.device).rows["input"])
        return row_deviation(torch.sigmoid(outputs))

    def details(self, z: Pair) -> dict[str, Detail]:
        """The ROC curve and the scores of test rows; and how well each client's rows are ranked."""
        held, test = (rows.to(z.x.device) for rows in (self.federation, self.test))
        weights = z.x[: self.model.size]
        s, unseen = (
            torch.sigmoid(self.output(weights, half.rows["input"]).squeeze(1)) for half in (held, test)
        )
        return tested_ranking(unseen, test.rows["positive"]) | client_ranking(held, s)
