"""Theorem 3 speaks of local iterates: the mean over t, k, i of |grad Phi(x_{t,i}^(k))|^2, k = 0, ..., K - 1.

Here CDMA-ADA sums it up inside its walks, beside the server's mean of |grad Phi(x_t)|^2, which is what every
other experiment looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

import fedsaddle as fs
from benchmarks.rates.experiments import ONLY, Size, ada, quadratic
from benchmarks.rates.fits import ratio, ruling, slope
from benchmarks.rates.points import EIGHT, EVERYBODY
from benchmarks.rates.verdicts import Verdict, told
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin

PROBLEM = quadratic()
SETTINGS = tuple(ada(c, c_alpha) for c in (16.0, 8.0, 4.0) for c_alpha in (2.0, 1.0, 0.5, 0.25))


class Strolling(NamedTuple):
    z: fs.Pair
    sum: Tensor  # of |grad Phi|^2 where the walk has been


class Watched(NamedTuple):
    """CDMA-ADA's server, and what its clients have seen in the last round."""

    z: fs.Pair
    z_old: fs.Pair
    u: fs.Pair
    local: fs.Pair


@dataclass(frozen=True)
class LocalADA(fs.CDMAADA):
    """CDMA-ADA whose clients also send the mean of |grad Phi|^2 over their walks."""

    problem: ClassVar[fs.Quadratic] = PROBLEM

    def init(self, z: fs.Pair) -> Any:
        return Watched(*super().init(z), fs.Pair(z.x[:1] * 0, z.y[:0]))

    def update(self, client: fs.Client, z: fs.Parameters, u: fs.Gradients) -> fs.Reply:
        eta, gamma = self.eta(client.t), self.gamma(client.t)

        def move(at: Strolling, xi: object) -> Strolling:
            d = client.grad(at.z, xi) + u - client.grad(z, xi)
            return Strolling(fs.step(at.z, d, eta, gamma), at.sum + self.seen(at.z))

        end = client.walk(move, Strolling(z, 0 * self.seen(z)))
        return fs.Reply({"z": end.z, "local": fs.Pair(end.sum[None] / self.K, z.y[:0])})

    def seen(self, z: fs.Pair) -> Tensor:
        return self.problem.grad_phi(z.x).square().sum()

    def average(self, server: Any, turn: fs.Turn, z: fs.Parameters, local: fs.Gradients) -> Any:
        return server._replace(z=z, local=local)


def means(rule: Sequence[Any], seeds: Sequence[int], horizons: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The server's mean and the clients', (setting, seed, horizon) each."""
    settings = [LocalADA(one.c_eta, one.c_gamma, one.c_alpha, one.rho, one.K) for one in rule]
    study = fs.make_study(PROBLEM, settings, seeds=seeds, quorum=EIGHT, fleet=EVERYBODY, batch=1)
    lanes, watch, local = begin(study), fs.Stationarity(PROBLEM), []
    for t in range(max(horizons)):
        watch.look(lanes)
        lanes, _ = play(study, lanes, t)
        local.append(torch.where(torch.tensor(lanes.alive), lanes.server.local.x[:, 0], torch.inf))
    study.close()
    found = [
        torch.stack([values[:T].mean(0) for T in horizons], 1).reshape(len(settings), len(seeds), -1)
        for values in (torch.stack(watch.values), torch.stack(local))
    ]
    return found[0], found[1]


class Seed(NamedTuple):
    """One seed up to round T, at the setting that was chosen for it."""

    curve: str
    x: int  # T
    seed: int
    Y: float
    setting: fs.CDMAADA


def verdicts(size: Size, folder: Path) -> tuple[list[Verdict], list[Seed]]:
    """At the settings whose server's mean is best with other seeds. Nothing is kept for later."""
    horizons = [T for T in (16, 32) if size.little] or [T for T in size.horizons() if T <= 1024]
    tuned, _ = means(SETTINGS, ONLY if size.little else size.tuning, horizons)
    best = tuned.mean(1).argmin(0).tolist()  # by horizon
    chosen = sorted(set(best))
    server, local = means([SETTINGS[number] for number in chosen], size.seeds, horizons)
    curves: list[dict[int, list[float]]] = [
        {T: values[chosen.index(best[at]), :, at].tolist() for at, T in enumerate(horizons)}
        for values in (server, local)
    ]
    found, seeds = [], []
    for what, curve in zip(("over the server's iterates", "over local iterates"), curves, strict=True):
        own = slope(curve)
        for at, T in enumerate(horizons):
            one = SETTINGS[best[at]]
            seeds += [Seed(what, T, *pair, one) for pair in zip(size.seeds, curve[T], strict=True)]
        found.append(
            Verdict(f"cdma-ada, {what}", told(own), "-0.67; refuted above -0.55", ruling(own, -2 / 3, -0.55))
        )
    for T in (min(horizons), max(horizons)):
        found.append(
            Verdict(f"local / server, T = {T}", told(ratio(curves[1][T], curves[0][T])), "-", "a comparison")
        )
    return found, seeds
