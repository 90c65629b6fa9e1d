"""How many floats a message holds, by variable and kind, read off the algorithm's own signatures."""

from __future__ import annotations

import inspect
import typing
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from fedsaddle.core import KINDS, Message, Phase
from fedsaddle.errors import BadInput


class Content(NamedTuple):
    variable: str  # x or y
    kind: str


Floats = Counter[Content]


class Postage(NamedTuple):
    """The floats of one message of a phase, each way."""

    down: Floats
    up: Floats


def kinds_up(phase: Phase) -> dict[str, str]:
    """What each name of an answer carries."""
    hints = typing.get_type_hints(phase.merge, include_extras=True)
    notes = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: note for name, own in notes.items() for note in own if note in KINDS}


def floats_down(phase: Phase, message: Message) -> Floats:
    return _floats(phase.name, phase.work, 1, message)  # after the client


def floats_up(phase: Phase, message: Message) -> Floats:
    return _floats(phase.name, phase.merge, 2, message)  # after the server and the turn


def _floats(phase: str, receiver: Callable[..., Any], first: int, message: Message) -> Floats:
    """The receiver's signature is the schema: each name from the `first` on is annotated with its kind."""
    hints = typing.get_type_hints(receiver, include_extras=True)
    parameters = list(inspect.signature(receiver).parameters.items())
    ahead = ("client",) if first == 1 else ("server", "turn")
    if len(parameters) < first or any(_kinds(hints.get(name)) for name, _ in parameters[:first]):
        raise BadInput(
            f"phase '{phase}': {receiver.__name__} must take {' and '.join(ahead)} before what is sent"
        )
    for name, needed in parameters[first:]:
        if name not in message and needed.default is needed.empty:
            raise BadInput(f"phase '{phase}' does not send '{name}', which {receiver.__name__} takes")
    floats: Floats = Counter()
    for name, pair in message.items():
        if name not in hints:
            raise BadInput(f"phase '{phase}' sends '{name}', which {receiver.__name__} does not take")
        kind = _kinds(hints[name])
        if not kind:
            raise BadInput(
                f"phase '{phase}': annotate '{name}' of {receiver.__name__} with Parameters, Gradients or "
                "ControlVariates, so that its floats can be counted"
            )
        floats[Content("x", kind[0])] += pair.x.shape[-1]
        floats[Content("y", kind[0])] += pair.y.shape[-1]
    return floats


def _kinds(hint: object) -> list[str]:
    """What a parameter carries, by its annotation."""
    return [note for note in getattr(hint, "__metadata__", ()) if note in KINDS]
