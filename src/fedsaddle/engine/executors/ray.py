"""Over Ray: visits are cut over actors, and each computes its part at once, on its own GPU or core.

The problem goes to each actor once; a phase sends messages and numbers of clients. An actor that dies takes
its visits with it: they count as not having answered, and another is started in its place. An error in the
work itself is raised here, as it would be without Ray.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from fedsaddle import scratch
from fedsaddle.engine.executors.ray_worker import Job, Worker, arrays_of
from fedsaddle.engine.executors.witness import Witness
from fedsaddle.engine.phase import exchange
from fedsaddle.engine.study import Executor, Lost, PhaseInputs, PhaseResult, Study
from fedsaddle.engine.visits import Answer, Extent, Task, Visits
from fedsaddle.errors import BadInput, check_count
from fedsaddle.problem import Problem

MOST_WORKERS = 100_000
SENT_AS_CODE = (
    "fedsaddle_code_"  # modules so called, a person's own files, are sent to the actors as they are
)
START_SECONDS = 300.0  # that actors may take to start
CONNECT_SECONDS = 10.0
ENDED = (
    "error: this process has ended without a word, as it does when its Ray cluster dies; the run goes on "
    "from its checkpoint with --resume"
)
DEATHS = 3  # of each worker without any answer in between, before the run is given up
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0 keeps a cluster on this machine's own address


@dataclass
class _Hand:
    """An actor, seen from here."""

    actor: Any
    begun: Any  # comes when it has received the problem
    process: int | None = None  # its number, once it is ready


class Ray(Executor):
    """Vectorised, over the actors of a Ray cluster: one for each core, or for each GPU with device `cuda`.

    Without an `address` a cluster is started on this machine, reachable from nowhere else; with one (`auto`,
    or host:port of its head) that cluster is used. `memory` is what one worker may hold, in bytes. `close`
    it, or use it by `with`.
    """

    def __init__(
        self,
        workers: int | None = None,
        address: str | None = None,
        *,
        memory: int | None = None,
        device: str = "cpu",
    ) -> None:
        if workers is not None:
            check_count("workers", workers, most=MOST_WORKERS)
        if address is not None and address != "auto" and not re.fullmatch(r"[^\s/]+:\d{1,5}", address):
            raise BadInput(f"address must be auto or host:port of a Ray cluster's head, got '{address}'")
        if device not in ("cpu", "cuda"):
            raise BadInput(f"the workers' device must be cpu or cuda, got '{device}'")
        if importlib.util.find_spec("ray") is None:
            raise BadInput("engine ray needs Ray: pip install 'ray>=2.55'")
        if memory is not None:
            check_count("memory", memory, most=2**63 - 1)
        self.workers, self.address, self.memory, self.device = workers, address, memory, device
        self._hands: list[_Hand] = []
        self._problem: Problem | None = None
        self._shared: Any = None  # the problem, in Ray's store
        self._deaths = 0  # since the last answer
        self._news: str | None = None
        self._told = False
        self._end: weakref.finalize[..., Any] | None = None

    def __enter__(self) -> Ray:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, study: Study, number: int, extent: Extent, inputs: PhaseInputs) -> PhaseResult | Lost:
        return exchange(study, number, extent, inputs, self.answers)

    def answers(self, task: Task, extent: Extent, visits: Visits) -> Answer | Lost:
        hands = self._crew(task.problem)
        import ray  # not before: joining a cluster or starting one comes first

        job = Job(task.algorithm, task.phase, task.batch, task.steady, task.partial, extent)
        by_lane = ray.put(arrays_of(visits.by_lane))
        cuts = [len(visits) * number // len(hands) for number in range(len(hands) + 1)]
        asked = []
        for hand, start, stop in zip(hands, cuts[:-1], cuts[1:], strict=True):
            if start < stop:
                part = visits.part(start, stop)
                rest = arrays_of(part.rest)
                asked.append((hand, start, stop, hand.actor.ask.remote(job, by_lane, rest)))
        heard = torch.ones(len(visits), dtype=torch.bool)
        answers = []
        for hand, start, stop, answer in asked:
            found = self._get(answer)
            if found is None:
                heard[start:stop] = False
                self._replace(hand)
                continue
            self._deaths = 0
            answers.append(found[0])
            self._news = self._news or found[1]
        if not heard.all():
            return Lost(heard)
        joined = tree_map(lambda *parts: torch.cat([torch.tensor(part) for part in parts]), *answers)
        whole: Answer = tree_map(lambda rows: rows.to(visits.key.device), joined)
        return whole

    def news(self) -> str | None:
        """What a person should hear: once, that a worker's memory ran out."""
        if self._told or self._news is None:
            return None
        self._told = True
        return f"of a worker, {self._news}"

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        if self._end is not None:
            self._end()
        self._hands, self._problem, self._shared, self._end = [], None, None, None

    # --- actors ---

    def _crew(self, problem: Problem) -> list[_Hand]:
        """The actors that are ready. Nobody waits for one that is started later, if there are others."""
        if problem is not self._problem:
            self._connect()
            import ray

            for module in [own for name, own in sys.modules.items() if name.startswith(SENT_AS_CODE)]:
                ray.cloudpickle.register_pickle_by_value(module)
            self._problem, self._shared = problem, ray.put(problem)
            actors = [hand.actor for hand in self._hands] or [self._hire() for _ in range(self._size())]
            self._hands[:] = [self._begin(actor) for actor in actors]
            self._await(all_of_them=True)
        elif None in [hand.process for hand in self._hands]:
            self._await(all_of_them=False)
        return [hand for hand in self._hands if hand.process is not None]

    def _await(self, all_of_them: bool) -> None:
        import ray

        until = time.monotonic() + START_SECONDS
        while True:
            waiting = [hand for hand in self._hands if hand.process is None]
            enough = not waiting if all_of_them else len(waiting) < len(self._hands)
            left = 0.0 if enough else max(0.0, until - time.monotonic())
            here, _ = ray.wait([hand.begun for hand in waiting], timeout=left) if waiting else ([], [])
            if not here:
                if enough:
                    return
                raise BadInput(
                    f"{len(self._hands) - len(waiting)} of {len(self._hands)} Ray workers have started in "
                    f"{START_SECONDS:.0f} seconds: the cluster may be busy; lower workers, or free some of it"
                )
            for hand in [hand for hand in waiting if hand.begun in here]:
                hand.process = self._get(hand.begun)
                if hand.process is None:
                    self._replace(hand)

    def _get(self, coming: Any) -> Any:
        """What comes from an actor; None if that has died. An error in its work is raised."""
        from ray import exceptions, get

        died = (
            exceptions.RayActorError,
            exceptions.WorkerCrashedError,
            exceptions.NodeDiedError,
            exceptions.ObjectLostError,
            exceptions.OutOfMemoryError,  # Ray has ended it, to save the machine
        )
        try:
            found = get(coming)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from error
            raise
        except died as error:
            self._deaths += 1
            if self._deaths > DEATHS * len(self._hands):
                line = " ".join(str(error).split())[:300]
                raise ChildProcessError(
                    "Ray workers die again and again without an answer; if memory is short, lower workers "
                    f"or memory_gb. The last: {line}"
                ) from None
            return None
        return found

    def _hire(self) -> Any:
        import ray

        gpu = self.device == "cuda"
        return ray.remote(num_cpus=0 if gpu else 1, num_gpus=int(gpu))(Worker).remote()

    def _begin(self, actor: Any) -> _Hand:
        # As in this process.
        tf32, deterministic = (
            torch.backends.cuda.matmul.allow_tf32,
            torch.are_deterministic_algorithms_enabled(),
        )
        begun = actor.begin.remote(self._shared, self.device, self.memory, tf32, deterministic)
        return _Hand(actor, begun)

    def _replace(self, hand: _Hand) -> None:
        """Start another in the place of one that has died, or that cannot be reached any more."""
        _kill([hand])
        self._hands[self._hands.index(hand)] = self._begin(self._hire())

    def _size(self) -> int:
        """How many actors there shall be."""
        import ray

        kind, name = ("GPU", "GPUs") if self.device == "cuda" else ("CPU", "CPUs")
        there = int(ray.cluster_resources().get(kind, 0))
        if there < (self.workers or 1):
            raise BadInput(
                f"the Ray cluster has {there} {name}, and each worker needs one: "
                + ("use device cpu" if there == 0 else f"workers must be at most {there}, got {self.workers}")
            )
        return self.workers or there

    # --- the cluster ---

    def _connect(self) -> None:
        """Join a cluster or start one, unless the program has already done so."""
        if self._end is not None:
            return
        if self.address is None:
            _stay_on_this_machine()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # and it need not announce that
        with _own_signals():
            import ray

            folder, ours = None, not ray.is_initialized()
            quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
            if ours and self.address is None:
                folder = str(scratch.begin_folder("ray-", "/tmp"))  # short: names of sockets are
                cores = self.workers if self.device == "cpu" else None
                try:
                    with _same_path():
                        start = ray.init(
                            "local",
                            num_cpus=cores,
                            include_dashboard=False,
                            _temp_dir=f"{folder}/r",  # Ray opens it to every user; the one around it is ours
                            **quiet,
                        )
                except BaseException:
                    _shut_down([], True, folder)
                    raise
                self._end = weakref.finalize(self, _shut_down, self._hands, True, folder, Witness(ENDED))
                if start.address_info["node_ip_address"] != "127.0.0.1":
                    self.close()
                    raise _imported_before()
            elif ours:
                assert self.address is not None
                _check_reachable(self.address)
                try:
                    ray.init(self.address, **quiet)
                except (OSError, RuntimeError, ValueError) as error:
                    line = " ".join(str(error).split())
                    raise BadInput(f"cannot join the Ray cluster at '{self.address}': {line}") from None
        if self._end is None:
            witness = Witness(ENDED) if ours else None
            self._end = weakref.finalize(self, _shut_down, self._hands, ours, folder, witness)


def _stay_on_this_machine() -> None:
    """Ray listens to the network by default; it reads this once, when it is imported."""
    ray = sys.modules.get("ray")
    if ray is None:
        os.environ[LOOPBACK] = "0"
    elif not ray.is_initialized() and os.environ.get(LOOPBACK) != "0":
        raise _imported_before()


def _imported_before() -> BadInput:
    return BadInput(
        "Ray was imported before this engine could keep it on this machine: set the environment variable "
        f"{LOOPBACK}=0 before, or call ray.init yourself, or give an address"
    )


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes."""
    place = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"no Ray cluster answers at {place} ({error}); start one there with 'ray start --head', or leave "
            "the address out to start one on this machine"
        ) from None


@contextlib.contextmanager
def _same_path() -> Iterator[None]:
    """Let the actors of a cluster on this machine import what this process can."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray sets a handler of its own for SIGTERM; the program's stays."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _kill(hands: list[_Hand]) -> None:
    import ray

    for hand in hands:
        with contextlib.suppress(Exception):  # it may be gone already
            ray.kill(hand.actor)


def _shut_down(hands: list[_Hand], ours: bool, folder: str | None, witness: Witness | None = None) -> None:
    """End what was started here and nothing else."""
    import ray

    if witness is not None:
        witness.dismiss()
    if ray.is_initialized():
        _kill(hands)
        if ours:
            ray.shutdown()
    if folder is not None:
        scratch.end_folder(Path(folder))
