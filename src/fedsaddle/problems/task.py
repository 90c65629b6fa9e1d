"""A task of your own: two players, a loss, and clients' data. Nothing has to be subclassed.

    fs.task(x=lambda: Net(), y=fs.Simplex(10), loss=loss, data=fs.clients(...))

    loss(x, y, batch) -> one value a row, or their mean
                         or two of either: x descends the first, y ascends the second

A network is called as its module is; a vector is a tensor. The batch is a dictionary of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedsaddle import draws
from fedsaddle.core import Pair
from fedsaddle.data.clients import Clients
from fedsaddle.data.devices import read_by
from fedsaddle.data.federated import CHUNK
from fedsaddle.data.reading import Reader
from fedsaddle.errors import BadInput, shown
from fedsaddle.metric import SUCH, Metric
from fedsaddle.mishaps import told_in_a_line
from fedsaddle.problem import Batch, Counts, Facts, Federation
from fedsaddle.problems.identity import fingerprint, hashed
from fedsaddle.problems.players import TaskPlayer, player_from

Loss = Callable[[Any, Any, "BatchRows"], Any]

PROBED = 4  # rows on which a loss is tried
PADS = 2  # rows that only pad them
LOOKED_AT = 50_000  # training rows of an evaluation, at most: every second of 100,000
LATE = 2**31 - 1  # the round of an evaluation: what is annealed has ended
SAME = 1e-5  # relative: how far rounding may bring a loss that is told to disregard some rows


class BatchRows(dict[str, Tensor]):
    """Some rows of one client: a dictionary of columns, and what a loss may want beside them."""

    def __init__(self, xi: Batch, like: Tensor) -> None:
        super().__init__(xi.rows)
        self._xi, self._like = xi, like

    @property
    def own(self) -> dict[str, Tensor]:
        """What the client holds once, whatever the rows."""
        return self._xi.own

    @property
    def weight(self) -> Tensor:
        """What each row counts; all together one, and nothing for a row that only pads a batch."""
        return self._xi.weight.to(self._like.dtype)

    @property
    def round(self) -> Tensor:
        """How many rounds were completed before this one; in an evaluation, more than there will ever be."""
        t = self._xi.t
        return torch.full((), LATE, dtype=self._like.dtype, device=self._like.device) if t is None else t

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the rows of values (row, ...)."""
        return self._xi.mean(values)

    def uniform(self, *shape: int, number: int = 0) -> Tensor:
        """Draws from [0, 1) for every row, (row, ...); others for another number."""
        return self._drawn(draws.uniform, shape, number)

    def normal(self, *shape: int, number: int = 0) -> Tensor:
        """Draws from N(0, 1), likewise."""
        return self._drawn(draws.normal, shape, number)

    def _drawn(self, draw: Callable[..., Tensor], shape: tuple[int, ...], number: int) -> Tensor:
        rows = len(self._xi.weight)
        return draw(draws.fold(self._xi.key, number), rows, *shape).to(self._like.dtype)


@dataclass(frozen=True, eq=False)
class OwnTask:
    """What `fs.task` makes: a problem like those that ship."""

    name: str
    x: TaskPlayer
    y: TaskPlayer
    rule: Loss
    data: Clients
    metrics: Mapping[str, Metric]
    reader: Any = None  # what makes a device's file a table: a function of its path, a Reader, or none

    @property
    def federation(self) -> Federation:
        return self.data.federation

    def init(self, seed: int) -> Pair:
        """x as torch.manual_seed(seed) makes it; y by a seed that follows from it."""
        return self.project(Pair(self.x.init(seed), self.y.init(int(draws.key(draws.INIT, seed, 1)))))

    def project(self, z: Pair) -> Pair:
        return Pair(self.x.set.project(z.x), self.y.set.project(z.y))

    def _called(self, rule: Callable[..., Any], z: Pair, xi: Batch) -> Any:
        return rule(self.x.seen(z.x), self.y.seen(z.y), BatchRows(xi, z.x))

    def values(self, z: Pair, xi: Batch) -> tuple[Tensor, Tensor]:
        """What x descends and what y ascends, on a batch."""
        with told_in_a_line(f"{self.name}: the loss"):
            found = self._called(self.rule, z, xi)
        both: tuple[Tensor, ...] = found if isinstance(found, tuple) else (found,)
        one, other = both[0], both[-1]
        return xi.mean(one) if one.dim() else one, xi.mean(other) if other.dim() else other

    def field(self, z: Pair, xi: Batch) -> Pair:
        if not self._game:
            slope: Pair = torch.func.grad(lambda z: self.values(z, xi)[0])(z)
            return slope
        pulled: Any = torch.func.vjp(lambda z: self.values(z, xi), z)
        values, pull_back = pulled
        one, none = torch.ones_like(values[0]), torch.zeros_like(values[0])
        return Pair(pull_back((one, none))[0].x, pull_back((none, one))[0].y)

    @cached_property
    def _game(self) -> bool:
        """Whether the players have a loss each."""
        return isinstance(self._called(self.rule, self.init(0), _first_rows(self.federation)), tuple)

    # --- rows on devices: see problem.Held ---

    @property
    def away(self) -> bool:
        return self.data.away is not None

    def holding(self, client: int, path: str) -> OwnTask:
        own = replace(self, data=self.data.holding(client, read_by(self.reader, path), path))
        _try_rows(own, client, path)
        return own

    def counts(self, client: int) -> Counts:
        return {"rows": int(self.federation.sizes[client])}

    def facts(self, counts: list[Counts]) -> Facts:
        return {}

    def learn(self, facts: Facts) -> None:
        pass

    @property
    def agreed(self) -> str:
        """What a server and its devices must have alike, beside the code: data, or what a row looks like."""
        if not self.away:
            return str(self.identity["data"])
        rows = self.federation.rows
        like = {name: [str(column.dtype), list(column.shape[1:])] for name, column in rows.items()}
        return fingerprint([len(self.federation), like, self.data.words, list(self.federation.own)])

    # --- what it has learnt ---

    def models(self, z: Pair) -> dict[str, nn.Module]:
        """The trained modules, as their functions make them."""
        players = ((self.x, z.x), (self.y, z.y))
        return {one.called: one.network.at(vector) for one, vector in players if one.network is not None}

    def evaluate(self, z: Pair) -> dict[str, float]:
        with torch.no_grad():
            return {name: self._measured(name, metric, z) for name, metric in self.metrics.items()}

    def _measured(self, name: str, metric: Metric, z: Pair) -> float:
        """A metric on its rows: of one value a row the mean, some rows at a time."""
        rule = metric.of or (lambda *given: self.rule(*given))
        total = 0.0
        for xi, share in self._looked_at(metric.rows, z.x.device, name in self._by_rows):
            with told_in_a_line(f"metric '{name}'"):
                found = self._called(rule, z, xi)
            found = found[0] if isinstance(found, tuple) else found
            try:
                value = xi.mean(found) if isinstance(found, Tensor) and found.dim() else found
                total += share * float(value)
            except (TypeError, ValueError, RuntimeError):
                raise BadInput(
                    f"metric '{name}' must give a number, or one for each row, got {shown(found)}"
                ) from None
        return total

    @cached_property
    def _by_rows(self) -> frozenset[str]:
        """The metrics that give one value a row, which can be looked at some rows at a time."""
        z, found = self.init(0), set()
        for name, metric in self.metrics.items():
            batch = next(iter(self._looked_at(metric.rows, z.x.device, True, PROBED)))[0]
            with torch.no_grad(), told_in_a_line(f"metric '{name}'"):
                value = self._called(metric.of or self.rule, z, batch)
            value = value[0] if isinstance(value, tuple) else value
            if isinstance(value, Tensor) and value.dim() == 1 and len(value) == len(batch.weight):
                found.add(name)
        return frozenset(found)

    def _looked_at(
        self, rows: str, device: torch.device, apart: bool, most: int = LOOKED_AT
    ) -> Iterator[tuple[Batch, float]]:
        """The rows that a metric looks at, each part with its share of the whole."""
        if rows in ("test", "validation"):
            table = self._held[rows].to(device)
            weight = torch.full((len_of(table),), 1 / len_of(table), dtype=torch.float64, device=device)
            yield from _parts(table, weight, torch.arange(len_of(table), device=device), apart)
            return
        table = self.federation.to(device)
        if table.own:  # a client's own values go with its rows alone
            for client in range(len(table)):
                start, size = int(table.offsets[client]), int(table.sizes[client])
                weight = torch.full((size,), 1 / size, dtype=torch.float64, device=device)
                own = {name: values[client] for name, values in table.own.items()}
                for xi, share in _parts(table, weight, start + torch.arange(size, device=device), apart):
                    yield xi._replace(own=own), share / len(table)
            return
        step = -(-len_of(table) // most)
        place = torch.arange(0, len_of(table), step, device=device)
        # Every client counts the same, as in what is optimised.
        weight = (1 / table.sizes.to(torch.float64)).repeat_interleave(table.sizes)[place]
        yield from _parts(table, weight / weight.sum(), place, apart)

    @cached_property
    def _held(self) -> dict[str, Federation]:
        """The rows that no client has, as one client would hold them: they too are moved to a device once."""
        return {
            name: Federation(rows, torch.tensor([len(next(iter(rows.values())))]))
            for name, rows in self.data.held.items()
        }

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What makes it this task: its code and its data."""
        parts: dict[str, Any] = {"x": self.x.set.of, "y": self.y.set.of, "loss": self.rule}
        if self.away:
            parts["reader"] = None if isinstance(self.reader, Reader) else self.reader
        parts |= {f"metric {name}": metric.of for name, metric in self.metrics.items()}
        tables = {"train": self.federation.rows, **self.data.held, "read": self.federation.reading()}
        return {
            "name": self.name,
            "code": {name: fingerprint(part) for name, part in parts.items()},
            "sets": [self.x.told, self.y.told],
            "data": hashed({**tables, "own": self.federation.own, "sizes": {"": self.federation.sizes}}),
        }


def len_of(table: Federation) -> int:
    return int(table.sizes.sum())


def _parts(table: Federation, weight: Tensor, place: Tensor, apart: bool) -> Iterator[tuple[Batch, float]]:
    """Some rows at a time, or all: batches whose weights add up to one, and what each is of the whole."""
    key = draws.key(draws.PROBLEM, torch.zeros((), dtype=torch.int64, device=place.device))
    size = CHUNK[place.device.type] if apart else max(1, len(place))
    for number, (own, some) in enumerate(zip(place.split(size), weight.split(size), strict=True)):
        share = some.sum()
        yield Batch(table.at(own), {}, some / share, draws.fold(key, number)), float(share)


def _first_rows(table: Federation, pads: int = 0) -> Batch:
    """A few rows of the first client, and some that only pad them."""
    count = min(PROBED, int(table.sizes[0]))
    place = torch.cat([torch.arange(count), torch.zeros(pads, dtype=torch.int64)])
    weight = (torch.arange(count + pads) < count).to(torch.float64) / count
    own = {name: values[0] for name, values in table.own.items()}
    return Batch(table.at(place), own, weight, draws.key(draws.PROBLEM, 0), torch.zeros(()))


def task(
    *,
    x: Any,
    y: Any,
    loss: Loss,
    data: Clients,
    metrics: Mapping[str, Metric] | None = None,
    name: str = "",
    reader: Any = None,
) -> OwnTask:
    """A task from two players, a loss and clients' data. It is tried on a few rows before it is given back.

    x and y: a function that makes a module, a shape, or a set such as `Simplex(10)` (see `players`).
    loss(x, y, batch): one value a row, or their mean; two of either make a game of two losses.
    metrics: by name, `Metric("high", rows="test", of=rule)`, where rule(x, y, batch) gives a number or one
    for each row. Without any, the loss on training rows is told.
    reader: of clients whose rows are on devices, `fs.clients(away=10, test=...)`: a function that makes a
    device's file, by its path, a table. Without one it is read as `fs.clients` reads files.
    """
    if not callable(loss):
        raise BadInput(f"loss must be a function of (x, y, batch), got {shown(loss)}")
    if not isinstance(data, Clients):
        raise BadInput(f"data must be made by fs.clients(...), got {shown(data)}")
    if reader is not None and (data.away is None or not (callable(reader) or isinstance(reader, Reader))):
        raise BadInput(
            "reader makes a table of a device's file: give a function of its path, and "
            f"fs.clients(away=NUMBER, test=...); got {shown(reader)} and {data}"
        )
    default = Metric("neither", rows="train" if data.away is None else "test")
    told = dict(metrics) if metrics else {"loss": default}
    for key, metric in told.items():
        if not isinstance(metric, Metric) or not metric.valid:
            raise BadInput(f"metrics['{key}'] must be such as {SUCH[:-1]}, of=rule), got {shown(metric)}")
        if metrics and not callable(metric.of):
            raise BadInput(f"metrics['{key}'] needs of=, a function of (x, y, batch)")
        if metric.rows == "train" and data.away is not None:
            raise BadInput(f"metrics['{key}'] looks at training rows, which are on devices: say rows='test'")
        if metric.rows in ("test", "validation") and metric.rows not in data.held:
            raise BadInput(
                f"metrics['{key}'] looks at {metric.rows} rows, and there are none: give "
                f"fs.clients(..., {metric.rows}=...)"
            )
    called = name or getattr(loss, "__name__", type(loss).__name__)
    made = OwnTask(called, player_from("x", x), player_from("y", y), loss, data, told, reader)
    _try_out(made)
    made._game  # noqa: B018  looked at now: it takes a point, and inside a map none can be drawn
    return made


def _try_out(own: OwnTask) -> None:
    """Refuse a loss that cannot be used, saying why."""
    z, some = own.init(0), _first_rows(own.federation)
    rows = len(some.weight)
    try:
        found = own._called(own.rule, z, some)
    except Exception as error:
        why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        shapes = ", ".join(f"{key} {tuple(column.shape)}" for key, column in some.rows.items())
        hint = "; in a loss, take gradients by torch.func.grad" if "not require grad" in why else ""
        raise BadInput(f"{own.name}: the loss failed on {rows} rows ({shapes}): {why}{hint}") from error
    both = found if isinstance(found, tuple) else (found,)
    fits = all(isinstance(one, Tensor) and one.is_floating_point() for one in both)
    if not fits or len(both) > 2 or any(one.shape not in ((), (rows,)) for one in both):
        told = (f"a tensor of {tuple(one.shape)}" if isinstance(one, Tensor) else shown(one) for one in both)
        raise BadInput(
            f"{own.name}: the loss must give one value a row, ({rows},) for {rows} rows, or a scalar; or two "
            f"of either, for a game; got {', '.join(told)}"
        )
    if not all(bool(torch.isfinite(one).all()) for one in both):
        raise BadInput(f"{own.name}: the loss is not finite on {rows} rows where it starts, before any step")
    again = own._called(own.rule, z, some)
    if not all(map(torch.equal, both, again if isinstance(again, tuple) else (again,))):
        raise BadInput(
            f"{own.name}: the loss gives other values when it is asked again on the same rows: it must "
            "depend on x, y and the batch alone, change none of them, and draw by batch.uniform() or normal()"
        )
    _try_padding(own, z, some, both)


def _try_rows(own: OwnTask, client: int, path: str) -> None:
    """Refuse a device's rows that the loss cannot bear, such as classes that the network does not know."""
    z, held = own.init(0), own.federation
    place = int(held.offsets[client]) + torch.arange(int(held.sizes[client]))
    weight = torch.full((len(place),), 1 / len(place), dtype=torch.float64)
    values = {name: table[client] for name, table in held.own.items()}
    for number, (xi, _) in enumerate(_parts(held, weight, place, True)):
        try:
            with torch.no_grad():
                finite = all(bool(torch.isfinite(one)) for one in own.values(z, xi._replace(own=values)))
            why = "" if finite else "it is not finite"
        except BadInput as error:
            why = str(error).removeprefix(f"{own.name}: the loss ")
        except Exception as error:
            why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        if why:
            start = number * CHUNK["cpu"]
            raise BadInput(f"{path}: the loss fails on rows {start} to {start + len(xi.weight) - 1}: {why}")


def _try_padding(own: OwnTask, z: Pair, some: Batch, both: tuple[Tensor, ...]) -> None:
    """A scalar must be the mean of the rows by their weights, where some clients' batches are padded."""
    sizes = own.federation.sizes
    same = bool((sizes == sizes[0]).all()) and not own.away
    if same or all(one.dim() for one in both):
        return
    held = "different numbers of" if own.away else f"{int(sizes.min())} to {int(sizes.max())}"
    again = own._called(own.rule, z, _first_rows(own.federation, PADS))
    for one, other in zip(both, again if isinstance(again, tuple) else (again,), strict=True):
        if not one.dim() and not torch.allclose(one, other, rtol=SAME, atol=SAME, equal_nan=True):
            raise BadInput(
                f"{own.name}: the loss gives one number, in which rows that only pad a client's batch count "
                f"too, and clients hold {held} rows: give one value a row "
                "(reduction='none'), or take means by batch.mean(values)"
            )
