"""A sweep: the settings of every algorithm, as many in a study as share their counts and fit into memory.

Which settings, and which of them are given up on the way, is `fedsaddle.sweep`'s to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, Unpack

import torch
from torch.utils._pytree import tree_leaves

from fedsaddle.border import slips
from fedsaddle.border.build import Bench, Wanted, algorithms_named, bench_of, bounds_in, notes_on_effect
from fedsaddle.border.schema import Beside, Sweep, algorithm_of, check_label, complete, rule_named, sweep_of
from fedsaddle.engine.course import Prune
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.study import Study, begin
from fedsaddle.errors import BadInput, unknown
from fedsaddle.metric import check_declared
from fedsaddle.problem import Problem
from fedsaddle.runs import Plan
from fedsaddle.simulate import Hyperparameter, hyperparameters
from fedsaddle.steady import BOUNDS
from fedsaddle.sweep import MOST_LANES, Halving, check_grid, labels, number_of, rungs, settings


def load_sweep(
    experiment: str,
    *,
    by: str | None = None,
    budget: int | None = None,
    halving: int | None = None,
    **wanted: Unpack[Wanted],
) -> Plan:
    """A checked sweep: every setting of every algorithm under its own name, as many in a study as can be."""
    bench = bench_of(experiment, wanted)
    slips.check_has_grid(bench.checked.sweep)
    own = {"by": by, "budget": budget, "halving": halving}
    sweep = sweep_of(bench.checked.sweep | {key: value for key, value in own.items() if value is not None})
    families, steady = _families(bench, sweep, wanted), bounds_in(bench)
    made = {
        name: {label: algorithm_of(label, table, bench.checked.K, steady) for label, table in family.items()}
        for name, family in families.items()
    }
    studies = studies_of(bench, made)
    metric, by_test = chosen_by(bench, sweep, asked=by is not None)
    prunes = prunes_of(studies, metric, sweep.halving, bench.checked.rounds, bench.checked.evaluate_every)
    resolved = bench.resolved({label: own for family in families.values() for label, own in family.items()})
    notes = notes_on_effect(bench, studies, families)
    if resolved["history"]:  # of thousands of lanes nobody reads one
        resolved["history"] = False
        notes.append("history = true has no effect: a sweep writes none")
    resolved["sweep"] = resolved_sweep(sweep, families, metric, by_test)
    notes += smaller_than_budget(families, sweep.budget)
    checked = bench.checked
    return Plan(
        resolved, studies, checked.rounds, checked.evaluate_every, metric, prunes, tuple(notes), complete
    )


def resolved_sweep(
    sweep: Sweep, families: Mapping[str, Mapping[str, Any]], metric: str, by_test: bool
) -> dict[str, Any]:
    """What a run folder says of a sweep."""
    return {
        "by": metric,
        "by_test": by_test,
        "budget": sweep.budget,
        "halving": sweep.halving,
        "seed": sweep.seed,
        "settings": {name: list(family) for name, family in families.items()},
    }


def smaller_than_budget(families: Mapping[str, Mapping[str, Any]], budget: int) -> list[str]:
    return [
        f"{name} has {len(family)} settings, fewer than the budget of {budget}"
        for name, family in families.items()
        if len(family) < budget
    ]


def _families(bench: Bench, sweep: Sweep, wanted: Wanted) -> dict[str, dict[str, dict[str, Any]]]:
    """The tables of the settings of each algorithm, by their names."""
    tables = bench.checked.algorithms
    known = sweep.settings or tables
    chosen = algorithms_named(wanted, known)
    drawn = [label for name in chosen for label in sweep.settings.get(name, [])]
    for names, among in ((sweep.grid, known), (drawn, tables)):
        for name in names:
            if name not in among:
                raise unknown("algorithm in this experiment", name, among)
    if drawn:
        return {name: {label: tables[label] for label in sweep.settings[name]} for name in chosen}
    return {name: _expanded(name, tables[name], sweep, bench.checked.name) for name in chosen}


def _expanded(name: str, table: dict[str, Any], sweep: Sweep, experiment: str) -> dict[str, dict[str, Any]]:
    """The settings that an algorithm tries."""
    rule = table.get("algorithm", name)
    entry = rule_named(rule)
    known = {key: field for key, field in swept(entry.rule).items() if key not in entry.fixed}
    choices = check_grid(f"sweep.grid.{name}", sweep.grid.get(name, {}), known)
    found = settings(choices, sweep.budget, sweep.seed, number_of(f"{experiment}/{name}"))
    called = labels(name, len(found))
    for label in called:
        check_label(label)
    base = {"algorithm": rule, **table}
    return {label: {**base, **values} for label, values in zip(called, found, strict=True)}


def swept(rule: type[Any]) -> dict[str, Hyperparameter]:
    """What a grid may name: the hyperparameters of an algorithm, and how long its steps may be."""
    bounds = {name: Hyperparameter(name, name == "warmup", None) for name in BOUNDS}
    return hyperparameters(rule) | bounds


# --- studies, of a file or of values ---------------------------------------------------------------------


Setting = tuple[Any, Beside]  # an algorithm, and what is said beside its hyperparameters


class Maker(Protocol):
    """Makes studies that differ in their algorithms alone. A dataclass, so that its seeds can be others."""

    @property
    def problem(self) -> Problem: ...
    @property
    def seeds(self) -> list[int]: ...
    @property
    def device(self) -> str: ...
    @property
    def memory(self) -> int | None: ...
    def study(self, settings: Mapping[str, Setting]) -> Study: ...


def studies_of(maker: Maker, families: Mapping[str, Mapping[str, Setting]]) -> dict[str, Study]:
    """All settings of a sweep, as many in a study as can be."""
    lanes = len(maker.seeds) * sum(len(family) for family in families.values())
    if lanes > MOST_LANES:
        raise BadInput(
            f"this sweep would run {lanes} lanes (settings times seeds), at most {MOST_LANES} are "
            "allowed: lower budget or seeds"
        )
    studies: dict[str, Study] = {}
    for name, family in families.items():
        studies |= _grouped(maker, name, family)
    return studies


def prunes_of(
    studies: Mapping[str, Study], metric: str, halving: int, rounds: int, every: int
) -> dict[str, Prune]:
    """Who gives up settings on the way, in a sweep that halves."""
    prunes: dict[str, Prune] = {}
    for key, study in studies.items() if halving else ():
        keep = rungs(len(set(study.names)), halving, rounds, every)
        prunes[key] = Halving(metric, study.problem.metrics[metric], study.names, keep)
    return prunes


def chosen_by(maker: Maker, sweep: Sweep, asked: bool, say: str = "--by {}") -> tuple[str, bool]:
    """The metric that settings are chosen by, and whether it looks at test rows: only if it was asked for."""
    problem = maker.problem
    check_declared(problem, problem.evaluate(problem.init(maker.seeds[0]).to(maker.device)))
    metrics = list(problem.metrics)
    able = [name for name in metrics if problem.metrics[name].ranks]
    blind = [name for name in able if problem.metrics[name].rows != "test"]
    if not able:
        raise BadInput(f"no metric says which setting is better; {', '.join(metrics)} are values of the game")
    if sweep.by is None:
        if not blind:
            raise BadInput(f"every metric looks at test rows; if you mean it, say {say.format(able[0])}")
        return blind[0], False
    if sweep.by not in metrics:
        raise unknown("metric in sweep.by", sweep.by, metrics)
    if sweep.by not in able:
        raise BadInput(
            f"sweep.by is {sweep.by}, a value of the game that is better neither high nor low: choose one of "
            f"{', '.join(able)}"
        )
    if sweep.by in blind:
        return sweep.by, False
    if not asked and not sweep.by_test:
        raise BadInput(
            f"sweep.by is {sweep.by}, which looks at test rows: choose one of {', '.join(blind)}; or, if you "
            f"mean it, say {say.format(sweep.by)}"
        )
    return sweep.by, True


def _grouped(maker: Maker, name: str, family: Mapping[str, Setting]) -> dict[str, Study]:
    """The studies of one algorithm: settings that differ in counts, or fill the memory, are apart."""
    groups: dict[tuple[Any, ...], dict[str, Setting]] = {}
    counts: list[str] = []
    for label, (algorithm, beside) in family.items():
        known = hyperparameters(type(algorithm))
        counts = [key for key, field in known.items() if field.static]
        shape = (type(algorithm), *beside, *(getattr(algorithm, key) for key in counts))
        groups.setdefault(shape, {})[label] = (algorithm, beside)
    varied = [place for place, values in enumerate(zip(*groups, strict=True)) if len(set(values)) > 1]
    studies: dict[str, Study] = {}
    for shape, group in groups.items():
        told = "".join(f", {('rule', *Beside._fields, *counts)[place]} {shape[place]}" for place in varied)
        at_once = _settings_at_once(maker, group)
        for first in range(0, len(group), at_once):
            part = dict(list(group.items())[first : first + at_once])
            place = f", from {first + 1}" if len(group) > at_once else ""
            plural = "" if len(part) == 1 else "s"
            studies[f"{name} ({len(part)} setting{plural}{told}{place})"] = maker.study(part)
    return studies


COPIES = 4  # of what a lane holds: before a round, sent, merged, after it
SHARE = 2  # lanes may fill this part of what visits may: both are in memory at once


def _settings_at_once(maker: Any, group: Mapping[str, Setting]) -> int:
    """How many settings of a group fit into memory together, with all their seeds."""
    first = next(iter(group))
    alone = dataclasses.replace(maker, seeds=maker.seeds[:1], device="cpu").study({first: group[first]})
    lanes = begin(alone)
    server, memory = (
        sum(leaf.nbytes for leaf in tree_leaves(part)) for part in (lanes.server, lanes.memory or ())
    )
    limit = Vectorised(maker.memory).limit(torch.device(maker.device))
    return max(1, int(limit // SHARE // ((COPIES * server + memory) * len(maker.seeds))))
