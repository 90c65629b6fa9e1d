"""Limits on error rates: a classifier x against multipliers y >= 0, one for each limit.

    L(x, y) = mean loss + sum_k y_k v_k(x) - (penalty / 2) |y|^2,       0 <= y_k <= most

v_k <= 0 is what is asked for. Let r_gc be the part of the rows of group g and class c that are taken for
positive. Every rule here is linear in these rates, v = M r + b:

    neyman-pearson    1 - r_1 - limit                       of the positives at most `limit` are missed
    equalised-odds    +(r_gc - r_c) - limit, -(r_gc - r_c) - limit     for each g and c; r_c is of all groups

Training cannot count: a row is taken for positive by sigmoid(sharpness * output), a number between 0 and 1,
and r_gc is the mean of those. What is reported as a violation is counted, with output > 0.

At a saddle with all y_k below `most` the limits hold for these soft rates on the training rows, up to
penalty * y_k. Nothing is promised for counted rates or for test rows: that is measured. A y_k that stays at
`most` says that the limits cannot all be met, or that `most` is too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from fedsaddle.core import Pair
from fedsaddle.data.datasets import scaled
from fedsaddle.errors import BadInput, unknown, without_effect
from fedsaddle.metric import Metric
from fedsaddle.problem import Batch, Detail, Facts, client_means
from fedsaddle.problems.tabled import Cells, Tabled
from fedsaddle.projections import box
from fedsaddle.ranges import Above0, NotNegative, Rate

RULES = ("neyman-pearson", "equalised-odds")


class Rates(NamedTuple):
    """What is taken for positive, of each kind of row."""

    soft: Tensor  # (kind,)
    hard: Tensor  # (kind,): counted
    sizes: Tensor  # (kind,): its rows
    loss: Tensor  # the mean over all rows
    error: Tensor  # the part of all rows that is wrong


@dataclass(frozen=True)
class Limits(Tabled):
    """A classifier whose error rates are limited."""

    rule: Literal["neyman-pearson", "equalised-odds"] = "neyman-pearson"
    limit: Rate = 0.1
    groups: str = ""  # of equalised-odds: one of the dataset's, such as sex
    sharpness: Above0 = 1.0
    most: Above0 = 10.0
    penalty: NotNegative = 0.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise unknown("rule", self.rule, RULES)
        if self.rule == "equalised-odds" and not self.groups:
            raise BadInput(
                f"equalised-odds needs groups, one of: {', '.join(self.data.groups) or 'none are known'}"
            )
        super().__post_init__()
        self.count  # noqa: B018

    @property
    def notes(self) -> list[str]:
        idle = (
            {} if self.rule == "equalised-odds" else {"groups": "neyman-pearson looks at all rows together"}
        )
        return super().notes + without_effect(self, idle)

    # --- kinds of rows, and the limits as linear functions of their rates ---

    @cached_property
    def _groups(self) -> tuple[int, Tensor, Tensor]:
        """How many groups there are, each training row's and each test row's."""
        if self.rule == "neyman-pearson":
            return 1, torch.zeros_like(self.data.labels), torch.zeros_like(self.data.test_labels)
        names, rows, test_rows = self.grouped(self.groups)
        return len(names), rows, test_rows

    def columns(self, test: bool) -> Cells:
        """A row is of kind 2 g + c."""
        found, (_, rows, test_rows) = super().columns(test), self._groups
        return self._of_kind(found, test_rows if test else rows)

    def _of_kind(self, rows: Cells, group: Tensor) -> Cells:
        positive = rows["label"] == self.target
        known = {name: rows[name] for name in ("input", "label")}
        return known | {"positive": positive, "kind": 2 * group + positive.long()}

    @property
    def told_by(self) -> str:  # type: ignore[override]
        return self.groups if self.rule == "equalised-odds" and self.groups != "class" else ""

    @property
    def kinds(self) -> int:
        return 2 * self._groups[0]

    def kind_of(self, rows: Cells) -> Tensor:
        return rows["kind"]

    def cells(self, rows: Cells) -> Cells:
        everybody = torch.zeros_like(rows["label"])
        return self._of_kind(rows, rows["group"] if self.told_by and "group" in rows else everybody)

    def learn(self, facts: Facts) -> None:
        super().learn(facts)
        self.count  # noqa: B018  what cannot be limited is refused now

    @cached_property
    def count(self) -> Tensor:
        """The training rows of each kind."""
        groups, found = self._groups[0], self.counted
        if not found.all():
            raise BadInput(
                f"{self.dataset}: of {groups} groups with two classes each, {int((found == 0).sum())} kinds "
                "have no training rows, so no rate can be limited there; choose other groups"
            )
        return found

    def limits(self, count: Tensor) -> tuple[Tensor, Tensor]:
        """M and b, where each kind has so many rows."""
        if self.rule == "neyman-pearson":
            last = torch.arange(0, -2, -1, dtype=count.dtype, device=count.device)  # -1 of the second kind
            return last[None], torch.full_like(last[:1], 1 - self.limit)
        of_class = count.view(-1, 2).sum(0).clamp(min=1).repeat(len(count) // 2)  # (kind,)
        same = torch.eye(2, dtype=count.dtype, device=count.device).repeat(len(count) // 2, len(count) // 2)
        apart = torch.eye(len(count), dtype=count.dtype, device=count.device) - same * (count / of_class)
        return torch.cat([apart, -apart]), torch.full_like(torch.cat([count, count]), -self.limit)

    @cached_property
    def _trained(self) -> tuple[Tensor, Tensor]:
        return self.limits(self.count.double())

    def init(self, seed: int) -> Pair:
        """PyTorch's initialisation of the network; y = 0, as if there were no limits."""
        x = self.model.init(seed)
        return Pair(x, torch.zeros(len(self._trained[1]), dtype=x.dtype))

    def project(self, z: Pair) -> Pair:
        return Pair(z.x, box(z.y, 0.0, self.most))

    # --- the Lagrangian ---

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        outputs = self.model(z.x, scaled(xi.rows["input"], z.x.dtype)).squeeze(1)
        m, b = (one.to(z.y.device, z.y.dtype) for one in self._trained)
        count = self.count.to(z.y.device, z.y.dtype)
        force = (z.y @ m) / count  # of a row of each kind
        row = self.harm(outputs, xi.rows["positive"]) / count.sum()
        row = row + force[xi.rows["kind"]] * torch.sigmoid(self.sharpness * outputs)
        return xi.mean(xi.rows["share"] * row) + z.y @ b - self.penalty / 2 * z.y.square().sum()

    def harm(self, outputs: Tensor, positive: Tensor) -> Tensor:
        """The cross entropy of each row."""
        return softplus(torch.where(positive, -outputs, outputs))

    # --- how a point is judged ---

    def rates(self, x: Tensor, rows: Cells) -> Rates:
        outputs = self.output(x, rows["input"]).squeeze(1)
        member = one_hot(rows["kind"], len(self.count)).to(outputs.dtype)  # (row, kind)
        count, taken = member.sum(0), (outputs > 0).to(outputs.dtype)
        soft = torch.sigmoid(self.sharpness * outputs)

        def by_kind(values: Tensor) -> Tensor:
            """Of a kind without rows, that of its class, so that it is not apart from it."""
            sums = values @ member
            of_class = (sums.view(-1, 2).sum(0) / count.view(-1, 2).sum(0).clamp(min=1)).repeat(
                len(count) // 2
            )
            return torch.where(count > 0, sums / count.clamp(min=1), of_class)

        wrong = ((outputs > 0) != rows["positive"]).to(outputs.dtype)
        loss = self.harm(outputs, rows["positive"]).mean()
        return Rates(by_kind(soft), by_kind(taken), count, loss, wrong.mean())

    def violations(self, rates: Rates) -> tuple[Tensor, Tensor]:
        """v, of the soft rates and of the counted ones."""
        m, b = self.limits(rates.sizes)
        return m @ rates.soft + b, m @ rates.hard + b

    def lagrangian(self, loss: Tensor, v: Tensor, y: Tensor) -> Tensor:
        return loss + y @ v - self.penalty / 2 * y.square().sum()

    def best_y(self, v: Tensor) -> Tensor:
        """The multipliers that make most of these violations."""
        return (v / self.penalty if self.penalty else v.sign() * self.most).clamp(0, self.most)

    def measure(self, z: Pair) -> dict[str, Tensor]:
        """Error, rates and violations as counted on both halves, and the Lagrangian on the training rows."""
        train, test = (self.rates(z.x, rows.to(z.x.device).rows) for rows in (self.federation, self.test))
        soft, hard = self.violations(train)
        test_soft, test_hard = self.violations(test)
        found = {
            "test_phi": self.lagrangian(test.loss, test_soft, self.best_y(test_soft)),
            "test_error": test.error,
            "violation": test_hard.max().clamp(min=0),
            "train_violation": hard.max().clamp(min=0),
            "soft_violation": soft.max().clamp(min=0),
        }
        by_class = test.hard.view(-1, 2)
        if self.rule == "neyman-pearson":
            found |= {"missed": 1 - by_class[0, 1], "alarms": by_class[0, 0]}
        else:
            found["odds_gap"] = (by_class.amax(0) - by_class.amin(0)).max()
        return self.seen(
            found
            | {
                "phi": self.lagrangian(train.loss, soft, self.best_y(soft)),
                "loss": self.lagrangian(train.loss, soft, z.y),
                "largest_multiplier": z.y.max(),
            }
        )

    def details(self, z: Pair) -> dict[str, Detail]:
        """How often each kind of rows is taken for positive, what limits cost; and each client's error."""
        held, test = (rows.to(z.x.device) for rows in (self.federation, self.test))
        taken = self.rates(z.x, test.rows).hard.view(-1, 2)
        names = ["all rows"] if self.rule == "neyman-pearson" else list(self.grouped(self.groups)[0])
        rates = {"group": names, "false alarms": taken[:, 0].tolist(), "missed": (1 - taken[:, 1]).tolist()}
        wrong = (self.output(z.x, held.rows["input"]).squeeze(1) > 0) != held.rows["positive"]
        clients = client_means(held, wrong, "training error")
        return {
            "Rates on test rows": Detail("bars", rates, "low"),
            "Clients": Detail("clients", clients, "low"),
        }

    @property
    def metrics(self) -> dict[str, Metric]:
        rates = ("missed", "alarms") if self.rule == "neyman-pearson" else ("odds_gap",)
        return self.known(
            {
                "test_phi": Metric("low", rows="test"),
                "test_error": Metric("low", rows="test"),
                "violation": Metric("low", rows="test"),
                "train_violation": Metric("low", rows="train"),
                "soft_violation": Metric("low", rows="train"),
                **{name: Metric("low", rows="test") for name in rates},
                "phi": Metric("low", rows="train"),
                "loss": Metric("neither", rows="train"),
                "largest_multiplier": Metric("neither", rows="none"),
            }
        )
