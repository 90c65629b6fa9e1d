"""One round, of the simulator and of a deployment: gather, compute the phases, keep the books.

A lane that abandons a round, or diverges in it, keeps the state it had. The books (clock, messages, strikes)
do not forget what the round has cost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedsaddle.checks import REASONS
from fedsaddle.core import Pair
from fedsaddle.engine.gather import LOST, NOBODY, Arrivals, Refusals, Simulated
from fedsaddle.engine.kept import kept_by, remember, undo
from fedsaddle.engine.phase import calls_of, lane_where
from fedsaddle.engine.propensity import copied, count, weights_of
from fedsaddle.engine.study import Attendance, Calls, Event, Lanes, Lost, Meeting, PhaseInputs, Posted, Study
from fedsaddle.errors import BadInput
from fedsaddle.fleet import Verdict
from fedsaddle.history import Told


def play(
    study: Study,
    lanes: Lanes,
    round: int,
    history: list[Told] | None = None,
    arrivals: Arrivals | None = None,
) -> tuple[Lanes, list[Event]]:
    """One round of every lane that is alive. What becomes of the invitations is added to `history`.

    The clients' memory is changed in place.
    """
    # Whether an answer is refused for what is in it shows when it is there, and whether it is lost with the
    # worker that computes it when it is not. Then the round is played again, knowing that: nothing that was
    # drawn or computed before that answer changes.
    refused: Refusals = {}
    while True:
        ledger = Ledger.of(study, lanes, round)
        state = compute(study, lanes, ledger, arrivals or Simulated(), refused)
        more = state.lost or refusals(state.judged)
        if not more:
            break
        undo(lanes.memory, state.before)
        refused |= more
    after = settle(study, lanes, ledger, state)
    news = study.executor.news()
    if news is not None:
        ledger.events.append(Event(which(lanes.alive)[0], round, "memory", news))
    if history is not None:
        history += ledger.told
    return after, ledger.events


@dataclass
class Ledger:
    """What a round costs and what happens in it, lane by lane."""

    study: Study
    round: int
    clock: list[float]
    posted: list[Counter[Posted]]
    strikes: list[Counter[int]]
    playing: list[bool]  # lanes that have not abandoned the round
    attendance: Attendance | None  # of who is used, if answers are weighted by it
    events: list[Event] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    met: list[Meeting] = field(default_factory=list)  # phase by phase

    @staticmethod
    def of(study: Study, lanes: Lanes, round: int) -> Ledger:
        posted = [Counter(counts) for counts in lanes.posted]
        strikes = [Counter(counts) for counts in lanes.strikes]
        clock, alive, attendance = list(lanes.clock), list(lanes.alive), copied(lanes.attendance)
        return Ledger(study, round, clock, posted, strikes, alive, attendance)

    def enter(self, number: int, meeting: Meeting, refused: Refusals) -> None:
        """Count the messages and the time of one phase. A lane with too few answers abandons the round."""
        study, phase = self.study, self.study.phases[number].name
        self.met.append(meeting)
        for lane in which(self.playing):
            end, name, seed = meeting[lane], study.names[lane] if study.names else "", study.seeds[lane]
            if end is NOBODY:
                raise BadInput(
                    f"the history of {name} seed {seed} ends before round {self.round}, and nothing says why"
                )
            self.told.append(Told(name, seed, self.round, number, end))
            self.clock[lane] += end.seconds
            if self.attendance is not None:
                # Of clients that answered before, whoever was drawn then was to be used.
                first = self.met[0][lane] if number and study.cohorts == "answered" else end
                count(self.attendance, lane, number, [*first.invited, *first.away], end)
            posted = self.posted[lane]
            posted[Posted("down", number)] += len(end.invited)
            posted[Posted("up", number)] += len(end.used)
            posted[Posted("late", number)] += len(end.late) + len(end.overdue)
            if end.refused or end.duplicate:
                posted[Posted("refused", number)] += len(end.refused) + len(end.duplicate)
                self.strikes[lane].update(end.refused.keys())
            gone = sum(why == LOST and at[:2] == (lane, number) for at, why in refused.items())
            if gone:
                detail = f"{phase}: {gone} of {len(end.invited)} answers lost with a worker that died"
                self.events.append(Event(lane, self.round, "lost", detail))
            if end.verdict is Verdict.ABANDON:
                self.playing[lane] = False
                detail = f"{phase}: {end.answered} answers, the minimum is {study.quorum.minimum}"
                detail += f"; {len(end.refused)} refused" if end.refused else ""
                self.events.append(Event(lane, self.round, "abandoned", detail))


@dataclass
class Computed:
    """Where the phases of a round have led."""

    server: Any
    finite: list[bool]
    asked: set[int] = field(default_factory=set)  # lanes that something was computed for
    before: list[tuple[Calls, Pair]] = field(default_factory=list)  # what the asked clients had kept
    judged: list[tuple[list[list[int]], Tensor]] = field(default_factory=list)  # verdicts, phase by phase
    lost: Refusals = field(default_factory=dict)  # answers that were lost: the rest says nothing then


def compute(study: Study, lanes: Lanes, ledger: Ledger, arrivals: Arrivals, refused: Refusals) -> Computed:
    """All phases of a round in which these answers are refused or lost."""
    state, round = Computed(lanes.server, [True] * len(lanes.alive)), ledger.round
    meetings = arrivals.known(study, round, ledger.clock, lanes.strikes, refused)
    for number, meeting in enumerate(meetings):  # a lane that will abandon the round is not computed for
        ledger.enter(number, meeting, refused)
    for number in range(len(study.phases)):
        if number == len(meetings):
            meetings.append(arrivals.wait(study, lanes, round, number, state.server, ledger.playing))
            ledger.enter(number, meetings[number], refused)
        if not any(ledger.playing):
            break
        # Sorted by client, so that the order of arrival does not move a bit of the mean.
        asked = [
            sorted(end.used) if on else [] for end, on in zip(meetings[number], ledger.playing, strict=True)
        ]
        state.asked.update(which(ledger.playing))
        cut, times = ([getattr(end, what) for end in meetings[number]] for what in ("steps", "times"))
        calls, extent = calls_of(study, lanes.completed, round, number, asked, cut, times)
        if lanes.attendance is not None:
            weight = weights_of(lanes.attendance, number, asked, study.merge.most_weight)
            calls = calls._replace(weight=weight.to(study.device))
        kept = kept_by(lanes.memory, calls)
        result = study.executor.run(study, number, extent, PhaseInputs(state.server, calls, kept))
        if isinstance(result, Lost):
            state.lost = losses(study, number, asked, result.heard)
            break
        state.server = result.server
        if isinstance(result.verdict, Tensor):
            state.judged.append((asked, result.verdict))
        if lanes.memory is not None and isinstance(kept, Pair) and isinstance(result.keep, Pair):
            state.before.append((calls, kept))
            remember(lanes.memory, calls.lane, calls.client, result.keep)
        if isinstance(result.finite, Tensor):
            if study.device.type == "cuda":  # prefetched while the GPU is busy
                arrivals.known(study, round + 1, ledger.clock, ledger.strikes, {})
            state.finite = result.finite.tolist()  # the one moment of a round that waits for it
    return state


def settle(study: Study, lanes: Lanes, ledger: Ledger, state: Computed) -> Lanes:
    """Every lane after the round: those that did not complete it are where they were."""
    done = [on and ok for on, ok in zip(ledger.playing, state.finite, strict=True)]
    server = state.server
    for lane in which(ledger.playing):
        if not done[lane]:
            ledger.events.append(Event(lane, ledger.round, "diverged", "a parameter is no longer finite"))
    if state.asked - set(which(done)):
        completed = torch.tensor(done, device=study.device)
        server = lane_where(completed, server, lanes.server)
        # A client keeps what it computed only if its lane completed the round, so that c stays the mean of
        # all c_i.
        for calls, kept in reversed(state.before):
            failed = ~completed[calls.lane]
            assert lanes.memory is not None
            old = Pair(kept.x[failed], kept.y[failed])
            remember(lanes.memory, calls.lane[failed], calls.client[failed], old)
    return replace(
        lanes,
        server=server,
        completed=[t + ok for t, ok in zip(lanes.completed, done, strict=True)],
        clock=ledger.clock,
        posted=ledger.posted,
        alive=[on and ok for on, ok in zip(lanes.alive, state.finite, strict=True)],
        strikes=ledger.strikes,
        attendance=ledger.attendance,
    )


def losses(study: Study, number: int, asked: list[list[int]], heard: Tensor) -> Refusals:
    """The answers that were not heard."""
    if study.history is not None:
        raise BadInput("a worker died, and a history cannot be played otherwise than it was; play it again")
    visits = [(lane, number, client) for lane, clients in enumerate(asked) for client in clients]
    return {visit: LOST for visit, there in zip(visits, heard.tolist(), strict=True) if not there}


def refusals(judged: list[tuple[list[list[int]], Tensor]]) -> Refusals:
    """The answers that must be refused: of each lane, those of its first phase that has any.

    What came after such a phase was computed from its answers, and says nothing.
    """
    found: Refusals = {}
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


def which(flags: list[bool]) -> list[int]:
    return [number for number, on in enumerate(flags) if on]
