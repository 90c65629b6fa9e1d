"""What problems tell and show beside their metrics, for reports; no part of a checkpoint."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from fedsaddle.engine.course import Stop
from fedsaddle.engine.study import points
from fedsaddle.errors import Notice
from fedsaddle.pictures import grid
from fedsaddle.problem import Detailed, Held
from fedsaddle.runs.files import write_atomically
from fedsaddle.runs.plan import Plan


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
        (folder / "details").mkdir(exist_ok=True)
        write_atomically(folder / "details" / f"{name}.json", data)


def keep_originals(folder: Path, problem: object) -> None:
    """What a problem that makes pictures was to learn, once, beside what it makes."""
    originals = getattr(problem, "originals", dict)()
    for what, pictures in originals.items():
        if not (folder / what / "real.png").exists():
            (folder / what).mkdir(exist_ok=True)
            write_atomically(folder / what / "real.png", grid(pictures))
