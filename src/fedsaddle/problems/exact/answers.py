"""What is known of an exact problem, and how a pair is judged by it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from fedsaddle.core import Pair
from fedsaddle.metric import Metric


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


def judged_exactly(problem: Exact, z: Pair) -> dict[str, float]:
    """stationarity = |grad Phi(x)|^2, Phi(x), and how far y is from the best answer, Phi(x) - f(x, y)."""
    z = z.to("cpu")  # where a problem's own values are
    phi = problem.phi(z.x)
    return {
        "stationarity": float(problem.grad_phi(z.x).square().sum()),
        "phi": float(phi),
        "dual_gap": float(phi - problem.value(z)),
    }
