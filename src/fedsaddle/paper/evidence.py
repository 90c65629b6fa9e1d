"""What trials have found, seed by seed: at the end, best on the way, and on the whole way at equal cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedsaddle.errors import BadInput
from fedsaddle.metric import Metric
from fedsaddle.paper.trials import COHORTS, Contest, Trial, memory_of
from fedsaddle.report.comparing import common_budget
from fedsaddle.report.paired import BySeed
from fedsaddle.report.reading import Evaluation, Lane, Run, Series, read_run
from fedsaddle.report.spent import NOTHING_SPENT, Spent, is_finished, spent_on
from fedsaddle.report.statistics import area

# The end is the mean of the last fifth of the rounds: where a run is unsteady, a single evaluation is luck.
# By floats and by time: areas, that is means on the way, at equal cost.
LAST_PART = 0.2
STUCK = 1e-3  # of its value: who has gained less since a collapse has not come back


# --- values ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """The algorithms of a contest under one rule of cohorts, with tuned or published settings."""

    contest: Contest
    cohorts: str
    settings: str  # tuned or published
    series: Mapping[str, Series]
    spent: Spent
    out: Path

    def metric(self, name: str) -> Metric:
        return next(iter(self.series.values())).metrics[name]

    def values(self, metric: str, measure: str) -> BySeed:
        """By algorithm and seed. A seed that diverged counts as the worst that any seed here has."""
        meant, many = self.metric(metric), list(self.series.values())
        budget, most = common_budget(many), common_time(many)
        of: dict[str, Callable[[Lane], float]] = {
            "final": lambda lane: at_the_end(lane.points, metric),
            "best": lambda lane: min((point.metrics[metric] for point in lane.points), key=meant.cost),
            "floats": lambda lane: area(lane.points, metric, budget) if budget else math.nan,
            "time": lambda lane: (
                area(lane.points, metric, most, along="time_simulated") if most else math.nan
            ),
        }
        found: BySeed = {
            label: {lane.seed: of[measure](lane) for lane in one.alive} for label, one in self.series.items()
        }
        worst = max(
            (value for own in found.values() for value in own.values()), key=meant.cost, default=math.nan
        )
        for label, one in self.series.items():
            found[label] |= {lane.seed: worst for lane in one.lanes if lane.diverged}
        return found

    def dead(self, metric: str) -> dict[str, int]:
        """Seeds that diverged, ended no better than guessing, or collapsed and did not come back."""
        meant = self.metric(metric)

        def died(one: Series, lane: Lane) -> bool:
            end = at_the_end(lane.points, metric)
            fell = [
                each.round for each in one.happened if each.what == "collapsed" and each.seed == lane.seed
            ]
            return (
                bool(lane.diverged)
                or meant.collapsed(end)
                or (bool(fell) and _stayed(lane, fell[-1], metric, meant))
            )

        return {
            label: sum(died(one, lane) for lane in one.lanes if lane.points)
            for label, one in self.series.items()
        }


def at_the_end(points: Sequence[Evaluation], metric: str) -> float:
    """The mean of a metric over the evaluations in the last part of the rounds that were played."""
    since = (1 - LAST_PART) * points[-1].round
    return fmean(point.metrics[metric] for point in points if point.round >= since)


def _stayed(lane: Lane, fell: int, metric: str, meant: Metric) -> bool:
    """Whether a seed that was found collapsed has become no better since."""
    then = next((point for point in lane.points if point.round > fell), lane.points[-1]).metrics[metric]
    gained = meant.cost(then) - meant.cost(lane.points[-1].metrics[metric])
    return gained <= STUCK * abs(then)


def common_time(series: Sequence[Series]) -> float:
    """The most simulated seconds that every seed still alive has played."""
    return min((lane.points[-1].time_simulated for one in series for lane in one.alive), default=0.0)


def evidence_of(contest: Contest, cohorts: str, settings: str, out: Path) -> Evidence | None:
    """What there is of it; nothing, if a run that it needs has not come to its end.

    Algorithms of one phase have run under the first rule of cohorts only: they do the same under all.
    """
    places = [f"{contest.name}/{rule}/{settings}" for rule in dict.fromkeys((COHORTS[0], cohorts))]
    if not all(is_finished(out / place) for place in places):
        return None
    series: dict[str, Series] = {}
    spent = NOTHING_SPENT
    for place in places:
        run = read_run(out / place)
        series |= {one.label: one for one in run.series}
        spent += spent_on(run)
    return Evidence(contest, cohorts, settings, series, spent, out)


def by_memory(found: Evidence) -> Evidence | None:
    """CDMA-ADA's best setting for each rho, with fresh seeds, if that has come to its end."""
    folder = found.out / memory_of(found.contest.name)
    if not is_finished(folder):
        return None
    run = read_run(folder)
    return replace(found, series={one.label: one for one in run.series}, spent=spent_on(run))


def read_trial(trial: Trial, out: Path) -> Run:
    if not is_finished(out / trial.name):
        raise BadInput(f"{out / trial.name} has not come to its end")
    return read_run(out / trial.name)


def reach(points: Sequence[Evaluation], metric: str, level: float) -> float | None:
    """The floats sent up when a metric that should fall was first at most this."""
    return next((float(point.floats_up) for point in points if point.metrics[metric] <= level), None)


def setting_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """What of an algorithm's table is its setting."""
    return {key: value for key, value in table.items() if key not in ("algorithm", "invite")}
