"""Catalyst-Scaffold-S (Hou 2021): corrected walks of random length inside proximal stages.

    u = mean_i g_i(z_t)
    d = G_i(z; xi) + u - G_i(z_t; xi) + theta pull(z, centre)       for a geometric number of steps, mean K
    z_{t+1} = z_t + (eta_g / eta_l) (mean_i z_i - z_t)
    every K_0 / K rounds: centre <- z

All clients of a round walk the same number of steps: communicating with probability 1/K after every step
ends the walk of all at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.algorithms.coda import stage_rounds
from fedsaddle.algorithms.servers import Tracking
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
    Weight,
    pull,
    step,
    where,
    zeros_like,
)


class Server(NamedTuple):
    z: Pair
    centre: Pair  # where the proximal term pulls both players to
    u: Pair  # the correction


@dataclass(frozen=True)
class CatalystScaffoldS(Tracking):
    """Catalyst-Scaffold-S; the paper sets eta_g = eta_l."""

    eta_l: StepSize
    eta_g: StepSize
    theta: Weight = 0.0
    K_0: Count = 4000
    K: Count = 10

    def walk_length(self, chance: float) -> int:
        return geometric(self.K, chance)

    def init(self, z: Pair) -> Server:
        return Server(z, z, zeros_like(z))

    def send_correction(self, server: Server) -> Message:
        return {"z": server.z, "centre": server.centre, "u": server.u}

    def update(self, client: Client, z: Parameters, centre: Parameters, u: Gradients) -> Reply:
        def move(w: Pair, xi: object) -> Pair:
            d = client.grad(w, xi) + u - client.grad(z, xi) + self.theta * pull(w, centre)
            return step(w, d, self.eta_l, self.eta_l)

        return Reply({"z": client.normalised(z, client.walk(move, z))})

    def average(self, server: Server, turn: Turn, z: Parameters) -> Server:
        z = server.z + (self.eta_g / self.eta_l) * (z - server.z)
        ends = (turn.t + 1) % stage_rounds(self.K_0, self.K) == 0
        return server._replace(z=z, centre=where(ends, z, server.centre))

    def phases(self) -> tuple[Phase, ...]:
        return (
            self.collecting,
            Phase(
                "update",
                self.send_correction,
                self.update,
                self.average,
                steps=self.walk_length,
                partial=True,
            ),
        )


def geometric(mean: int, chance: float) -> int:
    """A geometric number of steps, by inversion of a uniform chance."""
    return 1 if mean == 1 else 1 + int(math.log1p(-chance) / math.log1p(-1 / mean))
