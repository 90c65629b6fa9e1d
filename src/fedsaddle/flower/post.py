"""The post: messages on their way between the ServerApp and its nodes, each whole and in memory.

The ServerApp sends letters, many in one request, and collects what has been answered, many in one request. A
node fetches a letter in one request, which is held open until there is one, and answers in one. Flower's own
store takes some twenty requests and a hundred SQL statements for that. Nothing is written to the disk: a run
whose letters are lost goes on from its checkpoint.

A node is who its key says. It is given only what is addressed to it, and can only answer that, once. So what
it can make the post hold is bounded by what it was asked.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

HOLD = 20.0  # seconds that a look for a letter is held open
LAPSE = 90.0  # seconds without a sign of life after which a node has gone
COLLECT = 32 << 20  # bytes of answers after which a collection is cut off; the rest comes with the next

# A node's paths. They end with the session, which each start of a node names itself by, or a letter's name.
HERE, LEAVE, FETCH, ANSWER = (f"/v1/post/{call}/" for call in ("here", "leave", "fetch", "answer"))
ACCEPTED, TWICE, UNASKED = 200, 409, 410  # what becomes of an answer, in HTTP's words


class Sent(NamedTuple):
    """What the ServerApp gives to the post."""

    name: str
    node: int
    seconds: float  # to live
    parts: list[bytes]  # which many letters may share


@dataclass
class Letter:
    """A message to one node, and what has become of it."""

    node: int
    expires: float
    parts: list[bytes]
    answer: bytes | None = None
    lost: bool = False  # its node has gone


@dataclass
class Post:
    """All letters, and when each node was last heard of."""

    clock: Callable[[], float] = time.monotonic
    letters: dict[str, Letter] = field(default_factory=dict)  # by name, in the order of sending
    answered: dict[str, None] = field(default_factory=dict)  # names, in the order of arrival
    seen: dict[int, float] = field(default_factory=dict)
    sessions: dict[int, str] = field(default_factory=dict)  # of the nodes that are there
    looking: dict[int, asyncio.Event] = field(default_factory=dict)
    closed: bool = False  # no look is held open any more

    # --- the ServerApp's side ------------------------------------------------------------------------

    def send(self, letters: Iterable[Sent]) -> None:
        now = self.clock()
        for name in [name for name, letter in self.letters.items() if letter.expires <= now]:
            self._remove(name)
        for name, node, seconds, parts in letters:
            self.letters[name] = Letter(node, now + seconds, parts)
            if node in self.looking:
                self.looking[node].set()

    def collect(self, names: Iterable[str], most: int = COLLECT) -> tuple[dict[str, bytes], list[str]]:
        """The answers to these letters, in the order of arrival, and those that nobody will answer."""
        wanted, found, size = set(names), dict[str, bytes](), 0
        for name in [name for name in self.answered if name in wanted]:
            if size >= most:
                break
            answer = self.letters[name].answer or b""
            found[name], size = answer, size + len(answer)
            self._remove(name)
        here = self.online()
        gone = []
        for name in wanted - found.keys():
            letter = self.letters.get(name)
            if letter is None or (letter.answer is None and (letter.lost or letter.node not in here)):
                gone.append(name)
                self._remove(name)
        return found, gone

    def online(self) -> set[int]:
        now = self.clock()
        return {node for node, at in self.seen.items() if now - at < LAPSE}

    def clear(self) -> None:
        """Forget all letters: another ServerApp begins."""
        self.letters.clear()
        self.answered.clear()

    def _remove(self, name: str) -> None:
        self.letters.pop(name, None)
        self.answered.pop(name, None)

    # --- a node's side -------------------------------------------------------------------------------

    def hear_of(self, node: int, session: str) -> bool:
        """A sign of life; False if another device is there with the same key."""
        if self.sessions.get(node) != session:
            if node in self.online():
                return False
            self.leave(node)
        self.sessions[node], self.seen[node] = session, self.clock()
        return True

    def leave(self, node: int) -> None:
        """A node has ended, or was started again: what it was doing is lost."""
        self.seen.pop(node, None)
        self.sessions.pop(node, None)
        for letter in self.letters.values():
            if letter.node == node:
                letter.lost = True

    def next(self, node: int) -> Letter | None:
        """The oldest letter that this node has not answered. It may have it already, and have lost it."""
        now = self.clock()
        mine = (one for one in self.letters.values() if one.node == node and one.expires > now)
        return next((one for one in mine if one.answer is None and not one.lost), None)

    async def fetch(self, node: int, left: asyncio.Future[Any]) -> Letter | None:
        """Wait a while for a letter to this node, unless its connection is lost."""
        event = self.looking[node] = asyncio.Event()
        letter = self.next(node)
        if letter is None and not self.closed:
            waiting = asyncio.ensure_future(event.wait())
            await asyncio.wait({waiting, left}, timeout=HOLD, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            letter = self.next(node)
        if self.looking.get(node) is event:
            del self.looking[node]
            if left.done():  # and no other look of the same node has come since
                self.leave(node)
        return letter

    def close(self) -> None:
        """Let go of whoever looks for a letter."""
        self.closed = True
        for event in self.looking.values():
            event.set()

    def expects(self, node: int, name: str) -> float:
        """For how many more seconds an answer of this node is waited for; 0 if none is."""
        letter = self.letters.get(name)
        if letter is None or letter.node != node or letter.lost or letter.answer is not None:
            return 0.0
        return max(0.0, letter.expires - self.clock())

    def answer(self, node: int, name: str, data: bytes) -> int:
        """Take an answer; what became of it."""
        letter = self.letters.get(name)
        if letter is None or letter.node != node or letter.lost or letter.expires <= self.clock():
            return UNASKED
        if letter.answer is not None:
            return TWICE
        letter.answer = data
        self.answered[name] = None
        return ACCEPTED


# --- how the ServerApp's requests and their answers are written ---------------------------------------------


def write_parts(head: Any, blobs: Iterable[bytes]) -> bytes:
    """A line of JSON that ends with the blobs' sizes, and the blobs."""
    parts = list(blobs)
    line = json.dumps([head, [len(one) for one in parts]])
    return b"".join((line.encode(), b"\n", *parts))


def read_parts(data: bytes) -> tuple[Any, list[bytes]]:
    line, _, rest = data.partition(b"\n")
    head, sizes = json.loads(line)
    blobs, start = [], 0
    for size in sizes:
        blobs.append(rest[start : start + size])
        start += size
    return head, blobs


def write_letters(letters: Iterable[Sent]) -> bytes:
    """Letters, with what several of them share only once."""
    places: dict[bytes, int] = {}
    head = []
    for one in letters:
        parts = [places.setdefault(part, len(places)) for part in one.parts]
        head.append([one.name, one.node, one.seconds, parts])
    return write_parts(head, places)


def read_letters(data: bytes) -> list[Sent]:
    head, blobs = read_parts(data)
    return [Sent(name, node, seconds, [blobs[n] for n in parts]) for name, node, seconds, parts in head]


def asked(post: Post, path: str, body: bytes) -> bytes:
    """What the ServerApp asks for by this path."""
    if path == "/post/online":
        return json.dumps(sorted(post.online())).encode()
    if path == "/post/collect":
        found, gone = post.collect(json.loads(body))
        return write_parts([list(found), gone], found.values())
    if path == "/post/send":
        post.send(read_letters(body))
    elif path == "/post/clear":
        post.clear()
    else:
        raise ValueError(f"the post has no {path}")
    return b""
