"""A person's own code, run and checked: it becomes part of what there is.

`plug` goes through an experiment before its tables are checked. What it finds stands in `PLUGGED` (or, of
networks and datasets, beside those that ship) under the name that the experiment then calls it by. The
experiment holds the hash of all code that it needs; other code is refused.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsaddle import algorithms, problems
from fedsaddle.border import plugins
from fedsaddle.border.own import as_dataset, as_network, check_class, in_a_line, signed, summary
from fedsaddle.border.plugins import GROUPS, Installed, Reference, Use
from fedsaddle.data.datasets import DATASETS
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


def _ships(group: str, name: str) -> bool:
    if group in SHIPPING:
        return name in SHIPPING[group]
    own = _NETWORKS if group == "networks" else _DATASETS
    return name in own or (group == "datasets" and is_table(name))


def plug(
    tables: dict[str, Any],
    code: Sequence[str | Path] = (),
    only: Sequence[str] = (),
    groups: Collection[str] = tuple(GROUPS),
) -> list[str]:
    """Load what an experiment names and does not ship, and write into it what that is, by its hash.

    A file must be among `code`, which a person has named. Of the algorithms, `only` some may be asked for,
    and of all that an experiment names some `groups`. Returns what has no effect.
    """
    plugins.check_code(code)
    _check_pins(tables)
    found: dict[str, dict[str, dict[str, str]]] = {}
    used: set[Path] = set()
    for use in list(plugins.uses(tables, only)):
        if not isinstance(use.value, str) or _ships(use.group, use.value) or use.group not in groups:
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
        found.setdefault(use.group, {})[name] = record | {key: pin[key] for key in ("data",) if key in pin}
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


def _register(group: str, name: str, thing: Any) -> None:
    """Let something be found under its name, if it is what it should be."""
    if group == "networks":
        NETWORKS[name] = as_network(name, thing)
    elif group == "datasets":
        DATASETS[name] = as_dataset(name, thing)
    elif group == "problems" and inspect.isfunction(thing):
        own = signed(name, thing)
        PLUGGED[group][name] = problems.Entry(own, summary(thing))
    else:
        check_class(group, name, thing)
        entry = {"algorithms": algorithms.Entry, "problems": problems.Entry}.get(group)
        PLUGGED[group][name] = thing if entry is None else entry(thing, summary(thing))
