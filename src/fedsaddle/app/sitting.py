"""Trials one after another, in as many sittings as it takes: what is done is not done again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

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


OneTrial = TypeVar("OneTrial", bound=AnyTrial)


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
        for number, trial in enumerate(chosen, start=1):
            folder = self.out / trial.name
            found = self.tables(trial)
            if found is None:
                continue
            text = to_toml(found)
            self._check_same(trial, text)
            if is_finished(folder):
                continue
            if end is not None and time.monotonic() >= end:
                done = sum(is_finished(self.out / one.name) for one in chosen)
                many = f"{done} of {len(chosen)} trials done"
                self.way.show.say(f"stopped after {self.minutes:g} minutes, {many}; go on with: {self.again}")
                return INTERRUPTED
            self.way.show.say(
                f"trial {number} of {len(chosen)}: {trial.name}{self.left(chosen[number - 1 :])}"
            )
            code = self._run(trial, folder, text, end)
            if code and code not in self.passes:
                return code
        return 0

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
        return go(str(file), way, device=self.device, code=self.code(trial)).code


def _or_late(asked: Callable[[], bool], end: float | None) -> Callable[[], bool]:
    return lambda: asked() or (end is not None and time.monotonic() >= end)


def resuming(command: str) -> str:
    """A command that goes on with what there is."""
    return command if " --resume" in command else f"{command} --resume"
