"""Tapes: on a CPU, a computation is recorded once for each shape and then replayed without Python.

The interpreter that replays it does not hold Python's lock, so threads replay at the same time. Before a tape
is trusted, it is compared once with the computation itself, on inputs that it was not recorded on; and now
and then again, for what a problem computes with may change.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from fedsaddle.engine.compile.notices import Notices
from fedsaddle.engine.compile.record import Tape, WalkTape, recorded
from fedsaddle.engine.compile.referred import Referred
from fedsaddle.engine.compile.trace import Unrecordable
from fedsaddle.engine.compile.work import Work
from fedsaddle.engine.visits import Answer, Visits

PATIENCE = 8  # uses of a shape before it is recorded, which takes about as long; the bits are the same


class Tapes:
    """The tapes of one study, and the threads that replay them: as many as the cores have room for."""

    def __init__(self, referred: Referred | None = None) -> None:
        self._tapes: dict[Hashable, Tape | WalkTape | None] = {}  # None: computed plainly
        self._trials: dict[Hashable, Tape | WalkTape] = {}  # not yet compared with what they stand for
        self._uses: Counter[Hashable] = Counter()
        self._notices = Notices(referred)

    def __call__(self, shape: Hashable, work: Work, inputs: Any) -> Any:
        """work(inputs), by a replay. All it does with its inputs must follow from their `shape`."""
        tape = self._ready(shape, work, inputs, 1)
        return work.whole(inputs) if tape is None else tape(inputs, work.steps)

    def pieces(self, shape: Hashable, work: Work, visits: Visits, size: int) -> Answer:
        """work(visits), so many at a time, by all threads."""
        parts = [visits.part(at, at + size) for at in range(0, len(visits), size)]
        many = [(part.by_lane, *part.rest) for part in parts]
        tape = self._ready(shape, work, many[0], len(many))
        if tape is None:
            # One after another: a module that is called as a function has its parameters changed meanwhile.
            answers = [work.whole(inputs) for inputs in many]
        else:
            answers = list(self._threads.map(lambda inputs: tape(inputs, work.steps), many))
        joined: Answer = tree_map(lambda *values: torch.cat(values), *answers)
        return joined

    def forget(self) -> None:
        """Give back the memory of all tapes."""
        self._tapes.clear()
        self._trials.clear()

    def close(self) -> None:
        """Give everything back; a use after this begins anew."""
        self.forget()
        threads = self.__dict__.pop("_threads", None)
        if threads is not None:
            threads.shutdown()

    def _ready(self, shape: Hashable, work: Work, inputs: Any, times: int) -> Tape | WalkTape | None:
        """The tape of a shape, if there is one that can be trusted."""
        self._uses[shape] += times
        if shape in self._trials:
            if work.telling:
                self._tapes[shape] = self._trials.pop(shape)
                self._compare(shape, work, inputs)
        elif self._uses[shape] > PATIENCE and shape not in self._tapes:
            self._record(shape, work, inputs)
        elif self._tapes.get(shape) is not None and work.telling and self._notices.due(shape):
            self._compare(shape, work, inputs)
        return self._tapes.get(shape)

    def _record(self, shape: Hashable, work: Work, inputs: Any) -> None:
        try:
            tape = self._trials[shape] = recorded(work, inputs)
        except Unrecordable as why:
            self._tapes[shape] = None
            self._notices.plain(work.name, str(why))
        else:
            self._notices.played(work.name, tape.why)

    def _compare(self, shape: Hashable, work: Work, inputs: Any) -> None:
        tape = self._tapes[shape]
        assert tape is not None
        if same(tape(inputs, work.steps), work.whole(inputs)):
            return
        del self._tapes[shape]
        if isinstance(tape, WalkTape) and not work.varied:  # its steps may leave something beside the walk
            self._record(shape, work._replace(walk=None), inputs)
            return
        self._tapes[shape] = None
        self._notices.differs(work.name)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(workers())


def same(one: Any, other: Any) -> bool:
    """Whether they hold the same values, where there is none too."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


def workers() -> int:
    """How many threads may compute beside each other, if each uses PyTorch's own number of threads."""
    return max(1, cores() // torch.get_num_threads())


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
