"""A task of your own: two players, a loss, and clients' data. Nothing has to be subclassed.

    fs.task(x=lambda: Net(), y=fs.Simplex(10), loss=loss, data=fs.clients(...))

    loss(x, y, batch) -> one value a row, or their mean
                         or two of either: x descends the first, y ascends the second

A network is called as its module is; a vector is a tensor. The batch is a dictionary of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedsaddle.core import Pair
from fedsaddle.data.clients import Clients
from fedsaddle.data.reading import Reader
from fedsaddle.errors import BadInput, shown
from fedsaddle.metric import SUCH, Metric
from fedsaddle.mishaps import told_in_a_line
from fedsaddle.problem import Batch
from fedsaddle.problems.own import Loss, OwnTask, check_values, first_rows, shapes_of
from fedsaddle.problems.players import player_from

PADS = 2  # rows that only pad those on which a loss is tried
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
    rows = len(some.weight)
    with told_in_a_line(f"{own.name}: the loss", lambda: shapes_of(some)):
        found = own.given_by(own.rule, z, some)
    both = found if isinstance(found, tuple) else (found,)
    check_values(own.name, both, rows)
    if not all(bool(torch.isfinite(one).all()) for one in both):
        raise BadInput(f"{own.name}: the loss is not finite on {rows} rows where it starts, before any step")
    again = own.given_by(own.rule, z, some)
    if not all(map(torch.equal, both, again if isinstance(again, tuple) else (again,))):
        raise BadInput(
            f"{own.name}: the loss gives other values when it is asked again on the same rows: it must "
            "depend on x, y and the batch alone, change none of them, and draw by batch.uniform() or normal()"
        )
    _try_padding(own, z, some, both)


def _try_padding(own: OwnTask, z: Pair, some: Batch, both: tuple[Tensor, ...]) -> None:
    """A scalar must be the mean of the rows by their weights, where some clients' batches are padded."""
    sizes = own.federation.sizes
    same = bool((sizes == sizes[0]).all()) and not own.away
    if same or all(one.dim() for one in both):
        return
    held = "different numbers of" if own.away else f"{int(sizes.min())} to {int(sizes.max())}"
    again = own.given_by(own.rule, z, first_rows(own.federation, PADS))
    for one, other in zip(both, again if isinstance(again, tuple) else (again,), strict=True):
        if not one.dim() and not torch.allclose(one, other, rtol=SAME, atol=SAME, equal_nan=True):
            raise BadInput(
                f"{own.name}: the loss gives one number, in which rows that only pad a client's batch count "
                f"too, and clients hold {held} rows: give one value a row "
                "(reduction='none'), or take means by batch.mean(values)"
            )
