"""Programs: what a computation does, as a list of PyTorch's own operations on plain tensors.

`trace` writes one, `passes` make it shorter, `players` play it. Here is only what a program is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

KEPT_BYTES = 1 << 20  # of a value that is kept, or made at once, instead of being computed in every replay


class Slot(int):
    """The number of a value."""


class Number(NamedTuple):
    """A plain number where an operation takes a tensor, and the type it is computed in."""

    value: float
    dtype: torch.dtype


class Look(NamedTuple):
    """How a value lies in its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @property
    def solid(self) -> bool:
        """Whether it lies in order and without gaps."""
        steps = [math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]
        return all(
            one in (1, 0) or at == by for one, at, by in zip(self.shape, self.stride, steps, strict=True)
        )


class Operation(NamedTuple):
    """One operation of PyTorch's."""

    target: Any
    given: list[Any]  # its arguments, flat: slots and plain values
    form: TreeSpec  # of the arguments
    made: list[Slot | None]  # None where it makes nothing, as of a gradient that is not wanted
    block: int = 0  # that it belongs to

    @property
    def slots(self) -> list[Slot]:
        return [value for value in self.given if isinstance(value, Slot)]

    @property
    def results(self) -> list[Slot]:
        return [slot for slot in self.made if slot is not None]

    @property
    def name(self) -> Hashable:
        """What is done to what. The type tells 1 from 1.0 and from a slot."""
        return (self.target, str(self.form), *((type(v), str(v)) for v in self.given))

    def renamed(self, same: dict[Slot, Slot]) -> Operation:
        """The same on other slots."""
        if same.keys().isdisjoint(self.slots):
            return self
        return self._replace(given=[same.get(v, v) if isinstance(v, Slot) else v for v in self.given])

    def run(self, values: dict[Slot, Tensor]) -> dict[Slot, Tensor]:
        """What it makes of these values."""
        args, kwargs = tree_unflatten(
            [values[v] if isinstance(v, Slot) else v for v in self.plain], self.form
        )
        found = zip(self.made, tree_leaves(self.target(*args, **kwargs)), strict=True)
        return {slot: value for slot, value in found if slot is not None}

    @property
    def plain(self) -> list[Any]:
        """The arguments, with plain numbers as such."""
        return [value.value if isinstance(value, Number) else value for value in self.given]


@dataclass(frozen=True)
class Program:
    """Operations in the order in which they are done.

    It has one block; or, around a walk, three: the first step, any later one, and what comes after the last.
    A later block may use what the first has made.
    """

    inputs: list[list[Slot]]  # by block, as are the results
    operations: list[Operation]
    wanted: list[list[Slot]]
    constants: dict[Slot, Tensor]  # what is there before
    looks: list[Look]  # of every slot
    memory: list[Slot]  # of every slot, the first one in the same memory
    overwritten: set[Slot]  # memory that some operation writes to

    @property
    def results(self) -> set[Slot]:
        return {slot for block in self.wanted for slot in block}

    def written(self, slots: Iterable[Slot]) -> set[Slot]:
        """Their memory, as far as it is written in place."""
        return {self.memory[slot] for slot in slots} & self.overwritten

    def pure(self, operation: Operation) -> bool:
        """Whether it only computes: it draws nothing, and its memory is never written in place."""
        return _computes(operation.target) and not self.written((*operation.slots, *operation.results))

    def merged(
        self, twins: Callable[[Operation], dict[Slot, Slot]], same: dict[Slot, Slot] | None = None
    ) -> Program:
        """With other values in place of results that are the same, and without what makes only such.

        `twins` tells of a pure operation which results to replace, and by what; `same` does so beforehand.
        """
        same, kept = dict(same or {}), list[Operation]()
        for operation in self.operations:
            operation = operation.renamed(same)
            found = twins(operation) if self.pure(operation) else None
            same |= found or {}
            if found is None or not found.keys() >= set(operation.results):
                kept.append(operation)
        wanted = [[same.get(slot, slot) for slot in block] for block in self.wanted]
        return replace(self, operations=kept, wanted=wanted)


@cache
def _computes(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded not in target.tags and not target._schema.is_mutable
