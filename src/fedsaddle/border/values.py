"""A plan of values that were made in Python, and what makes them the same again.

What the package knows by name is written into experiment.json as an experiment file would have it, so that
the command line can go on with the folder. Everything else is told by its `identity`, or by its class, its
source and its fields; such a folder says so under `python`, and only Python can go on with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedsaddle.border.identity import called, described, fields_of, in_json
from fedsaddle.border.schema import Beside, Experiment, Sweep, as_today, check_label, complete, sweep_of
from fedsaddle.border.sweeps import (
    Setting,
    chosen_by,
    prunes_of,
    resolved_sweep,
    smaller_than_budget,
    studies_of,
    swept,
)
from fedsaddle.engine.executors.loop import Loop
from fedsaddle.engine.executors.ray import Ray
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.study import Executor, Study
from fedsaddle.errors import BadInput, as_whole, shown, unknown
from fedsaddle.problem import Problem
from fedsaddle.runs import Plan
from fedsaddle.simulate import check_rows_are_here, make_study, notes_of
from fedsaddle.steady import AS_THEY_ARE, BOUNDS, Steady
from fedsaddle.sweep import check_grid, labels, number_of
from fedsaddle.sweep import settings as sweep_settings


class How(NamedTuple):
    """What a run is told beside its studies, by the keys of an experiment."""

    rounds: int
    evaluate_every: int = 10
    name: str | None = None  # by default, the problem's
    threads: int = 1
    tf32: bool = False
    deterministic: bool = False
    history: bool = False


def said(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of the options of a call, with whole numbers of NumPy's as Python's own."""
    counts = ("rounds", "evaluate_every", "batch", "threads", "budget", "halving", "draw_seed")
    given = {key: value for key, value in options.items() if value is not None}
    given |= {key: as_whole(given[key]) for key in counts if key in given}
    seeds = given.get("seeds")
    if isinstance(seeds, Iterable) and not isinstance(seeds, str):
        given["seeds"] = [as_whole(seed) for seed in seeds]
    return given


@dataclass(frozen=True)
class Parts:
    """All of a run but its algorithms, made in Python: what `Bench` is to an experiment file."""

    problem: Problem
    seeds: list[int]
    device: str
    shared: dict[str, Any]  # the options of make_study that all studies share
    executor: Callable[[], Executor]  # each study has its own, since it remembers what memory a visit needs
    memory: int | None = None

    @property
    def steady(self) -> Steady:
        """How long steps may be, of a setting that does not say."""
        found: Steady = self.shared.get("steady", AS_THEY_ARE)
        return found

    def study(self, settings: Mapping[str, Setting]) -> Study:
        """One study of settings, by name, that share their rule, their counts and their bounds."""
        first = next(iter(settings.values()))
        try:
            return make_study(
                self.problem,
                [algorithm for algorithm, _ in settings.values()],
                seeds=self.seeds,
                names=list(settings),
                executor=self.executor(),
                device=self.device,
                **(self.shared | {"steady": first[1].steady}),
            )
        except BadInput as error:
            several = "" if len(settings) == 1 else f" and {len(settings) - 1} more"
            raise BadInput(f"{next(iter(settings))}{several}: {error}") from None


def executors(engine: str | None, executor: Executor | None) -> Callable[[], Executor]:
    """How each study gets its executor: by the name of an engine, or as the one that was given."""
    if engine is not None and executor is not None:
        raise BadInput(f"engine = {engine!r} and an executor: say one of them")
    if executor is None:
        known = {"auto": Vectorised, "vectorised": Vectorised, "loop": Loop}
        if engine == "ray":
            one = Ray()
            return lambda: one
        if engine is not None and engine not in known:
            raise unknown("engine", engine, (*known, "ray"))
        return known[engine or "auto"]
    if type(executor) is Vectorised:
        return lambda: Vectorised(executor.asked, executor.compiled)
    return lambda: executor


def named(algorithms: Any) -> dict[str, Any]:
    """Algorithms by name: of a mapping its own names."""
    if algorithms is None:
        raise BadInput("a problem needs an algorithm, such as CDMAONE(eta=0.1, gamma=0.1), or a dict of them")
    if isinstance(algorithms, Mapping):
        found = dict(algorithms)
    else:
        several = list(algorithms) if isinstance(algorithms, list | tuple) else [algorithms]
        found = {called(one): one for one in several}
        if len(found) < len(several):
            raise BadInput("two algorithms of one class: give a dict, with a name for each")
    if not found:
        raise BadInput("at least one algorithm is needed")
    for label, one in found.items():
        if not isinstance(label, str):
            raise BadInput(f"algorithms must have names, got {shown(label)}")
        check_label(label)
        if isinstance(one, str):
            raise BadInput(
                f"a problem that was made in Python needs algorithms that were too, such as CDMAONE(eta=0.1, "
                f"gamma=0.1); got {shown(one)}"
            )
    return found


def plan_of(studies: Mapping[str, Study], settings: Mapping[str, Any], how: How) -> Plan:
    """A plan of studies that differ in their algorithms alone: the `settings`, by name."""
    check_rows_are_here(next(iter(studies.values())).problem)
    resolved = resolve(studies, settings, how)
    return Plan(
        resolved,
        dict(studies),
        how.rounds,
        how.evaluate_every,
        notes=tuple(notes_of(list(studies.values()))),
        complete=as_today if "python" in resolved else complete,
    )


def resolve(studies: Mapping[str, Study], settings: Mapping[str, Any], how: How) -> dict[str, Any]:
    """The experiment as a run folder keeps it."""
    one = next(iter(studies.values()))
    for label in settings:
        check_label(label)
    parts = {
        "problem": described("problem", one.problem),
        "fleet": described("fleet", one.fleet),
        "merge": described("merge", one.merge.rule),
        **{f"algorithms.{label}": described("algorithm", own) for label, own in settings.items()},
    }
    problem = parts["problem"].table
    bounds = {
        name: study.steady.said for study in studies.values() for name in study.names if name in settings
    }
    found: dict[str, Any] = {key: field.default for key, field in Experiment.model_fields.items()}
    found |= {
        "name": how.name or str(problem["name"]),
        "rounds": how.rounds,
        "evaluate_every": how.evaluate_every,
        "seeds": list(dict.fromkeys(one.seeds)),
        "batch": one.batch,
        "cohorts": one.cohorts,
        "sampling": _sampling(one),
        **_engine(one.executor),
        "device": str(one.device),
        "threads": how.threads,
        "tf32": how.tf32,
        "deterministic": how.deterministic,
        "problem": problem,
        "fleet": parts["fleet"].table,
        "quorum": fields_of(one.quorum),
        "merge": {**parts["merge"].table, "clip": one.merge.clip},
        "checks": one.checks and fields_of(one.checks),
        "faults": one.faults and fields_of(one.faults),
        "history": how.history,
        "steady": {},
        "algorithms": {label: {**parts[f"algorithms.{label}"].table, **own} for label, own in bounds.items()},
    }
    del found["sweep"], found["code"]
    foreign = [place for place, part in parts.items() if part.foreign]
    found = {"python": foreign, **found} if foreign else complete(found)
    for place, part in (("problem", one.problem), ("fleet", one.fleet)):
        found[place] |= getattr(part, "pinned", {})
    return in_json(found)


def _sampling(study: Study) -> Any:
    """Who is invited, as an experiment says it."""
    if study.strata is not None:
        return {"strata": study.strata.tolist()}
    return "uniform" if study.weights is None else study.weights.tolist()


def _engine(executor: Executor) -> dict[str, Any]:
    names = {Vectorised: "vectorised", Loop: "loop", Ray: "ray"}
    memory = executor.asked if isinstance(executor, Vectorised) else getattr(executor, "memory", None)
    return {
        "engine": names.get(type(executor), type(executor).__name__),
        "memory_gb": None if memory is None else memory / 2**30,
        "workers": getattr(executor, "workers", None),
    }


# --- sweeps ----------------------------------------------------------------------------------------------


def sweep_plan(
    values: Parts,
    algorithms: Mapping[str, Any],
    grid: Mapping[str, Any],
    fixed: Mapping[str, Any],
    told: Mapping[str, Any],
    how: How,
) -> tuple[Plan, dict[str, Any]]:
    """The plan of a sweep, and its settings by name. What is `told` are the keys of a [sweep]."""
    sweep = sweep_of({key: value for key, value in told.items() if value is not None})
    table = described("problem", values.problem).table
    name = how.name or str(table["name"])
    families = {}
    for label, given in algorithms.items():
        several, number = len(algorithms) > 1, number_of(f"{name}/{label}")
        choices, rest = (one.get(label, {}) if several else one for one in (grid, fixed))
        families[label] = _settings(label, given, choices, rest, sweep, number, values.steady)
    studies = studies_of(values, families)
    metric, by_test = chosen_by(values, sweep, asked=sweep.by is not None, say="by='{}'")
    settings = {label: one for family in families.values() for label, (one, _) in family.items()}
    resolved = resolve(studies, settings, how)
    resolved["sweep"] = resolved_sweep(sweep, families, metric, by_test)
    notes = notes_of(list(studies.values()))
    if told.get("budget") is not None:
        notes += smaller_than_budget(families, sweep.budget)
    prunes = prunes_of(studies, metric, sweep.halving, how.rounds, how.evaluate_every)
    done = as_today if "python" in resolved else complete
    plan = Plan(resolved, studies, how.rounds, how.evaluate_every, metric, prunes, tuple(notes), done)
    return plan, settings


def _settings(
    label: str, given: Any, grid: Any, fixed: Any, sweep: Sweep, number: int, steady: Steady
) -> dict[str, Setting]:
    """The settings of one algorithm: of a class with what is fixed, or of an instance that is varied."""
    rule = given if isinstance(given, type) else type(given)
    if not dataclasses.is_dataclass(rule):
        raise BadInput(f"{label} must be a class of algorithms, such as CDMAADA, or one, got {shown(given)}")
    if not isinstance(grid, Mapping) or not isinstance(fixed, Mapping):
        raise BadInput(f"grid and fixed must be such as {{'c_eta': [0.05, 0.1]}}, got {shown(grid)}")
    known = swept(rule)
    for key in fixed:
        if key not in known:
            raise unknown(f"hyperparameter of {label}", key, known)
    both = sorted(set(grid) & set(fixed))
    if both:
        raise BadInput(f"{both[0]} is in the grid and fixed: say it once")
    found = sweep_settings(check_grid("grid", dict(grid), known), sweep.budget, sweep.seed, number)
    base = {} if isinstance(given, type) else fields_of(given)
    missing = [
        key
        for key, field in known.items()
        if field.default is dataclasses.MISSING and key not in {*grid, *fixed, *base}
    ]
    if missing:
        raise BadInput(f"{label}: {missing[0]} is missing; put it into the grid, or say fixed=...")
    made = []
    for own in found:
        values = {**base, **fixed, **own}
        bounds = {key: values.pop(key) for key in BOUNDS if key in values}
        made.append((rule(**values), Beside(None, replace(steady, **bounds))))
    return dict(zip(labels(label, len(made)), made, strict=True))
