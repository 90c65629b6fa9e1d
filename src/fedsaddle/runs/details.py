"""What problems tell and show beside their metrics, for reports; no part of a checkpoint."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsaddle.engine.course import Stop
from fedsaddle.engine.study import Study, points
from fedsaddle.errors import Notice
from fedsaddle.pictures import grid, over_rounds
from fedsaddle.problem import Detailed, Held, Judged, Pictured
from fedsaddle.runs.files import write_atomically
from fedsaddle.runs.plan import Plan

REAL = "real.json"


def keep_details(folder: Path, plan: Plan, key: str, stop: Stop) -> None:
    """details/ALGORITHM.json: what the problem tells of the end of every seed that is alive.

    The run has its results by then. What cannot be told is no reason to lose them. A sweep's settings are
    many, and nobody would look at each.
    """
    study = plan.studies[key]
    if plan.by or not isinstance(study.problem, Detailed):
        return
    found: dict[str, dict[int, Any]] = {}
    away = isinstance(study.problem, Held) and study.problem.away
    lanes = zip(study.names, study.seeds, points(stop.lanes.server), stop.lanes.alive, strict=True)
    try:
        for name, seed, z, alive in lanes:
            told = study.problem.details(z) if alive else {}
            if away:  # of clients whose rows are on devices, nothing is known here
                told = {title: detail for title, detail in told.items() if detail.kind != "clients"}
            if wrong := next((title for title, detail in told.items() if not detail.valid), None):
                raise ValueError(f"'{wrong}' is not a Detail that can be drawn")
            if told:
                found.setdefault(name, {})[seed] = {title: one._asdict() for title, one in told.items()}
        files = {name: json.dumps(own, allow_nan=False).encode() for name, own in found.items()}
    except Exception as error:
        what = f"{type(study.problem).__name__}.details: {error}"
        warnings.warn(f"the report will lack details of {study.names[0]} ({what})", Notice, stacklevel=2)
        return
    for name, data in files.items():
        _write(folder / "details" / f"{name}.json", data)


def keep_pictures(folder: Path, plan: Plan, study: Study, stop: Stop) -> None:
    """What the first seed of each algorithm makes at an evaluation; and beside it, what it was to learn."""
    if not isinstance(study.problem, Pictured):
        return
    originals: dict[str, Tensor] = getattr(study.problem, "originals", dict)()
    for what, pictures in originals.items():
        if not (folder / what / "real.png").exists():
            _write(folder / what / "real.png", grid(pictures))
    keep_real_scores(folder, study)
    firsts = {study.names.index(name) for name in set(study.names)}
    for lane in (row.lane for row in stop.rows if row.lane in firsts):
        for what, pictures in study.problem.pictures(points(stop.lanes.server)[lane]).items():
            name = study.names[lane]
            _write(folder / what / f"{name}-{stop.round}.png", grid(pictures))
            _line_up(folder / what, plan, name, stop.round)


def keep_real_scores(folder: Path, study: Study) -> None:
    """real.json: what real pictures score by the same judge, without which no score says much."""
    if isinstance(study.problem, Judged) and not (folder / REAL).exists():
        found = study.problem.real_scores(study.device)
        write_atomically(folder / REAL, json.dumps(found, allow_nan=False).encode())


def _line_up(place: Path, plan: Plan, algorithm: str, last: int) -> None:
    """Put the pictures of an algorithm's rounds so far into one."""
    every, end = plan.evaluate_every, plan.rounds
    paths = [place / f"{algorithm}-{n}.png" for n in (*range(0, end, every), end) if n <= last]
    grids = [path.read_bytes() for path in paths if path.exists()]
    write_atomically(place / f"{algorithm}-rounds.png", over_rounds(grids))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, data)
