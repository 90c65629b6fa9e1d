"""Run an experiment or a sweep: load it, carry it out in a folder, and be able to go on with it."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol, Unpack

from fedsaddle import runs
from fedsaddle.border.build import Wanted, load
from fedsaddle.border.plugins import again as same_code
from fedsaddle.border.sweeps import load_sweep
from fedsaddle.engine import machine
from fedsaddle.engine.course import Play, Stop
from fedsaddle.errors import BadInput
from fedsaddle.exits import ALL_DIVERGED, INTERRUPTED
from fedsaddle.runs import Interrupted, Plan, RunFolder, Watch, write_atomically
from fedsaddle.tensorboard import TensorBoard


class Show(Protocol):
    """Somebody who is told about a run."""

    def say(self, line: str) -> None:
        """What a person should hear."""

    def watching(self, plan: Plan, left: Mapping[str, int]) -> AbstractContextManager[Watch]:
        """Who watches while it runs, given from which round each study goes on."""


class Silent:
    """Tells nobody anything."""

    def say(self, line: str) -> None:
        pass

    @contextmanager
    def watching(self, plan: Plan, left: Mapping[str, int]) -> Iterator[Watch]:
        yield self

    def begin(self, study: str, start: int) -> None:
        pass

    def stop(self, study: str, stop: Stop) -> None:
        pass


SILENT = Silent()


@dataclass(frozen=True)
class Way:
    """How a plan is carried out; what it comes to does not depend on it."""

    folder: Path | None = None  # without one, a new one below runs/
    resume: bool = False
    checkpoint_seconds: float = 10.0  # make a checkpoint at most so often
    show: Show = SILENT
    # Called when rounds begin; what it returns says whether somebody wants to stop.
    asked: Callable[[], Callable[[], bool]] = lambda: lambda: False
    tensorboard: bool = True  # whether its events are written
    again: str = ""  # the command that goes on, where it is more than this folder's


PLAINLY = Way()


class Ran(NamedTuple):
    """Where a run is, and how it ended: 0, or a number of `exits`."""

    folder: Path
    code: int


def run(experiment: str, way: Way = PLAINLY, **wanted: Unpack[Wanted]) -> Ran:
    """Run an experiment, or what is left of it."""
    machine.prepare()  # what is loaded is computed on one thread too; the experiment may ask for more
    plan = load(experiment, **wanted)
    return carry_out(plan, place(plan, way), way, again="run")


def sweep(
    experiment: str,
    way: Way = PLAINLY,
    *,
    by: str | None = None,
    budget: int | None = None,
    halving: int | None = None,
    **wanted: Unpack[Wanted],
) -> Ran:
    """Try the settings of an experiment's [sweep], or those that are left."""
    machine.prepare()
    plan = load_sweep(experiment, by=by, budget=budget, halving=halving, **wanted)
    return carry_out(plan, place(plan, way), way, again="sweep")


def place(plan: Plan, way: Way) -> Path:
    """The folder of a run; without one that was asked for, a new one."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in plan.resolved["name"])
    kind = "-sweep" if plan.by else ""
    return way.folder or Path("runs") / f"{name}{kind}-{datetime.now():%Y%m%d-%H%M%S}"


def carry_out(plan: Plan, path: Path, way: Way, play: Play | None = None, again: str = "") -> Ran:
    """Run what is left of a plan, in its folder. Rounds are simulated unless somebody else plays them.

    `again` is the command that can go on with the folder alone, and with more rounds.
    """
    folder = RunFolder(path, plan, way.resume, may_grow=bool(again))
    try:
        for note in (*plan.notes, *folder.notes):
            way.show.say(f"note: {note}")
        machine.prepare(*(plan.resolved[key] for key in ("threads", "tf32", "deterministic")))
        asked = way.asked()
        with way.show.watching(plan, folder.left) as watch:
            watch = TensorBoard(path, plan, watch) if way.tensorboard else watch
            runs.execute(folder, watch, asked, way.checkpoint_seconds, play)
    except BadInput as error:
        raise _with_traceback(error, path) from error.__cause__
    except Interrupted:
        way.show.say(f"stopped; go on with: {way.again or _going_on(plan, path, again)}")
        return Ran(path, INTERRUPTED)
    finally:
        folder.close()
        plan.close()
    if not (path / "rounds.csv").stat().st_size:
        way.show.say("no seed was finite even at the start")
        return Ran(path, ALL_DIVERGED)
    return Ran(path, 0)


def _with_traceback(error: BadInput, path: Path) -> BadInput:
    """What went wrong in a person's code, in its line; how it came to that is kept beside the run."""
    if error.__cause__ is None:
        return error
    file = path / "traceback.txt"
    write_atomically(file, "".join(traceback.format_exception(error.__cause__)).encode())
    return BadInput(f"{error} (see {file})")


def _going_on(plan: Plan, path: Path, again: str) -> str:
    if "python" in plan.resolved:
        return f"fs.{again}(..., out={str(path)!r}, resume=True)"
    words = f"fedsaddle {again}" if again else "the same command and"
    own = same_code(plan.resolved) if again else ""
    return f"{words} --resume --out {shlex.quote(str(path))}{own}"
