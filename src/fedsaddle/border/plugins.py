"""A person's own code, as an experiment names it: where it is, and whether it may be run.

    "my_rules.py:ServerMomentum"         of a file, seen from the experiment that names it
    "my_package.rules:ServerMomentum"    of a module of an installed package
    "server-momentum"                    an entry point of one, in the group fedsaddle.algorithms

An experiment, or the folder of a run, may come from anybody. So a file is run only if a person has named it
beside the experiment (`--code`, in Python `code=`), and a module only if it belongs to an installed package
that says it is for FedSaddle. Here nothing is run and nothing that takes time is imported: places are found,
and files are hashed. What is run is `plugged`'s affair.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import machinery, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from fedsaddle.errors import BadInput, meant

if TYPE_CHECKING:
    from importlib.metadata import Distribution

# What there may be more of, and what one of them is called.
GROUPS = {
    "algorithms": "algorithm",
    "problems": "problem",
    "networks": "network",
    "fleets": "fleet",
    "datasets": "dataset",
}
OURS = "fedsaddle"


# --- references ------------------------------------------------------------------------------------------


class Reference(NamedTuple):
    """Something of a file or of a module."""

    place: str
    name: str

    @property
    def of_file(self) -> bool:
        return self.place.endswith(".py")

    @property
    def bare(self) -> str:
        """Without where the file lies, which is each machine's own affair."""
        return f"{Path(self.place).name if self.of_file else self.place}:{self.name}"

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"


def reference_in(text: object) -> Reference | None:
    """What a value of an experiment refers to; None for a plain name."""
    place, sign, name = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    known = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
    return Reference(place, name) if sign and name.isidentifier() and known else None


class Use(NamedTuple):
    """A place in an experiment that names something there may be more of."""

    where: str
    group: str
    table: dict[str, Any]
    key: str
    value: object


def uses(tables: Mapping[str, Any], only: Sequence[str] = ()) -> Iterator[Use]:
    """Every such place; of the algorithms, `only` some."""
    problem, fleet, rules = (_table(tables, key) for key in ("problem", "fleet", "algorithms"))
    for key, group in (("name", "problems"), ("network", "networks"), ("dataset", "datasets")):
        if key in problem:
            yield Use(f"problem.{key}", group, problem, key, problem[key])
    if "model" in fleet:
        yield Use("fleet.model", "fleets", fleet, "model", fleet["model"])
    drawn = _table(tables, "sweep").get("settings")  # a resolved sweep: its algorithms are settings
    chosen = {meant(name, rules) for name in only} if only and not drawn else set(rules)
    for label, own in rules.items():
        if isinstance(own, dict) and label in chosen:
            value = own.get("algorithm", label)
            yield Use(f"algorithms.{label}.algorithm", "algorithms", own, "algorithm", value)


def _table(tables: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = tables.get(key)
    return found if isinstance(found, dict) else {}


def see_from(folder: Path, tables: dict[str, Any]) -> None:
    """Let the files that an experiment names as code be seen from here, not from its folder."""

    def seen(text: Any) -> Any:
        reference = reference_in(text)
        return f"{folder / reference.place}:{reference.name}" if reference and reference.of_file else text

    for use in list(uses(tables)):
        if use.key in use.table:
            use.table[use.key] = seen(use.value)
    pins = _table(tables, "code")
    for group, own in pins.items():
        if isinstance(own, dict):
            pins[group] = {seen(name): pin for name, pin in own.items()}


# --- files -----------------------------------------------------------------------------------------------


def read_code(path: Path) -> bytes:
    """A file of code: what is hashed is what is run."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise BadInput(f"{path} is not a file of code")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # also a path that no file can have
        raise BadInput(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def sha256_of(path: Path) -> str:
    return hashlib.sha256(read_code(path)).hexdigest()


def pinned(tables: Mapping[str, Any], group: str, name: str) -> dict[str, str]:
    """What an experiment says about some code: its hash, above all."""
    found = _table(_table(tables, "code"), group).get(name)
    return found if isinstance(found, dict) else {}


def approved(use: Use, reference: Reference, code: Sequence[str | Path], pin: Mapping[str, str]) -> Path:
    """The file that a person has named for a reference.

    It may lie elsewhere than when the experiment was resolved, on another machine perhaps, if it is called
    the same and its hash is the one that the experiment holds.
    """
    wanted = Path(reference.place)
    for own in map(Path, code):
        if os.path.realpath(own) == os.path.realpath(wanted):
            return own
        if own.name == wanted.name and pin.get("sha256") == sha256_of(own):
            return own
    raise BadInput(
        f"{use.where}: {wanted} is code, and code that an experiment names is run only if you say so: read "
        f"it, and if you trust it add --code {wanted} (in Python, code=['{wanted}'])"
    )


def check_code(code: Sequence[str | Path]) -> None:
    """Refuse what was named as code and is none."""
    for one in code:
        if Path(one).suffix != ".py":
            raise BadInput(f"code is a Python file, such as my_rules.py; got '{one}'")
        read_code(Path(one))


def check_approved(
    tables: dict[str, Any], folder: Path | None, code: Sequence[str | Path], only: Sequence[str] = ()
) -> None:
    """Refuse an experiment with a file of code that nobody has named. For a slip, to be answered at once."""
    check_code(code)
    if folder is not None:
        see_from(folder, tables)
    for use in uses(tables, only):
        reference = reference_in(use.value)
        if reference is not None and reference.of_file:
            approved(use, reference, code, pinned(tables, use.group, str(use.value)))


def files_of(resolved: Mapping[str, Any]) -> list[str]:
    """The files of code that a run has of its own."""
    found = {
        reference.place: None
        for own in resolved.get("code", {}).values()
        for reference in map(reference_in, own)
        if reference is not None and reference.of_file
    }
    return list(found)


def again(resolved: Mapping[str, Any]) -> str:
    """What a command must say to go on with a run."""
    return "".join(f" --code {_quoted(place)}" for place in files_of(resolved))


def _quoted(place: str) -> str:
    import shlex

    return shlex.quote(place)


# --- installed packages ----------------------------------------------------------------------------------


class Installed(NamedTuple):
    """A module of an installed package."""

    module: str
    file: Path
    package: str
    version: str
    sha256: str  # of all Python files of the package that the module is in


class EntryPoint(NamedTuple):
    """A name that an installed package gives to something of its own."""

    group: str
    name: str
    value: str
    package: str
    version: str

    @property
    def home(self) -> str:
        return f"{self.package} {self.version}"


def distributions() -> Iterator[Distribution]:
    """What is installed. A folder that somebody happens to be in is no place where things are installed."""
    from importlib.metadata import distributions as every

    here = os.path.realpath(os.curdir)
    return (one for one in every() if os.path.realpath(str(one.locate_file(""))) != here)


def entry_points(*groups: str) -> list[EntryPoint]:
    """What installed packages add to some groups, in order. Only their metadata are read."""
    known = {f"{OURS}.{group}": group for group in groups}
    found: dict[str, list[EntryPoint]] = {}  # by the package, of which the first on the path counts
    for one in distributions():
        if f"[{OURS}." in (one.read_text("entry_points.txt") or "") and one.name not in found:
            found[one.name] = [
                EntryPoint(known[point.group], point.name, point.value, one.name, one.version)
                for point in one.entry_points
                if point.group in known
            ]
    return sorted(point for own in found.values() for point in own)


def locate(module: str) -> Installed:
    """A module of an installed package, by its file. Not even its parents are imported."""
    top, *rest = module.split(".")
    if top == OURS:
        raise BadInput(f"{module} comes with FedSaddle: what it holds has a name, see fedsaddle list")
    try:
        spec = first = util.find_spec(top)
    except (ImportError, ValueError):
        spec = first = None
    for depth in range(len(rest)):
        inside = None if spec is None else spec.submodule_search_locations
        name = ".".join((top, *rest[: depth + 1]))
        spec = None if inside is None else machinery.PathFinder.find_spec(name, list(inside))
    if first is None or spec is None or not spec.has_location or spec.origin is None:
        raise BadInput(
            f"there is no installed module '{module}'; install it, or name a file: my_code.py:NAME"
        )
    file, owner = Path(spec.origin).resolve(), None
    for owns in (_holds, _points_to):
        owner = owner or next((one for one in distributions() if owns(one, file)), None)
    if owner is None:
        raise BadInput(
            f"'{module}' ({file}) belongs to no installed package: install it (pip install -e .), "
            "or name a file, such as my_code.py:NAME, and say --code"
        )
    if not _is_for_us(owner):
        raise BadInput(
            f"the package {owner.name} does not say that it is for FedSaddle: it needs 'fedsaddle' among its "
            f"dependencies, or an entry point in a group such as {OURS}.problems"
        )
    whole = first.origin if first.submodule_search_locations else None
    root = Path(whole).resolve().parent if whole else None
    return Installed(module, file, owner.name, owner.version, _digest(file, root))


def _holds(one: Distribution, file: Path) -> bool:
    """Whether a distribution has put a file where it is."""
    root = Path(str(one.locate_file(""))).resolve()
    if not file.is_relative_to(root):
        return False
    relative = re.escape(file.relative_to(root).as_posix())
    return bool(re.search(rf'^"?{relative}"?,', one.read_text("RECORD") or "", flags=re.M))


def _points_to(one: Distribution, file: Path) -> bool:
    """Whether a distribution is a checkout, installed as it is, and a file is of it."""
    try:
        told = json.loads(one.read_text("direct_url.json") or "{}")
        url = urlsplit(told["url"]) if told.get("dir_info", {}).get("editable") else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return False
    if url is None or url.scheme != "file":
        return False
    root = Path(unquote(url.path)).resolve()
    # A checkout often has an environment inside, and what is installed there is not its own.
    return file.is_relative_to(root) and "site-packages" not in file.relative_to(root).parts


def _is_for_us(one: Distribution) -> bool:
    if any(re.match(rf"{OURS}(?![\w.-])", needed, flags=re.I) for needed in one.requires or ()):
        return True
    return any(point.group in {f"{OURS}.{group}" for group in GROUPS} for point in one.entry_points)


def _digest(file: Path, root: Path | None) -> str:
    """The hash of a module alone, or with all Python files of its package."""
    if root is None:
        return sha256_of(file)
    found = hashlib.sha256()
    for path in sorted({file, *root.rglob("*.py")}):
        found.update(f"{path.relative_to(root).as_posix()} {sha256_of(path)}\n".encode())
    return found.hexdigest()
