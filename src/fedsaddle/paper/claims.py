"""What the paper says in Section 5 and its appendix, each with a rule fixed beforehand that decides about it.

A rule names pairs of algorithms. All pairs that the claims about one table name are tested together, over the
seeds, and corrected by Holm's rule. Then a claim is

    confirmed       every pair is told apart, the way the paper says
    contradicted    at least one pair is told apart, the other way
    undecided       anything else

docs/reproduce.md says it with all exceptions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import NamedTuple, Protocol

from fedsaddle.paper.evidence import Evidence, by_memory
from fedsaddle.paper.grids import THIRD
from fedsaddle.paper.trials import MEMORY, TWO_PHASES
from fedsaddle.report.comparing import FEWEST_SEEDS, LEVEL, holm
from fedsaddle.report.paired import BySeed, Compared, Interval, compare
from fedsaddle.report.reading import Series

CONFIRMED, CONTRADICTED, UNDECIDED = "confirmed", "contradicted", "undecided"
Tests = Mapping[tuple[str, str], Compared]


class Judging(NamedTuple):
    """What a rule decides by: one measure of one metric, and the corrected tests of all pairs."""

    found: Evidence
    metric: str
    measure: str
    tests: Tests
    values: BySeed


class Ruling(NamedTuple):
    """What became of a claim."""

    verdict: str
    told: str  # the pair that decides, or why nothing is decided
    effect: float = math.nan  # above 0 is the way the paper says
    interval: Interval = Interval(-math.inf, math.inf)
    seeds: int = 0
    by: str = ""  # mean, median, or what else the effect is
    p: float | None = None  # of that pair, corrected


class Criterion(Protocol):
    """Decides about a claim."""

    def pairs(self, labels: Sequence[str]) -> list[tuple[str, str]]:
        """Who has to be compared with whom."""

    def decide(self, at: Judging) -> Ruling:
        """A ruling, given the corrected tests."""


def _apart(told: Compared) -> int:
    """1, if the first is told to be better; -1, if worse; 0, if nothing can be told."""
    if told.seeds < FEWEST_SEEDS or told.p is None or told.p >= LEVEL or not told.effect:
        return 0
    return 1 if told.effect > 0 else -1


def _ruling(verdict: str, shown: Compared, told: str = "") -> Ruling:
    words = told or f"{shown.one} against {shown.rival}"
    if shown.seeds < FEWEST_SEEDS:
        words += f"; fewer than {FEWEST_SEEDS} seeds decide nothing"
    return Ruling(verdict, words, shown.effect, shown.interval, shown.seeds, shown.by, shown.p)


# --- rules -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ahead:
    """Each of some is better than each of others; and those `first`, if any, than each of them."""

    who: tuple[str, ...]
    of: tuple[str, ...]
    first: tuple[str, ...] = ()

    def pairs(self, labels: Sequence[str]) -> list[tuple[str, str]]:
        asked = (*product(self.first, self.who), *product(self.who, self.of))
        return [pair for pair in asked if set(pair) <= set(labels)]

    def decide(self, at: Judging) -> Ruling:
        told = [at.tests[pair] for pair in self.pairs(list(at.values))]
        lost = [name for name in (*self.first, *self.who, *self.of) if name not in at.values]
        if not told:
            return Ruling(UNDECIDED, f"no seed of {', '.join(lost)} came to its end")
        closest = min(told, key=lambda one: one.effect)
        behind = [one for one in told if _apart(one) < 0]
        if behind:
            return _ruling(CONTRADICTED, min(behind, key=lambda one: one.effect))
        level = [one for one in told if _apart(one) == 0]
        if level or lost:
            many = f" and {len(level) - 1} more" if len(level) > 1 else ""
            gone = f"; no setting of {', '.join(lost)} survived" if lost else ""
            return _ruling(UNDECIDED, closest, f"{closest.one} against {closest.rival}{many}{gone}")
        return _ruling(CONFIRMED, closest)


@dataclass(frozen=True)
class Level:
    """Two are as good: all of the interval is within a margin."""

    one: str
    other: str
    margin: float

    def pairs(self, labels: Sequence[str]) -> list[tuple[str, str]]:
        return [(self.one, self.other)] if {self.one, self.other} <= set(labels) else []

    def decide(self, at: Judging) -> Ruling:
        if not self.pairs(list(at.values)):
            return Ruling(UNDECIDED, "one of the two has no seed that came to its end")
        told = at.tests[self.one, self.other]
        low, high = told.interval
        words = f"{told.one} against {told.rival}, within {self.margin:g}"
        if told.seeds < FEWEST_SEEDS:
            return _ruling(UNDECIDED, told, words)
        if -self.margin <= low and high <= self.margin:
            return _ruling(CONFIRMED, told, words)
        beyond = low > self.margin or high < -self.margin
        return _ruling(CONTRADICTED if beyond else UNDECIDED, told, words)


@dataclass(frozen=True)
class BestAt:
    """The best of a family is one of some: it is told apart from all others."""

    some: tuple[str, ...]
    others: tuple[str, ...]

    def pairs(self, labels: Sequence[str]) -> list[tuple[str, str]]:
        return [pair for pair in product(self.some, self.others) if set(pair) <= set(labels)]

    def decide(self, at: Judging) -> Ruling:
        pairs = self.pairs(list(at.values))
        if not pairs:
            return Ruling(UNDECIDED, "none of them has a seed that came to its end")
        against = [[at.tests[pair] for pair in pairs if pair[1] == rival] for rival in self.others]
        better = [own for own in against if own and all(_apart(one) < 0 for one in own)]
        if better:
            return _ruling(
                CONTRADICTED, min((one for own in better for one in own), key=lambda one: one.effect)
            )
        closest = [
            min((at.tests[pair] for pair in pairs if pair[0] == name), key=lambda one: one.effect)
            for name in dict.fromkeys(pair[0] for pair in pairs)
        ]
        first = max(closest, key=lambda one: one.effect)  # every pair was corrected for, so one may be picked
        ahead = all(_apart(at.tests[pair]) > 0 for pair in pairs if pair[0] == first.one)
        whole = {*self.some, *self.others} <= at.values.keys()
        return _ruling(CONFIRMED if ahead and whole else UNDECIDED, first)


@dataclass(frozen=True)
class SameFloats:
    """All algorithms send the same, up to a share."""

    most: float

    def pairs(self, labels: Sequence[str]) -> list[tuple[str, str]]:
        return []

    def decide(self, at: Judging) -> Ruling:
        series = at.found.series
        floats = {label: _per_round(one) for label, one in series.items() if one.alive}
        if len(floats) < 2:
            return Ruling(UNDECIDED, "fewer than two algorithms came to their end")
        high, low = max(floats, key=lambda key: floats[key]), min(floats, key=lambda key: floats[key])
        ratio = floats[high] / floats[low]
        verdict = CONFIRMED if ratio <= 1 + self.most else CONTRADICTED
        seeds = min(len(one.alive) for one in series.values() if one.alive)
        return Ruling(
            verdict, f"{high} over {low}, per round", ratio, Interval(ratio, ratio), seeds, "ratio of floats"
        )


def _per_round(series: Series) -> float:
    return fmean(lane.points[-1].floats_up / lane.points[-1].round for lane in series.alive)


@dataclass(frozen=True)
class ShorterMemory:
    """CDMA-ADA does better with a rho below 1/3 than with 1/3: their best settings, with fresh seeds."""

    def pairs(self, labels: Sequence[str]) -> list[tuple[str, str]]:
        return []

    def decide(self, at: Judging) -> Ruling:
        found = by_memory(at.found)
        if found is None:
            return Ruling(UNDECIDED, "not run yet")
        rho = {label: float(one.setting["rho"]) for label, one in found.series.items() if one.alive}
        theory = [label for label, value in rho.items() if math.isclose(value, THIRD, rel_tol=1e-3)]
        shorter = [label for label in rho if label not in theory]
        if not theory or not shorter:
            return Ruling(UNDECIDED, "not both kinds of rho were among the settings that survived")
        tests = corrected([(one, theory[0]) for one in shorter], found, at.metric, at.measure)
        first = max(tests.values(), key=lambda one: (_apart(one), one.effect))
        # It is said of some cases, so a case that is otherwise decides nothing.
        words = f"the best setting with rho {rho[first.one]:g} against the best with 1/3"
        return _ruling(CONFIRMED if _apart(first) > 0 else UNDECIDED, first, words)


@dataclass(frozen=True)
class Unmeasured:
    """What no number of the paper's experiments decides."""

    why: str

    def pairs(self, labels: Sequence[str]) -> list[tuple[str, str]]:
        return []

    def decide(self, at: Judging) -> Ruling:
        return Ruling(UNDECIDED, self.why)


# --- claims ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, in our words."""

    says: str
    where: str
    contests: tuple[str, ...]
    rule: Criterion

    @property
    def on_cohorts(self) -> bool:
        """Whether it can depend on a second cohort: not, if none of its algorithms has one."""
        if isinstance(self.rule, ShorterMemory):
            return False  # its runs are of the first rule alone
        named = {name for pair in self.rule.pairs([_ADA, _ONE, *OTHERS]) for name in pair}
        return bool(named & set(TWO_PHASES)) if named else not isinstance(self.rule, Unmeasured)

    @property
    def on_settings(self) -> bool:
        """Whether published settings may do otherwise than tuned ones."""
        return not isinstance(self.rule, Unmeasured | ShorterMemory)


OTHERS = (
    "cdma-nc",
    "parallel-sgda",
    "codasca",
    "coda-plus",
    "catalyst-scaffold-s",
    "local-sgda-plus",
    "extra-step",
)
LOCAL_STEPS = (1, 5, 10, 15, 20, 25)
_ADA, _ONE, _NC, _SGDA = "cdma-ada", "cdma-one", "cdma-nc", "parallel-sgda"
_AUC, _ROBUST = ("auc-mnist", "auc-cifar10"), ("robust-mnist", "robust-fashion")
_GAN = ("gan-mnist", "gan-fashion", "gan-celeba")
_APPENDIX = "Appendix, GAN training"


def _ks(family: str, steps: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{family}-k{K}" for K in steps)


def _many(family: str, where: str, contest: str) -> Claim:
    """Several local steps are better than one."""
    rule = Ahead(_ks(family, LOCAL_STEPS[1:]), _ks(family, LOCAL_STEPS[:1]))
    return Claim(f"{family} with several local steps is better than with one", where, (contest,), rule)


CLAIMS = (
    Claim("cdma-ada is ahead of all seven rivals", "Section 5.1", _AUC, Ahead((_ADA,), OTHERS)),
    Claim("cdma-one is ahead of all seven rivals", "Section 5.1", _AUC, Ahead((_ONE,), OTHERS)),
    Claim(
        "cdma-ada is the best of the four with guarantees",
        "Section 5.1",
        _AUC,
        Ahead((_ADA,), (_ONE, _NC, _SGDA)),
    ),
    Claim("cdma-one is second of these four", "Section 5.1", _AUC, Ahead((_ONE,), (_NC, _SGDA), (_ADA,))),
    Claim("cdma-nc and parallel-sgda are comparable", "Section 5.1", _AUC, Level(_NC, _SGDA, 0.01)),
    Claim(
        "the recursive momentum helps: cdma-ada over cdma-one", "Section 5.1", _AUC, Ahead((_ADA,), (_ONE,))
    ),
    Claim(
        "going on with enough responses (SIWER) is efficient",
        "Section 5.1",
        _AUC[:1],
        Unmeasured("no experiment of the paper has SIWER switched off; see the panel of dropout"),
    ),
    Claim(
        "all algorithms send the same amount a round", "Section 5", (*_AUC, *_ROBUST, *_GAN), SameFloats(0.05)
    ),
    Claim("cdma-ada is the best", "Section 5.2", _ROBUST, Ahead((_ADA,), (_ONE, *OTHERS))),
    Claim(
        "cdma-one is ahead of cdma-nc and parallel-sgda", "Section 5.2", _ROBUST, Ahead((_ONE,), (_NC, _SGDA))
    ),
    Claim("cdma-ada is the best", "Section 5.3, Table 2", _GAN, Ahead((_ADA,), (_ONE, *OTHERS))),
    Claim("cdma-one is second best", "Section 5.3, Table 2", _GAN, Ahead((_ONE,), OTHERS, (_ADA,))),
    _many(_ONE, "Section 5.3, Figure 3", "gan-mnist-k"),
    _many(_ADA, "Section 5.3, Figure 3", "gan-mnist-k"),
    Claim(
        "cdma-one is best with K of 15, 20 or 25",
        "Section 5.3, Figure 3",
        ("gan-mnist-k",),
        BestAt(_ks(_ONE, (15, 20, 25)), _ks(_ONE, (1, 5, 10))),
    ),
    Claim(
        "cdma-ada is best with K = 20",
        "Section 5.3, Figure 3",
        ("gan-mnist-k",),
        BestAt(_ks(_ADA, (20,)), _ks(_ADA, (1, 5, 10, 15, 25))),
    ),
    _many(_NC, f"{_APPENDIX}, Figure 5", "gan-mnist-k"),
    *(_many(family, f"{_APPENDIX}, Figure 5", "gan-fashion-k") for family in (_NC, _ONE, _ADA)),
    Claim(
        "cdma-one and cdma-ada make pictures of high quality",
        f"{_APPENDIX}, Figures 6 to 8",
        _GAN,
        Unmeasured("no number says when a picture is good: look at the figures, and at the scores"),
    ),
    Claim(
        "a rho of 0 or 1/5 does better than the theory's 1/3 in some cases",
        "Appendix, hyperparameters",
        MEMORY,
        ShorterMemory(),
    ),
    Claim(
        "on CelebA a large K makes training unstable for some algorithms",
        "Appendix, settings",
        ("gan-celeba",),
        Unmeasured("the paper names neither the algorithms nor the K; Table 6 shows what tuning chose"),
    ),
)


def corrected(
    pairs: Sequence[tuple[str, str]], found: Evidence, metric: str, measure: str
) -> dict[tuple[str, str], Compared]:
    """All pairs that are asked about, tested and corrected together."""
    values, meant, dead = found.values(metric, measure), found.metric(metric), found.dead(metric)
    tests = {pair: compare(*pair, values, meant, dead) for pair in dict.fromkeys(pairs)}
    able = [pair for pair in tests if tests[pair].p is not None]
    for pair, p in zip(able, holm([tests[pair].p or 0.0 for pair in able]), strict=True):
        tests[pair] = tests[pair]._replace(p=p)
    return tests


def rule_on(claims: Sequence[Claim], found: Evidence, metric: str, measure: str) -> list[Ruling]:
    """What becomes of each of some claims about one table."""
    values = {label: own for label, own in found.values(metric, measure).items() if own}
    pairs = [pair for claim in claims for pair in claim.rule.pairs(list(values))]
    at = Judging(found, metric, measure, corrected(pairs, found, metric, measure), values)
    return [claim.rule.decide(at) for claim in claims]
