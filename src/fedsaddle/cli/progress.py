"""How far a run is, and how long it will still take: bars for a person, plain lines for a pipe."""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from fedsaddle.app.run import SILENT
from fedsaddle.engine.compile.tapes import cores
from fedsaddle.sweep import score

if TYPE_CHECKING:
    from fedsaddle.engine.course import Stop
    from fedsaddle.engine.study import Study
    from fedsaddle.runs import Plan, Watch


# --- the time that is left -------------------------------------------------------------------------------

SOME_ROUNDS, SOME_SECONDS = 4, 1.0  # before the first guess


class Pace:
    """How long a run will still take, judged by what it has done.

    A study goes on as fast as in the later half of its rounds so far: the first ones are slow, since phases
    are recorded in them. A study that has not begun takes as long for a round of a lane as those before it
    took, their slow beginnings included; algorithms differ, so that is a guess, and better with each.
    """

    def __init__(self, plan: Plan, left: Mapping[str, int]) -> None:
        self.rounds = plan.rounds
        self.work = {
            study: (plan.rounds - start) * len(plan.studies[study].seeds) for study, start in left.items()
        }
        self.number = {study: number for number, study in enumerate(plan.studies, start=1)}
        self._took: dict[str, float] = {}  # by the studies that have ended
        self._now = ""
        self._marks: list[tuple[int, float]] = []  # of the one that is under way: after which round, when

    def begin(self, study: str, start: int) -> None:
        if self._now:
            self._took[self._now] = self.elapsed
        self._now, self._marks = study, [(start, time.monotonic())]

    def stop(self, round: int) -> None:
        self._marks.append((round, time.monotonic()))

    @property
    def elapsed(self) -> float:
        """Seconds since this study began."""
        return self._marks[-1][1] - self._marks[0][1]

    @property
    def speed(self) -> float:
        """Rounds a second, in the later half of the rounds so far."""
        (first, _), (round, now) = self._marks[0], self._marks[-1]
        middle = max(0, bisect_right(self._marks, ((first + round) / 2, now)) - 1)
        since, then = self._marks[middle]
        return (round - since) / max(1e-9, now - then)

    def of_study(self) -> float | None:
        """Seconds that this study will still take, once that can be said."""
        round = self._marks[-1][0]
        if round == self.rounds:
            return 0.0
        if round - self._marks[0][0] < SOME_ROUNDS or self.elapsed < SOME_SECONDS:
            return None
        return (self.rounds - round) / self.speed

    def of_run(self) -> float | None:
        """Seconds that the whole run will still take."""
        own, took = self.of_study(), sum(self._took.values())
        done = sum(self.work[study] for study in self._took)
        ahead = sum(self.work.values()) - done - self.work[self._now]
        if own is None:  # too early to say of this study by itself
            return (ahead + self.work[self._now]) * took / done if done else None
        mean = (took + self.elapsed + own) / (done + self.work[self._now])
        return own + ahead * mean


LONG = 60  # seconds that nobody waits for without having been told
STEADY_ROUNDS, STEADY_SECONDS = 24, 10.0  # after either, the first rounds are no longer what counts


class Warner:
    """Says once, of a run that has just begun, that it will take more than a minute, and what takes less."""

    def __init__(self, plan: Plan, left: Mapping[str, int], pace: Pace) -> None:
        self.plan, self.pace, self.began = plan, pace, time.monotonic()
        self.silent = len(left) < len(plan.studies) or any(
            left.values()
        )  # who goes on knows how long it takes

    def __call__(self, round: int) -> str | None:
        """A line, if now is the time to say it."""
        spent = time.monotonic() - self.began
        if self.silent or (round < STEADY_ROUNDS and spent < STEADY_SECONDS):
            return None
        seconds = self.pace.of_run()
        if seconds is None:
            return None
        self.silent = True
        return None if spent + seconds <= LONG else self._told(spent + seconds)

    def _told(self, seconds: float) -> str:
        plan = self.plan
        rounds = int(float(f"{plan.rounds * LONG / seconds:.1g}"))
        ways = [f"--rounds {rounds}"] if rounds >= 10 and not plan.by else []
        ways += ["--budget 4"] if plan.by else []
        first = next(iter(plan.studies))
        ways += [f"--algorithm {first}"] if len(plan.studies) > 1 and not plan.by else []
        ways += ["--seeds 0"] if len(plan.studies[first].seeds) > 1 else []
        shorter = f"; shorter: {' or '.join(ways)}" if ways else ""
        return f"this will take {about(seconds)} in all{shorter}. Ctrl-C saves it, to go on later"


def about(seconds: float) -> str:
    """about 3 min"""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:.{1 if seconds < 10 * size and unit == 'h' else 0}f} {unit}"
    return f"about {max(1, round(seconds / 5) * 5) if seconds > 10 else max(1, round(seconds))} s"


def _clock(seconds: float) -> str:
    """1:02:03"""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes:02}:{rest:02}"


# --- words -----------------------------------------------------------------------------------------------


def _describe(plan: Plan, study: str, stop: Stop) -> str:
    alive = f"{sum(stop.lanes.alive)}/{len(plan.studies[study].seeds)} alive"
    if plan.by:
        value, name = _leader(plan.by, plan.studies[study], stop)
        return f"best {plan.by} {value:.4g} ({name}) {alive}"
    name = next(iter(stop.rows[0].metrics))
    mean = sum(row.metrics[name] for row in stop.rows) / len(stop.rows)
    up = sum(row.floats_up for row in stop.rows) / len(stop.rows)
    return f"{name} {mean:.4g} up {amount(up)} {alive}"


def _leader(by: str, study: Study, stop: Stop) -> tuple[float, str]:
    """The best setting at an evaluation, and its mean over the seeds."""
    values: dict[str, list[float]] = {}
    names, metric = study.names, study.problem.metrics[by]
    for row in stop.rows:
        values.setdefault(names[row.lane], []).append(row.metrics[by])
    name = min(values, key=lambda name: score(metric, values[name], names.count(name)))
    return sum(values[name]) / len(values[name]), name


def amount(floats: float) -> str:
    """1.25M"""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if floats >= 0.9995 * size:
            return f"{floats / size:.3g}{letter}"
    return f"{floats:.3g}"


def _speed(speed: float) -> str:
    return f"{speed:.{0 if speed >= 10 else 1}f}"


def _trouble(plan: Plan, study: str, stop: Stop) -> list[str]:
    """What a person should hear at once.

    Each lane that has just diverged or collapsed: in a sweep many do, and their number says enough. And what
    has befallen the machines.
    """
    ends = [event for event in stop.events if event.what in ("diverged", "collapsed") and not plan.by]
    seeds = plan.studies[study].seeds
    lines = [f"{study} seed {seeds[one.lane]} {one.what} in round {one.round}: {one.detail}" for one in ends]
    lines += [f"{study} round {one.round}: {one.detail}" for one in stop.events if one.what == "memory"]
    lost = [event for event in stop.events if event.what == "lost"]
    if lost:
        others = len({event.lane for event in lost}) - 1
        also = f" and {others} more lane{'s' if others > 1 else ''}" if others else ""
        lines.append(f"{study} round {lost[0].round}, seed {seeds[lost[0].lane]}{also}: {lost[0].detail}")
    return lines


# --- who watches -----------------------------------------------------------------------------------------


class Lines:
    """For a pipe: a plain line about every tenth of the way, and for what goes wrong."""

    def __init__(
        self, plan: Plan, left: Mapping[str, int], to: TextIO | None = None, warns: bool = False
    ) -> None:
        self.plan, self.pace, self.to = plan, Pace(plan, left), to
        self.warner = Warner(plan, left, self.pace) if warns else None

    def begin(self, study: str, start: int) -> None:
        self.told = start
        self.pace.begin(study, start)

    def stop(self, study: str, stop: Stop) -> None:
        self.pace.stop(stop.round)
        for line in _trouble(self.plan, study, stop):
            self._say(line)
        if self.warner is not None and (told := self.warner(stop.round)):
            self._say(told)
        last = stop.round == self.plan.rounds
        if stop.rows and (last or stop.round == 0 or stop.round - self.told >= self.plan.rounds / 10):
            pace = f"  {_speed(self.pace.speed)} rounds/s" if self.pace.speed else ""
            self.told = stop.round
            told = _describe(self.plan, study, stop)
            self._say(f"{study} round {stop.round}/{self.plan.rounds}  {told}{pace}{self._left(study)}")

    def _left(self, study: str) -> str:
        many, seconds = len(self.plan.studies), self.pace.of_run()
        words = [f"{'study' if self.plan.by else 'algorithm'} {self.pace.number[study]}/{many}"] * (many > 1)
        words += [f"{about(seconds)} left"] if seconds else []
        return f"  {', '.join(words)}" if words else ""

    def _say(self, line: str) -> None:
        """Print a line; if nobody reads any more, be quiet from then on, and let the run go on."""
        to = self.to or sys.stdout
        try:
            print(line, file=to, flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())


class Bars:
    """For a person: a line for each algorithm, with its speed and the time that is left; and one for all."""

    def __init__(self, plan: Plan, left: Mapping[str, int], progress: Progress, warns: bool = False) -> None:
        self.plan, self.progress, self.pace = plan, progress, Pace(plan, left)
        self.warner = Warner(plan, left, self.pace) if warns else None
        self.tasks: dict[str, TaskID] = {}
        self.whole: TaskID | None = None
        if len(plan.studies) > 1 and left:
            done = len(plan.studies) - len(left)
            self.whole = self._line("studies" if plan.by else "algorithms", len(plan.studies), done)

    def _line(self, what: str, rounds: int, start: int) -> TaskID:
        return self.progress.add_task(what, total=rounds, completed=start, speed="", left="", metric="")

    def begin(self, study: str, start: int) -> None:
        self.tasks[study] = self._line(study, self.plan.rounds, start)
        self.pace.begin(study, start)

    def stop(self, study: str, stop: Stop) -> None:
        self.pace.stop(stop.round)
        for line in _trouble(self.plan, study, stop):
            self.progress.print(line, markup=False, highlight=False)
        if self.warner is not None and (told := self.warner(stop.round)):
            self.progress.print(told, markup=False, highlight=False)
        if stop.rows:
            self.progress.update(self.tasks[study], metric=_describe(self.plan, study, stop))
        own, ended = self.pace.of_study(), stop.round == self.plan.rounds
        self.progress.update(
            self.tasks[study],
            completed=stop.round,
            speed=f"{_speed(self.pace.speed)}/s" if self.pace.speed else "",
            left=_clock(self.pace.elapsed if ended else own) if own is not None else "--:--",
        )
        if self.whole is not None:
            seconds = self.pace.of_run()
            self.progress.update(
                self.whole,
                completed=self.pace.number[study] - 1 + stop.round / self.plan.rounds,
                metric=f"{about(seconds)} left" if seconds else "",
            )


NARROW = 70  # columns; on fewer there is no room for what can be done without


def bars(out: Console, transient: bool = False) -> Progress:
    bar = [BarColumn(bar_width=10)] if out.width >= 100 else []  # on 80 columns the words need them all
    narrow = out.width < NARROW
    speed = [] if narrow else [TextColumn("{task.fields[speed]}", justify="right")]
    metric = [] if narrow else [TextColumn("{task.fields[metric]}")]
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=not narrow, overflow="fold")),
        *bar,
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        *speed,
        TextColumn("{task.fields[left]}", justify="right", table_column=Column(no_wrap=True)),
        *metric,
        console=out,
        transient=transient,
    )


@contextmanager
def watching(
    out: Console,
    plan: Plan,
    left: Mapping[str, int],
    quiet: bool = False,
    transient: bool = False,
    to: TextIO | None = None,
    warns: bool = False,
) -> Iterator[Watch]:
    """Whoever watches a run: nobody, lines for a pipe, or bars for a person; who is told if it takes long."""
    if quiet:
        yield SILENT
    elif not out.is_terminal:
        yield Lines(plan, left, to, warns)
    else:
        with bars(out, transient) as progress:
            yield Bars(plan, left, progress, warns)


@dataclass(frozen=True)
class Terminal:
    """A person at a terminal, or a pipe, who is told about a run."""

    out: Console
    quiet: bool = False

    def say(self, line: str) -> None:
        print(line, file=sys.stderr)

    @contextmanager
    def watching(self, plan: Plan, left: Mapping[str, int]) -> Iterator[Watch]:
        if not self.quiet:
            print(f"engine: {_engine(plan)}", file=sys.stderr)
        with watching(self.out, plan, left, self.quiet, warns=True) as watch:
            yield watch


def _engine(plan: Plan) -> str:
    """How clients are asked, and by how many threads at once."""
    name, device, threads = (plan.resolved[key] for key in ("engine", "device", "threads"))
    study = next(iter(plan.studies.values()))
    many = study.executor.beside(study.device)
    workers = f"{many} workers on {cores()} cores, " if many > 1 else ""
    return f"{name} on {device} ({workers}{threads} thread{'s' * (threads > 1)}{' each' * (many > 1)})"
