"""What problems tell of the ends of their seeds, put together over the seeds of each algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from fedsaddle.problem import Detail
from fedsaddle.report.reading import Series
from fedsaddle.report.statistics import short, spread

MOST_LINES = 10  # seeds of one algorithm whose lines are drawn
MOST_PARTS = 120  # of a timeline
MOST_EVENTS = 200  # of an algorithm, told one by one


def told_of(series: Sequence[Series]) -> list[dict[str, Any]]:
    """For each title: how it is drawn, and every algorithm's own."""
    found: dict[str, dict[str, Any]] = {}
    for index, one in enumerate(series):
        titles = dict.fromkeys(title for lane in one.alive for title in lane.details)
        for title in titles:
            own = {lane.seed: lane.details[title] for lane in one.alive if title in lane.details}
            first = next(iter(own.values()))
            alike = {seed: detail for seed, detail in own.items() if _shape(detail) == _shape(first)}
            whole = found.setdefault(
                title,
                {
                    "title": title,
                    "kind": first.kind,
                    "columns": list(first.columns),
                    "better": first.better,
                    "own": [],
                },
            )
            if (whole["kind"], whole["columns"]) == (first.kind, list(first.columns)):
                whole["own"].append({"series": index, "seeds": len(alike), **PUT_TOGETHER[first.kind](alike)})
    return list(found.values())


def _shape(detail: Detail) -> tuple[Any, ...]:
    """What seeds must have alike to be put together."""
    columns = list(detail.columns.values())
    if detail.kind == "line":
        return detail.kind, tuple(detail.columns)
    fixed = columns[: 2 if detail.kind == "histogram" else 1]
    return detail.kind, tuple(detail.columns), tuple(map(tuple, fixed))


def _lines(own: dict[int, Detail]) -> dict[str, Any]:
    some = list(own.items())[:MOST_LINES]
    return {"lines": [{"seed": seed, "xy": list(map(short, one.columns.values()))} for seed, one in some]}


def _means(own: dict[int, Detail]) -> dict[str, Any]:
    """Names, and over the seeds the mean and standard deviation of each column at each."""
    first = next(iter(own.values()))
    names, *rest = first.columns
    values = []
    for column in rest:
        rows = zip(*(one.columns[column] for one in own.values()), strict=True)
        places = [spread(list(row)) for row in rows]
        means = short([place.mean for place in places if place])
        values.append({"mean": means, "std": short([(place.std or 0.0) for place in places if place])})
    return {"names": [str(name) for name in first.columns[names]], "values": values}


def _sums(own: dict[int, Detail]) -> dict[str, Any]:
    """Edges, and counts added up over the seeds."""
    first = next(iter(own.values()))
    low, high, *rest = first.columns
    counts = [
        [sum(row) for row in zip(*(one.columns[column] for one in own.values()), strict=True)]
        for column in rest
    ]
    return {"low": first.columns[low], "high": first.columns[high], "counts": counts}


PUT_TOGETHER: dict[str, Callable[[dict[int, Detail]], dict[str, Any]]] = {
    "line": _lines,
    "bars": _means,
    "clients": _means,
    "histogram": _sums,
}


def traffic_of(series: Series) -> list[dict[str, Any]]:
    """Floats by direction, variable and kind, the mean over the seeds that are alive."""
    lanes = series.alive
    keys = sorted({key for lane in lanes for key, floats in lane.flows.items() if floats})
    return [
        {
            **dict(zip(("direction", "variable", "kind"), key, strict=True)),
            "floats": fmean(lane.flows.get(key, 0) for lane in lanes),
        }
        for key in keys
    ]


def timeline_of(series: Series) -> dict[str, Any]:
    """When rounds were abandoned, counted in equal parts of them; and what else happened, one by one."""
    parts = min(MOST_PARTS, max(1, series.rounds))
    abandoned = [0] * parts
    others: list[dict[str, Any]] = []
    for one in series.happened:
        if one.what == "abandoned":
            abandoned[min(parts - 1, one.round * parts // max(1, series.rounds))] += 1
        elif len(others) < MOST_EVENTS:
            others.append({"round": one.round, "seed": one.seed, "what": one.what})
    # How many could have been abandoned in a part, so that a full one can be told.
    most = max(1.0, series.rounds / parts * len(series.lanes))
    return {
        "rounds": series.rounds,
        "parts": [round(count / most, 3) for count in abandoned] if any(abandoned) else [],
        "others": others,
    }
