"""Problems of matrices whose spectra are set: a quadratic one and a bilinear game.

    Quadratic   0.5 x'Ax + a'x + x'By - 0.5 y'Cy + c'y + rho sum x^2/(1+x^2)
                client i adds sum_j p_ij cos z_j + q_ij sin z_j, z = (x, y)
                y*(x) = C^+ (B'x + c),   grad Phi = Ax + a + B y*(x) + 2 rho x/(1+x^2)^2
    Bilinear    x'Ay + b'x + c'y;   Phi is infinite but where A'x = -c

C^+ is the pseudoinverse of C. p and q add up to zero, so f and Phi know nothing of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from fedsaddle.core import Count, Pair, Range
from fedsaddle.errors import BadInput
from fedsaddle.metric import Metric
from fedsaddle.problem import Batch, Federation
from fedsaddle.problems.exact.answers import JUDGED, judged_exactly
from fedsaddle.problems.exact.clients import (
    Samples,
    check_dials,
    client_sizes,
    differences,
    gaussian,
    matrices,
    orthogonal,
    scattered,
    start,
    waves,
)
from fedsaddle.ranges import CountOr0, NotNegative, Seed


@dataclass(frozen=True)
class Quadratic:
    """Nonconvex in x, strongly concave in y; with `flat` directions in y only PL, not strongly concave.

    The blocks A = U diag(a) U', B = U diag(b) V', C = V diag(c) V' share their bases, so kappa, the
    smoothness L = 1 and the Hessian of Phi are set by construction: a < 0 makes f nonconvex in x, while Phi
    is convex unless the `nonconvex` term (rho) is added. No C_i need be positive. `dissimilarity` is how far
    a client's Hessian is from the mean at most: twice the paper's delta. What it adds to clients' gradients
    grows with |z|; what `waves` adds to gradients and Hessians is nowhere longer than that. With a
    `start_seed`, runs with all seeds start at the same point.
    """

    clients: Count = 200
    dim_x: Count = 10
    dim_y: Annotated[int, Range(least=2)] = 10
    kappa: Annotated[float, Range(least=2)] = 10.0
    heterogeneity: NotNegative = 1.0
    dissimilarity: NotNegative = 0.1
    noise: NotNegative = 0.1
    nonconvex: NotNegative = 0.0
    flat: CountOr0 = 0
    waves: NotNegative = 0.0
    samples: Samples = 10
    seed: Seed = 0
    start_seed: Seed | None = None

    metrics = JUDGED

    def __post_init__(self) -> None:
        check_dials(self)
        if self.dim_y - self.flat < 2:
            raise BadInput(f"flat must leave two of the {self.dim_y} directions of y, got {self.flat}")

    @cached_property
    def mean(self) -> dict[str, Tensor]:
        """The blocks of f."""
        curved = self.dim_y - self.flat
        top = 0.5  # the largest c, before everything is divided by L
        steep = _spectral_norm(-top / 4, math.sqrt(top * (0.5 + top / 4)), top)
        c = torch.logspace(math.log10(top), math.log10(steep / self.kappa), curved, dtype=torch.float64)
        h = torch.logspace(math.log10(0.5), math.log10(0.1), self.dim_x, dtype=torch.float64)  # Phi's Hessian
        coupled = min(self.dim_x, curved)
        a = h.clone()
        a[:coupled] = -c[:coupled] / 4
        b = torch.zeros(self.dim_x, self.dim_y, dtype=torch.float64)
        b[range(coupled), range(coupled)] = torch.sqrt(c[:coupled] * (h - a)[:coupled])
        U, V = orthogonal(self.seed, 1, self.dim_x), orthogonal(self.seed, 2, self.dim_y)
        c_all = torch.cat([c, c.new_zeros(self.flat)])
        linear_y = gaussian(self.seed, 3, self.dim_y) * (c_all > 0)  # flat directions are flat
        return {
            "A": U @ torch.diag(a / steep) @ U.mT,
            "B": U @ (b / steep) @ V.mT,
            "C": V @ torch.diag(c_all / steep) @ V.mT,
            "a": gaussian(self.seed, 4, self.dim_x) / math.sqrt(self.dim_x),
            "c": V @ linear_y / math.sqrt(self.dim_y),
            "C_inverse": V @ torch.diag(torch.where(c_all > 0, steep / c_all, 0.0)) @ V.mT,
        }

    @cached_property
    def federation(self) -> Federation:
        x, y, f = self.dim_x, self.dim_y, self.mean
        sizes = client_sizes(self.samples, self.clients, self.seed)
        hessian = matrices(self.seed, 5, self.clients, x + y, self.dissimilarity, symmetric=True)
        linear = torch.cat([f["a"], f["c"]]) + differences(
            self.seed, 6, self.clients, x + y, self.heterogeneity
        )
        own = {
            "A": f["A"] + hessian[:, :x, :x],
            "B": f["B"] + hessian[:, :x, x:],
            "C": f["C"] - hessian[:, x:, x:],
        }
        if self.waves:
            own["waves"] = waves(self.seed, 8, self.clients, x + y, self.waves)
        return Federation({"linear": scattered(linear, sizes, self.noise, self.seed, 7)}, sizes, own)

    def init(self, seed: int) -> Pair:
        return start(seed, self.start_seed, self.dim_x, self.dim_y)

    def _f(self, z: Pair, A: Tensor, B: Tensor, C: Tensor, linear: Tensor) -> Tensor:
        quadratic = 0.5 * z.x @ (A @ z.x) + z.x @ (B @ z.y) - 0.5 * z.y @ (C @ z.y)
        f = quadratic + linear @ torch.cat([z.x, z.y])
        if self.nonconvex:
            f = f + self.nonconvex * (z.x**2 / (1 + z.x**2)).sum()
        return f

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        f = self._f(z, xi.own["A"], xi.own["B"], xi.own["C"], xi.mean(xi.rows["linear"]))
        if self.waves:
            both, (p, q) = torch.cat([z.x, z.y]), xi.own["waves"]
            f = f + p @ torch.cos(both) + q @ torch.sin(both)
        return f

    def value(self, z: Pair) -> Tensor:
        f = self.mean
        return self._f(z, f["A"], f["B"], f["C"], torch.cat([f["a"], f["c"]]))

    def best_y(self, x: Tensor) -> Tensor:
        return self.mean["C_inverse"] @ (self.mean["B"].mT @ x + self.mean["c"])

    def phi(self, x: Tensor) -> Tensor:
        return self.value(Pair(x, self.best_y(x)))

    def grad_phi(self, x: Tensor) -> Tensor:
        f = self.mean
        return f["A"] @ x + f["a"] + f["B"] @ self.best_y(x) + self.nonconvex * 2 * x / (1 + x**2) ** 2

    @cached_property
    def solution(self) -> Pair | None:
        if self.nonconvex:
            return None
        f = self.mean
        hessian = f["A"] + f["B"] @ f["C_inverse"] @ f["B"].mT
        x = torch.linalg.solve(hessian, -f["a"] - f["B"] @ f["C_inverse"] @ f["c"])
        return Pair(x, self.best_y(x))

    def evaluate(self, z: Pair) -> dict[str, float]:
        return judged_exactly(self, z)


def _spectral_norm(a: float, b: float, c: float) -> float:
    """Of the symmetric matrix [[a, b], [b, -c]]."""
    return (abs(a - c) + math.sqrt((a + c) ** 2 + 4 * b * b)) / 2


@dataclass(frozen=True)
class Bilinear:
    """A bilinear game: plain descent-ascent spirals out, an extra step comes in.

    Phi is infinite but where A'x = -c, so `stationarity` is the squared length of the whole field. kappa is
    the condition number of A, whose largest singular value is 1.
    """

    clients: Count = 50
    dim: Count = 5
    kappa: Annotated[float, Range(least=1)] = 3.0
    heterogeneity: NotNegative = 1.0
    dissimilarity: NotNegative = 0.1
    noise: NotNegative = 0.1
    samples: Samples = 10
    seed: Seed = 0
    start_seed: Seed | None = None

    metrics = dict.fromkeys(("stationarity", "distance"), Metric("low", rows="train"))

    def __post_init__(self) -> None:
        check_dials(self)

    @cached_property
    def A(self) -> Tensor:
        values = torch.logspace(0, -math.log10(self.kappa), self.dim, dtype=torch.float64)
        return orthogonal(self.seed, 1, self.dim) @ torch.diag(values) @ orthogonal(self.seed, 2, self.dim).mT

    @cached_property
    def linear(self) -> Tensor:
        return gaussian(self.seed, 3, 2 * self.dim) / math.sqrt(self.dim)

    @cached_property
    def federation(self) -> Federation:
        sizes = client_sizes(self.samples, self.clients, self.seed)
        difference = matrices(self.seed, 6, self.clients, self.dim, self.dissimilarity, symmetric=False)
        linear = self.linear + differences(self.seed, 4, self.clients, 2 * self.dim, self.heterogeneity)
        return Federation(
            rows={"linear": scattered(linear, sizes, self.noise, self.seed, 5)},
            sizes=sizes,
            own={"A": self.A + difference},
        )

    def init(self, seed: int) -> Pair:
        return start(seed, self.start_seed, self.dim, self.dim)

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        return z.x @ (xi.own["A"] @ z.y) + xi.mean(xi.rows["linear"]) @ torch.cat([z.x, z.y])

    def value(self, z: Pair) -> Tensor:
        return z.x @ (self.A @ z.y) + self.linear @ torch.cat([z.x, z.y])

    def _field(self, z: Pair) -> Pair:
        b, c = self.linear.split(self.dim)
        return Pair(self.A @ z.y + b, self.A.mT @ z.x + c)

    def phi(self, x: Tensor) -> Tensor:
        """b'x where A'x = -c (to rounding), infinite elsewhere."""
        b, _ = self.linear.split(self.dim)
        balanced = self._field(Pair(x, x)).y.norm() <= 1e-12 * (1 + x.norm())
        return torch.where(balanced, b @ x, math.inf)

    def grad_phi(self, x: Tensor) -> Tensor:
        """b where Phi is finite, undefined elsewhere."""
        b, _ = self.linear.split(self.dim)
        return torch.where(torch.isfinite(self.phi(x)), b, math.nan)

    @cached_property
    def solution(self) -> Pair:
        b, c = self.linear.split(self.dim)
        return Pair(torch.linalg.solve(self.A.mT, -c), torch.linalg.solve(self.A, -b))

    def evaluate(self, z: Pair) -> dict[str, float]:
        z = z.to("cpu")
        field, best = self._field(z), self.solution
        return {
            "stationarity": float(field.x.square().sum() + field.y.square().sum()),
            "distance": float(((z.x - best.x).square().sum() + (z.y - best.y).square().sum()).sqrt()),
        }
