"""Remedies for steps that are too long. They are bounds, which any algorithm can have.

    warmup   in its first W rounds every step size is multiplied by (t + 1) / W
    clip     a local step from w to v goes to w + (v - w) min(1, clip / |v - w|)
    reach    a walk that began at z stays within |w - z| <= reach, and so does the server's step from z

x and y are measured together, by their Euclidean norm. A point that keeps a bound keeps its bits, and what is
not set is not computed. An algorithm knows nothing of it: its hyperparameters come warmed, and the engine
shortens what its walks and merges give. A rule that takes no local steps takes its one step at the server,
which `clip` then bounds.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedsaddle.checks import norm
from fedsaddle.core import STEP, Count, Pair
from fedsaddle.ranges import Above0, check

T = TypeVar("T")


@dataclass(frozen=True)
class Steady:
    """How long steps may be."""

    clip: Above0 | None = None  # the longest local step
    warmup: Count | None = None  # rounds in which steps grow to their size
    reach: Above0 | None = None  # how far a walk, and the server in a round, may go

    def __post_init__(self) -> None:
        check(self)

    @property
    def said(self) -> dict[str, float]:
        """What is bounded, and by what."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __str__(self) -> str:
        return " ".join(f"{name} {value:g}" for name, value in self.said.items()) or "none"

    def warmed(self, algorithm: T, t: Tensor) -> T:
        """The algorithm as it is after t rounds: its step sizes are not yet what they will be."""
        if self.warmup is None:
            return algorithm
        share = torch.clamp((t + 1) / self.warmup, max=1.0)
        rule: Any = algorithm
        steps = {name: getattr(rule, name) * share for name in step_sizes(type(rule))}  # type: ignore[arg-type]
        return typing.cast("T", replace(rule, **steps))

    def stepped(self, start: T, before: T, after: T) -> T:
        """Where a local step of a walk from `start` leads: a Pair, or a NamedTuple with a Pair z."""
        if self.clip is not None:
            after = _within(self.clip, before, after)
        return after if self.reach is None else _within(self.reach, start, after)

    def merged(self, before: T, after: T, walks: bool) -> T:
        """Where a merge leads the server, of a rule that walks or does not."""
        own = replace(self, clip=None) if walks else self
        return own.stepped(before, before, after)


AS_THEY_ARE = Steady()  # nothing is bounded
BOUNDS = tuple(field.name for field in fields(Steady))


@cache
def step_sizes(rule: type[Any]) -> tuple[str, ...]:
    """The fields of a class of algorithms that are step sizes, by their annotation."""
    hints = typing.get_type_hints(rule, include_extras=True)
    return tuple(name for name, hint in hints.items() if STEP in getattr(hint, "__metadata__", ()))


def _within(most: float, start: Any, end: Any) -> Any:
    if isinstance(end, Pair):
        return no_further(start, end, most)
    return end._replace(z=no_further(start.z, end.z, most))


def no_further(start: Pair, end: Pair, most: float) -> Pair:
    """The end, or where the straight way to it has this length. Both may be stacked in front."""
    way = end - start
    share = (most / norm(way))[..., None]
    over = share < 1
    x, y = (
        torch.where(over, begin + share.to(step.dtype) * step, whole)
        for begin, step, whole in zip(start, way, end, strict=True)
    )
    return Pair(x, y)
