"""Gradient tracking: SAGDA (Yang 2022) and FedGDA-GT (Sun & Wei 2022).

    u = mean_i g_i(z_t)
    SAGDA       d = G_i(z; xi) + u - g_i(z_t);   z_{t+1} = z_t + (eta_g, gamma_g) (mean_i z_i - z_t)
    FedGDA-GT   d = g_i(z) + u - g_i(z_t);       z_{t+1} = mean_i z_i

SAGDA's clients subtract what they sent, a vector; CDMA-ONE's the gradient on the same minibatch, again. Here
that vector is a gradient over all rows, computed anew by whoever walks, so that any cohort may; in the paper
it is of one minibatch, and the cohort is the same. FedGDA-GT makes K passes over all rows in a visit.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsaddle.algorithms.cdma import Corrected, Tracking
from fedsaddle.core import (
    Client,
    Count,
    Gradients,
    Pair,
    Parameters,
    Phase,
    Reply,
    StepSize,
    Turn,
    further,
    step,
)


@dataclass(frozen=True)
class SAGDA(Tracking):
    """SAGDA: local steps corrected by stored gradients, and server steps."""

    eta: StepSize
    gamma: StepSize
    eta_g: StepSize = 1.0
    gamma_g: StepSize = 1.0
    K: Count = 10

    def update(self, client: Client, z: Parameters, u: Gradients) -> Reply:
        correction = u - client.full_grad(z)

        def move(w: Pair, xi: object) -> Pair:
            return step(w, client.grad(w, xi) + correction, self.eta, self.gamma)

        return Reply({"z": client.normalised(z, client.walk(move, z))})

    def average(self, server: Corrected, turn: Turn, z: Parameters) -> Corrected:
        return server._replace(z=further(server.z, z, self.eta_g, self.gamma_g))

    def phases(self) -> tuple[Phase, ...]:
        return (
            self.collecting,
            Phase("update", self.send_correction, self.update, self.average, steps=self.K, partial=True),
        )


@dataclass(frozen=True)
class FedGDAGT(Tracking):
    """FedGDA-GT: tracked local steps on all rows; one step size for both players."""

    eta_l: StepSize
    K: Count = 10

    def update(self, client: Client, z: Parameters, u: Gradients) -> Reply:
        correction = u - client.full_grad(z)

        def move(w: Pair, xi: object) -> Pair:
            return step(w, client.full_grad(w) + correction, self.eta_l, self.eta_l)

        return Reply({"z": client.normalised(z, client.walk(move, z))})

    def average(self, server: Corrected, turn: Turn, z: Parameters) -> Corrected:
        return server._replace(z=z)

    def phases(self) -> tuple[Phase, ...]:
        return (
            self.collecting,
            Phase("update", self.send_correction, self.update, self.average, steps=self.K, partial=True),
        )
