"""What a task is: data on clients, a loss for two players, and how to judge a point."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedsaddle.core import Pair, Scalar
from fedsaddle.data.mapped import OnDisk
from fedsaddle.errors import BadInput, Notice
from fedsaddle.metric import Metric


class Batch(NamedTuple):
    """Some rows of one client, and all the randomness a loss on them may use."""

    rows: dict[str, Tensor]  # (row, ...)
    own: dict[str, Tensor]  # what the client holds once, whatever the rows
    weight: Tensor  # (row,); sums to one; zero for padding
    key: Tensor  # for draws beyond the rows, such as a generator's noise: see fedsaddle.draws
    t: Tensor | None = None  # rounds completed before this one; in an evaluation, none

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the rows of values (row, ...)."""
        mean: Tensor = torch.tensordot(self.weight.to(values.dtype), values, dims=1)
        return mean


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients' data: one table of rows, cut into one run of places for each client.

    A table in memory has its rows in the order of the places. One that stays in its files is not moved: there
    `order` says which row stands at a place, and rows that stand nowhere are of no client. `at` heeds it.
    """

    rows: dict[str, Tensor]  # (rows of all clients, ...)
    sizes: Tensor  # (client,)
    own: dict[str, Tensor] = field(default_factory=dict)  # (client, ...)
    order: Tensor | None = None  # (place,): the row of the table that stands there; None if all lie so
    files: dict[str, OnDisk] = field(default_factory=dict)  # the columns that stay in files

    def __post_init__(self) -> None:
        empty = (self.sizes < 1).nonzero().flatten().tolist()
        if empty:
            raise BadInput(f"client {empty[0]} is empty ({len(empty)} of {len(self)} are); each needs a row")
        total = int(self.sizes.sum())
        if self.order is not None and len(self.order) != total:
            raise BadInput(f"order has {len(self.order)} places, but the clients' sizes add up to {total}")
        last = -1 if self.order is None else int(self.order.max())
        for name, table in self.rows.items():
            if self.order is None and len(table) != total:
                raise BadInput(f"'{name}' has {len(table)} rows, but the clients' sizes add up to {total}")
            if last >= len(table):
                raise BadInput(f"'{name}' has {len(table)} rows, but order asks for row {last}")
        for name, table in self.own.items():
            if len(table) != len(self):
                raise BadInput(f"'{name}' has {len(table)} entries for {len(self)} clients")
        object.__setattr__(self, "offsets", torch.cumsum(self.sizes, 0) - self.sizes)
        object.__setattr__(self, "longest", int(self.sizes.max()))

    offsets: Tensor = field(init=False)  # (client,): where its run of rows begins
    longest: int = field(init=False)  # the largest client's size
    _copies: dict[torch.device, Federation] = field(init=False, repr=False, default_factory=dict)

    def at(self, places: Tensor) -> dict[str, Tensor]:
        """The rows that stand at some places: a client's are those from its offset on."""
        where = places if self.order is None else self.order[places]
        taken = {name: table[where] for name, table in self.rows.items()}
        return taken | {name: taken[name].to(file.kind) for name, file in self.files.items()}

    def reading(self) -> dict[str, Tensor]:
        """How rows are taken out of a table that stays in files: part of what makes it this federation."""
        kinds = {name: torch.empty(0, dtype=file.kind) for name, file in self.files.items()}
        return kinds if self.order is None else kinds | {"order of rows": self.order}

    def to(self, device: torch.device) -> Federation:
        """The same on a device. It is copied there once, also what stays in files elsewhere."""
        device = _one(device)
        if device == self.sizes.device:
            return self
        if device not in self._copies:
            if self.files:
                _check_room(self.files, device)
            own = {name: table.to(device) for name, table in self.own.items()}
            rows = {
                name: _copied(self.files[name], device) if name in self.files else table.to(device)
                for name, table in self.rows.items()
            }
            order = None if self.order is None else self.order.to(device)
            self._copies[device] = Federation(rows, self.sizes.to(device), own, order)
            COPIED.add(self)
        return self._copies[device]

    def __len__(self) -> int:
        return len(self.sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies on other devices stay behind, and of files only their names go along.
        rows = {name: None if name in self.files else table for name, table in self.rows.items()}
        return _again, (rows, self.sizes, self.own, self.order, self.files)


def _again(
    rows: dict[str, Tensor | None],
    sizes: Tensor,
    own: dict[str, Tensor],
    order: Tensor | None,
    files: dict[str, OnDisk],
) -> Federation:
    opened = {name: files[name].open() if table is None else table for name, table in rows.items()}
    return Federation(opened, sizes, own, order, files)


def _check_room(files: dict[str, OnDisk], device: torch.device) -> None:
    """Whether a device can hold what stays in files here. It is said that it has to."""
    needed = sum(file.bytes for file in files.values())
    named = f"{', '.join(files)} ({needed / 2**30:.3g} GiB in files)"
    if device.type == "cuda" and needed > (free := torch.cuda.mem_get_info(device)[0]):
        raise BadInput(
            f"{named} would be copied to {device}, which has {free / 2**30:.3g} GiB free; run it on the cpu, "
            "or give fewer rows"
        )
    warnings.warn(f"{named} is copied to {device} as a whole", Notice, stacklevel=3)


def _copied(file: OnDisk, device: torch.device) -> Tensor:
    """A column on a device, without all of it in this machine's memory at a time."""
    table = torch.empty(file.shape, dtype=file.kind, device=device)
    start = 0
    for block in file.blocks():
        table[start : start + len(block)] = block
        start += len(block)
    return table


COPIED: weakref.WeakSet[Any] = weakref.WeakSet()  # what has `_copies` of its own on devices


def release(device: torch.device) -> None:
    """Forget all copies on a device, of rows and of frozen layers.

    Whoever still uses one keeps it; others copy anew.
    """
    for held in list(COPIED):
        held._copies.pop(_one(device), None)


def _one(device: torch.device) -> torch.device:
    """The device by its number: cuda and cuda:0 are the same, and do not compare so."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def name_of(problem: object) -> str:
    """What a problem is called: by itself, or by its class."""
    return str(getattr(problem, "name", "") or type(problem).__name__)


class Problem(Protocol):
    """A task. It also has either `loss` (a Minimax) or `field` (a Game), and may be Constrained."""

    @property
    def federation(self) -> Federation: ...

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """What each number that `evaluate` gives means."""

    def init(self, seed: int) -> Pair:
        """Where a run starts."""

    def evaluate(self, z: Pair) -> dict[str, float]:
        """Metrics at a point, by the names that `metrics` declares."""


class Measured:
    """A problem whose metrics are one computation on tensors, which a GPU records once and then replays.

    It is mapped over lanes, so that some are judged at the same time.
    """

    def measure(self, z: Pair) -> dict[str, Tensor]:
        """Metrics at a point, each a tensor with one number; nothing here may look at a tensor's values."""
        raise NotImplementedError

    def evaluate(self, z: Pair) -> dict[str, float]:
        return floats({name: value[None] for name, value in self.measure(z).items()})[0]


def floats(metrics: dict[str, Tensor]) -> list[dict[str, float]]:
    """The numbers of some points, (point,) each, fetched from a device all at once."""
    values = torch.stack([value.to(torch.float64) for value in metrics.values()], dim=1)
    return [dict(zip(metrics, row, strict=True)) for row in values.tolist()]


@runtime_checkable
class Scored(Protocol):
    """A task that gives every row a score, or one for each class."""

    def score_spread(self, z: Pair) -> float:
        """How much scores differ from row to row: their standard deviation, over classes the largest."""


@runtime_checkable
class Pictured(Protocol):
    """A task that can show where it is."""

    def pictures(self, z: Pair) -> dict[str, Tensor]:
        """Pictures (row, channel, height, width) in bytes, by what they are. A run folder keeps grids."""


@runtime_checkable
class Judged(Protocol):
    """A task whose metrics also say something of real rows. Reports lay both side by side."""

    def real_scores(self, device: torch.device) -> dict[str, float]:
        """What real rows have, by the names of metrics."""


@runtime_checkable
class Modelled(Protocol):
    """A task that trains networks, and can give them back."""

    def models(self, z: Pair) -> dict[str, nn.Module]:
        """The trained networks at a point, by role ("x", "y" or the task's own words).

        First the one that a person wants: plain modules on the CPU, in eval mode, ready to use.
        """


class Detail(NamedTuple):
    """A table about one point, and how a report draws it.

    line        x, y                        such as a ROC curve
    bars        names, heights ...          such as classes
    histogram   from, to, counts ...        such as scores
    clients     names, a value ...          who is served badly: the distribution, and the worst by name
    """

    kind: Literal["line", "bars", "histogram", "clients"]
    columns: dict[str, list[Any]]  # numbers; but names, the first column of bars and clients, may be text
    better: Literal["high", "low", "neither"] = "high"

    @property
    def length(self) -> int:
        return max(map(len, self.columns.values()), default=0)

    @property
    def valid(self) -> bool:
        """Whether it is what it should be. Types alone do not hold where a person or a disk wrote it."""
        shapes = {"line": (2, 2, 0), "bars": (2, 20, 1), "histogram": (3, 20, 0), "clients": (2, 20, 1)}
        if self.kind not in shapes or self.better not in ("high", "low", "neither"):
            return False
        least, most, names = shapes[self.kind]
        columns = list(self.columns.values())
        return (
            least <= len(columns) <= most
            and all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns)
            and all(isinstance(one, str | int | float) for column in columns[:names] for one in column)
            and all(_is_number(one) for column in columns[names:] for one in column)
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e150


@runtime_checkable
class Detailed(Protocol):
    """A task that can tell more of a point than its metrics."""

    def details(self, z: Pair) -> dict[str, Detail]:
        """Tables by their titles. A run folder keeps them of every seed's end, and reports draw them."""


def client_means(federation: Federation, values: Tensor, title: str) -> dict[str, list[Any]]:
    """The columns of a Detail of clients: who, and the mean of values (row,) over their rows."""
    sizes = federation.sizes.to(values.device)
    owner = torch.repeat_interleave(torch.arange(len(sizes), device=values.device), sizes)
    sums = torch.zeros(len(sizes), dtype=torch.float64, device=values.device)
    means = sums.index_add(0, owner, values.to(torch.float64)) / sizes
    return {"client": list(range(len(sizes))), title: means.tolist()}


Counts = dict[str, int]
Facts = dict[str, float]


@runtime_checkable
class Held(Protocol):
    """A task whose rows may be on devices, each with a file of its own.

    What it must know of all of them together, such as the part of positives, is added up once from a few
    counts of each device, and every device is told the result.
    """

    @property
    def away(self) -> bool:
        """Whether the rows are on devices."""

    def holding(self, client: int, path: str) -> Problem:
        """The task as the device of a client sees it, with its rows."""

    def counts(self, client: int) -> Counts:
        """What that device tells of its rows."""

    def facts(self, counts: list[Counts]) -> Facts:
        """What follows from all devices' counts."""

    def learn(self, facts: Facts) -> None:
        """Go by these facts from now on."""


@runtime_checkable
class Minimax(Protocol):
    def loss(self, z: Pair, xi: Batch) -> Tensor:
        """f on a batch: x descends it, y ascends it."""


@runtime_checkable
class Game(Protocol):
    def field(self, z: Pair, xi: Batch) -> Pair:
        """For games without one common loss: what x descends and what y ascends."""


@runtime_checkable
class Constrained(Protocol):
    def project(self, z: Pair) -> Pair:
        """The nearest point at which both players are where they may be: see fedsaddle.projections."""


@runtime_checkable
class Composite(Protocol):
    """A problem whose objective has a part beside its loss: a penalty h on x, and one on y.

    It stands for min over x, max over y of E_i[f_i(x, y)] + h(x) - g(y).
    """

    def prox(self, z: Pair, by: Scalar) -> Pair:
        """For x the w with the least by * h(w) + |w - x|^2 / 2, where x may be; for y the same with g."""
