"""Outcomes and run folders: one is written from the other, and a report from either."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fedsaddle.app.run import SILENT
from fedsaddle.border.values import How, plan_of
from fedsaddle.core import Remembers
from fedsaddle.errors import BadInput
from fedsaddle.outcome import Outcome
from fedsaddle.report import read_runs, write_report
from fedsaddle.runs import RunFolder
from fedsaddle.tensorboard import TensorBoard


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
    if len(settings) < len(names):
        raise BadInput(f"several settings are called {names[0]}: say names=[...], one for each")
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
        name = type(outcome.problem).__name__
        return write_report(read_runs([save_outcome(outcome, Path(place) / name)]), path)
