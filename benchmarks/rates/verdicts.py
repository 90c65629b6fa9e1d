"""From lanes to verdicts: the best setting at each place, slopes with intervals, and what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from benchmarks.rates.experiments import EXPERIMENTS
from benchmarks.rates.fits import Slope, ratio, ruling, slope
from benchmarks.rates.points import Line, Point


class Place(NamedTuple):
    """The best setting at one place of a curve."""

    point: Point
    T: int
    setting: int
    lines: list[Line]  # by seed
    edge: bool  # whether the setting is the first or last that was tried, of those that differ in one number

    def values(self, quantity: str) -> list[float]:
        return [quantity_of(line, quantity) for line in self.lines]


Curves = dict[str, dict[float, Place]]


class Verdict(NamedTuple):
    what: str
    found: str  # the measured slope, ratio or number
    asked: str  # what the claim says, and what would refute it
    says: str


def quantity_of(line: Line, quantity: str) -> float:
    value = float(getattr(line, quantity))
    return math.inf if quantity == "reached" and value < 0 else value


def best(lines: Sequence[Line], T: int, quantity: str) -> int:
    """The setting with the least mean over seeds."""
    scores: dict[int, list[float]] = {}
    for line in lines:
        if line.T == T:
            scores.setdefault(line.setting, []).append(quantity_of(line, quantity))
    return min(scores, key=lambda setting: sum(scores[setting]) / len(scores[setting]))


def curves_of(
    points: Sequence[Point], chosen: Sequence[Mapping[int, int]], lines: Sequence[Sequence[Line]]
) -> Curves:
    """Each curve by its places, of what was chosen for each point by T."""
    curves: Curves = {}
    horizons: dict[str, set[int]] = {}
    for point in points:
        horizons.setdefault(point.curve, set()).update(point.horizons)

    def stand(curve: str, x: float, point: Point, T: int, setting: int, own: Sequence[Line]) -> None:
        there = [line for line in own if line.setting == setting and line.T == T]
        last = len(point.settings) - 1
        edge = not point.xs and last > 0 and setting in (0, last)
        curves.setdefault(curve, {})[x] = Place(point, T, setting, there, edge)

    for point, choice, own in zip(points, chosen, lines, strict=True):
        for number, x in enumerate(point.xs):
            stand(point.curve, x, point, point.rounds, number, own)
        for T, setting in {} if point.xs else choice.items():
            if point.x is None:
                stand(point.curve, T, point, T, setting, own)
            else:
                several = len(horizons[point.curve]) > 1
                stand(f"{point.curve}, T = {T}" if several else point.curve, point.x, point, T, setting, own)
    return curves


def judged(name: str, curves: Curves) -> list[Verdict]:
    return JUDGES.get(name, by_slopes)(name, curves)


def bound_of(name: str, curve: str) -> tuple[float, float]:
    return next(bound for key, bound in EXPERIMENTS[name].bounds.items() if key in curve)


def told(found: Slope) -> str:
    value, low, high = (f"{one:.2f}" if abs(one) < 1000 else f"{one:.1e}" for one in found)
    return value if found.low == found.high else f"{value} [{low}, {high}]"


def fit(places: Mapping[float, Place], quantity: str) -> Slope:
    return slope({x: place.values(quantity) for x, place in places.items()})


def by_slopes(name: str, curves: Curves) -> list[Verdict]:
    quantity, found = EXPERIMENTS[name].quantity, []
    for curve, places in curves.items():
        bound, limit = bound_of(name, curve)
        if len(places) < 2:
            continue
        own = fit(places, quantity)
        asked = f"{bound:.2f}; refuted above {limit:g}"
        found.append(Verdict(curve, told(own), asked, ruling(own, bound, limit)))
    return found


def t1(name: str, curves: Curves) -> list[Verdict]:
    found = []
    for curve, places in curves.items():
        if curve.startswith("cdma-nc"):
            least = dict(sorted(places.items())[:2])  # the claim is about the leading order
            for what, some in ((curve, places), (f"{curve}, the two smallest", least)):
                own = fit(some, "last")
                says = "tight" if abs(own.value - 2) <= 0.15 else "outside"
                found.append(Verdict(what, told(own), "2; refuted outside 2 ± 0.15", says))
        else:
            most = max(place.lines[0].last for place in places.values())
            says = "consistent with the bound" if most <= 1e-12 else "refuted"
            found.append(Verdict(curve, f"at most {most:.1g}", "0; refuted above 1e-12", says))
    return found


def t2(name: str, curves: Curves) -> list[Verdict]:
    """The slopes, and ADA against ONE at the end."""
    found = by_slopes(name, curves)
    for curve in curves:
        if "cdma-ada" in curve:
            other = curves[curve.replace("cdma-ada", "cdma-one")]
            T = max(curves[curve])
            own = ratio(curves[curve][T].values("Y"), other[T].values("Y"))
            says = "refuted" if own.low > 1 else "consistent with the bound" if own.high < 1 else "undecided"
            found.append(Verdict(f"{curve} / ONE at T = {T:.0f}", told(own), "below 1", says))
    return found


def t2c(name: str, curves: Curves) -> list[Verdict]:
    """Ours against the theorems': the factor by which a cohort of different clients is less noisy."""
    found = []
    for N, place in curves["cdma-one, without replacement"].items():
        S = place.point.quorum.invite
        due = (N - S) / (N - 1)
        own = ratio(place.values("late"), curves["cdma-one, with replacement"][N].values("late"))
        says = "refuted" if own.low > 1.1 * due or own.high < 0.9 * due else "consistent with the bound"
        asked = f"{due:.3f}; refuted beyond 10 %"
        found.append(Verdict(f"without / with replacement, N = {N:.0f}", told(own), asked, says))
    return found


def flat_from(places: Mapping[float, Place]) -> float:
    """The first K at which doubling it no longer saves a quarter of the rounds; infinity if none."""
    Ks = sorted(places)
    for K, more in pairwise(Ks):
        if places[more].values("reached")[0] > 0.75 * places[K].values("reached")[0]:
            return K
    return math.inf


def t6(name: str, curves: Curves) -> list[Verdict]:
    found, flats = [], []
    for curve, places in curves.items():
        K = flat_from(places)
        flats.append(K)
        before = {x: place for x, place in places.items() if x <= K / 2}
        rounds = " ".join(f"{places[x].values('reached')[0]:.0f}" for x in sorted(places))
        at = "beyond the last" if math.isinf(K) else f"{K:.0f}"
        if len(before) < 2:
            found.append(Verdict(curve, f"flat from K = {at}: {rounds}", "-", "too few K before"))
            continue
        own = fit(before, "reached")
        says = "tight" if abs(own.value + 1) <= 0.1 else "refuted"
        told_so = f"{told(own)} up to K = {max(before):.0f}, flat from {at}: {rounds}"
        found.append(Verdict(curve, told_so, "-1 ± 0.1 before, then flat", says))
    falls = flats == sorted(flats, reverse=True) and flats[-1] < flats[0]
    says = "consistent with the bound" if falls else "refuted"
    shown = ", ".join("-" if math.isinf(K) else f"{K:.0f}" for K in flats)
    found.append(Verdict("where it becomes flat", shown, "falls as dissimilarity grows", says))
    return found


def t6b(name: str, curves: Curves) -> list[Verdict]:
    found = []
    for curve, places in curves.items():
        if curve.endswith(", one walks"):
            continue
        for K, place in places.items():
            alone = curves[curve + ", one walks"][K]
            own = ratio(place.values("reached"), alone.values("reached"))
            says = "refuted" if own.low > 1.2 else "consistent with the bound"
            found.append(
                Verdict(f"{curve}, K = {K:.0f}", told(own), "rounds with all / one walking <= 1.2", says)
            )
    return found


def t7(name: str, curves: Curves) -> list[Verdict]:
    found = []
    for curve, places in curves.items():
        Ks, few = sorted(places), "T = 64" in curve or "T = 256" in curve
        values = " ".join(
            f"{sum(place.values('Y')) / len(place.lines):.3g}" for _, place in sorted(places.items())
        )
        if 4 not in places:
            continue
        own = ratio(places[4].values("Y"), places[1].values("Y"))
        shown = f"{told(own)}; Y at K = {', '.join(f'{K:.0f}' for K in Ks)}: {values}"
        if few:
            says = (
                "consistent with the bound"
                if own.high < 1
                else "refuted"
                if "T = 64" in curve
                else "undecided"
            )
            found.append(Verdict(curve, shown, "Y at K = 4 / K = 1 below 1", says))
        else:
            says = "refuted" if own.high < 0.9 else "consistent with the bound"
            found.append(Verdict(curve, shown, "Y at K = 4 / K = 1 not below 0.9", says))
    return found


def t8(name: str, curves: Curves) -> list[Verdict]:
    """The slope, and whether the two terms are level, without which it is no test."""
    found = by_slopes(name, curves)
    for places in curves.values():
        for x, place in sorted(places.items()):
            setting = place.point.settings[place.setting]
            T, noise = place.T, place.point.problem.heterogeneity**2 / place.point.quorum.invite
            alpha = min(1.0, setting.c_alpha / T ** (2 * setting.rho + setting.rho_alpha))
            moved = sum(line.moved for line in place.lines) / len(place.lines)
            drift = x**2 / 4 * moved
            shown = f"(delta x move of z)^2 = {drift:.1e}, alpha^2 s^2/S = {alpha**2 * noise:.1e}"
            level = 0.1 <= drift / (alpha**2 * noise) <= 10
            found.append(
                Verdict(f"dissimilarity {x:g}", shown, "level", "level" if level else "not level: no test")
            )
    return found


def t12(name: str, curves: Curves) -> list[Verdict]:
    found = []
    for rule in ("cdma-nc", "cdma-one"):
        ((T, paper),) = curves[f"{rule}, paper, 16 invited"].items()
        own = ratio(paper.values("Y"), curves[f"{rule}, everybody, 12 invited"][T].values("Y"))
        says = "refuted" if own.low > 1.1 or own.high < 0.9 else "consistent with the bound"
        found.append(Verdict(f"{rule}, T = {T:.0f}", told(own), "1 ± 0.05; refuted beyond 10 %", says))
    return found


def t13(name: str, curves: Curves) -> list[Verdict]:
    found = []
    for curve, places in curves.items():
        if curve.startswith("cdma-ada"):
            continue
        mine = curves["cdma-ada" + curve[curve.index(",") :]]
        for T in (min(places), max(places)):
            for what, label in (("Y", "mean"), ("late", "last quarter")):
                own = ratio(mine[T].values(what), places[T].values(what))
                says = "ADA ahead" if own.high < 1 else "ADA behind" if own.low > 1 else "undecided"
                found.append(Verdict(f"ADA / {curve}, T = {T:.0f}, {label}", told(own), "-", says))
    return found


JUDGES: dict[str, Callable[[str, Curves], list[Verdict]]] = {
    "T1": t1,
    "T2": t2,
    "T2c": t2c,
    "T6": t6,
    "T6b": t6b,
    "T7": t7,
    "T8": t8,
    "T9": t2,
    "T10": t2,
    "T12": t12,
    "T13": t13,
}
