"""What is run: a problem, an algorithm, a fleet and an executor, for all lanes; and where the lanes are.

A *lane* is one run: a seed and a setting of the hyperparameters. Many lanes go through a round together;
their server states are stacked, and all clients they ask form one flat list of visits. Lanes never touch:
each draws, waits, counts, abandons and diverges alone. What happens in a round is in `round`, `gather` and
`phase`, not here.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedsaddle.checks import Checks
from fedsaddle.core import Algorithm, Pair, Phase, Remembers
from fedsaddle.data.federated import as_usual
from fedsaddle.engine.accounting import kinds_up
from fedsaddle.engine.allowed import projected
from fedsaddle.engine.memory import until_it_fits
from fedsaddle.engine.visits import Extent, Nothing, Task
from fedsaddle.errors import BadInput, Notice
from fedsaddle.faults import Faults
from fedsaddle.fleet import Cohorts, Fleet, Quorum
from fedsaddle.history import Gathering, History
from fedsaddle.merges import MEAN, Merge
from fedsaddle.problem import Federation, Problem, release
from fedsaddle.steady import AS_THEY_ARE, Steady

CPU = torch.device("cpu")
Meeting = list[Gathering]  # one phase, lane by lane


class Posted(NamedTuple):
    """One kind of message: where it went, in which phase."""

    direction: str  # down; up, an answer that was used; late or refused, one that was not
    phase: int


class Event(NamedTuple):
    """Something a person should hear about."""

    lane: int
    round: int
    # abandoned, diverged, collapsed, dropped, lost (with a worker), or memory: less is used from here on
    what: str
    detail: str


class Calls(NamedTuple):
    """Whom one phase asks. Visit v is client[v], asked by lane[v]."""

    lane: Tensor  # (visit,)
    client: Tensor  # (visit,)
    place: Tensor  # (lane, answer): where a lane's answers are among the visits
    answers: Tensor  # (lane,): how many it has; none for a lane that sits out
    t: Tensor  # (lane,): rounds completed before this one
    planned: Tensor  # (lane,): the local steps of a walk that is not cut short
    chance: Tensor  # (lane,): a draw that all of its clients have in common
    key: Tensor  # (lane,): what all draws of its clients come from
    first: Tensor  # (lane,): the same of the round's first phase
    steps: Tensor  # (visit,): the local steps that it makes
    mean_steps: Tensor  # (lane,): that of a lane's visits
    corrupt: Tensor  # (visit,): whether its answer is spoilt
    weight: Tensor | Nothing = ()  # (visit,): what its answer counts, where that is not once


class PhaseInputs(NamedTuple):
    """What one phase is computed from."""

    server: Any  # the algorithm's state, stacked by lane
    calls: Calls
    kept: Pair | Nothing = ()  # (visit, value): what the clients have kept


class PhaseResult(NamedTuple):
    """What one phase comes to."""

    server: Any
    keep: Pair | Nothing = ()  # (visit, value): what the clients will keep
    verdict: Tensor | Nothing = ()  # (visit,): of answers that are checked
    finite: Tensor | Nothing = ()  # (lane,): after the last phase


class Attendance(NamedTuple):
    """How often clients were invited and used, (lane, phase, client): see `engine.propensity`."""

    invited: Tensor
    used: Tensor


class Lost(NamedTuple):
    """Some answers were lost on the way."""

    heard: Tensor  # (visit,): which were not


class Executor(Protocol):
    """A way to have the visits of a phase computed. What it does not say, it has from here."""

    def run(self, study: Study, number: int, extent: Extent, inputs: PhaseInputs) -> PhaseResult | Lost:
        """One phase."""

    def measure(self, study: Study, z: Pair) -> list[dict[str, float]]:
        """The metrics at some points, (point, value)."""
        return [numbers(study.problem.evaluate(Pair(*point))) for point in zip(*z, strict=True)]

    def limit(self, device: torch.device) -> float:
        """What may be held at a time, in bytes."""
        return math.inf

    def beside(self, device: torch.device) -> int:
        """How many threads compute beside each other."""
        return 1

    def news(self) -> str | None:
        """What a person should hear and has not yet been told."""
        return None

    def release(self, study: Study) -> None:
        """Give back what was made for a study."""
        return

    def close(self) -> None:
        """Give everything back. It can be used again; then it begins anew."""
        return


@dataclass(frozen=True, eq=False)
class Study:
    """One algorithm on one problem and one fleet, for all lanes."""

    problem: Problem
    algorithm: Algorithm
    seeds: tuple[int, ...]  # one for each lane
    hyper: dict[str, Tensor]  # the scalar hyperparameters of each lane, by field
    quorum: Quorum
    fleet: Fleet
    batch: int
    weights: Tensor | None  # odds of each client to be invited; None for equal ones
    cohorts: Cohorts  # whom a round's later phases ask
    executor: Executor
    device: torch.device = CPU
    names: tuple[str, ...] = ()  # of each lane's setting: what its rows are filed under
    merge: Merge = MEAN
    faults: Faults | None = None  # that are injected
    checks: Checks | None = None  # of answers; without them, what a client computes is taken as it is
    steady: Steady = AS_THEY_ARE  # how long steps may be
    strata: Tensor | None = None  # of each client; None where all are invited alike
    history: History | None = None  # if given, it decides who is invited and what becomes of the answers
    next_meetings: dict[Any, list[Meeting]] = field(default_factory=dict, init=False)
    drawn: dict[str, tuple[int, Tensor]] = field(default_factory=dict, init=False)  # see `gather.drawn_ahead`

    @property
    def federation(self) -> Federation:
        return self.problem.federation.to(self.device)

    def close(self) -> None:
        """Give back what it has opened: recordings, their memory and threads, and copies on a device.

        It can be used again; then it begins anew.
        """
        self.executor.release(self)
        release(self.device)
        as_usual(self.device.type)
        self.next_meetings.clear()
        self.drawn.clear()

    @cached_property
    def lane_seeds(self) -> Tensor:
        return torch.tensor(self.seeds)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Those of the algorithm."""
        return self.algorithm.phases()

    @cached_property
    def quorums(self) -> list[Quorum]:
        """That of each phase."""
        return [self.quorum if phase.length(0.0) else self.quorum.collecting for phase in self.phases]

    @cached_property
    def kinds(self) -> list[dict[str, str]]:
        """What each name of an answer carries, phase by phase."""
        return [kinds_up(phase) for phase in self.phases]

    def task(self, number: int) -> Task:
        cut = self.quorum.partial_work is not None and self.phases[number].length(0.0) > 0
        return Task(self.problem, self.federation, self.algorithm, number, self.batch, self.steady, cut)

    def per_lane(self, rule: Callable[..., Any], *stacked: Any) -> Any:
        """rule(algorithm, ...) for every lane, with the lane's own hyperparameters."""

        def one(hyper: dict[str, Tensor], *own: Any) -> Any:
            algorithm: Any = self.algorithm
            return rule(replace(algorithm, **hyper), *own)

        return torch.func.vmap(one)(self.hyper, *stacked)


@dataclass(frozen=True)
class Lanes:
    """Everything that changes from round to round. There is no generator state in it."""

    server: Any  # the algorithm's state, stacked by lane
    memory: Pair | None  # what clients keep, (lane, client, value)
    completed: list[int]  # rounds that were not abandoned: the algorithm's t
    clock: list[float]  # simulated seconds
    posted: list[Counter[Posted]]  # messages so far
    alive: list[bool]
    strikes: list[Counter[int]] = field(default_factory=list)  # refused answers of each client
    collapsed: list[bool] = field(default_factory=list)  # lanes of which that has been said
    attendance: Attendance | None = None  # of who was used, where answers are weighted by it


def begin(study: Study, memory: bool = True) -> Lanes:
    """Every lane before its first round; if it is only looked at, without what all clients remember."""
    starts = {seed: projected(study.problem, study.problem.init(seed)) for seed in set(study.seeds)}
    z: Pair = tree_map(
        lambda *rows: torch.stack(rows).to(study.device), *(starts[seed] for seed in study.seeds)
    )
    held = None
    if memory and isinstance(study.algorithm, Remembers):
        held = blank_memory(study, study.per_lane(lambda algorithm, z: algorithm.remember(z), z))
    n = len(study.seeds)
    server = study.per_lane(lambda algorithm, z: algorithm.init(z), z)
    posted: list[Counter[Posted]] = [Counter() for _ in range(n)]
    strikes: list[Counter[int]] = [Counter() for _ in range(n)]
    attendance = None
    if study.merge.weighted:
        shape = (n, len(study.phases), len(study.problem.federation))
        attendance = Attendance(*torch.zeros(2, *shape, dtype=torch.float64))
    return Lanes(server, held, [0] * n, [0.0] * n, posted, [True] * n, strikes, [False] * n, attendance)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What a problem gives as metrics, as plain numbers."""
    if not metrics:
        raise BadInput("evaluate must give at least one metric")
    try:
        return {name: float(value) for name, value in metrics.items()}
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(f"evaluate must give a number for each metric, got {metrics}") from None


def points(server: Any) -> list[Pair]:
    """Each lane's z."""
    return [Pair(x, y) for x, y in zip(*server.z, strict=True)]


def blank_memory(study: Study, blank: Pair) -> Pair:
    """What all clients hold before their first visit, (lane, client, value).

    It lies beside a GPU, if it would take more there than a computation may.
    """
    clients = len(study.problem.federation)
    needed = clients * sum(value.nbytes for value in blank)
    on_gpu = study.device != CPU and needed <= study.executor.limit(study.device)
    shelf = study.device if on_gpu else CPU

    def shelved() -> Pair:
        held: Pair = tree_map(lambda value: value.to(shelf)[:, None].repeat(1, clients, 1), blank)
        return held

    def shrink() -> None:
        nonlocal shelf
        if shelf == CPU:
            raise BadInput("what clients keep does not fit into memory: lower the number of seeds or clients")
        shelf = CPU
        told = "what clients keep does not fit on the GPU and lies beside it, which is slower"
        warnings.warn(told, Notice, stacklevel=2)

    return until_it_fits(shelved, shrink)
