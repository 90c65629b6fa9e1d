"""The ServerApp: rounds on real arrivals. Everything but the waiting is the simulator's.

The server invites clients in the order that the simulator draws, passing over those that are away, still owe
an answer or are barred; so with everybody there it invites the same. It goes on as `Quorum` says, aggregates
what it has by the simulator's `merge`, in the order of the clients' numbers, and leaves the usual run folder.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedsaddle.checks import bounds
from fedsaddle.core import Message, Remembers
from fedsaddle.engine.gather import seats_of
from fedsaddle.engine.partial import planned_steps
from fedsaddle.engine.round import which
from fedsaddle.engine.study import Event, Lanes, Study
from fedsaddle.errors import MOST, BadInput
from fedsaddle.fleet import Quorum, Verdict, invite
from fedsaddle.flower._flwr import Context, Grid, ServerApp
from fedsaddle.flower._flwr import Message as Envelope
from fedsaddle.flower.client import LaneOnDevice
from fedsaddle.flower.journal import Journal
from fedsaddle.flower.playing import Deployed, Heard
from fedsaddle.flower.roll import POLL, ROLL_CALL, Owed, Roll
from fedsaddle.flower.usual import Measure, Usual
from fedsaddle.flower.waiting import Wait
from fedsaddle.flower.wire import (
    COUNT,
    FACT,
    OTHER_CODE,
    Header,
    Refused,
    agreement,
    code_of,
    header_of,
    integer,
    pack,
)
from fedsaddle.history import Gathering, Told, line
from fedsaddle.problem import Counts, Facts, Held
from fedsaddle.runs import HISTORY, Plan, read_checkpoint, sealed, unsealed, verified, write_atomically

STRIKES = 3  # refused answers after which a client is no longer invited, if the experiment does not say
NODE_PATIENCE = 60.0  # seconds to wait for all nodes in the beginning; later for enough, without a deadline


@dataclass
class Deployment:
    """Plays the rounds of a plan with real nodes."""

    roll: Roll
    plan: Plan
    run: str  # 32 hexadecimal digits that name this run, over restarts
    kept: dict[tuple[str, int, int], int] = field(default_factory=dict)  # (name, seed, client) -> round
    _like: dict[str, list[Message]] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)  # what was added up from all devices' counts
    folder: Path | None = None  # where they are kept
    journal: Journal | None = None  # of every phase
    usual: Usual = field(default_factory=Usual)  # how large updates are
    moved: dict[tuple[str, int], float] = field(default_factory=dict)  # how far a round has moved each lane
    _begun: bool = False

    def recall(self, folder: Path, pardoned: int = 0) -> None:
        """Learn from a run's history what this run knew when its checkpoint was made.

        After the first so many entries a person has resumed it, who may have put right what was refused: from
        there on everybody is invited at least once more.
        """
        self.usual = Usual(self.folder and self.folder / "usual.json")
        if not self.usual.recall():
            self.roll.say(f"{self.usual.path} is damaged; how large updates are is learnt anew")
        users: list[int] = []
        most = min(map(most_strikes, self.plan.studies.values()))
        for number, entry in enumerate(entries(folder), 1):
            self.roll.judged(map(int, entry["refused"]), entry["used"])
            if number == pardoned:
                self.roll.pardon(most)
            users = entry["used"] if entry["phase"] == 0 else [*users, *entry["used"]]
            last = len(self.plan.studies[entry["algorithm"]].algorithm.phases()) - 1
            if entry["verdict"] == Verdict.GO.value and entry["phase"] == last:
                self._keep(entry["algorithm"], entry["seed"], users, entry["round"])

    def _keep(self, name: str, seed: int, clients: list[int], round: int) -> None:
        """Note the round whose memory counts, for clients that took part in it."""
        self.kept |= {(name, seed, client): round for client in clients}

    def _kept_by(self, name: str, seed: int, client: int) -> int:
        """The round whose memory counts; -1 for none."""
        return self.kept.get((name, seed, client), -1)

    # --- one round -----------------------------------------------------------------------------------

    def play(
        self, study: Study, lanes: Lanes, round: int, history: list[Told] | None = None
    ) -> tuple[Lanes, list[Event]]:
        """One round of every lane that is alive, one after another: the simulator's, on real arrivals."""
        if not self._begun:
            self._begun = True
            self._wait_for_all(starting=round == 0)
            self._enrol(study)
        after, events = lanes, list[Event]()
        for lane in which(lanes.alive):
            told: list[Told] = []
            own = Deployed(study, lane, self.gather, self._strike, self.moved)
            played, more = own.play(after, round, told)
            own.learn()
            for one in told:
                self.roll.judged((), one.gathering.used)
                self.roll.status.count(one)
                if self.journal is not None:
                    self.journal.note("phase", **json.loads(line(one)))
            alive = [on and (other != lane or played.alive[lane]) for other, on in enumerate(after.alive)]
            if played.completed[lane] > after.completed[lane] and isinstance(study.algorithm, Remembers):
                users = [client for one in told for client in one.gathering.used]
                self._keep(study.names[lane], study.seeds[lane], users, round)
            after, events = replace(played, alive=alive), events + more
            if history is not None:
                history += told
        self.usual.save()
        return after, events

    def _strike(self, study: Study, client: int, why: str) -> None:
        self.roll.strike(client, why, most_strikes(study))

    # --- one phase of one lane -----------------------------------------------------------------------

    def gather(
        self,
        study: Study,
        lane: int,
        round: int,
        number: int,
        t: int,
        down: Message,
        before: Gathering | None,
    ) -> Heard:
        """Invite, and wait as the quorum says.

        With the gathering `before`, those whose answers were used in it: nobody else can stand in for them.
        """
        name, seed = study.names[lane], study.seeds[lane]
        header: Header = {
            "run": self.run,
            "contract": agreement(self.plan, name),
            "algorithm": name,
            "seed": seed,
            "round": round,
            "phase": number,
            "t": t,
            **{FACT + key: repr(value) for key, value in self.facts.items()},
        }
        limits = {} if study.checks is None else bounds(study.checks.norm, study.kinds[number])
        most = most_strikes(study)
        if before is None:
            order = self._order(study, seed, round, number)
            self._wait_for_nodes(study.quorums[number], order, self.roll.barred(most))
        else:
            order = [client for client in before.invited if client in before.used]
        kept, quorum = partial(self._kept_by, name, seed), study.quorums[number]
        barred, every = self.roll.barred(most), [0] * len(study.problem.federation)
        cohort = [client for client in order if client not in barred][: quorum.invite]
        seats = seats_of(study, lane, round, number, cohort)
        measure = Measure(self.usual, f"{name} {seed} {number}", down, lambda client: kept(client) < 0)
        wait = Wait(
            self.roll,
            quorum,
            name,
            seed,
            round,
            number,
            header,
            kept,
            down,
            self._likes(study)[number],
            limits,
            most,
            measure,
            planned_steps(study, round, number)[lane],
            study.quorum.partial_work if study.task(number).partial else None,
            every if study.strata is None or seats is None else study.strata.tolist(),
            seats or Counter({0: quorum.wanted}),
        )
        end = wait.end(order)
        # Who was away is known for the weights alone: it may be nearly everybody.
        return Heard(end if study.merge.weighted else end._replace(away=()), wait.good, measure)

    def _order(self, study: Study, seed: int, round: int, number: int) -> list[int]:
        """All clients, in the order in which they are invited: it begins as the simulator's cohort does."""
        clients = len(study.problem.federation)
        count = clients if study.weights is None else int((study.weights > 0).sum())
        cohort = number if study.cohorts == "independent" else 0
        drawn = invite(torch.tensor([seed]), round, cohort, clients, count, study.weights, (), study.strata)
        order: list[int] = drawn[0].tolist()
        return [client for client in order if client in self.roll.nodes]

    def _likes(self, study: Study) -> list[Message]:
        """What the answers of each phase must look like."""
        name = study.names[0]
        if name not in self._like:
            own = replace(study, seeds=study.seeds[:1], hyper={k: v[:1] for k, v in study.hyper.items()})
            lane = LaneOnDevice(own)
            self._like[name] = [
                lane.answer(0, 0, 0, number, down, lane.blank(0))[0] for number, down in enumerate(lane.down)
            ]
        return self._like[name]

    def _enrol(self, study: Study) -> None:
        """Ask every device for the counts that the task needs, once in a run."""
        problem = study.problem
        if not isinstance(problem, Held) or not problem.away:
            return
        path = None if self.folder is None else self.folder / "facts.json"
        if path is not None and path.exists():
            self.facts = json.loads(unsealed(path))
        else:
            counts: dict[int, Counts] = {}
            while len(counts) < study.quorum.minimum:
                self._wait_for_nodes(study.quorum, list(self.roll.nodes), self.roll.barred(STRIKES))
                counts |= self._counts(problem)
            self.facts = problem.facts(list(counts.values()))
            every = sum(one["rows"] for one in counts.values())
            self.roll.say(f"{len(counts)} devices hold {every} rows")
            for client, own in counts.items():
                if len(counts) > 2 and own["rows"] > every / 2:
                    told = f"client {client} says that it alone holds {own['rows']} of them"
                    self.roll.say(f"{told}; if that is wrong, revoke its key and begin again")
            if path is not None:
                write_atomically(path, sealed(json.dumps(self.facts).encode()))
        problem.learn(self.facts)

    def _counts(self, problem: Held) -> dict[int, Counts]:
        algorithm = next(iter(self.plan.studies))
        header: Header = {"algorithm": algorithm, "contract": agreement(self.plan, algorithm)}
        wanted, expires = problem.counts(0).keys(), time.monotonic() + NODE_PATIENCE
        letters = {
            client: Envelope(
                pack({**header, "client": client}, {}),
                dst_node_id=self.roll.nodes[client],
                message_type="query.enrol",
                ttl=NODE_PATIENCE,
            )
            for client in self.roll.idle()
        }
        self.roll.push(letters, lambda client: Owed(client, "", 0, 0, 0, expires))
        counts: dict[int, Counts] = {}
        while self.roll.owing:
            for _, owed, reply in self.roll.arrivals():
                if reply is None:
                    continue
                try:
                    if not reply.has_content():
                        raise Refused(str(reply.error.reason)[:200])
                    told = header_of(reply.content, {**header, "client": owed.client})
                    rows = integer(told, COUNT + "rows", 1, MOST)
                    counts[owed.client] = {key: integer(told, COUNT + key, 0, rows) for key in wanted}
                except Refused as error:
                    self.roll.strike(owed.client, str(error), STRIKES)
            time.sleep(POLL)
        return counts

    def _wait_for_all(self, starting: bool) -> None:
        """Give everybody with a key some time to come, once. Then the first cohort is the simulator's.

        A SuperLink that was started again takes nodes for online that have not come back yet: only an answer
        tells. A run does not begin with a device that has other code than the server.
        """
        code = json.dumps(code_of(self.plan.resolved))
        began, asked, heard = time.monotonic(), -math.inf, set[int]()
        while len(heard) < len(self.roll.nodes) and time.monotonic() - began < NODE_PATIENCE:
            if time.monotonic() - asked >= ROLL_CALL:
                asked = time.monotonic()
                letters = {
                    client: Envelope(
                        pack({"client": client, "code": code}, {}),
                        dst_node_id=self.roll.nodes[client],
                        message_type="query.here",
                        ttl=NODE_PATIENCE,
                    )
                    for client in self.roll.idle() - heard
                }
                self.roll.push(letters, lambda client: Owed(client, "", 0, 0, 0, began + NODE_PATIENCE))
            for _, owed, reply in self.roll.arrivals():
                if reply is not None and reply.has_content():
                    heard.add(owed.client)
                elif reply is not None and OTHER_CODE in str(reply.error.reason):
                    self._other_code(owed.client, str(reply.error.reason), starting)
                    heard.add(owed.client)
            time.sleep(POLL)
        there, may = len(heard), len(self.roll.nodes)
        self.roll.say(
            f"{there} of {may} nodes are online" + ("" if there == may else "; going on without the others")
        )

    def _other_code(self, client: int, reason: str, starting: bool) -> None:
        why = f"client {client} has {reason[reason.index(OTHER_CODE) :][:300]}"
        if starting:
            raise BadInput(
                f"{why}; give server and devices the same file, or the same version of the package"
            )
        self.roll.say(f"{why}; what it is asked for, it will refuse")

    def _wait_for_nodes(self, quorum: Quorum, order: list[int], barred: set[int]) -> None:
        """Until as many are idle as are wanted; when patience ends, as many as the minimum will do."""
        began, told = time.monotonic(), 0.0
        able = [client for client in order if client not in barred]
        while True:
            if len(able) < quorum.minimum:
                raise BadInput(
                    f"only {len(able)} clients are still invited, the minimum is {quorum.minimum}; put those "
                    "right that were refused, and resume"
                )
            idle = len(self.roll.idle() & set(able))
            waited = time.monotonic() - began
            patience = NODE_PATIENCE if quorum.deadline is None else quorum.deadline
            if idle >= (min(quorum.wanted, len(able)) if waited < patience else quorum.minimum):
                return
            if waited - told >= 10:
                told = waited
                self.roll.say(f"waiting for nodes: {len(self.roll.online())} of {len(order)} are online")
            for _, owed, reply in self.roll.arrivals():
                self.roll.drop(owed, reply)
            time.sleep(POLL)


def entries(folder: Path) -> list[dict[str, Any]]:
    """What a run's history held when its checkpoint was made."""
    if not (folder / "checkpoint.json").exists():
        return []
    table = read_checkpoint(folder)["tables"].get(HISTORY)
    data = verified(folder / HISTORY, table["sha256"], table["length"]) if table else b""
    return [json.loads(entry) for entry in data.decode().splitlines()]


def most_strikes(study: Study) -> int:
    """Refused answers after which a client is no longer invited."""
    return STRIKES if study.checks is None or study.checks.strikes is None else study.checks.strikes


def server_app(work: Callable[[Grid], None]) -> ServerApp:
    """Flower's ServerApp around the work of a server."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        work(grid)

    return app
