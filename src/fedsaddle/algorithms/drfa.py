"""DRFA (Deng 2020): local steps of x, then one step of y at a random place of the walks.

    update   K times: x <- x - eta G_i((x, y_t); xi).x; it sends its last x and how it came to step k + 1,
             k ~ U{0, ..., K - 1} the same for all:          x_{t+1} = mean_i x_i,  snap = mean_i x_i^{k+1}
    weigh    another cohort sends g_i(snap, y_t).y:           y_{t+1} = P( y_t + K gamma mean_i g_i.y )

It is meant for weights y on clients or groups, f_i(x, y) = N y_i l_i(x), where g_i.y is the loss. There the
paper invites clients by y and forgets y in their steps; here invitations are as everywhere and y stays in.
The two have the same mean for K = 1. For K > 1 walks with unlike steps end elsewhere, the longer the farther.
AFL (Mohri 2019) makes one step of both players along mean gradients: that is Parallel SGDA on such a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.core import (
    Client,
    Count,
    Gradients,
    Message,
    Pair,
    Parameters,
    Phase,
    Reply,
    StepSize,
    Turn,
    only_x,
    only_y,
    step,
    travelled,
    where,
)


class Snapped(NamedTuple):
    z: Pair
    snap: Pair  # where y is weighed; only its x is used


class Strolling(NamedTuple):
    """Where a walk is, where it was at the random place, and how many steps it has made."""

    z: Pair
    snap: Pair
    k: Tensor


@dataclass(frozen=True)
class DRFA:
    """DRFA: x walks, y makes one step for all of the walk's, at a random place of it."""

    eta: StepSize
    gamma: StepSize
    K: Count = 10

    def init(self, z: Pair) -> Snapped:
        return Snapped(z, z)

    def send(self, server: Snapped) -> Message:
        return {"z": server.z}

    def update(self, client: Client, z: Parameters) -> Reply:
        place = torch.floor(self.K * client.chance)

        def move(at: Strolling, xi: object) -> Strolling:
            w = step(at.z, client.grad(at.z, xi), self.eta, 0.0)
            return Strolling(w, where(at.k == place, client.project(w), at.snap), at.k + 1)

        end = client.walk(move, Strolling(z, z, torch.zeros_like(place)))
        # By the steps that it took: a gradient, so that what bounds updates need not be told where it began.
        length = (place + 1) * self.eta
        return Reply({"z": only_x(end.z), "d": only_x(travelled(z, end.snap, length, length))})

    def average(self, server: Snapped, turn: Turn, z: Parameters, d: Gradients) -> Snapped:
        length = (torch.floor(self.K * turn.chance) + 1) * self.eta
        snap = step(server.z, Pair(d.x, torch.zeros_like(server.z.y)), length, 0.0)
        return Snapped(Pair(z.x, server.z.y), snap)

    def send_snap(self, server: Snapped) -> Message:
        return {"z": server.snap}

    def weigh(self, client: Client, z: Parameters) -> Reply:
        return Reply({"g": only_y(client.full_grad(z))})

    def climb(self, server: Snapped, turn: Turn, g: Gradients) -> Snapped:
        y = step(server.z, Pair(torch.zeros_like(server.z.x), g.y), self.eta, self.K * self.gamma).y
        return Snapped(Pair(server.z.x, y), Pair(server.snap.x, y))

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase("update", self.send, self.update, self.average, steps=self.K),
            Phase("weigh", self.send_snap, self.weigh, self.climb),
        )
