"""`fs.run` and `fs.sweep`: what the commands do, for experiments by name and for values made in Python."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from fedsaddle.app.outcomes import read_outcome
from fedsaddle.app.results import Results, of_run, of_sweep
from fedsaddle.app.run import Way, carry_out, place
from fedsaddle.border.build import Wanted, load
from fedsaddle.border.identity import of_numpy
from fedsaddle.border.schema import Beside, algorithm_of
from fedsaddle.border.sweeps import load_sweep
from fedsaddle.border.values import How, Parts, executors, named, plan_of, said, sweep_plan
from fedsaddle.checks import Checks
from fedsaddle.core import Algorithm
from fedsaddle.engine import machine
from fedsaddle.engine.course import Stop
from fedsaddle.engine.study import Executor
from fedsaddle.errors import BadInput, Notice, check_count, shown
from fedsaddle.exits import INTERRUPTED
from fedsaddle.faults import Faults
from fedsaddle.fleet import Cohorts, Fleet, Quorum
from fedsaddle.merges import Merge
from fedsaddle.outcome import Outcome, pandas
from fedsaddle.problem import Problem
from fedsaddle.progress import ProgressLine, is_shown
from fedsaddle.report.sweeps import CHOSEN_BY_TEST, is_dropped, value_of
from fedsaddle.runs import Plan, Watch
from fedsaddle.steady import Steady
from fedsaddle.strata import Strata


def run(
    experiment: str | Path | Problem,
    algorithms: Algorithm | Mapping[str, Algorithm] | Sequence[str] | str | None = None,
    *,
    rounds: int | None = None,
    seeds: Iterable[int] | str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    evaluate_every: int | None = None,
    quorum: Quorum | None = None,
    fleet: Fleet | None = None,
    batch: int | None = None,
    weights: Sequence[float] | Tensor | None = None,
    strata: Strata | None = None,
    cohorts: Cohorts | None = None,
    merge: Merge | None = None,
    checks: Checks | None = None,
    faults: Faults | None = None,
    steady: Steady | None = None,
    engine: str | None = None,
    executor: Executor | None = None,
    device: str | torch.device | None = None,
    threads: int | None = None,
    deterministic: bool | None = None,
    history: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    code: Sequence[str | Path] | None = None,
    name: str | None = None,
    tensorboard: bool = True,
    report: bool = True,
    progress: bool | None = None,
    checkpoint_seconds: float = 10.0,
) -> Outcome:
    """Run in a folder of its own, `out`, with checkpoints, tables and a report. It can be resumed.

    `experiment` is the name of a shipped one or a file, as for `fedsaddle run`: `algorithms` are then some
    of its own, `settings` are what `--set` says, such as `{"problem.kappa": 20}`, and `code` names the files
    that it may run. Or it is a problem: then `algorithms` are one, or a dict of them by name, and the
    options are those of `simulate`. Without `out` the folder is a new one below runs/. Ctrl-C finishes the
    round and makes a checkpoint; then, or after a crash, the same call with `resume=True` goes on, and comes
    to the same bytes. More `rounds` may be asked for.
    """
    given = said(locals())
    way = _Way(out, resume, tensorboard, progress, checkpoint_seconds)
    with machine.restored():
        machine.prepare()
        plan = _of_name(given, load) if isinstance(experiment, str | Path) else _of_values(given)
        folder = way.carry_out(plan, "run")
        outcome = read_outcome(folder, plan)
        if report and outcome.rows:
            _warn(of_run(folder))
        return outcome


@dataclass(frozen=True)
class Swept:
    """What a sweep has found."""

    best: dict[str, Any]  # the best setting of each algorithm, as `run` takes them; not of one that diverged
    table: list[dict[str, Any]]  # a row for each setting, an algorithm's best first
    by: str  # the metric that they were chosen by
    folder: Path

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame."""
        return pandas().DataFrame(self.table)


def sweep(
    experiment: str | Path | Problem,
    algorithms: Any = None,
    *,
    grid: Mapping[str, Any] | None = None,
    fixed: Mapping[str, Any] | None = None,
    by: str | None = None,
    budget: int | None = None,
    halving: int | None = None,
    draw_seed: int | None = None,
    rounds: int | None = None,
    seeds: Iterable[int] | str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    evaluate_every: int | None = None,
    quorum: Quorum | None = None,
    fleet: Fleet | None = None,
    batch: int | None = None,
    weights: Sequence[float] | Tensor | None = None,
    strata: Strata | None = None,
    cohorts: Cohorts | None = None,
    merge: Merge | None = None,
    checks: Checks | None = None,
    faults: Faults | None = None,
    steady: Steady | None = None,
    engine: str | None = None,
    executor: Executor | None = None,
    device: str | torch.device | None = None,
    threads: int | None = None,
    deterministic: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    code: Sequence[str | Path] | None = None,
    name: str | None = None,
    tensorboard: bool = True,
    progress: bool | None = None,
    checkpoint_seconds: float = 10.0,
) -> Swept:
    """Try settings of an algorithm, all seeds of all settings at once, and find the best.

    Of an experiment, those of its [sweep]. Of a problem: of a class of algorithms with what is `fixed`, or
    of an algorithm that is varied, over a `grid` such as `{"c_eta": [0.05, 0.1]}` or
    `{"c_eta": {"low": 0.01, "high": 0.3, "log": True}}`; several of them in a dict, with a grid for each.
    `by` is a metric; by default the first that does not look at test rows. At most `budget` settings of each
    are tried, drawn with `draw_seed` from a larger grid; `halving=3` keeps a third of them at each rung.
    """
    given = said(locals())
    way = _Way(out, resume, tensorboard, progress, checkpoint_seconds)
    with machine.restored():
        machine.prepare()
        plan, made = (_of_file if isinstance(experiment, str | Path) else _of_grid)(given)
        folder = way.carry_out(plan, "sweep")
        results = of_sweep(folder)
        _warn(results)
        return _swept(results, made, plan.by)


def _swept(results: Results, made: Mapping[str, Any], by: str) -> Swept:
    best, table = {}, []
    for family in results.families:
        if family.by_test:
            warnings.warn(CHOSEN_BY_TEST.format(by), Notice, stacklevel=3)
        if family.best is not None:
            best[family.name] = made[family.best.label]
        for one in family.tried:
            own = {key: value for key, value in one.setting.items() if isinstance(value, int | float)}
            means = {metric: value_of(one, metric) for metric in results.run.metrics}
            lost = sum(bool(lane.diverged) for lane in one.lanes)
            ends = {"diverged": lost, "dropped": is_dropped(one)}
            table.append({"algorithm": family.name, "setting": one.label, **own, **means, **ends})
    return Swept(best, table, by, results.run.folder)


# --- plans -----------------------------------------------------------------------------------------------

OPTIONS = ("quorum", "fleet", "weights", "strata", "cohorts", "merge", "checks", "faults", "steady")
SAID_BY_FILES = (*OPTIONS, "executor", "name")


def _of_name(given: dict[str, Any], loaded: Callable[..., Plan], **own: Any) -> Plan:
    """The plan of an experiment that is named."""
    for key in SAID_BY_FILES:
        if key in given:
            raise BadInput(
                f"{key} is what the experiment says: change it by settings, such as "
                "settings={'quorum.invite': 12}, or give a problem instead of a name"
            )
    some = given.get("algorithms", ())
    some = [some] if isinstance(some, str) else list(some) if isinstance(some, Sequence) else None
    if some is None or not all(isinstance(one, str) for one in some):
        raise BadInput(
            f"algorithms must be names of the experiment's, such as ['cdma-ada'], got "
            f"{shown(given['algorithms'])}"
        )
    settings = {key: given[key] for key in ("evaluate_every", "batch", "threads") if key in given}
    settings |= given.get("settings", {})
    wanted: Wanted = {
        "algorithms": some,
        "rounds": given.get("rounds"),
        "seeds": given.get("seeds"),
        "engine": given.get("engine"),
        "device": None if "device" not in given else str(given["device"]),
        "deterministic": given.get("deterministic"),
        "history": given.get("history"),
        "code": given.get("code", ()),
        "settings": [f"{key}={json.dumps(value, default=of_numpy)}" for key, value in settings.items()],
    }
    return loaded(str(given["experiment"]), **wanted, **own)


def _values(given: dict[str, Any]) -> tuple[Parts, How]:
    """What all studies of a problem share."""
    if "settings" in given:
        raise BadInput(
            "settings are for an experiment that is named; a problem takes quorum=, fleet= and so on"
        )
    if "rounds" not in given:
        raise BadInput("rounds is missing: say how many, such as rounds=200")
    for key, default in (("rounds", None), ("evaluate_every", 10), ("threads", 1)):
        check_count(key, given.get(key, default))
    shared = {key: given[key] for key in (*OPTIONS, "batch") if key in given}
    make = executors(given.get("engine"), given.get("executor"))
    values = Parts(
        given["experiment"],
        given.get("seeds", [0]),
        str(machine.device_named(str(given.get("device", "cpu")))),
        shared,
        make,
        getattr(given.get("executor"), "asked", None),
    )
    how = How(
        given["rounds"],
        given.get("evaluate_every", 10),
        given.get("name"),
        given.get("threads", 1),
        deterministic=given.get("deterministic", False),
        history=given.get("history", False),
    )
    return values, how


def _of_values(given: dict[str, Any]) -> Plan:
    """The plan of a problem and of algorithms that were made in Python."""
    values, how = _values(given)
    made = named(given.get("algorithms"))
    studies = {
        label: values.study({label: (one, Beside(None, values.steady))}) for label, one in made.items()
    }
    return plan_of(studies, made, how)


def _of_file(given: dict[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """The plan of the [sweep] of an experiment that is named, and its settings by name."""
    for key in {"grid", "fixed", "draw_seed"} & given.keys():
        raise BadInput(f"{key} is for a problem; the experiment's [sweep] says it for {given['experiment']}")
    plan = _of_name(given, load_sweep, **{key: given.get(key) for key in ("by", "budget", "halving")})
    shared = [plan.resolved[key] for key in ("K", "steady")]
    tables = plan.resolved["algorithms"].items()
    return plan, {label: algorithm_of(label, table, *shared)[0] for label, table in tables}


def _of_grid(given: dict[str, Any]) -> tuple[Plan, dict[str, Any]]:
    values, how = _values(given)
    if "grid" not in given:
        raise BadInput("grid is missing: say what is tried, such as grid={'c_eta': [0.05, 0.1]}")
    told = {key: given.get(key) for key in ("by", "budget", "halving")} | {"seed": given.get("draw_seed")}
    made = named(given.get("algorithms"))
    return sweep_plan(values, made, given["grid"], given.get("fixed", {}), told, how)


# --- how it is carried out -------------------------------------------------------------------------------


class _Way:
    """How a call is carried out: in which folder, and who is told."""

    def __init__(
        self,
        out: str | Path | None,
        resume: bool,
        tensorboard: bool,
        progress: bool | None,
        checkpoint_seconds: float,
    ) -> None:
        if resume and out is None:
            raise BadInput("resume=True needs the folder to go on with: say out=...")
        if not checkpoint_seconds >= 0:
            raise BadInput(f"checkpoint_seconds must be at least 0, got {checkpoint_seconds}")
        self.show = _Told(is_shown(progress))
        folder = None if out is None else Path(out)
        self.way = Way(folder, resume, checkpoint_seconds, self.show, tensorboard=tensorboard)

    def carry_out(self, plan: Plan, again: str) -> Path:
        with _until_interrupted() as asked:
            way = Way(**{**vars(self.way), "asked": lambda: asked})
            try:
                ran = carry_out(plan, place(plan, way), way, again=again)
            except BadInput as error:
                raise BadInput(_in_python(str(error))) from None
        if ran.code == INTERRUPTED:
            raise KeyboardInterrupt(self.show.last)
        return ran.folder


def _in_python(told: str) -> str:
    """What a folder says of options, in the words of a call; a whole command stays what it is."""
    told = re.sub(r"fedsaddle (run|sweep) --resume .* options( but --code)?", "the same values", told)
    whole = "fedsaddle " in told
    return told if whole else told.replace("--resume", "resume=True").replace("another --out", "another out")


class _Told:
    """Tells a program: what should be heard is a warning, progress a line for each algorithm."""

    def __init__(self, seen: bool) -> None:
        self.seen, self.last = seen, ""

    def say(self, line: str) -> None:
        self.last = line
        if not line.startswith("stopped"):  # which the interrupt will say
            warnings.warn(line.removeprefix("note: "), Notice, stacklevel=5)

    @contextmanager
    def watching(self, plan: Plan, left: Mapping[str, int]) -> Iterator[Watch]:
        watch = _Lines(plan.rounds, self.seen)
        try:
            yield watch
        finally:
            watch.close()


class _Lines:
    """A Watch with a line for each study."""

    def __init__(self, rounds: int, seen: bool) -> None:
        self.rounds, self.seen = rounds, seen
        self.line: ProgressLine | None = None

    def begin(self, study: str, start: int) -> None:
        self.close()
        self.line = ProgressLine(self.rounds, f"{study}  ", start) if self.seen else None

    def stop(self, study: str, stop: Stop) -> None:
        if self.line is not None:
            self.line(stop)

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None


@contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """True once Ctrl-C has come; a second one ends the call at once.

    Where somebody else listens for it, or this is not the program's first thread, nothing is changed.
    """
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        print("finishing this round, then making a checkpoint ...", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _warn(results: Results) -> None:
    """What came to nothing."""
    for name in results.diverged:
        warnings.warn(f"{name}: every seed diverged: try smaller step sizes", Notice, stacklevel=3)
    for name in results.idle:
        told = f"{name}: nothing was learnt: every round was abandoned, for too few clients answered"
        warnings.warn(told, Notice, stacklevel=3)
