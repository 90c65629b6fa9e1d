"""Processes beside this one that take a part of its trials, each with its share of the cores.

They share nothing but the folder of the trials, where each trial has a lock.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event

from fedsaddle.app.run import Show, Silent, Way
from fedsaddle.errors import BadInput

RunLeft = Callable[[Way], int]  # goes through the trials; to an exit code


class Relayed(Silent):
    """Tells the process that has started this one."""

    def __init__(self, lines: SimpleQueue[str | None]) -> None:
        self.lines = lines

    def say(self, line: str) -> None:
        self.lines.put(line)


@contextmanager
def hands_beside(jobs: int, part: RunLeft, show: Show) -> Iterator[None]:
    """Let `jobs` - 1 other processes do the same work until it is done, or this one gives it up.

    `part` is sent to them, so it is a function of a module, with what it is told.
    """
    if jobs <= 1:
        yield
        return
    context, shares, before = mp.get_context("spawn"), _shares(jobs), _cores()
    over, lines = context.Event(), context.SimpleQueue()
    reader = threading.Thread(target=_pass_on, args=(lines, show), daemon=True)
    others = [
        context.Process(target=_take_part, args=(part, shares[number], over, lines))
        for number in range(1, jobs)
    ]
    reader.start()
    for other in others:
        other.start()
    _stay_on(shares[0])
    try:
        yield
    finally:
        over.set()  # if all trials are done, they have ended by now
        for other in others:
            other.join()
            if other.exitcode is not None and other.exitcode < 0:
                show.say(f"a process beside this one was killed by signal {-other.exitcode}")
        lines.put(None)
        reader.join()
        _stay_on(before)


def _pass_on(lines: SimpleQueue[str | None], show: Show) -> None:
    while (line := lines.get()) is not None:
        show.say(line)


def _take_part(part: RunLeft, share: set[int], over: Event, lines: SimpleQueue[str | None]) -> None:
    """What another process does. Ctrl-C is for the first one, which then says that it is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    _stay_on(share)
    way = Way(show=Relayed(lines), asked=lambda: lambda: over.is_set() or os.getppid() != parent)
    try:
        sys.exit(part(way))
    except BadInput as error:  # the first process will meet it too, and say it
        lines.put(f"a process beside this one has ended: {error}")
        sys.exit(1)


# --- cores -----------------------------------------------------------------------------------------------


def _cores() -> set[int]:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _shares(jobs: int) -> list[set[int]]:
    """Each process's cores; where there are fewer than processes, they share them."""
    all_of_them = sorted(_cores())
    return [set(all_of_them[one::jobs] or [all_of_them[one % len(all_of_them)]]) for one in range(jobs)]


def _stay_on(some: set[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, some)
