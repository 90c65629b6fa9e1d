"""Tapes: on a CPU, a computation is recorded once for each shape and then replayed without Python.

The interpreter that replays it does not hold Python's lock, so threads replay at the same time. Before a tape
is trusted, it is compared once with the computation itself, on inputs that it was not recorded on.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from fedsaddle.engine.recording import Tape, record
from fedsaddle.engine.visits import Visits

DISTRUST = (
    "a phase that was recorded gives other values when it is replayed, so it is computed plainly now, "
    "which is slower: does the problem or the algorithm compute outside PyTorch, or draw random numbers?"
)
PATIENCE = 8  # uses of a shape before it is recorded, which takes about as long; the bits are the same


class Tapes:
    """The tapes of one study, and the threads that replay them: as many as the cores have room for."""

    def __init__(self) -> None:
        self._tapes: dict[Hashable, Callable[[Any], Any]] = {}
        self._trials: dict[Hashable, Tape] = {}  # recorded, and not yet compared with what they stand for
        self._uses: Counter[Hashable] = Counter()

    def __call__(self, shape: Hashable, work: Callable[[Any], Any], inputs: Any) -> Any:
        """work(inputs), by a replay. All it does with its inputs must follow from their `shape`."""
        return self._ready(shape, work, inputs, 1)(inputs)

    def pieces(
        self, shape: Hashable, ask: Callable[[Visits], dict[str, Any]], visits: Visits, size: int
    ) -> dict[str, Any]:
        """ask(visits), so many at a time, by all threads."""

        def work(inputs: tuple[Any, ...]) -> dict[str, Any]:
            return ask(Visits(*inputs))

        parts = [visits.part(at, at + size) for at in range(0, len(visits), size)]
        many = [(part.by_lane, *part.rest) for part in parts]
        ready = self._ready(shape, work, many[0], len(many))
        # Only tapes: a module that is called as a function has its parameters changed meanwhile.
        answers = (self._threads.map if isinstance(ready, Tape) else map)(ready, many)
        joined: dict[str, Any] = tree_map(lambda *values: torch.cat(values), *answers)
        return joined

    def forget(self) -> None:
        """Give back the memory of all tapes."""
        self._tapes.clear()
        self._trials.clear()

    def _ready(
        self, shape: Hashable, work: Callable[[Any], Any], inputs: Any, times: int
    ) -> Callable[[Any], Any]:
        self._uses[shape] += times
        if shape in self._trials:
            tried = self._trials.pop(shape)
            trusted = same(tried(inputs), work(inputs))
            self._tapes[shape] = tried if trusted else work
            if not trusted:
                warnings.warn(DISTRUST, stacklevel=2)
        elif self._uses[shape] > PATIENCE and shape not in self._tapes:
            tape = record(work, inputs)
            if tape is None:
                self._tapes[shape] = work
            else:
                self._trials[shape] = tape
        return self._tapes.get(shape, work)

    @cached_property
    def workers(self) -> int:
        """How many threads may compute beside each other, if each uses PyTorch's own number of threads."""
        return max(1, cores() // torch.get_num_threads())

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers)


def same(one: Any, other: Any) -> bool:
    """Whether they hold the same values, where there is none too."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
