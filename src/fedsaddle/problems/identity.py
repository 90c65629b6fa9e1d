"""What a person's code and data are, as hashes: so that a run is not gone on with by other ones."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from types import CodeType
from typing import Any

import numpy
import torch
from torch import Tensor, nn

SAMPLED = 1 << 24  # bytes of a column that are hashed; of a larger one, so many
BLOCKS = 256  # in which these lie, evenly spread


def fingerprint(part: Any) -> str:
    """A hash of a function with what it closes over, of a class's source, or of a value."""
    digest = hashlib.sha256()
    _feed(digest, part, set())
    return digest.hexdigest()


def _feed(digest: Any, part: Any, seen: set[int]) -> None:
    if inspect.isfunction(part) or isinstance(part, type):  # which may lead back to themselves
        if id(part) in seen:
            return
        seen.add(id(part))
    digest.update(type(part).__name__.encode())
    if isinstance(part, functools.partial):
        for one in (part.func, part.args, part.keywords):
            _feed(digest, one, seen)
    elif isinstance(part, Tensor | numpy.ndarray):
        digest.update(_bytes(torch.as_tensor(part)))
    elif isinstance(part, nn.Module):
        _feed(digest, type(part), seen)
        for name, value in part.state_dict().items():
            digest.update(name.encode() + _bytes(value))
    elif isinstance(part, type):
        digest.update(_source(part))
    elif inspect.ismethod(part):
        _feed(digest, part.__func__, seen)
        _feed(digest, type(part.__self__), seen)
    elif inspect.isfunction(part):
        _feed_function(digest, part, seen)
    elif isinstance(part, tuple | list):
        for one in part:
            _feed(digest, one, seen)
    elif isinstance(part, Mapping):
        for key, one in part.items():
            digest.update(repr(key).encode())
            _feed(digest, one, seen)
    elif isinstance(part, int | float | str | bytes | None):
        digest.update(repr(part).encode())
    else:
        _feed(digest, type(part), seen)


def _feed_function(digest: Any, function: Any, seen: set[int]) -> None:
    digest.update(_code(function.__code__))
    for one in (function.__defaults__, function.__kwdefaults__):
        _feed(digest, one, seen)
    for cell in function.__closure__ or ():
        _feed(digest, cell.cell_contents, seen)
    for name in function.__code__.co_names:  # the person's own functions, classes and numbers beside it
        other = function.__globals__.get(name)
        own = getattr(other, "__module__", None) == function.__module__
        if own or isinstance(other, int | float | str):
            _feed(digest, other, seen)


def _code(code: CodeType) -> bytes:
    """What a function does, wherever it stands: names and constants, not lines."""
    parts = [code.co_code, repr(code.co_names).encode(), repr(code.co_varnames).encode()]
    for constant in code.co_consts:
        told = sorted(constant, key=repr) if isinstance(constant, frozenset) else constant
        parts.append(_code(constant) if isinstance(constant, CodeType) else repr(told).encode())
    return b"|".join(parts)


def _source(cls: type) -> bytes:
    try:
        return inspect.getsource(cls).encode()
    except (OSError, TypeError):  # made in a shell: by its methods
        methods = [value for value in vars(cls).values() if inspect.isfunction(value)]
        return b"|".join([cls.__qualname__.encode(), *(_code(method.__code__) for method in methods)])


def hashed(tables: Mapping[str, Mapping[str, Tensor]]) -> str:
    """One hash of all columns: their names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for place, table in tables.items():
        for name, column in sorted(table.items()):
            told = [place, name, str(column.dtype), list(column.shape)]
            digest.update(json.dumps(told).encode() + _bytes(column))
    return digest.hexdigest()


def _bytes(column: Tensor) -> bytes:
    some = column.detach()
    if some.nbytes > SAMPLED and some.dim():
        # In blocks: of a column that stays in a file, rows one by one would each be a page to read.
        rows = max(1, SAMPLED // BLOCKS * len(some) // some.nbytes)
        starts = torch.linspace(0, len(some) - rows, BLOCKS, dtype=torch.float64).long().tolist()
        some = torch.cat([some[start : start + rows] for start in starts])
    return some.cpu().contiguous().numpy().tobytes()
