"""Processes that are started, watched and ended together. When the parent ends, so do its children."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

GRACE = 10.0  # seconds between asking a process to end and ending it
REVIVE = 2.0  # seconds before a process that is always to be there is started again
LOG = 1 << 20  # bytes of a log; then it is put aside, and the one that was put aside before is removed


@dataclass
class Child:
    """A process made by forking this one."""

    name: str
    pid: int
    status: int | None = None  # its exit code once it has ended; below zero, the signal that ended it

    def alive(self) -> bool:
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 1
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is None

    def send(self, number: int) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass
class Processes:
    """The children of this process. None outlives it."""

    children: list[Child] = field(default_factory=list)

    def start(self, name: str, work: Callable[[], object], log: Path | None = None) -> Child:
        """Run a function in a process of its own; what it prints goes to the log, if there is one."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _become(work, parent, log)
        child = Child(name, pid)
        self.children.append(child)
        return child

    def keep(self, name: str, work: Callable[[], object], log: Path) -> Callable[[], None]:
        """Start a process that is always to be there: whoever calls this looks whether it still is."""
        child, began = self.start(name, work, log), time.monotonic()

        def tend() -> None:
            nonlocal child, began
            if not child.alive() and time.monotonic() - began > REVIVE:
                self.end(child)
                child, began = self.start(name, work, log), time.monotonic()

        return tend

    def end(self, *chosen: Child) -> None:
        """Ask children to end, by default all, and end those that do not."""
        ending = list(chosen or self.children)
        for child in ending:
            child.send(signal.SIGTERM)
        limit = time.monotonic() + GRACE
        while any(child.alive() for child in ending) and time.monotonic() < limit:
            time.sleep(0.02)
        for child in ending:
            child.send(signal.SIGKILL)
            while child.alive():
                time.sleep(0.02)
        self.children = [child for child in self.children if child not in ending]


def _become(work: Callable[[], object], parent: int, log: Path | None) -> None:
    """The life of a child; it does not return."""
    code = 1
    try:
        os.setpgrp()  # Ctrl-C in the terminal is the parent's, which ends its children in order
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        if log is not None:
            _write_to(log)
        threading.Thread(target=_watch, args=(parent, log), daemon=True).start()
        result = work()
        code = result if isinstance(result, int) else 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _write_to(log: Path) -> None:
    """From now on, what this process prints goes there."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _watch(parent: int, log: Path | None) -> None:
    """End this process soon after its parent, and keep its log short."""
    while os.getppid() == parent:
        time.sleep(0.2)
        with contextlib.suppress(OSError):  # a full disk, a folder that is gone, no descriptor left
            if log is not None and log.exists() and log.stat().st_size > LOG:
                log.replace(log.with_name(f"{log.name}.1"))
            if log is not None and not log.exists():
                _write_to(log)
    os._exit(1)


class Asked:
    """Whether this process has been asked to end, by Ctrl-C or SIGTERM, and how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> bool:
        return self.times > 0


@contextlib.contextmanager
def asked_to_end() -> Iterator[Asked]:
    """Note signals instead of being ended by them."""
    asked = Asked()

    def note(number: int, frame: object) -> None:
        asked.times += 1

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
