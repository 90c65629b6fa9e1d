"""report.html: one file that needs no other, with all values in a JSON block that its script draws from."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from fedsaddle import __version__
from fedsaddle.metric import Metric
from fedsaddle.report.reading import Lane, Pictures, Run, Series, all_metrics
from fedsaddle.report.statistics import (
    Finding,
    Place,
    Spread,
    budget,
    curve,
    findings,
    frame,
    spread,
)
from fedsaddle.report.sweeps import (
    CHOSEN_BY_TEST,
    MOST_SERIES,
    Family,
    families_of,
    is_dropped,
    main_series,
    other_series,
    value_of,
)

MOST_SEEDS = 32  # that can be drawn one by one; more would make the page heavy and nobody wiser
GENERATOR = '<meta name="generator" content="FedSaddle">'  # by which a page is known to be ours


def page(runs: Sequence[Run]) -> str:
    """The whole text of report.html."""
    template = (files("fedsaddle.report") / "report.html").read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", template, flags=re.S)
    # Only this script may run, whatever a run's names and texts contain.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Without a "<" no text can end the block it is in.
    data = json.dumps(_data(runs), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return template.replace("{{script}}", f"sha256-{digest}").replace("{{data}}", data)


def _data(runs: Sequence[Run]) -> dict[str, Any]:
    series, metrics = main_series(runs), all_metrics(runs)
    others = other_series(runs, MOST_SERIES - len(series))
    return {
        "version": __version__,
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "runs": [_run(run) for run in runs],
        "series": [
            {**_series(one, list(metrics)), "off": off}
            for off, some in ((False, series), (True, others))
            for one in some
        ],
        "metrics": [
            {
                "name": name,
                "high": metric.better == "high",
                "chance": metric.chance,
                **_frame(metric, [curve(one, name) for one in (*series, *others)]),
                "rows": [_row(finding) for finding in findings(series, name)],
            }
            for name, metric in metrics.items()
        ],
        "budget": budget(series),
        "sweeps": [_family(family) for run in runs for family in families_of(run)],
    }


def _family(family: Family) -> dict[str, Any]:
    """One algorithm of a sweep."""
    heat = family.heat_map
    cells = [
        {
            "x": cell.x,
            "y": cell.y,
            "told": cell.series.label,
            "value": value_of(cell.series, family.by),
            "shade": family.shades.get(cell.series.label),
            "lost": sum(bool(lane.diverged) for lane in cell.series.lanes),
            "seeds": cell.series.seeds,
            "dropped": is_dropped(cell.series),
            "best": cell.series is family.best,
        }
        for cell in (heat.cells if heat else [])
    ]
    return {
        "name": family.name,
        "by": family.by,
        "high": family.metric.better == "high",
        "best": family.told(),
        "warning": CHOSEN_BY_TEST.format(family.by) if family.by_test else "",
        "value": family.value_of(family.by),
        "tried": len(family.tried),
        "diverged": family.diverged,
        "dropped": family.dropped,
        "map": heat and {"x": heat.x, "y": heat.y, "xs": heat.xs, "ys": heat.ys, "cells": cells},
    }


def _frame(metric: Metric, curves: list[list[Place]]) -> dict[str, Any]:
    shown = frame(metric, curves)
    return {"top": shown.high, "logarithmic": shown.over_decades, "positive": shown.low > 0}


def _run(run: Run) -> dict[str, Any]:
    folder, experiment, command = str(run.folder), dict(run.experiment), "run"
    if families_of(run):
        command = "sweep"
        # What the algorithms' table shows need not be said twice.
        experiment["sweep"] = {key: value for key, value in experiment["sweep"].items() if key != "settings"}
    return {
        "folder": folder,
        "unfinished": run.unfinished,
        "experiment": experiment,
        "environment": run.environment,
        "again": f"fedsaddle {command} {shlex.quote(folder + '/experiment.json')} --out runs/again",
    }


def _series(series: Series, metrics: Sequence[str]) -> dict[str, Any]:
    curves = {}
    for metric in metrics:
        if places := curve(series, metric):
            columns = {name: [getattr(place, name) for place in places] for name in ("low", "high")}
            columns |= {name: [getattr(place.values, name) for place in places] for name in ("mean", "seeds")}
            curves[metric] = _axes(places) | {name: _short(values) for name, values in columns.items()}
    drawn = series.lanes if len(series.lanes) <= MOST_SEEDS else []
    return {
        "label": series.label,
        "curves": curves,
        "lanes": [_lane(lane, metrics) for lane in drawn],
        "diverged": [
            {"seed": lane.seed, "told": lane.diverged, **_end(lane)} for lane in series.lanes if lane.diverged
        ],
        "abandoned": series.abandoned,
        "trouble": series.trouble,
        "pictures": series.pictures and _pictures(series.pictures),
    }


def _pictures(pictures: Pictures) -> dict[str, Any]:
    def embedded(png: bytes) -> str:
        return f"data:image/png;base64,{base64.b64encode(png).decode()}"

    return {
        "round": pictures.round,
        "last": embedded(pictures.last),
        "over_rounds": embedded(pictures.over_rounds),
    }


def _lane(lane: Lane, metrics: Sequence[str]) -> dict[str, Any]:
    values = {
        metric: _short([point.metrics[metric] for point in lane.points])
        for metric in metrics
        if lane.points and metric in lane.points[0].metrics
    }
    return {"seed": lane.seed, **_axes(lane.points), "values": values}


def _end(lane: Lane) -> dict[str, Any]:
    """The last point of a seed that diverged, if it had one."""
    return {**_axes(lane.points[-1:]), "values": lane.points[-1].metrics} if lane.points else {}


def _axes(places: Sequence[Any]) -> dict[str, list[float]]:
    return {
        name: _short([getattr(place, name) for place in places])
        for name in ("round", "floats_up", "time_simulated")
    }


def _short(values: Sequence[float]) -> list[float]:
    """Seven digits, which is more than a screen can show."""
    return [value if isinstance(value, int) else float(f"{value:.7g}") for value in values]


def _row(finding: Finding) -> dict[str, Any]:
    def told(values: dict[int, float]) -> dict[str, Any] | None:
        found: Spread | None = spread(list(values.values()))
        return found and found._asdict()

    counts = ("label", "seeds", "reached", "rounds", "abandoned", "diverged", "collapsed")
    measured = ("final", "best", "area", "floats_up", "late", "seconds")
    return {
        **{name: getattr(finding, name) for name in counts},
        **{name: told(getattr(finding, name)) for name in measured},
        "against": finding.against and finding.against._asdict(),
    }
