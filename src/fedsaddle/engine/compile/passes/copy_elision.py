"""Copy elision: the original instead of a mere copy, if it lies in memory in the same way."""

from __future__ import annotations

import torch

from fedsaddle.engine.compile.program import Operation, Program, Slot

_aten = torch.ops.aten
UNITS = {(_aten.pow.Tensor_Scalar, 1.0), (_aten.mul.Scalar, 1)}  # that give back what they are given


def copy_elision(program: Program) -> Program:
    """Without operations that only copy."""

    def original(operation: Operation) -> dict[Slot, Slot]:
        slots, made = operation.slots, operation.results
        if not _copies(operation):
            return {}
        alike = program.looks[slots[-1]]._replace(offset=0) == program.looks[made[0]]
        return {made[0]: slots[-1]} if alike else {}

    return program.merged(original)


def _copies(operation: Operation) -> bool:
    """Whether its result is its last tensor."""
    target, slots = operation.target, operation.slots
    return (
        (target, *operation.given[1:]) in UNITS
        or (target is _aten.where.self and len(slots) == 3 and slots[1] == slots[2])
        or (target is _aten.cat.default and len(slots) == 1)
    )
