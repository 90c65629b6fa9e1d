"""T1 to T14: what is claimed, where it is measured, and what would refute it.

h is the length of a whole round, gamma K, at L = 1; eta is gamma / kappa everywhere. All runs of an
experiment start at the same point; seeds decide who is invited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import fedsaddle as fs
from benchmarks.rates.points import Point

H = (4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
C_H, C_ALPHA = (16.0, 8.0, 4.0, 2.0), (4.0, 2.0, 1.0, 0.5, 0.25)  # of CDMA-ADA: steps, alpha
TUNING, SEEDS = tuple(range(100, 108)), tuple(range(16))
ONLY = (0,)  # the seed of what has no randomness


@dataclass(frozen=True)
class Size:
    """How much of an experiment is run."""

    most: int = 2**13  # the longest horizon
    tuning: tuple[int, ...] = TUNING
    seeds: tuple[int, ...] = SEEDS
    little: bool = False  # for tests: fewer clients, fewer numbers, fewer places

    def horizons(self, least: int = 2**7) -> tuple[int, ...]:
        return tuple(2**n for n in range(4, 31) if least <= 2**n <= self.most)


class Experiment(NamedTuple):
    claim: str
    points: Callable[[Size], list[Point]]
    axis: str
    quantity: str  # the field of a Line that is looked at
    noisy: bool = True  # whether settings are chosen on other seeds than are reported
    # By curve (or the beginning of its name): the exponent of the bound, and above which it is refuted.
    bounds: Mapping[str, tuple[float, float]] = {}


def quadratic(**dials: Any) -> fs.Quadratic:
    """The instance that experiments share: noise of sampling governs it from round 128 on."""
    usual: dict[str, Any] = {
        "clients": 1000,
        "kappa": 5.0,
        "heterogeneity": 8.0,
        "dissimilarity": 0.1,
        "noise": 0.0,
        "samples": 1,
        "start_seed": 0,
    }
    return fs.Quadratic(**usual | dials)


def everyone(size: Size, **dials: Any) -> tuple[fs.Quadratic, fs.Quorum]:
    """An instance without randomness: all clients answer, with exact gradients."""
    clients = 6 if size.little else 10
    small = {"dim_x": 1, "dim_y": 2} if size.little else {}  # so that it is soon where it goes
    return quadratic(clients=clients, **small, **dials), fs.Quorum(invite=clients)


def nc(h: float, K: int = 4, kappa: float = 5.0) -> fs.CDMANC:
    return fs.CDMANC(h / K / kappa, h / K, K)


def one(h: float, K: int = 4, kappa: float = 5.0) -> fs.CDMAONE:
    return fs.CDMAONE(h / K / kappa, h / K, K)


def ada(c: float, c_alpha: float, K: int = 4, kappa: float = 5.0, rho: float = 1 / 3) -> fs.CDMAADA:
    return fs.CDMAADA(c / K / kappa, c / K, c_alpha, rho, K)


def grids(K: int = 4, kappa: float = 5.0) -> dict[str, tuple[Any, ...]]:
    """The settings of the three algorithms."""
    return {
        "cdma-nc": tuple(nc(h, K, kappa) for h in H),
        "cdma-one": tuple(one(h, K, kappa) for h in H),
        "cdma-ada": tuple(ada(c, c_alpha, K, kappa) for c in C_H for c_alpha in C_ALPHA),
    }


# --- without randomness -----------------------------------------------------------------------------------


def t1(size: Size) -> list[Point]:
    """Where NC and ONE end, by the length of a round at K = 8, and by K at one step size.

    The axis of K is K - 1: the first of K steps is made where all clients are, and does not drift.
    """
    kappa, gamma = (2.0, 0.03) if size.little else (5.0, 0.05)
    problem, quorum = everyone(size, dissimilarity=0.3, heterogeneity=1.0, kappa=kappa)
    lengths = ((0.05, 0.1),) if size.little else ((0.05, 0.1), (0.25, 0.5), (1.0, 2.0, 4.0))
    steps = (2, 8) if size.little else (2, 4, 8, 16, 32)
    found = []
    for rule, name in ((nc, "cdma-nc"), (one, "cdma-one")):
        curve, other = f"{name}, h at K = 8", f"{name}, K - 1 at gamma = {gamma}"
        places = [(curve, hs, tuple(rule(h, 8, kappa) for h in hs), hs) for hs in lengths]
        if size.little and rule is one:
            places = [(curve, (0.2,), (one(0.2, 8, kappa),), (0.2,))]
        else:
            places += [(other, (gamma * K,), (rule(gamma * K, K, kappa),), (K - 1.0,)) for K in steps]
        found += [
            Point(curve, problem, settings, round(1500 / min(hs)), xs=xs, quorum=quorum, settle=True)
            for curve, hs, settings, xs in places
        ]
    return found


def t3(size: Size) -> list[Point]:
    """The best of T-dependent steps for NC, h = c T^(-1/3), and of constant ones for ONE, at each T."""
    problem, quorum = everyone(size)
    lengths = (16.0, 8.0, *H[:6])
    some = [2**5, 2**8] if size.little else size.horizons()
    found = []
    for T in some:
        scale = (some[0] / T) ** (1 / 3)
        found.append(Point("cdma-nc", problem, tuple(nc(h * scale) for h in lengths), T, quorum=quorum))
    constant = tuple(one(h) for h in lengths)
    found.append(Point("cdma-one", problem, constant, some[-1], read=tuple(some), quorum=quorum))
    return found


def t5(size: Size) -> list[Point]:
    """K = 1, where all clients are as one: which step sizes take the fewest rounds?"""
    settings = tuple(
        fs.CDMAONE(2 ** (-n / 2) * 8 * part, 2 ** (-n / 2) * 8, K=1)
        for n in range(10)
        for part in (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
    )
    return [
        Point(
            "cdma-one",
            quadratic(clients=2, kappa=float(kappa)),
            settings,
            20_000,
            kappa,
            quorum=fs.Quorum(invite=2),
            goal=1e-6,
            relative=True,
        )
        for kappa in (4, 8, 16, 32, 64, 128)
    ]


def t6(size: Size, alone: bool = False) -> list[Point]:
    """Rounds to |grad Phi|^2 <= 1e-12 by K, at five dissimilarities; at kappa 10, with ONE's exact gradients.

    So small a goal, and x slower than elsewhere, that there are rounds to count at K = 64.
    If `alone`, one client walks a round, and all are asked for gradients (T6b).
    """
    unlike = (0.1, 1.0) if size.little else (0.0, 0.02, 0.1, 0.4, 1.0)
    Ks = (1, 2, 4, 8) if size.little else (1, 2, 4, 8, 16, 32, 64)
    gammas = [8 * 2 ** (-n / 2) for n in range(10 if size.little else 16)]
    found = []
    for dissimilarity in unlike:
        problem, quorum = everyone(size, kappa=10.0, heterogeneity=1.0, dissimilarity=dissimilarity)
        if alone:
            quorum = fs.Quorum(invite=1, collect=quorum.invite)
        for K in Ks:
            settings = tuple(fs.CDMAONE(gamma / 40, gamma, K) for gamma in gammas)
            curve = f"dissimilarity {dissimilarity:g}{', one walks' if alone else ''}"
            found.append(Point(curve, problem, settings, 8000, K, quorum=quorum, goal=1e-12))
    return found


def t6b(size: Size) -> list[Point]:
    """T6 beside the same with one client that walks."""
    Ks = (4, 16)
    return [
        point
        for alone in (False, True)
        for point in t6(size, alone)
        if point.x in Ks and point.problem.dissimilarity > 0
    ]


# --- with sampling ----------------------------------------------------------------------------------------


def over_T(size: Size, problem: Any, kappa: float = 5.0, prefix: str = "") -> list[Point]:
    read = size.horizons()
    return [
        Point(prefix + name, problem, settings, read[-1], read=read)
        for name, settings in grids(kappa=kappa).items()
    ]


def t2(size: Size) -> list[Point]:
    return over_T(size, quadratic())


def t2c(size: Size) -> list[Point]:
    """The theorems' cohorts, drawn with replacement, beside ours, of a few clients and of many."""
    T = min(size.most, 1024)
    return [
        Point(
            f"cdma-one, {name} replacement",
            quadratic(clients=clients),
            (one(0.25),),
            T,
            clients,
            quorum=fs.Quorum(invite=8, replacement=again),
        )
        for clients in ((16, 64) if size.little else (16, 64, 1000))
        for name, again in (("with", True), ("without", False))
    ]


def t4(size: Size) -> list[Point]:
    problem, T = quadratic(clients=10_000), min(size.most, 1024)  # noise governs from T = 16 S on
    return [
        Point(name, problem, settings, T, S, quorum=fs.Quorum(invite=S))
        for S in (2, 4, 8, 16, 32, 64)
        if 16 * S <= T
        for name, settings in grids().items()
    ]


def t5b(size: Size) -> list[Point]:
    T = size.most
    return [
        Point(name, quadratic(kappa=float(kappa)), settings, T, kappa)
        for kappa in (4, 8, 16, 32)
        for name, settings in grids(kappa=kappa).items()
    ]


def t7(size: Size) -> list[Point]:
    """Few rounds at some K; and, if there may be so many, 4096 or more at two, where K no longer matters."""
    found = []
    for dissimilarity in (0.02, 0.4) if size.most > 1024 else (0.4,):
        problem = quadratic(heterogeneity=1.0, dissimilarity=dissimilarity)
        for K in (1, 2, 4, 8, 16) if size.most > 1024 else (1, 2, 4, 8):
            lengths = [h for h in (16.0, 8.0, *H[:5]) if h <= 4 * K]
            settings = {
                "cdma-one": tuple(one(h, K) for h in lengths),
                "cdma-ada": tuple(ada(2 * h, c, K) for h in lengths for c in (4.0, 1.0, 0.25)),
            }
            for name, own in settings.items():
                curve, quorum = f"{name}, dissimilarity {dissimilarity:g}", fs.Quorum(invite=16)
                found.append(Point(curve, problem, own, 256, K, read=(64, 256), quorum=quorum))
                if K in (1, 4) and dissimilarity == 0.4 and size.most >= 4096:
                    found.append(Point(curve, problem, own, size.most, K, quorum=quorum))
    return found


def t8(size: Size) -> list[Point]:
    """Constant steps, alpha constant or c/(t+1), and a first correction that everybody was asked for."""
    settings = tuple(
        fs.CDMAADA(h / 20, h / 4, c, 0.0, 4, rho_alpha=falls)
        for h in (1.0, 0.5, 0.25, 0.125, 0.0625)
        for falls, values in ((0.0, (0.1, 0.03, 0.01, 0.003, 0.001)), (1.0, (1.0, 4.0)))
        for c in values
    )
    return [
        Point(
            "cdma-ada",
            quadratic(heterogeneity=1.0, dissimilarity=dissimilarity),
            settings,
            size.most,
            dissimilarity,
            first=1000,
        )
        for dissimilarity in (0.01, 0.03, 0.1, 0.3, 1.0)
    ]


def t9(size: Size) -> list[Point]:
    """PL in y only; clients of which none need be concave; least squares where no client is."""
    rows = fs.RobustLeastSquares(clients=200, samples=1, start_seed=0)
    least_squares = [
        Point(f"least squares: {point.curve}", rows, point.settings, point.rounds, read=point.read)
        for point in over_T(size, rows)
    ]
    return [
        *over_T(size, quadratic(flat=3), prefix="flat: "),
        *over_T(size, quadratic(dissimilarity=1.0), prefix="dissimilarity 1: "),
        *least_squares,
    ]


def t10(size: Size) -> list[Point]:
    return over_T(size, quadratic(nonconvex=0.5))


def t12(size: Size) -> list[Point]:
    """Of 16 invited the paper's fleet answers with 9 to 16, whose harmonic mean is 12.07."""
    problem, T, found = quadratic(), min(size.most, 1024), []
    fleets = (("paper, 16 invited", fs.Paper(), 16), ("everybody, 12 invited", fs.Everybody(), 12))
    for name, rule in (("cdma-nc", nc), ("cdma-one", one)):
        for label, fleet, S in fleets:
            quorum = fs.Quorum(invite=S)
            found.append(
                Point(f"{name}, {label}", problem, (rule(0.25),), T, read=(T,), quorum=quorum, fleet=fleet)
            )
    return found


def t13(size: Size) -> list[Point]:
    """The same floats up a round: 8 clients that send two vectors, or 16 that send one."""
    found = []
    for clients in (200, 20_000):
        problem, read = quadratic(clients=clients), size.horizons()
        own = {
            "cdma-ada": (grids()["cdma-ada"], 8),
            "cdma-nc": (grids()["cdma-nc"], 16),
            "parallel-sgda": (tuple(fs.ParallelSGDA(h / 5, h) for h in H), 16),
            "codasca": (tuple(fs.CODASCA(h / 4 / 5**0.5, decay=1.0, K=4) for h in H), 8),
        }
        for name, (settings, S) in own.items():
            quorum = fs.Quorum(invite=S)
            found.append(
                Point(f"{name}, N = {clients}", problem, settings, read[-1], read=read, quorum=quorum)
            )
    return found


RATES = {"cdma-nc": (-1 / 2, -0.4), "cdma-one": (-1 / 2, -0.4), "cdma-ada": (-2 / 3, -0.55)}

EXPERIMENTS: dict[str, Experiment] = {
    "T1": Experiment("drift: NC has a bias of order h^2 and K^2, ONE has none", t1, "h or K", "last", False),
    "T2": Experiment("rate in T: -1/2 (NC, ONE), -2/3 (ADA)", t2, "T", "Y", bounds=RATES),
    "T2b": Experiment("Theorem 3's own mean: over local iterates", lambda size: [], "T", "Y"),
    "T2c": Experiment("cohorts without replacement: (N - S)/(N - 1) of the noise", t2c, "N", "late"),
    "T3": Experiment(
        "without sampling noise: -2/3 (NC), -1 (ONE)",
        t3,
        "T",
        "Y",
        False,
        {"cdma-nc": (-2 / 3, -0.6), "cdma-one": (-1.0, -0.9)},
    ),
    "T4": Experiment(
        "scaling in S: -1/2 (NC, ONE), -1/3 (ADA)",
        t4,
        "S",
        "Y",
        bounds={"cdma-nc": (-1 / 2, -0.4), "cdma-one": (-1 / 2, -0.4), "cdma-ada": (-1 / 3, -0.25)},
    ),
    "T5": Experiment(
        "rounds grow with kappa^2 at most", t5, "kappa", "reached", False, {"cdma-one": (2.0, 2.1)}
    ),
    "T5b": Experiment(
        "Y grows with kappa^2 at most", t5b, "kappa", "Y", bounds=dict.fromkeys(RATES, (2.0, 2.2))
    ),
    "T6": Experiment("K helps until about L/delta", t6, "K", "reached", False),
    "T6b": Experiment("one walking client does as well as many", t6b, "K", "reached"),
    "T7": Experiment("K in the noise term: gains while rounds are few", t7, "K", "Y"),
    "T8": Experiment("delta in the noise term", t8, "dissimilarity", "Y", bounds={"cdma-ada": (2 / 3, 0.8)}),
    "T9": Experiment("PL suffices, and only the mean need be concave", t9, "T", "Y", bounds=RATES),
    "T10": Experiment("the same where Phi is not convex", t10, "T", "Y", bounds=RATES),
    "T12": Experiment("S enters by mean(1/S_t)", t12, "T", "Y"),
    "T13": Experiment("ADA ahead at equal uplink", t13, "T", "Y"),
    "T14": Experiment("the literal bound of Theorem 2", lambda size: [], "T", "Y"),
}
