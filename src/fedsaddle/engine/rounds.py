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
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedsaddle import draws
from fedsaddle.core import Algorithm, Message, Pair, Phase, Remembers, Turn
from fedsaddle.engine.accounting import Postage, floats_down, floats_up
from fedsaddle.engine.graphs import Graphs
from fedsaddle.engine.loop import Loop
from fedsaddle.engine.tapes import Tapes
from fedsaddle.engine.vectorised import Vectorised
from fedsaddle.engine.visits import Extent, Task, Visits, projected
from fedsaddle.fleet import Fleet, Quorum, Settled, Verdict, invite
from fedsaddle.problem import Federation, Problem

# What clients send `up` and `keep`, visit by visit. A way to ask that can lose some of the answers leaves
# those out, and says by `heard`, (visit,), which it has; of none at all there is no `up`.
Ask = Callable[[Task, Extent, Visits], dict[str, Any]]
CPU = torch.device("cpu")


@runtime_checkable
class Outspoken(Protocol):
    """A way to ask that may have something to say."""

    def news(self) -> str | None:
        """What a person should hear and has not yet been told."""


class Posted(NamedTuple):
    """One kind of message: where it went, in which phase."""

    direction: str  # down; up, an answer that was used; late, an answer that was not
    phase: int


class Event(NamedTuple):
    """Something a person should hear about."""

    lane: int
    round: int
    what: str  # abandoned, diverged, dropped, lost (with a worker), or memory: less is used from here on
    detail: str


class Meeting(NamedTuple):
    """One phase's cohort, lane by lane."""

    answering: list[list[int]]  # the clients whose answers are used
    settled: list[Settled]


class Ledger(NamedTuple):
    """What a round does to every lane, as far as its waiting for answers decides that."""

    clock: list[float]
    posted: list[Counter[Posted]]
    playing: list[bool]  # lanes that are alive and have not abandoned the round
    events: list[Event]


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
    starts = {seed: projected(study.problem, study.problem.init(seed)) for seed in set(study.seeds)}
    z: Pair = tree_map(
        lambda *rows: torch.stack(rows).to(study.device), *(starts[seed] for seed in study.seeds)
    )
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
    # Who answers does not depend on what is computed, so all phases are settled before any is asked.
    meetings = meet(study, round, lanes.clock)
    lost: Counter[tuple[int, int]] = Counter()  # answers that did not come after all, by phase and lane
    ledger = ledger_of(study, lanes, round, meetings, lost)
    begun = ledger.playing

    server, finite = lanes.server, [True] * len(begun)
    before: list[tuple[Calls, Pair]] = []  # what the asked clients had kept, phase by phase
    for number, meeting in enumerate(meetings):
        if not any(ledger.playing):
            break
        asked = [clients if on else [] for clients, on in zip(meeting.answering, ledger.playing, strict=True)]
        calls, extent = calls_of(study, lanes.completed, round, number, asked)
        kept = kept_by(lanes.memory, calls)
        after = exchange(study, number, extent, server, calls, kept)
        server = after["server"]
        if "heard" in after:
            lost.update((number, lane) for lane in calls.lane[~after["heard"]].tolist())
            ledger = ledger_of(study, lanes, round, meetings, lost)
            calls = heard_only(calls, after["heard"])
            kept = kept and Pair(*(values[after["heard"]] for values in kept))
        if lanes.memory is not None and kept is not None and "keep" in after:
            before.append((calls, kept))
            remember(lanes.memory, calls.lane, calls.client, after["keep"])
    if any(begun):
        if study.graphs is not None:
            meet(study, round + 1, ledger.clock)  # while the GPU is busy
        finite = after["finite"].tolist()  # the one moment of a round that waits for it
    clock, posted, playing, events = ledger
    done = [on and ok for on, ok in zip(playing, finite, strict=True)]
    if done != begun:
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
    news = study.ask.news() if isinstance(study.ask, Outspoken) else None
    if news is not None:
        events.append(Event(which(lanes.alive)[0], round, "memory", news))
    return Lanes(
        server,
        lanes.memory,
        [t + ok for t, ok in zip(lanes.completed, done, strict=True)],
        clock,
        posted,
        [on and (ok or not played) for on, ok, played in zip(lanes.alive, finite, playing, strict=True)],
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


def ledger_of(
    study: Study, lanes: Lanes, round: int, meetings: list[Meeting], lost: Counter[tuple[int, int]]
) -> Ledger:
    """How the waiting for answers ends in every phase, if some were lost with whoever computed them."""
    clock, posted = list(lanes.clock), [Counter(counts) for counts in lanes.posted]
    playing, events = list(lanes.alive), []
    for number, (phase, meeting) in enumerate(zip(study.algorithm.phases(), meetings, strict=True)):
        for lane in which(playing):
            end, gone = meeting.settled[lane], lost[number, lane]
            came = len(end.accepted) - gone
            goes_on = end.verdict is Verdict.GO and came >= study.quorum.minimum
            clock[lane] += end.seconds
            posted[lane][Posted("down", number)] += study.quorum.invite
            posted[lane][Posted("up", number)] += came if goes_on else 0
            posted[lane][Posted("late", number)] += len(end.late) + (0 if goes_on else came)
            if gone:
                detail = f"{phase.name}: {gone} of {len(end.accepted)} answers lost with a worker that died"
                events.append(Event(lane, round, "lost", detail))
            if not goes_on:
                playing[lane] = False
                answers = came if gone else end.answered
                detail = f"{phase.name}: {answers} answers, the minimum is {study.quorum.minimum}"
                events.append(Event(lane, round, "abandoned", detail))
    return Ledger(clock, posted, playing, events)


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

    answers = torch.tensor(counts)
    host = Calls(
        torch.repeat_interleave(answers),
        torch.tensor(client),
        places(answers, study.quorum.wanted),
        answers,
        torch.tensor(completed),
        torch.tensor(steps),
        torch.tensor(round),
    )
    calls: Calls = tree_map(lambda values: values.to(study.device, non_blocking=True), host)
    return calls, extent


def places(answers: Tensor, most: int) -> Tensor:
    """Where each lane's answers are among those of all lanes: (lane, answer)."""
    first = answers.cumsum(0) - answers
    place: Tensor = first[:, None] + torch.arange(most, device=answers.device)
    return place.clamp(max=max(0, int(answers.sum()) - 1))


def heard_only(calls: Calls, heard: Tensor) -> Calls:
    """The same without the visits whose answers were lost."""
    lane = calls.lane[heard]
    answers = torch.bincount(lane, minlength=len(calls.answers))
    place = places(answers, calls.place.shape[1])
    return calls._replace(lane=lane, client=calls.client[heard], place=place, answers=answers)


def exchange(
    study: Study, number: int, extent: Extent, server: Any, calls: Calls, kept: Pair | None
) -> dict[str, Any]:
    """One phase: send, ask, merge. The `server` after it, which lanes are `finite`, what clients `keep`.

    Where answers can be lost, also which were `heard`: a lane with fewer than the minimum does not merge.
    """

    vectorised, graphs, task = study.ask, study.graphs, study.task(number)

    def visits_in(inputs: dict[str, Any]) -> Visits:
        down = send(study, inputs["server"], number)
        return visits_of(study, number, down, inputs["calls"], inputs.get("kept"))

    def ask(visits: Visits) -> dict[str, Any]:
        return study.ask(task, extent, visits)

    def work(inputs: dict[str, Any], ask: Callable[[Visits], dict[str, Any]] = ask) -> dict[str, Any]:
        server, calls, answers = inputs["server"], inputs["calls"], ask(visits_in(inputs))
        if "heard" in answers:
            calls = heard_only(calls, answers["heard"])
        if "up" in answers:
            merged = merge(study, server, number, calls, answers.pop("up"))
            server = choose(calls.answers >= study.quorum.minimum, merged, server)
        finite = torch.isfinite(server.z.x).all(-1) & torch.isfinite(server.z.y).all(-1)
        return {"server": server, "finite": finite, **answers}

    inputs = {"server": server, "calls": calls} | ({} if kept is None else {"kept": kept})
    if graphs is None:
        if isinstance(vectorised, Vectorised):
            return vectorised.within_memory(lambda: work(inputs))
        return work(inputs)
    assert isinstance(vectorised, Vectorised)  # only that is recorded
    real, most = len(calls.lane), len(study.seeds) * study.quorum.wanted
    extent = roomy(study.algorithm.phases()[number], extent, study.problem.federation.longest)

    def recorded() -> dict[str, Any]:
        piece = max(8, most // 16)
        if isinstance(graphs, Tapes):
            piece = vectorised.piece(task, extent, lambda: visits_in(inputs), most, graphs.workers)
        visits = -(-real // piece) * piece
        visits = visits if isinstance(graphs, Tapes) else min(most, visits)
        pad = torch.arange(visits, device=study.device).clamp(max=real - 1)  # the last visit again and again
        own = {**inputs, "calls": calls._replace(lane=calls.lane[pad], client=calls.client[pad])}
        if kept is not None:
            own["kept"] = Pair(kept.x[pad], kept.y[pad])
        if isinstance(graphs, Tapes) and piece < visits:
            shape = (number, extent, piece)
            return work(own, lambda visits: graphs.pieces(shape, ask, visits, piece))
        found: dict[str, Any] = graphs((number, extent, visits), work, own)
        return found

    after = vectorised.within_memory(recorded, graphs.forget)
    if "keep" in after:
        after["keep"] = Pair(after["keep"].x[:real], after["keep"].y[:real])
    return after


def roomy(phase: Phase, extent: Extent, longest: int) -> Extent:
    """A little more room than needed, so that few different shapes have to be recorded."""
    varied = phase.steps(0.0) != phase.steps(1 - 2.0**-53)
    steps = rounded_up(extent.steps) if varied else extent.steps
    return Extent(steps, min(rounded_up(extent.rows), longest), ragged=varied)


def rounded_up(count: int) -> int:
    """To three binary digits: 9 becomes 10, 100 becomes 112."""
    unit = 1 << max(0, count.bit_length() - 3)
    return -(-count // unit) * unit


def send(study: Study, server: Any, number: int) -> Message:
    """What each lane's server sends, stacked by lane."""
    message: Message = study.per_lane(lambda algorithm, s: algorithm.phases()[number].send(s), server)
    return message


def visits_of(study: Study, number: int, down: Message, calls: Calls, kept: Pair | None) -> Visits:
    """Who is asked, and all that is sent."""
    dtype = next(iter(down.values())).x.dtype
    by_lane = {"hyper": study.hyper, "down": down, "t": calls.t.to(dtype), "steps": calls.steps}
    seeds = study.lane_seeds[calls.lane]
    key = draws.key(draws.BATCHES, seeds, calls.round, number, calls.client)
    return Visits(by_lane, calls.lane, calls.client, key, kept)


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
