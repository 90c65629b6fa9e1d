"""The paper whole: run the trials behind its exhibits, those that are left, and write the page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.app.jobs import hands_beside
from fedsaddle.app.run import PLAINLY, Way
from fedsaddle.app.sitting import Sitting, resuming
from fedsaddle.border.slips import exhibits_named
from fedsaddle.engine.machine import device_named
from fedsaddle.errors import BadInput
from fedsaddle.paper.exhibits import EXHIBITS
from fedsaddle.paper.forms import FULL, Form
from fedsaddle.paper.hall import hall_of
from fedsaddle.paper.page import write_page
from fedsaddle.paper.trials import Trial, trials
from fedsaddle.paper.winners import NothingSurvived, experiment_of_trial
from fedsaddle.report.spent import is_begun, is_finished


class Reproduced(NamedTuple):
    """Where the page is, what became of the claims, and how it ended: 0, or a number of `exits`."""

    page: Path
    told: str
    code: int


def reproduce(
    names: Sequence[str],
    *,
    out: Path = Path("runs/paper"),
    form: Form = FULL,
    device: str | None = None,
    resume: bool = False,
    minutes: float | None = None,
    jobs: int = 1,
    page: Path | None = None,
    command: str = "",
    way: Way = PLAINLY,
) -> Reproduced:
    """Run the trials behind some exhibits, or those that are left, and write the page of all there is.

    After so many `minutes` it stops as Ctrl-C does: with a checkpoint, to be resumed. With `jobs`, so many
    trials are run at once.
    """
    wanted, every = exhibits_named(names), trials(form)
    place = page or out / "paper.md"
    if not resume and any(is_begun(out / name) for name in every):
        raise BadInput(f"{out} already holds trials: go on with --resume, or choose another --out")
    for folder, what in ((out, "keep trials in"), (place.parent, "write a page into")):
        _make(folder, what)
    device_named(device or "auto")
    command = command or f"fedsaddle reproduce {' '.join(names)}"
    run_left = partial(_run_left, names, out, form, device, None, command)
    jobs = min(jobs, sum(not is_finished(out / name) for name in _behind(wanted, every)))
    with hands_beside(jobs, run_left, way.show):
        code = _run_left(names, out, form, device, minutes, command, way)
    return Reproduced(place, write_page(hall_of(form, out, place.parent), place, command), code)


def _run_left(
    names: Sequence[str],
    out: Path,
    form: Form,
    device: str | None,
    minutes: float | None,
    command: str,
    way: Way,
) -> int:
    """Run what is left of the trials behind some exhibits, to an exit code."""
    every = trials(form)
    behind = _behind(exhibits_named(names), every)

    def tables(trial: Trial) -> dict[str, Any] | None:
        try:
            return experiment_of_trial(trial, out)
        except NothingSurvived as error:
            way.show.say(f"{trial.name} is left out: {error}")
            return None

    sitting = Sitting[Trial](out, device, minutes, way, resuming(command), tables)
    return sitting.through([one for one in every.values() if one.name in behind])


def _make(folder: Path, what: str) -> None:
    """Before hours of work, rather than after them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot {what} {folder}: {error.strerror}") from error


def _behind(names: Sequence[str], every: dict[str, Trial]) -> set[str]:
    return {trial.name for name in names for trial in EXHIBITS[name].needed(every)}
