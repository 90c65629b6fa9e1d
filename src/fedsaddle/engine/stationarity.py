"""|grad Phi(x_t)|^2 of every lane after every round: one operation for all lanes, beside the rounds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsaddle.engine.course import Stop
from fedsaddle.engine.study import Lanes
from fedsaddle.errors import BadInput, check_count
from fedsaddle.problems.exact.answers import Exact


class Stationarity:
    """What theorems bound is a mean over all rounds, not over those that are evaluated.

    Give one to `simulate` as `watch`, for a problem that knows grad Phi. A lane that has diverged counts as
    infinite from there on.
    """

    def __init__(self, problem: Exact) -> None:
        if not callable(getattr(problem, "grad_phi", None)):
            raise BadInput(f"{type(problem).__name__} has no grad_phi; give an exact problem, as Quadratic()")
        self._slope = torch.func.vmap(problem.grad_phi)
        self.values: list[Tensor] = []  # of x_0, x_1, ...: (lane,) each

    def __call__(self, stop: Stop) -> None:
        self.look(stop.lanes)

    def look(self, lanes: Lanes) -> Tensor:
        """Where all lanes are now; it is kept."""
        now = self._slope(lanes.server.z.x.to("cpu")).square().sum(1)
        self.values.append(torch.where(torch.tensor(lanes.alive), now, math.inf))
        return self.values[-1]

    def mean(self, T: int | None = None, first: int = 0) -> Tensor:
        """Of each lane, over the rounds first <= t < T; by default over all that were begun."""
        most = len(self.values) - 1
        if most < 1:
            raise BadInput("no round was watched yet: give it to simulate as watch")
        check_count("T", most if T is None else T, least=1, most=most)
        check_count("first", first, least=0, most=(T or most) - 1)
        return torch.stack(self.values[first : T or most]).mean(0)
