"""What is to be run, and who is told how it goes. Where it is written is no concern of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedsaddle.engine.course import Prune, Stop
from fedsaddle.engine.study import Study


@dataclass(frozen=True)
class Plan:
    """A resolved experiment and the studies made of it."""

    resolved: dict[str, Any]  # what identifies it, as JSON
    studies: dict[str, Study]  # by the algorithm's name in the experiment; of a sweep, many settings in each
    rounds: int
    evaluate_every: int
    by: str = ""  # of a sweep: the metric that settings are chosen by
    prunes: dict[str, Prune] = field(default_factory=dict)  # of a sweep that halves: for each study
    notes: tuple[str, ...] = ()  # what a person should hear before it runs
    # Fills in the defaults of an experiment that an older version has written down without them.
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda experiment: experiment

    def close(self) -> None:
        """Give back what its studies have opened, and end what they have started elsewhere."""
        for study in self.studies.values():
            study.close()
            study.executor.close()


class Watch(Protocol):
    """Somebody who wants to see a run's progress."""

    def begin(self, study: str, start: int) -> None: ...
    def stop(self, study: str, stop: Stop) -> None: ...


class Interrupted(Exception):
    """The run was asked to stop, has made a checkpoint, and can be resumed."""
