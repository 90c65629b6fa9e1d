"""Fair classification: a network x against weights y on the classes, which go where the loss is largest.

    f(x, y) = sum_c y_c L_c(x) - (penalty / 2) |y - 1/C|^2,       y_c >= 0, sum_c y_c = 1

L_c is the mean cross entropy over the rows of class c. Without the penalty, max_y f is the loss of the worst
class; with a large one the classes count the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from fedsaddle import networks
from fedsaddle.blueprint import Blueprint, Piece
from fedsaddle.core import Count, Pair
from fedsaddle.data.datasets import Dataset, scaled
from fedsaddle.data.federated import chunks, dataset_named, federate, test_rows
from fedsaddle.data.partition import idle_dials
from fedsaddle.data.reading import Reader
from fedsaddle.errors import without_effect
from fedsaddle.metric import Metric
from fedsaddle.networks import Network
from fedsaddle.problem import Batch, Detail, Federation, Measured, client_means
from fedsaddle.projections import simplex
from fedsaddle.ranges import NotNegative, Seed, check


@dataclass(frozen=True)
class Fair(Measured):
    """A classifier that is judged by its worst class."""

    dataset: str = "digits"
    clients: Count = 50
    partition: str = "label"  # label, iid or dirichlet
    alpha: float = 0.5  # of dirichlet
    hidden: Count = 64
    penalty: NotNegative = 0.1
    seed: Seed = 0  # of the partition

    def __post_init__(self) -> None:
        check(self)
        self.federation  # noqa: B018  a dataset or partition that cannot be had is refused here

    @property
    def notes(self) -> list[str]:
        """What was asked for and has no effect."""
        return without_effect(self, idle_dials(self.partition))

    @cached_property
    def data(self) -> Dataset:
        return dataset_named(self.dataset)

    @cached_property
    def classes(self) -> int:
        return len(self.data.classes)

    @cached_property
    def federation(self) -> Federation:
        held = federate(self.data, self.partition, self.clients, self.alpha, self.seed)
        size, label = held.sizes.repeat_interleave(held.sizes), held.rows["label"]
        # A client divides by its rows and the server by the clients: `worth` takes both back and divides by
        # the rows of the class. Then the mean over clients is sum_c y_c L_c, whoever holds which class.
        worth = size * len(held) / torch.bincount(label)[label]
        return Federation({**held.rows, "worth": worth}, held.sizes)

    @cached_property
    def model(self) -> Network:
        features = math.prod(self.data.inputs.shape[1:])
        return Network(lambda: networks.mlp(features, self.classes, self.hidden))

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
        return {
            "worst_accuracy": 1 - errors.max(),
            "test_accuracy": 1 - errors[test["label"]].mean(),
            "worst_loss": test_losses.max(),
            "train_worst_loss": losses.max(),
            "loss": z.y @ losses - self.price(z.y),
            "largest_weight": z.y.max(),
        }

    @property
    def metrics(self) -> dict[str, Metric]:
        return {
            "worst_accuracy": Metric("high", rows="test"),
            "test_accuracy": Metric("high", rows="test", chance=self.data.majority),
            "worst_loss": Metric("low", rows="test"),
            "train_worst_loss": Metric("low", rows="train"),
            "loss": Metric("neither", rows="train"),
            "largest_weight": Metric("neither", rows="none"),
        }

    def details(self, z: Pair) -> dict[str, Detail]:
        """Each class, with the weight that y gives it; and each client's loss, by its own rows."""
        held, test = (rows.to(z.x.device) for rows in (self.federation, self.test))
        losses, errors = self.by_class(z.x, test.rows)
        own = losses[held.rows["label"]]  # what a client's classes cost on rows that nobody has seen
        classes = {"class": list(self.data.classes), "test accuracy": (1 - errors).tolist()}
        clients = {"client": list(range(len(held))), "test loss of its classes": client_means(held, own)}
        return {
            "Classes": Detail("bars", {**classes, "weight": z.y.tolist()}),
            "Clients": Detail("clients", clients, better="low"),
        }

    @cached_property
    def blueprint(self) -> Blueprint:
        """How the network is built, with what comes before and after it."""
        features = math.prod(self.data.inputs.shape[1:])
        sizes = {"features": features, "outputs": self.classes, "hidden": self.hidden}
        return Blueprint({"classifier": Piece("mlp", sizes, "probabilities")}, Reader.of(self.data))

    def models(self, z: Pair) -> dict[str, nn.Module]:
        """What gives a row, as it is in a file, the probabilities of its classes."""
        return self.blueprint.whole({"classifier": self.model.at(z.x)})
