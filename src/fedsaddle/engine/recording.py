"""Recording: what a computation does, as a list of PyTorch's own operations on plain tensors.

A round is thousands of small operations, and under vmap and grad each passes through more Python than it
computes. What comes out below is written down once, and shortened: without what is the same in every replay,
is done twice, or is needed by nobody. The results keep their bits. TorchScript's interpreter plays it.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.jit._fuser import optimized_execution
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from fedsaddle.engine.memory import out_of_memory
from fedsaddle.errors import Notice

LONGEST = 50_000  # operations; a longer computation is not recorded
TELLING = 3  # steps of a walk by which its tape is judged
RECHECK, RECHECK_LESS = 64, 8  # replays before one is compared again, and how much rarer each time
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


class Unrecordable(Exception):
    """What cannot be recorded, and why: it is computed plainly."""


class Looks(Unrecordable):
    """What cannot even be captured on a GPU, for what it does depends on values."""


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
        self.trouble: Unrecordable | None = None  # why this cannot be replayed
        self._slots = WeakIdKeyDictionary()
        self.inputs: list[Slot] = []
        self._varying: set[Slot] = set()  # memory whose values depend on them
        self.add_inputs(inputs)

    def add_inputs(self, inputs: list[Tensor]) -> list[Slot]:
        """What a replay is given."""
        slots = [self._new(value) for value in inputs]
        self.inputs += slots
        self._varying.update(self.memory[slot] for slot in slots)
        return slots

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
        # Whatever cannot be written down is computed all the same; why is kept.
        try:
            taken = {id(tensor): self.slot(tensor) for tensor in tensors}
        except Exception as error:
            self._give_up(Unrecordable(f"{func}: {_line(error)}"))
        result = func(*args, **kwargs)
        if self.trouble is None:
            try:
                self._write_down(func, args, kwargs, tensors, taken, tree_leaves(result))
            except Exception as error:
                self._give_up(Unrecordable(f"{func}: {_line(error)}"))
        return result

    def _give_up(self, why: Unrecordable) -> None:
        self.trouble = self.trouble or why

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
        if varies and _looks(func, tensors):
            self._give_up(Looks(f"{func} depends on values"))
        if len(self.steps) == LONGEST:
            self._give_up(Unrecordable(f"it takes more than {LONGEST} operations"))
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
            small = sum(value.nbytes for value in found.values()) <= SMALL
            if small or _moved(step, tape):
                known |= found
                if small:
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


def _moved(step: Step, tape: Recorder) -> bool:
    """Whether it copies to another device, which a replay should not, and a graph cannot."""
    return len({tape.looks[slot].device.type for slot in (*step.slots, *step.results)}) > 1


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
    """A computation that is replayed as it was recorded."""

    function: Callable[..., Any]
    known: list[Tensor]
    results: Any  # what comes out, with None for its tensors

    def __call__(self, inputs: Any) -> Any:
        with plainly():
            found = self.function(*tensors_of(inputs), *self.known)
        return rebuilt(self.results, iter([value.clone() for value in found]))  # fit for gradients again


@dataclass(frozen=True)
class Part:
    """One of the parts of a computation around a walk."""

    function: Callable[..., Any]
    carried: list[int]  # which of the values it needs that the first part has left
    known: list[Tensor]

    def __call__(self, given: Sequence[Tensor], left: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = self.function(
            *given, *(left[place] for place in self.carried), *self.known
        )
        return found


@dataclass(frozen=True)
class WalkTape:
    """A computation around a walk: its first step, any later step, and what comes after the last.

    What a step needs and does not depend on where the walk is, is computed once, with the first step.
    """

    first: Part  # inputs -> where the walk is, and what the others need
    next: Part  # where the walk is, the number of the step -> where it is then
    last: Part  # where the walk is -> results
    state: int  # tensors that say where the walk is
    results: Any

    def __call__(self, inputs: Any, steps: int) -> Any:
        with plainly():
            found = self.first(tensors_of(inputs))
            state, left = found[: self.state], found[self.state :]
            for number in range(1, steps):
                state = self.next([*state, _number(number, state[0].device)], left)
            found = self.last(state, left)
        return rebuilt(self.results, iter([value.clone() for value in found]))


@lru_cache(maxsize=4096)
def _number(number: int, device: torch.device) -> Tensor:
    return torch.tensor(number, device=device)


@contextmanager
def plainly() -> Iterator[None]:
    """As recorded: the interpreter's own improvements would begin only at the third replay."""
    with torch.inference_mode(), optimized_execution(False):
        yield


def tensors_of(tree: Any) -> list[Tensor]:
    """As `tree_leaves`, for what rounds are made of, in a fraction of its time."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree
    return [tensor for part in parts for tensor in tensors_of(part)]


def rebuilt(like: Any, tensors: Iterator[Tensor]) -> Any:
    if like is None:
        return next(tensors)
    if isinstance(like, dict):
        return {name: rebuilt(part, tensors) for name, part in like.items()}
    parts = [rebuilt(part, tensors) for part in like]
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def record(work: Callable[[Any], Any], inputs: Any) -> Tape:
    """A tape of work(inputs).

    What is computed outside PyTorch, as by NumPy, is not seen: in a replay it would be what it was.
    """
    inputs, recorder = _begun(inputs)
    with torch.no_grad(), recorder:
        found = work(inputs)
    with _or_say_why(recorder):
        steps, known, wanted = shortened(recorder, [recorder.slot(value) for value in tensors_of(found)])
        function = interpreted([*recorder.inputs, *known], steps, wanted)
    return Tape(function, [*known.values()], tree_map(lambda _: None, found))


class Walkable(NamedTuple):
    """A computation around a walk, cut where its steps are: three functions of the inputs."""

    first: Callable[[Any], Any]  # inputs -> where the walk is after its first step
    next: Callable[[Any, Any, Tensor], Any]  # inputs, where it is, the number of the step -> where it is then
    last: Callable[[Any, Any], Any]  # inputs, where it is -> results


class Work(NamedTuple):
    """What is recorded and replayed, or computed plainly."""

    name: str  # for a person
    whole: Callable[[Any], Any]  # all of it, as it is
    walk: Walkable | None = None  # the same, cut where its walk makes a step
    steps: int = 0  # of the walk, this time
    varied: bool = False  # whether they differ from time to time
    before: Callable[[Any], Any] | None = None  # done first: what problems make or copy once

    @property
    def telling(self) -> bool:
        """Whether a replay of it tells all of a tape: in a short walk no later step feeds the next."""
        return self.walk is None or self.steps >= TELLING

    def play(self, tape: Tape | WalkTape, inputs: Any) -> Any:
        """The same by a replay."""
        return tape(inputs, self.steps) if isinstance(tape, WalkTape) else tape(inputs)


class Notices:
    """What a person should hear of recordings: each thing once."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._replays = 0
        self._next = RECHECK

    def due(self) -> bool:
        """Whether the replay that comes should be compared with the computation: now and then, ever rarer."""
        self._replays += 1
        if self._replays < self._next:
            return False
        self._next *= RECHECK_LESS
        return True

    def plain(self, name: str, why: str) -> None:
        self._say(f"{name} cannot be recorded and is computed plainly, which is slower: {why}")

    def differs(self, name: str) -> None:
        self._say(
            f"{name} gives other values when it is replayed, so it is computed plainly now, which is slower: "
            "does the problem or the algorithm compute outside PyTorch, draw random numbers, or change a "
            "value that it computes with?"
        )

    def _say(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            warnings.warn(line, Notice, stacklevel=2)


def record_walk(walk: Walkable, inputs: Any) -> WalkTape:
    """A recording of a computation around a walk of any number of steps."""
    inputs, recorder = _begun(inputs)
    given = list(recorder.inputs)
    # What can be computed as a whole need not bear being cut: a walk may carry a plain number, or leave its
    # steps in a list.
    with torch.no_grad(), _unrecordable():
        with recorder:
            begun = tree_map(Tensor.contiguous, walk.first(inputs))
        state, end = (tree_map(Tensor.clone, begun) for _ in range(2))
        at = torch.ones((), dtype=torch.int64, device=tensors_of(begun)[0].device)
        moving = recorder.add_inputs([*tensors_of(state), at])
        with recorder:
            moved = tree_map(Tensor.contiguous, walk.next(inputs, state, at))
        ending = recorder.add_inputs(tensors_of(end))
        with recorder:
            found = walk.last(inputs, end)
    kinds = [[(value.shape, value.dtype) for value in tensors_of(one)] for one in (begun, moved)]
    if kinds[0] != kinds[1]:
        raise Unrecordable("a step gives other shapes or types than it is given")
    with _or_say_why(recorder):
        ends = [[recorder.slot(value) for value in tensors_of(one)] for one in (begun, moved, found)]
        steps, known, flat = shortened(recorder, [slot for one in ends for slot in one])
        count = len(ends[0])
        wanted = [flat[:count], flat[count : 2 * count], flat[2 * count :]]
        first, *others = parted(steps, recorder, [moving, ending])
        carried, parts = list[Slot](), list[Part]()
        for own, inside, out in zip(others, (moving, ending), wanted[1:], strict=True):
            made = {slot for step in own for slot in step.results} | set(inside)
            used = dict.fromkeys(slot for step in own for slot in step.slots) | dict.fromkeys(out)
            needs = [slot for slot in used if slot not in made and slot not in known]
            carried += [slot for slot in needs if slot not in carried]
            parts.append(_part(inside, needs, carried, own, out, known))
        start = _part(given, [], [], first, [*wanted[0], *carried], known)
    further, last = parts
    return WalkTape(start, further, last, count, tree_map(lambda _: None, found))


def _part(
    given: list[Slot],
    needs: list[Slot],
    carried: list[Slot],
    steps: list[Step],
    wanted: list[Slot],
    known: dict[Slot, Tensor],
) -> Part:
    used = {slot for step in steps for slot in step.slots} | set(wanted)
    constants = [slot for slot in known if slot in used]
    function = interpreted([*given, *needs, *constants], steps, wanted)
    return Part(function, [carried.index(slot) for slot in needs], [known[slot] for slot in constants])


def parted(steps: list[Step], tape: Recorder, groups: list[list[Slot]]) -> list[list[Step]]:
    """The steps that depend on none of these groups of inputs, and those that do, group by group.

    Loop-invariant code motion: what does not depend on where a walk is, need not be computed in every step.
    Memory that is written in place belongs to one part.
    """
    homes: dict[Slot, int] = {}  # of memory that is written to: the part that does all of it
    while True:
        part = {slot: number for number, group in enumerate(groups, 1) for slot in group}
        found: list[list[Step]] = [[] for _ in range(len(groups) + 1)]
        before = dict(homes)
        for step in steps:
            written = {tape.memory[slot] for slot in (*step.slots, *step.results)} & tape.overwritten
            belongs = {part.get(slot, 0) for slot in step.slots} | {
                homes.get(memory, 0) for memory in written
            }
            belongs -= {0}
            if len(belongs) > 1:
                raise Unrecordable("a step of the walk and what comes after it write to the same memory")
            if torch.Tag.nondeterministic_seeded in step.operation.tags:
                raise Unrecordable(f"{step.operation} draws random numbers")
            own = next(iter(belongs), 0)
            part |= dict.fromkeys(step.results, own)
            homes |= dict.fromkeys(written, own)
            found[own].append(step)
        if homes == before:
            return found


def _begun(inputs: Any) -> tuple[Any, Recorder]:
    inputs = tree_map(Tensor.clone, inputs)  # two inputs may be the same tensor
    if not all(map(_ordinary, tensors_of(inputs))):
        raise Unrecordable("it is given tensors of half precision, or not plain ones")
    return inputs, Recorder(tensors_of(inputs))


@contextmanager
def _or_say_why(recorder: Recorder) -> Iterator[None]:
    """What was written down, made into something that can be played; or why it cannot."""
    if recorder.trouble is not None:
        raise recorder.trouble
    # There may be an operation or a constant that the interpreter does not take.
    with torch.no_grad(), _unrecordable():
        yield


@contextmanager
def _unrecordable() -> Iterator[None]:
    """Whatever goes wrong is a reason not to record; a lack of memory, one to compute less at a time."""
    try:
        yield
    except Unrecordable:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise Unrecordable(_line(error)) from error


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def recorded(work: Work, inputs: Any) -> Tape | WalkTape:
    """A tape: of a walk step by step, if it can be; else of the whole, if that is always as long."""
    if work.walk is None:
        return record(work.whole, inputs)
    try:
        return record_walk(work.walk, inputs)
    except Unrecordable:
        if work.varied:
            raise
    return record(work.whole, inputs)
