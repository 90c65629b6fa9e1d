"""Rows that stay on devices, each with a file of its own: what the tasks share that learn from them.

A dataset that the server and all devices have says what a row is: its columns, words, scaling and classes.
The server tests by it. The rows to learn from are elsewhere, and of other clients' a device knows nothing: a
row that nobody looks at stands for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from fedsaddle.data.datasets import Dataset
from fedsaddle.data.reading import Reader
from fedsaddle.data.tables import is_table
from fedsaddle.errors import BadInput
from fedsaddle.metric import Metric
from fedsaddle.problem import Counts, Facts, Federation

DEVICES = "devices"  # the partition of rows that are not here
Columns = dict[str, Tensor]


def alone(rows: Columns, client: int, clients: int) -> Federation:
    """One client's rows, and for each other client a row that nobody looks at."""
    sizes = torch.ones(clients, dtype=torch.int64)
    sizes[client] = len(next(iter(rows.values())))

    def filled(table: Tensor) -> Tensor:
        return torch.cat([table[:1]] * client + [table] + [table[:1]] * (clients - client - 1))

    return Federation({name: filled(table) for name, table in rows.items()}, sizes)


def read_by(reader: Any, path: str) -> Any:
    """A device's file as a table, by what somebody has given for it."""
    if reader is None:
        return path
    if isinstance(reader, Reader):
        rows, labels = reader.labelled(path)
        return {"input": reader.scaled(rows), "label": labels}
    try:
        return reader(path)
    except BadInput:
        raise
    except Exception as error:  # it is somebody's own code
        why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise BadInput(f"{path}: the task's reader failed: {why}") from error


@dataclass(eq=False)
class Local:
    """What a task has learnt where rows are on devices."""

    client: int = 0  # whose device this is
    rows: Federation | None = None  # with that client's own rows
    facts: Facts = field(default_factory=dict)  # what follows from all devices' counts


class OnDevices:
    """A task whose rows, with labels, may be on devices: see `problem.Held`. It has a field `_local`.

    What it must know of all of them together it counts (`told`), adds up (`facts`) and goes by (`learn`).
    Of most tasks that is nothing.
    """

    dataset: str
    partition: str
    clients: int
    label: str = "label"  # of a file: the column of the classes, and
    client: str = "client"  # of who holds a row
    _local: Local

    @cached_property
    def data(self) -> Dataset:
        raise NotImplementedError

    @cached_property
    def federation(self) -> Federation:
        raise NotImplementedError

    @property
    def metrics(self) -> dict[str, Metric]:
        raise NotImplementedError

    @cached_property
    def reader(self) -> Reader:
        """How a file becomes rows."""
        kind = Path(self.dataset).suffix.lower() if is_table(self.dataset) else ".npz"
        return Reader.of(self.data, kind, self.label, self.client)

    def read(self, path: str) -> Columns:
        """What a device learns from."""
        inputs, labels = self.reader.labelled(path)
        return {"input": self.reader.scaled(inputs), "label": labels}

    def told(self, rows: Columns) -> Counts:
        """What a device tells of its rows, beside how many it has."""
        return {}

    def known(self, metrics: dict[str, Metric]) -> dict[str, Metric]:
        """Those that the server can measure."""
        return {name: one for name, one in metrics.items() if not (self.away and one.rows == "train")}

    def seen(self, found: Columns) -> Columns:
        """Of what was measured, what says something: not what was seen of rows that only stand for others."""
        return {name: value for name, value in found.items() if not self.away or name in self.metrics}

    @property
    def away(self) -> bool:
        return self.partition == DEVICES

    def holding(self, client: int, path: str) -> Self:
        """The task with the rows of one client's file."""
        if not self.away:
            raise BadInput("an experiment whose devices have files of their own says partition = 'devices'")
        task: Any = self
        own: Self = replace(task)
        vars(own).pop("federation", None)  # it may have been made before it could be right
        own._local.client, own._local.rows = client, alone(self.read(path), client, self.clients)
        return own

    def pooled(self, paths: Sequence[str]) -> Self:
        """The task with the rows of all clients' files, in their order: what no server has."""
        if len(paths) != self.clients:
            raise BadInput(f"this task has {self.clients} clients, each with a file; got {len(paths)} files")
        task: Any = self
        own: Self = replace(task)
        vars(own).pop("federation", None)
        held = [self.read(path) for path in paths]
        sizes = torch.tensor([len(next(iter(rows.values()))) for rows in held])
        own._local.rows = Federation(
            {name: torch.cat([one[name] for one in held]) for name in held[0]}, sizes
        )
        return own

    def counts(self, client: int) -> Counts:
        rows = self._own_rows(client)
        return {"rows": len(next(iter(rows.values()))), **self.told(rows)}

    def _own_rows(self, client: int | None = None) -> Columns:
        held, client = self.federation, self._local.client if client is None else client
        begin, size = int(held.offsets[client]), int(held.sizes[client])
        return {name: table[begin : begin + size] for name, table in held.rows.items()}

    def facts(self, counts: list[Counts]) -> Facts:
        return {}

    def learn(self, facts: Facts) -> None:
        pass
