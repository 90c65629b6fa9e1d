"""The paper whole: run the trials behind its exhibits, those that are left, and write the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fedsaddle.app.run import PLAINLY, Way, run, sweep
from fedsaddle.engine.machine import device_named
from fedsaddle.errors import BadInput, meant, unknown
from fedsaddle.exits import INTERRUPTED
from fedsaddle.paper.evidence import is_begun, is_finished
from fedsaddle.paper.exhibits import EXHIBITS
from fedsaddle.paper.forms import FULL, Form
from fedsaddle.paper.hall import hall_of
from fedsaddle.paper.pace import EVERYTHING
from fedsaddle.paper.page import write_page
from fedsaddle.paper.trials import Trial, trials
from fedsaddle.paper.winners import NothingSurvived, experiment_of_trial
from fedsaddle.runs import write_atomically
from fedsaddle.sweep import to_toml


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
    for folder, what in ((out, "keep trials in"), (place.parent, "write a page into")):
        _make(folder, what)
    device_named(device or "auto")
    command = command or f"fedsaddle reproduce {' '.join(names)}"
    code = _Sitting(out, device, minutes, way, _again(command)).through(chosen)
    return Reproduced(place, write_page(hall_of(form, out, place.parent), place, command), code)


def _make(folder: Path, what: str) -> None:
    """Before hours of work, rather than after them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot {what} {folder}: {error.strerror}") from error


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
            folder = self.out / trial.name
            try:
                text = to_toml(experiment_of_trial(trial, self.out))
            except NothingSurvived as error:
                self.way.show.say(f"{trial.name} is left out: {error}")
                continue
            self._check_same(trial, text)
            if is_finished(folder):
                continue
            if end is not None and time.monotonic() >= end:
                done = sum(is_finished(self.out / one.name) for one in chosen)
                many = f"{done} of {len(chosen)} trials done"
                self.way.show.say(f"stopped after {self.minutes:g} minutes, {many}; go on with: {self.again}")
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
