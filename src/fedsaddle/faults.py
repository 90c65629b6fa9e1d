"""Faults, injected: a pure function of (seed, round, phase, client), so that they can be had again.

They come on top of what a fleet does by itself. A lost answer never comes; a held-up one comes later, maybe
too late; a second copy counts once; a corrupted answer is refused if the check of answers can see it (not
finite, wrong shape, beyond the norm bound), and is merged like any other if it cannot (a sign, a scale),
which is what robust merges are for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedsaddle import draws
from fedsaddle.checks import NOT_FINITE, REASONS, origin
from fedsaddle.core import Message, Pair
from fedsaddle.errors import BadInput, without_effect
from fedsaddle.ranges import Above0, Delay, Rate, check

SEEN = {"nan": REASONS[NOT_FINITE], "inf": REASONS[NOT_FINITE], "shape": "a shape is wrong"}
DROP, DELAY, DUPLICATE, CORRUPT, HOSTILE = range(5)  # each has luck of its own


@dataclass(frozen=True)
class Faults:
    """What goes wrong, and how often."""

    drop: Rate = 0.0  # the rate at which an answer is lost
    delay: Rate = 0.0  # the rate at which an answer is held up,
    seconds: Delay = 60.0  # for so long
    duplicate: Rate = 0.0  # the rate at which an answer comes twice
    corrupt: Rate = 0.0  # the rate at which an answer is corrupted
    hostile: Rate = 0.0  # the part of the clients whose every answer is corrupted, in a whole run
    corruption: Literal["nan", "inf", "shape", "sign", "scale"] = "nan"
    factor: Above0 = 10.0  # what scale multiplies an update by; sign turns it round as well

    def __post_init__(self) -> None:
        check(self)
        if self.corruption not in (*SEEN, "sign", "scale"):
            raise BadInput(f"corruption must be nan, inf, shape, sign or scale, got {self.corruption!r}")

    @property
    def notes(self) -> list[str]:
        """What was asked for and has no effect."""
        spoils = self.corrupt or self.hostile
        if not (self.drop or self.delay or self.duplicate or spoils):
            return ["no fault is injected: every rate is 0"]
        idle = {} if self.delay else {"seconds": "delay is 0"}
        if not spoils:
            idle |= dict.fromkeys(("corruption", "factor"), "corrupt and hostile are 0")
        elif self.seen:
            idle["factor"] = f"it is of sign and scale, not of {self.corruption}"
        return without_effect(self, idle)

    def _strikes(self, what: int, rate: float, *numbers: Tensor | int) -> Tensor:
        luck = draws.uniform(draws.fold(draws.key(draws.FAULTS, *numbers), what), 1).squeeze(-1)
        return luck < rate

    def delays(self, seeds: Tensor, round: int, phase: int, clients: Tensor, delays: Tensor) -> Tensor:
        """The fleet's delays of the invited clients (lane, place), with what goes wrong on the way."""
        numbers = (seeds[:, None], round, phase, clients)
        delays = delays + self.seconds * self._strikes(DELAY, self.delay, *numbers)
        return torch.where(self._strikes(DROP, self.drop, *numbers), math.inf, delays)

    def duplicated(self, seeds: Tensor, round: int, phase: int, clients: Tensor) -> Tensor:
        """Whose answer comes twice: (lane, place)."""
        return self._strikes(DUPLICATE, self.duplicate, seeds[:, None], round, phase, clients)

    def corrupted(self, seeds: Tensor, round: int, phase: int, clients: Tensor) -> Tensor:
        """Whose answer is corrupted. Seeds and clients broadcast."""
        once = self._strikes(CORRUPT, self.corrupt, seeds, round, phase, clients)
        return once | self._strikes(HOSTILE, self.hostile, seeds, clients)

    @property
    def seen(self) -> str | None:
        """Why a corrupted answer is refused, if the check of answers sees it without a norm bound."""
        return SEEN.get(self.corruption)

    def spoil(self, up: Message, sent: Message) -> Message:
        """The corrupted answer. Answers may be stacked in front, but for a wrong shape."""
        if self.corruption in ("nan", "inf"):
            return {
                name: pair * math.nan if self.corruption == "nan" else pair + _far(pair)
                for name, pair in up.items()
            }
        if self.corruption == "shape":
            return {name: Pair(pair.x[..., 1:], pair.y) for name, pair in up.items()}
        factor = -self.factor if self.corruption == "sign" else self.factor
        spoilt: Message = {}
        for name, pair in up.items():
            start = origin(name, pair, sent)
            spoilt[name] = start + factor * (pair - start)
        return spoilt


def _far(pair: Pair) -> Pair:
    return Pair(torch.full_like(pair.x, math.inf), torch.full_like(pair.y, math.inf))
