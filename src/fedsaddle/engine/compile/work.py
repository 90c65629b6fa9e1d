"""Work: what is handed over to be recorded and replayed, or computed plainly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

TELLING = 3  # steps of a walk by which its tape is judged


class Walkable(NamedTuple):
    """A computation around a walk, cut where its steps are: three functions of the inputs."""

    first: Callable[[Any], Any]  # inputs -> where the walk is after its first step
    next: Callable[[Any, Any, Tensor], Any]  # inputs, where it is, the number of the step -> where it is then
    last: Callable[[Any, Any], Any]  # inputs, where it is -> results


class Work(NamedTuple):
    """A computation, whole and, if its walk can be cut, by the step."""

    name: str  # for a person
    whole: Callable[[Any], Any]  # all of it, as it is
    walk: Walkable | None = None  # the same, cut where its walk makes a step
    steps: int = 0  # of the walk, this time
    varied: bool = False  # whether they differ from time to time
    before: Callable[[Any], Any] | None = None  # done first: what problems make or copy once

    @property
    def telling(self) -> bool:
        """Whether a replay of it tells all of a tape: in a short walk no later step feeds the next."""
        return self.walk is None or self.steps >= TELLING
