"""What goes over the wire: a header of plain values, and flat floats as bytes.

A message is Flower's RecordDict with two records. `header` says what it belongs to; `floats` holds one array
for each name and player ("z.x", "z.y"), little-endian, with its dtype and length. Nothing in it can be run.
The receiver knows what must be there, and looks at names, types and sizes before it makes a tensor of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedsaddle.core import Message, Pair

HEADER, FLOATS = "header", "floats"
RAW = "fedsaddle.raw"  # how the bytes are laid out: little-endian values, one after another
TYPES = {torch.float32: "float32", torch.float64: "float64"}

Header = dict[str, int | str]


class Refused(ValueError):
    """A message that does not fit. The text says why, for the other side to read."""


def pack(header: Header, message: Message) -> RecordDict:
    """A message as Flower carries it."""
    arrays = OrderedDict(
        (f"{name}.{player}", Array(TYPES[part.dtype], tuple(part.shape), RAW, _bytes(part)))
        for name, pair in message.items()
        for player, part in zip("xy", pair, strict=True)
    )
    return RecordDict({HEADER: ConfigRecord(dict(header)), FLOATS: ArrayRecord(arrays)})


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


def unpack(records: RecordDict, like: Message) -> Message:
    """The floats, which must have the names, types and lengths of those in `like`."""
    arrays = records.array_records.get(FLOATS)
    wanted = {f"{name}.{player}" for name in like for player in "xy"}
    if arrays is None or set(arrays) != wanted:
        there = "nothing" if arrays is None else ", ".join(sorted(map(str, arrays)))[:120]
        raise Refused(f"expected {', '.join(sorted(wanted))}, got {there}")
    return {
        name: Pair(*(_tensor(f"{name}.{player}", arrays, part) for player, part in zip("xy", pair, strict=True)))
        for name, pair in like.items()
    }


def _tensor(name: str, arrays: Mapping[str, Array], like: Tensor) -> Tensor:
    array, size = arrays[name], like.numel() * like.element_size()
    if array.stype != RAW or array.dtype != TYPES[like.dtype]:
        raise Refused(f"{name} is {str(array.dtype)[:20]}, expected {TYPES[like.dtype]}")
    if tuple(array.shape) != tuple(like.shape) or len(array.data) != size:
        raise Refused(
            f"{name} has shape {str(tuple(array.shape))[:60]} in {len(array.data)} bytes, expected "
            f"{tuple(like.shape)} in {size}"
        )
    if not size:
        return torch.empty_like(like)
    # Copied, because Flower's bytes may not be written to.
    return torch.frombuffer(bytearray(array.data), dtype=like.dtype).reshape(like.shape)


def size_of(message: Message) -> int:
    """The bytes of a message's floats."""
    return sum(part.numel() * part.element_size() for pair in message.values() for part in pair)


# --- what both sides must agree on --------------------------------------------------------------------------

ELSEWHERE = ("dataset", "test", "path", "inception", "sha256", "test_sha256")  # files: each side has its own


def contract(resolved: dict[str, Any], algorithm: str) -> str:
    """A hash of what decides a client's answer: the task, the algorithm and its settings.

    Rounds, seeds, quorum and fleet are the server's alone, and where a file lies is each side's own affair.
    """
    problem = {
        key: value
        for key, value in resolved["problem"].items()
        if not (key in ELSEWHERE and ("/" in str(value) or "sha256" in key))
    }
    rule = {key: value for key, value in resolved["algorithms"][algorithm].items() if key != "invite"}
    agreed = {"problem": problem, "rule": rule, "called": algorithm, **{k: resolved[k] for k in ("batch", "K")}}
    return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()
