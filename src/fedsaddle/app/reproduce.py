"""The paper whole: run the trials behind its exhibits, those that are left, and write the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.app.run import PLAINLY, Way, run, sweep
from fedsaddle.engine.machine import device_named
from fedsaddle.errors import BadInput, meant, unknown
from fedsaddle.exits import INTERRUPTED
from fedsaddle.paper.evidence import is_begun, is_finished, spent_on
from fedsaddle.paper.exhibits import EXHIBITS
from fedsaddle.paper.forms import FULL, Form
from fedsaddle.paper.hall import Hall, hall_of
from fedsaddle.paper.page import write_page
from fedsaddle.paper.trials import Trial, trials
from fedsaddle.report.reading import read_run
from fedsaddle.report.sweeps import families_of
from fedsaddle.runs import write_atomically
from fedsaddle.sweep import to_toml

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
    code = _Sitting(out, device, minutes, way, _again(command)).through(chosen)
    return Reproduced(place, write_page(hall_of(form, out, place.parent), place, command), code)


def _again(command: str) -> str:
    return command if " --resume" in command else f"{command} --resume"


def _behind(names: Sequence[str], every: dict[str, Trial]) -> set[str]:
    return {trial.name for name in names for trial in EXHIBITS[name].needed(every)}


@dataclass(frozen=True)
class _Sitting:
    """Trials one after another, until they are done or time is up."""

    out: Path
    device: str | None
    minutes: float | None
    way: Way
    again: str

    def through(self, chosen: Sequence[Trial]) -> int:
        """Run what is left of some trials, in their order. To an exit code."""
        end = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        for number, trial in enumerate(chosen, start=1):
            folder, text = self.out / trial.name, to_toml(experiment_of_trial(trial, self.out))
            self._check_same(trial, text)
            if is_finished(folder):
                continue
            if end is not None and time.monotonic() >= end:
                self.way.show.say(f"stopped after {self.minutes:g} minutes; go on with: {self.again}")
                return INTERRUPTED
            self.way.show.say(f"trial {number} of {len(chosen)}: {trial.name}")
            code = self._run(trial, folder, text, end)
            if code:
                return code
        return 0

    def _check_same(self, trial: Trial, text: str) -> None:
        """Refuse a trial that another form or version has begun."""
        if is_begun(self.out / trial.name):
            path = self._file(trial)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                raise BadInput(
                    f"{self.out / trial.name} was made by another experiment than {path.name} says today: "
                    "choose another --out, or remove that folder and its .toml to run it again"
                )

    def _file(self, trial: Trial) -> Path:
        return self.out / f"{trial.name}.toml"

    def _run(self, trial: Trial, folder: Path, text: str, end: float | None) -> int:
        file = self._file(trial)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode())
        way = replace(
            self.way,
            folder=folder,
            resume=(folder / "experiment.json").exists(),
            tensorboard=False,
            again=self.again,
            asked=lambda: _or_late(self.way.asked(), end),
        )
        go = sweep if trial.sweeps else run
        return go(str(file), way, device=self.device).code


def _or_late(asked: Callable[[], bool], end: float | None) -> Callable[[], bool]:
    return lambda: asked() or (end is not None and time.monotonic() >= end)


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
