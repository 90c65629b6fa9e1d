"""Gradient tracking: SAGDA (Yang 2022) and FedGDA-GT (Sun & Wei 2022).

    u = mean_i v_i
    SAGDA       d = G_i(z; xi) + u - v_i;       z_{t+1} = z_t + (eta_g, gamma_g) (mean_i z_i - z_t)
    FedGDA-GT   d = g_i(z) + u - v_i;           z_{t+1} = mean_i z_i

SAGDA's clients subtract what they sent, a vector v_i; CDMA-ONE's the gradient on the same minibatch as each
step's. In the paper v_i = G_i(z_t; xi_0) on one minibatch, kept until the same client walks. That is
`SAGDAMinibatch`, which finds it again instead, from the same draws. `SAGDA` and FedGDA-GT have v_i = g_i(z_t)
over all rows. FedGDA-GT makes K passes over them in a visit.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsaddle.algorithms.servers import Corrected, Tracking
from fedsaddle.core import (
    Client,
    Count,
    Gradients,
    Pair,
    Parameters,
    Phase,
    Positive,
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
    eta_g: Positive = 1.0
    gamma_g: Positive = 1.0
    K: Count = 10

    def anchor(self, client: Client, z: Pair) -> Pair:
        """v_i"""
        return client.full_grad(z)

    def collect(self, client: Client, z: Parameters) -> Reply:
        return Reply({"g": self.anchor(client, z)})

    def update(self, client: Client, z: Parameters, u: Gradients) -> Reply:
        correction = u - self.anchor(client, z)

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
class SAGDAMinibatch(SAGDA):
    """SAGDA as it is printed: the stored gradient is that of one minibatch.

    With cohorts "answered", as in the paper, those who walk subtract what they sent. In another cohort they
    subtract what they would have sent.
    """

    def anchor(self, client: Client, z: Pair) -> Pair:
        return client.grad(z, client.sample())


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
