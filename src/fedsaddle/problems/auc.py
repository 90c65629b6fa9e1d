"""AUC maximisation as a minimax problem (Ying 2016, Liu 2020): x = (network, a, b), y = alpha.

    F = (1-p) (s-a)^2 1+  +  p (s-b)^2 1-  +  2 (1+alpha) (p s 1- - (1-p) s 1+)  -  p (1-p) alpha^2

s is the score of a row, 1+ and 1- say whether its label is positive, p is the part of positives among all
clients' rows. For fixed scores the saddle over (a, b, alpha) is p (1-p) (L - 1), where L is the mean of
(1 - s_i + s_j)^2 over all pairs of a positive i and a negative j: the squared surrogate of 1 - AUC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import torch
from torch import Tensor

from fedsaddle import networks
from fedsaddle.core import Pair
from fedsaddle.data import partition
from fedsaddle.data.datasets import DATASETS, Dataset, scaled
from fedsaddle.errors import BadInput, check_count, check_seed, unknown
from fedsaddle.networks import Network
from fedsaddle.problem import Batch, Federation

NETWORKS = ("lenet5", "cifar-cnn", "logistic", "mlp")
PARTITIONS = ("label", "iid", "dirichlet")
CHUNK = 2000  # rows that are evaluated at a time


@dataclass(frozen=True)
class AUC:
    """One class of a dataset against all others, over clients that hold their own rows."""

    dataset: str = "digits"
    clients: int = 50
    partition: str = "label"  # label, iid or dirichlet
    alpha: float = 0.5  # of dirichlet
    network: str = "mlp"  # lenet5, cifar-cnn, logistic or mlp
    scoring: Literal["sigmoid", "release"] = "sigmoid"
    positive: int = 0  # the class to be found
    seed: int = 0  # of the partition

    def __post_init__(self) -> None:
        for what, given, known in (
            ("dataset", self.dataset, tuple(DATASETS)),
            ("partition", self.partition, PARTITIONS),
            ("network", self.network, NETWORKS),
            ("scoring", self.scoring, ("sigmoid", "release")),
        ):
            if given not in known:
                raise unknown(what, given, known)
        check_count("clients", self.clients)
        check_seed("seed", self.seed)
        share = (self.data.labels == self.positive).float().mean()
        if not 0 < share < 1:
            raise BadInput(f"positive must be one of several classes of {self.dataset}, got {self.positive}")
        channels, height, width = self.data.inputs.shape[1:]
        fits = {"lenet5": (1, 28, 28), "cifar-cnn": (3, 32, 32)}.get(self.network)
        if fits not in (None, (channels, height, width)):
            raise BadInput(
                f"{self.network} takes images of {fits}, {self.dataset} has {(channels, height, width)}; "
                "try mlp or logistic"
            )
        self.parts  # noqa: B018  a partition that cannot be made is refused here

    @cached_property
    def data(self) -> Dataset:
        return DATASETS[self.dataset]()

    @cached_property
    def parts(self) -> list[Tensor]:
        labels = self.data.labels
        if self.partition == "label":
            return partition.by_label(labels, self.clients)
        if self.partition == "iid":
            return partition.iid(labels, self.clients, self.seed)
        return partition.dirichlet(labels, self.clients, self.alpha, self.seed)

    @cached_property
    def federation(self) -> Federation:
        order = torch.cat(self.parts)
        return Federation(
            rows={"input": self.data.inputs[order], "positive": self.data.labels[order] == self.positive},
            sizes=torch.tensor([len(part) for part in self.parts]),
        )

    @cache  # noqa: B019  a problem lives as long as its program
    def _test_rows(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return self.data.test_inputs.to(device), (self.data.test_labels == self.positive).to(device)

    @cached_property
    def p(self) -> float:
        """The part of positives, which a server can add up from two numbers of each client."""
        return float(self.federation.rows["positive"].to(torch.float64).mean())

    @cached_property
    def model(self) -> Network:
        outputs = 1 if self.scoring == "sigmoid" else 10
        features = math.prod(self.data.inputs.shape[1:])
        build = {
            "lenet5": lambda: networks.lenet5(outputs),
            "cifar-cnn": lambda: networks.cifar_cnn(outputs),
            "logistic": lambda: networks.logistic(features, outputs),
            "mlp": lambda: networks.mlp(features, outputs),
        }[self.network]
        return Network(build)

    def scores(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The score of each row, between 0 and 1."""
        outputs = self.model(x[:-2], scaled(inputs))
        if self.scoring == "sigmoid":
            return torch.sigmoid(outputs[:, 0])
        # The authors' release scores by the second of ten classes, after a ReLU on LeNet's outputs. If all
        # ten come to lie below zero, every score is the same and no gradient is left: the run has died.
        if self.network == "lenet5":
            outputs = torch.relu(outputs)
        return torch.softmax(outputs, dim=1)[:, 1]

    def init(self, seed: int) -> Pair:
        """PyTorch's initialisation of the network, and a = b = alpha = 0."""
        return Pair(torch.cat([self.model.init(seed), torch.zeros(2)]), torch.zeros(1))

    def objective(self, s: Tensor, positive: Tensor, a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
        """F of each row, from its score."""
        p, one, zero = self.p, positive.to(s.dtype), (~positive).to(s.dtype)
        squares = (1 - p) * (s - a) ** 2 * one + p * (s - b) ** 2 * zero
        return squares + 2 * (1 + alpha) * s * (p * zero - (1 - p) * one) - p * (1 - p) * alpha**2

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        s = self.scores(z.x, xi.rows["input"])
        return xi.mean(self.objective(s, xi.rows["positive"], z.x[-2], z.x[-1], z.y[0]))

    def best_alpha(self, s: Tensor, positive: Tensor) -> Tensor:
        """The maximiser of F over all rows: the mean score of the negatives less that of the positives."""
        return s[~positive].mean() - s[positive].mean()

    def all_scores(self, x: Tensor, inputs: Tensor) -> Tensor:
        return torch.cat([self.scores(x, rows) for rows in inputs.split(CHUNK)])

    def evaluate(self, z: Pair) -> dict[str, float]:
        """AUC on both halves, average precision, the loss, and |grad Phi| over all training rows."""
        # Here, because importing it takes longer than many a run.
        from torchmetrics.functional.classification import binary_auroc, binary_average_precision

        rows = self.federation.to(z.x.device).rows
        train, positive = rows["input"], rows["positive"]
        test_inputs, test_positive = self._test_rows(z.x.device)
        s, test = self.all_scores(z.x, train), self.all_scores(z.x, test_inputs)
        alpha = self.best_alpha(s, positive)

        def part(x: Tensor, rows: Tensor, positive: Tensor) -> Tensor:
            return self.objective(self.scores(x, rows), positive, x[-2], x[-1], alpha).sum()

        slope = torch.zeros_like(z.x)
        for rows, some in zip(train.split(CHUNK), positive.split(CHUNK), strict=True):
            slope += torch.func.grad(part)(z.x, rows, some) / len(train)
        return {
            "test_auc": float(binary_auroc(test, test_positive.int())),
            "train_auc": float(binary_auroc(s, positive.int())),
            "test_precision": float(binary_average_precision(test, test_positive.int())),
            "loss": float(self.objective(s, positive, z.x[-2], z.x[-1], z.y[0]).mean()),
            "grad_phi": float(slope.norm()),
        }
