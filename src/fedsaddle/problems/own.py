"""What `fs.task` makes: a problem of two players, a loss that is somebody's own, and clients' data."""

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
from fedsaddle.metric import Metric
from fedsaddle.mishaps import told_in_a_line
from fedsaddle.problem import Batch, Counts, Detail, Facts, Federation, Measured, client_means
from fedsaddle.problems.identity import fingerprint, hashed
from fedsaddle.problems.players import TaskPlayer

Loss = Callable[[Any, Any, "BatchRows"], Any]

PROBED = 4  # rows on which a loss is tried
PADS = 2  # and rows that only pad those
LOOKED_AT = 50_000  # training rows of an evaluation, at most: every second of 100,000
LATE = 2**31 - 1  # the round of an evaluation: what is annealed has ended


class BatchRows(dict[str, Tensor]):
    """Some rows of one client: a dictionary of columns, and what a loss may want beside them."""

    def __init__(self, xi: Batch, like: Tensor) -> None:
        super().__init__(xi.rows)
        self._xi, self._like = xi, like

    def __missing__(self, name: object) -> Tensor:
        named = "" if "0" not in self else "; fs.clients(..., columns=('input', 'label')) names them"
        raise KeyError(f"there is no column {name!r}; there are {', '.join(self)}{named}")

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
        return self._xi.mean(_floats(values))

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
class OwnTask(Measured):
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

    def given_by(self, rule: Callable[..., Any], z: Pair, xi: Batch, judged: bool = False) -> Any:
        """What a loss gives at a point; or a metric, or the loss itself as one, by which that is judged."""
        return rule(self.x.seen(z.x, judged), self.y.seen(z.y, judged), BatchRows(xi, z.x))

    def values(self, z: Pair, xi: Batch) -> tuple[Tensor, Tensor]:
        """What x descends and what y ascends, on a batch."""
        with told_in_a_line(f"{self.name}: the loss", lambda: shapes_of(xi)):
            found = self.given_by(self.rule, z, xi)
        both: tuple[Tensor, ...] = found if isinstance(found, tuple) else (found,)
        check_values(self.name, both, len(xi.weight))
        one, other = both[0], both[-1]
        return xi.mean(one) if one.dim() else one, xi.mean(other) if other.dim() else other

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        """Of one loss its value, for rules that go by it."""
        if self._game:
            raise BadInput(f"{self.name} has two losses, and an algorithm with client.value needs one")
        return self.values(z, xi)[0]

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
        return isinstance(self.given_by(self.rule, self.init(0), first_rows(self.federation)), tuple)

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

    def inputs(self, role: str) -> dict[str, Tensor]:
        """What the loss gives a network, on a few rows: by the column's name, where it is one."""
        z, some = self.init(0), first_rows(self.federation, PADS)
        heard: list[tuple[Any, ...]] = []

        def listening(player: TaskPlayer, vector: Tensor) -> Any:
            seen = player.seen(vector, True)
            if player.called != role:
                return seen

            def listen(*inputs: Any, **named: Any) -> Any:
                heard.append((*inputs, *named))
                return seen(*inputs, **named)

            return listen

        batch = BatchRows(some, z.x)
        with torch.no_grad(), told_in_a_line(f"{self.name}: the loss", lambda: shapes_of(some)):
            self.rule(listening(self.x, z.x), listening(self.y, z.y), batch)
        if not heard or not all(isinstance(one, Tensor) and one.dim() for one in heard[0]):
            raise BadInput(
                f"{self.name}: to be exported, '{role}' must be called with tensors, and none by its name; "
                "fs.load gives the module"
            )
        columns = {id(column): name for name, column in batch.items()}
        return {columns.get(id(one), f"input{place}"): one for place, one in enumerate(heard[0])}

    def details(self, z: Pair) -> dict[str, Detail]:
        """How each client fares: the means over its training rows of what gives one value a row."""
        if self.away or self.federation.files:  # they are elsewhere, or too many to look at them all
            return {}
        told = {name: metric for name, metric in self.metrics.items() if metric.of}
        found = {}
        for name, metric in ({"loss": Metric("low", rows="train", of=self.rule)} | told).items():
            values = self._of_rows(name, metric.of or self.rule, z)
            if values is not None:
                columns = client_means(self.federation, values, name) | {"client": list(self.data.names)}
                found[f"Clients by {name}"] = Detail("clients", columns, metric.better)
        return found

    def _of_rows(self, name: str, rule: Loss, z: Pair) -> Tensor | None:
        """What a rule gives for each training row, (row,); none, if it gives a number for them together."""
        here, table, values = self.federation, self.federation.to(z.x.device), []
        spans = [(0, len_of(here))]
        if here.own:  # a client's own values go with its rows alone
            spans = list(zip(here.offsets.tolist(), here.sizes.tolist(), strict=True))
        for client, span in enumerate(spans):
            own = {key: every[client] for key, every in table.own.items()}
            for xi, _ in _parts(table, *_alike(*span), apart=True):
                with torch.no_grad(), told_in_a_line(f"'{name}'", lambda: shapes_of(xi)):  # noqa: B023
                    value = first_of(self.given_by(rule, z, xi._replace(own=own), judged=True))
                if not isinstance(value, Tensor) or value.shape != xi.weight.shape:
                    return None
                values.append(value)
        return torch.cat(values)

    def measure(self, z: Pair) -> dict[str, Tensor]:
        with torch.no_grad():
            return {name: self._measured(name, metric, z) for name, metric in self.metrics.items()}

    def _measured(self, name: str, metric: Metric, z: Pair) -> Tensor:
        """A metric on its rows: of one value a row the mean, some rows at a time."""
        rule = metric.of or self.rule
        total = torch.zeros((), dtype=torch.float64, device=z.x.device)
        for xi, share in self._looked_at(metric.rows, z.x.device, name in self._by_rows):
            with told_in_a_line(f"metric '{name}'", lambda: shapes_of(xi)):  # noqa: B023
                found = first_of(self.given_by(rule, z, xi, judged=True))
            total = total + share * _number(name, found, xi)
        return total

    @cached_property
    def _by_rows(self) -> frozenset[str]:
        """The metrics that give one value a row, which can be looked at some rows at a time."""
        z, found = self.init(0), set()
        for name, metric in self.metrics.items():
            batch = next(iter(self._looked_at(metric.rows, z.x.device, True, PROBED)))[0]
            with torch.no_grad(), told_in_a_line(f"metric '{name}'", lambda: shapes_of(batch)):  # noqa: B023
                value = first_of(self.given_by(metric.of or self.rule, z, batch, judged=True))
            if isinstance(value, Tensor) and value.shape == batch.weight.shape:
                found.add(name)
        return frozenset(found)

    def _looked_at(
        self, rows: str, device: torch.device, apart: bool, most: int = LOOKED_AT
    ) -> Iterator[tuple[Batch, float]]:
        """The rows that a metric looks at, each part with its share of the whole."""
        if rows in ("test", "validation"):
            table = self._held[rows]
            yield from _parts(table.to(device), *_alike(0, len_of(table)), apart)
            return
        table = self.federation
        if table.own:  # a client's own values go with its rows alone
            there = table.to(device)
            for client, (start, size) in enumerate(
                zip(table.offsets.tolist(), table.sizes.tolist(), strict=True)
            ):
                own = {name: values[client] for name, values in there.own.items()}
                for xi, share in _parts(there, *_alike(start, size), apart):
                    yield xi._replace(own=own), share / len(table)
            return
        step = -(-len_of(table) // most)
        place = torch.arange(0, len_of(table), step)
        # Every client counts the same, as in what is optimised.
        weight = (1 / table.sizes.to(torch.float64)).repeat_interleave(table.sizes)[place]
        yield from _parts(table.to(device), place, weight / weight.sum(), apart)

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


def check_values(name: str, both: tuple[Any, ...], rows: int) -> None:
    """Refuse what a loss gives, if it is neither one value a row nor one number."""
    fits = all(isinstance(one, Tensor) and one.is_floating_point() for one in both)
    if not fits or len(both) > 2 or any(one.shape not in ((), (rows,)) for one in both):
        raise BadInput(
            f"{name}: the loss must give one value a row, ({rows},) for {rows} rows, or a scalar; or two "
            f"of either, for a game; got {', '.join(map(_kind, both))}"
        )


def shapes_of(xi: Batch) -> str:
    """What a loss is given, for a person to whom its shapes may tell what is wrong."""
    columns = ", ".join(f"{key} {tuple(column.shape)}" for key, column in xi.rows.items())
    return f" on {len(xi.weight)} rows ({columns})"


def _kind(one: Any) -> str:
    """What a loss or a metric has given, without its values."""
    if not isinstance(one, Tensor):
        return shown(one)
    return f"a tensor of {tuple(one.shape)} in {str(one.dtype).removeprefix('torch.')}"


def first_of(found: Any) -> Any:
    """Of a game's two losses, what x descends."""
    found = found[0] if isinstance(found, tuple) else found
    return _floats(found) if isinstance(found, Tensor) else found


def _floats(values: Tensor) -> Tensor:
    """What is true or false, or whole, as floats, of which there is a mean."""
    return values if values.is_floating_point() or values.is_complex() else values.double()


def _number(name: str, found: Any, xi: Batch) -> Tensor:
    """What a metric gives for some rows, as one number."""
    try:
        value = found if isinstance(found, Tensor) else torch.tensor(float(found), dtype=torch.float64)
        return (xi.mean(value) if value.dim() else value).to(xi.weight.device, torch.float64).reshape(())
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(
            f"metric '{name}' must give a number, or one for each row, got {_kind(found)}"
        ) from None


def _alike(start: int, size: int) -> tuple[Tensor, Tensor]:
    """So many places from one on, and their weights, which are equal."""
    return start + torch.arange(size), torch.full((size,), 1 / size, dtype=torch.float64)


def _parts(table: Federation, place: Tensor, weight: Tensor, apart: bool) -> Iterator[tuple[Batch, float]]:
    """Some rows at a time, or all: batches whose weights add up to one, and what each is of the whole.

    Places and weights are on the CPU, and the rows where the table is: so nothing waits for a GPU.
    """
    device = table.sizes.device
    key = draws.key(draws.PROBLEM, torch.zeros((), dtype=torch.int64, device=device))
    size = CHUNK[device.type] if apart else max(1, len(place))
    for number, (own, some) in enumerate(zip(place.split(size), weight.split(size), strict=True)):
        share = some.sum()
        yield (
            Batch(table.at(own.to(device)), {}, (some / share).to(device), draws.fold(key, number)),
            float(share),
        )


def first_rows(table: Federation, pads: int = 0) -> Batch:
    """A few rows of the first client, and some that only pad them."""
    count = min(PROBED, int(table.sizes[0]))
    place = torch.cat([torch.arange(count), torch.zeros(pads, dtype=torch.int64)])
    weight = (torch.arange(count + pads) < count).to(torch.float64) / count
    own = {name: values[0] for name, values in table.own.items()}
    return Batch(table.at(place), own, weight, draws.key(draws.PROBLEM, 0), torch.zeros(()))


def _try_rows(own: OwnTask, client: int, path: str) -> None:
    """Refuse a device's rows that the loss cannot bear, such as classes that the network does not know."""
    z, held = own.init(0), own.federation
    place, weight = _alike(int(held.offsets[client]), int(held.sizes[client]))
    values = {name: table[client] for name, table in held.own.items()}
    for number, (xi, _) in enumerate(_parts(held, place, weight, True)):
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
