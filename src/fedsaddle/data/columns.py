"""A person's columns: arrays, tensors, lists and words, made alike in all tables.

Floats become float32 (or what is asked for), whole numbers int64; bytes and booleans stay what they are, and
words are numbered. Nothing is guessed or mended: what cannot be used is refused in one line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from fedsaddle.data.converted import IN_MEMORY, converted
from fedsaddle.data.mapped import OnDisk, kind_of, of_array, of_npy
from fedsaddle.data.readers import Array, Words
from fedsaddle.data.tables import numbered
from fedsaddle.errors import BadInput, check_memory

Column = Tensor | OnDisk | Words


def rows_in(column: Column) -> int:
    """How many rows it has."""
    return len(column.number if isinstance(column, Words) else column)


# --- one column ------------------------------------------------------------------------------------------


def column_of(values: Any, at: str, floats: torch.dtype) -> Column:
    """What somebody has given as a column."""
    try:
        return _column_of(values, at, floats)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        raise BadInput(
            f"{at}: memory ran out; save it as a .npy file and give its path, so that it stays on the disk"
        ) from error


def _column_of(values: Any, at: str, floats: torch.dtype) -> Column:
    if isinstance(values, OnDisk):
        return replace(values, kind=floats) if values.kind.is_floating_point else values
    if isinstance(values, Words):
        return values
    if isinstance(values, str | os.PathLike):
        if Path(values).suffix.lower() != ".npy":
            raise BadInput(f"{at}: expected an array or the path of a .npy file, got '{str(values)[:80]}'")
        return of_npy(Path(values), floats, at)
    if isinstance(values, numpy.memmap) and (kept := of_array(values, floats, at)) is not None:
        return kept
    if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
        values = _stacked(values, at)
    if isinstance(values, Tensor):
        return _of_tensor(values.detach().cpu(), at, floats)
    return _of_array(_array(values, at), at, floats)


def _stacked(values: Sequence[Any], at: str) -> Tensor:
    try:
        return torch.stack(list(values))
    except (RuntimeError, TypeError):
        raise BadInput(f"{at}: its rows differ in shape or type; all must be alike") from None


def _array(values: Any, at: str) -> Array:
    try:
        return numpy.asarray(values)
    except Exception as error:  # whoever makes an array of it may fail in any way
        raise BadInput(f"{at}: no array can be made of it ({error}); its rows must be alike") from None


def _of_tensor(values: Tensor, at: str, floats: torch.dtype) -> Tensor:
    if not values.ndim:
        raise BadInput(f"{at}: expected an entry for each row, got a single number")
    if values.is_complex() or values.is_quantized or values.layout != torch.strided:
        raise BadInput(f"{at}: expected a dense tensor of numbers, got {values.dtype} ({values.layout})")
    if values.dtype in (torch.bool, torch.uint8):
        return values
    if not values.is_floating_point():
        return values.to(torch.int64)
    return _finite(values.to(floats), at)


def _finite(values: Tensor, at: str) -> Tensor:
    """The numbers, if each is one."""
    bad = ~torch.isfinite(values)
    if bad.any():
        place = int(bad.reshape(len(bad), -1).any(dim=1).nonzero()[0])
        found = float(values[place][bad[place]].flatten()[0])
        raise BadInput(f"{at}, row {place}: a number is {found:g}; fill it in, or leave out the row")
    return values


def _of_array(values: Array, at: str, floats: torch.dtype) -> Tensor | Words:
    if not values.ndim:
        raise BadInput(f"{at}: expected an entry for each row, got {type(values.item()).__name__}")
    if values.dtype.kind == "O":
        values = _unboxed(values, at)
    if values.dtype.kind in "US":
        return _words(values, at)
    kind = kind_of(values.dtype, floats, at)
    if values.dtype.kind == "u" and values.dtype.itemsize == 8 and values.size and values.max() > 2**63 - 1:
        raise BadInput(f"{at}: a number is beyond what int64 holds ({values.max()})")
    native = {torch.bool: "?", torch.uint8: "u1", torch.int64: "i8"}.get(kind, "f8")
    small = native == "f8" and values.dtype.itemsize < 8
    plain = numpy.ascontiguousarray(values, dtype="f4" if small else native)
    # A field of a structured array may lie between the places where PyTorch can read.
    fits = plain.flags.writeable and not any(stride % plain.itemsize for stride in plain.strides)
    return _of_tensor(torch.from_numpy(plain if fits else numpy.array(plain, order="C")), at, floats)


def _unboxed(values: Array, at: str) -> Array:
    """Python objects as numbers or words."""
    flat = values.ravel().tolist()
    if not flat:
        return numpy.zeros(values.shape)
    if values.ndim == 1 and flat and all(isinstance(value, numpy.ndarray | list | tuple) for value in flat):
        return _array(flat, at)  # a list in each cell
    for place, value in enumerate(flat):
        nothing = value is None or type(value).__name__ in ("NAType", "NaTType")
        if nothing or (isinstance(value, float) and value != value):
            row = place // (len(flat) // len(values))
            raise BadInput(f"{at}, row {row}: the value is missing; fill it in, or leave out the row")
    if values.ndim == 1 and flat and all(isinstance(value, str) for value in flat):
        return numpy.array(flat)
    if flat and all(isinstance(value, bool | int | float | numpy.number | numpy.bool_) for value in flat):
        return numpy.array(flat).reshape(values.shape)
    kinds = sorted({type(value).__name__ for value in flat})
    raise BadInput(f"{at}: expected numbers or words, got {', '.join(kinds)[:80]}; make it one of them")


def _words(values: Array, at: str) -> Words:
    if values.ndim != 1:
        raise BadInput(f"{at}: expected a word for each row, got {values.shape}")
    if values.dtype.kind == "S":
        values = numpy.char.decode(values, "utf-8", "replace")
    found, number = numpy.unique(values, return_inverse=True)
    if (found == "").any():
        place = int((values == "").argmax())
        raise BadInput(f"{at}, row {place}: the value is missing; fill it in, or leave out the row")
    return Words(number, tuple(found.tolist()))


# --- the same columns in all tables ----------------------------------------------------------------------

_Told = tuple[str, Mapping[str, Column]]  # whose table it is, and the table


def alike(tables: Sequence[_Told]) -> tuple[list[dict[str, Tensor | OnDisk]], dict[str, tuple[str, ...]]]:
    """The tables with the same names, shapes and kinds, and what the numbers of words stand for."""
    whose, like = tables[0]
    for other, table in tables[1:]:
        for name in like:
            if name not in table:
                raise BadInput(f"{other} lacks the column '{name[:80]}', which {whose} has")
        for name in table:
            if name not in like:
                raise BadInput(f"{other} has the column '{name[:80]}', which {whose} lacks")
    made: list[dict[str, Tensor | OnDisk]] = [{} for _ in tables]
    words = {}
    for name in like:
        every = [(f"{at}, column '{name[:80]}'", table[name]) for at, table in tables]
        texts = [column for _, column in every if isinstance(column, Words)]
        if len(texts) not in (0, len(every)):
            is_text = isinstance(every[0][1], Words)
            at = next(at for at, column in every if isinstance(column, Words) is not is_text)
            was, now = ("words", "numbers") if is_text else ("numbers", "words")
            raise BadInput(f"{at}: expected {was} as {whose} has, got {now}")
        if texts:
            words[name], numbers = numbered(*texts)
            columns: list[Tensor | OnDisk] = [*numbers]
        else:
            columns = _same_kind(
                [(at, column) for at, column in every if not isinstance(column, Words)], whose
            )
        for table, column in zip(made, columns, strict=True):
            table[name] = column
    return made, words


def _same_kind(columns: list[tuple[str, Tensor | OnDisk]], whose: str) -> list[Tensor | OnDisk]:
    """Of one shape and one kind: floats, if some are and the others are whole numbers."""
    kinds = [column.kind if isinstance(column, OnDisk) else column.dtype for _, column in columns]
    mixed = set(kinds)
    floats = next((kind for kind in kinds if kind.is_floating_point), None)
    for (at, column), kind in zip(columns, kinds, strict=True):
        shape, first = tuple(column.shape[1:]), tuple(columns[0][1].shape[1:])
        if shape != first:
            raise BadInput(f"{at}: expected rows of {first} as {whose} has, got {shape}")
        if kind != kinds[0] and not (floats is not None and mixed == {floats, torch.int64}):
            raise BadInput(f"{at}: expected {_called(kinds[0])} as {whose} has, got {_called(kind)}")
    if len(mixed) == 1 or floats is None:
        return [column for _, column in columns]
    return [
        replace(column, kind=floats) if isinstance(column, OnDisk) else column.to(floats)
        for _, column in columns
    ]


def _called(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def in_memory(column: Tensor | OnDisk, at: str) -> Tensor:
    """The rows of a column, wherever they are."""
    if isinstance(column, Tensor):
        return column
    check_memory(at, column.bytes // 4)
    return torch.cat(list(column.blocks()))


def joined(tables: Sequence[Mapping[str, Tensor | OnDisk]]) -> dict[str, Tensor | OnDisk]:
    """Tables with the same columns, one below the other."""
    if len(tables) == 1:
        return dict(tables[0])
    return {name: _joined(name, [table[name] for table in tables]) for name in tables[0]}


def _joined(name: str, columns: Sequence[Tensor | OnDisk]) -> Tensor | OnDisk:
    files = [column for column in columns if isinstance(column, OnDisk)]
    if len(files) < len(columns) or sum(file.bytes for file in files) <= IN_MEMORY:
        check_memory(name, sum(file.bytes for file in files) // 4)
        return torch.cat([in_memory(column, name) for column in columns])

    def write(folder: Path) -> None:
        shape = (sum(map(len, files)), *files[0].shape[1:])
        kind = torch.empty(0, dtype=files[0].kind).numpy().dtype
        room, start = open_memmap(folder / "joined.npy", "w+", kind, shape), 0
        for block in (block for file in files for block in file.blocks()):
            room[start : start + len(block)] = block.numpy()
            start += len(block)

    told = f"column '{name[:80]}' of {len(files)} clients ({sum(file.bytes for file in files) / 1e9:.2g} GB)"
    purpose = json.dumps([[file.offset, file.shape, file.stored, str(file.kind)] for file in files])
    folder = converted(told, [file.path for file in files], purpose, write)
    return of_npy(folder / "joined.npy", files[0].kind, told)
