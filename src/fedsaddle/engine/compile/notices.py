"""Notices: what a person should hear of recordings, each thing once; and when a replay is to be compared."""

from __future__ import annotations

import warnings

from fedsaddle.errors import Notice

RECHECK, RECHECK_LESS = 64, 8  # replays before one is compared again, and how much rarer each time


class Notices:
    """Those of one study."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._replays = 0
        self._next = RECHECK

    def due(self) -> bool:
        """Whether the replay that comes should be compared with the computation: now and then, ever rarer."""
        self._replays += 1
        if self._replays < self._next:
            return False
        self._next *= RECHECK_LESS
        return True

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
