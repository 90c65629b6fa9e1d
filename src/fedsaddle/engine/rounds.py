"""The round, written once for all algorithms: invite, wait for enough answers, merge.

A *lane* is one run: a seed and a setting of the hyperparameters. Many lanes go through a round together;
their server states are stacked, and all clients they ask form one flat list of visits. Lanes never touch:
each draws, waits, counts, abandons and diverges by itself.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedsaddle import draws
from fedsaddle.checks import REASONS, Checks, bounds, judge
from fedsaddle.core import Algorithm, Message, Pair, Remembers, Turn
from fedsaddle.engine.accounting import Postage, floats_down, floats_up, kinds_up
from fedsaddle.engine.cuts import Cut, varied
from fedsaddle.engine.graphs import Graphs
from fedsaddle.engine.loop import Loop
from fedsaddle.engine.memory import until_it_fits
from fedsaddle.engine.tapes import Tapes
from fedsaddle.engine.vectorised import Vectorised
from fedsaddle.engine.visits import Extent, Task, Visits, projected, untouched
from fedsaddle.errors import BadInput, Notice
from fedsaddle.faults import Faults
from fedsaddle.fleet import NEVER, Fleet, Quorum, Verdict, invite
from fedsaddle.history import Gathering, History, Told
from fedsaddle.merges import MEAN, Merge, clipped
from fedsaddle.problem import Federation, Problem, release

# What clients send `up` and `keep`, visit by visit. A way to ask that has lost some of the answers says only
# which it has `heard`, (visit,).
Ask = Callable[[Task, Extent, Visits], dict[str, Any]]
CPU = torch.device("cpu")
Refused = dict[tuple[int, int, int], str]  # (lane, phase, client): why its answer is refused, or LOST
LOST = "lost"
AHEAD = 256  # lanes' phases that are drawn for at once
Meeting = list[Gathering]  # one phase, lane by lane
NOBODY = Gathering([], [], [], {}, [], 0.0, Verdict.ABANDON, [])  # where a history has ended


@runtime_checkable
class Outspoken(Protocol):
    """A way to ask that may have something to say."""

    def news(self) -> str | None:
        """What a person should hear and has not yet been told."""


class Posted(NamedTuple):
    """One kind of message: where it went, in which phase."""

    direction: str  # down; up, an answer that was used; late or refused, one that was not
    phase: int


class Event(NamedTuple):
    """Something a person should hear about."""

    lane: int
    round: int
    what: str  # abandoned, diverged, dropped, lost (with a worker), or memory: less is used from here on
    detail: str


class Calls(NamedTuple):
    """Whom one phase asks. Visit v is client[v], asked by lane[v]."""

    lane: Tensor  # (visit,)
    client: Tensor  # (visit,)
    place: Tensor  # (lane, answer): where a lane's answers are among the visits
    answers: Tensor  # (lane,): how many it has; none for a lane that sits out
    t: Tensor  # (lane,): rounds completed before this one
    steps: Tensor  # (lane,)
    key: Tensor  # (lane,): what all draws of its clients come from
    corrupt: Tensor  # (visit,): whether its answer is spoilt


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
    merge: Merge = MEAN
    faults: Faults | None = None  # that are injected
    checks: Checks | None = None  # of answers; without them, what a client computes is taken as it is
    history: History | None = None  # if given, it decides who is invited and what becomes of the answers
    next_meetings: dict[Any, list[Meeting]] = field(default_factory=dict, init=False)
    drawn: dict[str, tuple[int, Tensor]] = field(default_factory=dict, init=False)  # see `ahead`

    def __post_init__(self) -> None:
        # A recording holds the hyperparameters and the merge of the study that it was made for.
        if self.graphs is not None:
            object.__setattr__(self, "graphs", self.graphs.fresh())

    @cached_property
    def federation(self) -> Federation:
        return self.problem.federation.to(self.device)

    def close(self) -> None:
        """Give back what it has opened: recordings, their memory and threads, and copies on a device.

        It can be used again; then it begins anew.
        """
        if self.graphs is not None:
            self.graphs.close()
        self.__dict__.pop("federation", None)
        release(self.device)
        self.next_meetings.clear()
        self.drawn.clear()

    @cached_property
    def lane_seeds(self) -> Tensor:
        return torch.tensor(self.seeds)

    @cached_property
    def kinds(self) -> list[dict[str, str]]:
        """What each name of an answer carries, phase by phase."""
        return [kinds_up(phase) for phase in self.algorithm.phases()]

    def task(self, number: int) -> Task:
        return Task(self.problem, self.federation, self.algorithm, number, self.batch)

    def per_lane(self, rule: Callable[..., Any], *stacked: Any) -> Any:
        """rule(algorithm, ...) for every lane, with the lane's own hyperparameters."""

        def one(hyper: dict[str, Tensor], *own: Any) -> Any:
            algorithm: Any = self.algorithm
            return rule(replace(algorithm, **hyper), *own)

        return torch.func.vmap(one)(self.hyper, *stacked)

    @cached_property
    def varied(self) -> list[bool]:
        """Whether the walks of each phase are of random lengths."""
        return [varied(phase) for phase in self.algorithm.phases()]

    @cached_property
    def postage(self) -> list[Postage]:
        """The floats of one message each way, phase by phase, read off one client's dry run."""
        lanes = begin(self, memory=False)
        blank = None
        if isinstance(self.algorithm, Remembers):  # one client's is enough
            blank = self.per_lane(lambda algorithm, z: algorithm.remember(z), lanes.server.z)
        only_first: list[list[int]] = [[0], *([] for _ in self.seeds[1:])]
        result = []
        for number, phase in enumerate(self.algorithm.phases()):
            calls, extent = calls_of(self, lanes.completed, 0, number, only_first)
            calls = calls._replace(steps=calls.steps.clamp(max=1))  # one step tells what an answer holds
            down = send(self, lanes.server, number)
            floats = floats_down(phase, down)
            kept = None if blank is None else Pair(blank.x[calls.lane], blank.y[calls.lane])
            visits = visits_of(self, down, calls, kept)
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
    strikes: list[Counter[int]] = field(default_factory=list)  # refused answers of each client


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
    none: list[Counter[int]] = [Counter() for _ in range(n)]
    return Lanes(server, held, [0] * n, [0.0] * n, [Counter() for _ in range(n)], [True] * n, none)


def play(
    study: Study, lanes: Lanes, round: int, history: list[Told] | None = None
) -> tuple[Lanes, list[Event]]:
    """One round of every lane that is alive. A lane that abandons it, or diverges in it, keeps its state.

    The clients' memory is changed in place: it is the one part too large to copy every round. What becomes
    of the invitations is added to `history`.
    """
    # Whether an answer is refused for what is in it shows when it is there, and whether it is lost with the
    # worker that computes it when it is not. Then the round is played again, knowing that: nothing that was
    # drawn or computed before that answer changes.
    refused: Refused = {}
    while True:
        after, events, told, more = attempt(study, lanes, round, refused)
        if not more:
            break
        refused |= more
    if history is not None:
        history += told
    return after, events


def attempt(
    study: Study, lanes: Lanes, round: int, refused: Refused
) -> tuple[Lanes, list[Event], list[Told], Refused]:
    """A round in which these answers are refused or lost, and which more are: then nothing has changed."""
    clock, posted = list(lanes.clock), [Counter(counts) for counts in lanes.posted]
    strikes = [Counter(counts) for counts in lanes.strikes]
    playing, events, told = list(lanes.alive), [], []

    # Who answers does not depend on what is computed, so all phases are settled before any is asked.
    meetings = meet(study, round, clock, lanes.strikes, refused)
    for number, (phase, meeting) in enumerate(zip(study.algorithm.phases(), meetings, strict=True)):
        for lane in which(playing):
            end = meeting[lane]
            name, seed = study.names[lane] if study.names else "", study.seeds[lane]
            if end is NOBODY:
                raise BadInput(
                    f"the history of {name} seed {seed} ends before round {round}, and nothing says why"
                )
            told.append(Told(name, seed, round, number, end))
            clock[lane] += end.seconds
            posted[lane][Posted("down", number)] += len(end.invited)
            posted[lane][Posted("up", number)] += len(end.used)
            posted[lane][Posted("late", number)] += len(end.late) + len(end.overdue)
            if end.refused or end.duplicate:
                posted[lane][Posted("refused", number)] += len(end.refused) + len(end.duplicate)
                strikes[lane].update(end.refused.keys())
            gone = sum(why is LOST and at[:2] == (lane, number) for at, why in refused.items())
            if gone:
                detail = f"{phase.name}: {gone} of {len(end.invited)} answers lost with a worker that died"
                events.append(Event(lane, round, "lost", detail))
            if end.verdict is Verdict.ABANDON:
                playing[lane] = False
                detail = f"{phase.name}: {end.answered} answers, the minimum is {study.quorum.minimum}"
                detail += f"; {len(end.refused)} refused" if end.refused else ""
                events.append(Event(lane, round, "abandoned", detail))

    server, finite = lanes.server, [True] * len(playing)
    before: list[tuple[Calls, Pair]] = []  # what the asked clients had kept, phase by phase
    judged: list[tuple[list[list[int]], Tensor]] = []
    if any(playing):
        for number, meeting in enumerate(meetings):
            # Sorted by client, so that the order of arrival does not move a bit of the mean.
            asked = [sorted(end.used) if on else [] for end, on in zip(meeting, playing, strict=True)]
            calls, extent = calls_of(study, lanes.completed, round, number, asked)
            kept = kept_by(lanes.memory, calls)
            after = exchange(study, number, extent, server, calls, kept)
            if "heard" in after:
                undo(lanes.memory, before)
                return lanes, [], [], losses(study, number, asked, after["heard"])
            server = after["server"]
            if "verdict" in after:
                judged.append((asked, after["verdict"]))
            if lanes.memory is not None and kept is not None and "keep" in after:
                before.append((calls, kept))
                remember(lanes.memory, calls.lane, calls.client, after["keep"])
        if isinstance(study.graphs, Graphs):
            meet(study, round + 1, clock, strikes)  # while the GPU is busy
        finite = after["finite"].tolist()  # the one moment of a round that waits for it
    more = refusals(judged)
    if more:
        undo(lanes.memory, before)
        return lanes, [], [], more
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
    news = study.ask.news() if isinstance(study.ask, Outspoken) else None
    if news is not None:
        events.append(Event(which(lanes.alive)[0], round, "memory", news))
    after_round = Lanes(
        server,
        lanes.memory,
        [t + ok for t, ok in zip(lanes.completed, done, strict=True)],
        clock,
        posted,
        [on and ok for on, ok in zip(lanes.alive, finite, strict=True)],
        strikes,
    )
    return after_round, events, told, {}


# --- the parts of a round -----------------------------------------------------------------------------


def gather(
    study: Study,
    round: int,
    number: int,
    clock: list[float],
    strikes: Sequence[Counter[int]] = (),
    refused: Refused | None = None,
) -> Meeting:
    """Whom each lane invites, and how its wait for their answers ends."""
    seeds, out = study.lane_seeds, barred(study, strikes)
    invited = invitations(study, round, number if study.cohorts == "another" else 0, out)
    delays = study.fleet.delays(seeds, round, number, invited, clock)
    twice: list[list[int]] = [[] for _ in study.seeds]
    why: list[dict[int, str]] = [{} for _ in study.seeds]
    if study.faults is not None:
        delays = study.faults.delays(seeds, round, number, invited, delays)
        twice = marked(invited, study.faults.duplicated(seeds, round, number, invited))
        if study.faults.seen is not None:
            bad = marked(invited, study.faults.corrupted(seeds[:, None], round, number, invited))
            why = [dict.fromkeys(own, study.faults.seen) for own in bad]
    for (lane, phase, client), reason in (refused or {}).items():
        if phase == number and reason is LOST:
            delays[lane][invited[lane] == client] = NEVER
        elif phase == number:
            why[lane][client] = reason
    meeting = []
    for lane, (own, waits) in enumerate(zip(invited.tolist(), delays.tolist(), strict=True)):
        if out and out[lane]:
            waits = [wait for client, wait in zip(own, waits, strict=True) if client not in out[lane]]
            own = [client for client in own if client not in out[lane]]
        end = study.quorum.settle(waits, [place for place, client in enumerate(own) if client in why[lane]])
        meeting.append(
            Gathering(
                own,
                [own[place] for place in end.accepted],
                [own[place] for place in end.late],
                {own[place]: why[lane][own[place]] for place in end.refused},
                [client for client, wait in zip(own, waits, strict=True) if wait == NEVER],
                end.seconds,
                end.verdict,
                [
                    client
                    for client, wait in zip(own, waits, strict=True)
                    if client in twice[lane] and wait < NEVER
                ],
                end.answered,
            )
        )
    return meeting


def invitations(study: Study, round: int, cohort: int, out: list[set[int]]) -> Tensor:
    """Whom each lane invites: drawn for some rounds at once, unless it depends on odds or on answers."""
    seeds, clients, count = study.lane_seeds, len(study.problem.federation), study.quorum.invite
    if out or study.weights is not None:
        return invite(seeds, round, cohort, clients, count, study.weights, out)
    drawn = ahead(
        study, "cohorts", round, lambda rounds, phases: invite(seeds, rounds, phases, clients, count)
    )
    return drawn[cohort]


def ahead(study: Study, what: str, round: int, draw: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What is drawn for a round, (phase, lane, ...): with those beside it, which costs no more than one."""
    phases = len(study.algorithm.phases())
    span = max(1, AHEAD // (len(study.seeds) * phases))
    first = round - round % span
    if study.drawn.get(what, (None,))[0] != first:
        rounds = torch.arange(first, first + span)[:, None, None]
        study.drawn[what] = first, draw(rounds, torch.arange(phases)[:, None])
    return study.drawn[what][1][round - first]


def marked(invited: Tensor, marks: Tensor) -> list[list[int]]:
    """The marked clients of each lane."""
    rows = zip(invited.tolist(), marks.tolist(), strict=True)
    return [[client for client, mark in zip(*row, strict=True) if mark] for row in rows]


def barred(study: Study, strikes: Sequence[Counter[int]]) -> list[set[int]]:
    """Whom each lane no longer invites; an empty list if nobody."""
    if study.checks is None or study.checks.strikes is None:
        return []
    found = [study.checks.barred(own) for own in strikes]
    if study.weights is not None and any(found):  # those with no odds must not come in for them
        idle = set((study.weights == 0).nonzero().flatten().tolist())
        found = [own | idle for own in found]
    return found if any(found) else []


def recorded(study: Study, history: History, round: int) -> list[Meeting]:
    """All phases of a round as they were. A lane that was no longer there meets nobody."""
    lanes = [history.round(name, seed, round) for name, seed in zip(study.names, study.seeds, strict=True)]
    phases = len(study.algorithm.phases())
    padded = [[*own, *[NOBODY] * (phases - len(own))] for own in lanes]
    return [[own[number] for own in padded] for number in range(phases)]


def meet(
    study: Study,
    round: int,
    clock: list[float],
    strikes: Sequence[Counter[int]] = (),
    refused: Refused | None = None,
) -> list[Meeting]:
    """All phases' gatherings of a round. The last one that was asked for is kept."""
    if study.history is not None:
        return recorded(study, study.history, round)
    counted = study.checks is not None and study.checks.strikes is not None
    against = tuple(tuple(sorted(own.items())) for own in strikes) if counted else ()
    when = (round, tuple(clock), against, tuple(refused or ()))
    if when not in study.next_meetings:
        study.next_meetings.clear()
        meetings, now = [], list(clock)
        so_far: list[Counter[int]] = [Counter(own) for own in strikes] or [Counter() for _ in study.seeds]
        for number in range(len(study.algorithm.phases())):
            meeting = gather(study, round, number, now, so_far, refused)
            meetings.append(meeting)
            now = [then + end.seconds for then, end in zip(now, meeting, strict=True)]
            for own, end in zip(so_far, meeting, strict=True):
                own.update(end.refused.keys())
        study.next_meetings[when] = meetings
    return study.next_meetings[when]


def losses(study: Study, number: int, asked: list[list[int]], heard: Tensor) -> Refused:
    """The answers that were not heard."""
    if study.history is not None:
        raise BadInput("a worker died, and a history cannot be played otherwise than it was; play it again")
    visits = [(lane, number, client) for lane, clients in enumerate(asked) for client in clients]
    return {visit: LOST for visit, there in zip(visits, heard.tolist(), strict=True) if not there}


def refusals(judged: list[tuple[list[list[int]], Tensor]]) -> Refused:
    """The answers that must be refused: of each lane, those of its first phase that has any.

    What came after such a phase was computed from its answers, and says nothing.
    """
    found: Refused = {}
    spoilt: set[int] = set()
    for number, (asked, verdicts) in enumerate(judged):
        visits = [(lane, client) for lane, clients in enumerate(asked) for client in clients]
        bad = {
            (lane, number, client): REASONS[code]
            for (lane, client), code in zip(visits, verdicts.tolist(), strict=True)
            if code and lane not in spoilt
        }
        found |= bad
        spoilt |= {lane for lane, _, _ in bad}
    return found


def calls_of(
    study: Study, completed: list[int], round: int, number: int, asked: list[list[int]]
) -> tuple[Calls, Extent]:
    """The flat list of the clients that each lane asks, and how far the computation must reach."""
    counts = [len(clients) for clients in asked]
    client = torch.tensor([number for clients in asked for number in clients])
    phase = study.algorithm.phases()[number]
    steps = [phase.steps(0.0)] * len(study.seeds)
    if study.varied[number]:
        chances = draws.uniform(draws.key(draws.STEPS, study.lane_seeds, round, number), 1)
        steps = [phase.steps(chance) for chance in chances.squeeze(-1).tolist()]

    walks = [own for own, count in zip(steps, counts, strict=True) if count]
    rows = int(study.problem.federation.sizes[client].max())
    extent = Extent(max(walks), rows, ragged=min(walks) < max(walks))

    def keys(rounds: Tensor, phases: Tensor) -> Tensor:
        return draws.key(draws.BATCHES, study.lane_seeds, rounds, phases)

    lane, place, answers = layout(tuple(counts), study.quorum.wanted)
    host = Calls(
        lane,
        client,
        place,
        answers,
        torch.tensor(completed),
        torch.tensor(steps),
        ahead(study, "keys", round, keys)[number],
        corrupted(study, round, number, lane, client),
    )
    if study.device.type == "cpu":
        return host, extent
    return Calls(*(values.to(study.device, non_blocking=True) for values in host)), extent


@lru_cache(maxsize=8)
def layout(counts: tuple[int, ...], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The lane of each visit, where each lane's answers are among the visits, and how many it has."""
    answers = torch.tensor(counts)
    first = answers.cumsum(0) - answers
    place = (first[:, None] + torch.arange(most)).clamp(max=sum(counts) - 1)
    return torch.repeat_interleave(answers), place, answers


def corrupted(study: Study, round: int, number: int, lane: Tensor, client: Tensor) -> Tensor:
    """Which visits' answers are spoilt."""
    if study.faults is None:
        return torch.zeros(len(client), dtype=torch.bool)
    return study.faults.corrupted(study.lane_seeds[lane], round, number, client)


def exchange(
    study: Study, number: int, extent: Extent, server: Any, calls: Calls, kept: Pair | None
) -> dict[str, Any]:
    """One phase: send, ask, merge. The `server` after it, and what clients `keep`.

    If answers are checked, the `verdict` on each; after the last phase, which lanes are `finite`.
    """
    vectorised, graphs, task = study.ask, study.graphs, study.task(number)

    def visits_in(inputs: dict[str, Any]) -> Visits:
        down = send(study, inputs["server"], number)
        return visits_of(study, down, inputs["calls"], inputs.get("kept"))

    def work(
        inputs: dict[str, Any],
        ask: Callable[[Visits], dict[str, Any]] = lambda visits: study.ask(task, extent, visits),
    ) -> dict[str, Any]:
        visits = visits_in(inputs)
        return conclude(study, number, inputs["server"], inputs["calls"], visits.by_lane["down"], ask(visits))

    inputs = {"server": server, "calls": calls} | ({} if kept is None else {"kept": kept})
    if graphs is None:
        if isinstance(vectorised, Vectorised):
            return vectorised.within_memory(lambda: work(inputs))
        return work(inputs)
    assert isinstance(vectorised, Vectorised)  # only that is recorded
    real, most = len(calls.lane), len(study.seeds) * study.quorum.wanted
    cut = Cut(vectorised, task, extent, study.varied[number], study.problem.federation.longest)

    def recorded() -> dict[str, Any]:
        if isinstance(graphs, Tapes):
            piece = vectorised.piece(task, cut.room, lambda: visits_in(inputs), most, graphs.workers)
            visits = -(-real // piece) * piece
        else:
            vectorised.measure(task, cut.room, lambda: visits_in(inputs))
            piece = max(8, most // 8)
            visits = min(most, -(-real // piece) * piece)
        own = inputs if visits == real else padded(inputs, visits)
        if isinstance(graphs, Tapes) and piece < visits:
            # Not what a whole phase of so many visits is.
            shape = ("pieces", number, cut.key, piece)
            asked = cut.work(lambda inputs: Visits(*inputs), lambda inputs, visits, answers: answers)
            return work(own, lambda visits: graphs.pieces(shape, asked, visits, piece))

        def end(inputs: dict[str, Any], visits: Visits, answers: dict[str, Any]) -> dict[str, Any]:
            down = visits.by_lane["down"]
            return conclude(study, number, inputs["server"], inputs["calls"], down, answers)

        found: dict[str, Any] = graphs((number, cut.key, visits), cut.work(visits_in, end), own)
        return found

    after = vectorised.within_memory(recorded, graphs.forget)
    if "verdict" in after:
        after["verdict"] = after["verdict"][:real]
    if "keep" in after:
        after["keep"] = Pair(after["keep"].x[:real], after["keep"].y[:real])
    return after


def conclude(
    study: Study, number: int, server: Any, calls: Calls, down: Message, answers: dict[str, Any]
) -> dict[str, Any]:
    """The end of a phase, when answers are there: spoil them, judge them, merge them."""
    if "heard" in answers:
        return {"heard": answers["heard"]}
    faults, checks, up = study.faults, study.checks, answers.pop("up")
    looked_at = faults is not None or checks is not None
    sent = tree_map(lambda values: values[calls.lane], down) if looked_at else {}
    if faults is not None and faults.seen is None:  # what is seen is refused, not used
        up = choose(calls.corrupt, faults.spoil(up, sent), up)
    if checks is not None and study.history is None:
        answers["verdict"] = judge(up, sent, bounds(checks.norm, study.kinds[number]))
    server = choose(calls.answers > 0, merge(study, server, number, calls, up), server)
    if number == len(study.algorithm.phases()) - 1:
        answers["finite"] = torch.isfinite(server.z.x).all(-1) & torch.isfinite(server.z.y).all(-1)
    return {"server": server, **answers}


def padded(inputs: dict[str, Any], visits: int) -> dict[str, Any]:
    """What a phase is given, with its last visit again and again until there are so many."""
    calls, kept = inputs["calls"], inputs.get("kept")
    place = torch.arange(visits, device=calls.lane.device).clamp(max=len(calls.lane) - 1)
    lane, client, corrupt = (values[place] for values in (calls.lane, calls.client, calls.corrupt))
    more = {} if kept is None else {"kept": Pair(kept.x[place], kept.y[place])}
    return {**inputs, "calls": calls._replace(lane=lane, client=client, corrupt=corrupt), **more}


def send(study: Study, server: Any, number: int) -> Message:
    """What each lane's server sends, stacked by lane."""
    message: Message = study.per_lane(lambda algorithm, s: algorithm.phases()[number].send(s), server)
    return message


def visits_of(study: Study, down: Message, calls: Calls, kept: Pair | None) -> Visits:
    """Who is asked, and all that is sent."""
    dtype = next(iter(down.values())).x.dtype
    by_lane = {"hyper": study.hyper, "down": down, "t": calls.t.to(dtype), "steps": calls.steps}
    key = draws.fold(calls.key[calls.lane], calls.client)
    return Visits(by_lane, calls.lane, calls.client, key, kept)


def merge(study: Study, server: Any, number: int, calls: Calls, up: Message) -> Any:
    """Every lane's server after it has merged its answers into one."""
    count = calls.answers.to(server.z.x.dtype)
    there = torch.arange(calls.place.shape[1], device=study.device) < calls.answers[:, None]

    def one(algorithm: Algorithm, server: Any, turn: Turn, merged: Message) -> Any:
        phase = algorithm.phases()[number]
        who = f"the merge of phase {phase.name} of {type(algorithm).__name__}"
        with untouched(who, server):
            after = projected(study.problem, phase.merge(server, turn, **merged))
        if looks(after) != looks(server):
            raise BadInput(f"{who} must give a server as it was: {looks(server)}, not {looks(after)}")
        return after

    turn = Turn(calls.t.to(count.dtype), count / len(study.problem.federation))
    clips = bounds(study.merge.clip, study.kinds[number])
    if clips:
        sent: Message = tree_map(lambda values: values[calls.lane], send(study, server, number))
        up = clipped(up, sent, clips)
    merged = tree_map(lambda answers: study.merge.rule(answers[calls.place], there), up)
    return study.per_lane(one, server, turn, merged)


def looks(state: Any) -> str:
    """Of what sizes and types a state is made."""
    leaves, structure = tree_flatten(state)
    kinds = [f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" for leaf in leaves]
    return str(tree_unflatten(kinds, structure))


def shelf_of(study: Study, blank: Pair) -> torch.device:
    """Where all clients' memory lies: beside a GPU, if it would take more there than a computation may."""
    if study.device.type == "cpu" or not isinstance(study.ask, Vectorised):
        return study.device
    needed = len(study.problem.federation) * sum(value.nbytes for value in blank)
    return CPU if needed > study.ask.limit(study.device) else study.device


def blank_memory(study: Study, blank: Pair) -> Pair:
    """What all clients hold before their first visit, (lane, client, value)."""
    shelf = shelf_of(study, blank)

    def shelved() -> Pair:
        clients = len(study.problem.federation)
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


def kept_by(memory: Pair | None, calls: Calls) -> Pair | None:
    """What the clients that are asked have kept."""
    if memory is None:
        return None
    lane, client = (where.to(memory.x.device) for where in (calls.lane, calls.client))
    return Pair(memory.x[lane, client], memory.y[lane, client]).to(calls.lane.device)


def remember(memory: Pair, lane: Tensor, client: Tensor, values: Pair) -> None:
    """Put what clients keep into the memory of their lanes."""
    for old, new in zip(memory, values, strict=True):
        old[lane.to(old.device), client.to(old.device)] = new.to(old.device)


def undo(memory: Pair | None, before: list[tuple[Calls, Pair]]) -> None:
    """Give clients back what they had kept."""
    for calls, kept in reversed(before):
        assert memory is not None
        remember(memory, calls.lane, calls.client, kept)


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
