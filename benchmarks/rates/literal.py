"""T14: the step sizes of Theorems 2 and 3 as they are printed, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

import fedsaddle as fs
from benchmarks.rates.experiments import Size, one, quadratic
from benchmarks.rates.points import Part, Point, compute, read
from benchmarks.rates.verdicts import Verdict
from fedsaddle.algorithms import theorems
from fedsaddle.core import Pair
from fedsaddle.engine.visits import field_of
from fedsaddle.problem import Batch

S, K = 8, 4


class Known(NamedTuple):
    """What the theorems ask to be known of an instance."""

    L: float  # of the least smooth client
    sigma: tuple[float, float]  # how far clients' gradients differ at the start
    phi_gap: float  # Phi(x_0) - min Phi
    dual_gap: float  # Phi(x_0) - f(z_0)


def known(problem: fs.Quadratic) -> Known:
    start, data = problem.init(0), problem.federation
    weight, none = torch.ones(1, dtype=torch.float64), torch.zeros((), dtype=torch.int64)

    def slope(linear: torch.Tensor, own: dict[str, torch.Tensor]) -> Pair:
        return field_of(problem)(start, Batch({"linear": linear[None]}, own, weight, none))

    grads = torch.func.vmap(slope)(data.rows["linear"], data.own)
    sigma = tuple(float((one - one.mean(0)).square().sum(1).mean().sqrt()) for one in grads)
    A, B, C = (data.own[name] for name in "ABC")
    hessians = torch.cat([torch.cat([A, B], 2), torch.cat([B.mT, -C], 2)], 1)
    best = problem.solution
    assert best is not None
    phi = problem.phi(start.x)
    return Known(
        float(torch.linalg.matrix_norm(hessians, ord=2).max()),
        (sigma[0], sigma[1]),
        float(phi - problem.phi(best.x)),
        float(phi - problem.value(start)),
    )


class Seed(NamedTuple):
    """One seed up to round T."""

    curve: str
    x: int  # T
    seed: int
    Y: float
    last: float  # at x_T
    setting: Any


def verdicts(size: Size, folder: Path) -> tuple[list[Verdict], list[Seed]]:
    problem = quadratic()
    about, T = known(problem), min(10_000, size.most)
    kappa = about.L * problem.kappa  # L/mu, with the clients' L
    gap_2, gap_3 = about.phi_gap + about.dual_gap / 20, about.phi_gap + about.dual_gap / 7
    settings = {
        "Theorem 2": fs.CDMAONE.theorem_2(about.L, kappa, about.sigma, S=S, K=K, T=T, gap=gap_2),
        "Theorem 3": fs.CDMAADA.theorem_3(about.L, kappa, about.sigma, S=S, K=K, gap=gap_3),
        "h = 0.25": one(0.25, K),
    }
    bound = theorems.bound_2(about.L, kappa, about.sigma, S, T, gap_2)
    found: list[Verdict] = []
    seeds: list[Seed] = []
    for name, setting in settings.items():
        point = Point(name, problem, (setting,), T, quorum=fs.Quorum(invite=S))
        part = Part("T14", point, (0,), size.seeds[:8])
        if read(part, folder) is None:
            compute(part, str(folder))
        kept = read(part, folder)
        assert kept is not None
        seeds += [Seed(name, T, line.seed, line.Y, line.last, setting) for line in kept.lines]
        Y = sum(line.Y for line in kept.lines) / len(kept.lines)
        last = sum(line.last for line in kept.lines) / len(kept.lines)
        first = float(problem.grad_phi(problem.init(0).x).square().sum())
        shown = f"Y = {Y:.4g}, at T {last:.4g} (at the start {first:.4g})"
        if name == "Theorem 2":
            says = "consistent with the bound" if bound >= Y else "above the bound"
            found.append(
                Verdict(f"{name}, T = {T}", shown, f"at most {bound:.3g}, {bound / Y:.0f} times it", says)
            )
        else:
            found.append(Verdict(f"{name}, T = {T}", shown, "-", "-"))
    return found, seeds
