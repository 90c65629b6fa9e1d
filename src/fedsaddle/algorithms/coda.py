"""CODA+ and CODASCA (Yuan 2021): proximal stages in x, with and without control variates.

A stage lasts R = K_0 / K rounds, whole rounds and at least one. In stage s the step is e = eta_l / decay^s;
at its end the centre moves to z.

    CODA+     d = G_i(z; xi) + theta (z - centre).x
              z_{t+1} = mean_i z_i
    CODASCA   d = G_i(z; xi) + ((c - c_i).x, beta (c - c_i).y) + theta (z - centre).x
              c_i+ = c_i - c + travelled(z_t, z_i) / (K e)
              z_{t+1} = z_t + eta_g (mean_i z_i - z_t),   c <- c + (S/N) mean_i (c_i+ - c_i)

Every client starts with c_i = 0, so that c stays the mean of all c_i. Neither is reset between stages.
beta = 1 is the published rule; the authors' release of CDMA leaves the dual uncorrected, beta = 0.
The division by `decay` = 3 is of CODASCA's own published code, which that release took over; the paper names
only K_0. That code also moves the centre to the average of its stage, and clips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.core import (
    Client,
    ControlVariates,
    Count,
    Message,
    Pair,
    Parameters,
    Phase,
    Positive,
    Reply,
    Scalar,
    StepSize,
    Turn,
    Weight,
    only_x,
    pull,
    step,
    travelled,
    where,
    zeros_like,
)


def stage_rounds(K_0: int, K: int) -> int:
    """How many rounds a stage of K_0 local steps lasts."""
    return max(1, K_0 // K)


def staged_step(eta_l: Scalar, decay: Scalar, t: Tensor, rounds: int) -> Tensor:
    return eta_l / decay ** torch.floor(t / rounds)


def pull_x(z: Pair, centre: Pair) -> Pair:
    """The proximal direction for x alone: y is its own centre."""
    return pull(z, Pair(centre.x, z.y))


# --- CODA+ --------------------------------------------------------------------------------------------


class Centred(NamedTuple):
    z: Pair
    centre: Pair  # where the proximal term pulls x to


@dataclass(frozen=True)
class CODAPlus:
    """CODA+: local steps with a proximal term in x, in stages of shrinking steps."""

    eta_l: StepSize
    theta: Weight = 0.0
    K_0: Count = 4000
    decay: Positive = 3.0
    K: Count = 10

    def init(self, z: Pair) -> Centred:
        return Centred(z, z)

    def send(self, server: Centred) -> Message:
        return {"z": server.z, "centre": only_x(server.centre)}

    def update(self, client: Client, z: Parameters, centre: Parameters) -> Reply:
        e = staged_step(self.eta_l, self.decay, client.t, stage_rounds(self.K_0, self.K))

        def move(w: Pair, xi: object) -> Pair:
            return step(w, client.grad(w, xi) + self.theta * pull_x(w, centre), e, e)

        return Reply({"z": client.normalised(z, client.walk(move, z))})

    def average(self, server: Centred, turn: Turn, z: Parameters) -> Centred:
        ends = (turn.t + 1) % stage_rounds(self.K_0, self.K) == 0
        return Centred(z, where(ends, z, server.centre))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, partial=True),)


# --- CODASCA ------------------------------------------------------------------------------------------


class Controlled(NamedTuple):
    z: Pair
    centre: Pair  # where the proximal term pulls x to
    c: Pair  # the mean of all clients' c_i


@dataclass(frozen=True)
class CODASCA:
    """CODASCA: CODA+ with a control variate for each client and for the server."""

    eta_l: StepSize
    eta_g: Positive = 1.0  # what the mean of the walks is multiplied by
    theta: Weight = 0.0
    beta: Weight = 1.0  # how far the dual is corrected
    K_0: Count = 4000
    decay: Positive = 3.0
    K: Count = 10

    def init(self, z: Pair) -> Controlled:
        return Controlled(z, z, zeros_like(z))

    def remember(self, z: Pair) -> Pair:
        return zeros_like(z)

    def send(self, server: Controlled) -> Message:
        return {"z": server.z, "centre": only_x(server.centre), "c": server.c}

    def update(self, client: Client, z: Parameters, centre: Parameters, c: ControlVariates) -> Reply:
        e = staged_step(self.eta_l, self.decay, client.t, stage_rounds(self.K_0, self.K))
        c_i: Pair = client.kept
        correction = Pair(c.x - c_i.x, self.beta * (c.y - c_i.y))

        def move(w: Pair, xi: object) -> Pair:
            return step(w, client.grad(w, xi) + correction + self.theta * pull_x(w, centre), e, e)

        end = client.normalised(z, client.walk(move, z))
        c_new = c_i - c + travelled(z, end, self.K * e, self.K * e)
        return Reply({"z": end, "dc": c_new - c_i}, keep=c_new)

    def average(self, server: Controlled, turn: Turn, z: Parameters, dc: ControlVariates) -> Controlled:
        z = server.z + self.eta_g * (z - server.z)
        ends = (turn.t + 1) % stage_rounds(self.K_0, self.K) == 0
        return Controlled(z, where(ends, z, server.centre), server.c + turn.share * dc)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, partial=True),)
