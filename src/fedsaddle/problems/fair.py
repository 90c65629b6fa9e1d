"""Fair classification: a network x against weights y on the classes, which go where the loss is largest.

    f(x, y) = sum_c y_c L_c(x) - (penalty / 2) |y - 1/C|^2,       y_c >= 0, sum_c y_c = 1

L_c is the mean cross entropy over the rows of class c. Without the penalty, max_y f is the loss of the worst
class; with a large one the classes count the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedsaddle.core import Count, Pair
from fedsaddle.data.datasets import scaled
from fedsaddle.data.devices import Columns, Local
from fedsaddle.data.federated import chunks, federate, test_rows
from fedsaddle.data.partition import idle_dials
from fedsaddle.errors import BadInput, without_effect
from fedsaddle.metric import Metric
from fedsaddle.problem import Batch, Counts, Detail, Facts, Federation, Measured, client_means
from fedsaddle.problems.classified import Classified
from fedsaddle.projections import simplex
from fedsaddle.ranges import NotNegative, Seed, check
from fedsaddle.scores import row_deviation


@dataclass(frozen=True)
class Fair(Classified, Measured):
    """A classifier that is judged by its worst class."""

    dataset: str = "digits"  # a name, or the path of a .csv or .npz file
    clients: Count = 50
    partition: str = "label"  # label, iid, dirichlet or zipf; devices, if each holds rows of its own
    alpha: float = 0.5  # of dirichlet and zipf
    hidden: Count = 64
    penalty: NotNegative = 0.1
    seed: Seed = 0  # of the partition
    # Of a file:
    label: str = "label"  # the column of the classes
    sha256: str = ""  # if given, a file that has changed is refused
    _local: Local = field(default_factory=Local, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        self.federation  # noqa: B018  a dataset or partition that cannot be had is refused here

    @property
    def notes(self) -> list[str]:
        """What was asked for and has no effect."""
        idle = idle_dials(self.partition)
        if not self.data.has_test:  # so that test rows are drawn
            idle.pop("seed", None)
        return without_effect(self, idle)

    @cached_property
    def federation(self) -> Federation:
        held = self._local.rows or federate(self.data, self.partition, self.clients, self.alpha, self.seed)
        count = torch.bincount(held.rows["label"], minlength=self.classes)
        return Federation({**held.rows, "worth": self._worth(held, len(held), count)}, held.sizes)

    def _worth(self, held: Federation, clients: int, count: Tensor) -> Tensor:
        """What each row counts, where all clients together have so many rows of each class.

        A client divides by its rows and the server by the clients: this takes both back and divides by the
        rows of the class. Then the mean over clients is sum_c y_c L_c, whoever holds which class.
        """
        return held.sizes.repeat_interleave(held.sizes) * clients / count[held.rows["label"]]

    def init(self, seed: int) -> Pair:
        """PyTorch's initialisation of the network; all classes weigh the same."""
        return Pair(self.model.init(seed), torch.full((self.classes,), 1 / self.classes))

    def project(self, z: Pair) -> Pair:
        return Pair(z.x, simplex(z.y))

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        outputs = self.model(z.x, scaled(xi.rows["input"], z.x.dtype))
        harm = cross_entropy(outputs, xi.rows["label"], reduction="none")
        return xi.mean(z.y[xi.rows["label"]] * xi.rows["worth"] * harm) - self.price(z.y)

    def price(self, y: Tensor) -> Tensor:
        """What y pays for weights that differ."""
        return self.penalty / 2 * (y - 1 / self.classes).square().sum()

    @cached_property
    def test(self) -> Federation:
        return test_rows(self.data)

    def by_class(self, x: Tensor, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The mean loss of each class, and the part that is wrong; 0 for a class without rows."""
        outputs = torch.cat([self.model(x, scaled(some, x.dtype)) for (some,) in chunks(rows["input"])])
        harm = cross_entropy(outputs, rows["label"], reduction="none")
        wrong = (outputs.argmax(1) != rows["label"]).to(harm.dtype)
        member = one_hot(rows["label"], self.classes).to(harm.dtype)  # (row, class)
        count = member.sum(0).clamp(min=1)
        return harm @ member / count, wrong @ member / count

    def measure(self, z: Pair) -> dict[str, Tensor]:
        """The worst class and all of them, and the largest weight that y gives."""
        train, test = (rows.to(z.x.device).rows for rows in (self.federation, self.test))
        losses, _ = self.by_class(z.x, train)
        test_losses, errors = self.by_class(z.x, test)
        found = {
            "worst_accuracy": 1 - errors.max(),
            "test_accuracy": 1 - errors[test["label"]].mean(),
            "worst_loss": test_losses.max(),
            "train_worst_loss": losses.max(),
            "loss": z.y @ losses - self.price(z.y),
            "largest_weight": z.y.max(),
        }
        return self.seen(found)

    @property
    def metrics(self) -> dict[str, Metric]:
        found = {
            "worst_accuracy": Metric("high", rows="test"),
            "test_accuracy": Metric("high", rows="test", chance=self.data.majority),
            "worst_loss": Metric("low", rows="test"),
            "train_worst_loss": Metric("low", rows="train"),
            "loss": Metric("neither", rows="train"),
            "largest_weight": Metric("neither", rows="none"),
        }
        return self.known(found)

    def score_spread(self, z: Pair) -> float:
        """How much the probabilities of test rows differ."""
        rows = self.test.to(z.x.device).rows["input"]
        outputs = torch.cat([self.model(z.x, scaled(some, z.x.dtype)) for (some,) in chunks(rows)])
        return row_deviation(outputs.softmax(1))

    def details(self, z: Pair) -> dict[str, Detail]:
        """Each class, with the weight that y gives it; and each client's loss, by its own rows."""
        held, test = (rows.to(z.x.device) for rows in (self.federation, self.test))
        losses, errors = self.by_class(z.x, test.rows)
        own = losses[held.rows["label"]]  # what a client's classes cost on rows that nobody has seen
        classes = {"class": list(self.data.classes), "test accuracy": (1 - errors).tolist()}
        clients = client_means(held, own, "test loss of its classes")
        return {
            "Classes": Detail("bars", {**classes, "weight": z.y.tolist()}),
            "Clients": Detail("clients", clients, better="low"),
        }

    def told(self, rows: Columns) -> Counts:
        """What a device tells of its rows."""
        count = torch.bincount(rows["label"], minlength=self.classes)
        return {f"class {number}": rows for number, rows in enumerate(count.tolist())}

    def facts(self, counts: list[Counts]) -> Facts:
        """What follows from what all devices tell."""
        totals = {key: float(sum(one[key] for one in counts)) for key in counts[0] if key != "rows"}
        return {"devices": float(len(counts)), **totals}

    def learn(self, facts: Facts) -> None:
        """Go by it: each row of a device has its worth."""
        told = [facts["devices"], *(facts[f"class {number}"] for number in range(self.classes))]
        if not all(0 <= one < 2**53 and one == int(one) for one in told) or not 0 < told[0] <= self.clients:
            raise BadInput(f"devices and their rows must be whole numbers, got {told}")
        if facts != self._local.facts:
            # A device that joins later may have rows of a class that nobody had.
            own = torch.tensor(list(self.told(self._own_rows()).values()))
            count = torch.maximum(torch.tensor(told[1:]).long(), own)
            self.federation.rows["worth"].copy_(self._worth(self.federation, int(told[0]), count))
            self._local.facts = facts
