"""Fed-Norm-SGDA and Fed-Norm-SGDA+ (Sharma 2023): clients that make different numbers of steps count alike.

    client i   n_i times: z <- step(z, G_i(z; xi), eta, gamma)
               d_i = travelled(z_t, z_i, n_i eta, n_i gamma), its mean direction
    server     z_{t+1} = step(z_t, mean_i d_i, n eta eta_g, n gamma gamma_g),   n = mean_i n_i
    plus       y ascends against a snapshot: ( G_i(z; xi).x, G_i((anchor.x, z.y); xi).y );
               every s rounds anchor <- z

Without the division a client that makes more steps has more weight, and the fixed point is that of
sum_i n_i f_i. Here n_i is K, or less where a walk is cut short (`partial_work`).
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsaddle.algorithms.cdma import plain_walk
from fedsaddle.algorithms.servers import AtPoint, Point
from fedsaddle.algorithms.sgda import Anchored, snapshot_walk
from fedsaddle.core import (
    Client,
    Count,
    Gradients,
    Message,
    Pair,
    Parameters,
    Phase,
    Positive,
    Reply,
    StepSize,
    Turn,
    only_x,
    step,
    travelled,
    where,
)


@dataclass(frozen=True)
class FedNormSGDA(AtPoint):
    """Fed-Norm-SGDA: a step of the server along the mean of the clients' mean directions."""

    eta: StepSize
    gamma: StepSize
    eta_g: Positive = 1.0
    gamma_g: Positive = 1.0
    K: Count = 10

    def update(self, client: Client, z: Parameters) -> Reply:
        end = plain_walk(client, z, self.eta, self.gamma)
        return Reply({"d": travelled(z, end, client.steps * self.eta, client.steps * self.gamma)})

    def average(self, server: Point, turn: Turn, d: Gradients) -> Point:
        eta, gamma = turn.steps * self.eta * self.eta_g, turn.steps * self.gamma * self.gamma_g
        return Point(step(server.z, d, eta, gamma))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, partial=True),)


@dataclass(frozen=True)
class FedNormSGDAPlus:
    """Fed-Norm-SGDA+: the same, with ascent against a snapshot of x."""

    eta: StepSize
    gamma: StepSize
    eta_g: Positive = 1.0
    gamma_g: Positive = 1.0
    s: Count = 1
    K: Count = 10

    def init(self, z: Pair) -> Anchored:
        return Anchored(z, z)

    def send(self, server: Anchored) -> Message:
        return {"z": server.z, "anchor": only_x(server.anchor)}

    def update(self, client: Client, z: Parameters, anchor: Parameters) -> Reply:
        end = snapshot_walk(client, z, anchor, self.eta, self.gamma)
        return Reply({"d": travelled(z, end, client.steps * self.eta, client.steps * self.gamma)})

    def average(self, server: Anchored, turn: Turn, d: Gradients) -> Anchored:
        eta, gamma = turn.steps * self.eta * self.eta_g, turn.steps * self.gamma * self.gamma_g
        z = step(server.z, d, eta, gamma)
        return Anchored(z, where((turn.t + 1) % self.s == 0, z, server.anchor))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, partial=True),)
