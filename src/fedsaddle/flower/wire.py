"""What goes over the wire: a header of plain values, and flat floats as bytes.

A message is Flower's RecordDict with two records. `header` says what it belongs to. `floats` holds, for each
name and player, the values as little-endian bytes ("z.x") and what they are ("z.x is": "float32[330]").
Nothing in it can be run. The receiver knows what must be there, and looks at names, types and sizes before it
makes a tensor of them.

Flower has a record for arrays, which it stores and sends as three objects for each array, every one by a
request of its own. Plain bytes make one object of all of them, and a small message several times faster.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import torch
from torch import Tensor

from fedsaddle.border.plugins import reference_in
from fedsaddle.core import Message, Pair
from fedsaddle.errors import printable
from fedsaddle.flower._flwr import ConfigRecord, RecordDict
from fedsaddle.runs import Plan

HEADER, FLOATS = "header", "floats"
OVERHEAD = 1 << 20  # bytes that a message may have besides its floats
COUNT, FACT = "count.", "fact."  # what a device tells of its rows, and what follows from all of them
PARTIAL, MADE = "seconds", "steps"  # how long a walk may take, and the steps that it has made
TYPES = {torch.float32: "float32", torch.float64: "float64"}

Header = dict[str, int | str]


class Refused(ValueError):
    """A message that does not fit. The text says why, for the other side to read."""

    def __init__(self, why: str) -> None:
        super().__init__(printable(why))  # it may hold what the other side said, and ends on a terminal


def pack(header: Header, message: Message) -> RecordDict:
    """A message as Flower carries it."""
    floats: dict[str, bytes | str] = {}
    for name, part in _parts(message).items():
        floats |= {name: _bytes(part), f"{name} is": _described(part)}
    return RecordDict({HEADER: ConfigRecord(dict(header)), FLOATS: ConfigRecord(dict(floats))})


def _parts(message: Message) -> dict[str, Tensor]:
    return {
        f"{name}.{player}": part
        for name, pair in message.items()
        for player, part in zip("xy", pair, strict=True)
    }


def _described(part: Tensor) -> str:
    return f"{TYPES[part.dtype]}[{part.numel()}]"


def _bytes(part: Tensor) -> bytes:
    values = part.detach().cpu().contiguous().numpy()
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def header_of(records: RecordDict, expected: Header) -> Header:
    """The header, which must say what is expected wherever the two speak of the same."""
    header = records.config_records.get(HEADER)
    if header is None:
        raise Refused("the header is missing")
    for key, value in expected.items():
        there = header.get(key)
        if type(there) is not type(value) or there != value:
            raise Refused(f"{key} is {str(there)[:80]}, expected {value}")
    return {key: value for key, value in header.items() if isinstance(value, int | str)}


def integer(header: Header, key: str, least: int, most: int) -> int:
    """A whole number from a header."""
    value = header.get(key)
    if type(value) is not int or not least <= value <= most:
        raise Refused(f"{key} must be a whole number from {least} to {most}, got {str(value)[:40]}")
    return value


def real(header: Header, key: str, least: float, most: float) -> float:
    """A number from a header, where it stands as text."""
    try:
        value = float(header[key])
    except (KeyError, ValueError):
        value = math.nan
    if not least <= value <= most:
        raise Refused(f"{key} must be a number from {least:g} to {most:g}, got {str(header.get(key))[:40]}")
    return value


def unpack(records: RecordDict, like: Message) -> Message:
    """The floats, which must have the names, types and lengths of those in `like`."""
    floats, wanted = records.config_records.get(FLOATS), _parts(like)
    if floats is None or set(floats) != {*wanted, *(f"{name} is" for name in wanted)}:
        there = "nothing" if floats is None else ", ".join(sorted(map(str, floats)))[:120]
        raise Refused(f"expected {', '.join(sorted(wanted))}, got {there}")
    for name, part in wanted.items():
        data, told = floats[name], floats[f"{name} is"]
        size = part.numel() * part.element_size()
        if not isinstance(data, bytes) or told != _described(part) or len(data) != size:
            length = len(data) if isinstance(data, bytes) else 0
            raise Refused(
                f"{name} is {str(told)[:40]} in {length} bytes, expected {_described(part)} in {size}"
            )
    return {
        name: Pair(
            *(_tensor(floats[f"{name}.{player}"], part) for player, part in zip("xy", pair, strict=True))
        )
        for name, pair in like.items()
    }


def _tensor(data: Any, like: Tensor) -> Tensor:
    if not data:
        return torch.empty_like(like)
    # Copied, because Flower's bytes may not be written to.
    return torch.frombuffer(bytearray(data), dtype=like.dtype)


def size_of(message: Message) -> int:
    """The bytes of a message's floats."""
    return sum(part.numel() * part.element_size() for pair in message.values() for part in pair)


# --- what both sides must agree on --------------------------------------------------------------------------

ELSEWHERE = ("dataset", "test")  # where files lie, if they are files: each side has its own
OF_ONE_SIDE = ("test_sha256", "path", "inception")


def agreement(plan: Plan, algorithm: str) -> str:
    """The contract of a plan, with what the task itself says that both sides must have alike."""
    own = getattr(plan.studies[algorithm].problem, "agreed", "")
    return contract(plan.resolved, algorithm, own)


def contract(resolved: dict[str, Any], algorithm: str, own: str = "") -> str:
    """A hash of what decides a client's answer: the task, the algorithm and its settings.

    Rounds, seeds, quorum, fleet and the test file are the server's alone. Where a file lies is each side's
    own affair; what is in it is not.
    """
    problem = {
        key: placeless
        for key, value in resolved["problem"].items()
        for placeless in [_placeless(value)]
        if not (key in ELSEWHERE and "/" in str(placeless)) and key not in OF_ONE_SIDE
    }
    table = resolved["algorithms"][algorithm]
    rule = {key: _placeless(value) for key, value in table.items() if key != "invite"}
    agreed = {
        "problem": problem,
        "rule": rule,
        "called": algorithm,
        **{k: resolved[k] for k in ("batch", "K")},
        **({"own": own} if own else {}),
    }
    code = code_of(resolved)
    code["algorithms"] = {name: sha for name, sha in code["algorithms"].items() if name == rule["algorithm"]}
    if any(code.values()):
        agreed["code"] = code
    return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()


def _placeless(value: Any) -> Any:
    reference = reference_in(value)
    return value if reference is None else reference.bare


CODE = (
    "algorithms",
    "problems",
    "networks",
    "datasets",
)  # that both sides run; a fleet is the server's alone


def code_of(resolved: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The hashes of the code that is not shipped, without where it lies."""
    found: dict[str, dict[str, str]] = {group: {} for group in CODE}
    for group, own in found.items():
        for name, record in sorted(resolved.get("code", {}).get(group, {}).items()):
            known = own.get(_placeless(name), "")  # of another file that is called the same
            own[_placeless(name)] = known + record["sha256"]
    return found


OTHER_CODE = "other code"  # what a device says that does not have the server's


def check_code_of(header: Header, resolved: dict[str, Any]) -> None:
    """Refuse a server whose code is not this device's. Hashes alone are compared; no code comes or goes."""
    mine = code_of(resolved)
    try:
        told = json.loads(str(header.get("code", "{}")))
        theirs = [(group, name, str(sha)) for group in CODE for name, sha in told.get(group, {}).items()]
    except (ValueError, AttributeError, RecursionError):
        raise Refused("what the server says of its code cannot be read") from None
    for group, name, sha in theirs:
        if (here := mine[group].get(name)) != sha:
            has = f"{here[:12]}..." if here else "nothing of that name"
            raise Refused(f"{OTHER_CODE}: of {name[:80]} the server has {sha[:12]}..., this device {has}")
