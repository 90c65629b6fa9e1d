"""Recording: a computation is traced once and made shorter; a tape replays it with the same bits.

A round is thousands of small operations, and under vmap and grad each passes through more Python than it
computes. A replay passes through none of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedsaddle.engine.compile.passes import shortened
from fedsaddle.engine.compile.players import Player, player
from fedsaddle.engine.compile.program import Program, Slot
from fedsaddle.engine.compile.trace import Tracer, Unrecordable, ordinary, unrecordable
from fedsaddle.engine.compile.work import Walkable, Work


@dataclass(frozen=True)
class Tape:
    """A computation that is replayed as it was recorded."""

    part: Part
    results: Any  # what comes out, with None for its tensors

    def __call__(self, inputs: Any, steps: int = 0) -> Any:
        with torch.inference_mode():
            found = self.part(tensors_of(inputs))
        return rebuilt(self.results, iter([value.clone() for value in found]))  # fit for gradients again

    @property
    def why(self) -> str | None:
        """Why it is not played by the usual player, if it is not."""
        return self.part.player.why


@dataclass(frozen=True)
class Part:
    """A part of a computation: all of it, or one of those around a walk."""

    player: Player
    carried: list[int]  # which of the values it needs that the first part has left
    constants: list[Tensor]

    def __call__(self, given: Sequence[Tensor], left: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        return self.player(*given, *(left[place] for place in self.carried), *self.constants)


@dataclass(frozen=True)
class WalkTape:
    """A computation around a walk: its first step, any later step, and what comes after the last.

    What a step needs and does not depend on where the walk is, is computed once, with the first step.
    """

    first: Part  # inputs -> where the walk is, and what the others need
    next: Part  # where the walk is, the number of the step -> where it is then
    last: Part  # where the walk is -> results
    state: int  # tensors that say where the walk is
    results: Any

    def __call__(self, inputs: Any, steps: int) -> Any:
        with torch.inference_mode():
            found = self.first(tensors_of(inputs))
            state, left = found[: self.state], found[self.state :]
            for number in range(1, steps):
                state = self.next([*state, _number(number, state[0].device)], left)
            found = self.last(state, left)
        return rebuilt(self.results, iter([value.clone() for value in found]))

    @property
    def why(self) -> str | None:
        parts = (self.first, self.next, self.last)
        return next((part.player.why for part in parts if part.player.why is not None), None)


@lru_cache(maxsize=4096)
def _number(number: int, device: torch.device) -> Tensor:
    return torch.tensor(number, device=device)


def tensors_of(tree: Any) -> list[Tensor]:
    """As `tree_leaves`, for what rounds are made of, in a fraction of its time."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree
    return [tensor for part in parts for tensor in tensors_of(part)]


def rebuilt(like: Any, tensors: Iterator[Tensor]) -> Any:
    if like is None:
        return next(tensors)
    if isinstance(like, dict):
        return {name: rebuilt(part, tensors) for name, part in like.items()}
    parts = [rebuilt(part, tensors) for part in like]
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def recorded(work: Work, inputs: Any) -> Tape | WalkTape:
    """A tape: of a walk step by step, if it can be; else of the whole, if that is always as long."""
    if work.walk is None:
        return record(work.whole, inputs)
    try:
        return record_walk(work.walk, inputs)
    except Unrecordable:
        if work.varied:
            raise
        return record(work.whole, inputs)


def record(work: Callable[[Any], Any], inputs: Any) -> Tape:
    """A tape of work(inputs).

    What is computed outside PyTorch, as by NumPy, is not seen: in a replay it would be what it was.
    """
    inputs, tracer = _begun(inputs)
    with torch.no_grad(), tracer:
        found = work(inputs)
    with torch.no_grad(), unrecordable():
        program = shortened(tracer.program([tensors_of(found)]))
        return Tape(_part(program, 0, program.wanted[0], []), tree_map(lambda _: None, found))


def record_walk(walk: Walkable, inputs: Any) -> WalkTape:
    """A tape of a computation around a walk of any number of steps."""
    inputs, tracer = _begun(inputs)
    # What can be computed as a whole need not bear being cut: a walk may carry a plain number, or leave its
    # steps in a list.
    with torch.no_grad(), unrecordable():
        with tracer:
            begun = tree_map(Tensor.contiguous, walk.first(inputs))
        state, end = (tree_map(Tensor.clone, begun) for _ in range(2))
        at = torch.ones((), dtype=torch.int64, device=tensors_of(begun)[0].device)
        tracer.begin_block([*tensors_of(state), at])
        with tracer:
            moved = tree_map(Tensor.contiguous, walk.next(inputs, state, at))
        tracer.begin_block(tensors_of(end))
        with tracer:
            found = walk.last(inputs, end)
    blocks = [tensors_of(one) for one in (begun, moved, found)]
    kinds = [[(value.shape, value.dtype) for value in block] for block in blocks[:2]]
    if kinds[0] != kinds[1]:
        raise Unrecordable("a step gives other shapes or types than it is given")
    with torch.no_grad(), unrecordable():
        program, carried = shortened(tracer.program(blocks)), list[Slot]()
        further, last = (_part(program, block, program.wanted[block], carried) for block in (1, 2))
        begin = _part(program, 0, [*program.wanted[0], *carried], [])
    return WalkTape(begin, further, last, len(blocks[0]), tree_map(lambda _: None, found))


def _part(program: Program, block: int, wanted: list[Slot], carried: list[Slot]) -> Part:
    """One block. What it needs of the first is added to what is `carried` over."""
    operations = [operation for operation in program.operations if operation.block == block]
    made = {*program.inputs[block]}.union(*(operation.results for operation in operations))
    used = dict.fromkeys([slot for operation in operations for slot in operation.slots] + wanted)
    constants = [slot for slot in program.constants if slot in used]
    needs = [slot for slot in used if slot not in made and slot not in program.constants]
    carried += [slot for slot in needs if slot not in carried]
    plays = player([*program.inputs[block], *needs, *constants], operations, wanted)
    places = [carried.index(slot) for slot in needs]
    return Part(plays, places, [program.constants[slot] for slot in constants])


def _begun(inputs: Any) -> tuple[Any, Tracer]:
    inputs = tree_map(Tensor.clone, inputs)  # two inputs may be the same tensor
    if not all(map(ordinary, tensors_of(inputs))):
        raise Unrecordable("it is given tensors of half precision, or not plain ones")
    return inputs, Tracer(tensors_of(inputs))
