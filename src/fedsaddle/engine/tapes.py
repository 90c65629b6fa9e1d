"""Tapes: on a CPU, a computation is recorded once for each shape and then replayed without Python.

A round is thousands of small operations, and under vmap and grad each passes through more Python than it
computes. A tape holds what comes out below: PyTorch's own operations on plain tensors, without those that
are the same in every replay, that are done twice, or that nobody needs. TorchScript's interpreter replays
them in order; it does not hold Python's lock, so threads replay at the same time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.jit._fuser import optimized_execution
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from fedsaddle.engine.visits import Visits

LONGEST = 50_000  # operations; a longer computation is not recorded
SMALL = 1 << 20  # bytes of a value that is kept instead of being computed in every replay
PATIENCE = 8  # uses of a shape before it is recorded, which takes about as long; the bits are the same


class Slot(int):
    """The number of a tensor on a tape."""


class Number(NamedTuple):
    """A plain number where an operation takes a tensor, and the type it is computed in."""

    value: float
    dtype: torch.dtype


class Step(NamedTuple):
    """One operation."""

    operation: Any
    given: list[Any]  # its arguments, flat: slots and plain values
    shape: TreeSpec  # of the arguments
    made: list[Slot | None]  # None where it makes nothing, as of a gradient that is not wanted

    @property
    def slots(self) -> list[Slot]:
        return [value for value in self.given if isinstance(value, Slot)]

    @property
    def results(self) -> list[Slot]:
        return [slot for slot in self.made if slot is not None]

    @property
    def pure(self) -> bool:
        seeded = torch.Tag.nondeterministic_seeded in self.operation.tags
        return not seeded and not self.operation._schema.is_mutable

    def run(self, known: dict[Slot, Tensor]) -> dict[Slot, Tensor]:
        plain = [_value(known[v] if isinstance(v, Slot) else v) for v in self.given]
        args, kwargs = tree_unflatten(plain, self.shape)
        found = zip(self.made, tree_leaves(self.operation(*args, **kwargs)), strict=True)
        return {slot: value for slot, value in found if slot is not None}


class Recorder(TorchDispatchMode):
    """Writes down every operation that is done while it is on."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.outside: dict[Slot, Tensor] = {}  # tensors that were there before, but are not inputs
        self.memory: list[Slot] = []  # of each slot, the first one in the same memory
        self.overwritten: set[Slot] = set()  # memory that some operation writes to
        self.usable = True
        self._slots = WeakIdKeyDictionary()
        self.inputs = [self._new(value) for value in inputs]
        self._varying = set(self.inputs)

    def slot(self, tensor: Tensor) -> Slot:
        slot: Slot | None = self._slots.get(tensor)
        if slot is None:
            slot = self._new(tensor)
            self.outside[slot] = tensor
        return slot

    def _new(self, tensor: Tensor, beside: Slot | None = None) -> Slot:
        slot = self._slots[tensor] = Slot(len(self.memory))
        self.memory.append(slot if beside is None else self.memory[beside])
        return slot

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves, shape = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        taken = [self.slot(tensor) for tensor in tensors]
        result = func(*args, **kwargs)
        made = tree_leaves(result)

        varies = not self._varying.isdisjoint(taken)
        if (varies and _looks(func, tensors)) or len(self.steps) == LONGEST:
            self.usable = False
        schema = func._schema
        named = [*zip(schema.arguments, args, strict=False)]
        for argument, value in named:
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor):
                self.overwritten.add(self.memory[self._slots[value]])
        outs: list[Slot | None] = []
        for tensor in made:
            if not isinstance(tensor, Tensor):
                outs.append(None)
                continue
            old = self._slots.get(tensor) if schema.is_mutable else None
            home = tensor.untyped_storage()._cdata
            beside = next(
                (s for s, t in zip(taken, tensors, strict=True) if t.untyped_storage()._cdata == home), None
            )
            outs.append(self._new(tensor, beside) if old is None else old)
        if varies:
            self._varying.update(slot for slot in outs if slot is not None)
            self._varying.update(s for s in taken if self.memory[s] in self.overwritten)
        numbers = {
            place: Number(value, _dtype(value, tensors, made))
            for place, (argument, value) in enumerate(named)
            if isinstance(value, int | float) and str(argument.type) == "Tensor"
        }
        if numbers:
            args = tuple(numbers.get(place, value) for place, value in enumerate(args))
            leaves, shape = tree_flatten((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Number))
        before = {id(tensor): slot for tensor, slot in zip(tensors, taken, strict=True)}
        given = [before[id(leaf)] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.steps.append(Step(func, given, shape, outs))
        return result


def _value(value: Any) -> Any:
    return value.value if isinstance(value, Number) else value


def _dtype(value: float, tensors: list[Tensor], made: list[Tensor]) -> torch.dtype:
    """What PyTorch computes in when it meets a plain number."""
    if made[0].dtype != torch.bool:
        return made[0].dtype
    if not tensors or (isinstance(value, float) and not tensors[0].is_floating_point()):
        return torch.get_default_dtype() if isinstance(value, float) else torch.int64
    return torch.int64 if tensors[0].dtype == torch.bool and not isinstance(value, bool) else tensors[0].dtype


def _looks(func: Any, tensors: list[Tensor]) -> bool:
    """Whether what comes next depends on values, not only on shapes."""
    if func is torch.ops.aten.index.Tensor:
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors[1:])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


def shortened(tape: Recorder, wanted: list[Slot]) -> tuple[list[Step], dict[Slot, Tensor], list[Slot]]:
    """The steps that a replay needs, what it finds there already, and where its results are."""
    known, same, seen, steps = dict(tape.outside), dict[Slot, Slot](), dict[Any, list[Slot]](), list[Step]()
    for step in tape.steps:
        step = step._replace(given=[same.get(v, v) if isinstance(v, Slot) else v for v in step.given])
        touched = {tape.memory[slot] for slot in (*step.slots, *step.results)}
        if step.pure and touched.isdisjoint(tape.overwritten):
            if all(slot in known for slot in step.slots):
                found = step.run(known)
                if sum(value.nbytes for value in found.values()) <= SMALL:
                    known |= found
                    continue
            # The type tells 1 from 1.0 and from a slot.
            what = (step.operation, str(step.shape), *((type(v), str(v)) for v in step.given))
            if what in seen:
                same.update(zip(step.results, seen[what], strict=True))
                continue
            seen[what] = step.results
        steps.append(step)
    wanted = [same.get(slot, slot) for slot in wanted]
    needed, kept = set(wanted), list[Step]()
    for step in reversed(steps):
        if step.operation._schema.is_mutable or not needed.isdisjoint(step.results):
            needed.update(step.slots)
            kept.append(step)
    return kept[::-1], {slot: value for slot, value in known.items() if slot in needed}, wanted


def interpreted(inputs: list[Slot], steps: list[Step], wanted: list[Slot]) -> Callable[..., Any]:
    """The steps as a function of TorchScript."""
    graph: Any = torch._C.Graph()
    constants: dict[Any, Any] = {}
    tensor = torch._C.TensorType.get()
    values = {slot: graph.addInput() for slot in inputs}

    def insert(kind: str, given: list[Any], made: int = 1) -> Any:
        node = graph.create(kind, given, made)
        graph.insertNode(node)
        return node

    def constant(value: Any) -> Any:
        if isinstance(value, Number):
            value = torch.tensor(value.value, dtype=value.dtype)
        if isinstance(value, torch.memory_format | torch.layout):
            value = _CODES[value]
        name = (type(value), str(value), getattr(value, "dtype", None))
        if name not in constants:
            constants[name] = graph.insertConstant(value)
        return constants[name]

    def argument(type: Any, value: Any) -> Any:
        if isinstance(value, Slot):
            return values[value]
        if isinstance(value, list | tuple) and not isinstance(value, Number):
            type = type.getElementType() if type.kind() == "OptionalType" else type
            if not value or any(isinstance(part, Slot) for part in value):
                listed = insert("prim::ListConstruct", [argument(type, part) for part in value]).output()
                listed.setType(type)
                return listed
            return constant(list(value))
        return constant(value)

    for step in steps:
        args, kwargs = tree_unflatten(step.given, step.shape)
        schema = step.operation._schema
        told = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
        node = insert(
            schema.name,
            [argument(own.type, told.get(own.name, own.default_value)) for own in schema.arguments],
            len(schema.returns),
        )
        if len(schema.returns) == 1 and schema.returns[0].type.kind() == "ListType":
            node.output().setType(torch._C.ListType(tensor))
            node = insert("prim::ListUnpack", [node.output()], len(step.made))
        values |= {
            slot: value for slot, value in zip(step.made, node.outputs(), strict=True) if slot is not None
        }
    result = insert("prim::TupleConstruct", [values[slot] for slot in wanted]).output()
    result.setType(torch._C.TupleType([tensor] * len(wanted)))
    graph.registerOutput(result)
    function: Callable[..., Any] = torch._C._create_function_from_graph("tape", graph)
    return function


_CODES: dict[Any, int] = {
    torch.strided: 0,
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


@dataclass(frozen=True)
class Tape:
    function: Callable[..., Any]
    known: list[Tensor]
    results: TreeSpec

    def __call__(self, inputs: Any) -> Any:
        # As recorded: the interpreter's own improvements would begin only at the third replay.
        with torch.no_grad(), optimized_execution(False):
            return tree_unflatten(self.function(*tree_leaves(inputs), *self.known), self.results)


def record(work: Callable[[Any], Any], inputs: Any) -> Tape | None:
    """A tape of work(inputs), or None if it cannot be recorded."""
    inputs = tree_map(Tensor.clone, inputs)  # two inputs may be the same tensor
    recorder = Recorder(tree_leaves(inputs))
    with torch.no_grad(), recorder:
        found, results = tree_flatten(work(inputs))
    if not recorder.usable:
        return None
    with torch.no_grad():
        steps, known, wanted = shortened(recorder, [recorder.slot(value) for value in found])
    return Tape(interpreted([*recorder.inputs, *known], steps, wanted), [*known.values()], results)


class Tapes:
    """The tapes of one study, and the threads that replay them: as many as the cores have room for."""

    def __init__(self) -> None:
        self._tapes: dict[Hashable, Callable[[Any], Any]] = {}
        self._uses: Counter[Hashable] = Counter()

    def __call__(self, shape: Hashable, work: Callable[[Any], Any], inputs: Any) -> Any:
        """work(inputs), by a replay. All it does with its inputs must follow from their `shape`."""
        return self._ready(shape, work, inputs, 1)(inputs)

    def pieces(
        self, shape: Hashable, ask: Callable[[Visits], dict[str, Any]], visits: Visits, size: int
    ) -> dict[str, Any]:
        """ask(visits), so many at a time, by all threads."""

        def work(inputs: tuple[Any, ...]) -> dict[str, Any]:
            return ask(Visits(*inputs))

        parts = [visits.part(at, at + size) for at in range(0, len(visits), size)]
        many = [(part.by_lane, *part.rest) for part in parts]
        ready = self._ready(shape, work, many[0], len(many))
        # Only tapes: a module that is called as a function has its parameters changed meanwhile.
        answers = (self._threads.map if isinstance(ready, Tape) else map)(ready, many)
        joined: dict[str, Any] = tree_map(lambda *values: torch.cat(values), *answers)
        return joined

    def forget(self) -> None:
        """Give back the memory of all tapes."""
        self._tapes.clear()

    def _ready(
        self, shape: Hashable, work: Callable[[Any], Any], inputs: Any, times: int
    ) -> Callable[[Any], Any]:
        self._uses[shape] += times
        if self._uses[shape] > PATIENCE and shape not in self._tapes:
            self._tapes[shape] = record(work, inputs) or work
        return self._tapes.get(shape, work)

    @cached_property
    def workers(self) -> int:
        """How many threads may compute beside each other, if each uses PyTorch's own number of threads."""
        return max(1, cores() // torch.get_num_threads())

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
