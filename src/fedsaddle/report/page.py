"""report.html: one file that needs no other, with all values in a JSON block that its script draws from."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from fedsaddle import __version__
from fedsaddle.metric import Metric
from fedsaddle.report.comparing import FEW_SEEDS, Finding, by_ratios, common_budget, findings, verdict
from fedsaddle.report.details import timeline_of, told_of, traffic_of
from fedsaddle.report.folders import Pictures
from fedsaddle.report.reading import Evaluation, Lane, Run, Series, all_metrics
from fedsaddle.report.statistics import Place, Spread, curve, frame, scale_of, short, spread
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
MOST_POINTS = 120  # of a curve, evenly chosen: a screen has not many more
GENERATOR = '<meta name="generator" content="FedSaddle">'  # by which a page is known to be ours
SCRIPTS = ("base", "chart", "results", "details", "runs", "start")  # in this order
PLACED = ("round", "floats_up", "time_simulated", "spent")


def page(runs: Sequence[Run]) -> str:
    """The whole text of report.html."""
    return filled(as_block(page_data(runs)))


def filled(
    data: str, live: bool = False, template: str = "report.html", scripts: Sequence[str] = SCRIPTS
) -> str:
    """A page with its values. One that is live asks whoever serves it for new ones, and nobody else."""
    script = "\n".join(_part(f"{name}.js") for name in (*scripts, *(["live"] if live else [])))
    # Only this script may run, whatever a run's names and texts contain.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"script-src 'sha256-{digest}'" + ("; connect-src 'self'" if live else "")
    parts = {"policy": policy, "style": _part("style.css"), "script": script, "data": data}
    text = _part(template)
    for name, part in parts.items():  # the data last: nothing in them is a place for something else
        text = text.replace(f"{{{{{name}}}}}", part, 1)
    return text


def as_block(data: object) -> str:
    """JSON that may stand in a page: without a "<" no text can end the block it is in."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _part(name: str) -> str:
    return (files("fedsaddle.report") / "parts" / name).read_text(encoding="utf-8")


def page_data(runs: Sequence[Run]) -> dict[str, Any]:
    """All that the page shows."""
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
            {**_metric(name, metric, series, others), "real": _real(runs, name)}
            for name, metric in metrics.items()
        ],
        "costs": [_costs(finding) for finding in findings(series, next(iter(metrics)))],
        "budget": common_budget(series),
        "few": FEW_SEEDS,
        "details": told_of(series),
        "sweeps": [_family(family) for run in runs for family in families_of(run)],
    }


def _metric(name: str, metric: Metric, series: Sequence[Series], others: Sequence[Series]) -> dict[str, Any]:
    """What a metric means, how it is shown, and what was found by it."""
    curves = [places for one in (*series, *others) if (places := curve(one, name))]
    shown, found = frame(metric, curves), findings(series, name)
    highest = max(place.high for places in curves for place in places)
    return {
        "name": name,
        "better": metric.better,
        "rows": metric.rows,
        "chance": metric.chance,
        "scale": scale_of(metric, curves),
        "top": shown.high if shown.high < highest else None,  # where the chart ends before the curves do
        "positive": shown.low > 0,
        "share": metric.better == "high" and highest <= 1 and shown.low >= 0,
        "ratios": metric.ranks and by_ratios(found),
        "answer": verdict(found, name, metric),
        "found": [_row(finding) for finding in found],
    }


def _real(runs: Sequence[Run], metric: str) -> list[float]:
    """What real rows have: a number for each judge that there was."""
    return sorted({_digits(run.real[metric]) for run in runs if metric in run.real})


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
        "best": family.told(),
        "warning": CHOSEN_BY_TEST.format(family.by) if family.by_test else "",
        "value": family.value_of(family.by),
        "tried": len(family.tried),
        "diverged": family.diverged,
        "dropped": family.dropped,
        "map": heat and {"x": heat.x, "y": heat.y, "xs": heat.xs, "ys": heat.ys, "cells": cells},
    }


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
        "again": f"fedsaddle {command} {shlex.quote(folder + '/experiment.json')} --out runs/again"
        if run.stays
        else "",
    }


# --- curves ----------------------------------------------------------------------------------------------


def _series(series: Series, metrics: Sequence[str]) -> dict[str, Any]:
    curves = {metric: places for metric in metrics if (places := curve(series, metric))}
    # All metrics are measured at the same evaluations, so they share their places on the axes.
    places = _thinned(next(iter(curves.values()), []))
    kept = {place.round for place in places}
    drawn = series.lanes if len(series.lanes) <= MOST_SEEDS else []
    axes = _axes(places)
    return {
        "label": series.label,
        "axes": axes,
        "curves": {
            metric: _columns([place for place in own if place.round in kept])
            for metric, own in curves.items()
        },
        "lanes": [_lane(lane, metrics, kept, axes) for lane in drawn],
        "diverged": [
            {"seed": lane.seed, "told": lane.diverged, **_end(lane)} for lane in series.lanes if lane.diverged
        ],
        "collapsed": [
            {"seed": one.seed, "told": f"round {one.round}: {one.detail}"}
            for one in series.happened
            if one.what == "collapsed"
        ],
        "abandoned": series.abandoned,
        "trouble": series.trouble,
        "timeline": timeline_of(series),
        "traffic": traffic_of(series),
        "pictures": series.pictures and _pictures(series.pictures),
    }


def _thinned(places: Sequence[Place]) -> list[Place]:
    """At most so many, the first and the last among them."""
    if len(places) <= MOST_POINTS:
        return list(places)
    last = len(places) - 1
    return [places[round(number * last / (MOST_POINTS - 1))] for number in range(MOST_POINTS)]


def _columns(places: Sequence[Place]) -> dict[str, Any]:
    seeds = [place.values.seeds for place in places]
    return {
        "mean": short([place.values.mean for place in places]),
        "std": short([place.values.std or 0.0 for place in places], 3),
        "seeds": seeds if len(set(seeds)) > 1 else seeds[:1],  # one for all
    }


def _axes(places: Sequence[Place] | Sequence[Evaluation]) -> dict[str, list[float]]:
    """Where some evaluations are on each axis. The wall's clock is one only where it was always kept."""
    found = {}
    for name in PLACED:
        values = [getattr(place, name) for place in places]
        if None not in values:
            found[name] = short(values)
    return found


def _lane(lane: Lane, metrics: Sequence[str], kept: set[int], axes: dict[str, list[float]]) -> dict[str, Any]:
    """A seed's values, and where it is on the axes if that is not where the mean is.

    What lies close below 1 is also shown as the little that is missing, which needs more digits.
    """
    shares = {name for name in metrics if all(0 <= p.metrics.get(name, 2) <= 1 for p in lane.points)}
    points = [point for point in lane.points if point.round in kept]
    own = {name: xs for name, xs in _axes(points).items() if xs != axes.get(name, [])[: len(xs)]}
    values = {
        metric: short([point.metrics[metric] for point in points], 7 if metric in shares else 5)
        for metric in metrics
        if points and metric in points[0].metrics
    }
    return {"seed": lane.seed, "axes": own, "values": values}


def _end(lane: Lane) -> dict[str, Any]:
    """The last point of a seed that diverged, if it had one."""
    return {"axes": _axes(lane.points[-1:]), "values": lane.points[-1].metrics} if lane.points else {}


def _pictures(pictures: Pictures) -> dict[str, Any]:
    def embedded(png: bytes) -> str:
        return f"data:image/png;base64,{base64.b64encode(png).decode()}"

    return {
        "round": pictures.round,
        "last": embedded(pictures.last),
        "over_rounds": embedded(pictures.over_rounds),
        "rounds": pictures.rounds,
        "real": pictures.real and embedded(pictures.real),
    }


# --- the table -------------------------------------------------------------------------------------------


def _told(values: dict[int, float]) -> dict[str, Any] | None:
    found: Spread | None = spread(list(values.values()))
    return found and {name: _digits(value) for name, value in found._asdict().items()}


def _costs(finding: Finding) -> dict[str, Any]:
    """What does not depend on the metric."""
    counts, measured = ("label", "reached", "abandoned"), ("floats_up", "late", "seconds")
    return {
        **{name: getattr(finding, name) for name in counts},
        **{name: _told(getattr(finding, name)) for name in measured},
    }


def _row(finding: Finding) -> dict[str, Any]:
    counts = ("label", "seeds", "reached", "rounds", "diverged", "collapsed", "standing")
    against = finding.against
    return {
        **{name: getattr(finding, name) for name in counts},
        **{name: _told(getattr(finding, name)) for name in ("final", "best", "last", "area")},
        "median": _digits(finding.median),
        "dead": {name: _digits(value) for name, value in finding.dead._asdict().items()},
        "against": against and {name: _digits(value) for name, value in against._asdict().items()},
    }


def _digits(value: Any) -> Any:
    return short([value])[0] if isinstance(value, float) else value
