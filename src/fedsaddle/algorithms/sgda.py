"""The descent-ascent rivals without control variates.

    Parallel SGDA (Lin 2020)            z_{t+1} = step(z_t, mean_i g_i(z_t))
    Local SGDA+ (Deng & Mahdavi 2021)   d = ( G_i(z; xi).x, G_i((anchor.x, z.y); xi).y );
                                        z_{t+1} = mean_i z_i; every s rounds anchor <- z
    Extra-Step Local SGD                ahead = P step(z, G_i(z; xi)), z <- step(z, G_i(ahead; xi'));
    (Beznosikov 2020)                   z_{t+1} = mean_i z_i

G_i is a gradient on a minibatch, g_i on all of client i's data. P projects, where a problem is constrained;
what a walk or a merge ends with is projected anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedsaddle.algorithms.servers import AtPoint, Averaging, Point
from fedsaddle.core import (
    Client,
    Count,
    Gradients,
    Message,
    Pair,
    Parameters,
    Phase,
    Reply,
    Scalar,
    StepSize,
    Turn,
    only_x,
    step,
    where,
)

# --- Parallel SGDA ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParallelSGDA(AtPoint):
    """Parallel SGDA: one step along the mean of the cohort's full gradients."""

    eta: StepSize
    gamma: StepSize

    def collect(self, client: Client, z: Parameters) -> Reply:
        return Reply({"g": client.full_grad(z)})

    def descend(self, server: Point, turn: Turn, g: Gradients) -> Point:
        return Point(step(server.z, g, self.eta, self.gamma))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("collect", self.send, self.collect, self.descend),)


# --- Local SGDA+ --------------------------------------------------------------------------------------


class Anchored(NamedTuple):
    z: Pair
    anchor: Pair  # the snapshot whose x the ascent sees


def snapshot_walk(client: Client, z: Pair, anchor: Pair, eta: Scalar, gamma: Scalar) -> Pair:
    """Local steps whose y climbs against a snapshot of x."""

    def move(w: Pair, xi: object) -> Pair:
        d = Pair(client.grad(w, xi).x, client.grad(Pair(anchor.x, w.y), xi).y)
        return step(w, d, eta, gamma)

    return client.walk(move, z)


@dataclass(frozen=True)
class LocalSGDAPlus:
    """Local SGDA+: y climbs against a snapshot of x that is renewed every s rounds."""

    eta: StepSize
    gamma: StepSize
    s: Count = 1
    K: Count = 10

    def init(self, z: Pair) -> Anchored:
        return Anchored(z, z)

    def send(self, server: Anchored) -> Message:
        return {"z": server.z, "anchor": only_x(server.anchor)}

    def update(self, client: Client, z: Parameters, anchor: Parameters) -> Reply:
        end = snapshot_walk(client, z, anchor, self.eta, self.gamma)
        return Reply({"z": client.normalised(z, end)})

    def average(self, server: Anchored, turn: Turn, z: Parameters) -> Anchored:
        return Anchored(z, where((turn.t + 1) % self.s == 0, z, server.anchor))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, partial=True),)


# --- Extra-Step Local SGD -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ExtraStep(Averaging):
    """Extra-Step Local SGD: every local step looks ahead first; K steps draw 2K minibatches."""

    eta_l: StepSize
    K: Count = 10

    def update(self, client: Client, z: Parameters) -> Reply:
        def move(w: Pair, xi: object, xi_ahead: object) -> Pair:
            ahead = client.project(step(w, client.grad(w, xi), self.eta_l, self.eta_l))
            return step(w, client.grad(ahead, xi_ahead), self.eta_l, self.eta_l)

        return Reply({"z": client.normalised(z, client.walk(move, z))})

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, batches=2, partial=True),)
