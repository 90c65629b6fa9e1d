"""FedNest (Tarzanagh 2022), for minimax: one player after the other, each with corrected walks.

    T times   v = mean_i g_i(z).y
              K times y <- y + gamma ( G_i(x, y; xi).y + v - G_i(z; xi).y );   y = mean_i y_i
    then      u = mean_i g_i(z).x
              K times x <- x - eta ( G_i(x, y; xi).x + u - G_i(z; xi).x );     x = mean_i x_i

z is the server's point when a phase begins. Only the player that moves is sent up. A round is 2 T + 2 phases,
each with a cohort and a latency of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedsaddle.algorithms.cdma import corrected_walk
from fedsaddle.algorithms.servers import Corrected
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
    zeros_like,
)


@dataclass(frozen=True)
class FedNest:
    """FedNest: T corrected exchanges for y, then one for x."""

    eta: StepSize
    gamma: StepSize
    T: Count = 1
    K: Count = 10

    def init(self, z: Pair) -> Corrected:
        return Corrected(z, zeros_like(z))

    def send_point(self, server: Corrected) -> Message:
        return {"z": server.z}

    def collect_x(self, client: Client, z: Parameters) -> Reply:
        return Reply({"g": only_x(client.full_grad(z))})

    def collect_y(self, client: Client, z: Parameters) -> Reply:
        return Reply({"g": only_y(client.full_grad(z))})

    def correct_x(self, server: Corrected, turn: Turn, g: Gradients) -> Corrected:
        return server._replace(u=Pair(g.x, server.u.y))

    def correct_y(self, server: Corrected, turn: Turn, g: Gradients) -> Corrected:
        return server._replace(u=Pair(server.u.x, g.y))

    def send_x(self, server: Corrected) -> Message:
        return {"z": server.z, "u": only_x(server.u)}

    def send_y(self, server: Corrected) -> Message:
        return {"z": server.z, "u": only_y(server.u)}

    def update_x(self, client: Client, z: Parameters, u: Gradients) -> Reply:
        u = Pair(u.x, torch.zeros_like(z.y))  # y stands still, whatever its direction
        return Reply({"z": only_x(client.normalised(z, corrected_walk(client, z, u, self.eta, 0.0)))})

    def update_y(self, client: Client, z: Parameters, u: Gradients) -> Reply:
        u = Pair(torch.zeros_like(z.x), u.y)
        return Reply({"z": only_y(client.normalised(z, corrected_walk(client, z, u, 0.0, self.gamma)))})

    def average_x(self, server: Corrected, turn: Turn, z: Parameters) -> Corrected:
        return server._replace(z=Pair(z.x, server.z.y))

    def average_y(self, server: Corrected, turn: Turn, z: Parameters) -> Corrected:
        return server._replace(z=Pair(server.z.x, z.y))

    def phases(self) -> tuple[Phase, ...]:
        inner = (
            Phase("collect-y", self.send_point, self.collect_y, self.correct_y),
            Phase("update-y", self.send_y, self.update_y, self.average_y, steps=self.K, partial=True),
        )
        outer = (
            Phase("collect-x", self.send_point, self.collect_x, self.correct_x),
            Phase("update-x", self.send_x, self.update_x, self.average_x, steps=self.K, partial=True),
        )
        return inner * self.T + outer
