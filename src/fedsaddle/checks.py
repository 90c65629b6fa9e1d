"""The border: answers are not trusted. Each is checked before it counts; a bad one is refused.

Used by the simulator, where faults are injected, and by a deployment, where they happen. How large an answer
is, is judged by its update: what went down under the same name is subtracted, since the answer is a changed
copy of it; an answer under any other name (a gradient, a change of a control variate) is an update itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsaddle.core import KINDS, Count, Message, Pair, zeros_like
from fedsaddle.errors import BadInput
from fedsaddle.ranges import Above0, check

Norms = Above0 | dict[str, Above0]  # one for all, or one for some kinds of messages

NOT_FINITE, TOO_LARGE = 1, 2
REASONS = {NOT_FINITE: "a value is not finite", TOO_LARGE: "the update is larger than the norm bound"}


def check_kinds(name: str, norms: Norms | None) -> None:
    for kind in norms if isinstance(norms, dict) else ():
        if kind not in KINDS:
            raise BadInput(f"{name}: unknown kind '{kind[:40]}'; known: {', '.join(KINDS)}")


def bounds(norms: Norms | None, kinds: Mapping[str, str]) -> dict[str, float]:
    """The bound of each name of a message that has one, given the kind of each name."""
    if norms is None:
        return {}
    if isinstance(norms, dict):
        return {name: norms[kind] for name, kind in kinds.items() if kind in norms}
    return dict.fromkeys(kinds, norms)


@dataclass(frozen=True)
class Checks:
    """What is asked of answers, and when a client is no longer asked for any."""

    norm: Norms | None = None  # the largest Euclidean norm of an update, x and y together
    strikes: Count | None = None  # refused answers after which a client is no longer invited

    def __post_init__(self) -> None:
        check(self)
        check_kinds("norm", self.norm)

    def barred(self, strikes: Counter[int]) -> set[int]:
        """Who is no longer invited, given how many answers of each client were refused."""
        if self.strikes is None:
            return set()
        return {client for client, count in strikes.items() if count >= self.strikes}


def origin(name: str, like: Pair, sent: Message) -> Pair:
    """What an update is counted from, player by player: what was sent under its name, or zero."""
    blank, there = zeros_like(like), sent.get(name)
    if there is None:
        return blank
    x, y = (
        begin if begin.shape[-1] == zero.shape[-1] else zero for begin, zero in zip(there, blank, strict=True)
    )
    return Pair(x, y)


def norm(pair: Pair) -> Tensor:
    """Of x and y together, in float64, so that squares of float32 do not overflow."""
    x, y = (torch.linalg.vector_norm(part, dim=-1, dtype=torch.float64) for part in pair)
    return torch.hypot(x, y)


def judge(up: Message, sent: Message, limits: Mapping[str, float]) -> Tensor:
    """0 for a good answer, else a number of `REASONS`. Answers may be stacked in front."""
    finite: Tensor | None = None
    large: Tensor | None = None
    for name, pair in up.items():
        whole = torch.isfinite(pair.x).all(-1) & torch.isfinite(pair.y).all(-1)
        finite = whole if finite is None else finite & whole
        if name in limits:
            over = norm(pair - origin(name, pair, sent)) > limits[name]
            large = over if large is None else large | over
    if finite is None:
        return torch.zeros((), dtype=torch.long)
    verdict = torch.zeros_like(finite, dtype=torch.long)
    if large is not None:
        verdict = torch.where(large, TOO_LARGE, verdict)
    return torch.where(finite, verdict, NOT_FINITE)


def refuse(message: object, expected: Message, sent: Message, limits: Mapping[str, float]) -> str | None:
    """Why an answer is refused, or None. `expected` has the names, shapes and types that are right."""
    if not isinstance(message, dict) or message.keys() != expected.keys():
        names = sorted(map(str, message)) if isinstance(message, dict) else type(message).__name__
        return f"expected {', '.join(sorted(expected))}, got {str(names)[:80]}"
    for name, like in expected.items():
        pair = message[name]
        if not isinstance(pair, tuple) or len(pair) != 2:
            return f"{name} is not a pair"
        for player, part, right in zip("xy", pair, like, strict=True):
            if not isinstance(part, Tensor):
                return f"{name}.{player} is not a tensor"
            if part.dtype != right.dtype:
                return f"{name}.{player} is {part.dtype}, not {right.dtype}"
            if part.shape != right.shape:
                return f"{name}.{player} has shape {tuple(part.shape)}, not {tuple(right.shape)}"
    pairs = {name: Pair(*pair) for name, pair in message.items()}
    return REASONS.get(int(judge(pairs, sent, limits)))
