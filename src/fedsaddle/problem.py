"""What a task is: data on clients, a loss for two players, and how to judge a point."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedsaddle.core import Pair
from fedsaddle.errors import BadInput
from fedsaddle.metric import Metric


class Batch(NamedTuple):
    """Some rows of one client, and all the randomness a loss on them may use."""

    rows: dict[str, Tensor]  # (row, ...)
    own: dict[str, Tensor]  # what the client holds once, whatever the rows
    weight: Tensor  # (row,); sums to one; zero for padding
    key: Tensor  # for draws beyond the rows, such as a generator's noise: see fedsaddle.draws

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the rows of values (row, ...)."""
        mean: Tensor = torch.tensordot(self.weight.to(values.dtype), values, dims=1)
        return mean


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients' data: one table of rows, cut into one run of rows for each client."""

    rows: dict[str, Tensor]  # (rows of all clients, ...)
    sizes: Tensor  # (client,)
    own: dict[str, Tensor] = field(default_factory=dict)  # (client, ...)

    def __post_init__(self) -> None:
        empty = (self.sizes < 1).nonzero().flatten().tolist()
        if empty:
            raise BadInput(f"client {empty[0]} is empty ({len(empty)} of {len(self)} are); each needs a row")
        total = int(self.sizes.sum())
        for name, table in self.rows.items():
            if len(table) != total:
                raise BadInput(f"'{name}' has {len(table)} rows, but the clients' sizes add up to {total}")
        for name, table in self.own.items():
            if len(table) != len(self):
                raise BadInput(f"'{name}' has {len(table)} entries for {len(self)} clients")
        object.__setattr__(self, "offsets", torch.cumsum(self.sizes, 0) - self.sizes)
        object.__setattr__(self, "longest", int(self.sizes.max()))

    offsets: Tensor = field(init=False)  # (client,): where its run of rows begins
    longest: int = field(init=False)  # the largest client's size
    _copies: dict[torch.device, Federation] = field(init=False, repr=False, default_factory=dict)

    def to(self, device: torch.device) -> Federation:
        """The same on a device. It is copied there once."""
        device = _one(device)
        if device == self.sizes.device:
            return self
        if device not in self._copies:
            rows, own = (
                {name: table.to(device) for name, table in tables.items()} for tables in (self.rows, self.own)
            )
            self._copies[device] = Federation(rows, self.sizes.to(device), own)
            _COPIED.add(self)
        return self._copies[device]

    def __len__(self) -> int:
        return len(self.sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Federation, (self.rows, self.sizes, self.own)  # copies on other devices stay behind


_COPIED: weakref.WeakSet[Federation] = weakref.WeakSet()


def release(device: torch.device) -> None:
    """Forget all copies of rows on a device. Whoever still uses one keeps it; others copy anew."""
    for held in list(_COPIED):
        held._copies.pop(_one(device), None)


def _one(device: torch.device) -> torch.device:
    """The device by its number: cuda and cuda:0 are the same, and do not compare so."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


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
class Pictured(Protocol):
    """A task that can show where it is."""

    def pictures(self, z: Pair) -> dict[str, Tensor]:
        """Pictures (row, channel, height, width) in bytes, by what they are. A run folder keeps grids."""


@runtime_checkable
class Modelled(Protocol):
    """A task that trains networks, and can give them back."""

    def models(self, z: Pair) -> dict[str, nn.Module]:
        """The trained networks at a point, by role ("x", "y" or the task's own words).

        First the one that a person wants: plain modules on the CPU, in eval mode, ready to use.
        """


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
