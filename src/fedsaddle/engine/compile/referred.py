"""What a person's own code computes with beside its arguments: plain values that its functions refer to.

A recording holds such a value as it was. Here they are looked at again, which costs some microseconds, so
that a change is found soon: replays are compared seldom, since that costs a whole computation. Numbers and
strings are seen, in containers and attributes too, and whether a tensor was written to; not what lies deeper.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor

OURS = ("fedsaddle", "torch", "numpy", "builtins")  # whose functions and objects do not change
MOST = 256  # things that are looked at in one value


class Referred:
    """The values that the functions of a problem refer to."""

    def __init__(self, problem: Any) -> None:
        self._problem = None if _ours(type(problem)) else problem
        self._functions = list(_functions_of(problem))
        self._last = self._now()

    def changed(self) -> bool:
        """Whether any is another than when this was last asked."""
        before, self._last = self._last, self._now()
        return before != self._last

    def _now(self) -> list[Any]:
        beside = [value for function in self._functions for value in _beside(function)]
        return [_looks(value) for value in [self._problem, *beside]]


def _ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in OURS


def _functions_of(problem: Any) -> Iterator[FunctionType]:
    """The functions that are not ours: methods, fields, and those of the same file they name."""
    found: set[int] = set()
    waiting = [own for cls in type(problem).__mro__ if not _ours(cls) for own in vars(cls).values()]
    waiting += getattr(problem, "__dict__", {}).values()
    while waiting:
        one = waiting.pop()
        if isinstance(one, functools.partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, MethodType):
            waiting.append(one.__func__)
        elif isinstance(one, FunctionType) and not _ours(one) and id(one) not in found:
            found.add(id(one))
            yield one
            waiting += [own for own in _beside(one) if getattr(own, "__module__", "") == one.__module__]


def _beside(function: FunctionType) -> Iterator[Any]:
    """What a function closes over, its defaults, and the globals that it names."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from (
        function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__
    )


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _looks(value: Any) -> list[Any]:
    """Something that is equal as long as the value has not changed, as far as is looked."""
    found: list[Any] = []
    waiting = deque([value])
    while waiting and len(found) < MOST:
        one = waiting.popleft()
        if isinstance(one, int | float | complex | str | bytes | None):
            found.append(repr(one))  # for which nan is nan
        elif isinstance(one, Tensor):
            found.append((id(one), 0 if one.is_inference() else one._version))
        else:
            inside = _inside(one)
            found.append((id(one), len(inside)))
            waiting.extend(own for own, _ in zip(inside, range(MOST), strict=False))
    return found


def _inside(value: Any) -> Collection[Any]:
    if isinstance(value, Mapping):
        return [part for entry in value.items() for part in entry] if len(value) <= MOST else []
    if isinstance(value, list | tuple | set):
        return value
    if callable(value) or _ours(type(value)):
        return ()
    return _inside(getattr(value, "__dict__", {}))
