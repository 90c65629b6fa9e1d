"""One client after another: slow, plain, and the oracle that every other executor is tested against."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import torch
from torch.utils._pytree import tree_map

from fedsaddle.engine.luck import undrawn
from fedsaddle.engine.phase import exchange
from fedsaddle.engine.study import Executor, Lost, PhaseInputs, PhaseResult, Study
from fedsaddle.engine.visits import Answer, Extent, Task, Visits, answer, batch_rows

T = TypeVar("T")


class Loop(Executor):
    """The plainest executor."""

    def run(self, study: Study, number: int, extent: Extent, inputs: PhaseInputs) -> PhaseResult | Lost:
        return exchange(study, number, extent, inputs, self.answers)

    def answers(self, task: Task, extent: Extent, visits: Visits) -> Answer:
        answers, given = [], visits.given(task.federation)
        for number in range(len(visits)):
            # A copy, which begins where memory is aligned, as it does when the client is asked alone: a
            # matrix product may add in another order in a row that begins elsewhere.
            one = tree_map(lambda rows: rows[number].clone(), given)  # noqa: B023
            own = Extent(int(one["steps"]), int(one["size"]), ragged=False)
            work = partial(answer, task, own, batch_rows(task, own, one), one)
            answers.append(undrawn(work, task, visits.key.device))
        stacked: Answer = tree_map(lambda *rows: torch.stack(rows), *answers)
        return stacked
