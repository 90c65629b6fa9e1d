"""The paper whole: run the trials behind its exhibits, those that are left, and write the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.app.run import PLAINLY, Way
from fedsaddle.app.sitting import Sitting, resuming
from fedsaddle.engine.machine import device_named
from fedsaddle.errors import BadInput, meant, unknown
from fedsaddle.paper.exhibits import EXHIBITS
from fedsaddle.paper.forms import FULL, Form
from fedsaddle.paper.hall import Hall, hall_of
from fedsaddle.paper.page import write_page
from fedsaddle.paper.trials import Trial, trials
from fedsaddle.report.reading import read_run
from fedsaddle.report.spent import is_begun, spent_on
from fedsaddle.report.sweeps import families_of

EVERYTHING = "all"


class Reproduced(NamedTuple):
    """Where the page is, what became of the claims, and how it ended: 0, or a number of `exits`."""

    page: Path
    told: str
    code: int


def exhibits_named(names: Sequence[str]) -> list[str]:
    """The exhibits that are meant; `all` is every one."""
    if not names:
        raise BadInput(f"say what: {EVERYTHING}, or some of {', '.join(EXHIBITS)}")
    found = list(dict.fromkeys(meant(name, [EVERYTHING, *EXHIBITS]) for name in names))
    for name in found:
        if name not in EXHIBITS and name != EVERYTHING:
            raise unknown("exhibit", name, [EVERYTHING, *EXHIBITS])
    return list(EXHIBITS) if EVERYTHING in found else found


def reproduce(
    names: Sequence[str],
    *,
    out: Path = Path("runs/paper"),
    form: Form = FULL,
    device: str | None = None,
    resume: bool = False,
    minutes: float | None = None,
    page: Path | None = None,
    command: str = "",
    way: Way = PLAINLY,
) -> Reproduced:
    """Run the trials behind some exhibits, or those that are left, and write the page of all there is.

    After so many `minutes` it stops as Ctrl-C does: with a checkpoint, to be resumed.
    """
    wanted, every = exhibits_named(names), trials(form)
    place = page or out / "paper.md"
    chosen = [one for one in every.values() if one.name in _behind(wanted, every)]
    if not resume and any(is_begun(out / name) for name in every):
        raise BadInput(f"{out} already holds trials: go on with --resume, or choose another --out")
    command = command or f"fedsaddle reproduce {' '.join(names)}"
    sitting = Sitting[Trial](
        out, device, minutes, way, resuming(command), lambda trial: experiment_of_trial(trial, out)
    )
    code = sitting.through(chosen)
    return Reproduced(place, write_page(hall_of(form, out, place.parent), place, command), code)


def _behind(names: Sequence[str], every: dict[str, Trial]) -> set[str]:
    return {trial.name for name in names for trial in EXHIBITS[name].needed(every)}


def experiment_of_trial(trial: Trial, out: Path) -> dict[str, Any]:
    """The tables of a trial's experiment, with the winners of the sweep before it, if there is one."""
    if not trial.after:
        return trial.tables
    winners = {
        family.name: family.best.setting
        for family in families_of(read_run(out / trial.after))
        if family.best is not None
    }
    own = trial.tables["algorithms"]
    if not winners.keys() & own.keys():
        raise BadInput(f"{out / trial.after}: of no algorithm a setting survived, so there is nothing to run")
    settings = {
        name: {**winners[name], "invite": table["invite"]} for name, table in own.items() if name in winners
    }
    return trial.tables | {"algorithms": settings}


# --- what there is, and how long it takes ----------------------------------------------------------------

# Seconds a round of one lane, as far as was measured before anything has run here: lanes together on one H200
# (docs/results), and on two cores.
SECONDS = {
    "cuda": {"auc": 0.005, "robust": 0.006, "gan": 0.15, "rates": 0.001},
    "cpu": {"auc": 0.25, "robust": 0.4, "gan": 5.0, "rates": 0.002},
    "digits": {"auc": 0.006, "robust": 0.02, "gan": 0.1, "rates": 0.002},
}


class Outlook(NamedTuple):
    """How far an exhibit is, and how long what is left may take. Trials may be behind several exhibits."""

    name: str
    title: str
    done: int
    trials: int
    seconds: float  # that what is left will take, by what was measured
    here: bool  # whether all of that was measured on this form, in these folders


def estimates(out: Path, form: Form = FULL, device: str | None = None) -> list[Outlook]:
    """All exhibits, and at last all of them together."""
    every = trials(form)
    hall = hall_of(form, out, out)
    pace = _pace(hall)
    far = device is not None and device.startswith("cuda")  # asked of a machine that need not have one
    kind = "digits" if form.stand_in else "cuda" if far else device_named(device or "auto").type
    usual = SECONDS[kind]
    found = []
    for name in (*EXHIBITS, EVERYTHING):
        behind = _behind(list(EXHIBITS) if name == EVERYTHING else [name], every)
        left = [every[one] for one in behind if not hall.finished(one)]
        seconds = sum(one.lane_rounds * pace.get(one.contest.name, usual[one.contest.kind]) for one in left)
        here = all(one.contest.name in pace for one in left)
        title = "everything" if name == EVERYTHING else EXHIBITS[name].title
        found.append(Outlook(name, title, len(behind) - len(left), len(behind), seconds, here))
    return found


def _pace(hall: Hall) -> dict[str, float]:
    """Seconds a round of one lane of each contest, from the trials that have come to their end here."""
    spent: dict[str, list[float]] = {}
    for name, trial in hall.trials.items():
        if run_ := hall.run(name):
            own = spent.setdefault(trial.contest.name, [0.0, 0.0])
            own[0] += spent_on(run_).seconds
            own[1] += trial.lane_rounds
    return {name: seconds / rounds for name, (seconds, rounds) in spent.items()}
