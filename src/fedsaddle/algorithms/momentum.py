"""Momentum in one trip: within a visit (Sharma 2022), and from round to round (Cheng 2024, for two players).

    Momentum Local SGDA   m <- (1 - b) m + b G_i(z; xi);  z <- step(z, m)           m = 0 when a visit begins
    FedAvg-M              d = b G_i(z; xi) + (1 - b) u;   z <- step(z, d, eta_t, gamma_t)
                          u <- travelled(z_t, mean_i z_i, K eta_t, K gamma_t), the mean direction of the round

    both: z_{t+1} = mean_i z_i

The first paper's theory also averages m, its experiments do not, nor does this. The second is published for
minimisation: here both players have a momentum. eta_t = eta / (t+1)^rho; in the first round b = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.servers import Averaging, Corrected
from fedsaddle.core import (
    Client,
    Count,
    Exponent,
    Gradients,
    Message,
    Pair,
    Parameters,
    Phase,
    Reply,
    StepSize,
    Turn,
    step,
    travelled,
    zeros_like,
)


class Rolling(NamedTuple):
    """Where a walk is."""

    z: Pair
    m: Pair


@dataclass(frozen=True)
class MomentumLocalSGDA(Averaging):
    """Momentum Local SGDA: local steps along a running mean of the visit's gradients."""

    eta: StepSize
    gamma: StepSize
    b: Exponent = 0.5
    K: Count = 10

    def update(self, client: Client, z: Parameters) -> Reply:
        def move(at: Rolling, xi: object) -> Rolling:
            m = (1 - self.b) * at.m + self.b * client.grad(at.z, xi)
            return Rolling(step(at.z, m, self.eta, self.gamma), m)

        return Reply({"z": client.walk(move, Rolling(z, zeros_like(z))).z})

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K),)


@dataclass(frozen=True)
class FedAvgM:
    """FedAvg-M: local steps along a mix of a minibatch's gradient and the last round's direction."""

    eta: StepSize
    gamma: StepSize
    b: Exponent = 0.5
    rho: Exponent = 0.0
    K: Count = 10

    def steps(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.eta / (t + 1) ** self.rho, self.gamma / (t + 1) ** self.rho

    def init(self, z: Pair) -> Corrected:
        return Corrected(z, zeros_like(z))

    def send(self, server: Corrected) -> Message:
        return {"z": server.z, "u": server.u}

    def update(self, client: Client, z: Parameters, u: Gradients) -> Reply:
        eta, gamma = self.steps(client.t)
        b = torch.where(client.t == 0, 1.0, self.b)  # there is no direction yet

        def move(w: Pair, xi: object) -> Pair:
            return step(w, b * client.grad(w, xi) + (1 - b) * u, eta, gamma)

        return Reply({"z": client.normalised(z, client.walk(move, z))})

    def average(self, server: Corrected, turn: Turn, z: Parameters) -> Corrected:
        eta, gamma = self.steps(turn.t)
        return Corrected(z, travelled(server.z, z, self.K * eta, self.K * gamma))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, partial=True),)
