"""A sweep: the settings of every algorithm, as many in a study as share their counts and fit into memory.

Which settings, and which of them are given up on the way, is `fedsaddle.sweep`'s to say.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Unpack

import torch
from torch.utils._pytree import tree_leaves

from fedsaddle import sweep as tuning
from fedsaddle.border.build import Bench, Wanted, algorithms_named, bench_of, notes_on_effect
from fedsaddle.border.schema import Sweep, algorithm_of, check_label, complete, rule_named, sweep_of
from fedsaddle.engine.course import Prune
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.study import Study, begin
from fedsaddle.errors import BadInput, unknown
from fedsaddle.metric import check_declared
from fedsaddle.runs import Plan
from fedsaddle.simulate import hyperparameters


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
    own = {"by": by, "budget": budget, "halving": halving}
    sweep = sweep_of(bench.checked.sweep | {key: value for key, value in own.items() if value is not None})
    families = _families(bench, sweep, wanted)
    lanes = len(bench.seeds) * sum(len(family) for family in families.values())
    if lanes > tuning.MOST_LANES:
        raise BadInput(
            f"this sweep would run {lanes} lanes (settings times seeds), at most {tuning.MOST_LANES} are "
            "allowed: lower budget or seeds"
        )
    studies: dict[str, Study] = {}
    for name, family in families.items():
        studies |= _grouped(bench, name, family)
    metric, by_test = _chosen_by(bench, sweep, asked=by is not None)
    prunes: dict[str, Prune] = {}
    if sweep.halving:
        for key, study in studies.items():
            count, every = len(set(study.names)), bench.checked.evaluate_every
            keep = tuning.rungs(count, sweep.halving, bench.checked.rounds, every)
            prunes[key] = tuning.Halving(metric, study.problem.metrics[metric], study.names, keep)
    resolved = bench.resolved({label: own for family in families.values() for label, own in family.items()})
    notes = notes_on_effect(bench, studies, families)
    if resolved["history"]:  # of thousands of lanes nobody reads one
        resolved["history"] = False
        notes.append("history = true has no effect: a sweep writes none")
    resolved["sweep"] = {
        "by": metric,
        "by_test": by_test,
        "budget": sweep.budget,
        "halving": sweep.halving,
        "seed": sweep.seed,
        "settings": {name: list(family) for name, family in families.items()},
    }
    notes += [
        f"{name} has {len(family)} settings, fewer than the budget of {sweep.budget}"
        for name, family in families.items()
        if len(family) < sweep.budget
    ]
    checked = bench.checked
    return Plan(
        resolved, studies, checked.rounds, checked.evaluate_every, metric, prunes, tuple(notes), complete
    )


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
    if not sweep.grid:
        raise BadInput("the experiment has no grid; add a table such as [sweep.grid.cdma-one]")
    return {name: _expanded(name, tables[name], sweep, bench.checked.name) for name in chosen}


def _expanded(name: str, table: dict[str, Any], sweep: Sweep, experiment: str) -> dict[str, dict[str, Any]]:
    """The settings that an algorithm tries."""
    rule = table.get("algorithm", name)
    entry = rule_named(rule)
    known = {key: field for key, field in hyperparameters(entry.rule).items() if key not in entry.fixed}
    choices = tuning.check_grid(f"sweep.grid.{name}", sweep.grid.get(name, {}), known)
    found = tuning.settings(choices, sweep.budget, sweep.seed, tuning.number_of(f"{experiment}/{name}"))
    labels = tuning.labels(name, len(found))
    for label in labels:
        check_label(label)
    base = {"algorithm": rule, **table}
    return {label: {**base, **values} for label, values in zip(labels, found, strict=True)}


def _chosen_by(bench: Bench, sweep: Sweep, asked: bool) -> tuple[str, bool]:
    """The metric that settings are chosen by, and whether it looks at test rows: only if it was asked for."""
    problem = bench.problem
    check_declared(problem, problem.evaluate(problem.init(bench.seeds[0]).to(bench.device)))
    metrics = list(problem.metrics)
    able = [name for name in metrics if problem.metrics[name].ranks]
    blind = [name for name in able if problem.metrics[name].rows != "test"]
    if not able:
        raise BadInput(f"no metric says which setting is better; {', '.join(metrics)} are values of the game")
    if sweep.by is None:
        if not blind:
            raise BadInput(f"every metric looks at test rows; if you mean it, say --by {able[0]}")
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
            f"mean it, say --by {sweep.by}"
        )
    return sweep.by, True


def _grouped(bench: Bench, name: str, family: dict[str, dict[str, Any]]) -> dict[str, Study]:
    """The studies of one algorithm: settings that differ in counts, or fill the memory, are apart."""
    groups: dict[tuple[Any, ...], dict[str, tuple[Any, int | None]]] = {}
    counts: list[str] = []
    for label, table in family.items():
        algorithm, invite = algorithm_of(label, table, bench.checked.K)
        known = hyperparameters(type(algorithm))
        counts = [key for key, field in known.items() if field.static]
        shape = (type(algorithm), invite, *(getattr(algorithm, key) for key in counts))
        groups.setdefault(shape, {})[label] = (algorithm, invite)
    varied = [place for place, values in enumerate(zip(*groups, strict=True)) if len(set(values)) > 1]
    studies: dict[str, Study] = {}
    for shape, group in groups.items():
        told = "".join(f", {('rule', 'invite', *counts)[place]} {shape[place]}" for place in varied)
        at_once = _settings_at_once(bench, group)
        labels = list(group)
        for first in range(0, len(labels), at_once):
            part = {label: group[label] for label in labels[first : first + at_once]}
            place = f", from {first + 1}" if len(labels) > at_once else ""
            plural = "" if len(part) == 1 else "s"
            studies[f"{name} ({len(part)} setting{plural}{told}{place})"] = bench.study(part)
    return studies


COPIES = 4  # of what a lane holds: before a round, sent, merged, after it
SHARE = 2  # lanes may fill this part of what visits may: both are in memory at once


def _settings_at_once(bench: Bench, group: dict[str, tuple[Any, int | None]]) -> int:
    """How many settings of a group fit into memory together, with all their seeds."""
    first = next(iter(group))
    alone = dataclasses.replace(bench, seeds=bench.seeds[:1], device="cpu").study({first: group[first]})
    lanes = begin(alone)
    server, memory = (
        sum(leaf.nbytes for leaf in tree_leaves(part)) for part in (lanes.server, lanes.memory or ())
    )
    limit = Vectorised(bench.memory).limit(torch.device(bench.device))
    return max(1, int(limit // SHARE // ((COPIES * server + memory) * len(bench.seeds))))
