"""What makes a value that was made in Python the same again: its name here, or its source and its data."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.border.schema import variant
from fedsaddle.errors import BadInput, shown
from fedsaddle.fleet import FLEETS
from fedsaddle.merges import MERGES
from fedsaddle.problem import Federation
from fedsaddle.problems import PROBLEMS
from fedsaddle.problems.identity import fingerprint, hashed


class Shape(NamedTuple):
    table: dict[str, Any]
    foreign: bool  # whether no experiment file can name it


def described(kind: str, value: Any) -> Shape:
    """A part as a table: by the name that the package knows it by, or by what identifies it."""
    key, known = REGISTRIES[kind]()
    names = [name for name, cls in known.items() if cls is type(value)]
    if names and getattr(value, "identity", None) is None:
        table = {key: names[0], **fields_of(value)}
        try:
            rest = table if kind == "algorithm" else {key: names[0], **variant(kind, table).filled()}
            if in_json(rest) == in_json(table):
                return Shape(table, foreign=False)
        except (BadInput, TypeError, ValueError):
            pass  # its fields hold what no file can say; so it is told by its source
    return Shape({key: type(value).__name__, **identity_of(value)}, foreign=True)


REGISTRIES: dict[str, Callable[[], tuple[str, dict[str, type[Any]]]]] = {
    "problem": lambda: ("name", {name: entry.task for name, entry in PROBLEMS.items()}),
    "fleet": lambda: ("model", dict(FLEETS)),
    "merge": lambda: ("rule", dict(MERGES)),
    "algorithm": lambda: (
        "algorithm",
        {name: entry.rule for name, entry in ALGORITHMS.items() if not entry.fixed},
    ),
}


def called(algorithm: Any) -> str:
    """What an algorithm is called that nobody has given a name: as an experiment file would, or its class."""
    rule = algorithm if isinstance(algorithm, type) else type(algorithm)
    _, known = REGISTRIES["algorithm"]()
    return next((name for name, cls in known.items() if cls is rule), rule.__name__)


def fields_of(value: Any) -> dict[str, Any]:
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
    found: dict[str, Any] = {"class": type(value).__qualname__, "sha256": _code(type(value))}
    if dataclasses.is_dataclass(value):
        found |= {name: own for name, own in fields_of(value).items() if _is_plain(own)}
    federation = getattr(value, "federation", None)
    if isinstance(federation, Federation):
        parts = {"sizes": {"": federation.sizes}, "read": federation.reading()}
        found["data"] = hashed({"rows": federation.rows, "own": federation.own, **parts})
    return found


_OURS = {"builtins", "abc", "typing", "dataclasses", "torch", "fedsaddle"}  # whose versions a folder has


def _code(cls: type[Any]) -> str:
    """A hash of the code of a class, and of those that it is derived from."""
    parts: list[Any] = []
    for one in cls.__mro__:
        if one.__module__.split(".")[0] not in _OURS:
            # Of two classes of one name in a file, Python finds the source of one; their methods differ.
            found = (
                getattr(own, "fget", None) or getattr(own, "__func__", own) for own in vars(one).values()
            )
            own = [part for part in found if inspect.isfunction(part)]
            parts += [one, *(part for part in own if part.__code__.co_filename != "<string>")]
    return fingerprint(parts)


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def of_numpy(value: Any) -> Any:
    """A number of NumPy's, or an array, as JSON has it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise BadInput(f"{shown(value)} cannot be a value of an experiment")


def in_json(found: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it: lists for tuples, Python's numbers for NumPy's."""
    again: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False, default=of_numpy))
    return again
