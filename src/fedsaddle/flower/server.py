"""The ServerApp: rounds on real arrivals. Everything but the waiting is the simulator's.

The server invites clients in the order that the simulator draws, passing over those that are away, still owe
an answer or are barred; so with everybody there it invites the same. It goes on as `Quorum` says, merges what
it has in the order of the clients' numbers by the simulator's `merge`, and leaves the usual run folder.

Flower's `push_messages` and `pull_messages` are all it uses. There is no cancelling a message: a node that is
slow is not invited again until its answer has come, and been dropped, or its time to live has passed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from flwr.app import Context
from flwr.app import Message as Envelope
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from torch.utils._pytree import tree_map

from fedsaddle.core import Message, Pair, Remembers
from fedsaddle.engine.rounds import (
    Event,
    Lanes,
    Posted,
    Study,
    calls_of,
    choose,
    merge,
    send,
    which,
)
from fedsaddle.errors import BadInput
from fedsaddle.fleet import Quorum, Verdict, invite
from fedsaddle.flower.client import Lane
from fedsaddle.flower.wire import Header, Refused, contract, header_of, pack, unpack
from fedsaddle.runs import Interrupted, Plan

SLACK = 5.0  # seconds that an answer may come after the deadline before its message expires
UNBOUNDED = 3600.0  # seconds a message lives if there is no deadline
PATIENCE = 60.0  # seconds to wait for enough idle nodes, if there is no deadline
POLL = 0.1  # seconds between looks for answers
ROLL_CALL = 2.0  # seconds between looks at who is online
GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)


class Owed(NamedTuple):
    """An answer that a node still owes."""

    client: int
    name: str  # what the lane is filed under
    seed: int
    round: int
    phase: int
    expires: float


class Gathered(NamedTuple):
    """How one phase of one lane ended."""

    invited: list[int]
    used: list[int]  # in the order of arrival
    late: list[int]
    refused: dict[int, str]
    lost: list[int]
    seconds: float
    verdict: Verdict
    answered: int  # good answers that were there


@dataclass
class Roll:
    """The nodes: who is there, who owes an answer, and what has arrived."""

    grid: Grid
    nodes: dict[int, int]  # client -> Flower's node
    asked: Callable[[], bool]  # whether somebody wants the run to end
    say: Callable[[str], None]
    owing: dict[str, Owed] = field(default_factory=dict)  # by the message's id
    stragglers: Counter[tuple[str, int, int]] = field(default_factory=Counter)  # late: name, seed, phase
    _online: set[int] = field(default_factory=set)
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
        """Count an answer that came after its phase was decided, and forget it."""
        if reply is not None and reply.has_content():
            self.stragglers[owed.name, owed.seed, owed.phase] += 1

    def drain(self, seconds: float) -> None:
        """Wait for what is still owed, so that no node is left with a message of a run that has ended."""
        end = time.monotonic() + seconds
        while self.owing and time.monotonic() < end:
            for _, owed, reply in self.arrivals():
                self.drop(owed, reply)
            time.sleep(POLL)


@dataclass
class Deployment:
    """Plays the rounds of a plan with real nodes."""

    roll: Roll
    plan: Plan
    run: str  # 32 hexadecimal digits that name this run, over restarts
    strikes: int = 3  # refused answers after which a client is no longer invited
    refusals: Counter[int] = field(default_factory=Counter)  # by client
    kept: dict[tuple[str, int, int], int] = field(default_factory=dict)  # (name, seed, client) -> round
    _like: dict[str, list[Message]] = field(default_factory=dict)

    # --- one round -----------------------------------------------------------------------------------

    def play(self, study: Study, lanes: Lanes, round: int) -> tuple[Lanes, list[Event]]:
        """One round of every lane that is alive, one lane after another. See `rounds.play`."""
        clock, posted = list(lanes.clock), [Counter(counts) for counts in lanes.posted]
        server, done, events = lanes.server, [False] * len(lanes.alive), []
        alive = list(lanes.alive)
        for lane in which(lanes.alive):
            after, used, events_here = self._lane(study, replace(lanes, server=server), lane, round, clock, posted)
            events += events_here
            if after is None:
                continue
            only = torch.tensor([number == lane for number in range(len(alive))], device=study.device)
            z = after.z
            if not bool(torch.isfinite(z.x[lane]).all() and torch.isfinite(z.y[lane]).all()):
                events.append(Event(lane, round, "diverged", "a parameter is no longer finite"))
                alive[lane] = False
                continue
            server, done[lane] = choose(only, after, server), True
            if isinstance(study.algorithm, Remembers):
                for client in used:
                    self.kept[study.names[lane], study.seeds[lane], client] = round
        for (name, seed, phase), count in self.roll.stragglers.items():
            for lane in range(len(alive)):
                if (study.names[lane], study.seeds[lane]) == (name, seed):
                    posted[lane][Posted("late", phase)] += count
        self.roll.stragglers.clear()
        completed = [t + ok for t, ok in zip(lanes.completed, done, strict=True)]
        return Lanes(server, lanes.memory, completed, clock, posted, alive), events

    def _lane(
        self,
        study: Study,
        lanes: Lanes,
        lane: int,
        round: int,
        clock: list[float],
        posted: list[Counter[Posted]],
    ) -> tuple[Any, list[int], list[Event]]:
        """One lane's round: the servers after it (None if it was abandoned), and who took part."""
        server, users = lanes.server, []
        for number, phase in enumerate(study.algorithm.phases()):
            down = _of_lane(send(study, server, number), lane)
            gathered, answers = self.gather(study, lane, round, number, lanes.completed[lane], down)
            clock[lane] += gathered.seconds
            posted[lane][Posted("down", number)] += len(gathered.invited)
            posted[lane][Posted("up", number)] += len(gathered.used)
            posted[lane][Posted("late", number)] += len(gathered.late)
            if gathered.verdict is Verdict.ABANDON:
                minimum = study.quorum.minimum
                detail = f"{phase.name}: {gathered.answered} answers, the minimum is {minimum}"
                return None, [], [Event(lane, round, "abandoned", detail)]
            # In the order of the clients' numbers, so that the order of arrival does not move a bit.
            order = sorted(gathered.used)
            asked = [order if other == lane else [] for other in range(len(study.seeds))]
            calls, _ = calls_of(study, lanes.completed, round, number, asked)
            up = tree_map(lambda *own: torch.stack(own).to(study.device), *(answers[one] for one in order))
            server = choose(calls.answers > 0, merge(study, server, number, calls, up), server)
            users += gathered.used
        return server, users, []

    # --- one phase of one lane -----------------------------------------------------------------------

    def gather(
        self, study: Study, lane: int, round: int, number: int, t: int, down: Message
    ) -> tuple[Gathered, dict[int, Message]]:
        """Invite, and wait as the quorum says. Also the good answers, by client."""
        quorum, roll = study.quorum, self.roll
        name, seed = study.names[lane], study.seeds[lane]
        order = self._order(study, seed, round, number)
        header: Header = {
            "run": self.run,
            "contract": contract(self.plan.resolved, name),
            "algorithm": name,
            "seed": seed,
            "round": round,
            "phase": number,
            "t": t,
        }
        self._wait_for_nodes(quorum, order)
        began = time.monotonic()
        bound = UNBOUNDED if quorum.deadline is None else quorum.deadline + quorum.grace
        expires = began + bound + SLACK
        expected = self._likes(study)[number]
        invited: list[int] = []
        good: dict[int, Message] = {}
        refused: dict[int, str] = {}
        lost: list[int] = []
        mine: set[str] = set()

        def ask(clients: Iterable[int]) -> None:
            letters = {
                client: Envelope(
                    pack({**header, "client": client, "kept": self.kept.get((name, seed, client), -1)}, down),
                    dst_node_id=roll.nodes[client],
                    message_type="train.visit",
                    ttl=max(1.0, expires - time.monotonic()),
                    group_id=str(round),
                )
                for client in clients
            }
            before = set(roll.owing)
            lost.extend(roll.push(letters, lambda client: Owed(client, name, seed, round, number, expires)))
            mine.update(set(roll.owing) - before)
            invited.extend(letters)

        ask([client for client in order if client in roll.idle() and client not in self.barred()][: quorum.invite])
        while True:
            for key, owed, reply in roll.arrivals():
                if key not in mine:
                    roll.drop(owed, reply)
                    continue
                mine.discard(key)
                why = self._sort(owed, reply, {**header, "client": owed.client}, expected, good)
                if why is None:
                    continue
                if why:
                    refused[owed.client] = why
                    self._strike(owed.client, why)
                else:
                    lost.append(owed.client)
            barred, idle = self.barred(), roll.idle()
            others = [client for client in order if client not in invited and client not in barred]
            missing = quorum.wanted - len(good) - len(mine)
            free = [client for client in others if client in idle]
            if missing > 0 and free:
                ask(free[:missing])  # those that failed are made up for
                others = [client for client in others if client not in invited]
            elapsed = time.monotonic() - began
            pending = len(mine) + len([client for client in others if client in roll.online()])
            verdict = quorum.verdict(len(good), pending, elapsed)
            if verdict is not Verdict.WAIT:
                break
            time.sleep(POLL)
        arrived = list(good)
        used = arrived[: quorum.wanted] if verdict is Verdict.GO else []
        late = arrived[len(used) :]
        gathered = Gathered(invited, used, late, refused, lost, elapsed, verdict, len(arrived))
        return gathered, good

    def _sort(
        self, owed: Owed, reply: Envelope | None, header: Header, expected: Message, good: dict[int, Message]
    ) -> str | None:
        """Put a good answer with the others. Else the reason why it is refused; none if it never came."""
        if reply is None:
            return ""
        if not reply.has_content():
            return "" if reply.error.code in GONE else f"it failed: {reply.error.reason[:200]}"
        try:
            if reply.metadata.src_node_id != self.roll.nodes[owed.client]:
                raise Refused("another node answered for it")
            header_of(reply.content, header)
            answer = unpack(reply.content, expected)
        except Refused as error:
            return str(error)
        if not all(bool(torch.isfinite(part).all()) for pair in answer.values() for part in pair):
            return "a value is not finite"
        good[owed.client] = answer
        return None

    def _strike(self, client: int, why: str) -> None:
        self.refusals[client] += 1
        self.roll.say(f"client {client}: {why}")
        if self.refusals[client] == self.strikes:
            self.roll.say(f"client {client} is no longer invited, after {self.strikes} refused answers")

    def barred(self) -> set[int]:
        return {client for client, count in self.refusals.items() if count >= self.strikes}

    def _order(self, study: Study, seed: int, round: int, number: int) -> list[int]:
        """All clients, in the order in which they are invited: it begins as the simulator's cohort does."""
        clients = len(study.problem.federation)
        count = clients if study.weights is None else int((study.weights > 0).sum())
        cohort = number if study.cohorts == "another" else 0
        drawn = invite(torch.tensor([seed]), round, cohort, clients, count, study.weights)
        order: list[int] = drawn[0].tolist()
        return [client for client in order if client in self.roll.nodes]

    def _likes(self, study: Study) -> list[Message]:
        """What the answers of each phase must look like."""
        name = study.names[0]
        if name not in self._like:
            own = replace(study, seeds=study.seeds[:1], hyper={k: v[:1] for k, v in study.hyper.items()})
            lane = Lane(own)
            self._like[name] = [
                lane.answer(0, 0, 0, number, down, lane.blank(0))[0] for number, down in enumerate(lane.down)
            ]
        return self._like[name]

    def _wait_for_nodes(self, quorum: Quorum, order: list[int]) -> None:
        """Until as many are idle as are wanted; when patience ends, as many as the minimum will do."""
        began, told = time.monotonic(), 0.0
        while True:
            able = [client for client in order if client not in self.barred()]
            if len(able) < quorum.minimum:
                raise BadInput(
                    f"only {len(able)} clients are still invited, the minimum is {quorum.minimum}; look at the "
                    "refused ones, put them right, and resume"
                )
            idle = len(self.roll.idle() & set(able))
            waited = time.monotonic() - began
            patience = PATIENCE if quorum.deadline is None else quorum.deadline
            if idle >= (min(quorum.wanted, len(able)) if waited < patience else quorum.minimum):
                return
            if waited - told >= 10:
                told = waited
                self.roll.say(f"waiting for nodes: {len(self.roll.online())} of {len(order)} are online")
            for _, owed, reply in self.roll.arrivals():
                self.roll.drop(owed, reply)
            time.sleep(POLL)


def _of_lane(message: Message, lane: int) -> Message:
    return {name: Pair(pair.x[lane], pair.y[lane]) for name, pair in message.items()}


def server_app(work: Callable[[Grid], None]) -> ServerApp:
    """Flower's ServerApp around the work of a server."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        work(grid)

    return app
