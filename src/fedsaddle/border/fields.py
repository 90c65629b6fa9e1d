"""The fields of dataclasses and their types, read off the sources of this package.

Importing the dataclasses takes seconds, of PyTorch most of all. So an annotation is evaluated by itself: a
name in it is looked up where its file has it from, and what is of another package is nothing that an
experiment file can hold.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from fedsaddle.border import files

LIGHT = ("typing", "fedsaddle.ranges", "fedsaddle.errors")  # what may be imported to know a type


class Foreign:
    """What a name stands for that no file can hold: a tensor, say, or a class of this package."""


class AsWritten(NamedTuple):
    """A field as it is written, and in which file."""

    annotation: ast.expr
    needed: bool
    file: str

    @property
    def hint(self) -> Any:
        return _evaluated(self.annotation, self.file)


@cache
def fields_written(file: str, name: str) -> dict[str, AsWritten]:
    """What a class of a file, or one that the file imports, is given when it is made."""
    node, home = _class(file, name)
    found: dict[str, AsWritten] = {}
    for base in node.bases:
        own = _class(home, base.id)[0] if isinstance(base, ast.Name) else None
        if own is not None and "dataclass" in " ".join(map(ast.unparse, own.decorator_list)):
            found |= fields_written(home, own.name)
    return found | {key: AsWritten(one.annotation, one.value is None, home) for key, one in _given(node)}


def _class(file: str, name: str) -> tuple[ast.ClassDef, str]:
    """Where a class is written that a file knows by this name; an empty one, if that is another package."""
    for node in files.parsed(file):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, file
        if isinstance(node, ast.ImportFrom) and name in {one.name for one in node.names}:
            home = _home(node.module or "")
            if home:
                return _class(home, name)
    return ast.ClassDef(name, [], [], [], []), file


def _home(module: str) -> str:
    """The file of a module of this package; nothing, if it is of another one."""
    package, *path = module.split(".")
    place = "/".join(path)
    if package != "fedsaddle":
        return ""
    return f"{place}.py" if (files.PACKAGE / f"{place}.py").is_file() else f"{place}/__init__.py"


def _given(node: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign]]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and not ast.unparse(one.annotation).startswith("ClassVar"):
            made = isinstance(one.value, ast.Call) and "init=False" in ast.unparse(one.value)
            if not made:
                yield ast.unparse(one.target), one


def value_written(file: str, name: str) -> Any:
    """What a name is in a file, if it is plainly written: a type, a number, a tuple of words."""
    for node in files.parsed(file):
        if isinstance(node, ast.ImportFrom) and name in {one.name for one in node.names}:
            if node.module in LIGHT:
                return getattr(import_module(node.module), name)
            home = _home(node.module or "")
            return value_written(home, name) if home else Foreign
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target) == name:
            return _evaluated(node.value, file)
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            return _evaluated(node.value, file)
    return getattr(builtins, name, Foreign)


class _Names(dict[str, Any]):
    """What the names of a file stand for."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __missing__(self, name: str) -> Any:
        return value_written(self.file, name)


@cache
def _evaluated(node: ast.expr, file: str) -> Any:
    # Of this package's own files alone, which `parsed` opens: they would be imported a moment later anyway.
    return eval(compile(ast.Expression(node), file, "eval"), {"__builtins__": {}}, _Names(file))


# --- what a type takes -------------------------------------------------------------------------------------

_WORDS: Mapping[Any, str] = {
    bool: "a valid boolean",
    int: "a valid integer",
    float: "a valid number",
    str: "a valid string",
    dict: "a valid dictionary",
    list: "a valid list",
    tuple: "a valid tuple",
}


def wanted(hint: Any, value: Any) -> str | None:
    """What would do instead of a value, as pydantic says it; none, if the value does, or cannot be judged."""
    origin, arms = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return wanted(arms[0], value)
    if origin is Literal:
        return None if value in arms else " or ".join(", ".join(map(repr, arms)).rsplit(", ", 1))
    if origin in (Union, UnionType):
        told = [wanted(arm, value) for arm in arms if arm not in (NoneType, Foreign)]
        fits = (value is None and NoneType in arms) or None in told or not told
        return None if fits else told[0]
    kind = origin or hint
    return None if kind not in _WORDS or _takes(kind, value) else _WORDS[kind]


def _takes(kind: type, value: Any) -> bool:
    """Strictly: a whole number is a number, a boolean is none."""
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def tuples(value: Any) -> Any:
    """As a dataclass holds what is a list in a file."""
    if isinstance(value, dict):
        return {key: tuples(item) for key, item in value.items()}
    return tuple(tuples(item) for item in value) if isinstance(value, list) else value
