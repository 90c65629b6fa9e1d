"""How a server makes one of many answers: their mean, or something that a few bad answers cannot move far.

A rule takes answers (..., answer, value) and which of them are there (..., answer), and gives (..., value).
It decides for every value by itself. The shapes do not depend on how many answers there are, so lanes with
different numbers of them share one computation, and it can be recorded on a GPU.

Clipping comes before the rule: an answer's update (see `checks`), x and y of one name together, is scaled
down to at most a norm. An answer that is within the norm keeps its bits.

Weighting comes between the two: an update counts so many times, in a mean. Where those who answer hold other
data than those who do not, the mean of the answers is that of another objective; with weights by the inverse
of each client's chance to be used (`engine.propensity`) it is the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedsaddle.checks import Norms, check_kinds, origin
from fedsaddle.core import Message, Pair, Range
from fedsaddle.errors import BadInput, shown, without_effect
from fedsaddle.ranges import check
from fedsaddle.steady import no_further


class Rule(Protocol):
    """Merges answers, value by value."""

    def __call__(self, answers: Tensor, there: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Mean:
    """Every answer counts the same."""

    def __call__(self, answers: Tensor, there: Tensor) -> Tensor:
        # Chosen, not multiplied by zero: what is not finite in one lane must not reach another.
        own = torch.where(there[..., None], answers, 0)
        mean: Tensor = own.sum(-2) / _count(there).to(answers.dtype)
        return mean


@dataclass(frozen=True)
class TrimmedMean:
    """The mean without the largest and the smallest values: floor(trim n) of n at each end."""

    trim: Annotated[float, Range(least=0, below=0.5)] = 0.1

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, answers: Tensor, there: Tensor) -> Tensor:
        count = _count(there)
        # A tiny bit more, so that 0.29 of 100 is 29.
        off = torch.floor(count * self.trim + 1e-9)
        place = torch.arange(answers.shape[-2], device=answers.device)[:, None]
        inner = (place >= off[..., None, :]) & (place < (count - off)[..., None, :])
        kept = torch.where(inner, _sorted(answers, there), 0)
        mean: Tensor = kept.sum(-2) / (count - 2 * off).to(answers.dtype)
        return mean


@dataclass(frozen=True)
class Median:
    """The value in the middle; of an even number, the mean of the two."""

    def __call__(self, answers: Tensor, there: Tensor) -> Tensor:
        count, ordered = _count(there).to(torch.long), _sorted(answers, there)
        shape = (*ordered.shape[:-2], 1, ordered.shape[-1])
        low, high = (
            ordered.gather(-2, place[..., None, :].expand(shape)).squeeze(-2)
            for place in ((count - 1) // 2, count // 2)
        )
        # Half of each, so that two large values do not overflow; equal ones stay what they are.
        return low / 2 + high / 2


def _count(there: Tensor) -> Tensor:
    """How many answers there are (..., 1), as float64; one where there are none, and nobody will look."""
    return there.sum(-1, keepdim=True, dtype=torch.float64).clamp(min=1)


def _sorted(answers: Tensor, there: Tensor) -> Tensor:
    """The answers of each value in order; what is not there, like what is not a number, comes last."""
    return torch.where(there[..., None], answers, torch.nan).sort(-2).values


Weights = Literal["equal", "inverse_propensity"]


@dataclass(frozen=True)
class Merge:
    """A rule, how far one answer may go, and how much it counts."""

    rule: Rule = Mean()
    clip: Norms | None = None  # the norm that updates are scaled down to
    weights: Weights = "equal"
    most_weight: Annotated[float, Range(least=1, most=1e6)] = 10.0  # of one answer; those above are this

    def __post_init__(self) -> None:
        check(self)
        check_kinds("clip", self.clip)
        if self.weights not in get_args(Weights):
            raise BadInput(f"weights must be 'equal' or 'inverse_propensity', got {shown(self.weights)}")
        if self.weighted and not isinstance(self.rule, Mean):
            raise BadInput(
                f"weights = '{self.weights}' goes with the rule mean: to the others an answer that counts "
                "more is one that lies"
            )

    @property
    def weighted(self) -> bool:
        return self.weights != "equal"

    @property
    def notes(self) -> list[str]:
        """What was asked for and has no effect."""
        return [] if self.weighted else without_effect(self, {"most_weight": "all answers weigh the same"})


MEAN = Merge()


def clipped(up: Message, sent: Message, limits: Mapping[str, float]) -> Message:
    """Answers whose updates have at most the norm of their name. They may be stacked in front."""
    result = dict(up)
    for name in up.keys() & limits.keys():
        result[name] = no_further(origin(name, up[name], sent), up[name], limits[name])
    return result


def weighted(up: Message, sent: Message, weight: Tensor, kinds: Mapping[str, str]) -> Message:
    """Answers whose updates count so many times; the mean over them is the weighted one.

    Control variates count once: what a server adds up of them is to be the mean of what clients keep.
    """
    result = dict(up)
    for name, pair in up.items():
        if kinds[name] == "control variates":
            continue
        if kinds[name] == "parameters" and name not in sent:
            raise BadInput(
                f"weights are of updates, and where the parameters '{name}' began is not known: send them "
                f"down as '{name}' too, or say merge.weights = 'equal'"
            )
        start, times = origin(name, pair, sent), weight[..., None]
        x, y = (
            torch.where(times == 1, whole, begin + times.to(whole.dtype) * (whole - begin))
            for begin, whole in zip(start, pair, strict=True)
        )
        result[name] = Pair(x, y)
    return result


def merged(merge: Merge, answers: Sequence[Message], sent: Message, limits: Mapping[str, float]) -> Message:
    """The answers of one phase as one, for a server that holds them as a list."""
    stacked: Any = tree_map(lambda *values: torch.stack(values), *answers)
    there = torch.ones(len(answers), dtype=torch.bool)
    result: Message = tree_map(
        lambda values: merge.rule(values, there.to(values.device)), clipped(stacked, sent, limits)
    )
    return result


MERGES = {"mean": Mean, "trimmed_mean": TrimmedMean, "median": Median}
