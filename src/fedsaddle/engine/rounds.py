"""The round, written once for all algorithms: invite, wait for enough answers, merge.

A *lane* is one run: a seed and a setting of the hyperparameters. Many lanes go through a round together;
their server states are stacked, and all clients they ask form one flat list of visits. Lanes never touch:
each draws, waits, counts, abandons and diverges by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedsaddle import draws
from fedsaddle.core import Algorithm, Message, Pair, Remembers, Turn
from fedsaddle.engine.accounting import Postage, floats_down, floats_up
from fedsaddle.engine.graphs import Graphs
from fedsaddle.engine.loop import Loop
from fedsaddle.engine.tapes import Tapes
from fedsaddle.engine.vectorised import Vectorised
from fedsaddle.engine.visits import Extent, Task, Visits, projected
from fedsaddle.fleet import Fleet, Quorum, Settled, Verdict, invite
from fedsaddle.problem import Federation, Problem

Ask = Callable[[Task, Extent, Visits], dict[str, Any]]
CPU = torch.device("cpu")


class Posted(NamedTuple):
    """One kind of message: where it went, in which phase."""

    direction: str  # down; up, an answer that was used; late, an answer that was not
    phase: int


class Event(NamedTuple):
    """Something a person should hear about."""

    lane: int
    round: int
    what: str  # abandoned, diverged or dropped
    detail: str


class Meeting(NamedTuple):
    """One phase's cohort, lane by lane."""

    answering: list[list[int]]  # the clients whose answers are used
    settled: list[Settled]


class Calls(NamedTuple):
    """Whom one phase asks. Visit v is client[v], asked by lane[v]."""

    lane: Tensor  # (visit,)
    client: Tensor  # (visit,)
    place: Tensor  # (lane, answer): where a lane's answers are among the visits
    answers: Tensor  # (lane,): how many it has; none for a lane that sits out
    t: Tensor  # (lane,): rounds completed before this one
    steps: Tensor  # (lane,)
    round: Tensor


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
    device: torch.device = CPU
    graphs: Graphs | Tapes | None = None  # if given, phases are recorded and replayed
    names: tuple[str, ...] = ()  # of each lane's setting: what its rows are filed under
    next_meetings: dict[tuple[int, tuple[float, ...]], list[Meeting]] = field(default_factory=dict)

    @cached_property
    def federation(self) -> Federation:
        return self.problem.federation.to(self.device)

    @cached_property
    def lane_seeds(self) -> Tensor:
        return torch.tensor(self.seeds, device=self.device)

    def task(self, number: int) -> Task:
        return Task(self.problem, self.federation, self.algorithm, number, self.batch)

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
        only_first: list[list[int]] = [[0], *([] for _ in self.seeds[1:])]
        result = []
        for number, phase in enumerate(self.algorithm.phases()):
            calls, extent = calls_of(self, lanes.completed, 0, number, only_first)
            calls = calls._replace(steps=calls.steps.clamp(max=1))  # one step tells what an answer holds
            down = send(self, lanes.server, number)
            floats = floats_down(phase, down)
            visits = visits_of(self, number, down, calls, kept_by(lanes.memory, calls))
            up = Loop()(self.task(number), extent, visits)["up"]
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
    starts = [projected(study.problem, study.problem.init(seed)) for seed in study.seeds]
    z: Pair = tree_map(lambda *rows: torch.stack(rows).to(study.device), *starts)
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
    clock, posted = list(lanes.clock), [Counter(counts) for counts in lanes.posted]
    playing, events = list(lanes.alive), []

    # Who answers does not depend on what is computed, so all phases are settled before any is asked.
    meetings = meet(study, round, clock)
    for number, (phase, meeting) in enumerate(zip(study.algorithm.phases(), meetings, strict=True)):
        for lane in which(playing):
            end = meeting.settled[lane]
            clock[lane] += end.seconds
            posted[lane][Posted("down", number)] += study.quorum.invite
            posted[lane][Posted("up", number)] += len(end.accepted)
            posted[lane][Posted("late", number)] += len(end.late)
            if end.verdict is Verdict.ABANDON:
                playing[lane] = False
                detail = f"{phase.name}: {end.answered} answers, the minimum is {study.quorum.minimum}"
                events.append(Event(lane, round, "abandoned", detail))

    server, finite = lanes.server, [True] * len(playing)
    before: list[tuple[Calls, Pair]] = []  # what the asked clients had kept, phase by phase
    if any(playing):
        for number, meeting in enumerate(meetings):
            asked = [clients if on else [] for clients, on in zip(meeting.answering, playing, strict=True)]
            calls, extent = calls_of(study, lanes.completed, round, number, asked)
            kept = kept_by(lanes.memory, calls)
            after = exchange(study, number, extent, server, calls, kept)
            server = after["server"]
            if lanes.memory is not None and kept is not None and "keep" in after:
                before.append((calls, kept))
                remember(lanes.memory, calls.lane, calls.client, after["keep"])
        if study.graphs is not None:
            meet(study, round + 1, clock)  # while the GPU is busy
        finite = after["finite"].tolist()  # the one moment of a round that waits for it
    done = [on and ok for on, ok in zip(playing, finite, strict=True)]
    if done != playing:
        events += [
            Event(lane, round, "diverged", "a parameter is no longer finite")
            for lane in which(playing)
            if not done[lane]
        ]
        completed = torch.tensor(done, device=study.device)
        server = choose(completed, server, lanes.server)
        # A client keeps what it computed only if its lane completed the round, so that c stays the mean
        # of all c_i.
        for calls, kept in reversed(before):
            failed = ~completed[calls.lane]
            assert lanes.memory is not None
            old = Pair(kept.x[failed], kept.y[failed])
            remember(lanes.memory, calls.lane[failed], calls.client[failed], old)
    return Lanes(
        server,
        lanes.memory,
        [t + ok for t, ok in zip(lanes.completed, done, strict=True)],
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


def meet(study: Study, round: int, clock: list[float]) -> list[Meeting]:
    """All phases' gatherings of a round. The last one that was asked for is kept."""
    when = (round, tuple(clock))
    if when not in study.next_meetings:
        study.next_meetings.clear()
        meetings, now = [], list(clock)
        for number in range(len(study.algorithm.phases())):
            invited, settled = gather(study, round, number, now)
            # Sorted by client, so that the order of arrival does not move a bit of the mean.
            answering = [
                sorted(own[place] for place in end.accepted)
                for own, end in zip(invited, settled, strict=True)
            ]
            meetings.append(Meeting(answering, settled))
            now = [then + end.seconds for then, end in zip(now, settled, strict=True)]
        study.next_meetings[when] = meetings
    return study.next_meetings[when]


def calls_of(
    study: Study, completed: list[int], round: int, number: int, asked: list[list[int]]
) -> tuple[Calls, Extent]:
    """The flat list of the clients that each lane asks, and how far the computation must reach."""
    counts = [len(clients) for clients in asked]
    client = [number for clients in asked for number in clients]
    chances = draws.uniform(draws.key(draws.STEPS, torch.tensor(study.seeds), round, number), 1)
    phase = study.algorithm.phases()[number]
    steps = [phase.steps(chance) for chance in chances.squeeze(-1).tolist()]

    walks = [own for own, count in zip(steps, counts, strict=True) if count]
    rows = int(study.problem.federation.sizes[client].max())
    extent = Extent(max(walks), rows, ragged=min(walks) < max(walks))

    first = torch.tensor([0, *counts[:-1]]).cumsum(0)
    place = first[:, None] + torch.arange(study.quorum.wanted)
    lane = torch.repeat_interleave(torch.tensor(counts))
    host = Calls(
        lane,
        torch.tensor(client),
        place.clamp(max=len(client) - 1),
        torch.tensor(counts),
        torch.tensor(completed),
        torch.tensor(steps),
        torch.tensor(round),
    )
    calls: Calls = tree_map(lambda values: values.to(study.device, non_blocking=True), host)
    return calls, extent


def exchange(
    study: Study, number: int, extent: Extent, server: Any, calls: Calls, kept: Pair | None
) -> dict[str, Any]:
    """One phase: send, ask, merge. The `server` after it, which lanes are `finite`, what clients `keep`."""
    task, graphs, real = study.task(number), study.graphs, len(calls.lane)

    def opening(inputs: dict[str, Any]) -> Visits:
        down = send(study, inputs["server"], number)
        return visits_of(study, number, down, inputs["calls"], inputs.get("kept"))

    def ask(visits: Visits) -> dict[str, Any]:
        return study.ask(task, extent, visits)

    def work(inputs: dict[str, Any], ask: Callable[[Visits], dict[str, Any]] = ask) -> dict[str, Any]:
        server, calls, answers = inputs["server"], inputs["calls"], ask(opening(inputs))
        merged = merge(study, server, number, calls, answers.pop("up"))
        server = choose(calls.answers > 0, merged, server)
        finite = torch.isfinite(server.z.x).all(-1) & torch.isfinite(server.z.y).all(-1)
        return {"server": server, "finite": finite, **answers}

    inputs = {"server": server, "calls": calls} | ({} if kept is None else {"kept": kept})
    if graphs is None:
        return work(inputs)
    extent, visits = roomy(study, number, extent, real)
    piece = visits
    if isinstance(graphs, Tapes):
        assert isinstance(study.ask, Vectorised)
        most = len(study.seeds) * study.quorum.wanted
        piece = study.ask.piece(task, extent, lambda: opening(inputs), most, graphs.workers)
        visits = -(-real // piece) * piece
    pad = torch.arange(visits, device=study.device).clamp(max=real - 1)  # the last visit again and again
    inputs["calls"] = calls._replace(lane=calls.lane[pad], client=calls.client[pad])
    if kept is not None:
        inputs["kept"] = Pair(kept.x[pad], kept.y[pad])
    after: dict[str, Any]
    if isinstance(graphs, Tapes) and piece < visits:
        after = work(inputs, lambda visits: graphs.pieces((number, extent, piece), ask, visits, piece))
    else:
        after = graphs((number, extent, visits), work, inputs)
    if "keep" in after:
        after["keep"] = Pair(after["keep"].x[:real], after["keep"].y[:real])
    return after


def roomy(study: Study, number: int, extent: Extent, visits: int) -> tuple[Extent, int]:
    """A little more room than needed, so that few different shapes have to be recorded."""
    most = len(study.seeds) * study.quorum.wanted
    phase = study.algorithm.phases()[number]
    varied = phase.steps(0.0) != phase.steps(1 - 2.0**-53)
    return Extent(
        rounded_up(extent.steps) if varied else extent.steps,
        min(rounded_up(extent.rows), study.problem.federation.longest),
        ragged=varied,
    ), min(most, -(-visits // max(8, most // 16)) * max(8, most // 16))


def rounded_up(count: int) -> int:
    """To three binary digits: 9 becomes 10, 100 becomes 112."""
    unit = 1 << max(0, count.bit_length() - 3)
    return -(-count // unit) * unit


def send(study: Study, server: Any, number: int) -> Message:
    """What each lane's server sends, stacked by lane."""
    message: Message = study.per_lane(lambda algorithm, s: algorithm.phases()[number].send(s), server)
    return message


def visits_of(study: Study, number: int, down: Message, calls: Calls, kept: Pair | None) -> Visits:
    """All that each visit's client is given."""
    federation, lane, client = study.federation, calls.lane, calls.client
    dtype = next(iter(down.values())).x.dtype
    by_lane: Visits = {"hyper": study.hyper, "down": down, "t": calls.t.to(dtype), "steps": calls.steps}
    visits: Visits = tree_map(lambda values: values[lane], by_lane)
    visits["key"] = draws.key(draws.BATCHES, study.lane_seeds[lane], calls.round, number, client)
    visits["offset"], visits["size"] = federation.offsets[client], federation.sizes[client]
    visits["own"] = {name: table[client] for name, table in federation.own.items()}
    if kept is not None:
        visits["kept"] = kept
    return visits


def merge(study: Study, server: Any, number: int, calls: Calls, up: Message) -> Any:
    """Every lane's server after it has merged the mean of its answers."""
    count = calls.answers.to(server.z.x.dtype)
    there = torch.arange(calls.place.shape[1], device=study.device) < calls.answers[:, None]

    def mean(answers: Tensor) -> Tensor:
        # Chosen, not multiplied by zero: what is not finite in one lane must not reach another.
        own = torch.where(there[:, :, None], answers[calls.place], 0)
        mean: Tensor = own.sum(1) / count.clamp(min=1)[:, None]
        return mean

    def one(algorithm: Algorithm, server: Any, turn: Turn, mean: Message) -> Any:
        return projected(study.problem, algorithm.phases()[number].merge(server, turn, **mean))

    turn = Turn(calls.t.to(count.dtype), count / len(study.problem.federation))
    return study.per_lane(one, server, turn, tree_map(mean, up))


def kept_by(memory: Pair | None, calls: Calls) -> Pair | None:
    """What the clients that are asked have kept."""
    if memory is None:
        return None
    return Pair(memory.x[calls.lane, calls.client], memory.y[calls.lane, calls.client])


def remember(memory: Pair, lane: Tensor, client: Tensor, values: Pair) -> None:
    """Put what clients keep into the memory of their lanes."""
    for old, new in zip(memory, values, strict=True):
        old[lane, client] = new


def which(flags: list[bool]) -> list[int]:
    return [number for number, on in enumerate(flags) if on]


def choose(lanes: Tensor, new: Any, old: Any) -> Any:
    """The new state in these lanes, the old one in the others."""

    def pick(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(lanes.reshape(-1, *[1] * (new.dim() - 1)), new, old)

    return tree_map(pick, new, old)


def points(server: Any) -> list[Pair]:
    """Each lane's z."""
    return [Pair(x, y) for x, y in zip(*server.z, strict=True)]
