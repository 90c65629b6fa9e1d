"""Tuning: which settings to try, which to give up on the way, and which was the best. See docs/sweep.md.

An algorithm of an experiment becomes a family of settings, each with a name of its own. All that is decided
here follows from the experiment and from what the settings scored.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from fedsaddle import draws
from fedsaddle.engine.course import Stop
from fedsaddle.engine.study import Event
from fedsaddle.errors import BadInput, unknown
from fedsaddle.metric import Metric
from fedsaddle.simulate import Hyperparameter

MOST_LANES = 100_000
Values = dict[str, Any]  # of some hyperparameters


# --- what to try -----------------------------------------------------------------------------------------


class Span(NamedTuple):
    """A hyperparameter drawn between two values instead of from a list."""

    low: float
    high: float
    log: bool

    def at(self, chance: float) -> float:
        """To four digits, which is finer than any step size need be."""
        if self.log:
            value = math.exp(math.log(self.low) + chance * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + chance * (self.high - self.low)
        return min(max(float(f"{value:.4g}"), self.low), self.high)


def check_grid(where: str, grid: object, known: Mapping[str, Hyperparameter]) -> dict[str, Any]:
    """The choices of each hyperparameter: a list, a Span, or the name of another one that it is to equal."""
    if not isinstance(grid, dict):
        raise BadInput(f"{where}: should be a table of hyperparameters, got {grid!r}")
    choices: dict[str, Any] = {}
    for name, given in grid.items():
        at = f"{where}.{name}"
        if name not in known:
            raise unknown(f"hyperparameter in {where}", name, known)
        if isinstance(given, dict):
            choices[name] = _span(at, given, known[name])
        elif isinstance(given, str):
            if not isinstance(grid.get(given), list | dict):
                raise BadInput(f"{at}: '{given}' has no values of its own in this grid to be equal to")
            choices[name] = given
        elif not isinstance(given, list) or not given:
            raise BadInput(
                f"{at}: should be a list of values, a table with low and high, or the name of another "
                f"hyperparameter of the grid, got {given!r}"
            )
        elif any(isinstance(value, list | dict) or given.count(value) > 1 for value in given):
            raise BadInput(f"{at}: should be a list of different numbers, got {given!r}")
        else:
            choices[name] = given
    return choices


def _span(at: str, given: dict[str, Any], known: Hyperparameter) -> Span:
    for key in given:
        if key not in Span._fields:
            raise unknown(f"key in {at}", key, Span._fields)
    if known.static:
        raise BadInput(f"{at}: a count needs a list of values, not a range")
    low, high, log = given.get("low"), given.get("high"), given.get("log", False)
    numbers = [
        value for value in (low, high) if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) < 2 or not -math.inf < numbers[0] < numbers[1] < math.inf:
        raise BadInput(f"{at}: low and high should be two numbers that go up, got {low!r} and {high!r}")
    if not isinstance(log, bool):
        raise BadInput(f"{at}: log should be true or false, got {log!r}")
    if log and numbers[0] <= 0:
        raise BadInput(f"{at}: low must be above 0 where log is true, got {low!r}")
    return Span(float(numbers[0]), float(numbers[1]), log)


def settings(choices: Mapping[str, Any], budget: int, *numbers: int) -> list[Values]:
    """At most `budget` settings: the whole grid, or a draw from it that depends on the numbers alone.

    With a Span among the choices there is no whole grid, and every setting is drawn.
    """
    lists = {name: values for name, values in choices.items() if isinstance(values, list)}
    spans = {name: span for name, span in choices.items() if isinstance(span, Span)}
    size, key = math.prod(len(values) for values in lists.values()), draws.key(draws.SWEEP, *numbers)
    if spans:
        words = draws.words(draws.fold(key, 0), budget).tolist()
        picked = [word % size for word in words]
    elif size > budget:
        picked = sorted(draws.choose(key[None], size, budget)[0])
    else:
        picked = list(range(size))
    chances = draws.uniform(draws.fold(key, 1), len(picked), max(1, len(spans))).tolist()
    found = []
    for place, own in zip(picked, chances, strict=True):
        values: Values = {}
        for name in reversed(lists):  # the last hyperparameter changes fastest
            place, at = divmod(place, len(lists[name]))
            values[name] = lists[name][at]
        values |= {name: span.at(chance) for (name, span), chance in zip(spans.items(), own, strict=False)}
        found.append(
            {name: values[given if isinstance(given, str) else name] for name, given in choices.items()}
        )
    return found


def number_of(text: str) -> int:
    """A number that stands for a name, for draws."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def labels(family: str, count: int) -> list[str]:
    """A name for each setting of a family."""
    digits = max(3, len(str(count - 1)))
    return [f"{family}-{number:0{digits}d}" for number in range(count)]


# --- which is better -------------------------------------------------------------------------------------


class Score(NamedTuple):
    """What a setting is worth. Those that come first are better."""

    dropped: bool  # given up before the end
    lost: int  # seeds that diverged or collapsed
    cost: float  # the mean over those that are finite, its sign turned where high is better

    @property
    def usable(self) -> bool:
        return self.cost < math.inf


def score(metric: Metric, values: Sequence[float], seeds: int, dropped: bool = False) -> Score:
    """A setting that loses a seed comes after all that lose none: a mean over fewer seeds flatters."""
    cost = metric.cost(fmean(values)) if values else math.inf
    return Score(dropped, seeds - len(values) + sum(map(metric.collapsed, values)), cost)


def rungs(count: int, factor: int, rounds: int, every: int) -> dict[int, int]:
    """Successive halving: after which rounds how many of `count` settings are kept.

    The last rung is at rounds / factor, the one before at rounds / factor^2, as many as it takes until one
    setting is left; each at the first evaluation from there on.
    """
    found: dict[int, int] = {}
    depth = 0
    while factor ** (depth + 1) <= count:
        depth += 1
    for k in range(depth, 0, -1):
        at = math.ceil(math.ceil(rounds / factor**k) / every) * every
        if at < rounds:
            found[at] = max(1, math.ceil(count / factor ** (depth - k + 1)))
    return found


@dataclass(frozen=True)
class Halving:
    """Gives up, at each rung, all but the best settings of a study."""

    by: str
    metric: Metric
    names: tuple[str, ...]  # of the lanes
    keep: dict[int, int]  # by round

    def __call__(self, stop: Stop) -> list[Event]:
        if stop.round not in self.keep:
            return []
        scores = self._scores(stop)
        best = sorted(scores, key=lambda name: scores[name])[: self.keep[stop.round]]
        told = f"not among the best {self.keep[stop.round]} of {len(set(self.names))} settings by {self.by}"
        return [
            Event(row.lane, stop.round - 1, "dropped", told)
            for row in stop.rows
            if self.names[row.lane] not in best
        ]

    def _scores(self, stop: Stop) -> dict[str, Score]:
        values: dict[str, list[float]] = {}
        for row in stop.rows:  # of lanes that have diverged or were dropped there is none
            values.setdefault(self.names[row.lane], []).append(row.metrics[self.by])
        return {name: score(self.metric, own, self.names.count(name)) for name, own in values.items()}


# --- the winners as an experiment -----------------------------------------------------------------------


def to_toml(tables: Mapping[str, Any], above: str = "") -> str:
    """Tables of plain values as TOML, leaving out what is None."""
    plain = {key: value for key, value in tables.items() if not isinstance(value, dict) and value is not None}
    lines = [f"{_key(key)} = {_value(value)}\n" for key, value in plain.items()]
    text = (f"[{above}]\n" if above and (lines or not tables) else "") + "".join(lines)
    parts = [text] if text else []
    for key, value in tables.items():
        if isinstance(value, dict):
            parts.append(to_toml(value, f"{above}.{_key(key)}" if above else _key(key)))
    return "\n".join(parts)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str | bool):
        # TOML wants the character 127 escaped and JSON does not.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
