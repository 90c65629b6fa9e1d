"""A task of your own: two players, a loss, and clients' data. Nothing has to be subclassed.

    fs.task(x=lambda: Net(), y=fs.Simplex(10), loss=loss, data=fs.clients(...))

    loss(x, y, batch) -> one value a row, or their mean
                         or two of either: x descends the first, y ascends the second

A network is called as its module is; a vector is a tensor. The batch is a dictionary of columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsaddle.core import Pair
from fedsaddle.data.clients import Clients
from fedsaddle.data.reading import Reader
from fedsaddle.errors import BadInput, Notice, shown
from fedsaddle.metric import NO_METRICS, SUCH, Metric
from fedsaddle.mishaps import told_in_a_line
from fedsaddle.problem import Batch
from fedsaddle.problems.own import PADS, Loss, OwnTask, check_values, first_rows, shapes_of
from fedsaddle.problems.players import player_from

SAME = 1e-5  # relative: how far rounding may bring a loss that is told to disregard some rows


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
        if key in NO_METRICS:
            raise BadInput(f"metrics['{key}'] is named as a column of rounds.csv: name it otherwise")
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
    made._game, made._by_rows  # noqa: B018  looked at now: inside a map no point can be drawn
    return made


def _try_out(own: OwnTask) -> None:
    """Refuse a loss that cannot be used, saying why."""
    z, some = own.init(0), first_rows(own.federation)
    rows, kept = len(some.weight), _buffers(own, z)
    before = [values.clone() for values in kept.values()]
    follows = Pair(z.x.requires_grad_(), z.y.requires_grad_())
    with told_in_a_line(f"{own.name}: the loss", lambda: shapes_of(some)), torch.enable_grad():
        found = own.given_by(own.rule, follows, some)
    both = found if isinstance(found, tuple) else (found,)
    check_values(own.name, both, rows)
    if not all(bool(torch.isfinite(one).all()) for one in both):
        raise BadInput(f"{own.name}: the loss is not finite on {rows} rows where it starts, before any step")
    for (name, values), was in zip(kept.items(), before, strict=True):
        if not torch.equal(values, was):
            raise BadInput(
                f"{own.name}: the network's layer changes its buffer '{name}' whenever it is called, as "
                "spectral_norm does, so two gradients on the same rows would differ: leave it out"
            )
    again = own.given_by(own.rule, follows, some)
    if not all(map(torch.equal, both, again if isinstance(again, tuple) else (again,))):
        raise BadInput(
            f"{own.name}: the loss gives other values when it is asked again on the same rows: it must "
            "depend on x, y and the batch alone, change none of them, and draw by batch.uniform() or normal()"
        )
    _try_players(own, follows, both)
    _try_sum(own, follows, some, both)
    _try_padding(own, follows, some, both)


def _buffers(own: OwnTask, z: Pair) -> dict[str, Tensor]:
    """What the players' modules keep beside what is trained."""
    players = ((own.x, z.x), (own.y, z.y))
    held = [player.network.fixed(vector) for player, vector in players if player.network is not None]
    return {name: values for one in held for name, values in one.items()}


def _try_players(own: OwnTask, z: Pair, both: tuple[Tensor, ...]) -> None:
    """Refuse a loss that x cannot descend; and say so of y, which may be meant."""
    for player, vector, value in ((own.x, z.x, both[0]), (own.y, z.y, both[-1])):
        if (
            value.requires_grad
            and torch.autograd.grad(value.sum(), vector, retain_graph=True, allow_unused=True)[0] is not None
        ):
            continue
        moves = "descend" if player is own.x else "ascend"
        told = f"{own.name}: {player.called} has nothing to {moves}: the loss does not depend on it"
        if player is own.x:
            raise BadInput(
                f"{told} (is there a .detach(), argmax or comparison on the way, or does it call the module "
                "itself instead of x?)"
            )
        warnings.warn(f"{told}, so this is plain training and no game", Notice, stacklevel=4)


def _try_sum(own: OwnTask, z: Pair, some: Batch, both: tuple[Tensor, ...]) -> None:
    """Refuse one number that is a sum over rows: steps would grow with the batch, values with a client."""
    if all(one.dim() for one in both):
        return
    rows = {name: torch.cat([column, column]) for name, column in some.rows.items()}
    found = own.given_by(own.rule, z, some._replace(rows=rows, weight=torch.cat([some.weight] * 2) / 2))
    for one, twice in zip(both, found if isinstance(found, tuple) else (found,), strict=True):
        if not one.dim() and _length(twice, z) > 1.5 * _length(one, z):
            raise BadInput(
                f"{own.name}: the loss gives one number that grows with the number of rows, as a sum does: "
                "give one value a row (reduction='none'), or take batch.mean(values)"
            )


def _length(value: Tensor, z: Pair) -> float:
    """Of a value's gradient."""
    if not value.requires_grad:
        return 0.0
    parts = torch.autograd.grad(value, z, retain_graph=True, allow_unused=True)
    return float(torch.cat([torch.zeros(1), *(part.flatten() for part in parts if part is not None)]).norm())


def _try_padding(own: OwnTask, z: Pair, some: Batch, both: tuple[Tensor, ...]) -> None:
    """Rows that only pad a client's batch must change nothing: not a mean, nor another row's value."""
    sizes = own.federation.sizes
    if bool((sizes == sizes[0]).all()) and not own.away:
        return
    held = "different numbers of" if own.away else f"{int(sizes.min())} to {int(sizes.max())}"
    more = first_rows(own.federation, PADS)
    with told_in_a_line(f"{own.name}: the loss", lambda: shapes_of(more)):
        found = own.given_by(own.rule, z, more)
    again, rows = found if isinstance(found, tuple) else (found,), len(some.weight)
    check_values(own.name, again, len(more.weight))
    for one, other in zip(both, again, strict=True):
        if torch.allclose(one, other[:rows] if one.dim() else other, rtol=SAME, atol=SAME, equal_nan=True):
            continue
        if one.dim():
            raise BadInput(
                f"{own.name}: a row's loss depends on the other rows of its batch, and so on those that only "
                f"pad a client's batch, for clients hold {held} rows: weigh rows by batch.weight, as "
                "batch.mean(values) does, and fedsaddle.networks.BatchNorm if it is given batch.weight"
            )
        raise BadInput(
            f"{own.name}: the loss gives one number, in which rows that only pad a client's batch count "
            f"too, and clients hold {held} rows: give one value a row "
            "(reduction='none'), or take means by batch.mean(values)"
        )
