"""Operations as a module of torch.fx: a function in Python, one line an operation."""

from __future__ import annotations

import operator

from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.utils._pytree import tree_unflatten

from fedsaddle.engine.compile.program import Operation, Slot


class FX:
    """A player in Python."""

    def __init__(
        self,
        inputs: list[Slot],
        operations: list[Operation],
        wanted: list[Slot],
        why: str | None = None,
    ) -> None:
        self.why = why
        graph = Graph()
        values = {slot: graph.placeholder(f"input_{slot}") for slot in inputs}
        for operation in operations:
            plain = [values[v] if isinstance(v, Slot) else v for v in operation.plain]
            node = graph.call_function(operation.target, *tree_unflatten(plain, operation.form))
            returns = operation.target._schema.returns
            if len(returns) == 1 and returns[0].type.kind() != "ListType":
                parts = [node]
            else:
                parts = [
                    node if slot is None else graph.call_function(operator.getitem, (node, place))
                    for place, slot in enumerate(operation.made)
                ]
            made = zip(operation.made, parts, strict=True)
            values |= {slot: part for slot, part in made if slot is not None}
        graph.output(tuple(values[slot] for slot in wanted))
        self.module = GraphModule(nn.Module(), graph)

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.module.forward(*given)
        return found
