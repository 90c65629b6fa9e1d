"""What a trial runs: its experiment, with what the sweep before it has chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsaddle.errors import BadInput
from fedsaddle.paper.trials import Trial
from fedsaddle.report.reading import read_run
from fedsaddle.report.sweeps import Family, families_of, value_of


class NothingSurvived(BadInput):
    """All settings of the sweep before a trial lost all their seeds: there is nothing to run."""


def experiment_of_trial(trial: Trial, out: Path) -> dict[str, Any]:
    """The tables of a trial's experiment, with the winners of the sweep before it, if there is one."""
    if not trial.after:
        return trial.tables
    families = families_of(read_run(out / trial.after))
    own = trial.tables["algorithms"]
    winners = winners_by(trial.by, own, families) if trial.by else _winners(families)
    settings = {
        name: winners[name] | {key: table[key] for key in ("algorithm", "invite") if key in table}
        for name, table in own.items()
        if name in winners
    }
    if not settings:
        raise NothingSurvived(f"{out / trial.after}: of no algorithm a setting survived")
    return trial.tables | {"algorithms": settings}


def _winners(families: Sequence[Family]) -> dict[str, dict[str, Any]]:
    return {family.name: family.best.setting for family in families if family.best is not None}


def winners_by(
    key: str, entries: Mapping[str, Mapping[str, Any]], families: Sequence[Family]
) -> dict[str, dict[str, Any]]:
    """For each entry the best setting of its family with the same value, of as many as of any other value."""
    found: dict[str, dict[str, Any]] = {}
    for family in families:
        own = {name: one[key] for name, one in entries.items() if one["algorithm"] == family.name}
        of = {name: [one for one in family.tried if one.setting[key] == value] for name, value in own.items()}
        tries = min((len(some) for some in of.values() if some), default=0)
        for name, some in of.items():
            first = {one.label for one in sorted(some, key=lambda one: one.label)[:tries]}
            alive = [one for one in some if one.label in first and value_of(one, family.by) is not None]
            if alive:  # the best first
                found[name] = alive[0].setting
    return found
