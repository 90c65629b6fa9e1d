"""Random numbers that nobody can draw again: a person's code is refused if it draws any."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedsaddle.engine.visits import Task
from fedsaddle.errors import BadInput
from fedsaddle.problem import name_of

T = TypeVar("T")


def undrawn(work: Callable[[], T], task: Task, device: torch.device) -> T:
    """work(), if it does not draw from PyTorch's generators, NumPy's or Python's.

    What is drawn there depends on all that was drawn before, so it is another in every way to ask, after a
    resume and in a replay. Every run passes here before its first round, whatever its engine.
    """
    before = _luck(device)
    result = work()
    if _moved(before, device) and (by := _drawing(work, device)):
        who = f"{name_of(task.problem)} with {type(task.algorithm).__name__}"
        raise BadInput(
            f"{who} draws random numbers by {by}, which cannot be drawn again: draw them by "
            "fedsaddle.draws, such as draws.uniform(xi.key, rows, columns), or leave them out"
        )
    return result


class Luck(NamedTuple):
    """The states of the generators that a person may draw from."""

    torch: Tensor
    numpy: tuple[Any, ...]
    python: tuple[Any, ...]


def _luck(device: torch.device) -> Luck:
    state = torch.random.get_rng_state()
    if device.type != "cpu":
        state = torch.cat([state, torch.cuda.get_rng_state(device)])
    kind, keys, *rest = numpy.random.get_state()
    return Luck(state, (kind, bytes(keys), *rest), random.getstate())  # type: ignore[arg-type]


def _moved(before: Luck, device: torch.device) -> str:
    """By what somebody has drawn since then, if somebody has."""
    now = _luck(device)
    if not torch.equal(before.torch, now.torch):
        return "a function of PyTorch"
    return "numpy.random" if before.numpy != now.numpy else "random" if before.python != now.python else ""


def _drawing(work: Callable[[], object], device: torch.device) -> str:
    """By what it draws when it is done again; nothing, if it was somebody else who drew."""
    before = _luck(device)
    with _Drawing(device) as drawing:
        work()
    return drawing.name or _moved(before, device)


class _Drawing(TorchFunctionMode):
    """Notes by which function of PyTorch random numbers are first drawn."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.name = device, ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = None if self.name else _luck(self.device)
        result = func(*args, **(kwargs or {}))
        if before is not None and _moved(before, self.device):
            self.name = getattr(func, "__name__", "")
        return result
