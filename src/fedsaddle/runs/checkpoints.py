"""Checkpoints: lanes as tensors and JSON, and back. When one is made is decided elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fedsaddle.engine.course import Stop
from fedsaddle.engine.study import Attendance, Lanes, Posted, Study, begin
from fedsaddle.errors import BadInput
from fedsaddle.runs.best import Best
from fedsaddle.runs.files import as_json, damaged, sha256, verified, verify
from fedsaddle.runs.plan import Plan

FORMAT = 1


def state_of(lanes: Lanes) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Lanes as tensors and JSON."""
    leaves, _ = tree_flatten(lanes.server)
    tensors = {f"server.{number}": leaf.cpu().contiguous().clone() for number, leaf in enumerate(leaves)}
    if lanes.memory is not None:
        tensors |= {"memory.x": lanes.memory.x.cpu(), "memory.y": lanes.memory.y.cpu()}
    if lanes.attendance is not None:
        invited, used = lanes.attendance
        tensors |= {"attendance.invited": invited.clone(), "attendance.used": used.clone()}
    posted = [
        [[*kind, count] for kind, count in sorted(lane.items())] for lane in lanes.posted
    ]  # JSON has no tuples for keys
    rest = {"completed": lanes.completed, "clock": lanes.clock, "alive": lanes.alive, "posted": posted}
    if any(lanes.strikes):
        rest["strikes"] = [sorted(own.items()) for own in lanes.strikes]
    if any(lanes.collapsed):
        rest["collapsed"] = lanes.collapsed
    return tensors, rest


def _lanes_of(study: Study, tensors: dict[str, torch.Tensor], rest: dict[str, Any], path: Path) -> Lanes:
    """The inverse of `state_of`. A fresh start tells what must be there."""
    fresh = begin(study)
    expected, _ = state_of(fresh)
    if {name: (t.shape, t.dtype) for name, t in tensors.items()} != {
        name: (t.shape, t.dtype) for name, t in expected.items()
    }:
        raise damaged(path, "it does not fit this experiment")
    leaves, structure = tree_flatten(fresh.server)
    server = tree_unflatten(
        [tensors[f"server.{number}"].to(study.device) for number in range(len(leaves))], structure
    )
    for player, held in zip("xy", fresh.memory or (), strict=False):
        held.copy_(tensors[f"memory.{player}"])
    posted = [Counter({Posted(way, phase): count for way, phase, count in lane}) for lane in rest["posted"]]
    none: list[list[list[int]]] = [[] for _ in study.seeds]
    strikes = [Counter(dict(own)) for own in rest.get("strikes", none)]
    said = rest.get("collapsed", fresh.collapsed)
    lanes = Lanes(
        server, fresh.memory, rest["completed"], rest["clock"], posted, rest["alive"], strikes, said
    )
    if fresh.attendance is None:
        return lanes
    return replace(lanes, attendance=Attendance(tensors["attendance.invited"], tensors["attendance.used"]))


def versions() -> dict[str, str]:
    """What the last digits of a run may depend on."""
    import fedsaddle

    return {"fedsaddle": fedsaddle.__version__, "torch": torch.__version__}


def bytes_of(lanes: Lanes) -> int:
    """How many bytes a state has."""
    held = tree_leaves((lanes.server, lanes.memory, lanes.attendance))
    return sum(leaf.nbytes for leaf in held if isinstance(leaf, torch.Tensor))


def read_checkpoint(folder: Path, name: str = "checkpoint.json") -> dict[str, Any]:
    """What a folder's checkpoint says, if nobody has touched it."""
    path = folder / name
    try:
        saved: dict[str, Any] = json.loads(path.read_bytes())
        checksum = saved.pop("checksum")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise damaged(path, "it is not a checkpoint") from None
    if checksum != sha256(as_json(saved)):
        raise damaged(path, "its checksum does not match")
    if saved["format"] != FORMAT:
        raise BadInput(f"{path} has format {saved['format']}; this version reads format {FORMAT}")
    return saved


def read_tensors(path: Path, expected: str) -> dict[str, torch.Tensor]:
    try:
        return load(verified(path, expected))
    except SafetensorError as error:
        raise damaged(path, str(error)) from None


def _mapped(path: Path, expected: str) -> dict[str, torch.Tensor]:
    """The tensors of a state. What clients keep stays in the file until it is looked at."""
    verify(path, expected)
    try:
        found = load_file(path)
    except SafetensorError as error:
        raise damaged(path, str(error)) from None
    return {name: held if name.startswith("memory.") else held.clone() for name, held in found.items()}


def read_state(folder: Path, plan: Plan, state: dict[str, Any], best: Best | None = None) -> Stop:
    """Where an algorithm was when this was written; and, if that is asked for, what its best was."""
    path = folder / state["file"]
    tensors = _mapped(path, state["sha256"])
    beside = {name: tensors.pop(name) for name in list(tensors) if name.startswith("best.")}
    if best is not None:
        best.read(beside, state["lanes"])
    study = plan.studies.get(state["algorithm"])
    if study is None:
        raise BadInput(
            f"{path} holds {state['algorithm']}, but this machine's memory groups the settings "
            "otherwise: resume it where it was begun, or choose another --out"
        )
    return Stop(state["round"], _lanes_of(study, tensors, state["lanes"], path), [], [])
