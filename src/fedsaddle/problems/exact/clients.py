"""Drawing clients that differ and add up."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsaddle import draws
from fedsaddle.core import Count, Pair
from fedsaddle.errors import BadInput, check_memory
from fedsaddle.ranges import check

Samples = Count | tuple[Count, Count]  # a client without rows is no client


def gaussian(seed: int, what: int, *shape: int) -> Tensor:
    return draws.normal(draws.key(draws.PROBLEM, seed, what), *shape)


def start(seed: int, fixed: int | None, x: int, y: int) -> Pair:
    """Where a run with this seed starts; with a seed that is fixed, all start where that one does."""
    both = draws.normal(draws.key(draws.INIT, seed if fixed is None else fixed), x + y)
    return Pair(both[:x], both[x:])


def client_sizes(samples: Samples, clients: int, seed: int) -> Tensor:
    fewest, most = samples if isinstance(samples, tuple) else (samples, samples)
    luck = draws.uniform(draws.key(draws.PROBLEM, seed, 0), clients)
    return fewest + (luck * (most - fewest + 1)).to(torch.int64)


def _centred(values: Tensor) -> Tensor:
    return values - values.mean(0)


def differences(seed: int, what: int, clients: int, width: int, size: float) -> Tensor:
    """(client, width) that add up to zero, of root mean square length `size`."""
    values = _centred(gaussian(seed, what, clients, width))
    length = values.square().sum(1).mean().sqrt()
    return values * (size / length if clients > 1 else 0.0)


def matrices(seed: int, what: int, clients: int, size: int, norm: float, symmetric: bool) -> Tensor:
    """(client, size, size) that add up to zero; the largest has spectral norm `norm`."""
    values = _centred(gaussian(seed, what, clients, size, size))
    if symmetric:
        values = values + values.mT
    return values * (norm / torch.linalg.matrix_norm(values, ord=2).max() if clients > 1 else 0.0)


def waves(seed: int, what: int, clients: int, width: int, size: float) -> Tensor:
    """(client, 2, width): p and q of sum_j p_j cos z_j + q_j sin z_j, which add up to zero.

    The gradient and the Hessian of no client's are longer than `size` anywhere, and the largest can be.
    """
    values = _centred(gaussian(seed, what, clients, 2, width))
    length = values.flatten(1).norm(dim=1).max()
    return values * (size / length if clients > 1 else 0.0)


def scattered(means: Tensor, sizes: Tensor, noise: float, seed: int, what: int) -> Tensor:
    """Rows that scatter about their client's mean and have exactly that mean."""
    client = torch.repeat_interleave(sizes)
    scatter = gaussian(seed, what, len(client), means.shape[1]) * noise / math.sqrt(means.shape[1])
    mean = torch.zeros_like(means).index_add(0, client, scatter) / sizes[:, None]
    return means[client] + scatter - mean[client]


def orthogonal(seed: int, what: int, size: int) -> Tensor:
    Q: Tensor = torch.linalg.qr(gaussian(seed, what, size, size)).Q
    return Q


def check_dials(problem: object) -> None:
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
