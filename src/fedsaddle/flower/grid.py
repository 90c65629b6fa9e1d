"""Flower's Grid, by way of the post: what is sent goes in one request, and so does what has been answered.

Flower's own `pull_messages` fetches an answer piece by piece, with growing pauses and for up to two hours: a
node that dies in between would stop the server. Here an answer is whole or it is not there.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from pathlib import Path

import httpx

from fedsaddle.flower._flwr import Context, Message, SocketGrid, answer_of, nothing_from, parts_of, unreadable
from fedsaddle.flower.link import to_post
from fedsaddle.flower.post import Sent, read_parts, write_letters


class LinkLost(ConnectionError):
    """The SuperLink does not answer, or with an error."""


class PostGrid(SocketGrid):
    """Sends messages and collects answers through the post. None of its calls waits for a node."""

    def __init__(self, socket: Path, token: str) -> None:
        super().__init__(socket, token)
        self.post = to_post(socket)
        self.sent: dict[str, int] = {}  # the node of each message that is not answered yet

    def _ask(self, path: str, body: bytes = b"") -> bytes:
        try:
            return self.post.post(path, content=body).raise_for_status().content
        except httpx.HTTPError as error:
            raise LinkLost(f"{type(error).__name__}: {error}") from None

    def begin(self) -> Context:
        """Take up the task, in place of whoever had it before."""
        self._ask("/post/clear")
        return super().begin()

    def get_node_ids(self) -> list[int]:
        """The nodes that are online."""
        found: list[int] = json.loads(self._ask("/post/online"))
        return found

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send these messages; what each is called from now on."""
        letters = []
        for message in messages:
            name, about = secrets.token_hex(16), message.metadata
            message.metadata.__dict__["_message_id"] = name
            letters.append(Sent(name, about.dst_node_id, about.ttl, parts_of(message)))
            self.sent[name] = about.dst_node_id
        self._ask("/post/send", write_letters(letters))
        return [letter.name for letter in letters]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers to these messages that have come, in the order in which they came."""
        names = list(message_ids)
        (answered, gone), blobs = read_parts(self._ask("/post/collect", json.dumps(names).encode()))
        found = []
        for name, data in zip(answered, blobs, strict=True):
            node = self.sent.pop(name, 0)
            try:
                found.append(answer_of(data, name, node))
            except ValueError as error:
                found.append(nothing_from(node, name, unreadable(str(error))))
        found += [nothing_from(self.sent.pop(name, 0), name) for name in gone]
        self.sent = {name: node for name, node in self.sent.items() if name in set(names)}
        return found

    def close(self) -> None:
        self.post.close()
        super().close()
