"""A person's own rows in the hands of clients, from Python: `fs.clients(...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from fedsaddle import draws
from fedsaddle.data.columns import Column, alike, column_of, in_memory, joined, rows_in
from fedsaddle.data.dealing import Dealt, Partition, deal
from fedsaddle.data.devices import alone
from fedsaddle.data.forms import is_one_table, table_of
from fedsaddle.data.mapped import OnDisk
from fedsaddle.data.partition import SPLIT
from fedsaddle.data.readers import Words
from fedsaddle.data.tables import numbered
from fedsaddle.errors import BadInput, check_count, check_memory, check_seed, unknown
from fedsaddle.problem import Federation

Shares = dict[str, float]  # of each client's rows, by what they are held out for
STANDING = 4  # rows that stand for a client's which are on its device: a loss is tried on them


class Away(NamedTuple):
    """That the rows are on devices, and how their tables are read."""

    columns: list[str] | None
    floats: torch.dtype


@dataclass(frozen=True, eq=False, repr=False)
class Clients:
    """What clients hold, and the rows that are held out."""

    federation: Federation
    held: dict[str, dict[str, Tensor]]  # "test" and "validation", if there are such rows -> columns
    names: tuple[str, ...]  # of the clients, in their order
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)  # column -> what its numbers stand for
    away: Away | None = None  # if the rows are on devices; those here only stand for them

    def holding(self, client: int, source: Any, at: str) -> Clients:
        """As the device of a client sees it, with its table; of other clients it knows nothing."""
        if self.away is None:
            raise BadInput("the rows of these clients are not on devices: say fs.clients(away=...)")
        table = table_of(source, at, self.away.columns, self.away.floats)
        if not rows_in(next(iter(table.values()))):
            raise BadInput(f"{at} has no rows")
        known = self.federation.rows
        like: dict[str, Column] = {
            name: Words(numpy.zeros(0, dtype=int), self.words[name]) if name in self.words else rows[:0]
            for name, rows in known.items()
        }
        (_, own), words = alike([("the test table", like), (at, table)])
        for name, found in words.items():
            if strange := set(found) - set(self.words[name]):
                wrong = unknown(f"word in '{name[:80]}'", min(strange), self.words[name])
                raise BadInput(f"{at}: {wrong}")
        rows = {name: in_memory(column, f"{at}, column '{name[:80]}'") for name, column in own.items()}
        for name, column in rows.items():
            if column.dtype != known[name].dtype:
                kinds = f"expected {known[name].dtype} as the test table has, got {column.dtype}"
                raise BadInput(f"{at}, column '{name[:80]}': {kinds}".replace("torch.", ""))
        held = alone(rows, client, len(self))
        return replace(self, federation=Federation(held.rows, held.sizes, self.federation.own))

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        rows, files, sizes = self.federation.rows, self.federation.files, self.federation.sizes
        kinds = {name: files[name].kind if name in files else table.dtype for name, table in rows.items()}
        held = "".join(f", {len(next(iter(rows.values())))} {what}" for what, rows in self.held.items())
        columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items()).replace("torch.", "")
        return f"Clients({len(self)} with {int(sizes.min())} to {int(sizes.max())} rows{held}: {columns})"


def clients(
    source: Any = None,
    *,
    client: str | None = None,
    indices: Sequence[Any] | Mapping[Any, Any] | None = None,
    count: int | None = None,
    partition: str | None = None,
    by: str | None = None,
    alpha: float | None = None,
    columns: Sequence[str] | None = None,
    test: Any = None,
    validation: Any = None,
    test_share: float = 0.0,
    validation_share: float = 0.0,
    own: Mapping[str, Any] | None = None,
    away: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Clients:
    """Your own data as clients: a list with one table or torch Dataset for each, or a dict of them by name.

    Or one table and who holds a row: `client` names the column that says so, `indices` has the rows of each
    client, `count` divides all rows by a `partition` (iid; label or dirichlet of the column `by`, `alpha`).

    A table is a dict of arrays, tensors or lists, a data frame, a tuple of arrays, or a path: .csv, .npz,
    .parquet, .arrow, or .npy or a folder of .npy, which stay on the disk. `columns` names what comes in
    tuples, and chooses among columns that have names. Floats become `dtype`, whole numbers int64, words
    numbers (`Clients.words`); bytes and booleans stay.

    `test` and `validation` are tables with the same columns. Or a share of each client's rows is held out,
    drawn by `seed`; no client gives its last row. `own` has what a client holds once: an entry for each
    client, in their order or by their names.

    `away` says instead how many clients have their rows on devices. `test` then shows what a row is.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise BadInput(f"dtype must be torch.float32 or another kind of floats, got {dtype}")
    seed = check_seed("seed", seed)
    shares = _shares({"test": (test, test_share), "validation": (validation, validation_share)})
    names = _names(columns)
    wanted = Partition(count, partition, by, alpha, seed)
    given = (source, client, indices, count, partition, by, alpha, *shares)
    _check_away(away, test, [one for one in given if one is not None])
    held = {
        what: _held(what, value, names, dtype, client)
        for what, value in (("test", test), ("validation", validation))
        if value is not None
    }
    if away is not None:
        made = _made(_standing(away, held["test"]), held, shares, own or {}, seed, dtype)
        return replace(made, away=Away(names, dtype))
    dealt = deal(source, client, indices, wanted, names, dtype)
    return _made(dealt, held, shares, own or {}, seed, dtype)


# --- what was given --------------------------------------------------------------------------------------


def _names(columns: Any) -> list[str] | None:
    if columns is None:
        return None
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise BadInput(f"columns must be names, such as ('input', 'label'), got {columns!r}")
    names = list(columns)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not names:
        raise BadInput(f"columns must be different names, got {columns!r}")
    return names


def _shares(given: dict[str, tuple[Any, Any]]) -> Shares:
    """How much is held out for what."""
    for what, (table, share) in given.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise BadInput(f"{what}_share must be a number from 0 to below 1, got {share!r}")
        if table is not None and share:
            raise BadInput(f"give {what} or {what}_share, not both")
    shares = {what: float(share) for what, (_, share) in given.items() if share}
    if sum(shares.values()) >= 1:
        raise BadInput(f"{' and '.join(f'{what}_share' for what in shares)} leave no rows to learn from")
    return shares


def _check_away(away: int | None, test: Any, given: list[Any]) -> None:
    if away is None and not given:
        raise BadInput("fs.clients needs a table for each client, or away=NUMBER if they are on devices")
    if away is not None and (test is None or given):
        raise BadInput(
            "with away=NUMBER the rows to learn from are on devices: give test=..., rows that show what a "
            "device's file holds, and no other rows or shares of them"
        )


def _standing(count: int, tables: list[tuple[str, dict[str, Column]]]) -> Dealt:
    """For the rows of clients that are on devices, the first test rows, the same for each."""
    count = check_count("away", count)
    at, table = tables[0]
    some = min(STANDING, rows_in(next(iter(table.values()))))
    first: dict[str, Column] = {
        name: Words(column.number[:some], column.words)
        if isinstance(column, Words)
        else in_memory(column, f"{at} '{name}'")[:some]
        for name, column in table.items()
    }
    return Dealt([(at, first)], [torch.arange(some)] * count, tuple(map(str, range(count))))


def _held(
    what: str, source: Any, columns: list[str] | None, floats: torch.dtype, client: str | None
) -> list[tuple[str, dict[str, Column]]]:
    """Tables of rows that are held out: one, or several, one below the other."""
    several = isinstance(source, list | tuple) and not is_one_table(source)
    chosen = None if columns is None else [name for name in columns if name != client]
    tables = [
        (what, table_of(table, what, chosen, floats, text=client))
        for table in (source if several else [source])
    ]
    if not tables or not all(rows_in(next(iter(table.values()))) for _, table in tables):
        raise BadInput(f"{what} has no rows")
    return [(at, {name: rows for name, rows in table.items() if name != client}) for at, table in tables]


# --- what becomes of it ----------------------------------------------------------------------------------


def _made(
    dealt: Dealt,
    given: dict[str, list[tuple[str, dict[str, Column]]]],
    shares: Shares,
    own: Mapping[str, Any],
    seed: int,
    floats: torch.dtype,
) -> Clients:
    """One table, in memory in the order of the clients, and the rows that are held out."""
    every = [*dealt.tables, *(table for tables in given.values() for table in tables)]
    tables, words = alike(every)
    table = joined(tables[: len(dealt.tables)])
    held, start = {}, len(dealt.tables)
    for what, some in given.items():
        rows = joined(tables[start : start + len(some)])
        held[what] = {name: in_memory(column, f"{what} '{name}'") for name, column in rows.items()}
        start += len(some)
    order, sizes, drawn = _split(dealt.parts, shares, seed)
    held |= {
        what: {name: _rows(column, rows, what) for name, column in table.items()}
        for what, rows in drawn.items()
    }
    once, own_words = _own(own, dealt.names, table, floats)
    return Clients(_federation(table, order, sizes, once), held, dealt.names, words | own_words)


def _federation(
    table: dict[str, Tensor | OnDisk], order: Tensor, sizes: Tensor, own: dict[str, Tensor]
) -> Federation:
    """In memory in the order of the places; with a file among the columns, in the order of the table."""
    files = {name: column for name, column in table.items() if isinstance(column, OnDisk)}
    lies_so = torch.equal(order, torch.arange(len(next(iter(table.values())))))
    if files:
        rows = {
            name: column.open() if isinstance(column, OnDisk) else column for name, column in table.items()
        }
        return Federation(rows, sizes, own, None if lies_so else order, files)
    plain = {name: column for name, column in table.items() if isinstance(column, Tensor)}
    return Federation(plain if lies_so else {name: rows[order] for name, rows in plain.items()}, sizes, own)


def _split(parts: list[Tensor], shares: Shares, seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The rows to learn from in their order, how many of each client, and what is held out.

    A client's number of held-out rows is its share rounded so that the sum is right too, and a row is left.
    """
    order, sizes = torch.cat(parts), torch.tensor([len(part) for part in parts])
    if not shares:
        return order, sizes, {}
    owner = torch.arange(len(parts)).repeat_interleave(sizes)
    begins = sizes.cumsum(0) - sizes
    within = torch.arange(len(order)) - begins[owner]
    word = draws.fold(draws.fold(draws.key(draws.PROBLEM, seed, SPLIT), owner), within)
    shuffled = torch.argsort(word, stable=True)
    shuffled = shuffled[torch.argsort(owner[shuffled], stable=True)]
    rank = torch.empty_like(within)
    rank[shuffled] = within
    drawn, done = {}, torch.zeros_like(sizes)
    for what, share in shares.items():
        upto = (share * sizes.cumsum(0)).round().to(torch.int64)
        much = torch.minimum(upto.diff(prepend=torch.zeros(1, dtype=torch.int64)), sizes - 1 - done)
        out = (rank >= done[owner]) & (rank < (done + much)[owner])
        if not (sizes - done > 1).any():
            raise BadInput(
                f"{what}_share holds out none: every client has one row and keeps it; make fewer clients, or "
                f"give {what}="
            )
        if not out.any():
            raise BadInput(f"{what}_share = {share:g} of {len(order)} rows holds out none; raise it")
        drawn[what], done = order[out], done + much
    return order[rank >= done[owner]], sizes - done, drawn


def _rows(column: Tensor | OnDisk, rows: Tensor, what: str) -> Tensor:
    """Some rows of a column, in memory."""
    if isinstance(column, Tensor):
        return column[rows]
    check_memory(f"{what}_share", column.bytes // len(column) * len(rows) // 4)
    return column.open()[rows].to(column.kind)


def _own(
    own: Mapping[str, Any], names: tuple[str, ...], table: Mapping[str, Any], floats: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """What each client holds once."""
    made, words = {}, {}
    for name, values in own.items():
        at = f"own '{name[:80]}'"
        if name in table:
            raise BadInput(f"{at} has the name of a column; give it another")
        if isinstance(values, Mapping):
            by_name = {str(key): value for key, value in values.items()}
            for known in names:
                if known not in by_name:
                    raise BadInput(f"{at} has no entry for client {known}")
            for key in by_name:
                if key not in names:
                    raise unknown(f"client in own '{name[:80]}'", key, names)
            values = [by_name[known] for known in names]
        column = column_of(values, at, floats)
        if rows_in(column) != len(names):
            raise BadInput(f"{at} has {rows_in(column)} entries for {len(names)} clients")
        if isinstance(column, Words):
            words[name], (made[name],) = numbered(column)
        else:
            made[name] = in_memory(column, at)
    return made, words
