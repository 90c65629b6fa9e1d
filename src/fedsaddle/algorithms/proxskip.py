"""ProxSkip-VIP-FL (Zhang 2024): local steps with a control variate, and a coin for when to meet.

    until the coin falls, with chance 1/K a step, the same coin for all:
        z_i <- step(z_i, G_i(z_i; xi) - h_i, eta_l, eta_l)
    then  z = mean_i z_i,   h_i <- h_i + travelled(z, z_i, K eta_l, K eta_l)

The walk between two falls is a round, of geometric length with mean K. h_i needs the mean that only the next
visit brings: a client keeps the end of its walk until then. The sum of all h_i stays 0 only if all answer in
every round: a reference for exactness, not a rule for fleets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsaddle.algorithms.catalyst import geometric
from fedsaddle.algorithms.servers import Averaging
from fedsaddle.core import (
    Client,
    Count,
    Pair,
    Parameters,
    Phase,
    Reply,
    StepSize,
    step,
    travelled,
    zeros_like,
)


@dataclass(frozen=True)
class ProxSkipVIP(Averaging):
    """ProxSkip-VIP-FL: corrected local steps, which a common coin ends."""

    eta_l: StepSize
    K: Count = 10

    def walk_length(self, chance: float) -> int:
        return geometric(self.K, chance)

    def remember(self, z: Pair) -> Pair:
        return both(zeros_like(z), z)

    def update(self, client: Client, z: Parameters) -> Reply:
        h, last = parted(client.kept)
        h = h + travelled(z, last, self.K * self.eta_l, self.K * self.eta_l)

        def move(w: Pair, xi: object) -> Pair:
            return step(w, client.grad(w, xi) - h, self.eta_l, self.eta_l)

        end = client.walk(move, z)
        return Reply({"z": end}, keep=both(h, end))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.walk_length),)


def both(h: Pair, end: Pair) -> Pair:
    """Two pairs as the one that a client keeps."""
    return Pair(torch.cat([h.x, end.x]), torch.cat([h.y, end.y]))


def parted(kept: Pair) -> tuple[Pair, Pair]:
    def halves(value: Tensor) -> tuple[Tensor, Tensor]:
        return value[: len(value) // 2], value[len(value) // 2 :]

    (h_x, end_x), (h_y, end_y) = halves(kept.x), halves(kept.y)
    return Pair(h_x, h_y), Pair(end_x, end_y)
