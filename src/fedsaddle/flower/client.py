"""The ClientApp: what one device does with a message. The work itself is the simulator's.

A device has its own copy of the experiment, its own rows and a folder of its own. It answers only what fits
that experiment; a message that does not is refused with the reason, and nothing is computed.

What a client keeps between rounds (CODASCA's c_i) stays in its folder. An answer may come too late or its
round may be abandoned, and the client is not told. So each visit leaves a file named by its round, and the
next message says which round's file counts: `kept`, or -1 for none. Older ones are removed then, but for two.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedsaddle.core import Message, Pair
from fedsaddle.engine.executors.loop import Loop
from fedsaddle.engine.phase import calls_of, send, visits_of
from fedsaddle.engine.study import CPU, Study, begin
from fedsaddle.errors import MOST, BadInput, printable
from fedsaddle.flower._flwr import ClientApp, Context, RecordDict
from fedsaddle.flower._flwr import Message as Envelope
from fedsaddle.flower.journal import Journal
from fedsaddle.flower.policy import BACK, LANES, Logbook, Policy, check_rows
from fedsaddle.flower.wire import (
    COUNT,
    FACT,
    HEADER,
    MADE,
    PARTIAL,
    Header,
    Refused,
    agreement,
    check_code_of,
    header_of,
    integer,
    pack,
    real,
    size_of,
    unpack,
)
from fedsaddle.problem import Held, Problem
from fedsaddle.runs import Plan, sealed, unsealed, write_atomically

RUNS = 4  # runs that a device remembers; those it has not heard of for longest are over
UNUSED = 8  # visits in a row that were not used, of which a lane keeps what came of them
ANYTHING = Policy()


@dataclass
class Site:
    """One device: the experiment as it knows it, which client it is, and where it keeps things."""

    plan: Plan
    client: int
    folder: Path
    policy: Policy = ANYTHING
    _lanes: dict[tuple[str, int], LaneOnDevice] = field(default_factory=dict)

    @property
    def logbook(self) -> Logbook:
        """What was answered so far: read anew each time, since a node that dies is forked again."""
        return Logbook.at(self.folder / "visits.json")

    @property
    def journal(self) -> Journal:
        """Who asked for what, and what became of it."""
        return Journal(self.folder / "audit.jsonl")

    @staticmethod
    def holding(plan: Plan, client: int, folder: Path, file: str, policy: Policy = ANYTHING) -> Site:
        """A device with rows of its own."""
        problem = next(iter(plan.studies.values())).problem
        if not isinstance(problem, Held) or not problem.away:
            raise BadInput(
                "--data goes with an experiment that says problem.partition = 'devices', or whose own task "
                "is made with fs.clients(away=...)"
            )
        own = problem.holding(client, file)
        studies = {name: replace(study, problem=own) for name, study in plan.studies.items()}
        return Site(replace(plan, studies=studies), client, folder, policy)

    def lane(self, algorithm: str, seed: int) -> LaneOnDevice:
        """One algorithm and seed. The last few are kept ready."""
        key = (algorithm, seed)
        if key not in self._lanes:
            if len(self._lanes) >= 8:
                self._lanes.pop(next(iter(self._lanes)))
            own = self.plan.studies[algorithm]
            self._lanes[key] = LaneOnDevice(
                replace(
                    own,
                    seeds=(seed,),
                    hyper={name: values[:1].cpu() for name, values in own.hyper.items()},
                    names=own.names[:1],
                    executor=Loop(),
                    device=CPU,
                )
            )
        return self._lanes[key]

    def prepare(self) -> int:
        """Warm up: compute an answer that nobody gets, so that forked processes have loaded what PyTorch
        needs for it. Returns the bytes of the largest message that any algorithm sends."""
        seeds = {name: study.seeds[0] for name, study in self.plan.studies.items()}
        lanes = [self.lane(name, seed) for name, seed in seeds.items()]
        up, _ = lanes[0].answer(self.client, 0, 0, 0, lanes[0].down[0], lanes[0].blank(self.client))
        return max(size_of(message) for message in (up, *(like for lane in lanes for like in lane.down)))


@dataclass
class Stopwatch:
    """Ends a walk when its time is over, and knows how many steps it has made."""

    seconds: float
    steps: int = 0
    began: float = field(default_factory=time.monotonic)

    def __call__(self, made: int) -> bool:
        self.steps = made
        return time.monotonic() - self.began >= self.seconds


@dataclass
class LaneOnDevice:
    """One algorithm with one seed, as a device sees it."""

    study: Study

    @cached_property
    def _fresh(self) -> Any:
        return begin(self.study)

    @cached_property
    def down(self) -> list[Message]:
        """What the messages of each phase look like."""
        phases = range(len(self.study.phases))
        return [_first(send(self.study, self._fresh.server, number)) for number in phases]

    def blank(self, client: int) -> Pair | None:
        """What a client holds before its first visit; None if it never holds anything."""
        memory = self._fresh.memory
        return None if memory is None else Pair(memory.x[0, client], memory.y[0, client])

    def answer(
        self,
        client: int,
        t: int,
        round: int,
        phase: int,
        down: Message,
        kept: Pair | None,
        watch: Stopwatch | None = None,
    ) -> Any:
        """What goes `up` and what to `keep`, as the simulator's loop over single clients computes it.

        With a `watch`, the walk ends when that says so.
        """
        calls, extent = calls_of(self.study, [t], round, phase, [[client]])
        stacked = {name: _stack(pair) for name, pair in down.items()}
        visits = visits_of(self.study, stacked, calls, None if kept is None else _stack(kept))
        task = self.study.task(phase)._replace(partial=watch is not None, over=watch)
        found = Loop().answers(task, extent, visits)
        keep = Pair(found.keep.x[0], found.keep.y[0]) if isinstance(found.keep, Pair) else None
        return _first(found.up), keep


def _stack(pair: Pair) -> Pair:
    return Pair(pair.x[None], pair.y[None])


def _first(message: Message) -> Message:
    return {name: Pair(pair.x[0], pair.y[0]) for name, pair in message.items()}


# --- what a client keeps --------------------------------------------------------------------------------


class Memory:
    """The files of one run, algorithm and seed in which a client keeps what it may need again."""

    def __init__(self, folder: Path, run: str, algorithm: str, seed: int) -> None:
        self.folder = folder / "memory" / run / f"{algorithm}-{seed}"

    def recall(self, round: int, blank: Pair) -> Pair:
        """What was kept in a round, or the beginning's. What is older is removed, once that could be read.

        Some of it stays, for a server that has lost its last checkpoint. What is newer was not used; some of
        it stays too, for one that has only forgotten it for a moment.
        """
        kept = blank if round < 0 else self._read(round, blank)
        rounds = sorted(int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdecimal())
        older, newer = ([n for n in rounds if n < round], [n for n in rounds if n > round])
        for other in (*older[:-BACK], *newer[:-UNUSED]):
            (self.folder / f"{other}.safetensors").unlink(missing_ok=True)
        return kept

    def _read(self, round: int, blank: Pair) -> Pair:
        path = self.folder / f"{round}.safetensors"
        try:
            found = load(unsealed(path))
            kept = Pair(found["x"], found["y"])
        except (BadInput, SafetensorError, KeyError):
            raise Refused(
                f"what this client kept in round {round} is gone or damaged; it cannot go on"
            ) from None
        if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(kept, blank, strict=True)):
            raise Refused(f"what this client kept in round {round} does not fit; it cannot go on")
        return kept

    def keep(self, round: int, values: Pair) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.parent.touch()  # the run that was last visited
        self.folder.touch()  # and the lane
        for place, most in ((self.folder.parent.parent, RUNS), (self.folder.parent, LANES)):
            for old in sorted(place.iterdir(), key=lambda one: one.stat().st_mtime)[:-most]:
                shutil.rmtree(old, ignore_errors=True)
        data = save({"x": values.x.contiguous(), "y": values.y.contiguous()})
        write_atomically(self.folder / f"{round}.safetensors", sealed(data))


# --- the app --------------------------------------------------------------------------------------------


def agreed(site: Site, records: RecordDict) -> tuple[Header, str]:
    """A message's header, and which of this device's algorithms it speaks of."""
    header = header_of(records, {"client": site.client})
    algorithm = header.get("algorithm")
    if not isinstance(algorithm, str) or algorithm not in site.plan.studies:
        known = ", ".join(site.plan.studies)
        raise Refused(f"this device has no algorithm '{str(algorithm)[:80]}'; it has {known}")
    header_of(records, {"contract": agreement(site.plan, algorithm)})
    return header, algorithm


def visit(site: Site, records: RecordDict) -> tuple[Header, Message]:
    """Check a message, do the work, and answer."""
    header, algorithm = agreed(site, records)
    seed, round = integer(header, "seed", 0, 2**63 - 1), integer(header, "round", 0, MOST)
    lane = site.lane(algorithm, seed)
    phase = integer(header, "phase", 0, len(lane.down) - 1)
    t, last = integer(header, "t", 0, round), integer(header, "kept", -1, round - 1)
    down = unpack(records, lane.down[phase])
    run = str(header.get("run"))
    if not re.fullmatch(r"[0-9a-f]{32}", run):
        raise Refused(f"run must be 32 hexadecimal digits, got {run[:40]}")
    check_rows(site.policy, lane.study, phase, down, site.client)
    watch = Stopwatch(real(header, PARTIAL, 0.0, MOST)) if PARTIAL in header else None
    if watch is not None and not lane.study.phases[phase].partial:
        raise Refused(f"{algorithm} counts on all steps of a walk")
    site.logbook.enter(site.policy, run, algorithm, seed, round, phase)

    blank, kept, memory = lane.blank(site.client), None, None
    if blank is not None:
        memory = Memory(site.folder, run, algorithm, seed)
        kept = memory.recall(last, blank)
    learn(lane.study.problem, header)
    up, keep = lane.answer(site.client, t, round, phase, down, kept, watch)
    if memory is not None and keep is not None:
        memory.keep(round, keep)
    return header | ({} if watch is None else {MADE: watch.steps}), up


def learn(problem: Problem, header: Header) -> None:
    """Take over what the server has added up from all devices' counts."""
    if not isinstance(problem, Held) or not problem.away:
        return
    try:
        told = {key: float(value) for key, value in header.items() if key.startswith(FACT)}
        problem.learn({key.removeprefix(FACT): value for key, value in told.items()})
    except (KeyError, ValueError) as error:
        raise Refused(f"what the server knows of all devices does not fit: {error}") from None


def enrol(site: Site, records: RecordDict) -> Header:
    """Tell the few counts that the task needs of every device."""
    header, algorithm = agreed(site, records)
    study = site.plan.studies[algorithm]
    if not isinstance(study.problem, Held):
        raise Refused("this device's task has nothing to tell")
    return {**header, **{COUNT + key: count for key, count in study.problem.counts(site.client).items()}}


def _asked(records: RecordDict) -> dict[str, str]:
    """What a message says that it is for, whatever it holds."""
    header: Any = records.config_records.get(HEADER, {})
    names = ("run", "algorithm", "seed", "round", "phase")
    return {name: printable(str(header.get(name)))[:80] for name in names}


def client_app(site: Site) -> ClientApp:
    """Flower's ClientApp for a device."""
    app = ClientApp()

    @app.train("visit")  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: Envelope, context: Context) -> Envelope:
        try:
            header, up = visit(site, message.content)
        except Exception as error:
            site.journal.note("refused", why=f"{error}"[:400], **_asked(message.content))
            raise
        site.journal.note("answered", **_asked(message.content))
        return Envelope(pack(header, up), reply_to=message)

    @app.query("here")  # type: ignore[untyped-decorator, unused-ignore]
    def here(message: Envelope, context: Context) -> Envelope:
        header = header_of(message.content, {"client": site.client})
        check_code_of(header, site.plan.resolved)
        return Envelope(pack(header, {}), reply_to=message)

    @app.query("enrol")  # type: ignore[untyped-decorator, unused-ignore]
    def query(message: Envelope, context: Context) -> Envelope:
        return Envelope(pack(enrol(site, message.content), {}), reply_to=message)

    return app
