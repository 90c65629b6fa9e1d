"""One client after another: slow, plain, and the oracle that every other executor is tested against."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from fedsaddle.engine.phase import exchange
from fedsaddle.engine.study import Executor, Lost, PhaseInputs, PhaseResult, Study
from fedsaddle.engine.visits import Answer, Extent, Task, Visits, answer, batch_rows
from fedsaddle.errors import BadInput
from fedsaddle.problem import name_of

T = TypeVar("T")


def undrawn(work: Callable[[], T], task: Task, device: torch.device) -> T:
    """work(), if it does not draw from PyTorch's generators.

    What is drawn there depends on all that was drawn before, so it is another in every way to ask, after a
    resume and in a replay. Every run passes here before its first round, whatever its engine.
    """
    before = _luck(device)
    result = work()
    if not torch.equal(before, _luck(device)):
        with _Drawing(device) as drawing:
            work()
        who = f"{name_of(task.problem)} with {type(task.algorithm).__name__}"
        raise BadInput(
            f"{who} draws random numbers by {drawing.name}, which cannot be drawn again: draw them by "
            "fedsaddle.draws, such as draws.uniform(xi.key, rows, columns), or leave them out"
        )
    return result


def _luck(device: torch.device) -> torch.Tensor:
    """The state of the generators."""
    state = torch.random.get_rng_state()
    return state if device.type == "cpu" else torch.cat([state, torch.cuda.get_rng_state(device)])


class _Drawing(TorchFunctionMode):
    """Notes by which function random numbers are first drawn."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.name = device, "a function of PyTorch"
        self._found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = None if self._found else _luck(self.device)
        result = func(*args, **(kwargs or {}))
        if before is not None and not torch.equal(before, _luck(self.device)):
            self._found, self.name = True, getattr(func, "__name__", self.name)
        return result


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
