"""The course of a run: rounds, with an evaluation now and then."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedsaddle.core import Pair
from fedsaddle.data import federated
from fedsaddle.engine.accounting import Content
from fedsaddle.engine.graphs import Graphs
from fedsaddle.engine.memory import out_of_memory, until_it_fits
from fedsaddle.engine.recording import Work
from fedsaddle.engine.rounds import Event, Lanes, Study, begin, play, points, which
from fedsaddle.errors import BadInput, Notice
from fedsaddle.history import Told
from fedsaddle.problem import Measured, floats

TOGETHER = 8  # lanes that a GPU evaluates at once
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


def traffic(study: Study, lanes: Lanes, lane: int) -> Counter[Flow]:
    """All floats a lane has sent so far, by direction, variable and kind."""
    floats: Counter[Flow] = Counter()
    for (direction, phase), messages in lanes.posted[lane].items():
        letter = study.postage[phase].down if direction == "down" else study.postage[phase].up
        for content, count in letter.items():
            floats[Flow(direction, content)] += messages * count
    return floats


def metrics_at(study: Study, lanes: Lanes, some: list[int]) -> dict[int, dict[str, float]]:
    """Where these lanes are. A GPU works on several together, and on all before it is asked for a number.

    If memory runs out, fewer rows are looked at together.
    """
    problem, graphs = study.problem, study.graphs

    def measured() -> dict[int, dict[str, float]]:
        if not isinstance(graphs, Graphs) or not isinstance(problem, Measured):
            everywhere = points(lanes.server)
            return {lane: numbers(problem.evaluate(everywhere[lane])) for lane in some}
        name = f"the evaluation of {type(problem).__name__}"
        work = Work(name, together(problem), before=lambda z: problem.measure(Pair(z.x[0], z.y[0])))
        size, found = min(TOGETHER, len(study.seeds)), []
        for at in range(0, len(some), size):
            part = [*some[at : at + size], *some[-1:] * size][:size]  # always so many, for one recording
            found.append(graphs("metrics", work, Pair(*(rows[part] for rows in lanes.server.z))))
        metrics = tree_map(lambda *parts: torch.cat(parts)[: len(some)], *found)
        return dict(zip(some, floats(metrics), strict=True))

    freed, rows = False, 0

    def shrink() -> None:
        nonlocal freed, rows
        if graphs is not None:
            graphs.forget()
        if freed:  # that alone was not enough
            rows = federated.fewer(study.device.type)
        freed = True

    found = until_it_fits(measured, shrink)
    if rows:
        told = f"memory ran out in an evaluation; from now on at most {rows} rows are looked at together"
        warnings.warn(told, Notice, stacklevel=2)
    return found


def together(problem: Measured) -> Callable[[Pair], dict[str, Tensor]]:
    """The metrics of some lanes, as one computation if PyTorch can map this one."""

    def measure(z: Pair) -> dict[str, Tensor]:
        try:
            found: dict[str, Tensor] = torch.func.vmap(problem.measure)(z)
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            why = str(error).splitlines()[0]
            told = f"the evaluation of {type(problem).__name__} goes lane by lane, which is slower: {why}"
            warnings.warn(told, Notice, stacklevel=2)
            lanes = [problem.measure(Pair(x, y)) for x, y in zip(*z, strict=True)]
            found = {name: torch.stack([metrics[name] for metrics in lanes]) for name in lanes[0]}
        return found

    return measure


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What a problem gives as metrics, as plain numbers."""
    if not metrics:
        raise BadInput("evaluate must give at least one metric")
    try:
        return {name: float(value) for name, value in metrics.items()}
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(f"evaluate must give a number for each metric, got {metrics}") from None


def evaluate(study: Study, lanes: Lanes, round: int) -> tuple[list[Row], list[Event]]:
    """Judge every lane that is alive; one whose metrics are not finite, or absurd, has diverged."""
    rows, events = [], []
    for lane, metrics in metrics_at(study, lanes, which(lanes.alive)).items():
        bad = [name for name, value in metrics.items() if not abs(value) < BEYOND]
        if bad:
            why = f"beyond {BEYOND:g}" if math.isfinite(metrics[bad[0]]) else "no longer finite"
            events.append(Event(lane, max(0, round - 1), "diverged", f"{bad[0]} is {why}"))
            continue
        floats = traffic(study, lanes, lane)
        up, down = (
            sum(count for flow, count in floats.items() if flow.direction == way) for way in ("up", "down")
        )
        rows.append(Row(lane, study.seeds[lane], round, up, down, lanes.clock[lane], metrics))
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
    if start is None:
        start = _judged(study, begin(study), 0, [])
        yield start
    study.postage  # noqa: B018  an algorithm whose messages do not fit is refused before the first round
    lanes = start.lanes
    for round in range(start.round, rounds):
        if not any(lanes.alive):
            return
        told: list[Told] = []
        lanes, events = play(study, lanes, round, told)
        events = [_with_last_metric(study, lanes, event) for event in events]
        if (round + 1) % every == 0 or round + 1 == rounds:
            stop = _judged(study, lanes, round + 1, events)
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
