"""Runs what is left of a plan, and decides when a checkpoint is made."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedsaddle.engine.course import Play, course
from fedsaddle.engine.round import play as simulated
from fedsaddle.runs.checkpoints import bytes_of
from fedsaddle.runs.diary import Clock, Diary
from fedsaddle.runs.folder import RunFolder
from fedsaddle.runs.plan import Interrupted, Watch

RARELY = 20  # times as long as a checkpoint took, before the next
WRITTEN = 5e8  # bytes a second, until one has been made: it is copied from a GPU, hashed and written


def execute(
    folder: RunFolder,
    watch: Watch,
    should_stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = 10.0,
    play: Play | None = None,
) -> None:
    """Run what is left of a plan. Checkpoints are made after evaluations, at most so often.

    One that takes long (clients that remember may hold many gigabytes) is made more rarely still, unless
    0 seconds ask for one after every evaluation. Rounds that somebody else plays, on real devices, are dear:
    there is a checkpoint after each.
    """
    plan = folder.plan
    left = list(folder.left)
    if not left:
        return
    diary, clock = Diary(folder.path), Clock(folder.path)
    for algorithm in left:
        study, start = plan.studies[algorithm], folder.begin(algorithm)
        clock.begin(study.names, start.round if start else 0)
        began = saved_at = time.monotonic()
        watch.begin(algorithm, start.round if start else 0)
        stop, took = start, None
        prune = plan.prunes.get(algorithm)
        for stop in course(study, plan.rounds, plan.evaluate_every, start, prune, play or simulated):
            folder.record(study, stop)
            folder.picture(study, stop)
            if stop.rows:
                clock.note(stop.round)
            watch.stop(algorithm, stop)
            if should_stop():
                folder.save(algorithm, stop)
                diary.note(algorithm, time.monotonic() - began)
                raise Interrupted
            took = bytes_of(stop.lanes) / WRITTEN if took is None else took
            now = time.monotonic()
            due = now - saved_at >= (checkpoint_seconds and max(checkpoint_seconds, RARELY * took))
            if (stop.rows and due) or play is not None:
                folder.save(algorithm, stop)
                diary.note(algorithm, now - began)
                saved_at = time.monotonic()
                took = saved_at - now
        assert stop is not None  # a course has at least its start
        folder.finish(algorithm, stop)
        del stop, start
        study.close()  # nothing of one algorithm is held while the next one runs
        diary.note(algorithm, time.monotonic() - began)
