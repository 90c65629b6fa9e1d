"""One visit: what a client does with what it was sent. The same code for one visit and under vmap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedsaddle import draws
from fedsaddle.core import Algorithm, Message, Pair, Reply, Scalar, where
from fedsaddle.engine.allowed import projected, proximal
from fedsaddle.engine.compile.trace import Unrecordable
from fedsaddle.errors import BadInput, shown
from fedsaddle.mishaps import told_if_theirs
from fedsaddle.problem import Batch, Federation, Game, Minimax, Problem, name_of
from fedsaddle.steady import AS_THEY_ARE, Steady

T = TypeVar("T")
Field = Callable[[Pair, Batch], Pair]

# What the clients of some visits are given: in every tensor, row v belongs to visit v. It holds the
# `hyper`parameters, the message that came `down`, and what an `Oracle` is made of.
Given = dict[str, Any]

Nothing = tuple[()]  # where there may be tensors: unlike None, no leaf of a tree


class Answer(NamedTuple):
    """What one client, or in every tensor row v the client of visit v, sends up and will keep."""

    up: Message
    keep: Pair | Nothing = ()


@dataclass(frozen=True)
class Visits:
    """A flat list of visits: visit v is client[v], asked by lane[v].

    What lanes and clients hold once is repeated for each visit only when it is `given`, so that a part of
    the visits takes only its part of the memory.
    """

    by_lane: Given  # (lane, ...): hyper, down, t, planned, chance and first
    lane: Tensor  # (visit,)
    client: Tensor
    key: Tensor
    steps: Tensor
    kept: Pair | None = None  # (visit, value): what the clients have kept

    @property
    def rest(self) -> tuple[Any, ...]:
        """All but what is by lane."""
        return (self.lane, self.client, self.key, self.steps, *([] if self.kept is None else [self.kept]))

    def __len__(self) -> int:
        return len(self.lane)

    def part(self, start: int, stop: int) -> Visits:
        kept = None if self.kept is None else Pair(self.kept.x[start:stop], self.kept.y[start:stop])
        lane, client, key, steps = (
            rows[start:stop] for rows in (self.lane, self.client, self.key, self.steps)
        )
        return Visits(self.by_lane, lane, client, key, steps, kept)

    def given(self, federation: Federation) -> Given:
        """All that each visit's client is given."""
        given: Given = tree_map(lambda values: values[self.lane], self.by_lane)
        given["client"], given["key"], given["steps"] = self.client, self.key, self.steps
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
    steady: Steady = AS_THEY_ARE  # how long its steps may be
    partial: bool = False  # whether walks may be cut short
    over: Callable[[int], bool] | None = None  # after so many steps: whether a real walk is out of time


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
        return torch.func.grad(partial(_scalar, problem))
    raise TypeError(f"{type(problem).__name__} has neither `loss` nor `field`")


def _scalar(problem: Minimax, z: Pair, xi: Batch) -> Tensor:
    value = problem.loss(z, xi)
    if not isinstance(value, Tensor) or value.dim():
        told = f"a tensor of {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value)
        raise BadInput(
            f"{name_of(problem)}.loss must give one number, such as xi.mean(values) of one a row; got {told}"
        )
    return value


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
    now: list[Batch] = field(default_factory=list)  # those of the present step
    number: int | Tensor = 0  # of the first of them; a tensor, if the step may be any but the first
    firsts: dict[int, Pair] = field(default_factory=dict)  # at the start, on a minibatch of the first step
    grads: Pair | None = None  # at the start, on all later ones: (minibatch, value)

    def take(self, number: int | Tensor) -> list[Batch]:
        """The minibatches of a step, from this number on."""
        self.number = number
        rows, keys = self.every.rows, self.every.key
        self.now = [
            self.every._replace(
                rows={name: _at(table, number + more) for name, table in rows.items()},
                key=_at(keys, number + more),
            )
            for more in range(self.first)
        ]
        return self.now

    def grad(self, slope: Field, z: Pair, xi: Batch) -> Pair | None:
        """The gradient, if it is one of those."""
        place = next((place for place, own in enumerate(self.now) if own is xi), None)
        if z is not self.start or place is None or not holds(len(self.every.key), z):
            return None
        if isinstance(self.number, int) and self.number == 0:
            if place not in self.firsts:
                self.firsts[place] = slope(z, xi)
            return self.firsts[place]
        if self.grads is None:
            shared = Batch(0, None, None, 0)  # type: ignore[arg-type]  # all but the rows and the keys
            rows = {name: table[self.first :] for name, table in self.every.rows.items()}
            later = self.every._replace(rows=rows, key=self.every.key[self.first :])
            self.grads = torch.func.vmap(slope, in_dims=(None, shared))(z, later)
        later_place = self.number + place - self.first
        return Pair(_at(self.grads.x, later_place), _at(self.grads.y, later_place))


def _at(table: Tensor, place: int | Tensor) -> Tensor:
    """One entry of a table."""
    if isinstance(place, int):
        return table[place]
    return table.index_select(0, place.reshape(1)).squeeze(0)


class Stage(NamedTuple):
    """A part of a visit that is cut where its walk makes a step, so that one recording serves any number.

    `first` goes as far as the first step, `next` makes any later one, `last` is all that comes after the
    walk. A stage that ends in the walk gives where that is.
    """

    part: Literal["first", "next", "last"]
    state: Any = None  # where the walk is
    at: Tensor | None = None  # of `next`: the number of the step


class Paused(Exception):
    """A walk is left in the middle. `state` is where it is."""

    def __init__(self, state: Any) -> None:
        self.state = state


def holds(minibatches: int, z: Pair) -> bool:
    """Whether a visit may hold a gradient for each minibatch: in float32 16 MB of them, or 128 on a GPU."""
    return minibatches * (z.x.shape[-1] + z.y.shape[-1]) <= 1 << (25 if z.x.is_cuda else 22)


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
    planned: Tensor  # the local steps of a walk that is not cut short
    chance: Tensor
    first: Tensor  # its lane's key in the round's first phase
    client: Tensor
    steps: Tensor
    own: dict[str, Tensor]
    kept: Pair | None = None
    stage: Stage | None = None
    _walk: Walk | None = None
    _walked: bool = False

    def _gather(self, rows: Tensor, weight: Tensor, key: Tensor) -> Batch:
        return Batch(self.task.federation.at(self.offset + rows), self.own, weight, key, self.t)

    def grad(self, z: Pair, xi: Batch) -> Pair:
        slope = field_of(self.task.problem)
        who = f"problem {name_of(self.task.problem)}"
        with told_if_theirs(who), untouched(who, (z, xi.rows)):
            known = self._walk.grad(slope, z, xi) if self._walk else None
            return slope(z, xi) if known is None else known

    def full_grad(self, z: Pair) -> Pair:
        return self.grad(z, self._all())

    def value(self, z: Pair, xi: Batch) -> Tensor:
        problem = self.task.problem
        if not isinstance(problem, Minimax):
            raise BadInput(f"{name_of(problem)} has no loss, which an algorithm with client.value needs")
        with told_if_theirs(f"problem {name_of(problem)}"), untouched(name_of(problem), (z, xi.rows)):
            return _scalar(problem, z, xi)

    def full_value(self, z: Pair) -> Tensor:
        return self.value(z, self._all())

    def sample(self) -> Batch:
        key = draws.fold(self.first, self.client)  # here, as most rules never ask
        rows = draws.batches(key, self.size, self.task.batch, self.extent.rows)
        return self._batch(rows, 0, draws.fold(key, 3))

    def _all(self) -> Batch:
        """All of the client's rows."""
        row = torch.arange(self.extent.rows, device=self.size.device)
        real = row < self.size
        padded, weight = torch.where(real, row, 0), real.to(torch.float64) / self.size
        return self._gather(padded, weight, draws.fold(self.key, 2))

    def project(self, z: Pair) -> Pair:
        return projected(self.task.problem, z)

    def prox(self, z: Pair, by: Scalar) -> Pair:
        return proximal(self.task.problem, z, by)

    def walk(self, move: Callable[..., T], start: T) -> T:
        if self.stage is not None:
            return self._part(move, start, self.stage)
        z, self._walk = start, self._ahead(start)
        for step in range(len(self.batch_rows)):
            z = self._step(move, start, z, step)
            if self.task.over is not None and self.task.over(step + 1):
                self.steps = torch.full_like(self.steps, step + 1)
                break
        self._walk = None
        return z

    def normalised(self, start: Pair, end: Pair) -> Pair:
        if not self.task.partial:
            return end
        whole = start + (self.planned.to(start.x.dtype) / self.steps) * (end - start)
        return where(self.steps < self.planned, whole, end)

    def _part(self, move: Callable[..., T], start: T, stage: Stage) -> T:
        """What a stage has to do with the walk."""
        if self._walked:
            raise Unrecordable("it walks twice")
        self._walked = True
        if stage.part == "last":
            return stage.state  # type: ignore[no-any-return]
        self._walk = self._ahead(start)
        number = 0 if stage.at is None else stage.at
        raise Paused(self._step(move, start, start if stage.state is None else stage.state, number))

    def _step(self, move: Callable[..., T], start: T, z: T, step: int | Tensor) -> T:
        """Where one step of a walk from `start` leads."""
        number = step * self.batch_rows.shape[1]
        batches = self._walk.take(number) if self._walk else self._minibatches(step, number)
        after = move(z, *batches)
        if type(after) is not type(z):
            told = f"{type(z).__name__}, as it was given; got {type(after).__name__}"
            raise BadInput(f"a move of {type(self.task.algorithm).__name__}'s walk must give a {told}")
        moved = projected(self.task.problem, self.task.steady.stepped(start, z, after))
        if self.extent.ragged:
            going = step < self.steps
            moved = tree_map(lambda new, old: torch.where(going, new, old), moved, z)
        return moved

    def _ahead(self, start: object) -> Walk | None:
        """All minibatches at once, if gradients are computed ahead."""
        if not self.extent.ahead:
            return None
        steps, per_step, size = self.batch_rows.shape
        count = steps * per_step
        numbers = torch.arange(count, device=self.key.device)
        return Walk(start, per_step, self._batch(self.batch_rows.reshape(count, size), numbers, self._key))

    def _minibatches(self, step: int | Tensor, number: int | Tensor) -> list[Batch]:
        """Those of one step, of which the first has this number."""
        rows = _at(self.batch_rows, step)
        return [self._batch(own, number + place, self._key) for place, own in enumerate(rows)]

    @property
    def _key(self) -> Tensor:
        """What the draws of a walk's minibatches come from."""
        return draws.fold(self.key, 1)

    def _batch(self, rows: Tensor, number: int | Tensor, key: Tensor) -> Batch:
        """A minibatch, or some: their rows, and their numbers among those of a key."""
        size = rows.shape[-1]
        weight = torch.full((size,), 1 / size, dtype=torch.float64, device=self.key.device)
        return self._gather(rows, weight, draws.fold(key, number))


def check_message(who: str, message: object) -> Message:
    """Refuse what is no dictionary of Pairs."""
    if not isinstance(message, dict) or not all(isinstance(one, Pair) for one in message.values()):
        raise BadInput(f'{who} what is no dictionary of Pairs, such as {{"z": server.z}}')
    return message


def batch_rows(task: Task, extent: Extent, given: Given) -> Tensor:
    """The rows of every minibatch: (visit, step, minibatch of the step, row); no first one for one visit."""
    per_step = task.algorithm.phases()[task.phase].batches
    key = draws.fold(given["key"], 0)
    rows = draws.batches(key, given["size"], extent.steps * per_step * task.batch, extent.rows)
    return rows.reshape(*key.shape, extent.steps, per_step, task.batch)


def answer(
    task: Task, extent: Extent, batch_rows: Tensor, given: Given, stage: Stage | None = None
) -> Answer:
    """One client's answer. A stage that ends in the walk is left by `Paused`."""
    algorithm: Any = task.algorithm
    mine: Algorithm = task.steady.warmed(replace(algorithm, **given["hyper"]), given["t"])
    rest = {name: value for name, value in given.items() if name not in ("hyper", "down")}
    client = Oracle(task, extent, batch_rows, **rest, stage=stage)
    phase = mine.phases()[task.phase]
    with untouched(f"phase {phase.name} of {type(mine).__name__}", (given["down"], client.kept)):
        reply: object = phase.work(client, **given["down"])
    who = f"phase '{phase.name}' of {type(mine).__name__}"
    if not isinstance(reply, Reply):
        raise BadInput(
            f'{who} must answer with a Reply, such as Reply({{"z": z}}), got {type(reply).__name__}'
        )
    check_message(f"{who} answers", reply.up)
    return Answer(reply.up, () if reply.keep is None else reply.keep)


def walked(task: Task, extent: Extent, batch_rows: Tensor, given: Given, stage: Stage) -> Any:
    """Where one client's walk is after a stage that ends in it."""
    try:
        answer(task, extent, batch_rows, given, stage)
    except Paused as pause:
        return pause.state
    raise Unrecordable("it does not walk")
