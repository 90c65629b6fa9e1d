"""What a round of an algorithm sends and waits for, and so how many rounds a budget buys.

The budgets of a task on a fleet are what a reference spends in the task's rounds: it invites S^ = 8 clients
in each of two phases, and they send d floats in each. Whoever sends less in a round invites as many more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from fedsaddle.board.published import Entrant
from fedsaddle.board.tasks import REFERENCE, BoardTask
from fedsaddle.border.schema import algorithm_of, variant
from fedsaddle.engine.course import postage
from fedsaddle.engine.executors.loop import Loop
from fedsaddle.fleet import Everybody, Fleet, Quorum
from fedsaddle.problem import Problem
from fedsaddle.simulate import make_study

BUDGETS = ("floats", "trips", "time")  # what is equal for all
TOLD_BUDGETS = {"floats": "equal floats", "trips": "equal round trips", "time": "equal simulated time"}
SPARE = 1.06  # rounds beyond what a budget should take: seeds differ
WATCHED = 400  # phases that a fleet is watched for


class Expected(NamedTuple):
    """What a fleet does with one phase, on average."""

    answers: float  # that are used
    seconds: float


def expected(fleet: Fleet, invited: int, clients: int) -> Expected:
    """The mean of some phases of the fleet itself."""
    seeds, quorum = torch.arange(WATCHED), Quorum(invite=invited)
    cohort = torch.arange(invited).expand(WATCHED, -1)
    # Clients of other numbers are other devices: each row meets its own.
    cohort = (cohort + torch.arange(WATCHED)[:, None] * invited) % clients
    delays = fleet.delays(seeds, 0, 0, cohort, [0.0] * WATCHED)
    settled = [quorum.settle(row) for row in delays.tolist()]
    answers, seconds = (
        sum(values) / WATCHED
        for values in zip(*((len(one.accepted), one.seconds) for one in settled), strict=True)
    )
    return Expected(answers, seconds)


class Round(NamedTuple):
    """What one client sends in a round in which it is asked in every phase, and how often it is asked."""

    phases: int
    floats: float


def round_of(problem: Problem, entrant: Entrant, setting: Mapping[str, Any], K: int | None) -> Round:
    """What the engine counts an answer by, phase by phase."""
    table = {"algorithm": entrant.algorithm, **setting}
    algorithm, _ = algorithm_of(entrant.label, table, K, {})
    study = make_study(problem, algorithm, quorum=Quorum(invite=1), fleet=Everybody(), executor=Loop())
    letters = postage(study)
    return Round(len(letters), sum(letter.up.total() for letter in letters))


class Terms(NamedTuple):
    """Under which terms an algorithm plays: whom it invites, for how many rounds, for which budgets."""

    invite: int
    rounds: int
    phases: int
    budgets: dict[str, float]  # floats up, round trips, simulated seconds


def terms_of(
    task: BoardTask, fleet: Mapping[str, Any], problem: Problem, entrant: Entrant, own: Round
) -> Terms:
    """As many floats a round as the reference has, and rounds until the largest budget is used up."""
    d, clients = sum(map(len, problem.init(0))), len(problem.federation)
    model: Fleet = variant("fleet", fleet).build()
    usual = expected(model, min(REFERENCE, clients), clients)
    invite = max(1, min(clients, round(REFERENCE * 2 * d / own.floats)))
    if entrant.ranges.everybody:
        invite = clients
    mine = expected(model, invite, clients)
    spent = {"floats": usual.answers * 2 * d, "trips": 2.0, "time": 2 * usual.seconds}
    each = {"floats": mine.answers * own.floats, "trips": own.phases, "time": own.phases * mine.seconds}
    needed = max(spent[kind] / each[kind] for kind in BUDGETS) * task.rounds * SPARE
    rounds = math.ceil(needed / task.every) * task.every
    return Terms(invite, rounds, own.phases, {kind: spent[kind] * task.rounds for kind in BUDGETS})
