"""Recording: what a computation does, as a list of PyTorch's own operations on plain tensors.

A round is thousands of small operations, and under vmap and grad each passes through more Python than it
computes. What comes out below is written down once, and shortened: without what is the same in every replay,
is done twice, or is needed by nobody. The results keep their bits. TorchScript's interpreter plays it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.jit._fuser import optimized_execution
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

LONGEST = 50_000  # operations; a longer computation is not recorded
SMALL = 1 << 20  # bytes of a value that is kept instead of being computed in every replay

_aten = torch.ops.aten
SELECT = _aten.select.int
FILLS = {_aten.ones_like.default, _aten.zeros_like.default}  # whatever is in their argument
UNITS = {(_aten.pow.Tensor_Scalar, 1.0), (_aten.mul.Scalar, 1)}  # that give back what they are given
EXACT = {  # element by element, and correctly rounded
    _aten._to_copy.default,
    _aten.add.Tensor,
    _aten.bitwise_not.default,
    _aten.mul.Tensor,
    _aten.neg.default,
    _aten.sub.Tensor,
}
HALVES = {torch.float16, torch.bfloat16}


class Slot(int):
    """The number of a tensor on a tape."""


class Number(NamedTuple):
    """A plain number where an operation takes a tensor, and the type it is computed in."""

    value: float
    dtype: torch.dtype


class Look(NamedTuple):
    """How a tensor lies in its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @property
    def solid(self) -> bool:
        """Whether it lies in order and without gaps."""
        steps = [math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))]
        return all(
            one in (1, 0) or at == by for one, at, by in zip(self.shape, self.stride, steps, strict=True)
        )


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
    def name(self) -> Hashable:
        """What is done to what. The type tells 1 from 1.0 and from a slot."""
        return (self.operation, str(self.shape), *((type(v), str(v)) for v in self.given))

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
        self.looks: list[Look] = []
        self.overwritten: set[Slot] = set()  # memory that some operation writes to
        self.usable = True
        self._slots = WeakIdKeyDictionary()
        self.inputs = [self._new(value) for value in inputs]
        self._varying = {self.memory[slot] for slot in self.inputs}  # memory whose values depend on them

    def slot(self, tensor: Tensor) -> Slot:
        slot: Slot | None = self._slots.get(tensor)
        if slot is None:
            slot = self._new(tensor)
            self.outside[slot] = tensor
        return slot

    def varies(self, tensor: Tensor) -> bool:
        """Whether its values depend on the inputs."""
        slot = self._slots.get(tensor)
        return slot is not None and self.memory[slot] in self._varying

    def _new(self, tensor: Tensor, beside: Slot | None = None) -> Slot:
        if not _ordinary(tensor):
            raise TypeError("only plain tensors can be written down")
        look = Look(
            tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype, tensor.device
        )
        slot = self._slots[tensor] = self.another(look, beside)
        return slot

    def another(self, look: Look, beside: Slot | None = None) -> Slot:
        """A new slot, in memory of its own or beside another."""
        slot = Slot(len(self.memory))
        self.memory.append(slot if beside is None else self.memory[beside])
        self.looks.append(look)
        return slot

    def stand_in(self, slot: Slot) -> Tensor:
        """Something of the same shape and kind."""
        look = self.looks[slot]
        return torch.empty_strided(look.shape, look.stride, dtype=look.dtype, device=look.device)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        try:
            taken = {id(tensor): self.slot(tensor) for tensor in tensors}
        except Exception:  # whatever it is, it is computed all the same
            self.usable = False
        result = func(*args, **kwargs)
        if self.usable:
            try:
                self._write_down(func, args, kwargs, tensors, taken, tree_leaves(result))
            except Exception:
                self.usable = False
        return result

    def _write_down(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        taken: dict[int, Slot],  # by the tensor's id
        made: list[Any],
    ) -> None:
        varies = any(self.varies(tensor) for tensor in tensors)
        if (varies and _looks(func, tensors)) or len(self.steps) == LONGEST:
            self.usable = False
        if torch.Tag.inplace_view in func.tags:  # the memory stays as it is, so it is a view like others
            func = getattr(getattr(_aten, func._schema.name[6:-1]), func._overloadname)
        schema = func._schema
        told = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = self.memory[taken[id(told[argument.name])]]
                self.overwritten.add(written)
                if varies:
                    self._varying.add(written)
        outs: list[Slot | None] = []
        for tensor in made:
            if not isinstance(tensor, Tensor):
                outs.append(None)
                continue
            old = self._slots.get(tensor) if schema.is_mutable else None
            home = tensor.untyped_storage()._cdata
            beside = next((taken[id(t)] for t in tensors if t.untyped_storage()._cdata == home), None)
            outs.append(self._new(tensor, beside) if old is None else old)
        if varies:
            self._varying.update(self.memory[slot] for slot in outs if slot is not None)
        numbers = {
            place: Number(value, _dtype(value, tensors, made))
            for place, (argument, value) in enumerate(zip(schema.arguments, args, strict=False))
            if isinstance(value, int | float) and str(argument.type) == "Tensor"
        }
        args = tuple(numbers.get(place, value) for place, value in enumerate(args))
        leaves, shape = tree_flatten((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Number))
        given = [taken[id(leaf)] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.steps.append(Step(func, given, shape, outs))


def _ordinary(tensor: Tensor) -> bool:
    """Whether its memory tells its values, and a plain number meets them in their own type."""
    odd = tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()
    return tensor.layout is torch.strided and not odd and tensor.dtype not in HALVES


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
    """Whether what comes next depends on values, or on places in memory, and not only on shapes."""
    if func in (_aten.as_strided.default, _aten.view.dtype):
        return True
    if func is _aten.index.Tensor:
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors[1:])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


def shortened(tape: Recorder, wanted: list[Slot]) -> tuple[list[Step], dict[Slot, Tensor], list[Slot]]:
    """The steps that a replay needs, what it finds there already, and where its results are.

    The results keep their bits: what is left out is known before, or the same as something else.
    """
    known, same, steps = dict[Slot, Tensor](), dict[Slot, Slot](), list[Step]()
    # By where it lies, by what it holds if that is known, and by how it is made.
    seen: dict[Hashable, Slot] = {(tape.memory[slot], tape.looks[slot]): slot for slot in tape.inputs}
    for slot, value in tape.outside.items():
        known[slot] = value
        if value.nbytes <= SMALL and tape.memory[slot] not in tape.overwritten:
            same[slot] = seen.setdefault(_contents(value), slot)
    for step in tape.steps:
        step = step._replace(given=[same.get(v, v) if isinstance(v, Slot) else v for v in step.given])
        touched = {tape.memory[slot] for slot in (*step.slots, *step.results)}
        if not step.pure or not touched.isdisjoint(tape.overwritten):
            steps.append(step)
            continue
        blank = {slot: tape.stand_in(slot) for slot in step.slots} if step.operation in FILLS else {}
        if all(slot in known for slot in step.slots) or blank:
            found = step.run(blank or known)
            if sum(value.nbytes for value in found.values()) <= SMALL:
                known |= found
                same |= {slot: seen.setdefault(_contents(value), slot) for slot, value in found.items()}
                continue
        for place, slot in enumerate(step.results):
            where, how = (tape.memory[slot], tape.looks[slot]), (step.name, place)
            twins = (seen.get(where), seen.get(how), _copied(step, slot, tape), slot)
            same[slot] = seen[where] = seen[how] = next(twin for twin in twins if twin is not None)
        if any(same[slot] == slot for slot in step.results):
            steps.append(step)
    wanted = [same.get(slot, slot) for slot in wanted]
    steps = _needed(_Together(_needed(steps, wanted), tape).steps, wanted)
    used = {slot for step in steps for slot in step.slots} | set(wanted)
    return steps, {slot: value for slot, value in known.items() if slot in used}, wanted


def _contents(value: Tensor) -> Hashable:
    bits = value.cpu().contiguous().numpy().tobytes()
    return (value.device, value.dtype, tuple(value.shape), value.stride(), bits)


def _copied(step: Step, result: Slot, tape: Recorder) -> Slot | None:
    """The argument that the result is a mere copy of."""
    name, slots = step.operation, step.slots
    copied = (
        (name, *step.given[1:]) in UNITS
        or (name is _aten.where.self and len(slots) == 3 and slots[1] == slots[2])
        or (name is _aten.cat.default and len(slots) == 1)
    )
    alike = copied and tape.looks[slots[-1]]._replace(offset=0) == tape.looks[result]
    return slots[-1] if alike else None


def _needed(steps: list[Step], wanted: list[Slot]) -> list[Step]:
    """Without those whose results nobody uses."""
    needed, kept = set(wanted), list[Step]()
    for step in reversed(steps):
        if step.operation._schema.is_mutable or not needed.isdisjoint(step.results):
            needed.update(step.slots)
            kept.append(step)
    return kept[::-1]


class _Together:
    """What is done to each part of a tensor by itself, such as to every minibatch, is done to the whole.

    Only operations whose rounding does not depend on what they compute beside, and only if every part is
    wanted. The whole is laid out with one part after another, so that a part lies as it did by itself.
    """

    def __init__(self, steps: list[Step], tape: Recorder) -> None:
        self.tape, self.steps = tape, list[Step]()
        self.selected = Counter(tuple(step.given[:2]) for step in steps if step.operation is SELECT)
        self.part_of: dict[Slot, tuple[Slot, int, int]] = {}  # of what, along which dimension, at which place
        self.wholes: dict[Hashable, Slot] = {}
        for step in steps:
            self.steps.append(self._shared(step))

    def _shared(self, step: Step) -> Step:
        """The step; or if all parts can have it at once, one that takes a part of that."""
        parts = [self.part_of.get(slot) for slot in step.slots]
        if step.operation is SELECT:
            source, along, place = step.given
            shape, written = self.tape.looks[source].shape, self.tape.memory[source] in self.tape.overwritten
            if self.selected[source, along] == shape[along] and not written:
                self.part_of[step.results[0]] = (source, along % len(shape), place)
        elif step.operation in EXACT and parts and None not in parts:
            return self._taken(step, [part for part in parts if part is not None])
        return step

    def _taken(self, step: Step, parts: list[tuple[Slot, int, int]]) -> Step:
        tape, part = self.tape, step.results[0]
        look, (_, _, place) = tape.looks[part], parts[0]
        sizes = {(place, tape.looks[source].shape[along]) for source, along, place in parts}
        shapes = {tape.looks[slot].shape for slot in step.slots}
        count = tape.looks[parts[0][0]].shape[parts[0][1]]
        small = count * math.prod(look.shape) * look.dtype.itemsize <= SMALL
        alike = len(sizes) == 1 and shapes == {look.shape} and look.solid
        exact = not any(tape.looks[slot].dtype.is_complex for slot in (*step.slots, part))
        if not (small and alike and exact) or tape.memory[part] in tape.overwritten:
            return step
        sources = iter([self._laid_out(source, along) for source, along, _ in parts])
        joint = step._replace(given=[next(sources) if isinstance(v, Slot) else v for v in step.given])
        whole = self._whole(joint.name, joint, look._replace(shape=(count, *look.shape)))
        self.part_of[part] = (whole, 0, place)
        return Step(SELECT, *tree_flatten(((whole, 0, place), {})), [part])

    def _laid_out(self, source: Slot, along: int) -> Slot:
        """The whole with its parts one after another."""
        if source in self.wholes.values():
            return source
        look = self.tape.looks[source]
        dims = [along, *(dim for dim in range(len(look.shape)) if dim != along)]
        look = look._replace(shape=tuple(look.shape[dim] for dim in dims))
        turned = Step(_aten.permute.default, *tree_flatten(((source, dims), {})), [])
        turned_slot = self._whole(turned.name, turned, look)
        solid = {"memory_format": torch.contiguous_format}
        copy = Step(_aten.clone.default, *tree_flatten(((turned_slot,), solid)), [])
        return self._whole(copy.name, copy, look)

    def _whole(self, name: Hashable, step: Step, look: Look) -> Slot:
        """What the step makes, if need be by taking it."""
        if name not in self.wholes:
            self.wholes[name] = self.tape.another(look)
            self.steps.append(step._replace(made=[self.wholes[name]]))
        return self.wholes[name]


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
        name = (type(value), repr(value))  # not that of a tensor: it shows only four digits
        if isinstance(value, Number):
            value = torch.tensor(value.value, dtype=value.dtype)
        if isinstance(value, torch.memory_format | torch.layout):
            value = _CODES[value]
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
    results: Any  # what comes out, with None for its tensors

    def __call__(self, inputs: Any) -> Any:
        # As recorded: the interpreter's own improvements would begin only at the third replay.
        with torch.inference_mode(), optimized_execution(False):
            found = self.function(*_tensors(inputs), *self.known)
        return _rebuilt(self.results, iter([value.clone() for value in found]))  # fit for gradients again


def _tensors(tree: Any) -> list[Tensor]:
    """As `tree_leaves`, for what rounds are made of, in a fraction of its time."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree
    return [tensor for part in parts for tensor in _tensors(part)]


def _rebuilt(like: Any, tensors: Iterator[Tensor]) -> Any:
    if like is None:
        return next(tensors)
    if isinstance(like, dict):
        return {name: _rebuilt(part, tensors) for name, part in like.items()}
    parts = [_rebuilt(part, tensors) for part in like]
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def record(work: Callable[[Any], Any], inputs: Any) -> Tape | None:
    """A tape of work(inputs), or None if it cannot be recorded.

    What is computed outside PyTorch, as by NumPy, is not seen: in a replay it would be what it was.
    """
    inputs = tree_map(Tensor.clone, inputs)  # two inputs may be the same tensor
    if not all(map(_ordinary, _tensors(inputs))):
        return None
    recorder = Recorder(_tensors(inputs))
    with torch.no_grad(), recorder:
        found = work(inputs)
    if not recorder.usable:
        return None
    try:
        with torch.no_grad():
            steps, known, wanted = shortened(recorder, [recorder.slot(value) for value in _tensors(found)])
        function = interpreted([*recorder.inputs, *known], steps, wanted)
    except Exception:  # an operation or a constant that the interpreter does not take
        return None
    return Tape(function, [*known.values()], tree_map(lambda _: None, found))
