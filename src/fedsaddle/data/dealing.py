"""Who holds which of a person's rows: one table each, a column that says so, indices, or a partition."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsaddle.data.columns import Column, column_of, in_memory, rows_in
from fedsaddle.data.forms import is_one_table, table_of
from fedsaddle.data.partition import PARTITIONS, SHAPED, by_column, divide
from fedsaddle.data.readers import Words
from fedsaddle.data.tables import numbered
from fedsaddle.errors import BadInput, Notice, check_count, unknown


class Dealt(NamedTuple):
    """Tables one below the other, and which of all their rows each client holds."""

    tables: list[tuple[str, dict[str, Column]]]  # whose it is, and the table
    parts: list[Tensor]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Partition:
    """How one table is divided, as it was asked for."""

    count: int | None
    how: str | None
    by: str | None
    alpha: float | None
    seed: int


def deal(
    source: Any,
    client: str | None,
    indices: Any,
    partition: Partition,
    columns: list[str] | None,
    floats: torch.dtype,
) -> Dealt:
    """By the one way that was given."""
    ways = {"client": client, "indices": indices, "count": partition.count}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise BadInput(f"give one of client, indices and count, got {' and '.join(given)}")
    if partition.count is None and partition.how is not None:
        raise BadInput("a partition needs count, the number of clients")
    if partition.how is None and (partition.by is not None or partition.alpha is not None):
        raise BadInput("by and alpha go with a partition, such as partition='dirichlet', and count")
    if not given:
        return _one_each(source, columns, floats)
    if client is not None:
        return _by_name(source, client, columns, floats)
    at = str(source) if isinstance(source, str | os.PathLike) else "the table"
    table = table_of(source, at, columns, floats)
    if not rows_in(next(iter(table.values()))):
        raise BadInput(f"{at} has no rows")
    return _by_partition(at, table, partition) if indices is None else _by_indices(at, table, indices)


def _one_each(source: Any, columns: list[str] | None, floats: torch.dtype) -> Dealt:
    """One table for each client."""
    several = isinstance(source, list) or not is_one_table(source)  # [X, X]: clients with a column each
    if not several or not isinstance(source, Iterable):
        raise BadInput(
            "one table needs to be told who holds a row: client='COLUMN', indices=[rows of each client] or "
            "count=NUMBER; or give a list with one table for each client"
        )
    items = list(source.items()) if isinstance(source, Mapping) else list(enumerate(source))
    if not items:
        raise BadInput("there are no clients: the list is empty")
    tables = [(f"client {name}", table_of(table, f"client {name}", columns, floats)) for name, table in items]
    parts, total = [], 0
    for at, table in tables:
        rows = rows_in(next(iter(table.values())))
        if not rows:
            raise BadInput(f"{at} is empty; each client needs a row")
        parts.append(torch.arange(total, total + rows))
        total += rows
    return Dealt(tables, parts, tuple(str(name) for name, _ in items))


def _by_name(source: Any, client: str, columns: list[str] | None, floats: torch.dtype) -> Dealt:
    """One table, and a column that says who holds a row."""
    at = str(source) if isinstance(source, str | os.PathLike) else "the table"
    chosen = None if columns is None else [name for name in columns if name != client] + [client]
    table = table_of(source, at, chosen, floats, text=client)
    if client not in table:
        raise BadInput(f"{at}: {unknown('column', client, table)}; say which one names the client")
    holders = table.pop(client)
    if not table:
        raise BadInput(f"{at} has no column but '{client[:80]}'")
    words, number = _numbers(holders, f"{at}, column '{client[:80]}'")
    if not len(number):
        raise BadInput(f"{at} has no rows")
    return Dealt([(at, table)], by_column(number), words)


def _numbers(column: Column, at: str) -> tuple[tuple[str, ...], Tensor]:
    """What the values of a column are called, in order, and which of them each row has."""
    if isinstance(column, Words):
        words, (number,) = numbered(column)
        return words, number
    values = in_memory(column, at)
    if values.ndim != 1:
        raise BadInput(f"{at}: expected one name for each row, got rows of {tuple(values.shape[1:])}")
    if values.is_floating_point() and not torch.equal(values, values.round()):
        raise BadInput(f"{at}: expected whole numbers or words, got {values.dtype}".replace("torch.", ""))
    found, number = values.to(torch.int64).unique(return_inverse=True)
    return tuple(map(str, found.tolist())), number


def _by_indices(at: str, table: dict[str, Column], indices: Any) -> Dealt:
    """One table, and the rows of each client."""
    items = list(indices.items()) if isinstance(indices, Mapping) else list(enumerate(indices))
    rows = rows_in(next(iter(table.values())))
    if not items:
        raise BadInput("there are no clients: indices is empty")
    holder = torch.full((rows,), -1)
    parts = []
    for number, (name, own) in enumerate(items):
        column = column_of(own, f"indices of client {name}", torch.float64)
        if not rows_in(column):
            raise BadInput(f"client {name} is empty; each client needs a row")
        part = in_memory(column, "indices") if not isinstance(column, Words) else torch.zeros(0)
        if part.dtype not in (torch.int64, torch.uint8) or part.ndim != 1:
            raise BadInput(f"indices of client {name} must be numbers of rows, got {str(own)[:80]}")
        part = part.to(torch.int64)
        outside = part[(part < 0) | (part >= rows)]
        if len(outside):
            raise BadInput(f"indices: client {name} has row {int(outside[0])}, but {at} has {rows} rows")
        taken = part[holder[part] >= 0]
        if len(taken):
            other = items[int(holder[taken[0]])][0]
            raise BadInput(f"indices: row {int(taken[0])} is given to client {other} and to client {name}")
        holder[part] = number
        if len(part.unique()) < len(part):
            raise BadInput(f"indices: client {name} has a row twice")
        parts.append(part)
    idle = int((holder < 0).sum())
    if idle:
        warnings.warn(f"{idle} of {rows} rows are given to no client and left out", Notice, stacklevel=5)
    return Dealt([(at, table)], parts, tuple(str(name) for name, _ in items))


def _by_partition(at: str, table: dict[str, Column], wanted: Partition) -> Dealt:
    """One table, divided among some clients."""
    count, how = check_count("count", wanted.count), "iid" if wanted.how is None else wanted.how
    rows = rows_in(next(iter(table.values())))
    if count > rows:
        raise BadInput(f"count must be at most the number of rows ({rows}), got {count}")
    known = [name for name in PARTITIONS if name != "column"]  # which is what client= does
    if how not in known:
        raise unknown("partition", str(how), known)
    if wanted.alpha is not None and how not in SHAPED:
        raise BadInput(f"alpha is of partition {' or '.join(SHAPED)}, not of {how}")
    if wanted.by is not None and how == "iid":
        raise BadInput("by has no effect: partition iid looks at no column")
    labels = torch.zeros(rows, dtype=torch.int64)
    if how != "iid":
        by = "label" if wanted.by is None else wanted.by
        if by not in table:
            raise BadInput(f"{at}: {unknown('column', by, table)}; say by which the rows are divided")
        labels = _numbers(table[by], f"{at}, column '{by[:80]}'")[1]
    parts = divide(labels, how, count, 0.5 if wanted.alpha is None else wanted.alpha, wanted.seed)
    return Dealt([(at, table)], parts, tuple(map(str, range(count))))
