"""How a phase is cut for recording: as a whole, or where its walks make a step.

A recording belongs to shapes. So that few are needed, there is a little more room than a round needs, and a
walk that is long, or of random length, is recorded one step at a time: whatever K is, and whatever a draw
comes to, it is the same recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedsaddle.core import Phase
from fedsaddle.engine.compile.work import Walkable, Work
from fedsaddle.engine.visits import Answer, Extent, Stage, Task, Visits

BLOCK = 16  # steps of a walk whose gradients at the start are computed ahead, and that is recorded as a whole
NEARLY_ALL = 1 - 2.0**-20  # of random walks are as long as this chance makes them, or shorter
ONE_BY_ONE = 3  # steps, from which on a GPU records a walk step by step


class Answering(Protocol):
    """What computes many visits at once."""

    def answers(self, task: Task, extent: Extent, visits: Visits, stage: Stage | None = None) -> Answer: ...
    def walked(self, task: Task, extent: Extent, visits: Visits, stage: Stage) -> Any: ...


class Cut(NamedTuple):
    """One phase as it is recorded."""

    by: Answering
    task: Task
    extent: Extent  # of this round
    phase: Phase

    @staticmethod
    def of(by: Answering, task: Task, extent: Extent) -> Cut:
        return Cut(by, task, extent, task.algorithm.phases()[task.phase])

    @property
    def by_step(self) -> bool:
        """Whether each step of a walk is a replay of its own."""
        on_gpu = self.task.federation.sizes.is_cuda
        return self.varied or self.extent.steps > (ONE_BY_ONE if on_gpu else BLOCK)

    @property
    def varied(self) -> bool:
        """Whether the number of steps differs from round to round."""
        return self.phase.varied or self.task.partial

    @property
    def now(self) -> Extent:
        """What this round needs, with some room for its rows."""
        rows = min(rounded_up(self.extent.rows), self.task.federation.longest)
        return Extent(self.extent.steps, rows, ragged=self.varied)

    @property
    def room(self) -> Extent:
        """What every round needs but for very few."""
        if not self.varied:
            return self.now
        usual = self.phase.length(NEARLY_ALL)
        return self.now._replace(steps=max(usual, rounded_up(self.extent.steps)))

    @property
    def key(self) -> Extent:
        """All that a recording depends on, beside the number of visits."""
        return self.room

    def work(self, visits_in: Callable[[Any], Visits], end: Callable[[Any, Visits, Answer], Any]) -> Work:
        """The visits that the inputs hold, asked, and what follows from their answers."""
        task, by = self.task, self.by
        name = f"phase {self.phase.name} of {type(task.algorithm).__name__}"

        def whole(inputs: Any) -> Any:
            visits = visits_in(inputs)
            return end(inputs, visits, by.answers(task, self.now, visits))

        if not self.by_step:
            return Work(name, whole)

        def first(inputs: Any) -> Any:
            return by.walked(task, self.room, visits_in(inputs), Stage("first"))

        def further(inputs: Any, state: Any, at: Tensor) -> Any:
            return by.walked(task, self.room, visits_in(inputs), Stage("next", state, at))

        def last(inputs: Any, state: Any) -> Any:
            visits = visits_in(inputs)
            return end(inputs, visits, by.answers(task, self.room, visits, Stage("last", state)))

        return Work(name, whole, Walkable(first, further, last), self.extent.steps, self.varied)


def rounded_up(count: int) -> int:
    """To three binary digits: 9 becomes 10, 100 becomes 112."""
    unit = 1 << max(0, count.bit_length() - 3)
    return -(-count // unit) * unit
