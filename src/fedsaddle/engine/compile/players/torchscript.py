"""Operations as a function of TorchScript, whose interpreter plays them without Python and its lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from fedsaddle.engine.compile.program import Number, Operation, Slot

CODES: dict[Any, int] = {
    torch.strided: 0,
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}  # of layouts and memory formats, which are numbers there


class TorchScript:
    """The interpreter."""

    why = None

    def __init__(self, inputs: list[Slot], operations: list[Operation], wanted: list[Slot]) -> None:
        script = _Script(inputs)
        for operation in operations:
            script.add(operation)
        self.function = script.function(wanted)

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        # Its own improvements would begin only at the third replay. A context manager would show in the time
        # of a step.
        before = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)
        try:
            found: tuple[Tensor, ...] = self.function(*given)
        finally:
            torch._C._set_graph_executor_optimize(before)
        return found


class _Script:
    """A graph of TorchScript's that is being written."""

    def __init__(self, inputs: list[Slot]) -> None:
        self.graph: Any = torch._C.Graph()
        self.values = {slot: self.graph.addInput() for slot in inputs}
        self.constants: dict[Any, Any] = {}

    def add(self, operation: Operation) -> None:
        args, kwargs = tree_unflatten(operation.given, operation.form)
        schema = operation.target._schema
        told = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
        node = self._insert(
            schema.name,
            [self._argument(own.type, told.get(own.name, own.default_value)) for own in schema.arguments],
            len(schema.returns),
        )
        if len(schema.returns) == 1 and schema.returns[0].type.kind() == "ListType":
            node.output().setType(torch._C.ListType(torch._C.TensorType.get()))
            node = self._insert("prim::ListUnpack", [node.output()], len(operation.made))
        made = zip(operation.made, node.outputs(), strict=True)
        self.values |= {slot: value for slot, value in made if slot is not None}

    def function(self, wanted: list[Slot]) -> Callable[..., Any]:
        result = self._insert("prim::TupleConstruct", [self.values[slot] for slot in wanted]).output()
        result.setType(torch._C.TupleType([torch._C.TensorType.get()] * len(wanted)))
        self.graph.registerOutput(result)
        function: Callable[..., Any] = torch._C._create_function_from_graph("tape", self.graph)
        return function

    def _insert(self, kind: str, given: list[Any], made: int = 1) -> Any:
        node = self.graph.create(kind, given, made)
        self.graph.insertNode(node)
        return node

    def _argument(self, type: Any, value: Any) -> Any:
        if isinstance(value, Slot):
            return self.values[value]
        if isinstance(value, list | tuple) and not isinstance(value, Number):
            type = type.getElementType() if type.kind() == "OptionalType" else type
            if not value or any(isinstance(part, Slot) for part in value):
                listed = self._insert("prim::ListConstruct", [self._argument(type, part) for part in value])
                listed.output().setType(type)
                return listed.output()
            return self._constant(list(value))
        return self._constant(value)

    def _constant(self, value: Any) -> Any:
        name = (type(value), repr(value))  # not that of a tensor: it shows only four digits
        if isinstance(value, Number):
            value = torch.tensor(value.value, dtype=value.dtype)
        if isinstance(value, torch.memory_format | torch.layout):
            value = CODES[value]
        if name not in self.constants:
            self.constants[name] = self.graph.insertConstant(value)
        return self.constants[name]
