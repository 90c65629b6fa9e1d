"""The nodes of a deployment: who is online, who owes an answer, and what has arrived.

Flower's `push_messages` and `pull_messages` are all it uses. A message cannot be cancelled: a straggler is
not invited again until its answer has arrived, and been dropped, or its time to live has passed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from fedsaddle.flower._flwr import Grid
from fedsaddle.flower._flwr import Message as Envelope
from fedsaddle.flower.metrics import Status
from fedsaddle.runs import Interrupted

FORGIVEN = 20  # answers that are used, in a row, take one strike back: what went wrong was put right
POLL = 0.1  # seconds between looks for answers
ROLL_CALL = 2.0  # seconds between looks at who is online


class Owed(NamedTuple):
    """An answer that a node still owes."""

    client: int
    name: str  # what the lane is filed under
    seed: int
    round: int
    phase: int
    expires: float


@dataclass
class Roll:
    """The nodes: who is there, who owes an answer, and what has arrived."""

    grid: Grid
    nodes: dict[int, int]  # client -> Flower's node
    asked: Callable[[], bool]  # whether somebody wants the run to end
    say: Callable[[str], None]
    owing: dict[str, Owed] = field(default_factory=dict)  # by the message's id
    overdue: list[Owed] = field(default_factory=list)  # came after their phase was over; to be counted
    refusals: Counter[int] = field(default_factory=Counter)  # of answers, by client
    praise: Counter[int] = field(default_factory=Counter)  # answers used since the last refusal, by client
    status: Status = field(default_factory=Status)  # for monitoring
    _online: set[int] = field(default_factory=set)
    _barred: set[int] = field(default_factory=set)
    _looked: float = -ROLL_CALL

    def online(self) -> set[int]:
        """The clients whose nodes are online."""
        if time.monotonic() - self._looked >= ROLL_CALL:
            there = set(self.grid.get_node_ids())
            self._online = {client for client, node in self.nodes.items() if node in there}
            self._looked = time.monotonic()
        return self._online

    def idle(self) -> set[int]:
        """The clients that are online and owe nothing."""
        return self.online() - {owed.client for owed in self.owing.values()}

    def push(self, letters: dict[int, Envelope], owed: Callable[[int], Owed]) -> list[int]:
        """Send each client its message; those that Flower does not take."""
        ids = list(self.grid.push_messages(letters.values())) if letters else []
        ids += [""] * (len(letters) - len(ids))
        self.owing |= {key: owed(client) for client, key in zip(letters, ids, strict=True) if key}
        return [client for client, key in zip(letters, ids, strict=True) if not key]

    def arrivals(self) -> list[tuple[str, Owed, Envelope | None]]:
        """What has come since the last look, and whose time has passed (without a message)."""
        if self.asked():
            raise Interrupted
        self.status.write(
            nodes_registered=len(self.nodes),
            nodes_online=len(self._online),
            nodes_barred=len(self._barred),
            answers_owed=len(self.owing),
        )
        found: list[tuple[str, Owed, Envelope | None]] = []
        for reply in self.grid.pull_messages(list(self.owing)) if self.owing else ():
            key = reply.metadata.reply_to_message_id
            owed = self.owing.pop(key, None)
            if owed is not None:
                found.append((key, owed, reply))
        now = time.monotonic()
        for key in [key for key, owed in self.owing.items() if owed.expires <= now]:
            found.append((key, self.owing.pop(key), None))
        return found

    def drop(self, owed: Owed, reply: Envelope | None) -> None:
        """Count a straggler's answer, which came after its phase was decided, and forget it."""
        if reply is not None and reply.has_content():
            self.overdue.append(owed)

    def reckon(self, name: str, seed: int, phase: int) -> tuple[int, ...]:
        """The stragglers of this phase in earlier rounds whose answers have come since, to be counted now."""
        found = [owed for owed in self.overdue if (owed.name, owed.seed, owed.phase) == (name, seed, phase)]
        self.overdue = [owed for owed in self.overdue if owed not in found]
        return tuple(owed.client for owed in found)

    def strike(self, client: int, why: str, most: int) -> None:
        """Count a refused answer against a client."""
        self.judged([client], ())
        self.say(f"client {client} is refused: {why}")
        if self.refusals[client] == most:
            self.say(f"client {client} is no longer invited, after {most} refused answers")

    def judged(self, refused: Iterable[int], used: Iterable[int]) -> None:
        """Keep count of what became of answers."""
        for client in refused:
            self.refusals[client] += 1
            self.praise[client] = 0
        for client in used:
            self.praise[client] += 1
            if self.praise[client] == FORGIVEN:
                self.praise[client] = 0
                self.refusals[client] = max(0, self.refusals[client] - 1)

    def pardon(self, most: int) -> None:
        """Invite everybody at least once more."""
        self.refusals = Counter({client: min(count, most - 1) for client, count in self.refusals.items()})

    def barred(self, most: int) -> set[int]:
        """Who is no longer invited, after so many refused answers."""
        self._barred = {client for client, count in self.refusals.items() if count >= most}
        return self._barred

    def drain(self, seconds: float) -> None:
        """Wait for what is still owed, so that no node is left with a message of a run that has ended."""
        end = time.monotonic() + seconds
        while self.owing and time.monotonic() < end:
            for _, owed, reply in self.arrivals():
                self.drop(owed, reply)
            time.sleep(POLL)
