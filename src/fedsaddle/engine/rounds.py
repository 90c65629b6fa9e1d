"""The round, written once for all algorithms: invite, wait for enough answers, merge.

A *lane* is one run: a seed and a setting of the hyperparameters. Many lanes go through a round together;
their server states are stacked, and all clients they ask form one flat list of visits. Lanes never touch:
each draws, waits, counts, abandons and diverges by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedsaddle import draws
from fedsaddle.core import Algorithm, Message, Pair, Remembers, Turn
from fedsaddle.engine.accounting import Postage, floats_down, floats_up
from fedsaddle.engine.loop import Loop
from fedsaddle.engine.visits import Task, Visits
from fedsaddle.fleet import Fleet, Quorum, Settled, Verdict, invite
from fedsaddle.problem import Problem

Ask = Callable[[Task, Visits], dict[str, Any]]


class Posted(NamedTuple):
    """One kind of message: where it went, in which phase."""

    direction: str  # down; up, an answer that was used; late, an answer that was not
    phase: int


class Event(NamedTuple):
    """Something a person should hear about."""

    lane: int
    round: int
    what: str  # abandoned or diverged
    detail: str


@dataclass(frozen=True)
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
    cohorts: Literal["another", "same"]  # whether the phases of a round invite the same clients
    ask: Ask

    def per_lane(self, rule: Callable[..., Any], *stacked: Any) -> Any:
        """rule(algorithm, ...) for every lane, with the lane's own hyperparameters."""

        def one(hyper: dict[str, Tensor], *own: Any) -> Any:
            algorithm: Any = self.algorithm
            return rule(replace(algorithm, **hyper), *own)

        return torch.func.vmap(one)(self.hyper, *stacked)

    @cached_property
    def postage(self) -> list[Postage]:
        """The floats of one message each way, phase by phase, read off one client's dry run."""
        lanes = begin(self)
        first = torch.zeros(1, dtype=torch.int64)
        result = []
        for number, phase in enumerate(self.algorithm.phases()):
            down = send(self, lanes.server, number)
            floats = floats_down(phase, down)
            visits = visits_of(self, lanes, 0, number, down, first, first)
            visits["steps"] = visits["steps"].clamp(max=1)  # one step tells what an answer holds
            up = Loop()(Task(self.problem, self.algorithm, number, self.batch), visits)["up"]
            result.append(Postage(floats, floats_up(phase, up)))
        return result


@dataclass(frozen=True)
class Lanes:
    """Everything that changes from round to round. There is no generator state in it."""

    server: Any  # the algorithm's state, stacked by lane
    memory: Pair | None  # what clients keep, (lane, client, value)
    completed: list[int]  # rounds that were not abandoned: the algorithm's t
    clock: list[float]  # simulated seconds
    posted: list[Counter[Posted]]  # messages so far
    alive: list[bool]


def begin(study: Study) -> Lanes:
    """Every lane before its first round."""
    starts = [study.problem.init(seed) for seed in study.seeds]
    z: Pair = tree_map(lambda *rows: torch.stack(rows), *starts)
    memory = None
    if isinstance(study.algorithm, Remembers):
        blank = study.per_lane(lambda algorithm, z: algorithm.remember(z), z)
        clients = len(study.problem.federation)
        memory = tree_map(lambda value: value[:, None].repeat(1, clients, 1), blank)
    n = len(study.seeds)
    server = study.per_lane(lambda algorithm, z: algorithm.init(z), z)
    return Lanes(server, memory, [0] * n, [0.0] * n, [Counter() for _ in range(n)], [True] * n)


def play(study: Study, lanes: Lanes, round: int) -> tuple[Lanes, list[Event]]:
    """One round of every lane that is alive. A lane that abandons it, or diverges in it, keeps its state.

    The clients' memory is changed in place: it is the one part too large to copy every round.
    """
    server, undo = lanes.server, []
    clock, posted = list(lanes.clock), [Counter(counts) for counts in lanes.posted]
    playing, events = list(lanes.alive), []

    for number, phase in enumerate(study.algorithm.phases()):
        invited, settled = gather(study, round, number, clock)
        for lane in which(playing):
            end = settled[lane]
            clock[lane] += end.seconds
            posted[lane][Posted("down", number)] += study.quorum.invite
            posted[lane][Posted("up", number)] += len(end.accepted)
            posted[lane][Posted("late", number)] += len(end.late)
            if end.verdict is Verdict.ABANDON:
                playing[lane] = False
                detail = f"{phase.name}: {end.answered} answers, the minimum is {study.quorum.minimum}"
                events.append(Event(lane, round, "abandoned", detail))
        if not any(playing):
            break

        # Sorted by client, so that the order of arrival does not move a bit of the mean.
        asked = [
            (lane, client)
            for lane in which(playing)
            for client in sorted(invited[lane][place] for place in settled[lane].accepted)
        ]
        lane_of, client_of = torch.tensor(asked).unbind(1)
        visits = visits_of(study, lanes, round, number, send(study, server, number), lane_of, client_of)
        answers = study.ask(Task(study.problem, study.algorithm, number, study.batch), visits)
        if "keep" in answers and lanes.memory is not None:
            undo.append((lanes.memory, lane_of, client_of, visits["kept"]))
            remember(lanes.memory, lane_of, client_of, answers["keep"])
        server = choose(playing, merge(study, lanes, server, number, lane_of, answers["up"]), server)

    server = choose(playing, server, lanes.server)
    finite = [bool(torch.isfinite(torch.cat(z)).all()) for z in points(server)]
    for lane in which(playing):
        if not finite[lane]:
            playing[lane] = False
            events.append(Event(lane, round, "diverged", "a parameter is no longer finite"))
    # A client keeps what it computed only if its lane completed the round, so that c stays the mean of c_i.
    for memory, lane_of, client_of, old in reversed(undo):
        failed = ~torch.tensor(playing)[lane_of]
        remember(memory, lane_of[failed], client_of[failed], Pair(old.x[failed], old.y[failed]))
    return Lanes(
        choose(playing, server, lanes.server),
        lanes.memory,
        [t + done for t, done in zip(lanes.completed, playing, strict=True)],
        clock,
        posted,
        [on and ok for on, ok in zip(lanes.alive, finite, strict=True)],
    ), events


# --- the parts of a round -----------------------------------------------------------------------------


def gather(
    study: Study, round: int, number: int, clock: list[float]
) -> tuple[list[list[int]], list[Settled]]:
    """Whom each lane invites, and how its wait for their answers ends."""
    seeds = torch.tensor(study.seeds)
    cohort = number if study.cohorts == "another" else 0
    clients = len(study.problem.federation)
    invited = invite(seeds, round, cohort, clients, study.quorum.invite, study.weights)
    delays = study.fleet.delays(seeds, round, number, invited, clock)
    return invited.tolist(), [study.quorum.settle(lane) for lane in delays.tolist()]


def send(study: Study, server: Any, number: int) -> Message:
    """What each lane's server sends, stacked by lane."""
    message: Message = study.per_lane(lambda algorithm, s: algorithm.phases()[number].send(s), server)
    return message


def visits_of(
    study: Study, lanes: Lanes, round: int, number: int, down: Message, lane: Tensor, client: Tensor
) -> Visits:
    """The flat list of visits: visit v is client[v] asked by lane[v]."""
    federation, z = study.problem.federation, lanes.server.z.x
    seeds = torch.tensor(study.seeds)
    chances = draws.uniform(draws.key(draws.STEPS, seeds, round, number), 1).squeeze(-1).tolist()
    phase = study.algorithm.phases()[number]
    visits: Visits = {
        "hyper": study.hyper,
        "down": down,
        "t": torch.tensor(lanes.completed, dtype=z.dtype, device=z.device),
        "steps": torch.tensor([phase.steps(chance) for chance in chances]),
    }
    visits = tree_map(lambda by_lane: by_lane[lane], visits)
    visits["key"] = draws.key(draws.BATCHES, seeds[lane], round, number, client)
    visits["offset"], visits["size"] = federation.offsets[client], federation.sizes[client]
    visits["own"] = {name: table[client] for name, table in federation.own.items()}
    if lanes.memory is not None:
        visits["kept"] = tree_map(lambda value: value[lane, client], lanes.memory)
    return visits


def merge(study: Study, lanes: Lanes, server: Any, number: int, lane: Tensor, up: Message) -> Any:
    """Every lane's server after it has merged the mean of its answers."""
    counts = torch.bincount(lane, minlength=len(study.seeds)).tolist()
    count = server.z.x.new_tensor(counts)

    def mean(answers: Tensor) -> Tensor:
        # Visits come lane by lane. Adding up each lane by itself makes its sum independent of the others.
        total = torch.stack([mine.sum(0) for mine in answers.split(counts)])
        mean: Tensor = total / count.clamp(min=1)[:, None]
        return mean

    turn = Turn(count.new_tensor(lanes.completed), count / len(study.problem.federation))
    return study.per_lane(
        lambda algorithm, s, turn, mean: algorithm.phases()[number].merge(s, turn, **mean),
        server,
        turn,
        tree_map(mean, up),
    )


def remember(memory: Pair, lane: Tensor, client: Tensor, values: Pair) -> None:
    """Put what clients keep into the memory of their lanes."""
    for old, new in zip(memory, values, strict=True):
        old[lane, client] = new


def which(flags: list[bool]) -> list[int]:
    return [number for number, on in enumerate(flags) if on]


def choose(lanes: list[bool], new: Any, old: Any) -> Any:
    """The new state in these lanes, the old one in the others."""
    if all(lanes):
        return new
    on = torch.tensor(lanes)

    def pick(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(on.reshape(-1, *[1] * (new.dim() - 1)), new, old)

    return tree_map(pick, new, old)


def points(server: Any) -> list[Pair]:
    """Each lane's z."""
    return [Pair(x, y) for x, y in zip(*server.z, strict=True)]
