"""What a number may be, said once: by the annotated type of the field that holds it.

    invite: Count = 8
    enough: Count | None = None
    rate: Rate | tuple[Rate, ...] = 0.3

`check` holds an instance against the types of its fields. Algorithms, problems, fleets, quorums, merges and
the keys of an experiment are all checked so. What depends on two fields at once is said where they are.
Nothing that takes time is imported here: a slip in an experiment is held against the same types (`border`).
"""

from __future__ import annotations

import sys
import typing
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin

from fedsaddle.errors import MOST, BadInput, as_whole, check_count, shown


@dataclass(frozen=True)
class Range:
    least: float | None = None  # allowed
    above: float | None = None  # itself not allowed
    most: float | None = None
    below: float | None = None  # itself not allowed

    def holds(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"between {self.least:g} and {self.most:g}"
        ends = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{words} {end:g}" for words, end in ends.items() if end is not None)


NotNegative = Annotated[float, Range(least=0)]
Above0 = Annotated[float, Range(above=0)]
Rate = Annotated[float, Range(least=0, most=1)]
Delay = Annotated[float, Range(least=0, most=MOST)]  # seconds
Duration = Annotated[float, Range(above=0, most=MOST)]  # seconds
CountOr0 = Annotated[int, Range(least=0)]
Seed = Annotated[int, Range(least=0, most=2**63 - 1)]
Threads = Annotated[int, Range(least=1, most=1024)]


def check(one: object, at: str = "") -> None:
    """Refuse an instance with a value that is out of its field's range; `at` comes before the names."""
    held = vars(one)
    for name, hint in _hints(type(one)).items():  # type: ignore[arg-type]
        if name in held:
            check_value(at + name, held[name], hint)
            if isinstance(held[name], Integral):
                object.__setattr__(one, name, as_whole(held[name]))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is out of the range of an annotated type."""
    origin, arms = get_origin(hint), get_args(hint)
    if origin is Annotated:
        _number(name, value, arms[0] is int, [note for note in arms[1:] if isinstance(note, Range)])
    elif hint in (int, float):
        _number(name, value, hint is int, [])
    elif origin in (typing.Union, UnionType):
        if value is None and NoneType in arms:
            return
        kinds = (type(value),) if isinstance(value, tuple | dict) else (None, Annotated)
        for arm in [arm for arm in arms if get_origin(arm) in kinds and arm is not NoneType][:1]:
            check_value(name, value, arm)
    elif origin is tuple and isinstance(value, tuple):
        for item in value:
            check_value(name, item, arms[0])
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            check_value(f"{name}.{key}", item, arms[1])


def _number(name: str, value: Any, whole: bool, ranges: list[Range]) -> None:
    if whole:
        for one in ranges or [Range()]:
            least, most = (-MOST if one.least is None else one.least), (one.most or MOST)
            check_count(name, value, int(least), int(most))
        return
    number = isinstance(value, Real) and not isinstance(value, bool)
    for one in ranges if number else []:
        if not one.holds(value):
            told = f"{value:g}" if abs(value) <= sys.float_info.max else shown(value)
            raise BadInput(f"{name} must be {one}, got {told}")
    if not number or not abs(value) <= sys.float_info.max:
        raise BadInput(f"{name} must be a finite number, got {shown(value)}")
