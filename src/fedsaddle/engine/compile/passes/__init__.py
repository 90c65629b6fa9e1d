"""Passes: each makes a program shorter, or a walk's steps; here they are put together, in one list.

A pass is a function of a program that gives another one and leaves the one it was given as it is.

It may assume:

- An operation comes after those whose results it takes. A slot is made once, but for memory that is written
  in place, where an operation gives back the slot that it wrote to.
- In every replay shapes, layouts, types and devices are those of the trace; only the inputs' values differ.
- `looks` and `memory` tell where every value lies. What is written in place is in `overwritten`.

It must keep:

- The bits of all that is wanted. So an operation is left out or done together with others only if that rounds
  as before: element by element, and correctly rounded.
- The layout in memory, because sums and products add in its order. A value may stand for another only if it
  has the same shape, strides and type.
- What is not pure (`Program.pure`): operations that draw, write in place, or look at memory that is written
  stay in their order and are neither joined nor replaced. One that is moved takes with it all that share its
  memory.
- The constants: they are shared with whoever made them.
"""

from __future__ import annotations

from collections.abc import Callable

from fedsaddle.engine.compile.passes.common_subexpression_elimination import common_subexpression_elimination
from fedsaddle.engine.compile.passes.constant_folding import constant_folding
from fedsaddle.engine.compile.passes.copy_elision import copy_elision
from fedsaddle.engine.compile.passes.dead_code_elimination import dead_code_elimination
from fedsaddle.engine.compile.passes.loop_invariant_code_motion import loop_invariant_code_motion
from fedsaddle.engine.compile.passes.slice_batching import slice_batching
from fedsaddle.engine.compile.program import Program

PASSES: list[Callable[[Program], Program]] = [
    constant_folding,
    common_subexpression_elimination,
    copy_elision,
    common_subexpression_elimination,  # what took copies of one value is the same now
    dead_code_elimination,  # so that only slices count that are needed
    slice_batching,
    dead_code_elimination,
    loop_invariant_code_motion,
]


def shortened(program: Program) -> Program:
    """What a replay needs of it."""
    for one in PASSES:
        program = one(program)
    return program
