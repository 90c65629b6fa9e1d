"""Arrow and Parquet files, through pyarrow: mapped where they lie, read, or kept in the cache as .npy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.lib.format import open_memmap

from fedsaddle.data.converted import IN_MEMORY, converted
from fedsaddle.data.mapped import OnDisk, kind_of
from fedsaddle.data.readers import Array, Words
from fedsaddle.errors import BadInput

ROWS_AT_ONCE = 1 << 14  # of a Parquet file

Make = Callable[[str, tuple[int, ...], Any], Array]  # a column's name, shape and type -> room for it
Batches = Callable[[], Iterator[Any]]  # some rows at a time


def read_arrow(path: Path) -> dict[str, Any]:
    """An Arrow IPC or Feather file. Its numbers stay where they are, if they lie together in the file."""
    arrow = _pyarrow(path)
    with _reading(path, arrow):
        source = arrow.memory_map(str(path))
        try:
            reader = arrow.ipc.open_file(source)
        except arrow.ArrowInvalid:  # the streaming format
            rows = sum(batch.num_rows for batch in arrow.ipc.open_stream(arrow.memory_map(str(path))))
            return _read(path, rows, lambda: iter(arrow.ipc.open_stream(arrow.memory_map(str(path)))))
        count = reader.num_record_batches
        if count == 1 and (mapped := _mapped(path, source, reader.get_batch(0))) is not None:
            return mapped
        rows = sum(reader.get_batch(number).num_rows for number in range(count))
        return _read(path, rows, lambda: map(reader.get_batch, range(count)))


def read_parquet(path: Path) -> dict[str, Any]:
    """A Parquet file: read if it is small, or else written to the cache once."""
    arrow = _pyarrow(path)
    from pyarrow import parquet

    with _reading(path, arrow):
        file = parquet.ParquetFile(str(path), memory_map=True)
        groups = range(file.metadata.num_row_groups)
        size = sum(file.metadata.row_group(number).total_byte_size for number in groups)
        return _read(path, file.metadata.num_rows, lambda: file.iter_batches(ROWS_AT_ONCE), size)


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise BadInput(f"{path} needs pyarrow: pip install 'pyarrow>=17'") from None
    return pyarrow


@contextmanager
def _reading(path: Path, arrow: Any) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BadInput(f"cannot read {path}: no such file") from None
    except arrow.ArrowException as error:
        raise BadInput(f"cannot read {path}: {error}") from None


def _read(path: Path, rows: int, batches: Batches, size: int | None = None) -> dict[str, Any]:
    """A table that is gone through: its columns in memory or, if it is large, in files of the cache."""
    if not rows:
        raise BadInput(f"{path} has no rows")
    size = os.path.getsize(path) if size is None else size
    if size <= IN_MEMORY:
        arrays, words = _filled(path, rows, batches(), lambda name, shape, kind: numpy.empty(shape, kind))
        return {name: Words(a, words[name]) if name in words else a for name, a in arrays.items()}

    def write(folder: Path) -> None:
        names: list[str] = []

        def room(name: str, shape: tuple[int, ...], kind: Any) -> Array:
            names.append(name)
            made: Array = open_memmap(folder / f"{len(names) - 1}.npy", "w+", kind, shape)
            return made

        _, words = _filled(path, rows, batches(), room)
        told = [[name, words.get(name)] for name in names]
        (folder / "columns.json").write_text(json.dumps(told), encoding="utf-8")

    folder = converted(f"{path} ({size / 1e9:.2g} GB)", [str(path)], "columns", write)
    told = json.loads((folder / "columns.json").read_text(encoding="utf-8"))
    return {
        name: folder / f"{place}.npy"
        if known is None
        else Words(numpy.load(folder / f"{place}.npy"), tuple(known))
        for place, (name, known) in enumerate(told)
    }


def _filled(
    path: Path, rows: int, batches: Iterator[Any], make: Make
) -> tuple[dict[str, Array], dict[str, tuple[str, ...]]]:
    """The columns, each in the room that is made for it, and the words of those that hold words."""
    found: dict[str, Array] = {}
    words: dict[str, dict[str, int]] = {}
    start = 0
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            at = f"{path}, column '{name[:80]}'"
            if column.null_count:
                place = start + column.is_null().to_pylist().index(True)
                raise BadInput(f"{at}, row {place}: the value is missing; fill it in, or leave out the row")
            text = _is_text(column.type)
            block = _codes(column, words.setdefault(name, {}), at) if text else _numbers(column, at)
            if not text and block.dtype.kind == "f" and not numpy.isfinite(block).all():
                place = start + int((~numpy.isfinite(block)).reshape(len(block), -1).any(1).argmax())
                raise BadInput(f"{at}, row {place}: a number is missing or infinite; leave out the row")
            if name not in found:
                found[name] = make(name, (rows, *block.shape[1:]), block.dtype)
            if block.shape[1:] != found[name].shape[1:]:
                raise BadInput(
                    f"{at}: lists of {block.shape[1:]} and of {found[name].shape[1:]}; make them alike"
                )
            found[name][start : start + len(block)] = block
        start += batch.num_rows
    return found, {name: tuple(known) for name, known in words.items()}


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    return any(test(value) for test in (types.is_string, types.is_large_string, types.is_string_view))


def _codes(column: Any, known: dict[str, int], at: str) -> Array:
    """Words by their numbers among those that are known, which become more."""
    from pyarrow import types

    coded = column if types.is_dictionary(column.type) else column.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if "" in names:
        raise BadInput(f"{at}: a value is missing; fill it in, or leave out the row")
    numbers = numpy.array([known.setdefault(name, len(known)) for name in names], dtype=numpy.int64)
    found: Array = numbers[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _numbers(column: Any, at: str) -> Array:
    """Numbers, or lists of numbers that are all as long."""
    from pyarrow import types

    kind = column.type
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        lengths = (
            {kind.list_size} if types.is_fixed_size_list(kind) else set(column.value_lengths().to_pylist())
        )
        if len(lengths) != 1:
            raise BadInput(f"{at}: its lists are {min(lengths)} to {max(lengths)} long; make them alike")
        inner = _numbers(column.flatten(), at)
        return inner.reshape(len(column), lengths.pop(), *inner.shape[1:])
    if column.null_count:
        raise BadInput(f"{at}: a number in a list is missing; fill it in, or leave out the row")
    if types.is_dictionary(kind):
        return _numbers(column.dictionary_decode(), at)
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        raise BadInput(f"{at}: expected numbers or words, got {kind}; turn it into numbers first")
    values: Array = column.to_numpy(zero_copy_only=False)
    wide = values.dtype.kind == "u" and values.dtype.itemsize > 1  # which PyTorch cannot index
    return values.astype(numpy.int64) if wide else values


def _mapped(path: Path, source: Any, batch: Any) -> dict[str, Any] | None:
    """The columns of one batch as places in the file; None if the numbers are not there as they are."""
    source.seek(0)
    whole = source.read_buffer(source.size())  # which reads nothing: it is where the file is mapped
    rest = []
    found: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        at = f"{path}, column '{name[:80]}'"
        values = None if column.null_count or _is_text(column.type) else _numbers(column, at)
        begins = -1 if values is None else values.__array_interface__["data"][0] - whole.address
        if values is not None and 0 <= begins <= whole.size - values.nbytes and values.flags.c_contiguous:
            kind = kind_of(values.dtype, torch.float32, at)
            found[name] = OnDisk(str(path.resolve()), begins, values.shape, values.dtype.str, kind)
        elif (
            values is None or values.dtype.kind == "b"
        ):  # bits and words are small, and not as PyTorch has them
            rest.append(name)
        else:
            return None
    taken, words = _filled(
        path, batch.num_rows, iter([batch.select(rest)]), lambda name, shape, kind: numpy.empty(shape, kind)
    )
    found |= {name: Words(a, words[name]) if name in words else a for name, a in taken.items()}
    return {name: found[name] for name in batch.schema.names}
