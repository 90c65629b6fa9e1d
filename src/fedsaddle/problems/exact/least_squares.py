"""Robust least squares, where y has a number for each row of all clients.

    ( |Ab - y|^2 - lambda |y - y0|^2 ) / n;   Phi = lambda/(lambda-1) |Ab - y0|^2 / n

n counts the rows of all clients, y0 are their targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from fedsaddle.core import Count, Pair, Range
from fedsaddle.errors import BadInput
from fedsaddle.problem import Batch, Federation
from fedsaddle.problems.exact.answers import JUDGED, judged_exactly
from fedsaddle.problems.exact.clients import Samples, check_dials, client_sizes, differences, gaussian, start
from fedsaddle.ranges import NotNegative, Seed


@dataclass(frozen=True)
class RobustLeastSquares:
    """Least squares against an adversary who moves the targets y, with a price lambda > 1 for moving them.

    A client sees only its own rows, so no f_i is strongly concave in y, though f is. x is the ordinary
    least-squares solution at the saddle. `heterogeneity` shifts the clients' features, `noise` the targets.
    """

    clients: Count = 20
    features: Count = 5
    price: Annotated[float, Range(above=1)] = 2.0  # lambda
    heterogeneity: NotNegative = 0.5
    noise: NotNegative = 0.1
    samples: Samples = 5
    seed: Seed = 0
    start_seed: Seed | None = None

    metrics = JUDGED

    def __post_init__(self) -> None:
        check_dials(self)
        least = self.samples[0] if isinstance(self.samples, tuple) else self.samples
        if self.features > self.clients * least:
            raise BadInput(
                f"features must be at most the {self.clients * least} rows there are, got {self.features}"
            )

    @cached_property
    def federation(self) -> Federation:
        sizes = client_sizes(self.samples, self.clients, self.seed)
        client = torch.repeat_interleave(sizes)
        shift = differences(self.seed, 1, self.clients, self.features, self.heterogeneity)
        A = gaussian(self.seed, 2, len(client), self.features) + shift[client]
        truth = gaussian(self.seed, 3, self.features)
        return Federation(
            rows={
                "A": A,
                "target": A @ truth + self.noise * gaussian(self.seed, 4, len(client)),
                "number": torch.arange(len(client)),
            },
            sizes=sizes,
            own={
                "share": sizes.to(torch.float64) * len(sizes) / len(client)
            },  # so that every row counts the same in f
        )

    def init(self, seed: int) -> Pair:
        return start(seed, self.start_seed, self.features, len(self.federation.rows["A"]))

    def _row_losses(self, b: Tensor, y: Tensor, A: Tensor, target: Tensor) -> Tensor:
        return (A @ b - y) ** 2 - self.price * (y - target) ** 2

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        y = torch.gather(z.y, 0, xi.rows["number"])
        return xi.own["share"] * xi.mean(self._row_losses(z.x, y, xi.rows["A"], xi.rows["target"]))

    def value(self, z: Pair) -> Tensor:
        rows = self.federation.rows
        return self._row_losses(z.x, z.y, rows["A"], rows["target"]).mean()

    def _residual(self, x: Tensor) -> Tensor:
        return self.federation.rows["A"] @ x - self.federation.rows["target"]

    def phi(self, x: Tensor) -> Tensor:
        return self.price / (self.price - 1) * self._residual(x).square().mean()

    def grad_phi(self, x: Tensor) -> Tensor:
        A = self.federation.rows["A"]
        return 2 * self.price / (self.price - 1) * (A.mT @ self._residual(x)) / len(A)

    @cached_property
    def solution(self) -> Pair:
        rows = self.federation.rows
        x = torch.linalg.lstsq(rows["A"], rows["target"][:, None], driver="gelsd").solution[:, 0]
        return Pair(x, (self.price * rows["target"] - rows["A"] @ x) / (self.price - 1))

    @cached_property
    def kappa(self) -> float:
        A = self.federation.rows["A"]
        concave = (1 - self.price) * torch.eye(len(A), dtype=torch.float64)
        hessian = torch.cat([torch.cat([A.mT @ A, -A.mT], 1), torch.cat([-A, concave], 1)])
        return float(torch.linalg.matrix_norm(hessian, ord=2)) / (self.price - 1)

    def evaluate(self, z: Pair) -> dict[str, float]:
        return judged_exactly(self, z)
