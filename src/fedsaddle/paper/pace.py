"""How long what is left takes: by what has run in these folders, or else by what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedsaddle.border.slips import EVERYTHING
from fedsaddle.engine.machine import device_named
from fedsaddle.paper.exhibits import EXHIBITS
from fedsaddle.paper.forms import FULL, Form
from fedsaddle.paper.hall import Hall, hall_of
from fedsaddle.paper.trials import Trial
from fedsaddle.report.spent import spent_on

# Seconds of a command on one H200, over algorithms x seeds x rounds, evaluations included, by the pages of
# docs/results. Of all but auc-mnist other programs shared the card, so alone it takes no longer.
H200 = {
    "auc-mnist": 290 / (9 * 32 * 400),  # whole-commands.md
    "auc-cifar10": 298 / (9 * 5 * 400),  # auc-cifar10.md
    "robust-mnist": 228 / (9 * 5 * 400),  # robust.md
    "robust-fashion": 228 / (9 * 5 * 400),
    "gan-mnist": 240 / (2 * 2 * 400),  # gan-mnist.md: two algorithms at a time
}
# What stands in for what was not measured there.
LIKE = {"auc": "auc-mnist", "robust": "robust-mnist", "gan": "gan-mnist", "rates": "auc-mnist"}
# Two cores: guesses of full sizes, and what the quick form took.
TWO_CORES = {"auc": 0.25, "robust": 0.4, "gan": 5.0, "rates": 0.002}
DIGITS = {"auc": 0.006, "robust": 0.02, "gan": 0.1, "rates": 0.002}
OF_CENSUS = 0.006  # of the census and logistic regression, on two cores


class Outlook(NamedTuple):
    """How far an exhibit is, and how long what is left may take. Trials may be behind several exhibits."""

    name: str
    title: str
    done: int
    trials: int
    seconds: float  # that what is left will take, by what was measured
    here: bool  # whether all of that was measured on this form, in these folders


def usual(trial: Trial, form: Form, device: str) -> float:
    """Seconds a round of one lane of a trial, before anything has run here."""
    contest = trial.contest
    if form.stand_in:
        return DIGITS[contest.kind]
    if device == "cuda":
        return H200.get(contest.name, H200[LIKE[contest.kind]])
    return OF_CENSUS if contest.name == "auc-census" else TWO_CORES[contest.kind]


def estimates(out: Path, form: Form = FULL, device: str | None = None) -> list[Outlook]:
    """All exhibits, and at last all of them together."""
    hall = hall_of(form, out, out)
    far = device is not None and device.startswith("cuda")  # asked of a machine that need not have one
    return estimates_of(hall, "cuda" if far else device_named(device or "auto").type)


def estimates_of(hall: Hall, device: str) -> list[Outlook]:
    pace, found = _pace(hall), []
    for name in (*EXHIBITS, EVERYTHING):
        exhibits = EXHIBITS.values() if name == EVERYTHING else (EXHIBITS[name],)
        behind = {trial.name: trial for one in exhibits for trial in one.needed(hall.trials)}
        left = [trial for trial in behind.values() if not hall.finished(trial.name)]
        seconds = sum(
            one.lane_rounds * pace.get(one.contest.name, usual(one, hall.form, device)) for one in left
        )
        here = all(one.contest.name in pace for one in left)
        title = "everything" if name == EVERYTHING else EXHIBITS[name].title
        found.append(Outlook(name, title, len(behind) - len(left), len(behind), seconds, here))
    return found


def _pace(hall: Hall) -> Mapping[str, float]:
    """Seconds a round of one lane of each contest, from the trials that have come to their end here."""
    spent: dict[str, list[float]] = {}
    for name, trial in hall.trials.items():
        if run := hall.run(name):
            own = spent.setdefault(trial.contest.name, [0.0, 0.0])
            own[0] += spent_on(run).seconds
            own[1] += trial.lane_rounds
    return {name: seconds / rounds for name, (seconds, rounds) in spent.items()}
