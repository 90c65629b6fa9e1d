"""What clients keep between rounds: one table for all lanes and clients, changed in place.

It is the one part of a run that is too large to copy every round.
"""

from __future__ import annotations

from torch import Tensor

from fedsaddle.core import Pair
from fedsaddle.engine.study import Calls
from fedsaddle.engine.visits import Nothing


def kept_by(memory: Pair | None, calls: Calls) -> Pair | Nothing:
    """What the clients that are asked have kept."""
    if memory is None:
        return ()
    lane, client = (where.to(memory.x.device) for where in (calls.lane, calls.client))
    return Pair(memory.x[lane, client], memory.y[lane, client]).to(calls.lane.device)


def remember(memory: Pair, lane: Tensor, client: Tensor, values: Pair) -> None:
    """Put what clients keep into the memory of their lanes."""
    for old, new in zip(memory, values, strict=True):
        old[lane.to(old.device), client.to(old.device)] = new.to(old.device)


def undo(memory: Pair | None, before: list[tuple[Calls, Pair]]) -> None:
    """Give clients back what they had kept."""
    for calls, kept in reversed(before):
        assert memory is not None
        remember(memory, calls.lane, calls.client, kept)
