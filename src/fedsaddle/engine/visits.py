"""One visit: what a client does with what it was sent. The same code for one visit and under vmap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedsaddle import draws
from fedsaddle.core import Algorithm, Pair
from fedsaddle.errors import BadInput
from fedsaddle.problem import Batch, Constrained, Federation, Game, Minimax, Problem

T = TypeVar("T")
Field = Callable[[Pair, Batch], Pair]

# What the clients of some visits are given: in every tensor, row v belongs to visit v. It holds the
# `hyper`parameters, the message that came `down`, and what an `Oracle` is made of.
Given = dict[str, Any]


@dataclass(frozen=True)
class Visits:
    """A flat list of visits: visit v is client[v], asked by lane[v].

    What lanes and clients hold once is repeated for each visit only when it is `given`, so that a part of
    the visits takes only its part of the memory.
    """

    by_lane: Given  # (lane, ...): hyper, down, t and steps
    lane: Tensor  # (visit,)
    client: Tensor
    key: Tensor
    kept: Pair | None = None  # (visit, value): what the clients have kept

    @property
    def rest(self) -> tuple[Any, ...]:
        """All but what is by lane."""
        return (self.lane, self.client, self.key, *([] if self.kept is None else [self.kept]))

    def __len__(self) -> int:
        return len(self.lane)

    def part(self, start: int, stop: int) -> Visits:
        kept = None if self.kept is None else Pair(self.kept.x[start:stop], self.kept.y[start:stop])
        lane, client, key = (rows[start:stop] for rows in (self.lane, self.client, self.key))
        return Visits(self.by_lane, lane, client, key, kept)

    def given(self, federation: Federation) -> Given:
        """All that each visit's client is given."""
        given: Given = tree_map(lambda values: values[self.lane], self.by_lane)
        given["key"] = self.key
        given["offset"], given["size"] = federation.offsets[self.client], federation.sizes[self.client]
        given["own"] = {name: table[self.client] for name, table in federation.own.items()}
        if self.kept is not None:
            given["kept"] = self.kept
        return given


class Task(NamedTuple):
    """What all visits of one phase share."""

    problem: Problem
    federation: Federation  # the problem's, on the device where the work is done
    algorithm: Algorithm
    phase: int
    batch: int  # rows of a minibatch


class Extent(NamedTuple):
    """How far a computation must reach to hold every visit in it."""

    steps: int  # of the longest walk
    rows: int  # of the largest client
    ragged: bool  # whether some walks are shorter
    ahead: bool = False  # whether gradients at the start of a walk are computed ahead, all at once


@contextmanager
def untouched(who: str, what: Any) -> Iterator[None]:
    """Refuses one who changes in place what it was given: it is needed again, and a replay would differ."""
    tensors = [value for value in tree_leaves(what) if isinstance(value, Tensor)]
    before = [_version(tensor) for tensor in tensors]
    yield
    if [_version(tensor) for tensor in tensors] != before:
        raise BadInput(
            f"{who} changes in place what it is given; it must make new values (x = x - g, not x -= g)"
        )


def _version(tensor: Tensor) -> int:
    """How often it was written to, whatever maps it is in."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor._version


def field_of(problem: Problem) -> Field:
    """What x descends and y ascends."""
    if isinstance(problem, Game):
        return problem.field
    if isinstance(problem, Minimax):
        return torch.func.grad(problem.loss)
    raise TypeError(f"{type(problem).__name__} has neither `loss` nor `field`")


def projected(problem: Problem, state: T) -> T:
    """The state with its point, itself or its z, brought back to where the problem allows it."""
    if not isinstance(problem, Constrained):
        return state
    if isinstance(state, Pair):
        return problem.project(state)  # type: ignore[return-value]
    if isinstance(getattr(state, "z", None), Pair):
        return state._replace(z=problem.project(state.z))  # type: ignore[attr-defined,no-any-return]
    raise TypeError(f"nothing to project in a {type(state).__name__}: it is neither a Pair nor has a Pair z")


@dataclass
class Walk:
    """The minibatches of a walk, and the gradients that are known before its first step.

    A corrected step asks for the gradient at the walk's start, on each minibatch: that does not depend on
    the walk, so all are computed at once. No algorithm has to know. In its first step every walk is at its
    start, so only a question after that begins it.
    """

    start: object
    first: int  # minibatches of the first step
    every: Batch  # (minibatch, row, ...)
    each: list[Batch]
    firsts: dict[int, Pair] = field(default_factory=dict)  # at the start, on a minibatch of the first step
    grads: Pair | None = None  # at the start, on all later ones: (minibatch, value)

    def grad(self, slope: Field, z: Pair, xi: Batch) -> Pair | None:
        """The gradient, if it is one of those."""
        place = next((number for number, own in enumerate(self.each) if own is xi), None)
        if z is not self.start or place is None or not holds(len(self.each), z):
            return None
        if place < self.first:
            if place not in self.firsts:
                self.firsts[place] = slope(z, xi)
            return self.firsts[place]
        if self.grads is None:
            shared = Batch(0, None, None, 0)  # type: ignore[arg-type]  # all but the rows and the keys
            rows = {name: table[self.first :] for name, table in self.every.rows.items()}
            later = self.every._replace(rows=rows, key=self.every.key[self.first :])
            self.grads = torch.func.vmap(slope, in_dims=(None, shared))(z, later)
        return Pair(self.grads.x[place - self.first], self.grads.y[place - self.first])


def holds(minibatches: int, z: Pair) -> bool:
    """Whether a visit may hold a gradient for each minibatch: in float32 16 MB of them, or 1 GB on a GPU."""
    return minibatches * (z.x.shape[-1] + z.y.shape[-1]) <= 1 << (28 if z.x.is_cuda else 22)


@dataclass
class Oracle:
    """The `Client` an algorithm talks to."""

    task: Task
    extent: Extent
    batch_rows: Tensor  # (step, minibatch of the step, row)
    t: Tensor
    key: Tensor
    offset: Tensor  # where the client's rows begin
    size: Tensor  # how many there are
    steps: Tensor
    own: dict[str, Tensor]
    kept: Pair | None = None
    _walk: Walk | None = None

    def _gather(self, rows: Tensor, weight: Tensor, key: Tensor) -> Batch:
        table = self.task.federation.rows
        return Batch({name: table[name][self.offset + rows] for name in table}, self.own, weight, key)

    def grad(self, z: Pair, xi: Batch) -> Pair:
        slope = field_of(self.task.problem)
        with untouched(f"problem {type(self.task.problem).__name__}", (z, xi.rows)):
            known = self._walk.grad(slope, z, xi) if self._walk else None
            return slope(z, xi) if known is None else known

    def full_grad(self, z: Pair) -> Pair:
        row = torch.arange(self.extent.rows, device=self.size.device)
        real = row < self.size
        padded, weight = torch.where(real, row, 0), real.to(torch.float64) / self.size
        return self.grad(z, self._gather(padded, weight, draws.fold(self.key, 2)))

    def project(self, z: Pair) -> Pair:
        return projected(self.task.problem, z)

    def walk(self, move: Callable[..., T], start: T) -> T:
        steps, per_step, size = self.batch_rows.shape
        device, count = self.key.device, steps * per_step
        every = self._gather(
            self.batch_rows.reshape(count, size),
            torch.full((size,), 1 / size, dtype=torch.float64, device=device),
            draws.fold(draws.fold(self.key, 1), torch.arange(count, device=device)),
        )
        each = [
            every._replace(rows={name: rows[n] for name, rows in every.rows.items()}, key=every.key[n])
            for n in range(count)
        ]
        z, self._walk = start, Walk(start, per_step, every, each) if self.extent.ahead else None
        for step in range(steps):
            moved = move(z, *each[step * per_step : (step + 1) * per_step])
            moved = projected(self.task.problem, moved)
            if self.extent.ragged:
                going = step < self.steps
                moved = tree_map(lambda new, old: torch.where(going, new, old), moved, z)  # noqa: B023
            z = moved
        self._walk = None
        return z


def batch_rows(task: Task, extent: Extent, given: Given) -> Tensor:
    """The rows of every minibatch: (visit, step, minibatch of the step, row); no first one for one visit."""
    per_step = task.algorithm.phases()[task.phase].batches
    key = draws.fold(given["key"], 0)
    rows = draws.batches(key, given["size"], extent.steps * per_step * task.batch, extent.rows)
    return rows.reshape(*key.shape, extent.steps, per_step, task.batch)


def answer(task: Task, extent: Extent, batch_rows: Tensor, given: Given) -> dict[str, Any]:
    """One client's answer: what goes `up` and, if it keeps anything, what it will `keep`."""
    algorithm: Any = task.algorithm
    mine: Algorithm = replace(algorithm, **given["hyper"])
    rest = {name: value for name, value in given.items() if name not in ("hyper", "down")}
    client = Oracle(task, extent, batch_rows, **rest)
    phase = mine.phases()[task.phase]
    with untouched(f"phase {phase.name} of {type(mine).__name__}", (given["down"], client.kept)):
        reply = phase.work(client, **given["down"])
    return {"up": reply.up} if reply.keep is None else {"up": reply.up, "keep": reply.keep}
