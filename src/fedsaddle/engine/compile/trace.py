"""Tracing: every operation that arrives below vmap and grad, on plain tensors, is written down.

Here is decided what may be recorded. What may not is refused with the reason (`Unrecordable`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from fedsaddle.engine.compile.program import Look, Number, Operation, Program, Slot
from fedsaddle.mishaps import out_of_memory

MOST_OPERATIONS = 50_000  # operations; a longer computation is not recorded
HALVES = {torch.float16, torch.bfloat16}

_aten = torch.ops.aten


class Unrecordable(Exception):
    """What cannot be recorded, and why: it is computed plainly."""


class Looks(Unrecordable):
    """What cannot even be captured on a GPU, for what it does depends on values."""


@contextmanager
def unrecordable() -> Iterator[None]:
    """Whatever goes wrong is a reason not to record; a lack of memory, one to compute less at a time."""
    try:
        yield
    except Unrecordable:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise Unrecordable(one_line(error)) from error


def one_line(error: Exception) -> str:
    """What it says, for a person."""
    return (str(error) or type(error).__name__).splitlines()[0]


class Tracer(TorchDispatchMode):
    """Writes down every operation that is done while it is on."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self._operations: list[Operation] = []
        self._outside: dict[Slot, Tensor] = {}  # tensors that were there before, but are not inputs
        self._memory: list[Slot] = []
        self._looks: list[Look] = []
        self._overwritten: set[Slot] = set()
        self._trouble: Unrecordable | None = None  # why this cannot be replayed
        self._slots = WeakIdKeyDictionary()
        self._inputs: list[list[Slot]] = []
        self._varying: set[Slot] = set()  # memory whose values depend on them
        self.begin_block(inputs)

    def begin_block(self, inputs: list[Tensor]) -> None:
        """What comes now is another block, and this is what a replay gives it."""
        slots = [self._new(value) for value in inputs]
        self._inputs.append(slots)
        self._varying.update(self._memory[slot] for slot in slots)

    def program(self, wanted: list[list[Tensor]]) -> Program:
        """What was written down, if it can be replayed. `wanted` by block."""
        if self._trouble is not None:
            raise self._trouble
        return Program(
            self._inputs,
            self._operations,
            [[self._slot(value) for value in block] for block in wanted],
            self._outside,
            self._looks,
            self._memory,
            self._overwritten,
        )

    def _slot(self, tensor: Tensor) -> Slot:
        slot: Slot | None = self._slots.get(tensor)
        if slot is None:
            slot = self._new(tensor)
            self._outside[slot] = tensor
        return slot

    def _varies(self, tensor: Tensor) -> bool:
        """Whether its values depend on the inputs."""
        slot = self._slots.get(tensor)
        return slot is not None and self._memory[slot] in self._varying

    def _new(self, tensor: Tensor, beside: Slot | None = None) -> Slot:
        """A new slot, in memory of its own or beside another."""
        if not ordinary(tensor):
            raise TypeError("only plain tensors can be written down")
        look = Look(
            tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype, tensor.device
        )
        slot = self._slots[tensor] = Slot(len(self._looks))
        self._memory.append(slot if beside is None else self._memory[beside])
        self._looks.append(look)
        return slot

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        # Before the operation, which may change where a tensor lies.
        with self._or_give_up(func):
            taken = {id(tensor): self._slot(tensor) for tensor in tensors}
        result = func(*args, **kwargs)
        if self._trouble is None:
            with self._or_give_up(func):
                self._write_down(func, args, kwargs, tensors, taken, tree_leaves(result))
        return result

    @contextmanager
    def _or_give_up(self, func: Any) -> Iterator[None]:
        """Whatever cannot be written down is computed all the same; why is kept."""
        try:
            yield
        except Exception as error:
            self._give_up(Unrecordable(f"{func}: {one_line(error)}"))

    def _give_up(self, why: Unrecordable) -> None:
        self._trouble = self._trouble or why

    def _write_down(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        taken: dict[int, Slot],  # by the tensor's id
        made: list[Any],
    ) -> None:
        varies = any(self._varies(tensor) for tensor in tensors)
        if varies and _looks(func, tensors):
            self._give_up(Looks(f"{func} depends on values"))
        if len(self._operations) == MOST_OPERATIONS:
            self._give_up(Unrecordable(f"it takes more than {MOST_OPERATIONS} operations"))
        if torch.Tag.inplace_view in func.tags:  # the memory stays as it is, so it is a view like others
            func = getattr(getattr(_aten, func._schema.name[6:-1]), func._overloadname)
        schema = func._schema
        told = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = self._memory[taken[id(told[argument.name])]]
                self._overwritten.add(written)
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
            self._varying.update(self._memory[slot] for slot in outs if slot is not None)
        numbers = {
            place: Number(value, _dtype(value, tensors, made))
            for place, (argument, value) in enumerate(zip(schema.arguments, args, strict=False))
            if isinstance(value, int | float) and str(argument.type) == "Tensor"
        }
        args = tuple(numbers.get(place, value) for place, value in enumerate(args))
        leaves, form = tree_flatten((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Number))
        given = [taken[id(leaf)] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._operations.append(Operation(func, given, form, outs, len(self._inputs) - 1))


def ordinary(tensor: Tensor) -> bool:
    """Whether its memory tells its values, and a plain number meets them in their own type."""
    odd = tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()
    return tensor.layout is torch.strided and not odd and tensor.dtype not in HALVES


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
