"""Experiment files: TOML, or the JSON of a run folder, checked here and nowhere else.

An unknown key, a wrong type or a value out of range ends in one line that says what would do.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from torch.utils._pytree import tree_leaves

from fedsaddle import catalogue
from fedsaddle import sweep as tuning
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.checks import Checks, Norms, check_norms
from fedsaddle.core import Scalar
from fedsaddle.data.tables import is_table
from fedsaddle.engine import machine
from fedsaddle.engine.course import Prune
from fedsaddle.engine.executors.loop import Loop
from fedsaddle.engine.executors.ray import MOST_WORKERS, Ray
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.study import Study, begin
from fedsaddle.errors import BadInput, check_count, check_seed, meant, shown, unknown
from fedsaddle.faults import Faults
from fedsaddle.fleet import FLEETS, Fleet, Quorum
from fedsaddle.merges import MERGES, Merge
from fedsaddle.metric import check_declared
from fedsaddle.problem import Held, Problem
from fedsaddle.problems import PROBLEMS
from fedsaddle.runs import Plan
from fedsaddle.simulate import check_algorithm, device_named, hyperparameters, make_study, notes_of


class Experiment(BaseModel):
    """The keys of an experiment file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    description: str = ""
    rounds: int
    evaluate_every: int = 10
    seeds: str | list[int] = "0-4"
    batch: int = 10  # B, rows of a minibatch
    K: int | None = None  # local steps, for every algorithm that does not say
    cohorts: Literal["another", "same"] = "another"
    sampling: Literal["uniform", "size"] | list[float] = "uniform"
    engine: Literal["auto", "vectorised", "loop", "ray"] = "auto"
    workers: int | None = None  # of engine ray; by itself one for each core, or GPU, of the cluster
    device: str = "auto"  # cpu, cuda, or auto: a GPU if there is one
    # What a vectorised computation, of engine ray one of a worker, may hold: by itself 4, or half of a GPU.
    memory_gb: float | None = None
    threads: int = 1  # of PyTorch; part of the experiment because sums may round differently with more
    tf32: bool = False  # on a GPU: multiply with 10 bits of mantissa, faster
    deterministic: bool = False  # on a GPU: the same bits every time, slower
    problem: dict[str, Any]
    fleet: dict[str, Any] = {"model": "paper"}
    quorum: dict[str, Any] = {}
    merge: dict[str, Any] = {}  # how answers become one: by itself their mean
    checks: dict[str, Any] | None = None  # of answers, before they count
    faults: dict[str, Any] | None = None  # that are injected
    history: bool = False  # whether to write down what became of every invitation
    algorithms: dict[str, dict[str, Any]]
    sweep: dict[str, Any] = {}


class Sweep(BaseModel):
    """The keys of an experiment's [sweep], which `fedsaddle run` does not look at."""

    model_config = ConfigDict(extra="forbid", strict=True)

    by: str | None = None  # the metric that settings are chosen by; by itself the first not of test rows
    budget: int = 24  # settings of each algorithm
    halving: int = 0  # keep one of so many at each rung; 0 keeps all to the end
    seed: int = 0  # of the draws from grids that are larger than the budget
    grid: dict[str, dict[str, Any]] = {}
    # What a resolved sweep says, so that it can be read and run again:
    settings: dict[str, list[str]] = {}  # the settings' names, by algorithm
    by_test: bool = False  # somebody asked for a metric of the test rows


# --- reading ---------------------------------------------------------------------------------------------


def _read(experiment: str) -> dict[str, Any]:
    """The tables of an experiment, by its name or its file."""
    tables, folder = catalogue.read(experiment)
    if folder is None:
        return tables
    for place, key in (
        ("fleet", "path"),
        ("problem", "dataset"),
        ("problem", "test"),
        ("problem", "path"),
        ("problem", "inception"),
    ):
        table = tables.get(place)
        if not isinstance(table, dict) or not isinstance(table.get(key), str) or not table[key]:
            continue
        if key in ("path", "inception") or is_table(table[key]):  # else it is the name of a dataset
            table[key] = str(folder / table[key])  # a file is seen from the experiment that names it
    return tables


def _set(tables: dict[str, Any], assignment: str) -> tuple[str, Any]:
    """Apply one `a.b=value` to the tables of an experiment, and say which key and value that is."""
    key, sign, text = assignment.partition("=")
    if not sign or not all(part.strip() for part in key.split(".")):
        raise BadInput(f"--set takes key=value, such as problem.kappa=20; got '{assignment}'")
    if not assignment.isprintable():
        raise BadInput(f"--set takes one line, got '{assignment}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text  # a word needs no quotes
    except RecursionError:
        raise BadInput(f"--set {key}: nested too deep") from None
    *path, last = (part.strip() for part in key.split("."))
    for part in path:
        tables = tables.setdefault(part, {})
        if not isinstance(tables, dict):
            raise BadInput(f"--set {assignment}: '{part}' is a value, not a table")
    tables[last] = value
    return ".".join((*path, last)), value


def parse_seeds(seeds: str | Sequence[int]) -> list[int]:
    """0-4 or 0,3,7-9 or a list."""
    if not isinstance(seeds, str):
        return list(seeds)
    found: list[int] = []
    for part in seeds.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", part)
        if not match:
            raise BadInput(f"seeds must look like 0-4 or 0,3,7-9, got '{seeds}'")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= 100_000:
            raise BadInput(f"seeds must go up, and be at most 100000, got '{part.strip()}'")
        found += range(first, last + 1)
    return found


# --- checking --------------------------------------------------------------------------------------------


# What would do, where a type alone does not say it well.
WOULD_DO = {
    "samples": "a whole number or [fewest, most]",
    "seeds": "such as '0-4', or a list of whole numbers",
    "sampling": "'uniform', 'size' or a list of weights",
    "rate": "a number, or a list with one for each client",
    "positive": "one of the labels",
    "clip": "a number above 0, or a table with one for parameters, gradients or 'control variates'",
    "norm": "a number above 0, or a table with one for parameters, gradients or 'control variates'",
}


def _explain(error: ValidationError, model: type[BaseModel], where: str) -> BadInput:
    """The first of pydantic's complaints, in one line."""
    # A key that is not known is likelier the slip than the one that is missed for it.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    key = str(first["loc"][0]) if first["loc"] else ""
    at = f"{where}.{key}" if where else key
    if key == "algorithms" and len(first["loc"]) > 1:
        at = f"{at}.{first['loc'][1]}"
    if first["type"] == "extra_forbidden":
        return unknown(f"key in {where}" if where else "key", key, model.model_fields)
    if first["type"] == "missing":
        return BadInput(f"{at} is missing")
    should = WOULD_DO.get(key)
    told = f"should be {should}" if should else first["msg"].replace("Input should", "should")
    return BadInput(f"{at}: {told}, got {shown(first['input'])[:200]}")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


@cache
def _model(cls: type[Any]) -> type[BaseModel]:
    """What a table must hold to become an instance of a dataclass."""
    hints = typing.get_type_hints(cls)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        hint = float if hints[field.name] == Scalar else hints[field.name]
        fields[field.name] = (hint, ... if field.default is dataclasses.MISSING else field.default)
    return create_model(cls.__name__, __config__=ConfigDict(extra="forbid", strict=True), **fields)


def _filled(
    cls: type[Any], table: dict[str, Any], where: str, defaults: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A table of an experiment file, checked, with the defaults of the dataclass it is to become."""
    model = _model(cls)  # type: ignore[arg-type]
    try:
        checked = model.model_validate(
            {**(defaults or {}), **{key: _tuples(value) for key, value in table.items()}}
        )
    except ValidationError as error:
        raise _explain(error, model, where) from None
    return {name: getattr(checked, name) for name in model.model_fields}


def _build(cls: type[Any], table: dict[str, Any], where: str, defaults: dict[str, Any] | None = None) -> Any:
    """An instance of a dataclass from a table of an experiment file."""
    values = _filled(cls, table, where, defaults)
    try:
        return cls(**values)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def _pick(table: dict[str, Any], key: str, where: str, known: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The entry a table names, and the rest of the table."""
    rest = dict(table)
    name = rest.pop(key, None)
    if name is None:
        raise BadInput(f"{where}.{key} is missing; known: {', '.join(sorted(known))}")
    if not isinstance(name, str) or name not in known:
        raise unknown(where, str(name), known)
    return known[name], rest


def _settings(label: str, table: dict[str, Any], K: int | None) -> dict[str, Any]:
    """An algorithm's table with every hyperparameter."""
    where, rest = f"algorithms.{label}", dict(table)
    name, invite = rest.pop("algorithm", label), rest.pop("invite", None)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise unknown("algorithm", str(name), ALGORITHMS)
    if invite is not None:
        check_count(f"{where}.invite", invite)
    entry = ALGORITHMS[name]
    for key, value in entry.fixed.items():
        if rest.get(key, value) != value:
            raise BadInput(
                f"{where}.{key} is {value} in '{name}', which makes it a variant; it cannot be set"
            )
    defaults: dict[str, Any] = {}
    if K is not None and _has_K(entry.rule):
        defaults["K"] = K
    own = {} if invite is None else {"invite": invite}
    return {"algorithm": name, **own, **_filled(entry.rule, {**rest, **entry.fixed}, where, defaults)}


def _has_K(rule: type[Any]) -> bool:
    return "K" in {field.name for field in dataclasses.fields(rule)}


def _algorithm(label: str, table: dict[str, Any], K: int | None) -> tuple[Any, int | None]:
    """An algorithm, and how many clients it invites if it says."""
    values = _settings(label, table, K)
    name, invite = values.pop("algorithm"), values.pop("invite", None)
    try:
        algorithm = ALGORITHMS[name].rule(**values)
        check_algorithm(algorithm)
    except BadInput as error:
        raise BadInput(f"algorithms.{label}: {error}") from None
    return algorithm, invite


@dataclass(frozen=True)
class _Clip:
    """The part of [merge] that does not depend on its rule."""

    clip: Norms | None

    def __post_init__(self) -> None:
        check_norms("clip", self.clip)


@dataclass(frozen=True)
class _Bench:
    """All of an experiment but its algorithms: what every study of it shares."""

    checked: Experiment
    problem: Problem
    fleet: Fleet
    seeds: list[int]
    device: str  # where the servers are and lanes are judged
    visits_on: str  # the same, but for engine ray, whose workers may have GPUs where this machine has none
    merge: Merge
    checks: Checks | None
    faults: Faults | None
    said: frozenset[str] = frozenset()  # the keys that --set has set
    ray: Ray | None = None  # all studies share its actors

    @property
    def memory(self) -> int | None:
        return None if self.checked.memory_gb is None else int(self.checked.memory_gb * 2**30)

    def study(self, settings: Mapping[str, tuple[Any, int | None]]) -> Study:
        """One study of settings, by name, that share their rule, their counts and how many they invite."""
        (first, (_, invite)), checked = next(iter(settings.items())), self.checked
        table = {**checked.quorum, **({} if invite is None else {"invite": invite})}
        quorum: Quorum = _build(Quorum, table, "quorum")
        sizes = self.problem.federation.sizes
        weights = {"uniform": None, "size": sizes}.get(str(checked.sampling), checked.sampling)
        try:
            return make_study(
                self.problem,
                [algorithm for algorithm, _ in settings.values()],
                seeds=self.seeds,
                names=list(settings),
                quorum=quorum,
                fleet=self.fleet,
                batch=checked.batch,
                weights=weights,  # type: ignore[arg-type]
                cohorts=checked.cohorts,
                merge=self.merge,
                checks=self.checks,
                faults=self.faults,
                # Each has its own, since it remembers how much memory this algorithm's visits need.
                executor=self.ray or (Loop() if checked.engine == "loop" else Vectorised(self.memory)),
                device=self.device,
            )
        except BadInput as error:
            raise BadInput(f"algorithms.{first}: {error}") from None

    def resolved(self, algorithms: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """The experiment as a run folder keeps it: every key with its value."""
        found = complete({**self.checked.model_dump(), "algorithms": algorithms})
        del found["sweep"]  # a run does not depend on it
        found |= {"seeds": self.seeds, "device": self.visits_on}
        found["engine"] = "vectorised" if self.checked.engine == "auto" else self.checked.engine
        for place, part in (("problem", self.problem), ("fleet", self.fleet)):
            found[place] |= getattr(part, "pinned", {})  # the files it reads, by their places and hashes
        return found


def complete(tables: dict[str, Any]) -> dict[str, Any]:
    """An experiment with every key that may be said, those that were not with their defaults."""
    found = _experiment(tables).model_dump()
    if "sweep" not in tables:
        del found["sweep"]
    for place, key, known in (("problem", "name", PROBLEMS), ("fleet", "model", FLEETS)):
        entry, dials = _pick(found[place], key, place, known)
        cls, defaults = (entry.task, entry.defaults) if place == "problem" else (entry, {})
        found[place] = {key: found[place][key], **_filled(cls, dials, place, defaults)}
    merge = {"rule": "mean", **found["merge"]}
    rule, dials = _pick(merge, "rule", "merge", MERGES)
    clip = {"clip": dials.pop("clip", None)}
    found["merge"] = {"rule": merge["rule"], **_filled(rule, dials, "merge"), **_filled(_Clip, clip, "merge")}
    found["quorum"] = _filled(Quorum, found["quorum"], "quorum")
    for key, part in (("checks", Checks), ("faults", Faults)):
        found[key] = None if found[key] is None else _filled(part, found[key], key)
    found["algorithms"] = {
        label: _settings(label, table, found["K"]) for label, table in found["algorithms"].items()
    }
    listed: dict[str, Any] = _lists(found)
    return listed


def _lists(value: Any) -> Any:
    """As JSON has it, which knows no tuples."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _shrink(tables: dict[str, Any], clients: int) -> None:
    """Change an experiment to one with so many clients, of which a quorum asks no more than there are."""
    check_count("clients", clients)
    tables["problem"] = {**_table(tables, "problem"), "clients": clients}
    quorum = {"invite": 8, **_table(tables, "quorum")}
    asking = [quorum, *(rule for rule in _table(tables, "algorithms").values() if isinstance(rule, dict))]
    for table in asking:
        for key in {"invite", "enough", "minimum"} & table.keys():
            if isinstance(table[key], int):
                table[key] = min(table[key], clients)
    tables["quorum"] = quorum


def _table(tables: dict[str, Any], key: str) -> dict[str, Any]:
    found = tables.get(key, {})
    return found if isinstance(found, dict) else {}


def _experiment(tables: dict[str, Any]) -> Experiment:
    try:
        return Experiment.model_validate(tables)
    except ValidationError as error:
        raise _explain(error, Experiment, "") from None


def _prepare(
    experiment: str,
    given: dict[str, Any],
    settings: Sequence[str],
    address: str | None = None,
    clients: int | None = None,
) -> _Bench:
    """A checked experiment, up to its algorithms."""
    tables = _read(experiment)
    given = {key: value for key, value in given.items() if value is not None}
    tables |= given
    said: dict[str, Any] = {}
    options = given | ({} if clients is None else {"problem.clients": clients})
    for assignment in settings:
        key, value = _set(tables, assignment)
        known = options | said
        if (before := known.get(key)) != value and key in known:
            raise BadInput(f"{key} is said twice, as {shown(before)} and as {shown(value)}: say it once")
        said[key] = value
    if clients is not None:
        _shrink(tables, clients)
    checked = _experiment(tables)
    if not checked.name.strip():
        raise BadInput("name is empty; call the experiment something")
    check_count("rounds", checked.rounds)
    check_count("evaluate_every", checked.evaluate_every)
    check_count("threads", checked.threads, most=1024)
    if checked.workers is not None:
        check_count("workers", checked.workers, most=MOST_WORKERS)
    if address is not None and checked.engine != "ray":
        raise BadInput(f"an address is for engine ray, not for {checked.engine}: add --engine ray")
    if checked.memory_gb is not None and not 0 < checked.memory_gb <= 1e6:
        raise BadInput(f"memory_gb must be above 0 and at most a million, got {checked.memory_gb:g}")
    if checked.deterministic:
        machine.fix_workspace()  # here, because a problem may use a GPU while it is made
    for label in checked.algorithms:
        _check_label(label)
    if not checked.algorithms:
        raise BadInput("the experiment has no algorithms; add a table such as [algorithms.cdma-one]")

    entry, dials = _pick(checked.problem, "name", "problem", PROBLEMS)
    problem: Problem = _build(entry.task, dials, "problem", entry.defaults)
    model, dials = _pick(checked.fleet, "model", "fleet", FLEETS)
    fleet: Fleet = _build(model, dials, "fleet")
    try:
        fleet.check(len(problem.federation))
    except BadInput as error:
        raise BadInput(f"fleet: {error}") from None
    elsewhere = checked.engine == "ray" and checked.device == "cuda" and not torch.cuda.is_available()
    device = "cpu" if elsewhere else str(device_named(checked.device))
    visits_on = "cuda" if elsewhere else device
    checks = None if checked.checks is None else _build(Checks, checked.checks, "checks")
    faults = None if checked.faults is None else _build(Faults, checked.faults, "faults")
    seeds, merge = parse_seeds(checked.seeds), _merge(checked.merge)
    keys = frozenset(said)
    bench = _Bench(checked, problem, fleet, seeds, device, visits_on, merge, checks, faults, keys)
    if checked.engine != "ray":
        return bench
    kind = torch.device(visits_on).type
    return dataclasses.replace(bench, ray=Ray(checked.workers, address, memory=bench.memory, device=kind))


def _merge(table: dict[str, Any]) -> Merge:
    rule, dials = _pick({"rule": "mean", **table}, "rule", "merge", MERGES)
    clip: _Clip = _build(_Clip, {"clip": dials.pop("clip", None)}, "merge")
    return Merge(_build(rule, dials, "merge"), clip.clip)


def _check_label(label: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", label):
        raise BadInput(
            f"algorithms.{label}: a name begins with a letter or digit and holds up to 100 letters, "
            "digits, '.', '_', '-'"
        )


def load(
    experiment: str,
    *,
    algorithms: Sequence[str] = (),
    rounds: int | None = None,
    seeds: str | None = None,
    engine: str | None = None,
    address: str | None = None,
    device: str | None = None,
    deterministic: bool | None = None,
    history: bool | None = None,
    settings: Sequence[str] = (),
    clients: int | None = None,
    devices: bool = False,
) -> Plan:
    """A checked, resolved experiment, ready to run. Given `clients`, with so many and smaller quorums.

    One whose rows are on devices is refused, unless it is for `devices`.
    """
    given = {
        "rounds": rounds,
        "seeds": seeds,
        "engine": engine,
        "device": device,
        "deterministic": deterministic,
        "history": history,
    }
    bench = _prepare(experiment, given, settings, address, clients)
    if isinstance(bench.problem, Held) and bench.problem.away:
        if not devices:
            raise BadInput("the rows of this experiment are on devices: run it with fedsaddle serve and join")
        if bench.checked.sampling == "size":
            raise BadInput("sampling by size needs to know how many rows each device has; say uniform")
    tables, K = bench.checked.algorithms, bench.checked.K
    wanted = list(dict.fromkeys(meant(name, tables) for name in algorithms)) or list(tables)
    for label in wanted:
        if label not in tables:
            raise unknown("algorithm in this experiment", label, tables)
    studies = {label: bench.study({label: _algorithm(label, tables[label], K)}) for label in wanted}
    resolved = bench.resolved({label: tables[label] for label in wanted})
    notes = [*_without_effect(bench, studies), *_not_here(bench, wanted)]
    if any(key.split(".")[0] == "sweep" for key in bench.said):
        notes.append("sweep is what fedsaddle sweep goes by; a run does not look at it")
    if devices and any(key.split(".")[0] == "fleet" for key in bench.said):
        notes.append("fleet has no effect: real devices answer when they do")
    checked = bench.checked
    return Plan(
        resolved, studies, checked.rounds, checked.evaluate_every, notes=tuple(notes), complete=complete
    )


# --- what has no effect ----------------------------------------------------------------------------------


def _without_effect(bench: _Bench, studies: Mapping[str, Study]) -> list[str]:
    """What an experiment says that changes nothing: a person may think that it does.

    What --set has set is held against the algorithms that run, a file against all that it holds.
    """
    checked, said = bench.checked, bench.said
    notes = notes_of(list(studies.values()))
    on_cpu = torch.device(bench.visits_on).type == "cpu"
    for key, none in {
        "workers": "" if checked.engine == "ray" else "it is of engine ray",
        "memory_gb": "engine loop asks one client at a time" if checked.engine == "loop" else "",
        "tf32": "it is of a GPU, and this runs on the CPU" if on_cpu else "",
        "deterministic": "a CPU gives the same bits every time as it is" if on_cpu else "",
        "threads": "each worker of engine ray has one"
        if checked.engine == "ray"
        else ("" if on_cpu else "visits are computed on a GPU"),
    }.items():
        value = getattr(checked, key)
        if none and value != Experiment.model_fields[key].default:
            notes.append(f"{key} = {json.dumps(value)} has no effect: {none}")
    batches = any(phase.length(0.5) for study in studies.values() for phase in study.algorithm.phases())
    if "batch" in said and not batches:
        notes.append(f"batch = {checked.batch} has no effect: no minibatch is drawn here")
    rules: dict[str, Any] = {name: study.algorithm for name, study in studies.items()}
    own = {name: rule.K for name, rule in rules.items() if _has_K(type(rule))}
    notes += _overridden("K", checked.K, own, "K" in said, _every(checked, "K"))
    invites = {name: study.quorum.invite for name, study in studies.items()}
    invite = checked.quorum.get("invite")
    asked = bool(said & {"quorum", "quorum.invite"})
    notes += _overridden("quorum.invite", invite, invites, asked, [Quorum.invite, *_every(checked, "invite")])
    return notes


def _overridden(
    key: str, value: int | None, own: Mapping[str, int], asked: bool, every: Sequence[int | None]
) -> list[str]:
    """A number that algorithms may have one of their own for, and that none, or not all of them, goes by."""
    if value is None:
        return []
    if asked and own:
        others = ", ".join(name for name, number in own.items() if number != value)
        return [f"{key} = {value} does not count for {others}: their own number does"] if others else []
    used = not asked and (value in every or None in every)
    return [] if used else [f"{key} = {value} has no effect: no algorithm here goes by it"]


def _every(checked: Experiment, key: str) -> list[int | None]:
    """What each algorithm of the file has for K or invite; None, if it goes by that of all."""
    rules = {
        label: ALGORITHMS.get(str(own.get("algorithm", label))) for label, own in checked.algorithms.items()
    }
    return [
        own.get(key)
        for label, own in checked.algorithms.items()
        if key != "K" or ((entry := rules[label]) is not None and _has_K(entry.rule))
    ]


def _not_here(bench: _Bench, wanted: Iterable[str]) -> list[str]:
    """Algorithms that --set speaks of and that are left out."""
    spoken = {key.split(".")[1] for key in bench.said if key.startswith("algorithms.")}
    left = sorted(spoken - set(wanted))
    return [f"--set algorithms.{name} has no effect: {name} is not among those that run" for name in left]


# --- sweeps ----------------------------------------------------------------------------------------------


def load_sweep(
    experiment: str,
    *,
    algorithms: Sequence[str] = (),
    by: str | None = None,
    budget: int | None = None,
    halving: int | None = None,
    rounds: int | None = None,
    seeds: str | None = None,
    engine: str | None = None,
    address: str | None = None,
    device: str | None = None,
    deterministic: bool | None = None,
    settings: Sequence[str] = (),
) -> Plan:
    """A checked sweep: every setting of every algorithm under its own name, as many in a study as can be."""
    given = {
        "rounds": rounds,
        "seeds": seeds,
        "engine": engine,
        "device": device,
        "deterministic": deterministic,
    }
    bench = _prepare(experiment, given, settings, address)
    own = {"by": by, "budget": budget, "halving": halving}
    table = bench.checked.sweep | {key: value for key, value in own.items() if value is not None}
    try:
        sweep = Sweep.model_validate(table)
    except ValidationError as error:
        raise _explain(error, Sweep, "sweep") from None
    check_count("sweep.budget", sweep.budget, most=tuning.MOST_LANES)
    check_seed("sweep.seed", sweep.seed)
    if sweep.halving:
        check_count("sweep.halving (0 keeps every setting to the end)", sweep.halving, least=2)

    families = _families(bench, sweep, algorithms)
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
    notes = [*_without_effect(bench, studies), *_not_here(bench, families)]
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


def _families(bench: _Bench, sweep: Sweep, wanted: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """The tables of the settings of each algorithm, by their names."""
    tables = bench.checked.algorithms
    known = sweep.settings or tables
    chosen = list(dict.fromkeys(meant(name, known) for name in wanted)) or list(known)
    drawn = [label for name in chosen for label in sweep.settings.get(name, [])]
    for names, among in ((chosen, known), (sweep.grid, known), (drawn, tables)):
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
    if not isinstance(rule, str) or rule not in ALGORITHMS:
        raise unknown("algorithm", str(rule), ALGORITHMS)
    entry = ALGORITHMS[rule]
    known = {key: field for key, field in hyperparameters(entry.rule).items() if key not in entry.fixed}
    choices = tuning.check_grid(f"sweep.grid.{name}", sweep.grid.get(name, {}), known)
    found = tuning.settings(choices, sweep.budget, sweep.seed, tuning.number_of(f"{experiment}/{name}"))
    labels = tuning.labels(name, len(found))
    for label in labels:
        _check_label(label)
    base = {"algorithm": rule, **table}
    return {label: {**base, **values} for label, values in zip(labels, found, strict=True)}


def _chosen_by(bench: _Bench, sweep: Sweep, asked: bool) -> tuple[str, bool]:
    """The metric that settings are chosen by, and whether it looks at test rows: only if it was asked for."""
    problem = bench.problem
    check_declared(problem, problem.evaluate(problem.init(bench.seeds[0]).to(bench.device)))
    metrics = list(problem.metrics)
    blind = [name for name in metrics if problem.metrics[name].rows != "test"]
    if sweep.by is None:
        if not blind:
            raise BadInput(f"every metric looks at test rows; if you mean it, say --by {metrics[0]}")
        return blind[0], False
    if sweep.by not in metrics:
        raise unknown("metric in sweep.by", sweep.by, metrics)
    if sweep.by in blind:
        return sweep.by, False
    if not asked and not sweep.by_test:
        raise BadInput(
            f"sweep.by is {sweep.by}, which looks at test rows: choose one of {', '.join(blind)}; or, if you "
            f"mean it, say --by {sweep.by}"
        )
    return sweep.by, True


def _grouped(bench: _Bench, name: str, family: dict[str, dict[str, Any]]) -> dict[str, Study]:
    """The studies of one algorithm: settings that differ in counts, or fill the memory, are apart."""
    groups: dict[tuple[Any, ...], dict[str, tuple[Any, int | None]]] = {}
    counts: list[str] = []
    for label, table in family.items():
        algorithm, invite = _algorithm(label, table, bench.checked.K)
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


def _settings_at_once(bench: _Bench, group: dict[str, tuple[Any, int | None]]) -> int:
    """How many settings of a group fit into memory together, with all their seeds."""
    first = next(iter(group))
    alone = dataclasses.replace(bench, seeds=bench.seeds[:1], device="cpu").study({first: group[first]})
    lanes = begin(alone)
    server, memory = (
        sum(leaf.nbytes for leaf in tree_leaves(part)) for part in (lanes.server, lanes.memory or ())
    )
    limit = Vectorised(bench.memory).limit(torch.device(bench.device))
    return max(1, int(limit // SHARE // ((COPIES * server + memory) * len(bench.seeds))))
