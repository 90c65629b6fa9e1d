"""Problems of one or two numbers for each player.

    TwoSines    x^2 + 3 sin^2 x sin^2 y - 4 y^2 - 10 sin^2 y;   y*(x) = 0, Phi = x^2
    ToyWGAN     E D(real) - E D(mu + sigma z) - lambda |phi|^2,   D(v) = phi_1 v + phi_2 v^2
                Phi = (g_1^2 + g_2^2) / (4 lambda), g = first and second moments, real - generated

z is standard normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedsaddle import draws
from fedsaddle.core import Count, Pair, Scalar
from fedsaddle.problem import Batch, Federation
from fedsaddle.problems.exact.answers import JUDGED, judged_exactly
from fedsaddle.problems.exact.clients import (
    Samples,
    check_dials,
    client_sizes,
    differences,
    gaussian,
    matrices,
    scattered,
    start,
)
from fedsaddle.ranges import Above0, NotNegative, Seed


@dataclass(frozen=True)
class TwoSines:
    """PL in x and in y, neither convex nor concave (Yang, Kiyavash & He 2020); one number for each player.

    Clients add p_i x + q_i y + r_i xy, which add up to zero.
    """

    clients: Count = 50
    heterogeneity: NotNegative = 1.0
    dissimilarity: NotNegative = 0.1
    noise: NotNegative = 0.1
    samples: Samples = 10
    seed: Seed = 0
    start_seed: Seed | None = None

    metrics = JUDGED
    # |Hessian| <= 28.5 and the PL constant in y is 1.26, both read off a grid.
    kappa = 28.5 / 1.26

    def __post_init__(self) -> None:
        check_dials(self)

    @cached_property
    def federation(self) -> Federation:
        sizes = client_sizes(self.samples, self.clients, self.seed)
        linear = differences(self.seed, 1, self.clients, 2, self.heterogeneity)
        return Federation(
            rows={"linear": scattered(linear, sizes, self.noise, self.seed, 2)},
            sizes=sizes,
            own={"r": matrices(self.seed, 3, self.clients, 1, self.dissimilarity, symmetric=True)[:, 0, 0]},
        )

    def init(self, seed: int) -> Pair:
        return start(seed, self.start_seed, 1, 1)

    def value(self, z: Pair) -> Tensor:
        (x, y) = z.x[0], z.y[0]
        return x**2 + 3 * (torch.sin(x) * torch.sin(y)) ** 2 - 4 * y**2 - 10 * torch.sin(y) ** 2

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        own = xi.mean(xi.rows["linear"]) @ torch.cat([z.x, z.y]) + xi.own["r"] * z.x[0] * z.y[0]
        return self.value(z) + own

    def phi(self, x: Tensor) -> Tensor:
        return x[0] ** 2

    def grad_phi(self, x: Tensor) -> Tensor:
        return 2 * x

    @property
    def solution(self) -> Pair:
        return Pair(torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))

    def evaluate(self, z: Pair) -> dict[str, float]:
        return judged_exactly(self, z)


@dataclass(frozen=True)
class ToyWGAN:
    """A generator mu + sigma z against a quadratic critic (Loizou 2020); x = (mu, sigma), y = (phi_1, phi_2).

    z ~ N(0, 1) is drawn with every minibatch: `noise` scales how far its moments stray from 0 and 1.
    """

    clients: Count = 50
    heterogeneity: NotNegative = 0.5
    noise: NotNegative = 1.0
    penalty: Above0 = 0.5  # lambda
    samples: Samples = 20
    seed: Seed = 0
    start_seed: Seed | None = None

    metrics = JUDGED

    def __post_init__(self) -> None:
        check_dials(self)

    @cached_property
    def federation(self) -> Federation:
        sizes = client_sizes(self.samples, self.clients, self.seed)
        centre = 1 + differences(self.seed, 1, self.clients, 1, self.heterogeneity)
        spread = torch.exp(differences(self.seed, 2, self.clients, 1, self.heterogeneity) / 2)
        client = torch.repeat_interleave(sizes)
        real = centre[client] + spread[client] * gaussian(self.seed, 3, len(client), 1)
        return Federation(rows={"real": real[:, 0]}, sizes=sizes)

    @cached_property
    def moments(self) -> tuple[float, float]:
        """First and second moment of the real data, each client counting the same."""
        real, sizes = self.federation.rows["real"], self.federation.sizes
        weight = (1 / (sizes.to(torch.float64) * len(sizes))).repeat_interleave(sizes)
        return float(weight @ real), float(weight @ real**2)

    def init(self, seed: int) -> Pair:
        return start(seed, self.start_seed, 2, 2)

    def _f(self, z: Pair, real_1: Scalar, real_2: Scalar, z_1: Scalar, z_2: Scalar) -> Tensor:
        """f from the first two moments of the real data and of the generator's input."""
        (mu, sigma), (phi_1, phi_2) = z.x, z.y
        fake_1, fake_2 = mu + sigma * z_1, mu**2 + 2 * mu * sigma * z_1 + sigma**2 * z_2
        critic: Tensor = phi_1 * (real_1 - fake_1) + phi_2 * (real_2 - fake_2)
        return critic - self.penalty * (z.y**2).sum()

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        real = xi.rows["real"]
        latent = draws.normal(xi.key, len(real))
        z_1, z_2 = self.noise * xi.mean(latent), 1 + self.noise * (xi.mean(latent**2) - 1)
        return self._f(z, xi.mean(real), xi.mean(real**2), z_1, z_2)

    def value(self, z: Pair) -> Tensor:
        return self._f(z, *self.moments, 0.0, 1.0)

    def _gaps(self, x: Tensor) -> Tensor:
        mu, sigma = x
        return torch.stack([self.moments[0] - mu, self.moments[1] - mu**2 - sigma**2])

    def phi(self, x: Tensor) -> Tensor:
        return self._gaps(x).square().sum() / (4 * self.penalty)

    def grad_phi(self, x: Tensor) -> Tensor:
        (g_1, g_2), (mu, sigma) = self._gaps(x), x
        return torch.stack([-g_1 - 2 * mu * g_2, -2 * sigma * g_2]) / (2 * self.penalty)

    @property
    def solution(self) -> Pair:
        first, second = self.moments
        x = torch.tensor([first, math.sqrt(second - first**2)], dtype=torch.float64)
        return Pair(x, torch.zeros_like(x))

    @cached_property
    def kappa(self) -> float:
        """At the solution, where the Hessian is [[0, J'], [J, -2 lambda]]."""
        mu, sigma = self.solution.x
        J = -torch.stack([torch.stack([torch.ones_like(mu), 0 * mu]), torch.stack([2 * mu, 2 * sigma])])
        concave = -2 * self.penalty * torch.eye(2, dtype=torch.float64)
        hessian = torch.cat([torch.cat([torch.zeros_like(J), J.mT], 1), torch.cat([J, concave], 1)])
        return float(torch.linalg.matrix_norm(hessian, ord=2)) / (2 * self.penalty)

    def evaluate(self, z: Pair) -> dict[str, float]:
        return judged_exactly(self, z)
