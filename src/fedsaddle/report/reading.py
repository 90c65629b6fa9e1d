"""Run folders as a report reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.errors import BadInput
from fedsaddle.fleet import cohorts_today
from fedsaddle.metric import Metric
from fedsaddle.problem import Detail
from fedsaddle.report.folders import (
    Pictures,
    count_of,
    damage,
    number_of_cell,
    read_declared,
    read_details,
    read_experiment,
    read_pictures,
    read_real,
    read_table,
)
from fedsaddle.runs import KEYS, read_clock, read_environment

Flows = dict[tuple[str, str, str], int]  # floats by direction, variable and kind
# What two runs must have alike for their algorithms to have had the same chances, beside rounds and floats.
TERMS = ("batch", "K", "cohorts", "sampling", "problem", "fleet", "quorum", "merge", "checks", "faults")


class Evaluation(NamedTuple):
    """One seed at one evaluation."""

    round: int
    floats_up: int
    time_simulated: float
    metrics: dict[str, float]
    spent: float | None = None  # seconds on the wall's clock, by all seeds together, if they were kept


class Happening(NamedTuple):
    """Something that went wrong, and when."""

    seed: int
    round: int
    what: str  # abandoned, diverged, collapsed, dropped, lost or memory
    detail: str


@dataclass(frozen=True)
class Lane:
    """One seed's curve."""

    seed: int
    points: list[Evaluation]
    flows: Flows  # up to the last evaluation
    diverged: str  # how it ended, if it did not get to the end
    dropped: str = ""  # when a sweep gave it up, if it did
    abandoned: int = 0  # rounds
    details: dict[str, Detail] = field(default_factory=dict)  # that the problem tells of its end

    @property
    def late(self) -> int:
        """Floats of answers that were not used, too late or refused."""
        return sum(floats for flow, floats in self.flows.items() if flow[0] in ("late", "refused"))


@dataclass(frozen=True)
class Series:
    """One algorithm of one run; of a sweep, one setting."""

    label: str
    lanes: list[Lane]
    seeds: int  # that were asked for
    rounds: int  # that were asked for
    abandoned: int  # rounds, over all seeds
    metrics: dict[str, Metric]  # as the run's problem declares them
    pictures: Pictures | None = None
    family: str = ""  # of a sweep: the algorithm that this is a setting of
    setting: dict[str, Any] = field(default_factory=dict)  # its table in the experiment
    trouble: list[str] = field(default_factory=list)  # of the machines that it ran on
    happened: list[Happening] = field(default_factory=list)
    terms: dict[str, str] = field(default_factory=dict)  # see TERMS
    name: str = ""  # the experiment's; the label may also say which run

    @property
    def alive(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane.points and not lane.diverged and not lane.dropped]

    @property
    def idle(self) -> bool:
        """Whether nothing was learnt: every round of every seed that is alive was abandoned."""
        return bool(self.alive) and all(0 < lane.points[-1].round <= lane.abandoned for lane in self.alive)

    @property
    def reached(self) -> int:
        """The last round at which every seed that is alive was evaluated; of none, that of the last end."""
        if not self.alive:
            return max((one.round for one in self.happened if one.what in ENDS), default=0)
        return min(lane.points[-1].round for lane in self.alive)

    @property
    def finished(self) -> bool:
        ended = all(
            lane.diverged or lane.dropped or (lane.points and lane.points[-1].round == self.rounds)
            for lane in self.lanes
        )
        return ended and len(self.lanes) == self.seeds


@dataclass(frozen=True)
class Run:
    """What a run folder holds."""

    folder: Path
    experiment: dict[str, Any]
    metrics: dict[str, Metric]  # the first is what a run is judged by
    series: list[Series]
    environment: list[dict[str, Any]]  # one entry for each time it was started
    real: dict[str, float] = field(default_factory=dict)  # what real rows have, by metric, if it is known
    stays: bool = True  # whether the folder is still there when somebody reads its report

    @property
    def judged_by(self) -> str:
        return next(iter(self.metrics))

    @property
    def spent(self) -> dict[str, float]:
        """Seconds that each algorithm, of a sweep each study, has taken, as far as they were written down."""
        found: dict[str, float] = {}
        for entry in self.environment:
            seconds = entry.get("seconds")
            for name, value in seconds.items() if isinstance(seconds, dict) else ():
                if isinstance(value, int | float) and math.isfinite(value):
                    found[name] = found.get(name, 0.0) + value
        return found

    @property
    def unfinished(self) -> str:
        """How far each algorithm is, if not all have come to their end."""
        reached = {one.name: one.reached for one in self.series}
        if len(reached) == len(self.experiment["algorithms"]) and all(one.finished for one in self.series):
            return ""
        if any(one.family for one in self.series):  # too many to name them
            ended = sum(one.finished for one in self.series)
            return f"{ended} of {len(self.experiment['algorithms'])} settings have come to their end"
        rounds = self.experiment["rounds"]
        return ", ".join(
            f"{name} {reached[name]} of {rounds} rounds" if name in reached else f"{name} not begun"
            for name in self.experiment["algorithms"]
        )


def read_run(folder: Path) -> Run:
    """All that a report needs of one run folder, finished or not."""
    experiment = read_experiment(folder)
    names, points = _points(folder)
    metrics, terms = read_declared(folder, names), _terms(experiment)
    flows, happened = _flows(folder / "traffic.csv"), _happened(folder / "events.csv")
    series, families = [], _families(experiment)
    for label in experiment["algorithms"]:
        own = happened.get(label, [])
        gone, details = {one.seed for one in own if one.what == "diverged"}, read_details(folder, label)
        lanes = [
            _lane(seed, points.get((label, seed), []), flows.get((label, seed), {}), own, details)
            for seed in experiment["seeds"]
            if (label, seed) in points or seed in gone
        ]
        if lanes:
            counts = len(experiment["seeds"]), experiment["rounds"], sum(lane.abandoned for lane in lanes)
            table = experiment["algorithms"][label]
            setting = table if isinstance(table, dict) else {}
            pictures, family = read_pictures(folder / "samples", label), families.get(label, "")
            one = Series(label, lanes, *counts, metrics, pictures, family, setting)
            series.append(replace(one, trouble=_trouble(own), happened=own, terms=terms, name=label))
    ends = {(label, one.seed) for label, own in happened.items() for one in own if one.what in ENDS}
    strangers = {*points, *ends} - {(one.label, lane.seed) for one in series for lane in one.lanes}
    if strangers:
        stranger = "{} with seed {}".format(*min(strangers))
        raise damage(str(folder), f"its experiment has no {stranger}")
    real = read_real(folder, names)
    return Run(folder, experiment, metrics, series, read_environment(folder), real)


ENDS = ("diverged", "dropped")


def _lane(
    seed: int,
    points: list[Evaluation],
    flows: Flows,
    happened: Sequence[Happening],
    details: dict[int, dict[str, Detail]],
) -> Lane:
    own = [one for one in happened if one.seed == seed]
    diverged, dropped = (
        next((f"round {one.round}: {one.detail}" for one in reversed(own) if one.what == what), "")
        for what in ENDS
    )
    abandoned = sum(one.what == "abandoned" for one in own)
    return Lane(seed, points, flows, diverged, dropped, abandoned, details.get(seed, {}))


def _happened(path: Path) -> dict[str, list[Happening]]:
    """What each algorithm met with, in the order of the table."""
    found: dict[str, list[Happening]] = {}
    for place, (algorithm, seed, when, event, detail) in read_table(path)[1]:
        what = event if event in (*ENDS, "collapsed", "lost", "memory") else "abandoned"
        own = Happening(count_of(seed, place), count_of(when, place), what, detail)
        found.setdefault(algorithm, []).append(own)
    return found


def _trouble(happened: Sequence[Happening]) -> list[str]:
    """What the machines did that an algorithm ran on."""
    told = [f"round {one.round}: {one.detail}" for one in happened if one.what == "memory"]
    if times := sum(one.what == "lost" for one in happened):
        plural = "" if times == 1 else "s"
        told.append(f"answers were lost with a worker {times} time{plural}, over all seeds")
    return told


def _flows(path: Path) -> dict[tuple[str, int], Flows]:
    """Each seed's floats at its last evaluation, by where they went and what they were."""
    last: dict[tuple[str, int], int] = {}
    found: dict[tuple[str, int], Flows] = {}
    for place, (algorithm, seed, when, *flow, floats) in read_table(path)[1]:
        lane, round = (algorithm, count_of(seed, place)), count_of(when, place)
        if last.get(lane) != round:
            last[lane], found[lane] = round, {}
        direction, variable, kind = flow
        own = found[lane]
        key = direction, variable, kind
        own[key] = own.get(key, 0) + count_of(floats, place)
    return found


def _terms(experiment: dict[str, Any]) -> dict[str, str]:
    """What its algorithms were given, key by key."""
    found: dict[str, str] = {}
    for key in TERMS:
        value = cohorts_today(experiment.get(key)) if key == "cohorts" else experiment.get(key)
        for inner, own in value.items() if isinstance(value, dict) else [("", value)]:
            if own is not None:
                found[f"{key}.{inner}" if inner else key] = json.dumps(own, sort_keys=True, default=str)
    return found


def _points(folder: Path) -> tuple[list[str], dict[tuple[str, int], list[Evaluation]]]:
    """The names of the metrics, and every seed's evaluations."""
    header, rows = read_table(folder / "rounds.csv")
    names, clock = header[len(KEYS["rounds.csv"]) :], read_clock(folder)
    points: dict[tuple[str, int], list[Evaluation]] = {}
    for place, row in rows:
        curve = points.setdefault((row[0], count_of(row[1], place)), [])
        round, up, _ = (count_of(cell, place) for cell in row[2:5])
        time, *values = (number_of_cell(cell, place) for cell in row[5:])
        if curve and (
            round <= curve[-1].round or up < curve[-1].floats_up or time < curve[-1].time_simulated
        ):
            raise damage(place, "rounds, floats and time only go up")
        spent = clock.get(row[0], {}).get(round)
        curve.append(Evaluation(round, up, time, dict(zip(names, values, strict=True)), spent))
    if not (names and points):
        raise BadInput(f"{folder} has no evaluation yet; wait for its first, or resume it")
    return names, points


def _families(experiment: dict[str, Any]) -> dict[str, str]:
    """Of a sweep, the algorithm that each setting belongs to."""
    sweep = experiment.get("sweep")
    told = sweep.get("settings") if isinstance(sweep, dict) else None
    pairs = told.items() if isinstance(told, dict) else ()
    return {
        label: name
        for name, labels in pairs
        if isinstance(labels, list)
        for label in labels
        if isinstance(label, str)
    }


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Runs to be shown side by side: judged by the same metric, every algorithm with a name of its own."""
    real = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, real, strict=True):
        if real.count(place) > 1:
            raise BadInput(f"{folder} is given more than once")
    runs = [read_run(folder) for folder in folders]
    first = runs[0]
    for run in runs[1:]:
        if run.judged_by != first.judged_by:
            raise BadInput(
                f"{run.folder} is judged by {run.judged_by} and {first.folder} by {first.judged_by}; "
                "make a report of each"
            )
        for name, metric in all_metrics(runs).items():
            own = run.metrics.get(name, metric)
            if own.better != metric.better:
                raise BadInput(
                    f"{name} is better {own.better} in {run.folder} and {metric.better} in another run; "
                    "make a report of each"
                )
    labels = [one.label for run in runs for one in run.series]
    names = [place.name for place in real]

    def told_apart(run: Run, name: str, series: Series) -> Series:
        if labels.count(series.label) == 1:
            return series
        place = name if names.count(name) == 1 else str(run.folder)
        # Names of files need not be text.
        return replace(series, label=f"{series.label} ({place})".encode(errors="replace").decode())

    return [
        replace(run, series=[told_apart(run, name, one) for one in run.series])
        for run, name in zip(runs, names, strict=True)
    ]


def all_metrics(runs: Sequence[Run]) -> dict[str, Metric]:
    """The metrics of all runs, what they are judged by first; of two declarations that of the first run."""
    found: dict[str, Metric] = {}
    for run in runs:
        found = found | run.metrics | found
    return found
