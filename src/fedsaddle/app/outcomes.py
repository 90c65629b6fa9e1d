"""Outcomes and run folders: one is written from the other, and a report from either."""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedsaddle.app.run import SILENT
from fedsaddle.border.values import How, plan_of
from fedsaddle.core import Pair, Remembers
from fedsaddle.engine.accounting import Content
from fedsaddle.engine.course import Flow, Row
from fedsaddle.engine.study import Event
from fedsaddle.errors import BadInput
from fedsaddle.outcome import Outcome
from fedsaddle.report import read_runs, write_report
from fedsaddle.runs import KEYS, Plan, RunFolder, read_checkpoint, read_tensors
from fedsaddle.tensorboard import TensorBoard


def read_outcome(folder: Path, plan: Plan) -> Outcome:
    """What a finished run has come to, as its folder has it."""
    studies = plan.studies.values()
    names = [name for study in studies for name in study.names]
    seeds = [seed for study in studies for seed in study.seeds]
    lane = {key: number for number, key in enumerate(zip(names, seeds, strict=True))}
    done = read_checkpoint(folder)["done"]
    z = []
    for name, seed in lane:
        stored = read_tensors(folder / "final" / f"{name}.safetensors", done[name])
        z.append(Pair(stored[f"{seed}.x"], stored[f"{seed}.y"]))
    events = [
        Event(lane[name, int(seed)], int(round), what, detail)
        for name, seed, round, what, detail in _rows(folder / "events.csv")
    ]
    ended = {event.lane for event in events if event.what in ("diverged", "dropped")}
    return Outcome(
        _evaluations(folder, lane),
        events,
        z,
        [number not in ended for number in range(len(z))],
        next(iter(plan.studies.values())).problem,
        tuple(names),
        tuple(seeds),
        folder,
    )


def _evaluations(folder: Path, lane: Mapping[tuple[str, int], int]) -> list[Row]:
    flows: dict[tuple[int, int], dict[Flow, int]] = {}
    for name, seed, round, direction, *content, floats in _rows(folder / "traffic.csv"):
        own = flows.setdefault((lane[name, int(seed)], int(round)), {})
        own[Flow(direction, Content(*content))] = int(floats)
    table = _rows(folder / "rounds.csv", header=True)
    metrics = table[0][len(KEYS["rounds.csv"]) :] if table else []
    found = []
    for name, seed, round, up, down, clock, *values in table[1:]:
        number = lane[name, int(seed)]
        numbers = dict(zip(metrics, map(float, values), strict=True))
        sent = flows.get((number, int(round)), {})
        found.append(Row(number, int(seed), int(round), int(up), int(down), float(clock), numbers, sent))
    return found


def _rows(path: Path, header: bool = False) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[0 if header else 1 :]


def save_outcome(outcome: Outcome, folder: Path) -> Path:
    """Write the folder of a run that was only simulated; of one that has a folder, a copy."""
    if outcome.folder is not None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder} is there already, and the run is in {outcome.folder}: choose another")
        shutil.copytree(
            outcome.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock", "*.part")
        )
        return folder
    if outcome.made is None:
        raise BadInput("this outcome does not know what it was made of: save what simulate or run returns")
    made, study = outcome.made, outcome.made.study
    names = study.names[:: len(set(study.seeds))]
    settings = dict(zip(names, made.settings, strict=True))
    key = names[0] if len(names) == 1 else "settings"
    plan = plan_of({key: study}, settings, How(made.rounds, made.evaluate_every, threads=made.threads))
    run = RunFolder(folder, plan, resume=False)
    try:
        run.record(study, made.end._replace(rows=outcome.rows, events=outcome.events))
        run.picture(study, made.end._replace(rows=outcome.rows[-len(study.seeds) :]))
        # What clients keep is not there any more, so an algorithm that needs it cannot go on.
        run.finish(key, made.end, keep=not isinstance(study.algorithm, Remembers))
        TensorBoard(folder, plan, SILENT).begin(key, 0)
    finally:
        run.close()
    return folder


def report_outcome(outcome: Outcome, path: Path | None) -> Path:
    """Write a report: of a run's folder, or of one that is made for this alone."""
    if outcome.folder is not None:
        return write_report(read_runs([outcome.folder]), path)
    if path is None:
        raise BadInput("a simulation has no folder of its own: say where, such as report('report.html')")
    with tempfile.TemporaryDirectory() as place:
        (run,) = read_runs([save_outcome(outcome, Path(place) / type(outcome.problem).__name__)])
        return write_report([replace(run, stays=False)], path)
