"""The steps that the theorems about CDMA ask for, in the paper's letters.

    1, 2   eta, gamma constant, by T                                              CDMA-NC, CDMA-ONE
    3      gamma_t = min{ 1/(2L), 5.78e-4/(LK), (S L0/(t+1))^(1/3) / (L^(2/3) K s^(2/3)) }      CDMA-ADA
           eta_t = gamma_t/(12 kappa^2),  alpha_t = 2e5 L^2 K^2 gamma_t^2
           s^2 = sigma_1^2/kappa^2 + sigma_2^2
    4      the same with d = max(delta, mu) for L, but in 1/(2L)

L is the smoothness of f, kappa = L/mu, sigma = (sigma_1, sigma_2) how far clients' gradients in x and in y
differ, `gap` the theorem's L_0. L_Phi is (1 + kappa) L here: the paper's (1 + kappa/2) L is too small.

The third bound on gamma_t is the least one only from round S L L0 / (s^2 5.78e-4^3) on, 5 * 10^9 at the
earliest since the theorems ask for S >= s^2/(L L0). No run is so long. Before that steps and alpha, 0.067,
are constant: that is what is returned.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedsaddle.errors import BadInput, check_count, shown

Two = tuple[float, float]  # of x and of y

TIGHT = 5.78e-4  # the constant of Theorems 3 and 4


class Steps(NamedTuple):
    eta: float
    gamma: float


class Constant(NamedTuple):
    eta: float
    gamma: float
    alpha: float


def theorem_1(L: float, kappa: float, sigma: Two, G: Two, S: int, K: int, T: int, gap: float) -> Steps:
    """CDMA-NC. G = (G_1, G_2) is how far gradients of one client's samples differ."""
    _check(L=L, kappa=kappa, gap=gap)
    _check_counts(S=S, K=K, T=T)
    (s_1, s_2), (inner_1, inner_2) = _two("sigma", sigma), _two("G", G)
    smooth = (2 + kappa) * L  # L_Phi + L
    gamma = min(
        _root(20 * gap * S, L * T * K**2 * s_2**2, 2),
        _root(30 * gap, L**2 * (s_2**2 + inner_2**2) * T * K**3, 3),
        1 / (87 * L * K),
    )
    eta = min(
        _root(20 * gap * S, 7 * smooth * T * K**2 * s_1**2, 2),
        _root(3 * gap, L**2 * (s_1**2 + inner_1**2) * T * K**3, 3),
        gamma / (21 * kappa**2),
    )
    return Steps(eta, gamma)


def theorem_2(L: float, kappa: float, sigma: Two, S: int, K: int, T: int, gap: float) -> Steps:
    """CDMA-ONE."""
    _check(L=L, kappa=kappa, gap=gap)
    _check_counts(S=S, K=K, T=T)
    s_1, s_2 = _two("sigma", sigma)
    gamma = min(1 / (87 * L * K), _root(4 * gap * S, 3 * L * T * K**2 * s_2**2, 2))
    eta = min(gamma / (21 * kappa**2), _root(40 * gap * S, 21 * (2 + kappa) * L * T * K**2 * s_1**2, 2))
    return Steps(eta, gamma)


def bound_2(L: float, kappa: float, sigma: Two, S: int, T: int, gap: float) -> float:
    """What Theorem 2 promises of the mean of E |grad Phi(x_t)|^2 over t < T, with those steps."""
    _check(L=L, kappa=kappa, gap=gap)
    (s_1, s_2), L_Phi = _two("sigma", sigma), (1 + kappa) * L
    noise_x = 4 * math.sqrt(40 * gap * (L_Phi + L) * s_1**2 / (21 * S * T))
    noise_y = (20 / 7 + 60 * kappa**2) * math.sqrt(gap * L * s_2**2 / (3 * S * T))
    return noise_x + noise_y + (8 * L_Phi + (1827 * kappa**2 + 72) * L) * 40 * gap / (21 * T)


def theorem_3(L: float, kappa: float, sigma: Two, S: int, K: int, gap: float) -> Constant:
    """CDMA-ADA."""
    return theorem_4(L, kappa, L, sigma, S, K, gap)


def theorem_4(L: float, kappa: float, delta: float, sigma: Two, S: int, K: int, gap: float) -> Constant:
    """CDMA-ADA on clients whose Hessians are at most 2 delta from that of f."""
    _check(L=L, kappa=kappa, gap=gap)
    _check_counts(S=S, K=K)
    if not 0 <= delta <= L:
        raise BadInput(f"delta must be between 0 and L ({L:g}), got {shown(delta)}")
    s_1, s_2 = _two("sigma", sigma)
    d, noise = max(delta, L / kappa), (s_1 / kappa) ** 2 + s_2**2
    if noise > S * d * gap:
        raise BadInput(f"S must be at least {math.ceil(noise / (d * gap))} for this theorem, got {S}")
    gamma = min(1 / (2 * L), TIGHT / (d * K))
    return Constant(gamma / (12 * kappa**2), gamma, 2e5 * (d * K * gamma) ** 2)


def _root(over: float, under: float, degree: int) -> float:
    """Where nothing differs, nothing bounds the steps."""
    return (over / under) ** (1 / degree) if under else math.inf


def _check(**values: float) -> None:
    for name, value in values.items():
        least = 1 if name == "kappa" else 0
        if not (least <= value < math.inf and value > 0):
            bound = "at least 1" if name == "kappa" else "above 0"
            raise BadInput(f"{name} must be {bound} and finite, got {shown(value)}")


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        check_count(name, count)


def _two(name: str, values: Two) -> Two:
    if not (isinstance(values, tuple | list) and len(values) == 2 and all(0 <= v < math.inf for v in values)):
        raise BadInput(f"{name} must be two numbers, of x and of y, at least 0, got {shown(values)}")
    return values
