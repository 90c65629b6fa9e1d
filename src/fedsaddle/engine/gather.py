"""Who is invited in a phase, and how the wait for their answers ends: drawn, or read from a history.

Nothing here depends on what clients compute, so all phases of a simulated round are settled before any is
computed. Real arrivals come from elsewhere (`flower.server`), by the same protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsaddle import draws
from fedsaddle.engine.partial import cut_short
from fedsaddle.engine.study import Lanes, Meeting, Study
from fedsaddle.fleet import NEVER, Verdict, invite
from fedsaddle.history import Gathering, History

LOST = "lost"
SEATS = 2  # of a cohort's key: what is drawn beside the cohort
Refusals = dict[tuple[int, int, int], str]  # (lane, phase, client): why its answer is refused, or LOST
SPAN = 256  # lanes' phases that are drawn for at once
NOBODY = Gathering([], [], [], {}, [], 0.0, Verdict.ABANDON, [])  # where a history has ended


class Arrivals(Protocol):
    """Where answers come from."""

    def known(
        self, study: Study, round: int, clock: list[float], strikes: Sequence[Counter[int]], refused: Refusals
    ) -> list[Meeting]:
        """The meetings of as many phases as can be told before anything is computed."""

    def wait(
        self, study: Study, lanes: Lanes, round: int, number: int, server: Any, playing: list[bool]
    ) -> Meeting:
        """The meeting of a phase that could not, for the lanes that are playing."""


class Simulated:
    """All meetings are known: drawn from the seeds, or read from a history."""

    def known(
        self, study: Study, round: int, clock: list[float], strikes: Sequence[Counter[int]], refused: Refusals
    ) -> list[Meeting]:
        return meet(study, round, clock, strikes, refused)

    def wait(
        self, study: Study, lanes: Lanes, round: int, number: int, server: Any, playing: list[bool]
    ) -> Meeting:
        raise AssertionError("nobody waits in a simulation")


def gather(
    study: Study,
    round: int,
    number: int,
    clock: list[float],
    strikes: Sequence[Counter[int]] = (),
    refused: Refusals | None = None,
    before: Meeting | None = None,
) -> Meeting:
    """Whom each lane invites, and how its wait for their answers ends.

    With the meeting `before`, of the first phase's cohort those whose answers were used in it.
    """
    seeds, out = study.lane_seeds, barred(study, strikes)
    invited = invitations(study, round, number, out)
    again = before is not None and getattr(study.fleet, "once_a_round", False)
    delays = study.fleet.delays(seeds, round, 0 if again else number, invited, clock)
    delays, cut = cut_short(study, round, number, invited, delays)
    twice: list[list[int]] = [[] for _ in study.seeds]
    why: list[dict[int, str]] = [{} for _ in study.seeds]
    if study.faults is not None:
        delays = study.faults.delays(seeds, round, number, invited, delays)
        twice = marked(invited, study.faults.duplicated(seeds, round, number, invited))
        if study.faults.seen is not None:
            spoilt = marked(invited, study.faults.corrupted(seeds[:, None], round, number, invited))
            why = [dict.fromkeys(own, study.faults.seen) for own in spoilt]
    for (lane, phase, client), reason in (refused or {}).items():
        if phase == number and reason == LOST:
            delays[lane][invited[lane] == client] = NEVER
        elif phase == number:
            why[lane][client] = reason

    def end_of(lane: int, row: tuple[list[int], list[float]]) -> Gathering:
        drawn, waits = row[0], dict(zip(*row, strict=True))  # by client, in the order of the invitations
        if out and out[lane]:
            waits = {client: wait for client, wait in waits.items() if client not in out[lane]}
        if before is not None:
            used = set(before[lane].used)
            drawn = [client for client in drawn if client in waits and client in used]
            drawn = drawn[: study.quorums[number].invite]
            waits = {client: waits[client] for client in drawn}
        end = settled(study, lane, round, number, waits, why[lane], twice[lane], cut[lane])
        if not study.quorum.replacement:
            return end
        often = Counter(drawn)
        return end._replace(times={client: often[client] for client in end.used if often[client] > 1})

    # Lanes of one seed meet alike at one moment; who is refused or no longer invited is a lane's own.
    met: dict[Hashable, Gathering] = {}
    alike: list[Hashable] = list(range(len(study.seeds)))
    if not (out or refused):
        earlier = [id(own) for own in before] if before else study.seeds
        alike = list(zip(study.seeds, clock, earlier, strict=True))
    for lane, row in enumerate(zip(invited.tolist(), delays.tolist(), strict=True)):
        if alike[lane] not in met:
            met[alike[lane]] = end_of(lane, row)
    return [met[own] for own in alike]


def settled(
    study: Study,
    lane: int,
    round: int,
    number: int,
    waits: dict[int, float],
    why: dict[int, str],
    twice: list[int],
    cut: dict[int, int],
) -> Gathering:
    """How one lane's wait for these clients ends; some answers are bad, doubled or of walks cut short."""
    own = list(waits)
    bad = [place for place, client in enumerate(own) if client in why]
    seats = seats_of(study, lane, round, number, own)
    end = study.quorums[number].settle(list(waits.values()), bad, strata_among(study, own), seats)
    return Gathering(
        own,
        [own[place] for place in end.accepted],
        [own[place] for place in end.late],
        {own[place]: why[own[place]] for place in end.refused},
        [client for client, wait in waits.items() if wait == NEVER],
        end.seconds,
        end.verdict,
        [client for client, wait in waits.items() if client in twice and wait < NEVER],
        end.answered,
        steps={own[at]: cut[own[at]] for at in end.accepted if own[at] in cut},
    )


def seats_of(study: Study, lane: int, round: int, number: int, cohort: list[int]) -> Counter[int] | None:
    """How many answers of each stratum a phase waits for, if it goes by that."""
    quorum = study.quorums[number]
    if study.strata is None or not quorum.stratified or not cohort:
        return None
    key = draws.fold(draws.key(draws.COHORT, study.lane_seeds[lane], round, number), SEATS)
    return quorum.seats(study.strata[cohort].tolist(), int(draws.words(key, 1)))


def strata_among(study: Study, cohort: list[int]) -> list[int]:
    """The strata of a cohort's clients; none, if there are none."""
    return [] if study.strata is None else study.strata[cohort].tolist()


def invitations(study: Study, round: int, number: int, out: list[set[int]]) -> Tensor:
    """Whom each lane invites: drawn for some rounds at once, unless it depends on odds or on answers.

    A smaller cohort is the beginning of a larger one that is drawn with the same key.
    """
    seeds, clients, strata = study.lane_seeds, len(study.problem.federation), study.strata
    again = study.quorum.replacement
    cohort = number if study.cohorts == "independent" else 0
    count = study.quorums[0 if study.cohorts == "answered" else number].invite
    if out or study.weights is not None:
        return invite(seeds, round, cohort, clients, count, study.weights, out, strata, again)

    def drawn(rounds: Tensor, phases: Tensor) -> Tensor:
        return invite(seeds, rounds, phases, clients, study.quorum.most, None, (), strata, again)

    return drawn_ahead(study, "cohorts", round, drawn)[cohort][:, :count]


def drawn_ahead(study: Study, what: str, round: int, draw: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """What is drawn for a round, (phase, lane, ...): with those beside it, which costs no more than one."""
    phases = len(study.phases)
    span = max(1, SPAN // (len(study.seeds) * phases))
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


def meetings_told(study: Study, history: History, round: int) -> list[Meeting]:
    """All phases of a round as they were. A lane that was no longer there meets nobody."""
    lanes = [history.round(name, seed, round) for name, seed in zip(study.names, study.seeds, strict=True)]
    phases = len(study.phases)
    padded = [[*own, *[NOBODY] * (phases - len(own))] for own in lanes]
    return [[own[number] for own in padded] for number in range(phases)]


def meet(
    study: Study,
    round: int,
    clock: list[float],
    strikes: Sequence[Counter[int]] = (),
    refused: Refusals | None = None,
) -> list[Meeting]:
    """All phases' gatherings of a round. The last one that was asked for is kept."""
    if study.history is not None:
        return meetings_told(study, study.history, round)
    counted = study.checks is not None and study.checks.strikes is not None
    against = tuple(tuple(sorted(own.items())) for own in strikes) if counted else ()
    when = (round, tuple(clock), against, tuple(refused or ()))
    if when not in study.next_meetings:
        study.next_meetings.clear()
        meetings: list[Meeting] = []
        now = list(clock)
        so_far: list[Counter[int]] = [Counter(own) for own in strikes] or [Counter() for _ in study.seeds]
        for number in range(len(study.phases)):
            before = meetings[-1] if meetings and study.cohorts == "answered" else None
            meeting = gather(study, round, number, now, so_far, refused, before)
            meetings.append(meeting)
            now = [then + end.seconds for then, end in zip(now, meeting, strict=True)]
            if study.cohorts != "answered":  # which invites nobody anew
                for own, end in zip(so_far, meeting, strict=True):
                    own.update(end.refused.keys())
        study.next_meetings[when] = meetings
    return study.next_meetings[when]
