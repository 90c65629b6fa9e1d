"""Trials one after another, in as many sittings as it takes: what is done is not done again.

Several processes can sit over one folder: each trial has a lock, and what another one is at is passed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from filelock import FileLock, Timeout

from fedsaddle.app.run import Way, run, sweep
from fedsaddle.errors import BadInput
from fedsaddle.exits import INTERRUPTED
from fedsaddle.report.spent import is_begun, is_finished
from fedsaddle.runs import write_atomically
from fedsaddle.sweep import to_toml


class AnyTrial(Protocol):
    """A run, or a sweep, in a folder of its own."""

    @property
    def name(self) -> str: ...  # the folder, below that of all
    @property
    def sweeps(self) -> bool: ...
    @property
    def after(self) -> str: ...  # the trial that it goes by; nothing, if there is none


OneTrial = TypeVar("OneTrial", bound=AnyTrial)
WAIT = 0.5  # seconds between looks at what other processes are at


@dataclass(frozen=True)
class Sitting(Generic[OneTrial]):
    """Trials one after another, until they are done or time is up."""

    out: Path
    device: str | None
    minutes: float | None
    way: Way
    again: str  # the command that goes on
    # A trial's experiment, once those before it are done; without one there is nothing to run.
    tables: Callable[[OneTrial], Mapping[str, Any] | None]
    code: Callable[[OneTrial], Sequence[Path]] = lambda trial: ()  # files that an experiment may run
    passes: frozenset[int] = frozenset()  # codes with which a trial may end and the next begin
    left: Callable[[Sequence[OneTrial]], str] = lambda trials: ""  # how long these will take, in words

    def through(self, chosen: Sequence[OneTrial]) -> int:
        """Run what is left of some trials, in their order. To an exit code."""
        end = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        left = list(enumerate(chosen, start=1))
        while left:
            busy = set[str]()  # with another process, or waiting for what is
            for number, trial in left:
                code = None if trial.after in busy else self._attend(trial, number, chosen, end)
                if code is None:
                    busy.add(trial.name)
                elif code and code not in self.passes:
                    return code
            if len(busy) == len(left) and self._asked_while_waiting():
                return self._stopped("stopped", chosen)
            left = [(number, trial) for number, trial in left if trial.name in busy]
        return 0

    def _attend(
        self, trial: OneTrial, number: int, chosen: Sequence[OneTrial], end: float | None
    ) -> int | None:
        """Run what is left of a trial, to an exit code; none, if another process is at it."""
        folder, found = self.out / trial.name, self.tables(trial)
        if found is None:
            return 0
        text = to_toml(found)
        self._check_same(trial, text)
        if is_finished(folder):
            return 0
        if end is not None and time.monotonic() >= end:
            return self._stopped(f"stopped after {self.minutes:g} minutes", chosen)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(f"{folder}.lock", timeout=0):
                if is_finished(folder):  # meanwhile
                    return 0
                self.way.show.say(
                    f"trial {number} of {len(chosen)}: {trial.name}{self.left(chosen[number - 1 :])}"
                )
                return self._run(trial, folder, text, end)
        except Timeout:
            return None

    def _asked_while_waiting(self) -> bool:
        """Give the others some time; whether somebody wanted to stop in it."""
        asked = self.way.asked()
        time.sleep(WAIT)
        return asked()

    def _stopped(self, why: str, chosen: Sequence[OneTrial]) -> int:
        done = sum(is_finished(self.out / one.name) for one in chosen)
        self.way.show.say(f"{why}, {done} of {len(chosen)} trials done; go on with: {self.again}")
        return INTERRUPTED

    def _check_same(self, trial: OneTrial, text: str) -> None:
        """Refuse a trial that another form or version has begun."""
        if is_begun(self.out / trial.name):
            path = self._file(trial)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                raise BadInput(
                    f"{self.out / trial.name} was made by another experiment than {path.name} says today: "
                    "choose another --out, or remove that folder and its .toml to run it again"
                )

    def _file(self, trial: OneTrial) -> Path:
        return self.out / f"{trial.name}.toml"

    def _run(self, trial: OneTrial, folder: Path, text: str, end: float | None) -> int:
        write_atomically(self._file(trial), text.encode())
        way = replace(
            self.way,
            folder=folder,
            resume=(folder / "experiment.json").exists(),
            tensorboard=False,
            again=self.again,
            asked=lambda: _or_late(self.way.asked(), end),
        )
        go = sweep if trial.sweeps else run
        return go(str(self._file(trial)), way, device=self.device, code=self.code(trial)).code


def _or_late(asked: Callable[[], bool], end: float | None) -> Callable[[], bool]:
    return lambda: asked() or (end is not None and time.monotonic() >= end)


def resuming(command: str) -> str:
    """A command that goes on with what there is."""
    return command if " --resume" in command else f"{command} --resume"
