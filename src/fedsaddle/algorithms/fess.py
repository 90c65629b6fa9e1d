"""FSGDA and FESS-GDA (Shen 2024): the server makes steps of its own, the second with a smoothing centre.

    K times: z <- step(z, G_i(z; xi), eta, gamma)
    FSGDA      z_{t+1} = z_t + (eta_g, gamma_g) (mean_i z_i - z_t)
    FESS-GDA   x_{t+1} = x_t + eta_g (mean_i x_i - x_t) - eta eta_g K p (x_t - centre);   y as in FSGDA
               centre <- centre + beta (x_{t+1} - centre)

FESS-GDA is descent-ascent on f + p/2 |x - centre|^2, of which the server alone knows the last term. The
centre follows x before it is projected: in the paper x is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.algorithms.cdma import plain_walk
from fedsaddle.algorithms.servers import AtPoint, Point
from fedsaddle.core import (
    Client,
    Count,
    Exponent,
    Message,
    Pair,
    Parameters,
    Phase,
    Positive,
    Reply,
    StepSize,
    Turn,
    Weight,
    further,
    only_x,
)


@dataclass(frozen=True)
class FSGDA(AtPoint):
    """FSGDA: local steps, then a step of the server towards their mean."""

    eta: StepSize
    gamma: StepSize
    eta_g: Positive = 1.0
    gamma_g: Positive = 1.0
    K: Count = 10

    def update(self, client: Client, z: Parameters) -> Reply:
        return Reply({"z": client.normalised(z, plain_walk(client, z, self.eta, self.gamma))})

    def average(self, server: Point, turn: Turn, z: Parameters) -> Point:
        return Point(further(server.z, z, self.eta_g, self.gamma_g))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, partial=True),)


class Smoothed(NamedTuple):
    z: Pair
    smooth: Pair  # the centre that x is drawn to; it has no y


@dataclass(frozen=True)
class FESSGDA:
    """FESS-GDA: FSGDA on a smoothed loss, whose centre follows x slowly."""

    eta: StepSize
    gamma: StepSize
    p: Weight = 0.1
    beta: Exponent = 0.5
    eta_g: Positive = 1.0
    gamma_g: Positive = 1.0
    K: Count = 10

    def init(self, z: Pair) -> Smoothed:
        return Smoothed(z, only_x(z))

    def send(self, server: Smoothed) -> Message:
        return {"z": server.z}

    def update(self, client: Client, z: Parameters) -> Reply:
        return Reply({"z": client.normalised(z, plain_walk(client, z, self.eta, self.gamma))})

    def average(self, server: Smoothed, turn: Turn, z: Parameters) -> Smoothed:
        new, centre = further(server.z, z, self.eta_g, self.gamma_g), server.smooth.x
        x = new.x - self.eta * self.eta_g * self.K * self.p * (server.z.x - centre)
        return Smoothed(Pair(x, new.y), Pair(centre + self.beta * (x - centre), server.smooth.y))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, partial=True),)
