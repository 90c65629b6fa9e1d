"""CDMA: local descent-ascent on a random cohort, corrected by what another cohort collected (Algorithms 1-3).

    NC    d = G_i(z; xi)
    ONE   u_t = mean_i g_i(z_t)
          d = G_i(z; xi) + u_t - G_i(z_t; xi)                                                  (Eq. 3)
    ADA   u_t = (1 - a_t) u_{t-1} + mean_i [ g_i(z_t) - (1 - a_t) g_i(z_{t-1}) ]               (Eq. 2)
          d as in ONE

    K times: x <- x - eta d.x, y <- y + gamma d.y; then z_{t+1} = mean_i z_i

G_i is a gradient on a minibatch xi, g_i on all of client i's data. u.x and u.y are the paper's u_t and v_t.

With K = 1 a corrected walk is one step along u, whoever makes it: G_i(z_t; xi) cancels. The server makes it
itself, and no second cohort is asked. So ONE is Parallel SGDA there, in what it computes and what it sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedsaddle.algorithms.servers import Averaging, Corrected, Tracking
from fedsaddle.algorithms.theorems import Two, theorem_1, theorem_2, theorem_3, theorem_4
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
    Range,
    Reply,
    Scalar,
    StepSize,
    Turn,
    step,
    zeros_like,
)


def plain_walk(client: Client, z: Pair, eta: Scalar, gamma: Scalar) -> Pair:
    """Local steps along each minibatch's own gradient."""

    def move(w: Pair, xi: object) -> Pair:
        return step(w, client.grad(w, xi), eta, gamma)

    return client.walk(move, z)


def corrected_walk(client: Client, z: Pair, u: Pair, eta: Scalar, gamma: Scalar) -> Pair:
    """Local steps whose drift is corrected by u: at the start of the walk, d is u itself."""

    def move(w: Pair, xi: object) -> Pair:
        return step(w, client.grad(w, xi) + u - client.grad(z, xi), eta, gamma)

    return client.walk(move, z)


# --- CDMA-NC ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CDMANC(Averaging):
    """CDMA-NC: no correction (Algorithm 3)."""

    eta: StepSize
    gamma: StepSize
    K: Count = 10

    @classmethod
    def theorem_1(
        cls, L: float, kappa: float, sigma: Two, G: Two, *, S: int, K: int, T: int, gap: float
    ) -> CDMANC:
        """The steps of Theorem 1, for smoothness L, clients that differ by `sigma` and their samples by `G`.

        Both are pairs, of x and of y. `gap` is Phi(x_0) - min Phi + (Phi(x_0) - f(z_0))/20.
        """
        return cls(*theorem_1(L, kappa, sigma, G, S, K, T, gap), K)

    def update(self, client: Client, z: Parameters) -> Reply:
        return Reply({"z": client.normalised(z, plain_walk(client, z, self.eta, self.gamma))})

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("update", self.send, self.update, self.average, steps=self.K, partial=True),)


# --- CDMA-ONE -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CDMAONE(Tracking):
    """CDMA-ONE: the correction is the mean gradient of one cohort (Algorithms 1-2 with alpha = 1)."""

    eta: StepSize
    gamma: StepSize
    K: Count = 10

    @classmethod
    def theorem_2(cls, L: float, kappa: float, sigma: Two, *, S: int, K: int, T: int, gap: float) -> CDMAONE:
        """The steps of Theorem 2, for smoothness L and clients that differ by `sigma` in x and in y.

        `gap` is Phi(x_0) - min Phi + (Phi(x_0) - f(z_0))/20.
        """
        return cls(*theorem_2(L, kappa, sigma, S, K, T, gap), K)

    def update(self, client: Client, z: Parameters, u: Gradients) -> Reply:
        return Reply({"z": client.normalised(z, corrected_walk(client, z, u, self.eta, self.gamma))})

    def average(self, server: Corrected, turn: Turn, z: Parameters) -> Corrected:
        return server._replace(z=z)

    def descend(self, server: Corrected, turn: Turn, g: Gradients) -> Corrected:
        return Corrected(step(server.z, g, self.eta, self.gamma), g)

    def phases(self) -> tuple[Phase, ...]:
        if self.K == 1:
            return (Phase("collect", self.send_point, self.collect, self.descend),)
        return (
            self.collecting,
            Phase("update", self.send_correction, self.update, self.average, steps=self.K, partial=True),
        )


# --- CDMA-ADA -----------------------------------------------------------------------------------------


class Momentum(NamedTuple):
    z: Pair
    z_old: Pair  # z one round ago, the point u was last corrected at
    u: Pair  # the correction


@dataclass(frozen=True)
class CDMAADA:
    """CDMA-ADA: the correction is a recursive momentum, with the schedules of the paper's appendix.

    eta_t = c_eta / (t+1)^rho, gamma_t = c_gamma / (t+1)^rho
    alpha_t = min(1, c_alpha / (t+1)^(2 rho + rho_alpha))

    In the paper `rho_alpha` is 0. With rho = 0 and 1 alpha falls and steps do not; with -2 rho it stays.
    """

    c_eta: StepSize
    c_gamma: StepSize
    c_alpha: Positive = 5.0
    rho: Exponent = 1 / 3
    K: Count = 10
    rho_alpha: Annotated[Scalar, Range(least=-2, most=2)] = 0.0  # what alpha's exponent has beyond 2 rho

    @classmethod
    def theorem_3(cls, L: float, kappa: float, sigma: Two, *, S: int, K: int, gap: float) -> CDMAADA:
        """The steps of Theorem 3, for smoothness L and clients that differ by `sigma` in x and in y.

        `gap` is Phi(x_0) - min Phi + (Phi(x_0) - f(z_0))/7. In practice steps and alpha are constants, some
        hundred times less than steps that work well: docs/theory.md says what that costs.
        """
        eta, gamma, alpha = theorem_3(L, kappa, sigma, S, K, gap)
        return cls(eta, gamma, alpha, rho=0.0, K=K)

    @classmethod
    def theorem_4(
        cls, L: float, kappa: float, delta: float, sigma: Two, *, S: int, K: int, gap: float
    ) -> CDMAADA:
        """Those of Theorem 4, for clients whose Hessians are at most 2 `delta` from that of f."""
        eta, gamma, alpha = theorem_4(L, kappa, delta, sigma, S, K, gap)
        return cls(eta, gamma, alpha, rho=0.0, K=K)

    def eta(self, t: Tensor) -> Tensor:
        return self.c_eta / (t + 1) ** self.rho

    def gamma(self, t: Tensor) -> Tensor:
        return self.c_gamma / (t + 1) ** self.rho

    def alpha(self, t: Tensor) -> Tensor:
        # In the first round there is no momentum yet: u_0 is the plain mean.
        exponent = 2 * self.rho + self.rho_alpha
        return torch.where(t == 0, 1.0, torch.clamp(self.c_alpha / (t + 1) ** exponent, max=1.0))

    def init(self, z: Pair) -> Momentum:
        return Momentum(z, z, zeros_like(z))

    def send_points(self, server: Momentum) -> Message:
        return {"z": server.z, "z_old": server.z_old}

    def collect(self, client: Client, z: Parameters, z_old: Parameters) -> Reply:
        past = 1 - self.alpha(client.t)
        return Reply({"g": client.full_grad(z) - past * client.full_grad(z_old)})

    def correct(self, server: Momentum, turn: Turn, g: Gradients) -> Momentum:
        past = 1 - self.alpha(turn.t)
        return server._replace(z_old=server.z, u=past * server.u + g)

    def send_correction(self, server: Momentum) -> Message:
        return {"z": server.z, "u": server.u}

    def update(self, client: Client, z: Parameters, u: Gradients) -> Reply:
        end = corrected_walk(client, z, u, self.eta(client.t), self.gamma(client.t))
        return Reply({"z": client.normalised(z, end)})

    def average(self, server: Momentum, turn: Turn, z: Parameters) -> Momentum:
        return server._replace(z=z)

    def descend(self, server: Momentum, turn: Turn, g: Gradients) -> Momentum:
        known = self.correct(server, turn, g)
        return known._replace(z=step(known.z, known.u, self.eta(turn.t), self.gamma(turn.t)))

    def phases(self) -> tuple[Phase, ...]:
        if self.K == 1:
            return (Phase("collect", self.send_points, self.collect, self.descend),)
        return (
            Phase("collect", self.send_points, self.collect, self.correct),
            Phase("update", self.send_correction, self.update, self.average, steps=self.K, partial=True),
        )
