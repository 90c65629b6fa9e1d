"""One schema: what every table of an experiment may hold, by type, by range, and with which defaults.

A table becomes an instance of a dataclass: of an algorithm, a problem, a fleet, a quorum. The dataclass is
the schema: pydantic checks the types of its fields, `ranges.check` what their annotations say beyond that.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.border import own, plugged, slips, unfit
from fedsaddle.border.fields import tuples
from fedsaddle.checks import Checks
from fedsaddle.core import Count, Range, Scalar
from fedsaddle.engine.executors.ray import MOST_WORKERS
from fedsaddle.errors import BadInput, check_count, unknown
from fedsaddle.faults import Faults
from fedsaddle.fleet import FLEETS, Cohorts, Quorum, cohorts_today
from fedsaddle.merges import MERGES, Merge
from fedsaddle.problems import PROBLEMS
from fedsaddle.ranges import Seed, Threads, check
from fedsaddle.steady import AS_THEY_ARE, BOUNDS, Steady
from fedsaddle.sweep import MOST_LANES

STRICT = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class Experiment(BaseModel):
    """The keys of an experiment file."""

    model_config = STRICT

    name: str
    description: str = ""
    rounds: Count
    evaluate_every: Count = 10
    seeds: str | list[int] = "0-4"
    batch: Count = 10  # B, rows of a minibatch
    K: Count | None = None  # local steps, for every algorithm that does not say
    cohorts: Cohorts = "independent"
    # Who is invited; { strata = ... } are groups of clients that take turns.
    sampling: Literal["uniform", "size"] | list[float] | dict[str, str | list[int]] = "uniform"
    engine: Literal["auto", "vectorised", "loop", "ray"] = "auto"
    # Of engine ray; by default one for each core, or GPU, of the cluster.
    workers: Annotated[int, Range(least=1, most=MOST_WORKERS)] | None = None
    device: str = "auto"  # cpu, cuda, or auto: a GPU if there is one
    # What a vectorised computation, of engine ray one of a worker, may hold: by default 4, or half of a GPU.
    memory_gb: Annotated[float, Range(above=0, most=1e6)] | None = None
    threads: Threads = 1  # of PyTorch; part of the experiment because sums may round differently with more
    tf32: bool = False  # on a GPU: multiply with 10 bits of mantissa, faster
    deterministic: bool = False  # on a GPU: the same bits every time, slower
    problem: dict[str, Any]
    fleet: dict[str, Any] = {"model": "paper"}
    quorum: dict[str, Any] = {}
    merge: dict[str, Any] = {}  # how answers become one: by default their mean
    checks: dict[str, Any] | None = None  # of answers, before they count
    faults: dict[str, Any] | None = None  # that are injected
    steady: dict[str, Any] = {}  # how long steps may be, for every algorithm that does not say
    history: bool = False  # whether to write down what became of every invitation
    algorithms: dict[str, dict[str, Any]]
    sweep: dict[str, Any] = {}
    code: dict[str, dict[str, dict[str, str]]] = {}  # that is not shipped: its hashes


class Sweep(BaseModel):
    """The keys of an experiment's [sweep], which `fedsaddle run` does not look at."""

    model_config = STRICT

    by: str | None = None  # the metric that settings are chosen by; by default the first not of test rows
    budget: Annotated[int, Range(least=1, most=MOST_LANES)] = 24  # settings of each algorithm
    halving: int = 0  # keep one of so many at each rung; 0 keeps all to the end
    seed: Seed = 0  # of the draws from grids that are larger than the budget
    grid: dict[str, dict[str, Any]] = {}
    # What a resolved sweep says, so that it can be read and run again:
    settings: dict[str, list[str]] = {}  # the settings' names, by algorithm
    by_test: bool = False  # somebody asked for a metric of the test rows


def experiment_of(tables: Mapping[str, Any]) -> Experiment:
    """An experiment whose own keys are checked; its tables are not yet."""
    found = _valid(Experiment, tables, "")
    check(found)
    if not found.name.strip():
        raise BadInput("name is empty; call the experiment something")
    for label in found.algorithms:
        check_label(label)
    if not found.algorithms:
        raise BadInput("the experiment has no algorithms; add a table such as [algorithms.cdma-one]")
    return found


def sweep_of(table: Mapping[str, Any]) -> Sweep:
    found = _valid(Sweep, table, "sweep")
    check(found, "sweep.")
    unfit.check_halving(found.halving)
    return found


def check_label(label: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", label):
        raise BadInput(
            f"algorithms.{label}: a name begins with a letter or digit and holds up to 100 letters, "
            "digits, '.', '_', '-'"
        )


# --- types -----------------------------------------------------------------------------------------------

Model = typing.TypeVar("Model", bound=BaseModel)


def _valid(
    model: type[Model], table: Mapping[str, Any], where: str, variants: Variants | None = None
) -> Model:
    try:
        return model.model_validate(table)
    except ValidationError as error:
        # A key that is not known is likelier the slip than the one that is missed for it.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        key = str(first["loc"][0]) if first["loc"] else ""
    at = f"{where}.{key}" if where else key
    if key == "algorithms" and len(first["loc"]) > 1:
        at = f"{at}.{first['loc'][1]}"
    if first["type"] == "extra_forbidden":
        if variants is not None:
            raise variants.no_such_key(key)
        if not where:
            raise slips.unknown_key(key, table, model.model_fields)
        raise unknown(f"key in {where}", key, model.model_fields)
    if first["type"] == "missing":
        raise BadInput(f"{at} is missing")
    raise unfit.no_such_value(at, key, first["msg"], first["input"])


@cache
def _model(cls: type[Any]) -> type[BaseModel]:
    """What a table must hold to become an instance of a dataclass."""
    hints = typing.get_type_hints(cls)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        hint = float if hints[field.name] == Scalar else hints[field.name]
        default: Any = ... if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = Field(default_factory=field.default_factory)
        fields[field.name] = (hint, default)
    try:
        return create_model(cls.__name__, __config__=STRICT, **fields)
    except PydanticUserError as error:
        if not own.is_own(cls):
            raise
        why = str(error).split("\n")[0]
        raise BadInput(
            f"{cls.__name__}: a field has a type that no experiment file can hold: {why}"
        ) from error


def _filled(
    cls: type[Any],
    table: Mapping[str, Any],
    where: str,
    defaults: Mapping[str, Any] | None = None,
    variants: Variants | None = None,
) -> dict[str, Any]:
    """A table of an experiment file, checked, with the defaults of the dataclass it is to become."""
    model = _model(cls)  # type: ignore[arg-type]
    given = {**(defaults or {}), **{key: tuples(value) for key, value in table.items()}}
    checked = _valid(model, given, where, variants)
    return {name: getattr(checked, name) for name in model.model_fields}


def made(cls: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """An instance of a dataclass, whose ranges and rules are then kept."""
    try:
        one = cls(**values)
        check(one)
        return own.finished(one)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    except Exception as error:
        if not own.is_own(cls):
            raise
        line = own.in_a_line(error, own.source_of(cls))
        raise BadInput(f"{where}: {cls.__name__} cannot be made: {line}") from error


def build(cls: type[Any], table: Mapping[str, Any], where: str) -> Any:
    """An instance of a dataclass from a table of an experiment file."""
    return made(cls, _filled(cls, table, where), where)


# --- tables with variants --------------------------------------------------------------------------------


Known = dict[str, tuple[type[Any], dict[str, Any]]]  # the dataclass of each, and what its defaults become


class Variants(NamedTuple):
    """A table one of whose keys says what else it may hold."""

    where: str
    key: str
    known: Known
    chosen: str
    dials: dict[str, Any]  # the rest of the table

    def no_such_key(self, key: str) -> BadInput:
        fields = {name: _model(cls).model_fields for name, (cls, _) in self.known.items()}  # type: ignore[arg-type]
        return slips.no_such_key(self.where, key, self.key, self.chosen, fields)

    def filled(self) -> dict[str, Any]:
        cls, defaults = self.known[self.chosen]
        return _filled(cls, self.dials, self.where, defaults, self)

    def build(self) -> Any:
        return made(self.known[self.chosen][0], self.filled(), self.where)


def variant(where: str, table: Mapping[str, Any]) -> Variants:
    """The variant that a table names: [problem], [fleet] or [merge]."""
    tables: dict[str, tuple[str, Known]] = {
        "problem": ("name", {name: (entry.task, entry.defaults) for name, entry in PROBLEMS.items()}),
        "fleet": ("model", {name: (model, {}) for name, model in FLEETS.items()}),
        "merge": ("rule", {name: (rule, {}) for name, rule in MERGES.items()}),
    }
    key, known = tables[where]
    dials = dict(table)
    name = dials.pop(key, None)
    if name is None:
        raise BadInput(f"{where}.{key} is missing; known: {', '.join(sorted(known))}")
    if where == "problem" and (task := plugged.PLUGGED["problems"].get(str(name))):
        known = known | {str(name): (task.task, task.defaults)}
    if where == "fleet" and (model := plugged.PLUGGED["fleets"].get(str(name))):
        known = known | {str(name): (model, {})}
    if not isinstance(name, str) or name not in known:
        raise unknown(where, str(name), known)
    return Variants(where, key, known, name, dials)


# The part of [merge] that does not depend on its rule.
_HINTS = typing.get_type_hints(Merge, include_extras=True)
_BESIDE = [(one.name, _HINTS[one.name], one) for one in dataclasses.fields(Merge) if one.name != "rule"]
_BesideRule = dataclasses.make_dataclass("_BesideRule", _BESIDE)


def _merge(table: Mapping[str, Any]) -> tuple[Variants, dict[str, Any]]:
    """The rule of a [merge], and what is said beside it."""
    beside = {name: table[name] for name, *_ in _BESIDE if name in table}
    rest = {key: value for key, value in table.items() if key not in beside}
    return variant("merge", {"rule": "mean", **rest}), _filled(_BesideRule, beside, "merge")


def merge_of(table: Mapping[str, Any]) -> Merge:
    rule, beside = _merge(table)
    found: Merge = made(Merge, {"rule": rule.build(), **beside}, "merge")
    return found


# --- algorithms ------------------------------------------------------------------------------------------


def has_K(rule: type[Any]) -> bool:
    return "K" in {field.name for field in dataclasses.fields(rule)}


def rule_named(name: object) -> Any:
    """The entry of an algorithm."""
    found = ALGORITHMS.get(str(name)) or plugged.PLUGGED["algorithms"].get(str(name))
    if found is None:
        raise unknown("algorithm", str(name), ALGORITHMS)
    return found


class Beside(NamedTuple):
    """What an algorithm's table says beside its hyperparameters."""

    invite: int | None = None  # instead of the quorum's
    steady: Steady = AS_THEY_ARE


def _settings(
    label: str, table: Mapping[str, Any], K: int | None, steady: Mapping[str, Any]
) -> dict[str, Any]:
    """An algorithm's table with every hyperparameter, and with those bounds that it has."""
    where, rest = f"algorithms.{label}", dict(table)
    name, invite = rest.pop("algorithm", label), rest.pop("invite", None)
    entry = rule_named(name)
    if invite is not None:
        check_count(f"{where}.invite", invite)
    for key, value in entry.fixed.items():
        if rest.get(key, value) != value:
            raise BadInput(
                f"{where}.{key} is {value} in '{name}', which makes it a variant; it cannot be set"
            )
    defaults = {"K": K} if K is not None and has_K(entry.rule) else {}
    own = {} if invite is None else {"invite": invite}
    bounds = _filled(Steady, {**steady, **{key: rest.pop(key) for key in BOUNDS if key in rest}}, where)
    own |= {key: value for key, value in bounds.items() if value is not None}
    return {"algorithm": name, **own, **_filled(entry.rule, {**rest, **entry.fixed}, where, defaults)}


def algorithm_of(
    label: str, table: Mapping[str, Any], K: int | None, steady: Mapping[str, Any]
) -> tuple[Any, Beside]:
    """An algorithm, and what is said beside it; K and the bounds are those of all that do not say."""
    values, where = _settings(label, table, K, steady), f"algorithms.{label}"
    name, invite = values.pop("algorithm"), values.pop("invite", None)
    bounds = made(Steady, {key: values.pop(key, None) for key in BOUNDS}, where)
    return made(rule_named(name).rule, values, where), Beside(invite, bounds)


# --- an experiment with all that may be said -------------------------------------------------------------


def as_today(tables: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment that an older version has written down, by the names of today."""
    return {key: cohorts_today(value) if key == "cohorts" else value for key, value in tables.items()}


def complete(tables: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment with every key that may be said, those that were not with their defaults."""
    found = _valid(Experiment, as_today(tables), "").model_dump()
    if "sweep" not in tables:
        del found["sweep"]
    if not found["code"]:
        del found["code"]
    for place in ("problem", "fleet"):
        one = variant(place, found[place])
        found[place] = {one.key: one.chosen, **one.filled()}
    rule, beside = _merge(found["merge"])
    found["merge"] = {"rule": rule.chosen, **rule.filled(), **beside}
    found["quorum"] = _filled(Quorum, found["quorum"], "quorum")
    for key, part in (("checks", Checks), ("faults", Faults)):
        found[key] = None if found[key] is None else _filled(part, found[key], key)
    found["steady"] = _filled(Steady, found["steady"], "steady")
    found["algorithms"] = {
        label: _settings(label, table, found["K"], found["steady"])
        for label, table in found["algorithms"].items()
    }
    listed: dict[str, Any] = _lists(found)
    return listed


def _lists(value: Any) -> Any:
    """As JSON has it, which knows no tuples."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value
