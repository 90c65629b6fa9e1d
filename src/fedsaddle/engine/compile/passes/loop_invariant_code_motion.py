"""Loop-invariant code motion: what does not depend on where a walk is, is not computed in every step."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedsaddle.engine.compile.program import Operation, Program, Slot
from fedsaddle.engine.compile.trace import Unrecordable


def loop_invariant_code_motion(program: Program) -> Program:
    """With what depends on no other block's inputs moved to the first one.

    Memory that is written in place belongs to one block.
    """
    if len(program.inputs) == 1:
        return program
    homes: dict[Slot, int] = {}  # of memory that is written to: the block that does all of it
    while True:
        before, (operations, homes) = homes, _placed(program, homes)
        if homes == before:
            return replace(program, operations=operations)


def _placed(program: Program, homes: dict[Slot, int]) -> tuple[list[Operation], dict[Slot, int]]:
    """Every operation in the block that it must be in, and so the homes."""
    block = {slot: number for number, inputs in enumerate(program.inputs) for slot in inputs}
    homes, placed = dict(homes), list[Operation]()
    for operation in program.operations:
        written = program.written((*operation.slots, *operation.results))
        belongs = {block.get(slot, 0) for slot in operation.slots} | {homes.get(one, 0) for one in written}
        belongs -= {0}
        if len(belongs) > 1:
            raise Unrecordable("a step of the walk and what comes after it write to the same memory")
        if torch.Tag.nondeterministic_seeded in operation.target.tags:
            raise Unrecordable(f"{operation.target} draws random numbers")
        own = next(iter(belongs), 0)
        block |= dict.fromkeys(operation.results, own)
        homes |= dict.fromkeys(written, own)
        placed.append(operation._replace(block=own))
    return placed, homes
