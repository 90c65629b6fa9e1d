"""Experiment files and --set, as tables; and what there is: experiments, algorithms, problems and fleets.

Nothing is checked here but that it can be read. The registries hold classes, and importing those takes
seconds, of PyTorch most of all. So their names and summaries are read off the sources instead: a person who
has mistyped a name should not have to wait.
"""

from __future__ import annotations

import ast
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.border import plugins
from fedsaddle.errors import BadInput, check_count, meant, shown, unknown

PACKAGE = files("fedsaddle")
SHIPPED = PACKAGE / "experiments"
LARGEST_FILE = 1 << 22  # bytes of an experiment file
KEY_PARTS = 64  # of a dotted key
# A dotted key begins where no word does; nothing is given back, so that looking takes one pass.
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_DEEP = re.compile(rf"(?<![\w.-])(?:{_PART}\.[ \t]*+){{{KEY_PARTS}}}")


# --- experiments -----------------------------------------------------------------------------------------


def names() -> list[str]:
    """The experiments that come with the package."""
    return sorted(
        path.name.removesuffix(".toml") for path in SHIPPED.iterdir() if path.name.endswith(".toml")
    )


def shipped() -> dict[str, str]:
    """The same, and what they are."""
    return {name: read_tables(name)[0].get("description", "") for name in names()}


def read_tables(experiment: str) -> tuple[dict[str, Any], Path | None]:
    """The tables of an experiment, by its name or its file, and the folder of that file."""
    path = Path(experiment)
    kind = path.suffix.lower()
    if kind in (".csv", ".npz"):
        raise BadInput(
            f"{path} is a table: an experiment, a TOML file, names it as problem.dataset (docs/data.md)"
        )
    if kind not in (".toml", ".json") and not os.path.isfile(experiment):
        name = meant(experiment, names())
        if name not in names() and os.path.isdir(experiment):
            raise BadInput(
                f"{path} is a folder: name a TOML file; or, to go on with a run, --resume --out FOLDER"
            )
        if name not in names():
            raise BadInput(f"{unknown('experiment', experiment, names())}; or give the path of a TOML file")
        return tomllib.loads((SHIPPED / f"{name}.toml").read_text(encoding="utf-8")), None
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise BadInput(f"{path} has more than {LARGEST_FILE >> 20} MiB, which no experiment needs")
        text = path.read_text(encoding="utf-8")
        tables = json.loads(text) if kind == ".json" else _toml(text)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"{path}: {str(error) or 'not a text file'}") from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deep to be an experiment") from None
    if not isinstance(tables, dict):
        raise BadInput(f"{path}: expected an experiment, got {type(tables).__name__}")
    if "python" in tables:
        raise BadInput(_of_python(tables, path))
    return tables, path.parent


def _toml(text: str) -> dict[str, Any]:
    """TOML, without keys of so many parts that tomllib would take gigabytes for them."""
    if _DEEP.search(text):
        raise ValueError(f"a key has more than {KEY_PARTS} parts")
    return tomllib.loads(text)


def made_in_python(path: Path) -> bool:
    """Whether an experiment.json was written for values made in Python, some of which no file can name."""
    try:
        tables = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # which whoever needs it will say
        return False
    return isinstance(tables, dict) and "python" in tables


def _of_python(tables: dict[str, Any], path: Path) -> str:
    """Why a run that was begun in Python cannot be gone on with by name."""
    foreign = found if isinstance(found := tables["python"], list) else []
    what = ", ".join(map(str, foreign)) or "something"
    call = "sweep" if "sweep" in tables else "run"
    return (
        f"{path} was written by Python, and no experiment file can name its {what}: go on there, with "
        f"fs.{call}(the same problem, ..., out={str(path.parent)!r}, resume=True)"
    )


# Keys of a problem or a fleet that may hold the path of a file, and whether they always do.
PATHS = {
    "fleet": {"path": True},
    "problem": {"dataset": False, "test": False, "path": True, "inception": True},
}


def tables_of(experiment: str) -> dict[str, Any]:
    """The tables of an experiment, with the files that they name as they are seen from here."""
    from fedsaddle.data.tables import is_table  # which takes its time

    tables, folder = read_tables(experiment)
    if folder is None:
        return tables
    for place, keys in PATHS.items():
        table = found if isinstance(found := tables.get(place), dict) else {}
        for key, always in keys.items():
            path = table.get(key)
            if isinstance(path, str) and path and (always or is_table(path)):
                table[key] = str(folder / path)  # a file is seen from the experiment that names it
    plugins.see_from(folder, tables)
    return tables


# --- options ---------------------------------------------------------------------------------------------


INSTEAD = ("rounds", "seeds", "engine", "device", "deterministic", "history")  # of keys of the experiment
ANY_CASE = ("engine", "device")  # as their options take it


def as_asked(tables: dict[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Change the tables of an experiment to what is wanted instead: what --set has set, by its keys."""
    given = {key: wanted[key] for key in INSTEAD if wanted.get(key) is not None}
    clients = wanted.get("clients")
    tables |= given
    options = given | ({} if clients is None else {"problem.clients": clients})
    said = assign(tables, wanted.get("settings") or (), options)
    if clients is not None:
        _shrink(tables, clients)
    return said


def _shrink(tables: dict[str, Any], clients: int) -> None:
    """Change an experiment to one with so many clients, of which a quorum asks no more than there are."""
    check_count("clients", clients)
    tables["problem"] = {**table_in(tables, "problem"), "clients": clients}
    quorum = {"invite": 8, **table_in(tables, "quorum")}
    asking = [quorum, *(rule for rule in table_in(tables, "algorithms").values() if isinstance(rule, dict))]
    for table in asking:
        for key in {"invite", "enough", "minimum", "collect"} & table.keys():
            if isinstance(table[key], int):
                table[key] = min(table[key], clients)
    tables["quorum"] = quorum


def table_in(tables: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table of an experiment; an empty one, where there is none."""
    found = tables.get(key)
    return found if isinstance(found, dict) else {}


def assign(tables: dict[str, Any], assignments: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """Apply every `a.b=value` to the tables of an experiment: the keys with their values.

    A key that was `given` otherwise, or by another of them, is refused.
    """
    said: dict[str, Any] = {}
    for assignment in assignments:
        key, value = _assign(tables, assignment)
        known = given | said
        if (before := known.get(key)) != value and key in known:
            raise BadInput(f"{key} is said twice, as {shown(before)} and as {shown(value)}: say it once")
        said[key] = value
    return said


def _assign(tables: dict[str, Any], assignment: str) -> tuple[str, Any]:
    key, sign, text = assignment.partition("=")
    if not sign or not all(part.strip() for part in key.split(".")):
        raise BadInput(f"--set takes key=value, such as problem.kappa=20; got '{assignment}'")
    if not assignment.isprintable():
        raise BadInput(f"--set takes one line, got '{assignment}'")
    try:
        value = _toml(f"value = {text}")["value"]
    except ValueError:
        value = text  # a word needs no quotes
    except RecursionError:
        raise BadInput(f"--set {key}: nested too deep") from None
    *path, last = (part.strip() for part in key.split("."))
    if path[:1] == ["algorithms"] and len(path) > 1:  # in any case, as --algorithm takes it
        path[1] = meant(path[1], table_in(tables, "algorithms"))
    if not path and last in ANY_CASE and isinstance(value, str):
        value = value.lower()
    for part in path:
        tables = tables.setdefault(part, {})
        if not isinstance(tables, dict):
            raise BadInput(f"--set {assignment}: '{part}' is a value, not a table")
    tables[last] = value
    return ".".join((*path, last)), value


def parse_seeds(seeds: str | Sequence[int]) -> list[int]:
    """0-4 or 0,3,7-9 or a list."""
    found = [] if isinstance(seeds, str) else list(seeds)
    for part in seeds.split(",") if isinstance(seeds, str) else ():
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", part)
        if not match:
            raise BadInput(f"seeds must look like 0-4 or 0,3,7-9, got '{seeds}'")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= 100_000:
            raise BadInput(f"seeds must go up, and be at most 100000, got '{part.strip()}'")
        found += range(first, last + 1)
    if twice := [seed for seed, times in Counter(found).items() if times > 1]:
        raise BadInput(f"seeds: seed {twice[0]} is given twice")
    return found


def parse_address(text: str, what: str) -> tuple[str, int]:
    """HOST:PORT"""
    host, sign, port = text.rpartition(":")
    if not sign or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise BadInput(f"{what} takes HOST:PORT, such as 127.0.0.1:9092; got '{text}'")
    return host.strip("[]"), int(port)


# --- registries ------------------------------------------------------------------------------------------


class Listed(NamedTuple):
    """Something that an experiment may name."""

    name: str
    home: str  # shipped, a package and its version, or file
    summary: str


def listed(code: Sequence[Path] = ()) -> dict[str, list[Listed]]:
    """All there is: what ships, what installed packages add, and what some files hold. None of it is run."""
    shipping = {
        "experiments": shipped(),
        "algorithms": algorithms(),
        "problems": problems(),
        "fleets": fleets(),
        "networks": networks(),
        "datasets": datasets(),
    }
    found = {
        title: [Listed(name, "shipped", summary) for name, summary in own.items()]
        for title, own in shipping.items()
    }
    points = plugins.entry_points(*plugins.GROUPS)
    for point in points:
        others = [one.home for one in points if one[:2] == point[:2] and one != point]
        told = point.value
        if point.name in shipping[point.group]:
            told = f"refused: what ships has this name; say {told}"
        elif others:
            told = f"refused: {', '.join(others)} has this name too; say {told}"
        found[point.group].append(Listed(point.name, point.home, told))
    for path in code:
        for group, name, summary in _held(path):
            found[group].append(Listed(f"{path}:{name}", "file", summary))
    return found


def _held(path: Path) -> Iterator[tuple[str, str, str]]:
    """What a file seems to hold, by its text: the group, the name and the summary of each."""
    plugins.check_code([path])
    try:
        body = ast.parse(plugins.read_code(path)).body
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{path} is not Python: {error}") from None
    methods = {"phases": "algorithms", "delays": "fleets", "loss": "problems", "field": "problems"}
    results = {"Module": "networks", "Dataset": "datasets", "Problem": "problems", "task": "problems"}
    for node in body:
        groups: list[str] = []
        if isinstance(node, ast.ClassDef):
            own = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            groups = [group for method, group in methods.items() if method in own]
            groups += ["networks" for base in node.bases if ast.unparse(base).split(".")[-1] == "Module"]
        elif isinstance(node, ast.FunctionDef):
            given = [one.value for one in ast.walk(node) if isinstance(one, ast.Return)]
            called = [ast.unparse(one.func) for one in given if isinstance(one, ast.Call)]
            told = "" if node.returns is None else ast.unparse(node.returns).strip("'\"")
            ends = {one.split(".")[-1] for one in (told, *called)}
            groups = [group for result, group in results.items() if result in ends]
        if groups and isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield groups[0], node.name, (ast.get_docstring(node) or "").split("\n")[0]


def algorithms() -> dict[str, str]:
    return _summaries("algorithms/__init__.py", "ALGORITHMS")


def problems() -> dict[str, str]:
    return _summaries("problems/__init__.py", "PROBLEMS")


def fleets() -> dict[str, str]:
    return _summaries("fleet.py", "FLEETS")


def networks() -> dict[str, str]:
    return _summaries("networks.py", "NETWORKS")


def datasets() -> dict[str, str]:
    from fedsaddle.data import sources

    digits = {"digits": "handwritten digits of scikit-learn's, 1,797 grey images of 8 x 8"}
    return digits | {name: own.title for name, own in sources.CATALOGUE.items() if name != "inception"}


def _summaries(file: str, registry: str) -> dict[str, str]:
    """The names of a registry, each with its Entry's summary or the first line of its class."""
    told = {
        node.name: (ast.get_docstring(node) or "").split("\n")[0]
        for node in parsed(file)
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    return {
        name: ast.literal_eval(value.args[1]) if isinstance(value, ast.Call) else told[ast.unparse(value)]
        for name, value in _registry(file, registry)
    }


def classes(file: str, registry: str) -> dict[str, str]:
    """The names of a registry, and what the class of each is called."""
    return {
        name: ast.unparse(value.args[0] if isinstance(value, ast.Call) else value)
        for name, value in _registry(file, registry)
    }


def fixed(file: str, registry: str, name: str) -> dict[str, Any]:
    """What a name of a registry says of its class's fields."""
    value = dict(_registry(file, registry))[name]
    return ast.literal_eval(value.args[2]) if isinstance(value, ast.Call) and len(value.args) > 2 else {}


def _registry(file: str, registry: str) -> Iterator[tuple[str, ast.expr]]:
    """What a dict of a file holds, as it is written."""
    for node in parsed(file):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if ast.unparse(target) == registry:
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    assert key is not None
                    yield ast.literal_eval(key), value


def first_words(file: str, kind: str) -> list[str]:
    """The words that calls of `kind` in a file begin with: the names of what is made there."""
    calls = [node for part in parsed(file) for node in ast.walk(part) if isinstance(node, ast.Call)]
    firsts = [call.args[0] for call in calls if ast.unparse(call.func) == kind and call.args]
    return [one.value for one in firsts if isinstance(one, ast.Constant) and isinstance(one.value, str)]


@cache
def parsed(file: str) -> list[ast.stmt]:
    """A source of this package."""
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body
