"""What a run's folder holds: which model is meant, and whether it has a history.

Imports nothing that takes time.

What is read here decides nothing but which line is said: before anything is used, it is held to its hash.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.errors import BadInput, meant, unknown

ALL = "all"  # in place of a seed: the mean over all


FORMATS = (".pt2", ".onnx", ".safetensors")


def check_format(path: Path) -> str:
    """What a model is to be exported as."""
    if path.suffix.lower() not in FORMATS:
        raise BadInput(
            f"--to {path}: a model is exported as {', '.join(FORMATS)}; never as a pickle, which can run code"
        )
    return path.suffix.lower()


class Choice(NamedTuple):
    """Lanes of a run."""

    folder: Path
    algorithm: str
    seeds: list[int]
    best: bool


def which_model(
    run: str | Path, algorithm: str | None = None, seed: int | str | None = None, best: bool = False
) -> Choice:
    """The model that is meant. An algorithm or a seed may be left out, if there is only one."""
    folder = Path(run)
    lanes = _lanes(folder)
    if algorithm is None and len(lanes) > 1:
        raise BadInput(f"{folder} holds models of several algorithms: say which, of {', '.join(lanes)}")
    name = next(iter(lanes)) if algorithm is None else meant(algorithm, lanes)
    if name not in lanes:
        raise unknown(f"algorithm with a model in {folder}", name, lanes)
    seeds = [int(one) for one in lanes[name]]
    if seed is None and len(seeds) > 1:
        raise BadInput(f"{name} was run with several seeds: say which, of {_told(seeds)}")
    if seed not in (None, ALL):
        if not str(seed).isdecimal() or int(seed) not in seeds:
            raise BadInput(f"{name} has no model of seed {str(seed)[:80]}; there is {_told(seeds)}")
        seeds = [int(seed)]
    lacking = [one for one in seeds if best and "best" not in lanes[name][str(one)]]
    if lacking:
        raise BadInput(
            f"{folder} keeps no best model of {name} with seed {lacking[0]}: the best is found by a metric "
            "of validation rows, such as those of problem.validation_share; leave out best for the last"
        )
    return Choice(folder, name, seeds, best)


def which_generator(
    run: str | Path, algorithm: str | None = None, seed: int | None = None, best: bool = False
) -> Choice:
    """The same of a GAN; of any other run there is no need to say which model is meant."""
    try:
        about = json.loads((Path(run) / "models" / "model.json").read_bytes())
        parts = about["blueprint"]["parts"].values()
        lacking = not any(part.get("noise") for part in parts)
    except (OSError, ValueError, RecursionError, KeyError, AttributeError, TypeError):
        lacking = False  # which whoever reads it will say
    if lacking:
        raise BadInput(f"{run} holds no generator: only a GAN makes pictures")
    return which_model(run, algorithm, seed, best)


def _told(seeds: list[int]) -> str:
    return ", ".join(map(str, seeds[:20])) + (f" and {len(seeds) - 20} more" if len(seeds) > 20 else "")


def check_history(folder: Path) -> None:
    """Refuse to replay what has written no history."""
    saved = _checkpoint(folder)
    if "sweep" in saved.get("experiment", {}):
        raise BadInput(
            f"{folder} is a sweep, and a sweep writes no history; run its best.toml with --history"
        )
    if "history.jsonl" not in saved.get("tables", {}):
        raise BadInput(f"{folder} has no history; run the experiment with --history")


def _checkpoint(folder: Path) -> dict[str, Any]:
    path = folder / "checkpoint.json"
    if not os.path.isfile(path):
        raise BadInput(f"{folder} is not the folder of a run: it has no checkpoint.json")
    try:
        saved = json.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        saved = None
    if not isinstance(saved, dict):
        raise BadInput(f"{path} is damaged: it is not a checkpoint")
    return saved


def _lanes(folder: Path) -> dict[str, dict[str, Any]]:
    """The models that a checkpoint speaks of, by algorithm and seed."""
    saved, path = _checkpoint(folder), folder / "checkpoint.json"
    try:
        lanes = saved.get("models", {}).get("lanes", {})
        for seeds in lanes.values():
            for seed, entry in seeds.items():
                int(seed), entry["sha256"]
        done, experiment = list(saved["done"]), saved["experiment"]
        swept, python = "sweep" in experiment, "python" in experiment
    except (ValueError, KeyError, AttributeError, TypeError):
        raise BadInput(f"{path} is damaged: it is not a checkpoint") from None
    if lanes:
        found: dict[str, dict[str, Any]] = lanes
        return found
    if swept:
        raise BadInput(f"{folder} is a sweep, which keeps no models: run its best.toml, and use that run")
    if done:
        raise BadInput(f"{folder} holds no model: its task trains no network, or an older version has run it")
    place = shlex.quote(str(folder))
    how = (
        f"fs.run(..., out={str(folder)!r}, resume=True)"
        if python
        else f"fedsaddle run --resume --out {place}"
    )
    raise BadInput(
        f"{folder} holds no model: none of its algorithms has had all rounds yet; go on with {how}"
    )
