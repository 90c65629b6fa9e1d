"""A person's own code, run and checked: it becomes part of what there is.

`plug` goes through an experiment before its tables are checked. What it finds stands in `PLUGGED` (or, of
networks and datasets, beside those that ship) under the name that the experiment then calls it by. The
experiment holds the hash of all code that it needs; other code is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import os
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from fedsaddle import algorithms, problems
from fedsaddle.border import plugins
from fedsaddle.border.plugins import GROUPS, Installed, Reference, Use
from fedsaddle.core import Scalar
from fedsaddle.data.datasets import DATASETS, Dataset
from fedsaddle.data.tables import is_table
from fedsaddle.engine.executors.ray import SENT_AS_CODE
from fedsaddle.errors import BadInput, unknown
from fedsaddle.fleet import FLEETS
from fedsaddle.networks import NETWORKS
from fedsaddle.problems.gan import DATA, PLAYERS

# What has been loaded, by the name that an experiment calls it.
PLUGGED: dict[str, dict[str, Any]] = {"algorithms": {}, "problems": {}, "fleets": {}}
SHIPPING: dict[str, Mapping[str, Any]] = {
    "algorithms": algorithms.ALGORITHMS,
    "problems": problems.PROBLEMS,
    "fleets": FLEETS,
}
_NETWORKS, _DATASETS = frozenset({*NETWORKS, *PLAYERS}), frozenset({*DATASETS, *DATA})
_OWN: set[type[Any]] = set()  # the classes that are no part of the package
_TASKS: set[type[Any]] = set()  # those of them that are problems, or stand for a function that makes one

NEEDED = {
    "algorithms": ("init", "phases"),
    "problems": ("init", "evaluate"),
    "fleets": ("check", "delays"),
}
TOLD = ("features", "outputs", "shape")  # what a network's function may ask for


def _ships(group: str, name: str) -> bool:
    if group in SHIPPING:
        return name in SHIPPING[group]
    own = _NETWORKS if group == "networks" else _DATASETS
    return name in own or (group == "datasets" and is_table(name))


def plug(tables: dict[str, Any], code: Sequence[str | Path] = (), only: Sequence[str] = ()) -> list[str]:
    """Load what an experiment names and does not ship, and write into it what that is, by its hash.

    A file must be among `code`, which a person has named. Of the algorithms, `only` some may be asked for.
    Returns what has no effect.
    """
    plugins.check_code(code)
    _check_pins(tables)
    found: dict[str, dict[str, dict[str, str]]] = {}
    used: set[Path] = set()
    for use in list(plugins.uses(tables, only)):
        if not isinstance(use.value, str) or _ships(use.group, use.value):
            continue
        reference, pin = plugins.reference_in(use.value), plugins.pinned(tables, use.group, use.value)
        try:
            if reference is not None and reference.of_file:
                file = plugins.approved(use, reference, code, pin)
                used.add(file)
                name, record, thing = _of_file(reference, file, pin)
            elif (home := _installed(use, reference)) is not None:
                name, record, thing = _of_module(use, *home, pin)
            else:
                continue
            _register(use.group, name, thing)
        except BadInput as error:
            told = str(error)
            raise BadInput(told if told.startswith(use.where) else f"{use.where}: {told}") from error
        if use.key in use.table:
            use.table[use.key] = name
        found.setdefault(use.group, {})[name] = record
    tables.pop("code", None)
    if found:
        tables["code"] = found
    return [f"--code {one} has no effect: nothing of it is used" for one in code if Path(one) not in used]


def _check_pins(tables: Mapping[str, Any]) -> None:
    pins = tables.get("code", {})
    held = pins.values() if isinstance(pins, dict) else [None]
    if not all(isinstance(own, dict) and all(isinstance(pin, dict) for pin in own.values()) for own in held):
        raise BadInput("code holds hashes, such as [code.algorithms.'my_rules.py:Mine'] with a key sha256")
    named = {(use.group, str(use.value)) for use in plugins.uses(tables)}
    for group, own in pins.items():
        if group not in GROUPS:
            raise unknown("key in code", str(group), GROUPS)
        for name in own:
            if (group, name) not in named:
                raise BadInput(f"code.{group}.{name}: nothing in the experiment is called that")


# --- finding ---------------------------------------------------------------------------------------------


def _of_file(reference: Reference, file: Path, pin: Mapping[str, str]) -> tuple[str, dict[str, str], Any]:
    """What a file holds under a name; with the name that it has from now on, and its hash."""
    source = plugins.read_code(file)
    digest = hashlib.sha256(source).hexdigest()
    if pin.get("sha256", digest) != digest:
        raise BadInput(f"the code {file} has changed: its sha256 is {digest}, not {pin['sha256']}")
    same = Path(reference.place).resolve() == file.resolve()
    name = f"{file.resolve()}:{reference.name}" if same else str(reference)
    module = _run(source, file, hashlib.sha256(f"{file.resolve()} {digest}".encode()).hexdigest())
    return name, {"sha256": digest}, _attribute(module, reference.name, str(file))


def _run(source: bytes, file: Path, key: str) -> ModuleType:
    """The module that a file makes; it is made once, so that its classes are the same every time."""
    called = f"{SENT_AS_CODE}{file.stem}_{key[:16]}"
    if called in sys.modules:
        return sys.modules[called]
    module = ModuleType(called)
    module.__file__ = str(file.resolve())
    sys.modules[called] = module  # where a dataclass looks up the types of its fields
    try:
        with _alone(file):
            exec(compile(source, str(file), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[called]
        raise BadInput(f"{file} cannot be imported: {in_a_line(error, file)}") from error
    except BaseException:
        del sys.modules[called]
        raise
    return module


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Let a file not import its neighbours, even where their folder is on the path: nobody hashes them."""
    before, folder = list(sys.path), os.path.realpath(file.parent)
    sys.path[:] = [one for one in before if os.path.realpath(one) != folder]
    try:
        yield
    finally:
        sys.path[:] = before


def _installed(use: Use, reference: Reference | None) -> tuple[str, Reference] | None:
    """What a name stands for that is no file's: itself, or what an entry point of that name leads to."""
    name = str(use.value)
    if reference is not None:
        return name, reference
    if name.endswith(".py"):
        raise BadInput(f"say what of {name} is meant, as {name}:NAME")
    points = plugins.entry_points(use.group)
    chosen = [point for point in points if point.name == name]
    if len(chosen) > 1:
        homes = " and ".join(point.home for point in chosen)
        raise BadInput(f"'{name}' is a name that {homes} give; say {chosen[0].value} or {chosen[1].value}")
    if not chosen:
        if points and use.group in SHIPPING:
            raise unknown(GROUPS[use.group], name, {*SHIPPING[use.group], *(point.name for point in points)})
        return None
    reference = plugins.reference_in(chosen[0].value.split("[")[0].strip())
    if reference is None:
        raise BadInput(
            f"the entry point '{name}' of {chosen[0].home} leads to '{chosen[0].value}', not module:NAME"
        )
    return name, reference


def _of_module(
    use: Use, name: str, reference: Reference, pin: Mapping[str, str]
) -> tuple[str, dict[str, str], Any]:
    """What a module of an installed package holds under a name."""
    home = plugins.locate(reference.place)
    record = {
        "sha256": home.sha256,
        "module": str(reference),
        "package": home.package,
        "version": home.version,
    }
    for key, what in (
        ("sha256", f"the code of {home.package} ({home.file.parent})"),
        ("version", home.package),
    ):
        if pin.get(key, record[key]) != record[key]:
            raise BadInput(f"{what} has changed: its {key} is {record[key]}, not {pin[key]}")
    return name, record, _attribute(_import(home, name), reference.name, reference.place)


def _import(home: Installed, name: str) -> ModuleType:
    try:
        module = importlib.import_module(home.module)
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"{name} of {home.package} {home.version} cannot be imported: {in_a_line(error, home.file)}"
        ) from error
    if Path(getattr(module, "__file__", None) or "").resolve() != home.file:
        raise BadInput(
            f"{home.module} was imported from {getattr(module, '__file__', '')}, not from {home.file}"
        )
    return module


def _attribute(module: ModuleType, name: str, place: str) -> Any:
    if name not in vars(module):
        own = [
            key
            for key, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__ and callable(value) and key[0] != "_"
        ]
        raise unknown(f"name in {place}", name, own)
    return vars(module)[name]


def in_a_line(error: BaseException, file: Path) -> str:
    """An error in somebody's code, in a line: what, and where in their file."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if _same(frame.filename, file)]
    number = error.lineno if isinstance(error, SyntaxError) else places[-1].lineno if places else None
    where = f" ({file.name}, line {number})" if number else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(str(text).split())}{where}"


def _same(name: str, file: Path) -> bool:
    return Path(name).name == file.name and Path(name).resolve() == file.resolve()


# --- checking --------------------------------------------------------------------------------------------


def _register(group: str, name: str, thing: Any) -> None:
    """Let something be found under its name, if it is what it should be."""
    if group == "networks":
        NETWORKS[name] = _network(name, thing)
    elif group == "datasets":
        DATASETS[name] = _dataset(name, thing)
    elif group == "problems" and inspect.isfunction(thing):
        own = _signed(name, thing)
        PLUGGED[group][name] = problems.Entry(own, summary(thing))
    else:
        _check_class(group, name, thing)
        _OWN.add(thing)
        if group == "problems":
            _TASKS.add(thing)
        entry = {"algorithms": algorithms.Entry, "problems": problems.Entry}.get(group)
        PLUGGED[group][name] = thing if entry is None else entry(thing, summary(thing))


def summary(thing: Any) -> str:
    """The first line of what it says about itself."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def _check_class(group: str, name: str, thing: Any) -> None:
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
    hints = _hints(name, thing)
    if group == "algorithms":
        for field in dataclasses.fields(thing):
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


def _signed(name: str, function: Callable[..., Any]) -> type[Any]:
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
    _OWN.add(schema)
    _TASKS.add(schema)
    return schema


def _same_again(value: Any) -> Any:
    return value


def finished(one: Any) -> Any:
    """What a table has become: itself, or what the function that it is for returns."""
    if type(one) not in _TASKS:
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
    return cls in _OWN


def source_of(thing: Any) -> Path:
    """Where a person's own class or function is written."""
    return Path(getattr(sys.modules.get(thing.__module__), "__file__", None) or thing.__module__)


def _network(name: str, thing: Any) -> Callable[..., nn.Module]:
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


def _dataset(name: str, thing: Any) -> Callable[[], Dataset]:
    if blanks := _blanks(name, "dataset", "a function that returns a Dataset", thing):
        raise BadInput(f"{name}: a dataset's function is told nothing, and asks for '{blanks[0]}'")

    def read() -> Dataset:
        made = _called(name, thing, {})
        if not isinstance(made, Dataset):
            raise BadInput(
                f"{name} must return a fedsaddle.data.datasets.Dataset, it returned {type(made).__name__}"
            )
        return made

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
