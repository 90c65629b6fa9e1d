"""Notices: what a person should hear of recordings, each thing once; and when a replay is to be compared."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import NamedTuple

from fedsaddle.engine.compile.referred import Referred
from fedsaddle.errors import Notice

RECHECK, RECHECK_LESS = 64, 2  # replays of a shape before one is compared again, and how much rarer each time
LOOK = 8  # replays of any shape before what the problem refers to is looked at again


class Replays(NamedTuple):
    """Those of one shape."""

    done: int
    next: int  # when one is to be compared
    changes: int  # of what the problem refers to, that were known when one was compared


class Notices:
    """Those of one study."""

    def __init__(self, referred: Referred | None = None) -> None:
        self._told: set[str] = set()
        self._referred = referred
        self._replays = self._changes = 0
        self._of: dict[Hashable, Replays] = {}

    def due(self, shape: Hashable) -> bool:
        """Whether the replay that comes should be compared with the computation.

        That is so now and then, ever rarer, and when a value has changed that the problem refers to.
        """
        self._replays += 1
        if self._replays % LOOK == 0 and self._referred is not None and self._referred.changed():
            self._changes += 1
        done, then, changes = self._of.get(shape, Replays(0, RECHECK, 0))
        over, changed = done + 1 >= then, changes != self._changes
        self._of[shape] = Replays(done + 1, then * RECHECK_LESS if over else then, self._changes)
        return over or changed

    def plain(self, name: str, why: str) -> None:
        self._say(f"{name} cannot be recorded and is computed plainly, which is slower: {why}")

    def played(self, name: str, why: str | None) -> None:
        """Why it is not played by the usual player, if it is not."""
        if why is not None:
            self._say(f"{name} is replayed by torch.fx, which is slower on a CPU, not by TorchScript: {why}")

    def as_it_is(self, name: str, why: str) -> None:
        self._say(f"{name} is captured as it is, not shortened first, which is slower: {why}")

    def differs(self, name: str) -> None:
        self._say(
            f"{name} gives other values when it is replayed, so it is computed plainly now, which is slower: "
            "does the problem or the algorithm compute outside PyTorch, draw random numbers, or change a "
            "value that it computes with?"
        )

    def _say(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            warnings.warn(line, Notice, stacklevel=2)
