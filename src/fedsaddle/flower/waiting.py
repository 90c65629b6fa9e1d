"""The wait for the answers to one phase of one lane, on real arrivals."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fedsaddle.checks import NOT_FINITE, REASONS, refuse
from fedsaddle.core import Message
from fedsaddle.fleet import Quorum, Verdict
from fedsaddle.flower._flwr import ErrorCode
from fedsaddle.flower._flwr import Message as Envelope
from fedsaddle.flower.roll import POLL, Owed, Roll
from fedsaddle.flower.usual import KNOWN, Measure
from fedsaddle.flower.wire import MADE, PARTIAL, Header, Refused, header_of, integer, pack, unpack
from fedsaddle.history import Gathering

SLACK = 5.0  # seconds that an answer may come after the deadline before its message expires
UNBOUNDED = 3600.0  # seconds a message lives if there is no deadline
NO_REPLY = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)


@dataclass
class Wait:
    """The wait for the answers to one phase of one lane."""

    roll: Roll
    quorum: Quorum
    name: str  # what the lane is filed under
    seed: int
    round: int
    phase: int
    header: Header  # what its messages say, beside these
    kept: Callable[[int], int]  # the round whose memory counts for a client; -1 for none
    down: Message
    expected: Message  # what an answer must look like
    limits: dict[str, float]  # of an update's norm
    most: int  # refused answers of a client
    measure: Measure  # of updates, where the experiment gives no bound
    planned: int  # local steps of a walk that is not cut short
    partial: float | None  # seconds after which a device sends the steps that it has made
    strata: list[int]  # of each client
    seats: Counter[int]  # how many answers of each stratum are waited for
    invited: list[int] = field(default_factory=list)
    good: dict[int, Message] = field(default_factory=dict)  # by client, as they arrive
    cut: dict[int, int] = field(default_factory=dict)  # the steps of walks that were cut short
    refused: dict[int, str] = field(default_factory=dict)
    not_finite: dict[int, Message] = field(default_factory=dict)  # of those, answers that are not finite
    lost: list[int] = field(default_factory=list)
    away: dict[int, None] = field(default_factory=dict)  # whose turn came when they were not there, in order
    mine: set[str] = field(default_factory=set)  # messages that are not answered yet
    began: float = field(default_factory=time.monotonic)

    def end(self, order: list[int]) -> Gathering:
        """How it ends, with clients invited in this order."""
        quorum, roll = self.quorum, self.roll
        self.ask(self.next([client for client in order if client not in roll.barred(self.most)]))
        while True:
            self.hear()
            if len(self.good) >= min(KNOWN, quorum.wanted):
                self.sift()
            barred = roll.barred(self.most)
            others = [client for client in order if client not in self.invited and client not in barred]
            self.ask(self.next(others))  # those that failed are made up for
            elapsed = time.monotonic() - self.began
            able = [client for client in others if client not in self.invited and client in roll.online()]
            seated = self.seated()
            verdict = quorum.verdict(len(seated), len(self.mine) + len(able), elapsed)
            if verdict is not Verdict.WAIT and not self.sift():
                break
            time.sleep(POLL)
        if self.diverged():
            self.good, self.refused, verdict = self.not_finite, {}, Verdict.GO
            seated = self.seated()
        for client in self.refused.keys() & self.not_finite.keys():
            roll.strike(client, self.refused[client], self.most)
        used = seated if verdict is Verdict.GO else []
        return Gathering(
            self.invited,
            used,
            [client for client in self.good if client not in used],
            self.refused,
            self.lost,
            elapsed,
            verdict,
            [],
            len(seated),
            roll.reckon(self.name, self.seed, self.phase),
            {client: self.cut[client] for client in used if client in self.cut},
            tuple(client for client in self.away if client not in self.invited),
        )

    def diverged(self) -> bool:
        """Whether nobody's answer is finite. Then it is the run that is not, and no device is to blame."""
        least = max(2, self.quorum.minimum)
        return (
            len(self.not_finite) >= least and not self.good and self.refused.keys() == self.not_finite.keys()
        )

    def seated(self) -> list[int]:
        """Whose good answers count: of each stratum the first, as many as are waited for."""
        free, found = Counter(self.seats), list[int]()
        for client in self.good:
            if free[self.strata[client]] > 0:
                found.append(client)
                free[self.strata[client]] -= 1
        return found

    def next(self, others: list[int]) -> list[int]:
        """Whom to invite of these: the next S^, and then of each stratum as many as are missing in it.

        Those who are passed over are `away`: their turn has come, and they are not there.
        """
        if not self.invited:
            strata, short = [0] * len(self.strata), Counter({0: self.quorum.invite})
        else:
            strata, short = self.strata, Counter(self.seats)
            pending = [self.roll.owing[key].client for key in self.mine]
            short.subtract(strata[client] for client in (*self.seated(), *pending))
        idle, found = self.roll.idle(), list[int]()
        for client in others:
            if short[strata[client]] > 0:
                if client in idle:
                    found.append(client)
                    short[strata[client]] -= 1
                else:
                    self.away[client] = None
        return found

    def ask(self, clients: Iterable[int]) -> None:
        """Invite these clients."""
        bound = UNBOUNDED if self.quorum.deadline is None else self.quorum.deadline + self.quorum.grace
        expires = self.began + bound + SLACK
        header = dict(self.header)
        if self.partial is not None:
            header[PARTIAL] = repr(max(0.0, self.began + self.partial - time.monotonic()))
        letters = {
            client: Envelope(
                pack({**header, "client": client, "kept": self.kept(client)}, self.down),
                dst_node_id=self.roll.nodes[client],
                message_type="train.visit",
                ttl=max(1.0, expires - time.monotonic()),
                group_id=str(self.round),
            )
            for client in clients
        }
        before, lane = set(self.roll.owing), (self.name, self.seed, self.round, self.phase)
        self.lost += self.roll.push(letters, lambda client: Owed(client, *lane, expires))
        self.mine |= set(self.roll.owing) - before
        self.invited += letters

    def hear(self) -> None:
        """Take in what has arrived."""
        for key, owed, reply in self.roll.arrivals():
            if key not in self.mine:
                self.roll.drop(owed, reply)
                continue
            self.mine.discard(key)
            if reply is None or (not reply.has_content() and reply.error.code in NO_REPLY):
                self.lost.append(owed.client)
                continue
            try:
                self.good[owed.client] = self.judged(reply, owed.client)
            except Refused as error:
                self.refused[owed.client] = str(error)
                if owed.client not in self.not_finite:  # those are judged together, in the end
                    self.roll.strike(owed.client, str(error), self.most)

    def sift(self) -> bool:
        """Refuse what is far larger than this run's updates are; whether there was such a one."""
        found = self.measure.too_large(self.good, self.limits)
        for client, why in found.items():
            del self.good[client]
            self.refused[client] = why
            self.roll.strike(client, why, self.most)
        return bool(found)

    def judged(self, reply: Envelope, client: int) -> Message:
        """An answer that can be used."""
        if not reply.has_content():
            raise Refused(f"it failed: {str(reply.error.reason)[:200]}")
        if reply.metadata.src_node_id != self.roll.nodes[client]:
            raise Refused("another node answered for it")
        told = header_of(reply.content, {**self.header, "client": client})
        made = self.planned if self.partial is None else integer(told, MADE, 1, self.planned)
        answer = unpack(reply.content, self.expected)
        why = refuse(answer, self.expected, self.down, self.limits)
        if made < self.planned:
            self.cut[client] = made
        if why == REASONS[NOT_FINITE]:
            self.not_finite[client] = answer
        if why is not None:
            raise Refused(why)
        return answer
