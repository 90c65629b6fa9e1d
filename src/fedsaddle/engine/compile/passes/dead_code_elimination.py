"""Dead code elimination: what makes nothing that is needed, and the constants that only it took."""

from __future__ import annotations

from dataclasses import replace

from fedsaddle.engine.compile.program import Operation, Program


def dead_code_elimination(program: Program) -> Program:
    """Without what nobody uses."""
    needed, kept = program.results, list[Operation]()
    for operation in reversed(program.operations):
        if operation.target._schema.is_mutable or not needed.isdisjoint(operation.results):
            needed.update(operation.slots)
            kept.append(operation)
    constants = {slot: value for slot, value in program.constants.items() if slot in needed}
    return replace(program, operations=kept[::-1], constants=constants)
