"""The course of a run: rounds, with an evaluation now and then."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fedsaddle.core import Pair, Remembers
from fedsaddle.data import federated
from fedsaddle.engine.accounting import Content, Postage, floats_down, floats_up
from fedsaddle.engine.collapse import collapses
from fedsaddle.engine.executors.loop import Loop
from fedsaddle.engine.memory import until_it_fits
from fedsaddle.engine.phase import calls_of, send, visits_of
from fedsaddle.engine.round import play, which
from fedsaddle.engine.study import Event, Lanes, Study, begin
from fedsaddle.errors import Notice
from fedsaddle.history import Told
from fedsaddle.metric import check_declared
from fedsaddle.mishaps import told_if_theirs
from fedsaddle.problem import name_of

BEYOND = 1e150  # a metric of a lane that has diverged: its square is no number


@dataclass(frozen=True)
class Row:
    """One lane at one evaluation."""

    lane: int
    seed: int
    round: int  # rounds played so far
    floats_up: int  # of answers that were used
    floats_down: int
    time_simulated: float
    metrics: dict[str, float]
    traffic: Mapping[Flow, int] = field(default_factory=dict, repr=False)  # all floats sent so far


class Stop(NamedTuple):
    """Where all lanes are after some rounds, and what has happened since the stop before."""

    round: int  # rounds played so far
    lanes: Lanes
    rows: list[Row]
    events: list[Event]
    history: Sequence[Told] = ()  # of the last round


Prune = Callable[[Stop], list[Event]]  # whom to give up at an evaluation, and why


class Flow(NamedTuple):
    direction: str  # up (answers that were used), late or refused (answers that were not) or down
    content: Content


_POSTAGE: weakref.WeakKeyDictionary[Study, list[Postage]] = weakref.WeakKeyDictionary()


def postage(study: Study) -> list[Postage]:
    """The floats of one message each way, phase by phase, read off one client's dry run."""
    if study not in _POSTAGE:
        _POSTAGE[study] = _weighed(study)
    return _POSTAGE[study]


def _weighed(study: Study) -> list[Postage]:
    lanes = begin(study, memory=False)
    blank = None
    if isinstance(study.algorithm, Remembers):  # one client's is enough
        blank = study.per_lane(lambda algorithm, z: algorithm.remember(z), lanes.server.z)
    only_first: list[list[int]] = [[0], *([] for _ in study.seeds[1:])]
    result = []
    for number, phase in enumerate(study.phases):
        calls, extent = calls_of(study, lanes.completed, 0, number, only_first)
        calls = calls._replace(steps=calls.steps.clamp(max=1))  # one step tells what an answer holds
        down = send(study, lanes.server, number)
        floats = floats_down(phase, down)
        kept = None if blank is None else Pair(blank.x[calls.lane], blank.y[calls.lane])
        up = Loop().answers(study.task(number), extent, visits_of(study, down, calls, kept)).up
        result.append(Postage(floats, floats_up(phase, up)))
    return result


def traffic(study: Study, lanes: Lanes, lane: int) -> Counter[Flow]:
    """All floats a lane has sent so far, by direction, variable and kind."""
    floats: Counter[Flow] = Counter()
    for (direction, phase), messages in lanes.posted[lane].items():
        letter = postage(study)[phase].down if direction == "down" else postage(study)[phase].up
        for content, count in letter.items():
            floats[Flow(direction, content)] += messages * count
    return floats


def metrics_at(study: Study, lanes: Lanes, some: list[int]) -> dict[int, dict[str, float]]:
    """Where these lanes are. If memory runs out, fewer rows are looked at together."""
    freed, rows = False, 0

    def measured() -> list[dict[str, float]]:
        return study.executor.measure(study, Pair(*(values[some] for values in lanes.server.z)))

    def shrink() -> None:
        nonlocal freed, rows
        study.executor.release(study)
        if freed:  # that alone was not enough
            rows = federated.fewer(study.device.type)
        freed = True

    found = until_it_fits(measured, shrink)
    if rows:
        told = f"memory ran out in an evaluation; from now on at most {rows} rows are looked at together"
        warnings.warn(told, Notice, stacklevel=2)
    return dict(zip(some, found, strict=True))


def evaluate(study: Study, lanes: Lanes, round: int) -> tuple[list[Row], list[Event]]:
    """Judge every lane that is alive; one whose metrics are not finite, or absurd, has diverged."""
    rows, events = [], []
    for lane, metrics in metrics_at(study, lanes, which(lanes.alive)).items():
        check_declared(study.problem, metrics)
        bad = [name for name, value in metrics.items() if not abs(value) < BEYOND]
        if bad:
            why = f"beyond {BEYOND:g}" if math.isfinite(metrics[bad[0]]) else "no longer finite"
            events.append(Event(lane, max(0, round - 1), "diverged", f"{bad[0]} is {why}"))
            continue
        floats = traffic(study, lanes, lane)
        up, down = (
            sum(count for flow, count in floats.items() if flow.direction == way) for way in ("up", "down")
        )
        rows.append(Row(lane, study.seeds[lane], round, up, down, lanes.clock[lane], metrics, floats))
    return rows, events


# One round, simulated or real; what became of the invitations is added to the history.
Play = Callable[[Study, Lanes, int, list[Told]], tuple[Lanes, list[Event]]]


def course(
    study: Study,
    rounds: int,
    every: int,
    start: Stop | None = None,
    prune: Prune | None = None,
    play: Play = play,
) -> Iterator[Stop]:
    """Stop after every round, having evaluated at the beginning, every `every` rounds and at the end.

    The course ends early when no lane is alive any more. Given a `start`, it goes on from there. `prune` sees
    every evaluation but the last; since nothing else tells it, a resumed course gives up the same lanes.
    """
    who = f"{name_of(study.problem)} with {type(study.algorithm).__name__}"
    if start is None:
        with told_if_theirs(who):
            start = _judged(study, begin(study), 0, [])
        yield start
    with told_if_theirs(who):
        postage(study)  # an algorithm whose messages do not fit is refused before the first round
    lanes = start.lanes
    for round in range(start.round, rounds):
        if not any(lanes.alive):
            return
        told: list[Told] = []
        before = lanes
        with told_if_theirs(who):
            lanes, events = play(study, before, round, told)
            events = [_with_last_metric(study, lanes, event) for event in events]
        if (round + 1) % every == 0 or round + 1 == rounds:
            with told_if_theirs(who):
                stop = _looked_at(study, before, _judged(study, lanes, round + 1, events))
            if prune is not None and round + 1 < rounds:
                dropped = prune(stop)
                stop = stop._replace(lanes=_without(stop.lanes, dropped), events=[*stop.events, *dropped])
            lanes = stop.lanes
            yield stop._replace(history=told)
        else:
            yield Stop(round + 1, lanes, [], events, told)


def _judged(study: Study, lanes: Lanes, round: int, events: list[Event]) -> Stop:
    rows, diverged = evaluate(study, lanes, round)
    return Stop(round, _without(lanes, diverged), rows, [*events, *diverged])


def _looked_at(study: Study, before: Lanes, stop: Stop) -> Stop:
    """An evaluation with what has collapsed. Such lanes go on: who watches decides."""
    metrics = {row.lane: row.metrics for row in stop.rows}
    fallen = collapses(study, before, stop.lanes, metrics, stop.round)
    if not fallen:
        return stop
    ended = {event.lane for event in fallen}
    known = [was or lane in ended for lane, was in enumerate(stop.lanes.collapsed)]
    return stop._replace(lanes=replace(stop.lanes, collapsed=known), events=[*stop.events, *fallen])


def _without(lanes: Lanes, ends: list[Event]) -> Lanes:
    ended = {event.lane for event in ends}
    return replace(lanes, alive=[on and lane not in ended for lane, on in enumerate(lanes.alive)])


def _with_last_metric(study: Study, lanes: Lanes, event: Event) -> Event:
    """A lane that diverges keeps its last finite state: say how good that was."""
    if event.what != "diverged":
        return event
    metrics = metrics_at(study, lanes, [event.lane])[event.lane]
    name, value = next(iter(metrics.items()))
    return event._replace(detail=f"{event.detail}; before this round {name} was {value:.4g}")
