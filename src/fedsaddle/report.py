"""What a run has found: a table for the terminal and a picture of the curves."""

from __future__ import annotations

import csv
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

from fedsaddle.runs import KEYS

matplotlib.use("Agg")  # no screen is needed to write a file

from matplotlib import pyplot as plt

Curve = list[tuple[float, list[float]]]  # a place on the axis, and each seed's value there


@dataclass(frozen=True)
class Finding:
    """One algorithm, over its seeds."""

    algorithm: str
    final: list[float]  # the first metric after the last round, of the seeds that got there
    floats_up: list[float]  # of the same seeds
    seconds: list[float]  # simulated, of the same seeds
    abandoned: int  # rounds
    diverged: int  # seeds


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def metric_of(folder: Path) -> str:
    """The first metric of a run, which it is judged by."""
    with (folder / "rounds.csv").open(encoding="utf-8") as file:
        columns = file.readline().strip().split(",")
    return columns[len(KEYS["rounds.csv"])]


def findings(folder: Path) -> list[Finding]:
    rows, events, metric = _read(folder / "rounds.csv"), _read(folder / "events.csv"), metric_of(folder)
    rounds = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))["rounds"]
    found = []
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        ends = [row for row in rows if row["algorithm"] == algorithm and int(row["round"]) == rounds]
        happened = [event["event"] for event in events if event["algorithm"] == algorithm]
        final, floats_up, seconds = (
            [float(row[column]) for row in ends] for column in (metric, "floats_up", "time_simulated")
        )
        counts = happened.count("abandoned"), happened.count("diverged")
        found.append(Finding(algorithm, final, floats_up, seconds, *counts))
    return found


def mean_and_spread(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4g}{spread}"


def draw(folder: Path) -> Path:
    """The first metric against floats up and rounds: a line for each algorithm's mean, a band for seeds."""
    rows, metric = _read(folder / "rounds.csv"), metric_of(folder)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    values = [float(row[metric]) for row in rows]
    over_decades = min(values) > 0 and max(values) > 100 * min(values)
    for axis, (column, label) in zip(
        axes, [("floats_up", "floats sent up"), ("round", "rounds")], strict=True
    ):
        for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
            curve = _curve([row for row in rows if row["algorithm"] == algorithm], column, metric)
            places = [place for place, _ in curve]
            line: Any = axis.plot(places, [statistics.fmean(values) for _, values in curve], label=algorithm)[
                0
            ]
            low, high = ([pick(values) for _, values in curve] for pick in (min, max))
            axis.fill_between(places, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
        if over_decades:
            axis.set_yscale("log")
    axes[0].set_ylabel(metric)
    axes[1].legend(fontsize="small")
    path = folder / "curves.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _curve(rows: list[dict[str, str]], column: str, metric: str) -> Curve:
    """Seeds side by side at each evaluation, placed at their mean on the axis."""
    at: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        at[int(row["round"])].append((float(row[column]), float(row[metric])))
    return [
        (statistics.fmean(place for place, _ in seeds), [value for _, value in seeds])
        for _, seeds in sorted(at.items())
    ]
