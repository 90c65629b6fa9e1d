"""`serve`, `join` and `local`: who starts what, and what happens when something dies.

`serve` is three processes: this one, which watches; the SuperLink; and the ServerApp, which does the rounds
and writes the run folder. A ServerApp that dies is started again from its checkpoint, as a new run of
Flower's. A SuperLink that dies takes the ServerApp with it; both are started again, on the same database, so
that the nodes come back as who they were. `join` is two: this one, and the node, which is started again.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from filelock import FileLock, Timeout

from fedsaddle import scratch
from fedsaddle.core import Remembers
from fedsaddle.engine import machine
from fedsaddle.errors import BadInput
from fedsaddle.exits import ALL_DIVERGED, BAD_INPUT, INTERRUPTED
from fedsaddle.flower import keys, link, metrics, store
from fedsaddle.flower._flwr import Grid
from fedsaddle.flower.client import Site, client_app
from fedsaddle.flower.grid import LinkLost, PostGrid
from fedsaddle.flower.journal import Journal, say
from fedsaddle.flower.node import Address, App, attend
from fedsaddle.flower.roll import Roll
from fedsaddle.flower.server import Deployment, entries, server_app
from fedsaddle.flower.supervise import Child, Processes, asked_to_end
from fedsaddle.runs import Interrupted, Plan, write_atomically

DONE = (0, BAD_INPUT, ALL_DIVERGED, INTERRUPTED)  # ends after which a ServerApp is not started again
TRIES = 5  # times that a ServerApp may die without making a checkpoint
AGAIN, AT_LAST = 1.0, 60.0  # seconds before a process that has died is started again, at first and at last
LASTED = 60.0  # seconds after which a process that dies had been well
ALIVE = 10.0  # seconds between the ServerApp's signs of life; Flower wants one every 30
# A ServerApp's exit codes when the disk was full and it has waited, and when the SuperLink did not answer it.
WAITED, CUT_OFF = 5, 6
DAY = 86_400.0
SOCKET_NAME = 108  # bytes that the name of a Unix socket must be shorter than
LITTLE = 1 << 18  # bytes on a disk that is as good as full
LINGER = 5.0  # seconds that the processes of a server that was killed may still be there
DRAIN = 30.0  # seconds to wait for answers that are still owed when the last round is over

CarryOn = Callable[[Deployment, bool], int]  # the rounds of a plan, from the start or again, to an exit code


@dataclass(frozen=True)
class Serving:
    """What `serve` was asked to do."""

    plan: Plan
    folder: Path  # of the run
    keys: Path  # KEYS/server
    address: tuple[str, int]  # where nodes find it
    work: CarryOn
    asked: Callable[[], Callable[[], bool]]  # in the ServerApp's process: notes signals from then on
    metrics: int | None = None  # the port on loopback where monitoring finds how it is

    @property
    def room(self) -> Path:
        return self.folder / "deployment"

    @property
    def journal(self) -> Journal:
        return Journal(self.room / "audit.jsonl")


def check_keys(server: Serving) -> dict[int, bytes]:
    """The keys that may join, checked against the experiment."""
    keys.server_files(server.keys)
    keys.ending(server.keys)
    public = keys.node_keys(server.keys)
    for name, study in server.plan.studies.items():
        for part, there in {"[faults]": study.faults, "quorum.replacement": study.quorum.replacement}.items():
            if there:
                raise BadInput(f"{part} is for the simulator only: leave {part} out of what is deployed")
        if isinstance(study.algorithm, Remembers) and len(study.phases) > 1:
            raise BadInput(f"algorithms.{name}: clients that remember are deployed in one phase only")
        clients, wanted = len(study.problem.federation), max(one.wanted for one in study.quorums)
        strangers = [number for number in public if number >= clients]
        if strangers:
            raise BadInput(
                f"{server.keys}/nodes/node-{strangers[0]}.pub: the experiment has {clients} clients, 0 to "
                f"{clients - 1}; remove the key, or raise problem.clients"
            )
        if len(public) < wanted:
            raise BadInput(
                f"algorithms.{name} waits for {wanted} answers, but only {len(public)} nodes have keys in "
                f"{server.keys}/nodes; make more with fedsaddle keys, or lower quorum.invite"
            )
    return public


def alone_in(folder: Path, taken: str, patience: float = 0.0) -> AbstractContextManager[object]:
    """Have a folder for this process alone."""
    try:
        return FileLock(folder / ".lock").acquire(timeout=patience)
    except Timeout:
        raise BadInput(taken) from None


def sole_server(server: Serving) -> AbstractContextManager[object]:
    """Be the one server of a run: a ServerApp holds its folder, but is not there all the time."""
    return alone_in(server.room, f"{server.folder} is in use by another server", LINGER)


def nothing() -> None:
    pass


def serve(server: Serving, tend: Callable[[], None] = nothing, end: Callable[[], None] = nothing) -> int:
    """Run a plan with whoever joins, to an exit code.

    `tend` is called a few times a second, and `end` while the SuperLink is still there.
    """
    public = check_keys(server)
    server.room.mkdir(mode=0o700, parents=True, exist_ok=True)
    largest = Site(server.plan, 0, server.room).prepare()
    resumed = len(entries(server.folder))  # before this, whoever was refused may have been put right
    logging.getLogger("flwr").setLevel(logging.WARNING)
    remind = Reminder(server, [tend])
    with sole_server(server), scratch.folder_for("fedsaddle-") as private, asked_to_end() as asked:
        family, socket, pause, began = Processes(), private / "superlink", Pause(), 0.0
        if len(bytes(socket)) >= SOCKET_NAME:
            raise BadInput(f"{private} is too long a name for a socket: set TMPDIR to a shorter folder")
        try:
            if server.metrics is not None:
                listener = metrics.endpoint(server.metrics, status_file(socket), server.keys)
                log = server.room / "metrics.log"
                remind.also.append(family.keep("metrics", listener.serve_forever, log))
            server.journal.note_if_it_can(
                "started", clients=sorted(public), listen="{}:{}".format(*server.address)
            )
            while True:
                socket.unlink(missing_ok=True)
                store.check_database(server.room / "link.db", server.journal.say)
                hub = family.start(
                    "SuperLink",
                    lambda: link.listen(
                        socket,
                        server.room / "link.db",
                        server.address,
                        keys.server_files(server.keys),
                        largest,
                    ),
                    server.room / "superlink.log",
                )
                if not link.wait_until_up(socket, hub.alive) and not began:
                    place, log = "{}:{}".format(*server.address), server.room / "superlink.log"
                    raise BadInput(
                        f"cannot listen on {place} (see {log}); is something else listening there?"
                    )
                began = time.monotonic()
                code = _rounds(server, public, family, hub, socket, asked, remind, resumed)
                if code is not None:
                    server.journal.note_if_it_can("ended", code=code)
                    return code
                why = "does not answer" if hub.alive() else "has ended"
                if shutil.disk_usage(server.room).free < LITTLE:
                    why += f", and the disk of {server.room} is full"
                say(f"the SuperLink {why}; starting it again")
                family.end(hub)
                pause.after(time.monotonic() - began, asked, remind)
                if asked():
                    return INTERRUPTED
        finally:
            end()
            family.end()


def _rounds(
    server: Serving,
    public: dict[int, bytes],
    family: Processes,
    hub: Child,
    socket: Path,
    asked: Callable[[], bool],
    tend: Callable[[], None],
    resumed: int,
) -> int | None:
    """Run ServerApps until one is done: its exit code. None if the SuperLink has died, or is as good as."""
    failed, before, pause = 0, _progress(server), Pause()
    try:
        nodes = link.register(socket, public)
        while True:
            began = time.monotonic()
            run, token = link.start_run(socket)
            app = family.start("ServerApp", partial(_server, server, nodes, socket, token, resumed))
            while app.alive() and hub.alive() and not asked():
                time.sleep(0.1)
                tend()
            if asked() or not hub.alive():
                family.end(app)
                return INTERRUPTED if asked() else None
            if app.status == CUT_OFF:
                family.end(app)
                return None
            link.stop_run(socket, run)
            family.end(app)
            if app.status in DONE:
                return app.status
            if app.status == WAITED:
                continue
            now = _progress(server)
            failed, before = (1 if now != before else failed + 1), now
            if failed > TRIES:
                say(f"the ServerApp has ended {failed} times without getting further")
                return 1
            say(f"the ServerApp has ended ({_told(app.status)}); going on from its checkpoint")
            pause.after(time.monotonic() - began, asked, tend)
            if asked():
                return INTERRUPTED
    except (httpx.HTTPError, link.NotStarted):
        return None


@dataclass
class Pause:
    """The time before a process is started again: longer each time it dies soon."""

    seconds: float = AGAIN

    def after(self, lasted: float, asked: Callable[[], bool], tend: Callable[[], None] = nothing) -> None:
        """Wait, unless somebody wants to end."""
        self.seconds = AGAIN if lasted > LASTED else self.seconds
        end = time.monotonic() + self.seconds
        while time.monotonic() < end and not asked():
            time.sleep(0.1)
            tend()
        self.seconds = min(AT_LAST, 2 * self.seconds)


def _told(status: int | None) -> str:
    return f"signal {-status}" if status is not None and status < 0 else f"exit code {status}"


def _progress(server: Serving) -> float:
    try:
        return (server.folder / "checkpoint.json").stat().st_mtime
    except OSError:
        return 0.0


def _server(server: Serving, nodes: dict[int, int], socket: Path, token: str, resumed: int) -> int:
    """The ServerApp's process: what Flower's own runner does, with our app."""
    asked = server.asked()
    grid = PostGrid(socket, token)
    threading.Thread(target=_beat, args=(grid,), daemon=True).start()
    code = 1

    def work(grid: Grid) -> None:
        nonlocal code
        roll = Roll(grid, nodes, asked, server.journal.say, status=metrics.Status(status_file(socket)))
        name, journal = run_name(server.room), server.journal
        deployment = Deployment(roll, server.plan, name, folder=server.room, journal=journal)
        deployment.recall(server.folder, resumed)
        code = server.work(deployment, _progress(server) > 0)
        if code in (0, ALL_DIVERGED):
            with contextlib.suppress(Interrupted):  # then somebody does not want to wait
                deployment.roll.drain(DRAIN)

    try:
        server_app(work)(grid, grid.begin())
        if code != WAITED:
            grid.complete()
    except BadInput as error:
        say(f"error: {error}")
        return BAD_INPUT
    except (httpx.HTTPError, LinkLost) as error:
        say(f"the ServerApp has lost the SuperLink: {str(error).splitlines()[0]}")
        return CUT_OFF
    return code


def _beat(grid: PostGrid) -> None:
    """Tell the SuperLink now and then that the ServerApp lives; the next call will say if it is too late."""
    while True:
        with contextlib.suppress(Exception):
            grid.heartbeat()
        time.sleep(ALIVE)


def status_file(socket: Path) -> Path:
    """Where the ServerApp writes how it is."""
    return socket.with_name("status.json")


@dataclass
class Reminder:
    """Speaks of certificates that end soon or have ended, once a day, beside what else is to be tended."""

    server: Serving
    also: list[Callable[[], None]]
    next: float = 0.0

    def __call__(self) -> None:
        for tend in self.also:
            tend()
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + DAY
            try:
                told = keys.ending(self.server.keys)
            except BadInput as error:  # it has ended while it is served
                told = [str(error)]
            for line in told:
                self.server.journal.say(line)


def run_name(room: Path) -> str:
    """What names a run over all its restarts."""
    path = room / "run"
    if not path.exists():
        write_atomically(path, secrets.token_hex(16).encode())
    found = path.read_bytes()
    if not re.fullmatch(rb"[0-9a-f]{32}", found):
        raise BadInput(f"{path} is damaged: restore it from a copy, devices know the run by it")
    return found.decode()


# --- nodes ----------------------------------------------------------------------------------------------


def node(site: Site, app: App, address: Address, largest: int) -> None:
    """The process of a node, until it is ended."""
    machine.prepare(site.plan.resolved["threads"])
    try:
        attend(app, address, largest, site.folder / "node")
    except ValueError as error:
        say(f"what the server at {address.server} says cannot be used: {error}")
        sys.exit(1)


def join(site: Site, address: Address, app: App | None = None) -> int:
    """Run one node until it is asked to end."""
    site.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    taken = f"another node is using {site.folder}; end it, or choose another --folder"
    with alone_in(site.folder, taken), asked_to_end() as asked:
        answer, largest = app or client_app(site), site.prepare()
        family, pause = Processes(), Pause()
        try:
            while not asked():
                began = time.monotonic()
                child = family.start(f"client {site.client}", lambda: node(site, answer, address, largest))
                while child.alive() and not asked():
                    time.sleep(0.1)
                if asked():
                    break
                family.end(child)
                say(f"the node has ended ({_told(child.status)}); starting it again")
                pause.after(time.monotonic() - began, asked)
        finally:
            family.end()
    return 0


def free_port() -> int:
    """A port of this machine's loopback that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def local(server: Serving, clients: list[int]) -> int:
    """A server and its nodes on this machine, with keys of their own."""
    folder = server.room
    public = f"{server.address[0]}:{server.address[1]}"
    family = Processes()
    largest = Site(server.plan, clients[0], folder).prepare()

    def start(client: int) -> Callable[[], None]:
        site = Site(server.plan, client, folder / f"client-{client}")
        site.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key, ca = keys.node_key(server.keys.parent / f"node-{client}")
        address, app = Address(public, ca, key), client_app(site)
        life = partial(node, site, app, address, largest)
        return family.keep(f"client {client}", life, site.folder / "node.log")

    nodes = [start(client) for client in clients]

    def tend() -> None:
        for one in nodes:
            one()

    return serve(server, tend, family.end)
