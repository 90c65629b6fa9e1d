"""Who is ahead of whom, and whether that can be said. docs/report.md says it in words.

Final values are compared pair by pair over the seeds that both have: a two-sided paired t-test for every
pair, all of them corrected together by Holm's rule. So whoever is picked out of the table afterwards, such
as the best, was already accounted for. Values over decades are compared by their logarithms: one seed's
0.01 would hide what 0.0001 and 0.00001 have to say. Where a seed has collapsed an outcome has two modes, and
no test of means is made: what there is to say is how many died, and how the others did (the median).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean, median
from typing import NamedTuple

from scipy.special import stdtr

from fedsaddle.metric import Metric
from fedsaddle.report.reading import Series
from fedsaddle.report.statistics import Frame, Share, area, deviation, share, short_count, spread

LEVEL = 0.05  # a corrected p below this tells two algorithms apart
FEWEST_SEEDS = 3  # that a test is made of
FEW_SEEDS = 5  # with fewer, all rests on differences that are normal, and nothing shows that they are
ALIKE = 1.1  # times as many floats are still the same budget
SETTLED = 5  # evaluations whose mean says where a seed has settled


class Comparison(NamedTuple):
    """An algorithm against another, over the seeds that both have finished with."""

    rival: str
    seeds: int
    difference: float  # the mean of this one's final values minus the rival's
    p: float | None  # of a two-sided paired t-test; None where it says nothing
    corrected: float | None  # the same by Holm's rule, among all pairs of the table
    unequal: str  # in what the two are not alike, if in something

    @property
    def apart(self) -> bool:
        """Whether the two can be told apart, for the same budget."""
        return self.corrected is not None and self.corrected < LEVEL and not self.unequal

    @property
    def alike(self) -> bool:
        """Whether the two have the same values, seed by seed: there is nothing to test, or to tell apart."""
        return self.p is None and self.difference == 0 and self.seeds >= FEWEST_SEEDS

    def turned(self, rival: str) -> Comparison:
        """As the other sees it."""
        return self._replace(rival=rival, difference=-self.difference)


@dataclass(frozen=True)
class Finding:
    """One algorithm over its seeds, by one metric. Values are by seed, of those that are alive."""

    label: str
    seeds: int  # that were asked for
    reached: int  # rounds
    rounds: int  # that were asked for
    final: dict[int, float]
    best: dict[int, float]  # none, where no value is better than another
    area: dict[int, float]
    floats_up: dict[int, float]
    late: dict[int, float]
    seconds: dict[int, float]  # simulated
    abandoned: int  # rounds
    diverged: int  # seeds
    collapsed: int | None  # seeds, where the metric has a chance level
    last: dict[int, float] = field(default_factory=dict)  # the mean of the last evaluations, LAST of them
    against: Comparison | None = None  # the best of the others
    # best: ahead of all others; level: not told apart from the first; behind it; untested, for want of seeds
    # or of equal budgets; nothing, where there is nobody to compare with.
    standing: str = ""

    @property
    def median(self) -> float | None:
        """Of the final values."""
        return median(self.final.values()) if self.final else None

    @property
    def two_modes(self) -> bool:
        """Whether some seeds collapsed and others did not: a mean of these is nobody's outcome."""
        return 0 < (self.collapsed or 0) < len(self.final)

    @property
    def dead(self) -> Share:
        """The seeds that diverged or collapsed."""
        return share(self.diverged + (self.collapsed or 0), max(self.seeds, 1))


def common_budget(series: Sequence[Series]) -> int:
    """The most floats that every seed still alive has sent up, whatever its algorithm."""
    return min((lane.points[-1].floats_up for one in series for lane in one.alive), default=0)


def findings(series: Sequence[Series], metric: str) -> list[Finding]:
    """The table for one metric: the best final mean first, then who lost seeds, then who has none left.

    A mean over fewer seeds flatters. By a metric that ranks nobody, all stay in their order.
    """
    series = [one for one in series if metric in one.metrics]
    if not series:
        return []
    equal, meant = common_budget(series), series[0].metrics[metric]
    found = [_finding(one, metric, equal) for one in series]
    if not meant.ranks:
        return found

    def place(one: Finding) -> tuple[bool, bool, float]:
        return (not one.final, one.diverged > 0, meant.cost(fmean(one.final.values())) if one.final else 0.0)

    order = sorted(found, key=place)
    pairs = _pairs([one for one in order if one.final], {one.label: one.terms for one in series})

    def against(one: Finding, other: Finding) -> Comparison | None:
        if (one.label, other.label) in pairs:
            return pairs[one.label, other.label]
        turned = pairs.get((other.label, one.label))
        return turned and turned.turned(other.label)

    first = order[0]
    rivals = {one.label: order[1] if one is first else first for one in order} if len(order) > 1 else {}
    compared = [replace(one, against=against(one, rivals[one.label]) if rivals else None) for one in order]
    return _with_standings(compared, meant)


def _with_standings(order: Sequence[Finding], metric: Metric) -> list[Finding]:
    """What can be said of each, given how it compares with the first."""
    rest = []
    for one in order[1:]:
        told = one.against
        standing = ""
        if told is not None:
            ahead = metric.cost(told.difference) > 0  # what costs more is behind
            standing = "behind" if told.apart and ahead else "level"
            if (told.corrected is None and not told.alike) or told.unequal:
                standing = "untested"
        rest.append(replace(one, standing=standing))
    standings = {one.standing for one in rest if one.standing}
    first = "best" if standings == {"behind"} else "level" if "level" in standings else "untested"
    return [replace(order[0], standing=first if standings else ""), *rest]


def _finding(series: Series, metric: str, equal: int) -> Finding:
    reached, meant = series.reached, series.metrics[metric]
    curves = {lane.seed: [p for p in lane.points if p.round <= reached] for lane in series.alive}
    final = {seed: points[-1].metrics[metric] for seed, points in curves.items()}
    best = {seed: min((p.metrics[metric] for p in points), key=meant.cost) for seed, points in curves.items()}
    return Finding(
        series.label,
        series.seeds,
        reached,
        series.rounds,
        final,
        best=best if meant.ranks else {},
        area={lane.seed: area(lane.points, metric, equal) for lane in series.alive} if equal else {},
        floats_up={seed: float(points[-1].floats_up) for seed, points in curves.items()},
        late={lane.seed: float(lane.late) for lane in series.alive},
        seconds={seed: points[-1].time_simulated for seed, points in curves.items()},
        abandoned=series.abandoned,
        diverged=sum(bool(lane.diverged) for lane in series.lanes),
        collapsed=None if meant.chance is None else sum(map(meant.collapsed, final.values())),
        last={seed: fmean(p.metrics[metric] for p in points[-SETTLED:]) for seed, points in curves.items()},
    )


# --- tests -----------------------------------------------------------------------------------------------


def _pairs(found: Sequence[Finding], terms: dict[str, dict[str, str]]) -> dict[tuple[str, str], Comparison]:
    """Every pair of algorithms, tested and corrected together."""
    pairs: dict[tuple[str, str], Comparison] = {}
    ratios = by_ratios(found)
    for one, other in combinations(found, 2):
        common = sorted(one.final.keys() & other.final.keys())
        if not common:
            continue
        values = [(one.final[seed], other.final[seed]) for seed in common]
        tested = [(math.log(a), math.log(b)) for a, b in values] if ratios else values
        tells = len(values) >= FEWEST_SEEDS and not (one.two_modes or other.two_modes)
        p = paired_t_test(tested) if tells else None
        unequal = _unequal(one, other, terms[one.label], terms[other.label])
        difference, size = fmean(a - b for a, b in values), max(abs(a) + abs(b) for a, b in values)
        if abs(difference) <= 1e-12 * size:  # rounding
            difference = 0.0
        pairs[one.label, other.label] = Comparison(other.label, len(values), difference, p, None, unequal)
    able = [pair for pair, told in pairs.items() if told.p is not None]
    for pair, p in zip(able, holm([pairs[pair].p or 0.0 for pair in able]), strict=True):
        pairs[pair] = pairs[pair]._replace(corrected=p)
    return pairs


def by_ratios(found: Sequence[Finding]) -> bool:
    """Whether final values lie over decades, and are compared by their logarithms."""
    values = [value for one in found for value in one.final.values()]
    return bool(values) and Frame(min(values), max(values)).over_decades


def _unequal(one: Finding, other: Finding, own: dict[str, str], its: dict[str, str]) -> str:
    """In what two algorithms did not have the same chances; nothing, if they had."""
    keys = sorted(key for key in own.keys() | its.keys() if own.get(key) != its.get(key))
    if keys:
        return f"they differ in {', '.join(keys[:3])}{' and more' if len(keys) > 3 else ''}"
    if one.reached != other.reached:
        return f"{one.reached} rounds against {other.reached}"
    mine, theirs = (fmean(some.floats_up.values()) for some in (one, other))
    if max(mine, theirs) > ALIKE * min(mine, theirs):
        return f"{short_count(mine)} floats sent up against {short_count(theirs)}"
    return ""


def paired_t_test(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The two-sided p-value, or None where there is none: one pair, or differences that do not vary."""
    differences = [a - b for a, b in pairs]
    size, varied = max(abs(value) for pair in pairs for value in pair), deviation(differences)
    if varied is None or varied <= 1e-12 * size:  # nothing, or rounding
        return None
    t = fmean(differences) / (varied / math.sqrt(len(pairs)))
    return float(2 * stdtr(len(pairs) - 1, -abs(t)))


def holm(ps: Sequence[float]) -> list[float]:
    """p-values by Holm's rule: the smallest times their number, the next times one less, never falling."""
    order = sorted(range(len(ps)), key=lambda place: ps[place])
    corrected, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[place]))
        corrected[place] = highest
    return corrected


# --- in words --------------------------------------------------------------------------------------------


def verdict(found: Sequence[Finding], name: str, metric: Metric) -> str:
    """What can be said of who is best, and no more than that."""
    ended = [one for one in found if one.final]
    if not metric.ranks:
        return f"{name} is a value of the game, better neither high nor low: nobody is ranked by it."
    if not ended:
        return "No seed came to its end."
    first = ended[0]
    value = f"{name} {spread(list(first.final.values()))} over {_counted(len(first.final), 'seed')}"
    if len(ended) == 1:
        return f"{first.label} ends with {value}."
    if first.standing == "best":
        others = _counted(len(ended) - 1, "other")
        return f"{first.label} ends best, with {value}; a corrected test tells it apart from {others}."
    mean = "mean" if len(first.final) > 1 else "value"
    alike = [
        one for one in ended[1:] if one.standing == "level" and one.against and not one.against.difference
    ]
    has = f"have the same best {mean}" if alike else f"has the best {mean}"
    parts = [f"{_named([first.label, *(one.label for one in alike)])} {has}, {value}"]
    for standing, told in (
        ("level", "but cannot be told apart from {}"),
        ("behind", "ahead of {} by a corrected test"),
    ):
        if some := [one.label for one in ended[1:] if one.standing == standing and one not in alike]:
            parts.append(told.format(_named(some)))
    open = [one for one in ended[1:] if one.standing in ("untested", "")]
    for one, why in _reasons(open, first).items():
        parts.append(f"and nothing can be said of {_named(why)} ({one})")
    return f"{', '.join(parts)}."


def _reasons(open: Sequence[Finding], rival: Finding) -> dict[str, list[str]]:
    """Why nothing can be said of some."""
    found: dict[str, list[str]] = {}
    for one in open:
        told = one.against
        if told is None:
            why = "no seed in common"
        elif told.unequal:
            why = f"unequal chances: {told.unequal}"
        elif told.seeds < FEWEST_SEEDS:
            why = f"{_counted(told.seeds, 'seed')} in common, and a test needs {FEWEST_SEEDS}"
        elif one.two_modes or rival.two_modes:
            why = "seeds collapsed: a test of means says nothing of two modes"
        else:
            why = "the same difference for every seed" if told.difference else "the same values"
        found.setdefault(why, []).append(one.label)
    return found


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _named(labels: Collection[str]) -> str:
    some = list(labels)
    return some[0] if len(some) == 1 else f"{', '.join(some[:-1])} and {some[-1]}"
