"""A person's table, in whatever form it comes: a dict, a data frame, a torch Dataset, a file or a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from fedsaddle.data.arrow import read_arrow, read_parquet
from fedsaddle.data.columns import Column, column_of, rows_in
from fedsaddle.data.readers import csv_columns, npz_arrays
from fedsaddle.data.tables import read_bytes
from fedsaddle.errors import BadInput, check_memory, unknown

Some = dict[str, Any]  # columns as they were given


def table_of(
    source: Any, at: str, names: Sequence[str] | None, floats: torch.dtype, text: str | None = None
) -> dict[str, Column]:
    """The columns of a table, or those that are named; `text` is one that holds names, even in figures."""
    found, numbers = _columns(source, at, text)
    if not found:
        raise BadInput(f"{at} has no columns")
    if names is not None and numbers:
        if len(names) != len(found):
            raise BadInput(f"{at}: columns has {len(names)} names for {len(found)} columns")
        found = dict(zip(names, found.values(), strict=True))
    elif names is not None:
        for name in names:
            if name not in found:
                raise BadInput(f"{at}: {unknown('column', name, found)}")
        found = {name: found[name] for name in names}
    table = {name: column_of(values, f"{at}, column '{name[:80]}'", floats) for name, values in found.items()}
    first, rows = next((name, rows_in(column)) for name, column in table.items())
    for name, column in table.items():
        if rows_in(column) != rows:
            raise BadInput(
                f"{at}: column '{name[:80]}' has {rows_in(column)} rows, but '{first[:80]}' has {rows}"
            )
    return table


def is_one_table(source: Any) -> bool:
    """Whether this is one table, not several."""
    if isinstance(source, Mapping):
        return not source or not any(map(_is_whole, source.values()))
    return _is_whole(source) or _is_array(source) or _is_row_of_columns(source)


def _is_whole(value: Any) -> bool:
    """Whether it is a table by what it is, wherever it stands."""
    if isinstance(value, str | os.PathLike):
        return Path(value).suffix.lower() != ".npy"
    structured = isinstance(value, numpy.ndarray) and value.dtype.names is not None
    return isinstance(value, Mapping) or structured or _names_of(value) is not None or _is_dataset(value)


def _columns(source: Any, at: str, text: str | None) -> tuple[Some, bool]:
    """The columns by name, and whether the names are only numbers."""
    if isinstance(source, str | os.PathLike):
        return _read(Path(source), at, text), False
    if isinstance(source, Mapping):
        return {str(name): values for name, values in source.items()}, False
    if isinstance(source, numpy.ndarray) and source.dtype.names:
        return {name: source[name] for name in source.dtype.names}, False
    if (names := _names_of(source)) is not None:
        return {str(name): source[name] for name in names}, False
    if isinstance(source, TensorDataset):
        return _by_number(source.tensors), True
    if _is_array(source) or _is_row_of_columns(source):
        return _by_number([source] if _is_array(source) else source), True
    if _is_dataset(source):
        return _items(source, at)
    raise BadInput(
        f"{at}: expected a dict of arrays, a data frame, a torch Dataset or a path, got "
        f"{type(source).__name__}"
    )


def _by_number(values: Iterable[Any]) -> Some:
    return {str(number): column for number, column in enumerate(values)}


def _names_of(source: Any) -> list[Any] | None:
    """The columns of a data frame: pandas, polars, Arrow or whatever else has named columns."""
    if isinstance(source, type) or not hasattr(source, "__getitem__"):
        return None
    names = getattr(source, "column_names", None)
    names = getattr(source, "columns", None) if names is None else names
    try:
        return None if names is None else list(names)
    except TypeError:
        return None


def _is_row_of_columns(source: Any) -> bool:
    """Whether it is (inputs, labels) or the like."""
    return isinstance(source, tuple | list) and bool(source) and all(map(_is_array, source))


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, numpy.ndarray) and value.dtype.names is None)


# --- torch Datasets --------------------------------------------------------------------------------------


def _is_dataset(source: Any) -> bool:
    if isinstance(source, TorchDataset):
        return True
    plain = isinstance(source, str | bytes | list | tuple | Mapping | set | type) or _is_array(source)
    return not plain and hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _items(source: Any, at: str) -> tuple[Some, bool]:
    """The items of a Dataset, read once, one after another."""
    name = type(source).__name__
    if not hasattr(source, "__len__") or not hasattr(type(source), "__getitem__"):
        raise BadInput(f"{at}: {name} has no __len__ or __getitem__; a client's rows must be numbered")
    count = len(source)
    if not count:
        raise BadInput(f"{at} is empty; each client needs a row")
    first, numbers = _cells(_item(source, 0, at), at)
    check_memory(at, count * sum(map(_floats, first.values())))
    columns: dict[str, list[Any]] = {key: [value] for key, value in first.items()}
    for row in range(1, count):
        cells, _ = _cells(_item(source, row, at), at)
        if cells.keys() != columns.keys():
            raise BadInput(f"{at}, row {row}: expected {', '.join(columns)}, got {', '.join(cells)[:80]}")
        for key, value in cells.items():
            columns[key].append(value)
    return dict(columns), numbers


def _item(source: Any, row: int, at: str) -> Any:
    try:
        return source[row]
    except Exception as error:  # it is somebody's own code
        raise BadInput(f"{at}, row {row} cannot be read: {type(error).__name__}: {error}") from error


def _cells(item: Any, at: str) -> tuple[Some, bool]:
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}, False
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return dict(zip(item._fields, item, strict=True)), False
    cells = _by_number(item if isinstance(item, tuple | list) else [item])
    for value in cells.values():
        if type(value).__module__.startswith("PIL."):
            raise BadInput(f"{at}: its items are pictures; give the Dataset a transform that makes tensors")
    return cells, True


def _floats(value: Any) -> int:
    return int(getattr(value, "numel", lambda: numpy.size(value))())


# --- files -----------------------------------------------------------------------------------------------


def _read(path: Path, at: str, text: str | None) -> Some:
    """What is in a file or a folder."""
    if path.is_dir():
        found = sorted(path.glob("*.npy"))
        if not found:
            raise BadInput(f"{at}: the folder {path} holds no .npy files, of which each is a column")
        return {file.stem: file for file in found}
    kind = path.suffix.lower()
    if kind not in FILES:
        raise BadInput(f"{at}: cannot read {path}; known are folders of .npy and {', '.join(FILES)}")
    return FILES[kind](path, text)


def _csv(path: Path, text: str | None) -> Some:
    return csv_columns(str(path), read_bytes(str(path))[0], text)


def _npz(path: Path, text: str | None) -> Some:
    return npz_arrays(str(path), read_bytes(str(path))[0])


FILES: dict[str, Callable[[Path, str | None], Some]] = {
    ".csv": _csv,
    ".npz": _npz,
    ".npy": lambda path, text: {path.stem: path},
    ".arrow": lambda path, text: read_arrow(path),
    ".feather": lambda path, text: read_arrow(path),
    ".parquet": lambda path, text: read_parquet(path),
}
