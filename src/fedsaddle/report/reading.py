"""Run folders as a report reads them. Hands and disks damage files, so nothing in them is trusted."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.errors import BadInput
from fedsaddle.metric import Metric
from fedsaddle.runs import KEYS, read_environment, refuse_constant

HUGE = 1e150  # a seed beyond this is about to diverge; its squares and sums would already be infinite


class Evaluation(NamedTuple):
    """One seed at one evaluation."""

    round: int
    floats_up: int
    time_simulated: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Lane:
    """One seed's curve."""

    seed: int
    points: list[Evaluation]
    late: int  # floats of answers that were not used, too late or refused, up to the last evaluation
    diverged: str  # how it ended, if it did not get to the end
    dropped: str = ""  # when a sweep gave it up, if it did
    abandoned: int = 0  # rounds


@dataclass(frozen=True)
class Pictures:
    """What the first seed of an algorithm has learnt to make: PNG files."""

    last: bytes
    round: int  # of the last
    over_rounds: bytes


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

    @property
    def alive(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane.points and not lane.diverged and not lane.dropped]

    @property
    def idle(self) -> bool:
        """Whether nothing was learnt: every round of every seed that is alive was abandoned."""
        return bool(self.alive) and all(0 < lane.points[-1].round <= lane.abandoned for lane in self.alive)

    @property
    def reached(self) -> int:
        """The last round at which every seed that is alive was evaluated."""
        return min((lane.points[-1].round for lane in self.alive), default=0)

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
        reached = {one.label: one.reached for one in self.series}
        if len(reached) == len(self.experiment["algorithms"]) and all(one.finished for one in self.series):
            return ""
        if any(one.family for one in self.series):  # too many to name them
            ended = sum(one.finished for one in self.series)
            return f"{ended} of {len(self.experiment['algorithms'])} settings have come to their end"
        rounds = self.experiment["rounds"]
        return ", ".join(
            f"{label} {reached[label]} of {rounds} rounds" if label in reached else f"{label} not begun"
            for label in self.experiment["algorithms"]
        )


def read_run(folder: Path) -> Run:
    """All that a report needs of one run folder, finished or not."""
    experiment = _experiment(folder)
    names, points = _points(folder)
    metrics = _declared(folder, names)
    late = _late(folder / "traffic.csv")
    abandoned: dict[tuple[str, int], int] = {}
    diverged: dict[tuple[str, int], str] = {}
    dropped: dict[tuple[str, int], str] = {}
    lost: dict[str, int] = {}
    trouble: dict[str, list[str]] = {}
    for place, (algorithm, seed, when, event, detail) in _table(folder / "events.csv")[1]:
        if event == "diverged":
            diverged[algorithm, _count(seed, place)] = f"round {_count(when, place)}: {detail}"
        elif event == "dropped":
            dropped[algorithm, _count(seed, place)] = f"round {_count(when, place)}: {detail}"
        elif event == "lost":
            lost[algorithm] = lost.get(algorithm, 0) + 1
        elif event == "memory":
            trouble.setdefault(algorithm, []).append(f"round {_count(when, place)}: {detail}")
        else:
            lane = algorithm, _count(seed, place)
            abandoned[lane] = abandoned.get(lane, 0) + 1
    for algorithm, times in lost.items():
        told = f"answers were lost with a worker {times} time{'' if times == 1 else 's'}, over all seeds"
        trouble.setdefault(algorithm, []).append(told)
    series = []
    families = _families(experiment)
    for label in experiment["algorithms"]:
        seeds = [seed for seed in experiment["seeds"] if (label, seed) in points or (label, seed) in diverged]
        lanes = [
            Lane(
                seed,
                points.get((label, seed), []),
                late.get((label, seed), 0),
                diverged.get((label, seed), ""),
                dropped.get((label, seed), ""),
                abandoned.get((label, seed), 0),
            )
            for seed in seeds
        ]
        if lanes:
            counts = len(experiment["seeds"]), experiment["rounds"], sum(lane.abandoned for lane in lanes)
            pictures, own = read_pictures(folder / "samples", label), experiment["algorithms"][label]
            setting = own if isinstance(own, dict) else {}
            rest = families.get(label, ""), setting, trouble.get(label, [])
            series.append(Series(label, lanes, *counts, metrics, pictures, *rest))
    strangers = {*points, *diverged, *dropped} - {
        (one.label, lane.seed) for one in series for lane in one.lanes
    }
    if strangers:
        stranger = "{} with seed {}".format(*min(strangers))
        raise _damaged(str(folder), f"its experiment has no {stranger}")
    return Run(folder, experiment, metrics, series, read_environment(folder))


def _points(folder: Path) -> tuple[list[str], dict[tuple[str, int], list[Evaluation]]]:
    """The names of the metrics, and every seed's evaluations."""
    header, rows = _table(folder / "rounds.csv")
    names = header[len(KEYS["rounds.csv"]) :]
    points: dict[tuple[str, int], list[Evaluation]] = {}
    for place, row in rows:
        curve = points.setdefault((row[0], _count(row[1], place)), [])
        round, up, _ = (_count(cell, place) for cell in row[2:5])
        time, *values = (_number(cell, place) for cell in row[5:])
        if curve and (
            round <= curve[-1].round or up < curve[-1].floats_up or time < curve[-1].time_simulated
        ):
            raise _damaged(place, "rounds, floats and time only go up")
        curve.append(Evaluation(round, up, time, dict(zip(names, values, strict=True))))
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


def read_pictures(folder: Path, label: str) -> Pictures | None:
    """The samples of an algorithm, if it makes any."""
    rounds = [
        int(path.stem.removeprefix(f"{label}-"))
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.name.startswith(f"{label}-") and path.suffix == ".png"
        if path.stem.removeprefix(f"{label}-").isdecimal()
    ]
    over = folder / f"{label}-rounds.png"
    if not rounds or not over.is_file():
        return None
    files = (folder / f"{label}-{max(rounds)}.png", over)
    try:
        last, lines = (path.read_bytes() for path in files)
    except OSError as error:
        raise _damaged(str(folder), f"cannot read its pictures ({error.strerror})") from None
    return Pictures(last, max(rounds), lines)


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


# --- files -----------------------------------------------------------------------------------------------


def _damaged(place: str, why: str) -> BadInput:
    return BadInput(f"{place} is damaged: {why}; restore the folder from a copy")


def _experiment(folder: Path) -> dict[str, Any]:
    path = folder / "experiment.json"
    try:
        experiment = json.loads(path.read_bytes(), parse_constant=refuse_constant)
    except OSError:
        raise BadInput(f"{folder} is not a run folder: it has no experiment.json") from None
    except (ValueError, RecursionError):
        raise _damaged(str(path), "it is not JSON") from None
    kinds = {"name": str, "rounds": int, "seeds": list, "algorithms": dict}
    for key, kind in kinds.items():
        if not isinstance(experiment, dict) or not isinstance(experiment.get(key), kind):
            raise _damaged(str(path), f"it has no {key}")
    if not all(isinstance(seed, int) for seed in experiment["seeds"]):
        raise _damaged(str(path), "its seeds are not whole numbers")
    return dict(experiment)


def _declared(folder: Path, names: Sequence[str]) -> dict[str, Metric]:
    """What the problem has declared of the metrics that there are."""
    path = folder / "metrics.json"
    try:
        told = json.loads(path.read_bytes(), parse_constant=refuse_constant)
        found = {name: Metric(**told[name]) for name in names}
    except FileNotFoundError:
        raise BadInput(
            f"{path} is missing, as in runs of older versions; resuming the run (--resume --out {folder}) "
            "writes it"
        ) from None
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        raise _damaged(str(path), "it does not declare the metrics of rounds.csv") from None
    if not all(metric.valid for metric in found.values()):
        raise _damaged(str(path), "what it declares is no metric")
    return found


def _table(path: Path) -> tuple[list[str], Iterator[tuple[str, list[str]]]]:
    """The header of a table and its rows, each with where it stands."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise _damaged(str(path), f"cannot read it ({error.strerror})") from None
    except ValueError:
        raise _damaged(str(path), "it is not text") from None
    # A row that is being written at this moment, or was when the machine lost its power, is not there yet.
    lines = _lines(path, text[: text.rfind("\n") + 1])
    place, header = next(lines, (str(path), []))
    keys = KEYS[path.name]
    if header and (tuple(header[: len(keys)]) != keys or len(set(header)) != len(header)):
        raise _damaged(place, f"it should begin with {','.join(keys)}")
    return header, _fitting(lines, len(header))


def _lines(path: Path, text: str) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            yield f"{path} line {reader.line_num}", row
    except csv.Error as error:
        raise _damaged(f"{path} line {reader.line_num}", str(error)) from None


def _fitting(lines: Iterator[tuple[str, list[str]]], cells: int) -> Iterator[tuple[str, list[str]]]:
    for place, row in lines:
        if len(row) != cells:
            raise _damaged(place, f"it has {len(row)} cells, not {cells}")
        yield place, row


def _late(path: Path) -> dict[tuple[str, int], int]:
    """Each seed's floats that were sent in vain, too late or refused, at its last evaluation."""
    late: dict[tuple[str, int], tuple[int, int]] = {}
    for place, (algorithm, seed, when, direction, _, _, floats) in _table(path)[1]:
        if direction in ("late", "refused"):
            lane, round = (algorithm, _count(seed, place)), _count(when, place)
            last, sum = late.get(lane, (-1, 0))
            late[lane] = round, _count(floats, place) + (sum if last == round else 0)
    return {lane: sum for lane, (_, sum) in late.items()}


def _count(cell: str, place: str) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) < 20):
        raise _damaged(place, f"'{cell[:40]}' is not a count")
    return int(cell)


def _number(cell: str, place: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _damaged(place, f"'{cell[:40]}' is not a finite number")
    return min(max(value, -HUGE), HUGE)
