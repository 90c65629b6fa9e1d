"""Runs that have died without a number that is not finite: found at an evaluation, and said once for a lane.

There are two signs:

    its scores have no spread     less than FLAT of what they had at the start: it tells no rows apart
    its updates have no length    less than STILL of its mean way a round from the start: it goes nowhere

A lane has collapsed if every metric that has a chance level is at it and one of them holds. A lane that has
converged stands still too, and one that has just begun is no better than chance: neither has collapsed.

Scores that have saturated may still rank rows as they did before, by their last digits: with an AUC of 0.95
such a lane is as dead. So above chance scores without spread are enough. They are looked at only where an
update is shorter than SLOW times that mean way, for a lane that has saturated slows down: a run that learns
pays for the length of an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsaddle.checks import norm
from fedsaddle.core import Pair
from fedsaddle.engine.allowed import projected
from fedsaddle.engine.study import Event, Lanes, Study
from fedsaddle.problem import Scored
from fedsaddle.steady import step_sizes

FLAT = 1e-2
STILL = 1e-3
SLOW = 0.5


def collapses(
    study: Study, before: Lanes, after: Lanes, found: Mapping[int, Mapping[str, float]], round: int
) -> list[Event]:
    """The lanes that are found collapsed at an evaluation, and were not before, given their metrics.

    `before` and `after` are the lanes around the last round. One that abandoned it is asked the next time.
    """
    guessed = {name: metric for name, metric in study.problem.metrics.items() if metric.chance is not None}
    events = []
    for lane, metrics in found.items():
        if not guessed or after.completed[lane] == before.completed[lane] or after.collapsed[lane]:
            continue
        lost = all(own.collapsed(metrics[name]) for name, own in guessed.items())
        why = _why(study, _point(before, lane), _point(after, lane), lane, after.completed[lane], lost)
        if why:
            name = next(iter(guessed))
            value = f"{name} is {metrics[name]:.4g}{', no better than chance' if lost else ''}"
            events.append(Event(lane, round - 1, "collapsed", f"{value}, and {why}: {_advice(study, lane)}"))
    return events


def _point(lanes: Lanes, lane: int) -> Pair:
    return Pair(*(values[lane] for values in lanes.server.z))


def _why(study: Study, before: Pair, now: Pair, lane: int, completed: int, lost: bool) -> str:
    """What is wrong with a lane, lost if it is no better than chance; nothing, if it may still learn."""
    if not (lost or isinstance(study.problem, Scored)):
        return ""
    start = projected(study.problem, study.problem.init(study.seeds[lane])).to(study.device)
    length, pace = float(norm(now - before)), float(norm(now - start)) / completed
    if isinstance(study.problem, Scored) and (lost or length < SLOW * pace):
        spread, once = study.problem.score_spread(now), study.problem.score_spread(start)
        if spread < FLAT * once:
            return f"its scores are all alike (their spread is {spread:.2g}, at the start {once:.2g})"
    if lost and length < STILL * pace:
        return f"its updates have no length left ({length:.2g}, on the way here {pace:.2g} a round)"
    return ""


def _advice(study: Study, lane: int) -> str:
    rule: Any = type(study.algorithm)
    steps = [f"{name} ({float(study.hyper[name][lane]):.4g})" for name in step_sizes(rule)]
    lower = f"lower {' and '.join(steps)}, or bound" if steps else "bound"
    return f"{lower} the steps by steady.clip"
