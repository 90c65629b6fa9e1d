"""CUDA graphs: a computation is recorded once for each shape and then replayed without Python.

Thousands of small kernels make up a round. Launched one by one they keep a GPU waiting for Python nearly
all of the time; replayed as one graph they do not. What goes into the graph is a shortened tape; of a walk,
one graph is its first step with all that every step needs, one is any later step, one is what comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedsaddle.engine.compile.notices import Notices
from fedsaddle.engine.compile.record import WalkTape, rebuilt, recorded, tensors_of
from fedsaddle.engine.compile.referred import Referred
from fedsaddle.engine.compile.trace import Looks, Unrecordable
from fedsaddle.engine.compile.work import Work
from fedsaddle.engine.memory import give_back
from fedsaddle.mishaps import out_of_memory

NEAR, TINY = 0.1, 1e-4  # how far a replay may be from the computation, of what that changes and of its size


class Recording(Protocol):
    """Something to replay."""

    @property
    def inputs(self) -> Any:
        """Where it reads from."""

    def replay(self, steps: int) -> Any:
        """What it makes of its inputs. The next replay writes to the same place."""


class Whole(NamedTuple):
    """A computation in one graph."""

    inputs: Any
    graph: torch.cuda.CUDAGraph
    outputs: Any
    work: Any  # what it was made of, which holds the constants that it reads

    def replay(self, steps: int) -> Any:
        self.graph.replay()
        return self.outputs


class CapturedWalk(NamedTuple):
    """A computation around a walk, in three graphs. One replay of `next` is one more step."""

    inputs: Any
    first: torch.cuda.CUDAGraph
    next: torch.cuda.CUDAGraph
    last: torch.cuda.CUDAGraph
    outputs: Any
    work: Any
    held: Any  # what one graph leaves to the others

    def replay(self, steps: int) -> Any:
        self.first.replay()
        for _ in range(1, steps):
            self.next.replay()
        self.last.replay()
        return self.outputs


class Graphs:
    """The recordings of one study. They share their memory, so only one may be replayed at a time.

    If together with another, which may be as large as the largest so far, they would hold more than `limit()`
    bytes, all are given back before it is made.
    """

    def __init__(
        self,
        limit: Callable[[], float] = lambda: float("inf"),
        referred: Referred | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._recordings: dict[Hashable, Recording | None] = {}  # None: computed plainly
        self._pool: Any = None
        self._limit = limit
        self._device = device if device is not None and device.index is not None else None
        self._held = self._largest = 0  # bytes of all recordings, and of the one that has taken most
        self._dropped: set[Hashable] = set()  # shapes that were given back: once is enough
        self._proved: set[str] = set()  # walks that were compared with the computation
        self._notices = Notices(referred)

    def __call__(self, shape: Hashable, work: Work, inputs: Any) -> Any:
        """work(inputs), by a replay. All it does with its inputs must follow from their `shape`."""
        # Streams, pools and what is reserved are those of the current card.
        with nullcontext() if self._device is None else torch.cuda.device(self._device):
            return self._replayed(shape, work, inputs)

    def _replayed(self, shape: Hashable, work: Work, inputs: Any) -> Any:
        if shape not in self._recordings:
            if not work.telling:
                return work.whole(inputs)
            self._recordings[shape] = self._record(shape, work, inputs)
        recording = self._recordings[shape]
        if recording is None:
            return work.whole(inputs)
        for place, value in zip(tree_leaves(recording.inputs), tree_leaves(inputs), strict=True):
            place.copy_(value, non_blocking=True)
        found = tree_map(Tensor.clone, recording.replay(work.steps))
        if work.telling and self._notices.due(shape) and not near(found, work.whole(inputs), inputs):
            self._recordings[shape] = None
            self._notices.differs(work.name)
        return found

    def forget(self) -> None:
        """Give back the memory of all recordings."""
        self._recordings.clear()
        self._pool, self._held, self._largest = None, 0, 0

    def close(self) -> None:
        """Give everything back; a use after this begins anew."""
        self.forget()
        give_back()

    def _record(self, shape: Hashable, work: Work, inputs: Any) -> Recording | None:
        if self._held + self._largest > self._limit() and shape not in self._dropped:
            self._dropped.update(self._recordings)
            self.forget()
            give_back()
        torch.cuda.empty_cache()  # or what others have left behind would hide what the recording takes
        before = torch.cuda.memory_reserved()
        try:
            return self._captured(work, inputs)
        except Unrecordable as why:
            reason = str(why)
        except RuntimeError as error:
            # What reads a value back, or copies from the CPU, cannot be captured.
            if out_of_memory(error):
                raise
            reason = str(error).splitlines()[0]
        finally:
            taken = max(0, torch.cuda.memory_reserved() - before)
            self._held, self._largest = self._held + taken, max(self._largest, taken)
        self._notices.plain(work.name, reason)
        return None

    def _captured(self, work: Work, inputs: Any) -> Recording:
        places = tree_map(Tensor.clone, inputs)
        # Libraries set themselves up on their first calls, and problems keep what they copy to a GPU. None of
        # that can be part of a graph.
        aside = _aside()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            if work.before is not None:
                work.before(places)
            tape = self._tape(work, places)
            if not isinstance(tape, WalkTape):
                tape(places)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.empty_cache()  # so that what the recording takes can be told
        if isinstance(tape, WalkTape):
            return self._walk(tape, places)
        graph, outputs = self._capture(lambda: tape(places))
        return Whole(places, graph, outputs, tape)

    def _tape(self, work: Work, places: Any) -> Callable[..., Any]:
        """What goes into a graph: a tape; or the work itself, which need not be what a tape can tell."""
        try:
            tape = recorded(work, places)
        except Looks:
            raise
        except Unrecordable as why:
            if work.varied:
                raise
            self._notices.as_it_is(work.name, str(why))
            return work.whole
        self._notices.played(work.name, tape.why)
        if not isinstance(tape, WalkTape):
            return tape
        found = tape(places, work.steps)
        if work.name in self._proved or near(found, work.whole(places), places):
            self._proved.add(work.name)
            return tape
        if work.varied:
            raise Unrecordable("its steps leave something beside the walk")
        return self._tape(work._replace(walk=None), places)

    def _walk(self, tape: WalkTape, places: Any) -> CapturedWalk:
        state = [torch.empty_like(value) for value in tape.first(tensors_of(places))[: tape.state]]
        at = torch.ones((), dtype=torch.int64, device=state[0].device)
        homes = {value.untyped_storage()._cdata for value in state}

        def keep(moved: tuple[Tensor, ...]) -> None:
            # What is still in the old state must not be overwritten before it is copied.
            apart = [value.clone() if value.untyped_storage()._cdata in homes else value for value in moved]
            for place, value in zip(state, apart, strict=True):
                place.copy_(value)

        def begin() -> tuple[Tensor, ...]:
            found = tape.first(tensors_of(places))
            keep(found[: tape.state])
            at.fill_(1)
            return found[tape.state :]

        def go_on() -> None:
            keep(tape.next([*state, at], left))
            at.add_(1)

        with torch.inference_mode():
            first, left = self._capture(begin)
            further, _ = self._capture(go_on)
            last, outputs = self._capture(lambda: tape.last(state, left))
        results = rebuilt(tape.results, iter(outputs))
        return CapturedWalk(places, first, further, last, results, tape, (state, at, left))

    def _capture(self, work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        # cuBLAS keeps a workspace for each stream. One that was there before would not be the graph's, and
        # one that stayed would keep the graph's memory alive when the graph is gone.
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                outputs = work()
        finally:
            torch._C._cuda_clearCublasWorkspaces()
        self._pool = graph.pool()
        return graph, outputs


@cache
def _aside() -> torch.cuda.Stream:
    """One stream for all first calls: libraries keep memory for each that they have seen."""
    return torch.cuda.Stream()


def near(one: Any, other: Any, inputs: Any) -> bool:
    """Whether two computations came to about the same: a GPU does not add in the same order every time.

    What counts of a phase is how far it moves the server. Lanes that rounding drives apart are a few; what is
    computed wrongly shows in most.
    """
    trees = [one, other, tree_map(torch.zeros_like, other)]
    if hasattr(one, "server") and hasattr(inputs, "server"):
        trees = [tree.server for tree in (one, other, inputs)]
    for values in zip(*map(tree_leaves, trees), strict=True):
        mine, theirs, start = (value.reshape(len(value) if value.dim() else 1, -1) for value in values)
        if not mine.is_floating_point() or not mine.numel():
            continue
        finite, expected = (torch.isfinite(value).all(1) for value in (mine, theirs))
        far = (mine - theirs).norm(dim=1) > NEAR * (theirs - start).norm(dim=1) + TINY * theirs.norm(dim=1)
        wrong = (finite != expected) | (finite & expected & far)
        if int(wrong.sum()) > len(wrong) // 2:
            return False
    return True
