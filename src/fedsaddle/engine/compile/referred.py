"""What a person's own code computes with beside its arguments: plain values that its functions refer to.

A recording holds such a value as it was. Here they are looked at again, which costs some microseconds, so
that a change is found soon: replays are compared seldom, since that costs a whole computation. Numbers and
strings are seen, in containers and attributes too, and whether a tensor was written to; not what lies deeper.
What cannot be looked at is left alone: this must not end a run.
"""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, NoneType
from typing import Any

from torch import Tensor

UNCHANGING = ("fedsaddle", "torch", "numpy", "builtins")  # whose functions and objects do not change
LITERALS = (bool, int, complex, str, bytes, NoneType)
CALLED = (FunctionType, functools.partial, MethodType)  # what is followed further
MOST_LOOKS = 256  # things that are looked at in one value
MOST_CHANGES = 8  # of one value that are followed: what changes all the time, such as a counter, is none


class Referred:
    """The values that the functions of a problem refer to."""

    def __init__(self, problem: Any) -> None:
        self._problem = None if _ours(type(problem)) else problem
        self._functions = list(_functions_of(problem))
        self._often: Counter[Hashable] = Counter()
        self._last = self._now()

    def changed(self) -> bool:
        """Whether any is another than when this was last asked."""
        before, self._last = self._last, self._now()
        found = [
            place
            for place, own in self._last.items()
            if self._often[place] < MOST_CHANGES and own != before.get(place, own)
        ]
        self._often.update(found)
        return bool(found)

    def _now(self) -> dict[Hashable, list[Any]]:
        seen: dict[int, list[Any]] = {}  # by identity: several functions may refer to one value
        found: dict[Hashable, list[Any]] = {"problem": _looks(self._problem)}
        for number, function in enumerate(self._functions):
            for name, value in _beside(function):
                if id(value) not in seen:
                    seen[id(value)] = _looks(value)
                found[number, name] = seen[id(value)]
        return found


def _ours(thing: Any) -> bool:
    return _module(thing).partition(".")[0] in UNCHANGING


def _module(thing: Any) -> str:
    try:
        return str(getattr(thing, "__module__", ""))
    except Exception:  # whatever a person's object does when it is asked
        return ""


def _functions_of(problem: Any) -> Iterator[FunctionType]:
    """The functions that are not ours: methods, fields, and those of the same file that they name."""
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
            waiting += [
                own for _, own in _beside(one) if type(own) in CALLED and _module(own) == _module(one)
            ]


def _beside(function: FunctionType) -> Iterator[tuple[Hashable, Any]]:
    """What a function closes over, its defaults, and the globals that it names, by where they are."""
    for number, cell in enumerate(function.__closure__ or ()):
        try:
            yield ("cell", number), cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
    yield from enumerate(function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _looks(value: Any) -> list[Any]:
    """Something that is equal as long as the value has not changed, as far as is looked."""
    found: list[Any] = []
    waiting = deque([value])
    while waiting and len(found) < MOST_LOOKS:
        one = waiting.popleft()
        try:
            found.append(_look(one))
            inside = () if type(one) in LITERALS else _inside(one)
            found.append(len(inside))
            waiting.extend(own for own, _ in zip(inside, range(MOST_LOOKS), strict=False))
        except Exception:  # a closed file, a dead reference, an odd class
            found.append(id(one))
    return found


def _look(one: Any) -> Any:
    if type(one) in LITERALS:
        return one
    if type(one) is float:
        return repr(one)  # for which nan is nan
    if isinstance(one, Tensor):
        return id(one), 0 if one.is_inference() else one._version
    return id(one)


def _inside(value: Any) -> Collection[Any]:
    if isinstance(value, Mapping):
        return [part for entry in value.items() for part in entry] if len(value) <= MOST_LOOKS else ()
    if isinstance(value, list | tuple | set):
        return value
    if callable(value) or _ours(type(value)):
        return ()
    return _inside(getattr(value, "__dict__", {}))
