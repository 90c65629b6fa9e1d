"""Players: what plays the operations of a program, without vmap and grad.

TorchScript's interpreter is the fastest and does not hold Python's lock. But PyTorch has deprecated it, and
there are operations that it does not take. Then torch.fx plays the same operations, with the same bits, and
the player says why.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from fedsaddle.engine.compile.players.fx import FX
from fedsaddle.engine.compile.program import Operation, Slot
from fedsaddle.engine.compile.trace import one_line
from fedsaddle.mishaps import out_of_memory


class Player(Protocol):
    """Plays operations."""

    @property
    def why(self) -> str | None:
        """Why it is not the usual one, if it is not."""

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The wanted values, of the inputs' values."""


def player(inputs: list[Slot], operations: list[Operation], wanted: list[Slot]) -> Player:
    """The best player that can be built."""
    try:
        from fedsaddle.engine.compile.players.torchscript import TorchScript

        return TorchScript(inputs, operations, wanted)
    except Exception as error:
        if out_of_memory(error):
            raise
        return FX(inputs, operations, wanted, why=one_line(error))
