"""Common subexpression elimination: what is done twice is done once. A view that leads back is what it shows.

Two values are the same if they lie in the same memory in the same way, or if the same is done to the same.
"""

from __future__ import annotations

from collections.abc import Hashable

from fedsaddle.engine.compile.program import Operation, Program, Slot


def common_subexpression_elimination(program: Program) -> Program:
    """Without what makes a value that is there already."""
    inputs = [slot for block in program.inputs for slot in block]
    seen: dict[Hashable, Slot] = {(program.memory[slot], program.looks[slot]): slot for slot in inputs}

    def earlier(operation: Operation) -> dict[Slot, Slot]:
        name, found = operation.name, dict[Slot, Slot]()
        for place, slot in enumerate(operation.results):
            where, how = (program.memory[slot], program.looks[slot]), (name, place)
            twin = seen.get(where, seen.get(how, slot))
            seen[where] = seen[how] = twin
            if twin != slot:
                found[slot] = twin
        return found

    return program.merged(earlier)
