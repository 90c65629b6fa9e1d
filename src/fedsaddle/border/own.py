"""What is a person's own: whether it is what it should be, and what is said if it fails.

A frozen dataclass, or a function whose signature stands for one, is the schema of its table, as for what
ships. Every mistake in somebody's code ends in one line, with the file and the line in it.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import traceback
import typing
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from torch import nn

from fedsaddle.border.plugins import GROUPS
from fedsaddle.core import Scalar
from fedsaddle.data.datasets import Dataset
from fedsaddle.errors import BadInput
from fedsaddle.steady import BOUNDS

OWN: set[type[Any]] = set()  # the classes that are no part of the package
TASKS: set[type[Any]] = set()  # those of them that are problems, or stand for a function that makes one
NEEDED = {
    "algorithms": ("init", "phases"),
    "problems": ("init", "evaluate"),
    "fleets": ("check", "delays"),
}
BESIDE = ("algorithm", "invite", *BOUNDS)  # in an algorithm's table, what is no hyperparameter
TOLD = ("features", "outputs", "shape")  # what a network's function may ask for


def summary(thing: Any) -> str:
    """The first line of what it says about itself."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def check_class(group: str, name: str, thing: Any) -> None:
    what = GROUPS[group]
    kind = (
        "a frozen dataclass, or a function that returns one" if group == "problems" else "a frozen dataclass"
    )
    if not isinstance(thing, type) or not dataclasses.is_dataclass(thing):
        raise BadInput(f"{name} is no {what}: it must be {kind}, decorated with @dataclass(frozen=True)")
    if not thing.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise BadInput(f"{name} is a dataclass that can be changed: decorate it with @dataclass(frozen=True)")
    missing = [method for method in NEEDED[group] if not callable(getattr(thing, method, None))]
    if group == "problems" and not any(hasattr(thing, method) for method in ("loss", "field")):
        missing.append("loss (or field)")
    if missing:
        raise BadInput(f"{name} is no {what}: it has no method {', '.join(missing)}")
    OWN.add(thing)
    if group == "problems":
        TASKS.add(thing)
    hints = _hints(name, thing)
    if group == "algorithms":
        for field in dataclasses.fields(thing):
            if field.name in BESIDE:
                raise BadInput(
                    f"{name}: an algorithm's table has a key '{field.name}' beside its hyperparameters: call "
                    "the field something else"
                )
            if hints[field.name] not in (int, float, Scalar):
                raise BadInput(
                    f"{name}: the field '{field.name}' must be a number, such as core.StepSize or "
                    "core.Count: an algorithm's fields are its hyperparameters"
                )


def _hints(name: str, thing: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(thing)
    except Exception as error:
        raise BadInput(f"{name}: its types cannot be read: {type(error).__name__}: {error}") from error


def signed(name: str, function: Callable[..., Any]) -> type[Any]:
    """A dataclass whose fields are the parameters of a function: its signature is the schema."""
    hints = {} if not _hints(name, function) else typing.get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadInput(
                f"{name}: each parameter must have a name of its own, but '{parameter}' stands for others"
            )
        default = parameter.default
        if parameter.name not in hints and default in (parameter.empty, None):
            raise BadInput(
                f"{name}: say the type of '{parameter.name}', so that an experiment can be checked"
            )
        hint = hints.get(parameter.name, type(default))
        own = dataclasses.field(kw_only=True)
        if default is not parameter.empty:
            own = dataclasses.field(kw_only=True, default_factory=partial(_same_again, default))
        fields.append((parameter.name, hint, own))
    schema = dataclasses.make_dataclass(
        function.__name__, fields, frozen=True, namespace={"made_by": staticmethod(function)}
    )
    schema.__module__ = function.__module__
    OWN.add(schema)
    TASKS.add(schema)
    return schema


def _same_again(value: Any) -> Any:
    return value


def finished(one: Any) -> Any:
    """What a table has become: itself, or what the function that it is for returns."""
    if type(one) not in TASKS:
        return one
    make, made = getattr(type(one), "made_by", None), one
    if make is not None:
        made = make(**{field.name: getattr(one, field.name) for field in dataclasses.fields(one)})
    missing = [name for name in ("federation", "metrics", "init", "evaluate") if name not in dir(made)]
    if not {"loss", "field"} & set(dir(made)):
        missing.append("loss (or field)")
    if missing:
        whose = f"{type(one).__name__} is no problem: it"
        if make is not None:
            whose = f"{make.__name__} must return a problem; what it returned"
        raise BadInput(f"{whose} has no {', '.join(missing)}")
    made.federation, made.metrics  # noqa: B018  what cannot be had is told of now
    return made


def is_own(cls: type[Any]) -> bool:
    """Whether a class is a person's own, whose mistakes are told in a line."""
    return cls in OWN


def source_of(thing: Any) -> Path:
    """Where a person's own class or function is written."""
    return Path(getattr(sys.modules.get(thing.__module__), "__file__", None) or thing.__module__)


def as_network(name: str, thing: Any) -> Callable[..., nn.Module]:
    blanks = _blanks(name, "network", "a function that returns an nn.Module", thing)
    if strange := [blank for blank in blanks if blank not in TOLD]:
        raise BadInput(f"{name}: a network can be told {', '.join(TOLD)}, and asks for '{strange[0]}'")

    @wraps(thing)
    def build(**given: Any) -> nn.Module:
        made = _called(name, thing, given)
        if not isinstance(made, nn.Module):
            raise BadInput(f"{name} must return an nn.Module, it returned {type(made).__name__}")
        return made

    return build


def as_dataset(name: str, thing: Any) -> Callable[[], Dataset]:
    if blanks := _blanks(name, "dataset", "a function that returns a Dataset", thing):
        raise BadInput(f"{name}: a dataset's function is told nothing, and asks for '{blanks[0]}'")

    def read() -> Dataset:
        made = _called(name, thing, {})
        if not isinstance(made, Dataset):
            raise BadInput(
                f"{name} must return a fedsaddle.data.datasets.Dataset, it returned {type(made).__name__}"
            )
        return dataclasses.replace(made, sha256=())  # which is of files that an experiment names

    return read


def _blanks(name: str, what: str, kind: str, thing: Any) -> list[str]:
    """What a function must be told."""
    if not callable(thing):
        raise BadInput(f"{name} is no {what}: it must be {kind}")
    known = inspect.signature(thing).parameters.values()
    return [
        one.name
        for one in known
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def _called(name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    try:
        return function(**given)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{name} failed: {in_a_line(error, source_of(function))}") from error


def in_a_line(error: BaseException, file: Path) -> str:
    """An error in somebody's code, in a line: what, and where in their file."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if _same(frame.filename, file)]
    number = error.lineno if isinstance(error, SyntaxError) else places[-1].lineno if places else None
    where = f" ({file.name}, line {number})" if number else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(str(text).split())}{where}"


def _same(name: str, file: Path) -> bool:
    return Path(name).name == file.name and Path(name).resolve() == file.resolve()
