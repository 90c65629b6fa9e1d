"""Constant folding: what does not depend on the inputs is computed once. Equal constants become one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import Tensor

from fedsaddle.engine.compile.program import KEPT_BYTES, Operation, Program, Slot

FILLS = {torch.ops.aten.ones_like.default, torch.ops.aten.zeros_like.default}  # whatever is in their argument


def constant_folding(program: Program) -> Program:
    """With the results of operations on constants as constants, if they are small."""
    constants, pool = dict(program.constants), dict[Hashable, Slot]()

    def pooled(slot: Slot, value: Tensor) -> Slot:
        return pool.setdefault(_contents(value), slot) if value.nbytes <= KEPT_BYTES else slot

    def fold(operation: Operation) -> dict[Slot, Slot]:
        blank = operation.target in FILLS
        if not blank and not constants.keys() >= set(operation.slots):
            return {}
        known = {slot: _stand_in(program, slot) for slot in operation.slots} if blank else constants
        found = operation.run(known)
        if sum(value.nbytes for value in found.values()) > KEPT_BYTES and not _moves(program, operation):
            return {}
        constants.update(found)
        return {slot: pooled(slot, value) for slot, value in found.items()}

    fixed = {slot: value for slot, value in constants.items() if not program.written([slot])}
    same = {slot: pooled(slot, value) for slot, value in fixed.items()}
    return replace(program.merged(fold, same), constants=constants)


def _stand_in(program: Program, slot: Slot) -> Tensor:
    """Something of the same shape and kind."""
    look = program.looks[slot]
    return torch.empty_strided(look.shape, look.stride, dtype=look.dtype, device=look.device)


def _moves(program: Program, operation: Operation) -> bool:
    """Whether it copies to another device, which a replay should not, and a graph cannot."""
    return len({program.looks[slot].device.type for slot in (*operation.slots, *operation.results)}) > 1


def _contents(value: Tensor) -> Hashable:
    bits = value.cpu().contiguous().numpy().tobytes()
    return (value.device, value.dtype, tuple(value.shape), value.stride(), bits)
