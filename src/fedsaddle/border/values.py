"""A plan of values that were made in Python, and what makes them the same again.

What the package knows by name is written into experiment.json as an experiment file would have it, so that
the command line can go on with the folder. Everything else is told by its `identity`, or by its class, its
source and its fields; such a folder says so under `python`, and only Python can go on with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.border.schema import Experiment, check_label, complete, variant
from fedsaddle.engine.executors.loop import Loop
from fedsaddle.engine.executors.ray import Ray
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.study import Executor, Study
from fedsaddle.errors import BadInput, Notice, shown
from fedsaddle.fleet import FLEETS
from fedsaddle.merges import MERGES
from fedsaddle.problem import Federation
from fedsaddle.problems import PROBLEMS
from fedsaddle.runs import Plan
from fedsaddle.simulate import check_rows_are_here, notes_of

MOST_BYTES = 2**28  # of rows that are hashed; of more, their shapes alone


class How(NamedTuple):
    """What a run is told beside its studies, by the keys of an experiment."""

    rounds: int
    evaluate_every: int = 10
    name: str | None = None  # by default, the problem's
    threads: int = 1
    tf32: bool = False
    deterministic: bool = False
    history: bool = False


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
        complete=_as_it_is if "python" in resolved else complete,
    )


def _as_it_is(experiment: dict[str, Any]) -> dict[str, Any]:
    return experiment


def resolve(studies: Mapping[str, Study], settings: Mapping[str, Any], how: How) -> dict[str, Any]:
    """The experiment as a run folder keeps it."""
    one = next(iter(studies.values()))
    for label in settings:
        check_label(label)
    parts = {
        "problem": _described("problem", one.problem),
        "fleet": _described("fleet", one.fleet),
        "merge": _described("merge", one.merge.rule),
        **{f"algorithms.{label}": _described("algorithm", own) for label, own in settings.items()},
    }
    problem = parts["problem"].table
    found: dict[str, Any] = {key: field.default for key, field in Experiment.model_fields.items()}
    found |= {
        "name": how.name or str(problem["name"]),
        "rounds": how.rounds,
        "evaluate_every": how.evaluate_every,
        "seeds": list(dict.fromkeys(one.seeds)),
        "batch": one.batch,
        "cohorts": one.cohorts,
        "sampling": "uniform" if one.weights is None else one.weights.tolist(),
        **_engine(one.executor),
        "device": str(one.device),
        "threads": how.threads,
        "tf32": how.tf32,
        "deterministic": how.deterministic,
        "problem": problem,
        "fleet": parts["fleet"].table,
        "quorum": _fields(one.quorum),
        "merge": {**parts["merge"].table, "clip": one.merge.clip},
        "checks": one.checks and _fields(one.checks),
        "faults": one.faults and _fields(one.faults),
        "history": how.history,
        "algorithms": {label: parts[f"algorithms.{label}"].table for label in settings},
    }
    del found["sweep"]
    foreign = [place for place, part in parts.items() if part.foreign]
    found = {"python": foreign, **found} if foreign else complete(found)
    for place, part in (("problem", one.problem), ("fleet", one.fleet)):
        found[place] |= getattr(part, "pinned", {})
    return _plain(found)


def _engine(executor: Executor) -> dict[str, Any]:
    names = {Vectorised: "vectorised", Loop: "loop", Ray: "ray"}
    memory = executor.asked if isinstance(executor, Vectorised) else getattr(executor, "memory", None)
    return {
        "engine": names.get(type(executor), type(executor).__name__),
        "memory_gb": None if memory is None else memory / 2**30,
        "workers": getattr(executor, "workers", None),
    }


# --- one part --------------------------------------------------------------------------------------------


class Described(NamedTuple):
    table: dict[str, Any]
    foreign: bool  # whether no experiment file can name it


def _described(kind: str, value: Any) -> Described:
    """A part as a table: by the name that the package knows it by, or by what identifies it."""
    key, known = _REGISTRIES[kind]()
    names = [name for name, cls in known.items() if cls is type(value)]
    if names and getattr(value, "identity", None) is None:
        table = {key: names[0], **_fields(value)}
        try:
            rest = table if kind == "algorithm" else {key: names[0], **variant(kind, table).filled()}
            if rest == table:
                return Described(table, foreign=False)
        except BadInput:
            pass  # its fields hold what no file can say; so it is told by its source
    return Described({key: type(value).__name__, **identity_of(value)}, foreign=True)


_REGISTRIES: dict[str, Callable[[], tuple[str, dict[str, type[Any]]]]] = {
    "problem": lambda: ("name", {name: entry.task for name, entry in PROBLEMS.items()}),
    "fleet": lambda: ("model", dict(FLEETS)),
    "merge": lambda: ("rule", dict(MERGES)),
    "algorithm": lambda: (
        "algorithm",
        {name: entry.rule for name, entry in ALGORITHMS.items() if not entry.fixed},
    ),
}


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that it is made of."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}


def identity_of(value: Any) -> dict[str, Any]:
    """What makes a value the same again: its own `identity`, or its class, its source, fields and rows."""
    told = getattr(value, "identity", None)
    if told is not None:
        try:
            json.dumps(told, allow_nan=False)
            return dict(told)
        except (TypeError, ValueError):
            name = type(value).__name__
            raise BadInput(f"{name}.identity must be a dict of JSON values, got {shown(told)}") from None
    found: dict[str, Any] = {"class": type(value).__qualname__, "sha256": _source(type(value))}
    if dataclasses.is_dataclass(value):
        found |= {name: own for name, own in _fields(value).items() if _is_plain(own)}
    federation = getattr(value, "federation", None)
    if isinstance(federation, Federation):
        found["rows_sha256"] = _rows(federation)
    return found


def _source(cls: type[Any]) -> str | None:
    try:
        return hashlib.sha256(inspect.getsource(cls).encode()).hexdigest()
    except (OSError, TypeError):
        told = f"the source of {cls.__name__} cannot be read: a resume will not see whether it has changed"
        warnings.warn(told, Notice, stacklevel=2)
        return None


def _rows(federation: Federation) -> str:
    """A hash of all clients' data; of very much, of its shapes alone."""
    digest = hashlib.sha256()
    tables = {**federation.rows, **{f"own {name}": own for name, own in federation.own.items()}}
    tables |= {"sizes": federation.sizes, **{f"read {n}": how for n, how in federation.reading().items()}}
    whole = sum(table.nbytes for table in tables.values()) <= MOST_BYTES
    for name, table in tables.items():
        digest.update(f"{name} {table.dtype} {tuple(table.shape)}\n".encode())
        if whole:
            digest.update(table.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it: lists for tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    return plain
