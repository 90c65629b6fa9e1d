"""Extragradient and optimism by the server, and FeDualEx (Bai & Bullins 2024).

    P(z) = mean_i z_i^K - z, where client i walks K plain steps from z

    Server-EG     ahead = z_t + P(z_t);  z_{t+1} = z_t + P(ahead)                     two cohorts
    Server-OGDA   z_{t+1} = z_t + 2 P(z_t) - P(z_{t-1}),  P(z_{-1}) = P(z_0)

    FeDualEx      s sums directions, and z = prox(step(z_0, s, 1, 1)). K times, on two minibatches:
                  look = prox(step(z_0, s + eta_l G_i(z; xi), 1, 1));  s <- s + eta_l G_i(look; xi')
                  s_{t+1} = s_t + eta_g (mean_i s_i - s_t)

z is the prox of a problem's penalties, by the length of all steps so far; without any, a projection. The
paper gives out the mean of all points looked at; here, as everywhere, z is the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedsaddle.algorithms.cdma import plain_walk
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
    step,
    where,
    zeros_like,
)


class Looking(NamedTuple):
    z: Pair
    ahead: Pair


@dataclass(frozen=True)
class ServerEG:
    """Server-EG: an extragradient step whose gradients are cohorts' walks."""

    eta: StepSize
    gamma: StepSize
    K: Count = 10

    def init(self, z: Pair) -> Looking:
        return Looking(z, z)

    def send_point(self, server: Looking) -> Message:
        return {"z": server.z}

    def send_ahead(self, server: Looking) -> Message:
        return {"z": server.ahead}

    def update(self, client: Client, z: Parameters) -> Reply:
        end = client.normalised(z, plain_walk(client, z, self.eta, self.gamma))
        return Reply({"z": client.project(end)})  # ahead is looked at as it is, so it must be allowed

    def look(self, server: Looking, turn: Turn, z: Parameters) -> Looking:
        return server._replace(ahead=z)

    def average(self, server: Looking, turn: Turn, z: Parameters) -> Looking:
        return server._replace(z=server.z + (z - server.ahead))

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase("look", self.send_point, self.update, self.look, steps=self.K, partial=True),
            Phase("update", self.send_ahead, self.update, self.average, steps=self.K, partial=True),
        )


class Pushed(NamedTuple):
    z: Pair
    push: Pair  # P of the round before


@dataclass(frozen=True)
class ServerOGDA:
    """Server-OGDA: the way of a round twice, less the way of the one before."""

    eta: StepSize
    gamma: StepSize
    K: Count = 10

    def init(self, z: Pair) -> Pushed:
        return Pushed(z, zeros_like(z))

    def send(self, server: Pushed) -> Message:
        return {"z": server.z}

    def update(self, client: Client, z: Parameters) -> Reply:
        return Reply({"z": client.normalised(z, plain_walk(client, z, self.eta, self.gamma))})

    def average(self, server: Pushed, turn: Turn, z: Parameters) -> Pushed:
        push = z - server.z
        before = where(turn.t == 0, push, server.push)
        return Pushed(server.z + 2 * push - before, push)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, partial=True),)


class Dual(NamedTuple):
    z: Pair
    origin: Pair  # where everything began
    s: Pair  # the sum of all directions


class Climb(NamedTuple):
    """Where a walk is."""

    z: Pair
    s: Pair
    by: Tensor  # the length of all steps so far


@dataclass(frozen=True)
class FeDualEx:
    """FeDualEx: extragradient steps on a sum of directions, which is what is averaged."""

    proximal: ClassVar[bool] = True

    eta_l: StepSize
    eta_g: Positive = 1.0
    K: Count = 10

    def length(self, t: Tensor) -> Tensor:
        """Of all steps so far: how far a penalty has been followed."""
        return t * self.eta_g * self.K * self.eta_l

    def init(self, z: Pair) -> Dual:
        return Dual(z, z, zeros_like(z))

    def send(self, server: Dual) -> Message:
        return {"origin": server.origin, "s": server.s}

    def update(self, client: Client, origin: Parameters, s: Gradients) -> Reply:
        def move(at: Climb, xi: object, xi_look: object) -> Climb:
            by = at.by + self.eta_l
            look = client.prox(step(origin, at.s + self.eta_l * client.grad(at.z, xi), 1.0, 1.0), by)
            s = at.s + self.eta_l * client.grad(look, xi_look)
            return Climb(client.prox(step(origin, s, 1.0, 1.0), by), s, by)

        by = self.length(client.t)
        z = client.prox(step(origin, s, 1.0, 1.0), by)
        return Reply({"s": client.normalised(s, client.walk(move, Climb(z, s, by)).s)})

    def average(self, server: Dual, turn: Turn, s: Gradients) -> Dual:
        s = server.s + self.eta_g * (s - server.s)
        z = turn.prox(step(server.origin, s, 1.0, 1.0), self.length(turn.t + 1))
        return Dual(z, server.origin, s)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, batches=2, partial=True),)
