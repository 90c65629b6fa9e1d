"""What there is: experiments, and summaries of algorithms, problems and fleets.

The registries hold classes, and importing those takes seconds, of PyTorch most of all. So their names and
summaries are read off the sources instead: a person who has mistyped a name should not have to wait.
"""

from __future__ import annotations

import ast
import json
import os
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsaddle.errors import BadInput, meant, unknown

PACKAGE = files("fedsaddle")
SHIPPED = PACKAGE / "experiments"


# --- experiments -----------------------------------------------------------------------------------------


def names() -> list[str]:
    """The experiments that come with the package."""
    return sorted(
        path.name.removesuffix(".toml") for path in SHIPPED.iterdir() if path.name.endswith(".toml")
    )


def shipped() -> dict[str, str]:
    """The same, and what they are."""
    return {name: read(name)[0].get("description", "") for name in names()}


def read(experiment: str) -> tuple[dict[str, Any], Path | None]:
    """The tables of an experiment, by its name or its file, and the folder of that file."""
    path = Path(experiment)
    if path.suffix not in (".toml", ".json") and not os.path.isfile(experiment):
        name = meant(experiment, names())
        if name not in names():
            raise BadInput(f"{unknown('experiment', experiment, names())}; or give the path of a TOML file")
        return tomllib.loads((SHIPPED / f"{name}.toml").read_text(encoding="utf-8")), None
    try:
        text = path.read_text(encoding="utf-8")
        tables = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path}: {str(error) or 'not a text file'}") from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deep to be an experiment") from None
    if not isinstance(tables, dict):
        raise BadInput(f"{path}: expected an experiment, got {type(tables).__name__}")
    return tables, path.parent


# --- registries ------------------------------------------------------------------------------------------


def algorithms() -> dict[str, str]:
    return _summaries("algorithms/__init__.py", "ALGORITHMS")


def problems() -> dict[str, str]:
    return _summaries("problems/__init__.py", "PROBLEMS")


def fleets() -> dict[str, str]:
    return _summaries("fleet.py", "FLEETS")


def _summaries(file: str, registry: str) -> dict[str, str]:
    """The names of a registry, each with its Entry's summary or the first line of its class."""
    body = ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body
    told = {
        node.name: (ast.get_docstring(node) or "").split("\n")[0]
        for node in body
        if isinstance(node, ast.ClassDef)
    }
    (table,) = (
        node.value
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == registry
    )
    assert isinstance(table, ast.Dict)
    found = {}
    for key, value in zip(table.keys, table.values, strict=True):
        assert key is not None
        summary = ast.literal_eval(value.args[1]) if isinstance(value, ast.Call) else told[ast.unparse(value)]
        found[ast.literal_eval(key)] = summary
    return found
