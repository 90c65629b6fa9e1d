"""Flower's Grid, whose `pull_messages` never waits.

A node first pushes an answer's envelope, then its contents. Flower's own `pull_messages` takes the envelope
and then waits for the contents, with growing pauses and for up to two hours: a node that dies in between, or
never means to send the rest, would stop the server. Here an answer is handed out once all of it is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fedsaddle.flower._flwr import Message, ObjectPullError, ObjectUnavailableError, SocketGrid, assemble


@dataclass
class Arriving:
    """An answer whose envelope is here."""

    reply_to: str
    missing: list[str]  # the names of its pieces that are not
    pieces: dict[str, bytes] = field(default_factory=dict)


class PromptGrid(SocketGrid):
    """Hands out answers as they become whole."""

    def __init__(self, socket: Path, token: str) -> None:
        super().__init__(socket, token)
        self.arriving: dict[str, Arriving] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers to these messages that are whole by now."""
        wanted = set(message_ids)
        # Flower hands out an envelope once; asked again, it says that the message is gone.
        new = wanted - {answer.reply_to for answer in self.arriving.values()}
        for name, reply_to, pieces in self.envelopes(new):
            self.arriving[name] = Arriving(reply_to, pieces)
        whole = []
        for name, answer in list(self.arriving.items()):
            if answer.reply_to not in wanted:  # nobody waits for it any more
                del self.arriving[name]
                continue
            try:
                while answer.missing:
                    answer.pieces[answer.missing[-1]] = self.piece(answer.missing[-1])
                    answer.missing.pop()
            except ObjectUnavailableError:
                continue
            except ObjectPullError:  # it will never be whole; its time will run out
                del self.arriving[name]
                continue
            del self.arriving[name]
            self.confirm(name)
            try:
                message = assemble(name, answer.pieces)
            except Exception:  # whatever a node may put together; it is as good as lost
                continue
            if message.metadata.reply_to_message_id == answer.reply_to:
                whole.append(message)
        return whole
