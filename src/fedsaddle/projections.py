"""Projections: the nearest point of a convex set, for one flat vector.

Plain functions without branches on values, so that they can be mapped over lanes and recorded on a GPU. What
is not a number stays so: a lane that has diverged is not brought back by them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ball(v: Tensor, radius: float) -> Tensor:
    """Onto |v| <= radius, in the l2 norm."""
    shrink: Tensor = (radius / torch.linalg.vector_norm(v)).clamp(max=1)
    return v * shrink


def box(v: Tensor, low: float, high: float) -> Tensor:
    """Onto low <= v_j <= high."""
    return v.clamp(low, high)


def simplex(v: Tensor) -> Tensor:
    """Onto v_j >= 0, sum_j v_j = 1 (Held, Wolfe & Crowder 1974).

    The projection is max(v - t, 0) with the one t that makes it add up to 1. If the k largest entries are the
    ones that stay above t, then t = (their sum - 1) / k; the right k is the one with the largest such t.
    """
    v = v - v.amax()  # which does not move the projection, and keeps the 1 from drowning in large sums
    sums = _running_sums(v.sort(descending=True).values)
    t = ((sums - 1) / torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)).amax()
    return (v - t).clamp(min=0)


def _running_sums(v: Tensor) -> Tensor:
    if v.is_cuda and torch.are_deterministic_algorithms_enabled():
        # On a GPU cumsum adds in an order that is not always the same, and is then refused.
        return torch.ones(len(v), len(v), dtype=v.dtype, device=v.device).tril() @ v
    return v.cumsum(0)
