"""Skeletons: a small algorithm, problem or experiment of one's own that runs, with a test of its own."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from importlib import util
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.border import files, plugins
from fedsaddle.errors import BadInput, unknown

# What is written for each kind: the skeleton, and what the file is called.
SKELETONS = {
    "algorithm": {"{}.py": "algorithm.py", "{}.toml": "algorithm.toml", "test_{}.py": "test_algorithm.py"},
    "problem": {"{}.py": "problem.py", "{}.toml": "problem.toml", "test_{}.py": "test_problem.py"},
    "experiment": {"{}.toml": "experiment.toml", "test_{}.py": "test_experiment.py"},
}
SPOKEN_FOR = (
    "State",
    "NamedTuple",
    "Path",
    "Way",
    "Metric",
    "Pair",
    "Count",
    "Batch",
    "Federation",
    "Above0",
)


class Written(NamedTuple):
    """What was written, and what to type next."""

    paths: list[Path]
    run: str
    test: str


def write_skeleton(kind: str, name: str, folder: Path) -> Written:
    """Write a skeleton into a folder. Nothing is overwritten."""
    if kind not in SKELETONS:
        raise unknown("kind of skeleton", kind, SKELETONS)
    called = _class_of(name)
    _check_name(kind, name, called)
    texts = {
        folder / file.format(name): _skeleton(source)
        .replace("skeleton_name", name)
        .replace("SkeletonName", called)
        for file, source in SKELETONS[kind].items()
    }
    for path in texts:
        if path.exists() or path.is_symlink():
            raise BadInput(f"{path} is there already: choose another name, or another folder with --out")
    if kind != "experiment" and util.find_spec(name) is not None:
        raise BadInput(f"a module '{name}' is installed, which {name}.py would hide: choose another name")
    _write(folder, texts)
    quoted = {path.name: shlex.quote(str(path)) for path in texts}
    code = f" --code {quoted[f'{name}.py']}" if kind != "experiment" else ""
    test = f"python -m pytest {quoted[f'test_{name}.py']}"
    return Written(list(texts), f"fedsaddle run {quoted[f'{name}.toml']}{code}", test)


def _class_of(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _check_name(kind: str, name: str, called: str) -> None:
    would = f"{re.sub(r'[^A-Za-z0-9]+', '_', name).strip('_0123456789') or 'mine'}"
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,79}", name):
        raise BadInput(
            f"a name begins with a letter and holds letters, digits and '_', such as {would}; got '{name}'"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or keyword.iskeyword(called):
        raise BadInput(f"'{name}' is a word of Python's: choose another name, such as my_{name}")
    if (
        name.lower().startswith("test")
        or name in sys.stdlib_module_names
        or called in SPOKEN_FOR
        or name == plugins.OURS
    ):
        raise BadInput(f"'{name}' means something else already: choose another name, such as my_{name}")
    shipped: dict[str, dict[str, Any]] = {
        "algorithm": files.algorithms(),
        "problem": files.problems(),
        "experiment": dict.fromkeys(files.names()),
    }
    group = f"{kind}s"
    points = [point.name for point in plugins.entry_points(group)] if group in plugins.GROUPS else []
    plain = name.lower().replace("_", "-")
    if plain in shipped[kind] or plain in (point.lower().replace("_", "-") for point in points):
        raise BadInput(f"'{plain}' is the name of another {kind}: choose another name, such as my_{name}")


def _skeleton(name: str) -> str:
    return (resources("fedsaddle.app") / "skeletons" / f"{name}.txt").read_text(encoding="utf-8")


def _write(folder: Path, texts: dict[Path, str]) -> None:
    """All of them, or none."""
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise BadInput(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
