"""What a sweep has found: the best setting of every algorithm, and how the others did around it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from fedsaddle.metric import Metric
from fedsaddle.report.reading import Run, Series
from fedsaddle.sweep import Score, score, to_toml

MOST_SERIES = 30  # curves of a sweep that a page holds
MOST_TICKS = 24  # values of a hyperparameter that a heat map tells apart
MOST_MAPS = 24  # of an algorithm, in one picture
CHOSEN_BY_TEST = (
    "THE SETTINGS WERE CHOSEN BY {}, WHICH LOOKS AT TEST ROWS. What the winners reach there is optimistic: "
    "to compare algorithms, choose by a validation split or by a training metric"
)


class Cell(NamedTuple):
    """The best setting at one place of a heat map."""

    x: int
    y: int
    series: Series


class HeatMap(NamedTuple):
    """Settings over the two hyperparameters with most values; over the others, the best."""

    x: str
    y: str  # none, if only one is varied
    xs: list[str]
    ys: list[str]
    cells: list[Cell]
    title: str  # where the others are, if not at their best


@dataclass(frozen=True)
class Family:
    """The settings of one algorithm of a sweep."""

    name: str
    by: str
    metric: Metric
    tried: list[Series]  # the best first

    @property
    def by_test(self) -> bool:
        return self.metric.rows == "test"

    @property
    def best(self) -> Series | None:
        first = self.tried[0] if self.tried else None
        return first if first is not None and value_of(first, self.by) is not None else None

    @property
    def diverged(self) -> int:
        """Settings that lost a seed."""
        return sum(any(lane.diverged for lane in one.lanes) for one in self.tried)

    @property
    def dropped(self) -> int:
        return sum(is_dropped(one) for one in self.tried)

    def value_of(self, metric: str) -> float | None:
        return None if self.best is None else value_of(self.best, metric)

    def told(self) -> str:
        """The best setting: its name, and the values that were varied."""
        if self.best is None:
            return "none"
        values = ", ".join(f"{key} {setting_shown(self.best.setting[key])}" for key in self.varied)
        return f"{self.best.label}{f' ({values})' if values else ''}"

    @cached_property
    def varied(self) -> dict[str, list[float]]:
        """The hyperparameters that differ, with their values; one that only follows another is left out."""
        keys = dict.fromkeys(key for one in self.tried for key in one.setting)
        columns: dict[str, tuple[Any, ...]] = {}
        for key in keys:
            column = tuple(one.setting.get(key) for one in self.tried)
            numbers = all(isinstance(value, int | float) for value in column)
            if numbers and len(set(column)) > 1 and column not in columns.values():
                columns[key] = column
        return {key: sorted(set(column)) for key, column in columns.items()}

    @cached_property
    def heat_map(self) -> HeatMap | None:
        return self._map(self.tried, "")

    @cached_property
    def heat_maps(self) -> list[list[HeatMap]]:
        """Rows of maps: one for each value of one or two more hyperparameters, if there are not too many."""
        others = sorted(self.varied, key=lambda key: -len(self.varied[key]))[2:]
        places = list(product(*(self.varied[key] for key in others)))
        if not 1 <= len(others) <= 2 or len(places) > MOST_MAPS:
            return [[self.heat_map]] if self.heat_map else []
        maps = []
        for place in places:
            tried = [one for one in self.tried if tuple(one.setting[key] for key in others) == place]
            title = ", ".join(
                f"{key} {setting_shown(value)}" for key, value in zip(others, place, strict=True)
            )
            maps += [found] if (found := self._map(tried, title)) else []
        wide = len(self.varied[others[-1]])
        return [maps[at : at + wide] for at in range(0, len(maps), wide)]

    def _map(self, tried: Sequence[Series], title: str) -> HeatMap | None:
        most = sorted(self.varied, key=lambda key: -len(self.varied[key]))[:2]
        if not most:
            return None
        x, y = most[0], most[1] if len(most) > 1 else ""
        xs, ys = _bins(self.varied[x]), _bins(self.varied[y]) if y else [[0.0]]
        cells: dict[tuple[int, int], Series] = {}
        for one in tried:  # the best first
            place = _place(xs, one.setting[x]), _place(ys, one.setting[y]) if y else 0
            cells.setdefault(place, one)
        return HeatMap(
            x, y, [_tick(bin) for bin in xs], [_tick(bin) for bin in ys] if y else [""],
            [Cell(*place, series) for place, series in sorted(cells.items(), key=lambda item: item[0])],
            title,
        )  # fmt: skip

    @cached_property
    def shades(self) -> dict[str, float]:
        """How dark each setting that has a value is drawn: 0 for the worst, 1 for the best, by rank.

        By value, a few that failed would make all others look alike.
        """
        values = {one.label: value for one in self.tried if (value := value_of(one, self.by)) is not None}
        ranks = {value: rank for rank, value in enumerate(sorted(set(values.values())))}
        last = max(1, len(ranks) - 1)
        parts = {label: ranks[value] / last for label, value in values.items()}
        turned = self.metric.better == "high" and len(ranks) > 1  # one alone is the best
        return {label: part if turned else 1 - part for label, part in parts.items()}


def _bins(values: Sequence[float]) -> list[list[float]]:
    """Sorted values, neighbours together if there are too many."""
    size = math.ceil(len(values) / MOST_TICKS)
    return [list(values[at : at + size]) for at in range(0, len(values), size)]


def _place(bins: Sequence[Sequence[float]], value: float) -> int:
    return next(number for number, bin in enumerate(bins) if value in bin)


def _tick(bin: Sequence[float]) -> str:
    return setting_shown(bin[0]) if len(bin) == 1 else f"{setting_shown(bin[0])} to {setting_shown(bin[-1])}"


def setting_shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def is_dropped(series: Series) -> bool:
    return any(lane.dropped for lane in series.lanes)


def value_of(series: Series, metric: str) -> float | None:
    """The mean over the seeds that did not diverge: at the end, or where the setting was dropped."""
    values = [
        lane.points[-1].metrics.get(metric) for lane in series.lanes if lane.points and not lane.diverged
    ]
    found = [value for value in values if value is not None]
    return fmean(found) if found else None


def families_of(run: Run) -> list[Family]:
    """Of a sweep, its algorithms; of a plain run, none."""
    sweep = run.experiment.get("sweep")
    by = sweep.get("by") if isinstance(sweep, dict) else None
    if not isinstance(by, str) or by not in run.metrics:
        return []
    metric = run.metrics[by]
    found: dict[str, list[Series]] = {}
    for one in run.series:
        if one.family:
            found.setdefault(one.family, []).append(one)

    def worth(one: Series) -> Score:
        alive = [lane for lane in one.lanes if lane.points and not lane.diverged]
        values = {lane.seed: lane.points[-1].metrics[by] for lane in alive}
        plain = score(metric, list(values.values()), len(one.lanes), is_dropped(one))
        fell = {each.seed for each in one.happened if each.what == "collapsed"}
        # Those that ended at chance are counted already.
        froze = [seed for seed in fell & values.keys() if not metric.collapsed(values[seed])]
        return plain._replace(lost=plain.lost + len(froze))

    return [Family(name, by, metric, sorted(tried, key=worth)) for name, tried in found.items()]


def main_series(runs: Sequence[Run]) -> list[Series]:
    """What the curves and the table are about: of a sweep, only the best of each algorithm."""
    found: list[Series] = []
    for run in runs:
        families = families_of(run)
        found += [family.tried[0] for family in families] if families else run.series
    return found


def other_series(runs: Sequence[Run], most: int) -> list[Series]:
    """Further settings of sweeps, the second best of each algorithm first."""
    queues = [family.tried[1:] for run in runs for family in families_of(run)]
    depth = max(map(len, queues), default=0)
    return [queue[place] for place in range(depth) for queue in queues if place < len(queue)][: max(0, most)]


def winners_toml(run: Run) -> str:
    """The best settings as an experiment of their own."""
    families = families_of(run)
    tables = {key: value for key, value in run.experiment.items() if key != "sweep"}
    winners = {family.name: dict(family.best.setting) for family in families if family.best is not None}
    for name, table in winners.items():
        if table.get("algorithm") == name:
            del table["algorithm"]
    notes = [f"The best of each algorithm's settings by {families[0].by}, found by a sweep."]
    if families[0].by_test:
        notes.append(f"{CHOSEN_BY_TEST.format(families[0].by)}.")
    notes.append(
        "The seeds are those that chose; to compare algorithms, run it with others: --seeds 100-104."
    )
    return "".join(f"# {note}\n" for note in notes) + to_toml(tables | {"algorithms": winners})


def file_of(run: Run, family: Family, alone: bool) -> str | None:
    """What the picture of a heat map is called, if its names can be a file's."""
    name = f"heatmap-{family.name}.png" if alone else f"heatmap-{run.folder.resolve().name}-{family.name}.png"
    return name if re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name) else None
