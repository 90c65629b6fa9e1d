"""What a metric means. A problem declares it; sweeps, reports and counts of collapsed runs go by it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple

from fedsaddle.errors import BadInput

# What rounds.csv has beside the metrics, which none may be named as.
NO_METRICS = ("algorithm", "seed", "round", "floats_up", "floats_down", "time_simulated")
SUCH = 'Metric("high", rows="test")'


class Metric(NamedTuple):
    """One number that `evaluate` gives."""

    better: Literal["high", "low", "neither"]  # neither: a value of the game, which nobody is ranked by
    rows: Literal[
        "train", "validation", "test", "none"
    ]  # that it looks at; a sweep does not choose by test rows
    chance: float | None = None  # what guessing gives: a run that ends no better has collapsed
    # How it is computed, (x, y, batch) -> a number or one a row: of a metric that `fs.task` is given.
    of: Callable[..., Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """What it means, without how it is computed."""
        return {"better": self.better, "rows": self.rows, "chance": self.chance}

    @property
    def ranks(self) -> bool:
        """Whether one value can be better than another."""
        return self.better != "neither"

    def cost(self, value: float) -> float:
        """The value, its sign turned where high is better: low costs are good."""
        return -value if self.better == "high" else value

    def collapsed(self, value: float) -> bool:
        return (self.chance is not None and self.ranks) and (
            self.cost(value) >= self.cost(self.chance) or math.isclose(value, self.chance, rel_tol=1e-6)
        )

    @property
    def valid(self) -> bool:
        """Whether it says what can be said. Types alone do not hold where a person or a disk wrote it."""
        number = isinstance(self.chance, int | float) and abs(self.chance) <= sys.float_info.max
        return (
            self.better in ("high", "low", "neither")
            and self.rows in ("train", "validation", "test", "none")
            and (self.chance is None or number)
        )


def declared(problem: object) -> Mapping[str, Metric]:
    """What a problem says of its metrics; nothing, if it says nothing."""
    name, found = type(problem).__name__, getattr(problem, "metrics", {})
    if not isinstance(found, Mapping):
        raise BadInput(f'{name}.metrics must be such as {{"f1": {SUCH}}}, got {found!r}')
    for key, metric in found.items():
        if not isinstance(metric, Metric) or not metric.valid:
            raise BadInput(f"{name}.metrics['{key}'] must be such as {SUCH}, got {metric!r}")
        if key in NO_METRICS:
            raise BadInput(f"{name}.metrics['{key}'] is named as a column of rounds.csv: name it otherwise")
    return found


def check_declared(problem: object, given: Collection[str]) -> None:
    """Refuse a metric that a problem gives and does not declare, or declares and does not give."""
    name, known = type(problem).__name__, declared(problem)
    for key in given:
        if key not in known:
            raise BadInput(
                f"{name}.evaluate gives '{key}', which its metrics do not declare: "
                f'metrics = {{"{key}": {SUCH}}}'
            )
    for key in known:
        if key not in given:
            raise BadInput(f"{name}.metrics declare '{key}', which evaluate does not give: leave it out")
