"""The worst group: a classifier x against weights y on groups of people, or on clients (AFL, DRFA).

    f(x, y) = sum_g y_g L_g(x) - (penalty / 2) |y - p|^2,       y_g >= 0, sum_g y_g = 1

L_g is the mean cross entropy over the rows of group g and p_g the group's part of all rows. Without the
penalty, max_y f is the loss of the worst group; with a large one it is the mean loss over all rows, which
learning without groups minimises. y starts at p: held there, it is that mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedsaddle.core import Pair
from fedsaddle.data.datasets import scaled
from fedsaddle.errors import BadInput
from fedsaddle.metric import Metric
from fedsaddle.problem import Batch, Detail, client_means
from fedsaddle.problems.tabled import Cells, Tabled
from fedsaddle.projections import simplex
from fedsaddle.ranges import NotNegative

CLIENT = "client"
MOST_BARS = 40  # groups that can be told apart as bars


@dataclass(frozen=True)
class Groups(Tabled):
    """A classifier that is judged by its worst group."""

    groups: str = "class"  # class, client, or one of the dataset's: sex, race, country, ...
    by_class: bool = False  # whether each class of a group is a group of its own
    penalty: NotNegative = 0.0

    @cached_property
    def grouping(self) -> tuple[tuple[str, ...], Tensor, Tensor | None]:
        """The names of the groups, each training row's, and each test row's where there are some."""
        data = self.data
        if self.groups != CLIENT:
            names, rows, test_rows = self.grouped(self.groups, CLIENT)
        elif self.by_class:
            raise BadInput("by_class needs groups that test rows have too, and they have no client")
        elif self.away:
            return tuple(map(str, range(self.clients))), torch.zeros(0, dtype=torch.int64), None
        else:
            return tuple(map(str, range(len(self.parts)))), self.holders, self._tested_clients
        if not self.by_class:
            return names, rows, test_rows
        if self.groups == "class":
            raise BadInput("by_class has no meaning where the groups are the classes")
        classes = data.classes
        pairs = tuple(f"{name}, {label}" for name in names for label in classes)
        return pairs, rows * len(classes) + data.labels, test_rows * len(classes) + data.test_labels

    @property
    def _tested_clients(self) -> Tensor | None:
        """The clients of the test rows, where clients are one of the dataset's groups and none was cut."""
        data = self.data
        if self.partition != "column" or data.owners is None:
            return None
        values = data.owners.unique()
        for found in data.groups.values():
            if len(values) == len(self.parts) == len(found.names) and torch.equal(found.rows, data.owners):
                return found.test_rows
        return None

    def columns(self, test: bool) -> Cells:
        _, rows, test_rows = self.grouping
        if not test:
            return {**super().columns(test), "group": rows}
        return super().columns(test) | ({} if test_rows is None else {"group": test_rows})

    @property
    def told_by(self) -> str:  # type: ignore[override]
        return "" if self.groups in ("class", CLIENT) else self.groups

    @property
    def kinds(self) -> int:
        return len(self.grouping[0])

    def kind_of(self, rows: Cells) -> Tensor:
        return rows["group"]

    def cells(self, rows: Cells) -> Cells:
        label = rows["label"]
        if self.groups == CLIENT:  # of one device, one group, which `holding` knows
            return {**rows, "group": torch.zeros_like(label)}
        if self.groups == "class":
            return {**rows, "group": label}
        return {**rows, "group": rows["group"] * len(self.data.classes) + label} if self.by_class else rows

    def holding(self, client: int, path: str) -> Self:
        own = super().holding(client, path)
        if self.groups == CLIENT:
            own._own_rows()["group"].fill_(client)
        return own

    @cached_property
    def count(self) -> Tensor:
        """The training rows of each group; a group without any is never the worst."""
        return self.counted

    @cached_property
    def part(self) -> Tensor:
        """p, the part of the rows that are of each group."""
        return self.count.double() / self.count.sum()

    @property
    def outputs(self) -> int:
        return len(self.data.classes)

    def init(self, seed: int) -> Pair:
        """PyTorch's initialisation of the network; y = p, or what is known of it."""
        x = self.model.init(seed)
        return Pair(x, (self._guess if self.away else self.part).to(x.dtype))

    @property
    def _guess(self) -> Tensor:
        """p before any device has told its rows: the reference's, and of clients that they hold as many."""
        if self.groups == CLIENT:
            return torch.full((self.clients,), 1 / self.clients, dtype=torch.float64)
        found = torch.bincount(self.grouping[1], minlength=self.kinds).double()
        return found / found.sum()

    def project(self, z: Pair) -> Pair:
        return Pair(z.x, simplex(z.y))

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        outputs = self.model(z.x, scaled(xi.rows["input"], z.x.dtype))
        harm = cross_entropy(outputs, xi.rows["label"], reduction="none")
        group = xi.rows["group"]
        rows = self.count.to(z.y.device, z.y.dtype).clamp(min=1)
        return xi.mean((z.y / rows)[group] * xi.rows["share"] * harm) - self.price(z.y)

    def price(self, y: Tensor) -> Tensor:
        """What y pays for weights that are not the rows'."""
        return self.penalty / 2 * (y - self.part.to(y.device, y.dtype)).square().sum()

    def best_y(self, losses: Tensor) -> Tensor:
        """The maximiser of f at a point with these losses."""
        if self.penalty:
            return simplex(self.part.to(losses.device, losses.dtype) + losses / self.penalty)
        return one_hot(losses.argmax(), len(losses)).to(losses.dtype)

    def by_group(self, x: Tensor, rows: Cells) -> tuple[Tensor, Tensor, Tensor]:
        """The mean loss of each group, the part that is wrong, and how many rows it has."""
        outputs = self.output(x, rows["input"])
        harm = cross_entropy(outputs, rows["label"], reduction="none")
        wrong = (outputs.argmax(1) != rows["label"]).to(harm.dtype)
        member = one_hot(rows["group"], len(self.count)).to(harm.dtype)  # (row, group)
        count = member.sum(0)
        return harm @ member / count.clamp(min=1), wrong @ member / count.clamp(min=1), count

    @cached_property
    def judged(self) -> bool:
        """Whether the test rows have groups."""
        return self.grouping[2] is not None

    def measure(self, z: Pair) -> dict[str, Tensor]:
        """The worst group and all rows, and the largest weight that y gives."""
        train, test = (rows.to(z.x.device).rows for rows in (self.federation, self.test))
        losses, wrong, _ = self.by_group(z.x, train)
        found = {}
        if self.judged:
            test_losses, errors, tested = self.by_group(z.x, test)
            right = 1 - errors
            found = {
                "worst_accuracy": torch.where(tested > 0, right, 1.0).min(),
                "test_accuracy": right @ tested / tested.sum(),
                "gap": torch.where(tested > 0, right, 0.0).max() - torch.where(tested > 0, right, 1.0).min(),
                "worst_loss": test_losses.max(),
            }
        else:
            found["test_accuracy"] = (
                (self.output(z.x, test["input"]).argmax(1) == test["label"]).to(losses.dtype).mean()
            )
        best = self.best_y(losses)
        return self.seen(
            found
            | {
                "train_worst_accuracy": 1 - wrong.max(),
                "train_worst_loss": losses.max(),
                "phi": best @ losses - self.price(best),
                "loss": z.y @ losses - self.price(z.y),
                "largest_weight": z.y.max(),
            }
        )

    @property
    def metrics(self) -> dict[str, Metric]:
        found = {
            "worst_accuracy": Metric("high", rows="test"),
            "test_accuracy": Metric("high", rows="test"),
            "gap": Metric("low", rows="test"),
            "worst_loss": Metric("low", rows="test"),
            "train_worst_accuracy": Metric("high", rows="train"),
            "train_worst_loss": Metric("low", rows="train"),
            "phi": Metric("low", rows="train"),
            "loss": Metric("neither", rows="train"),
            "largest_weight": Metric("neither", rows="none"),
        }
        if not self.judged:
            found = {k: v for k, v in found.items() if v.rows != "test" or k == "test_accuracy"}
        return self.known(found)

    def details(self, z: Pair) -> dict[str, Detail]:
        """Each group, with the weight that y gives it; and each client, by its own rows."""
        held, test = (rows.to(z.x.device) for rows in (self.federation, self.test))
        _, wrong, _ = self.by_group(z.x, test.rows if self.judged else held.rows)
        which = "test accuracy" if self.judged else "training accuracy"
        groups = {"group": list(self.grouping[0]), which: (1 - wrong).tolist(), "weight": z.y.tolist()}
        right = self.output(z.x, held.rows["input"]).argmax(1) == held.rows["label"]
        clients = client_means(held, right, "training accuracy")
        kind: Literal["bars", "clients"] = "bars" if len(wrong) <= MOST_BARS else "clients"
        return {"Groups": Detail(kind, groups), "Clients": Detail("clients", clients)}
