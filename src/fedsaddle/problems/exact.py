"""Problems whose answer is known exactly: Phi(x) = max_y f(x, y), its gradient and, if any, the saddle.

    Quadratic           0.5 x'Ax + a'x + x'By - 0.5 y'Cy + c'y + rho sum x^2/(1+x^2)
                        y*(x) = C^+ (B'x + c),   grad Phi = Ax + a + B y*(x) + 2 rho x/(1+x^2)^2
    TwoSines            x^2 + 3 sin^2 x sin^2 y - 4 y^2 - 10 sin^2 y;   y*(x) = 0, Phi = x^2
    ToyWGAN             E D(real) - E D(mu + sigma z) - lambda |phi|^2,   D(v) = phi_1 v + phi_2 v^2
                        Phi = (g_1^2 + g_2^2) / (4 lambda), g = first and second moments, real - generated
    RobustLeastSquares  ( |Ab - y|^2 - lambda |y - y0|^2 ) / n;   Phi = lambda/(lambda-1) |Ab - y0|^2 / n
    Bilinear            x'Ay + b'x + c'y;   Phi is infinite but where A'x = -c

f is the mean of the clients' f_i, each of them the mean over its rows. What makes clients and rows differ
adds up to zero or is measured on the data that were drawn, so every answer holds to rounding. The dials have
one meaning throughout: `clients` (N); `samples`, rows of a client, or (fewest, most); `heterogeneity`, how
far the clients' gradients differ; `dissimilarity`, how far their Hessians differ (delta); `noise`, how far
rows of one client differ; `seed`, which instance is drawn; `kappa`, except where `penalty` or `price` set it
or it is fixed. Everything is in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Protocol

import torch
from torch import Tensor

from fedsaddle import draws
from fedsaddle.core import Count, Pair, Range, Scalar
from fedsaddle.errors import BadInput, check_memory
from fedsaddle.metric import Metric
from fedsaddle.problem import Batch, Federation
from fedsaddle.ranges import Above0, CountOr0, NotNegative, Seed, check

Samples = Count | tuple[Count, Count]  # a client without rows is no client


class Exact(Protocol):
    """What is known of such a problem."""

    @property
    def kappa(self) -> float:
        """Smoothness of f over its strong concavity, or PL constant, in y."""

    def value(self, z: Pair) -> Tensor:
        """f(x, y), the mean over all clients."""

    def phi(self, x: Tensor) -> Tensor:
        """max_y f(x, y)."""

    def grad_phi(self, x: Tensor) -> Tensor: ...

    @property
    def solution(self) -> Pair | None:
        """A saddle or, where there is none in closed form, None."""


# What `judge` gives. f is the mean over the clients' rows.
JUDGED = dict.fromkeys(("stationarity", "phi", "dual_gap"), Metric("low", rows="train"))


def judge(problem: Exact, z: Pair) -> dict[str, float]:
    """stationarity = |grad Phi(x)|^2, Phi(x), and how far y is from the best answer, Phi(x) - f(x, y)."""
    z = z.to("cpu")  # where a problem's own values are
    phi = problem.phi(z.x)
    return {
        "stationarity": float(problem.grad_phi(z.x).square().sum()),
        "phi": float(phi),
        "dual_gap": float(phi - problem.value(z)),
    }


# --- drawing clients that differ and add up --------------------------------------------------------------


def _normal(seed: int, what: int, *shape: int) -> Tensor:
    return draws.normal(draws.key(draws.PROBLEM, seed, what), *shape)


def _start(seed: int, x: int, y: int) -> Pair:
    both = draws.normal(draws.key(draws.INIT, seed), x + y)
    return Pair(both[:x], both[x:])


def _sizes(samples: Samples, clients: int, seed: int) -> Tensor:
    fewest, most = samples if isinstance(samples, tuple) else (samples, samples)
    luck = draws.uniform(draws.key(draws.PROBLEM, seed, 0), clients)
    return fewest + (luck * (most - fewest + 1)).to(torch.int64)


def _centred(values: Tensor) -> Tensor:
    return values - values.mean(0)


def _differences(seed: int, what: int, clients: int, width: int, size: float) -> Tensor:
    """(client, width) that add up to zero, of root mean square length `size`."""
    values = _centred(_normal(seed, what, clients, width))
    length = values.square().sum(1).mean().sqrt()
    return values * (size / length if clients > 1 else 0.0)


def _matrices(seed: int, what: int, clients: int, size: int, norm: float, symmetric: bool) -> Tensor:
    """(client, size, size) that add up to zero; the largest has spectral norm `norm`."""
    values = _centred(_normal(seed, what, clients, size, size))
    if symmetric:
        values = values + values.mT
    return values * (norm / torch.linalg.matrix_norm(values, ord=2).max() if clients > 1 else 0.0)


def _rows(means: Tensor, sizes: Tensor, noise: float, seed: int, what: int) -> Tensor:
    """Rows that scatter about their client's mean and have exactly that mean."""
    client = torch.repeat_interleave(sizes)
    scatter = _normal(seed, what, len(client), means.shape[1]) * noise / math.sqrt(means.shape[1])
    mean = torch.zeros_like(means).index_add(0, client, scatter) / sizes[:, None]
    return means[client] + scatter - mean[client]


def _orthogonal(seed: int, what: int, size: int) -> Tensor:
    Q: Tensor = torch.linalg.qr(_normal(seed, what, size, size)).Q
    return Q


def _check(problem: object) -> None:
    """The ranges of the dials, and that what they describe fits into memory."""
    check(problem)
    values = vars(problem)
    samples = values["samples"]
    if isinstance(samples, tuple) and (len(samples) != 2 or samples[0] > samples[1]):
        raise BadInput(f"samples must be a number or [fewest, most], got {list(samples)}")
    # Rows of x and y, and a matrix over both for each client, are the most that any of them holds.
    rows = values["clients"] * (max(samples) if isinstance(samples, tuple) else samples)
    width = sum(values.get(name, 0) for name in ("dim_x", "dim_y", "features")) + 2 * values.get("dim", 1)
    check_memory("a problem of this size", rows * width + (values["clients"] + 1) * width**2)


# --- the problems ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quadratic:
    """Nonconvex in x, strongly concave in y; with `flat` directions in y only PL, not strongly concave.

    The blocks A = U diag(a) U', B = U diag(b) V', C = V diag(c) V' share their bases, so kappa, the
    smoothness L = 1 and the Hessian of Phi are set by construction: a < 0 makes f nonconvex in x, while Phi
    is convex unless the `nonconvex` term (rho) is added. No C_i need be positive.
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
    samples: Samples = 10
    seed: Seed = 0

    metrics = JUDGED

    def __post_init__(self) -> None:
        _check(self)
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
        U, V = _orthogonal(self.seed, 1, self.dim_x), _orthogonal(self.seed, 2, self.dim_y)
        c_all = torch.cat([c, c.new_zeros(self.flat)])
        linear_y = _normal(self.seed, 3, self.dim_y) * (c_all > 0)  # flat directions are flat
        return {
            "A": U @ torch.diag(a / steep) @ U.mT,
            "B": U @ (b / steep) @ V.mT,
            "C": V @ torch.diag(c_all / steep) @ V.mT,
            "a": _normal(self.seed, 4, self.dim_x) / math.sqrt(self.dim_x),
            "c": V @ linear_y / math.sqrt(self.dim_y),
            "C_inverse": V @ torch.diag(torch.where(c_all > 0, steep / c_all, 0.0)) @ V.mT,
        }

    @cached_property
    def federation(self) -> Federation:
        x, y, f = self.dim_x, self.dim_y, self.mean
        sizes = _sizes(self.samples, self.clients, self.seed)
        hessian = _matrices(self.seed, 5, self.clients, x + y, self.dissimilarity, symmetric=True)
        linear = torch.cat([f["a"], f["c"]]) + _differences(
            self.seed, 6, self.clients, x + y, self.heterogeneity
        )
        return Federation(
            rows={"linear": _rows(linear, sizes, self.noise, self.seed, 7)},
            sizes=sizes,
            own={
                "A": f["A"] + hessian[:, :x, :x],
                "B": f["B"] + hessian[:, :x, x:],
                "C": f["C"] - hessian[:, x:, x:],
            },
        )

    def init(self, seed: int) -> Pair:
        return _start(seed, self.dim_x, self.dim_y)

    def _f(self, z: Pair, A: Tensor, B: Tensor, C: Tensor, linear: Tensor) -> Tensor:
        quadratic = 0.5 * z.x @ (A @ z.x) + z.x @ (B @ z.y) - 0.5 * z.y @ (C @ z.y)
        f = quadratic + linear @ torch.cat([z.x, z.y])
        if self.nonconvex:
            f = f + self.nonconvex * (z.x**2 / (1 + z.x**2)).sum()
        return f

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        return self._f(z, xi.own["A"], xi.own["B"], xi.own["C"], xi.mean(xi.rows["linear"]))

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
        return judge(self, z)


def _spectral_norm(a: float, b: float, c: float) -> float:
    """Of the symmetric matrix [[a, b], [b, -c]]."""
    return (abs(a - c) + math.sqrt((a + c) ** 2 + 4 * b * b)) / 2


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

    metrics = JUDGED
    # |Hessian| <= 28.5 and the PL constant in y is 1.26, both read off a grid.
    kappa = 28.5 / 1.26

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def federation(self) -> Federation:
        sizes = _sizes(self.samples, self.clients, self.seed)
        linear = _differences(self.seed, 1, self.clients, 2, self.heterogeneity)
        return Federation(
            rows={"linear": _rows(linear, sizes, self.noise, self.seed, 2)},
            sizes=sizes,
            own={"r": _matrices(self.seed, 3, self.clients, 1, self.dissimilarity, symmetric=True)[:, 0, 0]},
        )

    def init(self, seed: int) -> Pair:
        return _start(seed, 1, 1)

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
        return judge(self, z)


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

    metrics = JUDGED

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def federation(self) -> Federation:
        sizes = _sizes(self.samples, self.clients, self.seed)
        centre = 1 + _differences(self.seed, 1, self.clients, 1, self.heterogeneity)
        spread = torch.exp(_differences(self.seed, 2, self.clients, 1, self.heterogeneity) / 2)
        client = torch.repeat_interleave(sizes)
        real = centre[client] + spread[client] * _normal(self.seed, 3, len(client), 1)
        return Federation(rows={"real": real[:, 0]}, sizes=sizes)

    @cached_property
    def moments(self) -> tuple[float, float]:
        """First and second moment of the real data, each client counting the same."""
        real, sizes = self.federation.rows["real"], self.federation.sizes
        weight = (1 / (sizes.to(torch.float64) * len(sizes))).repeat_interleave(sizes)
        return float(weight @ real), float(weight @ real**2)

    def init(self, seed: int) -> Pair:
        return _start(seed, 2, 2)

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
        return judge(self, z)


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

    metrics = JUDGED

    def __post_init__(self) -> None:
        _check(self)
        least = self.samples[0] if isinstance(self.samples, tuple) else self.samples
        if self.features > self.clients * least:
            raise BadInput(
                f"features must be at most the {self.clients * least} rows there are, got {self.features}"
            )

    @cached_property
    def federation(self) -> Federation:
        sizes = _sizes(self.samples, self.clients, self.seed)
        client = torch.repeat_interleave(sizes)
        shift = _differences(self.seed, 1, self.clients, self.features, self.heterogeneity)
        A = _normal(self.seed, 2, len(client), self.features) + shift[client]
        truth = _normal(self.seed, 3, self.features)
        return Federation(
            rows={
                "A": A,
                "target": A @ truth + self.noise * _normal(self.seed, 4, len(client)),
                "number": torch.arange(len(client)),
            },
            sizes=sizes,
            own={
                "share": sizes.to(torch.float64) * len(sizes) / len(client)
            },  # so that every row counts the same in f
        )

    def init(self, seed: int) -> Pair:
        return _start(seed, self.features, len(self.federation.rows["A"]))

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
        return judge(self, z)


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

    metrics = dict.fromkeys(("stationarity", "distance"), Metric("low", rows="train"))

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def A(self) -> Tensor:
        values = torch.logspace(0, -math.log10(self.kappa), self.dim, dtype=torch.float64)
        return (
            _orthogonal(self.seed, 1, self.dim) @ torch.diag(values) @ _orthogonal(self.seed, 2, self.dim).mT
        )

    @cached_property
    def linear(self) -> Tensor:
        return _normal(self.seed, 3, 2 * self.dim) / math.sqrt(self.dim)

    @cached_property
    def federation(self) -> Federation:
        sizes = _sizes(self.samples, self.clients, self.seed)
        difference = _matrices(self.seed, 6, self.clients, self.dim, self.dissimilarity, symmetric=False)
        linear = self.linear + _differences(self.seed, 4, self.clients, 2 * self.dim, self.heterogeneity)
        return Federation(
            rows={"linear": _rows(linear, sizes, self.noise, self.seed, 5)},
            sizes=sizes,
            own={"A": self.A + difference},
        )

    def init(self, seed: int) -> Pair:
        return _start(seed, self.dim, self.dim)

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
