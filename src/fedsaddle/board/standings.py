"""Who is told apart from whom at one task, fleet and budget, and which ranks that leaves to each.

Every pair is compared over the seeds of both: by the mean of their differences and a paired t-test; by the
median and a test of signs, where one of the two lost seeds. All pairs are corrected together by Holm's rule.
Whoever is told apart from nobody may have any rank; only who is told ahead of all others has won.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from fedsaddle.board.costs import BUDGETS, Terms
from fedsaddle.board.matches import Match
from fedsaddle.board.scores import Reached, comparable, mean_of, reached_by
from fedsaddle.metric import Metric
from fedsaddle.report.comparing import FEW_SEEDS, LEVEL, holm
from fedsaddle.report.paired import BySeed, Compared, Interval, compare, mean_interval
from fedsaddle.report.reading import Run, Series
from fedsaddle.report.sweeps import setting_shown


class Contestant(NamedTuple):
    """One algorithm that has played, and how its seeds did by one budget."""

    label: str
    seeds: dict[int, Reached]
    setting: str
    spent: dict[
        str, float
    ]  # floats, round trips and seconds of the budget, as its seeds used them on average


@dataclass(frozen=True)
class Standing:
    """Where an algorithm stands."""

    label: str
    low: int  # the best rank that the tests leave to it
    high: int  # the worst
    value: float  # its mean; over decades, its geometric mean
    interval: Interval
    failed: int  # seeds
    seeds: int
    behind: Compared | None  # how the first compares with it; of the first, with the next
    p: float | None  # of that, corrected
    setting: str
    spent: dict[str, float]


@dataclass(frozen=True)
class Standings:
    """One table: a task, a fleet and a budget."""

    task: str
    fleet: str
    kind: str
    metric: str
    better: str
    ratios: bool
    rows: list[Standing]  # the best first
    lost: list[str]  # of whom no setting survived tuning
    open: list[str]  # who has not come to the end

    @property
    def won(self) -> bool:
        return len(self.rows) > 1 and self.rows[0].high == 1

    @property
    def leading(self) -> list[str]:
        """Who may be first, for all that the tests say."""
        return [row.label for row in self.rows if row.low == 1]


def standings_of(
    matches: Sequence[Match], runs: Mapping[str, Run], kind: str, out_lost: Sequence[str]
) -> Standings:
    """The table of the algorithms at one task on one fleet; `runs` are those that have come to their end."""
    first = matches[0]
    task = first.task
    players, metric = [], None
    for match in matches:
        series = _series_for(runs.get(match.place), kind)
        if series is not None:
            metric = series.metrics[task.metric]
            players.append(_player(match, series, kind))
    lost = [match.entrant.label for match in matches if match.place in out_lost]
    there = {one.label for one in players} | set(lost)
    open = [match.entrant.label for match in matches if match.entrant.label not in there]
    rows = ranked(players, metric, task.ratios) if metric else []
    better = metric.better if metric else ""
    return Standings(task.name, first.fleet, kind, task.metric, better, task.ratios, rows, lost, open)


def _series_for(run: Run | None, kind: str) -> Series | None:
    """The setting that was chosen for a budget."""
    for series in run.series if run else ():
        if kind in series.label.split("-"):
            return series
    return None


def _player(match: Match, series: Series, kind: str) -> Contestant:
    terms, meant = match.terms, series.metrics[match.task.metric]
    seeds = {lane.seed: reached_by(lane, match.task.metric, meant, kind, terms) for lane in series.lanes}
    fields = match.entrant.entry.rule.__dataclass_fields__
    setting = ", ".join(
        f"{key} {setting_shown(series.setting[key])}" for key in fields if key in series.setting
    )
    return Contestant(match.entrant.label, seeds, setting, _spent(series, terms, seeds, kind))


def _spent(series: Series, terms: Terms, seeds: Mapping[int, Reached], kind: str) -> dict[str, float]:
    """What the budget bought: its own unit in full, the others in the proportion of the whole run."""
    alive = [lane for lane in series.alive if seeds[lane.seed].part]
    if not alive:
        return {}
    found = {name: [] for name in BUDGETS}  # type: dict[str, list[float]]
    for lane in alive:
        last = lane.points[-1]
        ends = {"floats": last.floats_up, "trips": last.round * terms.phases, "time": last.time_simulated}
        part = seeds[lane.seed].part * terms.budgets[kind] / ends[kind]
        for name in BUDGETS:
            found[name].append(part * ends[name])
    return {name: fmean(values) for name, values in found.items()}


# --- ranks -----------------------------------------------------------------------------------------------


def ranked(players: Sequence[Contestant], metric: Metric, ratios: bool) -> list[Standing]:
    """All who have played, the best mean first; a seed that failed counts as the worst that any seed has."""
    values = _values(players, metric, ratios)
    failed = {one.label: sum(seed.failed for seed in one.seeds.values()) for one in players}
    order = sorted(players, key=lambda one: metric.cost(fmean(values[one.label].values())))
    told, corrected = _pairs([one.label for one in order], values, metric, failed)
    ahead = {one.label: 0 for one in order}
    after = {one.label: 0 for one in order}
    for (better, worse), way in _told_apart(told, corrected).items():
        winner, loser = (better, worse) if way > 0 else (worse, better)
        after[winner] += 1
        ahead[loser] += 1
    rows = []
    for place, one in enumerate(order):
        pair = (order[0].label, one.label) if place else (one.label, order[1].label if len(order) > 1 else "")
        own = [value.value for value in one.seeds.values() if math.isfinite(value.value)]
        rows.append(
            Standing(
                one.label,
                1 + ahead[one.label],
                len(order) - after[one.label],
                mean_of(own, ratios) if own else math.nan,
                _interval(own, ratios),
                failed[one.label],
                len(one.seeds),
                told.get(pair),
                corrected.get(pair),
                one.setting,
                one.spent,
            )
        )
    return rows


def _values(players: Sequence[Contestant], metric: Metric, ratios: bool) -> BySeed:
    """By algorithm and seed, as they are compared."""
    found: BySeed = {
        one.label: {seed: comparable(at.value, ratios) for seed, at in one.seeds.items() if not at.failed}
        for one in players
    }
    every = [
        comparable(at.value, ratios)
        for one in players
        for at in one.seeds.values()
        if math.isfinite(at.value)
    ]
    worst = max(every, key=metric.cost, default=0.0)
    for one in players:
        found[one.label] |= {seed: worst for seed, at in one.seeds.items() if at.failed}
    return found


Pairs = dict[tuple[str, str], Compared]


def _pairs(
    labels: Sequence[str], values: BySeed, metric: Metric, failed: Mapping[str, int]
) -> tuple[Pairs, dict[tuple[str, str], float]]:
    """Every pair, the better mean first; and its p-value by Holm's rule, where it has one."""
    told = {pair: compare(*pair, values, metric, failed) for pair in combinations(labels, 2)}
    able = [pair for pair, one in told.items() if one.p is not None and one.seeds >= FEW_SEEDS]
    corrected = holm([told[pair].p or 0.0 for pair in able])
    return told, dict(zip(able, corrected, strict=True))


def _told_apart(told: Pairs, corrected: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """The pairs that tests tell apart, with who is ahead: above 0 the first."""
    return {pair: told[pair].effect for pair, p in corrected.items() if p < LEVEL and told[pair].effect}


def _interval(values: Sequence[float], ratios: bool) -> Interval:
    """Of a mean, at 95 %."""
    if not values:
        return Interval(-math.inf, math.inf)
    low, high = mean_interval([comparable(value, ratios) for value in values])
    return Interval(math.exp(low), math.exp(high)) if ratios else Interval(low, high)


# --- in words --------------------------------------------------------------------------------------------


def verdict_on(table: Standings) -> str:
    """Who wins, by how much; or between whom it is undecided."""
    if not table.rows:
        return "not played yet"
    first = table.rows[0]
    if len(table.rows) == 1:
        return f"only {first.label} has played"
    if table.won:
        among = f" among the {len(table.rows)} that have played" if table.open else ""
        return f"**{first.label} wins**{among}{by_how_much(table)}"
    others = [label for label in table.leading if label != first.label]
    few = min(row.seeds for row in table.rows)
    why = f" ({few} seeds: too few to tell)" if few < FEW_SEEDS else ""
    shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    if not others:  # the best mean is behind nobody, and not ahead of all
        return f"undecided{why}: {first.label} has the best mean"
    return f"undecided{why}: {first.label} has the best mean; not behind it for certain: {shown}"


def by_how_much(table: Standings) -> str:
    """How far the first is ahead of the next, with an interval."""
    told = table.rows[0].behind
    if told is None or not math.isfinite(told.effect):
        return ""
    next_one = table.rows[1].label
    low, high = told.interval
    if not table.ratios:
        return f", {told.effect:.3g} ({low:.3g} to {high:.3g}) ahead of {next_one} in {table.metric}"
    times = [math.exp(value) for value in (told.effect, low, high)]
    way = f"{'lower' if table.better == 'low' else 'higher'} than {next_one} in {table.metric}"
    return f", {times[0]:.3g} times ({times[1]:.3g} to {times[2]:.3g}) {way}"


def all_standings(matches: Sequence[Match], runs: Mapping[str, Run], lost: Sequence[str]) -> list[Standings]:
    """Every task on every fleet by every budget."""
    groups: dict[tuple[str, str], list[Match]] = {}
    for match in matches:
        groups.setdefault((match.task.name, match.fleet), []).append(match)
    return [standings_of(own, runs, kind, lost) for own in groups.values() for kind in BUDGETS]
