"""FGDA and AdaFGDA (Huang 2024; without scaling, FedSGDA-M of Wu 2023): recursive momentum within a walk.

    client   K times: z' = step(z, v / A, eta_t, gamma_t)
                      v <- G_i(z'; xi) + (1 - a_t) (v - G_i(z; xi));  z <- z'
    server   v <- mean_i v_i;  z_{t+1} = step(mean_i z_i, v / A, eta_t, gamma_t)

    FGDA      A = 1
    AdaFGDA   s <- decay s + (1 - decay) v^2, once a round;  A = sqrt(s) + floor

eta_t = c_eta / (t+1)^rho, gamma_t alike, a_t = min(1, c_alpha / (t+1)^(2 rho)), a_0 = 1. A client begins
with the server's v, the mean of the last round's. s begins at 1, so that nothing is divided by the floor
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.core import (
    Client,
    Count,
    Exponent,
    Gradients,
    Message,
    Pair,
    Parameters,
    Phase,
    Positive,
    Reply,
    Scalar,
    StepSize,
    Turn,
    step,
    zeros_like,
)


class Estimate(NamedTuple):
    """A point, and what is thought to be the mean gradient there."""

    z: Pair
    v: Pair


@dataclass(frozen=True)
class Decaying:
    """The steps and the momentum of a round."""

    c_eta: StepSize
    c_gamma: StepSize
    c_alpha: Positive = 1.0
    rho: Exponent = 1 / 3
    K: Count = 10

    def at(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self.c_eta / (t + 1) ** self.rho, self.c_gamma / (t + 1) ** self.rho

    def past(self, t: Tensor) -> Tensor:
        """1 - a_t: how much of the past an estimate keeps."""
        return 1 - torch.where(t == 0, 1.0, torch.clamp(self.c_alpha / (t + 1) ** (2 * self.rho), max=1.0))

    def recursive_walk(self, client: Client, start: Estimate, scaled: Callable[[Pair], Pair]) -> Reply:
        eta, gamma = self.at(client.t)
        past = self.past(client.t)

        def move(here: Estimate, xi: object) -> Estimate:
            w = client.project(step(here.z, scaled(here.v), eta, gamma))
            return Estimate(w, client.grad(w, xi) + past * (here.v - client.grad(here.z, xi)))

        end = client.walk(move, start)
        return Reply({"z": end.z, "v": end.v})


@dataclass(frozen=True)
class FGDA(Decaying):
    """FGDA: local steps along recursive estimates of the gradient, which are averaged too."""

    def init(self, z: Pair) -> Estimate:
        return Estimate(z, zeros_like(z))

    def send(self, server: Estimate) -> Message:
        return {"z": server.z, "v": server.v}

    def update(self, client: Client, z: Parameters, v: Gradients) -> Reply:
        return self.recursive_walk(client, Estimate(z, v), lambda v: v)

    def average(self, server: Estimate, turn: Turn, z: Parameters, v: Gradients) -> Estimate:
        return Estimate(step(z, v, *self.at(turn.t)), v)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K),)


class Scaled(NamedTuple):
    z: Pair
    v: Pair
    s: Pair  # the running mean of v^2


@dataclass(frozen=True)
class AdaFGDA(Decaying):
    """AdaFGDA: FGDA whose steps are divided by the size that the estimates have had, entry by entry."""

    decay: Exponent = 0.9
    floor: Positive = 0.01

    def scaled(self, v: Pair, s: Pair) -> Pair:
        return Pair(divided(v.x, s.x, self.floor), divided(v.y, s.y, self.floor))

    def init(self, z: Pair) -> Scaled:
        return Scaled(z, zeros_like(z), Pair(torch.ones_like(z.x), torch.ones_like(z.y)))

    def send(self, server: Scaled) -> Message:
        return {"z": server.z, "v": server.v, "s": server.s}

    def update(self, client: Client, z: Parameters, v: Gradients, s: Gradients) -> Reply:
        return self.recursive_walk(client, Estimate(z, v), lambda v: self.scaled(v, s))

    def average(self, server: Scaled, turn: Turn, z: Parameters, v: Gradients) -> Scaled:
        s = self.decay * server.s + (1 - self.decay) * Pair(v.x**2, v.y**2)
        return Scaled(step(z, self.scaled(v, s), *self.at(turn.t)), v, s)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K),)


def divided(v: Tensor, s: Tensor, floor: Scalar) -> Tensor:
    return v / (torch.sqrt(s) + floor)
