"""How large everything is: the paper's sizes, or a few minutes on two cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TASK_KINDS = ("auc", "robust", "gan")


@dataclass(frozen=True)
class Form:
    """Sizes, by the kind of task where kinds differ."""

    name: str
    budget: Mapping[str, int]  # settings of each algorithm that are tried
    halving: Mapping[str, int]  # one of so many is kept at each rung; 0 keeps all
    tuning_seeds: int
    seeds: Mapping[str, int]  # fresh ones, that the winners and the published settings are run with
    rounds: Mapping[str, int]  # by default, as the shipped experiments say
    evaluate_every: Mapping[str, int]
    panel_seeds: int
    spots: int | None  # of each panel, at most; without a number all
    stand_in: bool  # whether scikit-learn's digits stand for all data, with smaller networks


FULL = Form(
    name="full",
    budget={"auc": 24, "robust": 20, "gan": 9},
    halving={"auc": 0, "robust": 0, "gan": 3},
    tuning_seeds=2,
    seeds={"auc": 16, "robust": 16, "gan": 5},
    rounds={},
    evaluate_every={"auc": 20, "robust": 20, "gan": 20},
    panel_seeds=8,
    spots=None,
    stand_in=False,
)
QUICK = Form(
    name="quick",
    budget={"auc": 3, "robust": 3, "gan": 2},
    halving=dict.fromkeys(TASK_KINDS, 0),
    tuning_seeds=2,
    seeds={"auc": 5, "robust": 4, "gan": 3},
    rounds={"auc": 30, "robust": 12, "gan": 3},
    evaluate_every={"auc": 10, "robust": 6, "gan": 3},
    panel_seeds=3,
    spots=None,
    stand_in=True,
)


def in_little(tables: dict[str, Any], kind: str, positive: int) -> dict[str, Any]:
    """An experiment's tables on digits: 50 clients, of one digit but for nine. Steps and algorithms stay."""
    problem: dict[str, Any] = {"dataset": "digits", "clients": 50, "partition": "label"}
    if kind == "auc":
        problem |= {"name": "auc", "network": "mlp", "positive": positive}
    elif kind == "robust":
        problem |= {"name": "robust", "hidden": 32, "evaluate_rows": 300, "ascent_steps": 5, "restarts": 0}
        problem |= {"penalty": tables["problem"]["penalty"], "steps": 2}
    else:
        problem |= {"name": "gan", "network": "digits", "samples": 200, "objective": "non-saturating"}
    shorter = {"K": 5} if "K" in tables else {}
    return tables | {"problem": problem, "batch": 5} | shorter
