"""How large a run's updates usually are, and which answer is none of them.

One finite answer of 1e300 among a hundred carries their mean away. What is large depends on the task, so a
run goes by its own: an update of more than ten times the median of those that were lately used is refused. A
few must be known first; those that have just arrived count, so that this holds in the first round too. Steps
change, and stages end: what most answers of a phase have in common is never refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedsaddle.checks import norm, origin
from fedsaddle.core import Message
from fedsaddle.errors import BadInput
from fedsaddle.runs import sealed, unsealed, write_atomically

TIMES = 10.0  # the median: what is larger is refused
KNOWN = 4  # updates that must be known before one is refused for its size
LATELY = 100  # updates that the median is of

Sizes = dict[str, list[float]]  # norms of updates, by what they are of


@dataclass
class Usual:
    """The norms of the updates that a run has lately used. They outlive the process, in a file."""

    path: Path | None = None
    sizes: Sizes = field(default_factory=dict)

    def recall(self) -> bool:
        """Whether what the file holds, if it is there, could be read."""
        if self.path is not None and self.path.exists():
            try:
                self.sizes = json.loads(unsealed(self.path))
            except BadInput:
                return False
        return True

    def save(self) -> None:
        if self.path is not None:
            write_atomically(self.path, sealed(json.dumps(self.sizes, allow_nan=False).encode()))


@dataclass
class Measure:
    """The sizes of the answers to one phase of one lane, among those of the run."""

    usual: Usual
    place: str  # the lane and the phase
    down: Message
    new: Callable[[int], bool]  # whether a client has kept nothing yet: its first control variate is larger
    _measured: dict[int, dict[str, float]] = field(default_factory=dict)

    def too_large(
        self,
        answers: Mapping[int, Message],
        exempt: Mapping[str, float],
        known: int = KNOWN,
        together: bool = True,
    ) -> dict[int, str]:
        """Whose updates are none of this run's, and why. `exempt` names have a bound of their own.

        Where most of those that are here have grown `together`, it is the run that has changed, as it does
        when a stage begins, and nobody is to blame for it.
        """
        found: dict[int, str] = {}
        measured = {client: self._of(client, answer) for client, answer in answers.items()}
        for of in {of for own in measured.values() for of in own}:
            now = {client: own[of] for client, own in measured.items() if of in own}
            middle = _median([*self.usual.sizes.get(of, ()), *now.values()], known)
            if together and len(now) > 1:
                middle = max(middle, _median(list(now.values()), 1))
            name = of.split()[-1]
            for client, size in now.items():
                if size > TIMES * middle > 0 and name not in exempt:
                    found[client] = f"its update of {name} is {size / middle:.3g} times the median"
        return found

    def learn(self, answers: Mapping[int, Message]) -> None:
        """Remember the sizes of answers that were used."""
        for client, answer in answers.items():
            for of, size in self._of(client, answer).items():
                if math.isfinite(size):
                    self.usual.sizes[of] = [*self.usual.sizes.get(of, ()), size][-LATELY:]

    def _of(self, client: int, answer: Message) -> dict[str, float]:
        if client not in self._measured:
            place = f"{self.place} new" if self.new(client) else self.place
            self._measured[client] = {
                f"{place} {name}": float(norm(pair - origin(name, pair, self.down)))
                for name, pair in answer.items()
            }
        return self._measured[client]


def _median(sizes: list[float], known: int) -> float:
    """The value in the middle, of an even number the smaller; no bound while too few are known."""
    return sorted(sizes)[(len(sizes) - 1) // 2] if len(sizes) >= known else math.inf
