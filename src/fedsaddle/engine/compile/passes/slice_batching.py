"""Batching of slices: what is done to every slice of a tensor, such as to every minibatch, is done at once.

Only operations whose rounding does not depend on what they compute beside, and only if every slice is
wanted. The whole is laid out with one slice after another, so that a slice lies as it did alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_flatten

from fedsaddle.engine.compile.program import KEPT_BYTES, Look, Operation, Program, Slot

_aten = torch.ops.aten
SELECT = _aten.select.int
EXACT = {  # element by element, and correctly rounded
    _aten._to_copy.default,
    _aten.add.Tensor,
    _aten.bitwise_not.default,
    _aten.mul.Tensor,
    _aten.neg.default,
    _aten.sub.Tensor,
}


def slice_batching(program: Program) -> Program:
    """With one operation on a whole in place of one on each of its slices."""
    batching = _Batching(program)
    for operation in program.operations:
        batching.take(operation)
    return replace(program, operations=batching.operations, looks=batching.looks, memory=batching.memory)


class _Slice(NamedTuple):
    """A part of a value."""

    source: Slot
    along: int  # which dimension
    place: int


class _Batching:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.operations = list[Operation]()
        self.looks, self.memory = list(program.looks), list(program.memory)
        selects = (operation for operation in program.operations if operation.target is SELECT)
        self.selected = Counter(tuple(operation.given[:2]) for operation in selects)
        self.slices: dict[Slot, _Slice] = {}
        self.wholes: dict[Hashable, Slot] = {}

    def take(self, operation: Operation) -> None:
        """The operation; or if all slices can have it at once, one that takes a slice of that."""
        parts = [self.slices[slot] for slot in operation.slots if slot in self.slices]
        if operation.target is SELECT:
            source, along, place = operation.given
            shape, written = self.looks[source].shape, self.program.written([source])
            if self.selected[source, along] == shape[along] and not written:
                self.slices[operation.results[0]] = _Slice(source, along % len(shape), place)
        elif operation.target in EXACT and parts and len(parts) == len(operation.slots):
            operation = self._sliced(operation, parts)
        self.operations.append(operation)

    def _sliced(self, operation: Operation, parts: list[_Slice]) -> Operation:
        made, place, block = operation.results[0], parts[0].place, operation.block
        look, count = self.looks[made], self.looks[parts[0].source].shape[parts[0].along]
        sizes = {(part.place, self.looks[part.source].shape[part.along]) for part in parts}
        shapes = {self.looks[slot].shape for slot in operation.slots}
        small = count * math.prod(look.shape) * look.dtype.itemsize <= KEPT_BYTES
        alike = len(sizes) == 1 and shapes == {look.shape} and look.solid
        exact = not any(self.looks[slot].dtype.is_complex for slot in (*operation.slots, made))
        if not (small and alike and exact) or self.program.written([made]):
            return operation
        sources = iter([self._laid_out(part, block) for part in parts])
        joint = operation._replace(
            given=[next(sources) if isinstance(v, Slot) else v for v in operation.given]
        )
        whole = self._whole(joint, look._replace(shape=(count, *look.shape)))
        self.slices[made] = _Slice(whole, 0, place)
        return Operation(SELECT, *tree_flatten(((whole, 0, place), {})), [made], block)

    def _laid_out(self, part: _Slice, block: int) -> Slot:
        """The whole with its slices one after another."""
        source, along, _ = part
        if source in self.wholes.values():
            return source
        look = self.looks[source]
        dims = [along, *(dim for dim in range(len(look.shape)) if dim != along)]
        look = look._replace(shape=tuple(look.shape[dim] for dim in dims))
        turned = Operation(_aten.permute.default, *tree_flatten(((source, dims), {})), [], block)
        solid = {"memory_format": torch.contiguous_format}
        copy = Operation(_aten.clone.default, *tree_flatten(((self._whole(turned, look),), solid)), [], block)
        return self._whole(copy, look)

    def _whole(self, operation: Operation, look: Look) -> Slot:
        """What the operation makes, if need be by doing it."""
        name = operation.name
        if name not in self.wholes:
            slot = self.wholes[name] = Slot(len(self.looks))
            self.looks.append(look)
            self.memory.append(slot)
            self.operations.append(operation._replace(made=[slot]))
        return self.wholes[name]
