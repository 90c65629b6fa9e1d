"""The models of a run by the names of their parameters, and what is needed to build them.

    models/model.json                         which networks, and what new rows need
    models/ALGORITHM/SEED.safetensors         each lane's last finite point
    models/ALGORITHM/SEED-best.safetensors    and its best, where the task has a metric of validation rows

checkpoint.json has their hashes. Nothing is unpickled, and what was edited is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save
from torch import Tensor, nn

from fedsaddle.blueprint import Blueprint, Drawn
from fedsaddle.core import Pair
from fedsaddle.engine.study import Study
from fedsaddle.errors import BadInput
from fedsaddle.problem import Modelled
from fedsaddle.runs.best import Best, validated_by
from fedsaddle.runs.checkpoints import read_checkpoint, read_tensors
from fedsaddle.runs.files import as_json, damaged, sha256, verified, write_atomically

MODEL, NOTE = "model.json", "fedsaddle"  # the note: one key, since safetensors does not keep their order


def write_models(folder: Path, study: Study, ends: Sequence[Pair], best: Best, held: dict[str, Any]) -> None:
    """Write the models of a study that has ended; and, in what a checkpoint holds, their hashes."""
    problem = study.problem
    if not isinstance(problem, Modelled):
        return
    place, by = folder / "models", validated_by(problem)
    place.mkdir(exist_ok=True)
    roles: list[str] = []
    for lane, (name, seed, z) in enumerate(zip(study.names, study.seeds, ends, strict=True)):
        (place / name).mkdir(exist_ok=True)
        models = problem.models(z)
        roles = list(models)
        data = _packed(models, {})
        write_atomically(place / name / f"{seed}.safetensors", data)
        entry: dict[str, Any] = {"sha256": sha256(data)}
        if lane in best.lanes:
            seen = best.lanes[lane]
            about = {"metric": by, "value": seen.value, "round": seen.round}
            data = _packed(problem.models(seen.z), about)
            write_atomically(place / name / f"{seed}-best.safetensors", data)
            entry["best"] = {**about, "sha256": sha256(data)}
        held.setdefault("lanes", {}).setdefault(name, {})[str(seed)] = entry
    blueprint = problem.blueprint.to_json() if isinstance(problem, Drawn) else None
    whole = {"format": 1, "problem": type(problem).__name__, "roles": roles, "blueprint": blueprint}
    write_atomically(place / MODEL, as_json(whole))
    held["sha256"] = sha256(as_json(whole))


def _packed(models: Mapping[str, nn.Module], about: Mapping[str, Any]) -> bytes:
    """Models as one file: the names of a `state_dict`, with the role before them if there are several."""
    tensors = {
        f"{role}.{name}" if len(models) > 1 else name: value.detach().cpu().contiguous().clone()
        for role, model in models.items()
        for name, value in model.state_dict().items()
    }
    return save(tensors, {NOTE: json.dumps(about)} if about else None)


def check_models(folder: Path, held: Mapping[str, Any]) -> None:
    """Refuse a folder whose models are not what its checkpoint says."""
    for name, seeds in held.get("lanes", {}).items():
        for seed, entry in seeds.items():
            verified(folder / "models" / name / f"{seed}.safetensors", entry["sha256"])
            if "best" in entry:
                verified(folder / "models" / name / f"{seed}-best.safetensors", entry["best"]["sha256"])
    if held:
        verified(folder / "models" / MODEL, held["sha256"])


class StoredModel(NamedTuple):
    """What a run folder holds of one lane."""

    problem: str  # the task's name
    roles: list[str]
    blueprint: Blueprint | None  # none, if only the task can build its networks
    tensors: dict[str, dict[str, Tensor]]  # by role


def read_model(folder: Path, algorithm: str, seed: int, best: bool = False) -> StoredModel:
    """The model of a lane, as it was written."""
    held = read_checkpoint(folder).get("models") or {}
    entry = held.get("lanes", {}).get(algorithm, {}).get(str(seed))
    if best and entry is not None:
        entry = entry.get("best")
    if entry is None or algorithm in (".", "..") or Path(algorithm).name != algorithm:
        raise BadInput(f"{folder} holds no {'best ' if best else ''}model of {algorithm} with seed {seed}")
    place = folder / "models"
    try:
        about = json.loads(verified(place / MODEL, held["sha256"]))
        if about["format"] != 1:
            raise BadInput(f"{place / MODEL} has format {about['format']}; this version reads format 1")
        roles, drawn, problem = list(about["roles"]), about["blueprint"], str(about["problem"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise damaged(place / MODEL, "it does not speak of a model") from None
    path = place / algorithm / f"{seed}{'-best' if best else ''}.safetensors"
    tensors = read_tensors(path, entry["sha256"])
    blueprint = None if drawn is None else Blueprint.from_json(drawn)
    if blueprint is not None and list(blueprint.parts) != roles:
        raise damaged(place / MODEL, "its roles are not those of its blueprint")
    return StoredModel(problem, roles, blueprint, _by_role(tensors, roles, path))


def _by_role(tensors: Mapping[str, Tensor], roles: Sequence[str], path: Path) -> dict[str, dict[str, Tensor]]:
    if len(roles) == 1:
        return {roles[0]: dict(tensors)}
    found: dict[str, dict[str, Tensor]] = {role: {} for role in roles}
    for name, value in tensors.items():
        role, _, own = name.partition(".")
        if role not in found:
            raise damaged(path, f"'{name}' belongs to no model")
        found[role][own] = value
    return found
