"""Tapes: on a CPU, a computation is recorded once for each shape and then replayed without Python.

The interpreter that replays it does not hold Python's lock, so threads replay at the same time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_map

from fedsaddle.engine.recording import Tape, record
from fedsaddle.engine.visits import Visits

PATIENCE = 8  # uses of a shape before it is recorded, which takes about as long; the bits are the same


class Tapes:
    """The tapes of one study, and the threads that replay them: as many as the cores have room for."""

    def __init__(self) -> None:
        self._tapes: dict[Hashable, Callable[[Any], Any]] = {}
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

    def _ready(
        self, shape: Hashable, work: Callable[[Any], Any], inputs: Any, times: int
    ) -> Callable[[Any], Any]:
        self._uses[shape] += times
        if self._uses[shape] > PATIENCE and shape not in self._tapes:
            self._tapes[shape] = record(work, inputs) or work
        return self._tapes.get(shape, work)

    @cached_property
    def workers(self) -> int:
        """How many threads may compute beside each other, if each uses PyTorch's own number of threads."""
        return max(1, cores() // torch.get_num_threads())

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
