"""The command line."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Annotated

import click
import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from fedsaddle import __version__
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.data import sources
from fedsaddle.engine import machine
from fedsaddle.engine.course import Stop
from fedsaddle.engine.tapes import Tapes, cores
from fedsaddle.errors import BadInput
from fedsaddle.fleet import FLEETS
from fedsaddle.problems import PROBLEMS
from fedsaddle.replay import replay_run
from fedsaddle.report import findings, read_runs, spread, write_report
from fedsaddle.report.sweeps import CHOSEN_BY_TEST, families_of, winners_toml
from fedsaddle.runs import Interrupted, Plan, RunFolder, Watch, execute, write_atomically
from fedsaddle.spec import load, load_sweep, shipped
from fedsaddle.sweep import score

BAD_INPUT, ALL_DIVERGED, INTERRUPTED = 2, 3, 130

app = typer.Typer(
    help="Minimax learning on fleets of unreliable devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console() if sys.stdout.isatty() else Console(width=120)


# --- progress --------------------------------------------------------------------------------------------


class Silent:
    """For --quiet."""

    def begin(self, study: str, start: int) -> None:
        pass

    def stop(self, study: str, stop: Stop) -> None:
        pass


def _describe(plan: Plan, study: str, stop: Stop) -> str:
    alive = f"{sum(stop.lanes.alive)}/{len(plan.studies[study].seeds)} alive"
    if plan.by:
        value, name = _leader(plan.by, plan.studies[study].names, stop)
        return f"best {plan.by} {value:.4g} ({name}) {alive}"
    name = next(iter(stop.rows[0].metrics))
    mean = sum(row.metrics[name] for row in stop.rows) / len(stop.rows)
    up = sum(row.floats_up for row in stop.rows) / len(stop.rows)
    return f"{name} {mean:.4g} up {_amount(up)} {alive}"


def _leader(by: str, names: tuple[str, ...], stop: Stop) -> tuple[float, str]:
    """The best setting at an evaluation, and its mean over the seeds."""
    values: dict[str, list[float]] = {}
    for row in stop.rows:
        values.setdefault(names[row.lane], []).append(row.metrics[by])
    name = min(values, key=lambda name: score(by, values[name], names.count(name)))
    return sum(values[name]) / len(values[name]), name


def _amount(floats: float) -> str:
    """1.25M"""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if floats >= 0.9995 * size:
            return f"{floats / size:.3g}{letter}"
    return f"{floats:.3g}"


def _speed(rounds: int, since: float) -> str:
    speed = rounds / max(1e-9, time.monotonic() - since)
    return f"{speed:.{0 if speed >= 10 else 1}f}"


def _trouble(plan: Plan, study: str, stop: Stop) -> list[str]:
    """What a person should hear at once.

    Each lane that has just diverged: in a sweep many do, and their number says enough. And what has befallen
    the machines.
    """
    ends = [event for event in stop.events if event.what == "diverged" and not plan.by]
    seeds = plan.studies[study].seeds
    lines = [f"{study} seed {seeds[one.lane]} diverged in round {one.round}: {one.detail}" for one in ends]
    lines += [f"{study} round {one.round}: {one.detail}" for one in stop.events if one.what == "memory"]
    lost = [event for event in stop.events if event.what == "lost"]
    if lost:
        others = len({event.lane for event in lost}) - 1
        also = f" and {others} more lane{'s' if others > 1 else ''}" if others else ""
        lines.append(f"{study} round {lost[0].round}, seed {seeds[lost[0].lane]}{also}: {lost[0].detail}")
    return lines


def _say(line: str) -> None:
    """Print a line; if nobody reads any more, be quiet from then on, and let the run go on."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Lines:
    """For a pipe: a plain line about every tenth of the way, and for what goes wrong."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def begin(self, study: str, start: int) -> None:
        self.told = start
        self.began, self.start = time.monotonic(), start

    def stop(self, study: str, stop: Stop) -> None:
        for line in _trouble(self.plan, study, stop):
            _say(line)
        last = stop.round == self.plan.rounds
        if stop.rows and (last or stop.round == 0 or stop.round - self.told >= self.plan.rounds / 10):
            self.told = stop.round
            rounds = stop.round - self.start
            pace = f"  {_speed(rounds, self.began)} rounds/s" if rounds else ""
            told = _describe(self.plan, study, stop)
            _say(f"{study} round {stop.round}/{self.plan.rounds}  {told}{pace}")


class Bars:
    """For a person: one line for each algorithm, with its speed and the time that is left."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self.plan, self.progress = plan, progress
        self.tasks: dict[str, TaskID] = {}

    def begin(self, study: str, start: int) -> None:
        task = self.progress.add_task(study, total=self.plan.rounds, completed=start, speed="", metric="")
        self.tasks[study] = task
        self.began, self.start = time.monotonic(), start

    def stop(self, study: str, stop: Stop) -> None:
        task = self.tasks[study]
        for line in _trouble(self.plan, study, stop):
            self.progress.print(line)
        if stop.rows:
            self.progress.update(task, metric=_describe(self.plan, study, stop))
        rounds = stop.round - self.start
        self.progress.update(
            task, completed=stop.round, speed=f"{_speed(rounds, self.began)}/s" if rounds else ""
        )


def _bars() -> Progress:
    bar = [BarColumn(bar_width=10)] if out.width >= 100 else []  # on 80 columns the words need them all
    return Progress(
        TextColumn("{task.description}"),
        *bar,
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[speed]}", justify="right"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[metric]}"),
        console=out,
    )


def _until_asked() -> Callable[[], bool]:
    """True once Ctrl-C or SIGTERM has come; a second one ends the program at once."""
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        print("finishing this round, then making a checkpoint ...", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGINT, note)
    signal.signal(signal.SIGTERM, note)
    return lambda: asked


# --- commands --------------------------------------------------------------------------------------------


# What `run` and `sweep` share.
Experiment = Annotated[str, typer.Argument(help="The name of a shipped experiment, or a TOML file.")]
Only = Annotated[str, typer.Option(help="Only these, such as cdma-ada,cdma-one.")]
Rounds = Annotated[int | None, typer.Option(help="How many rounds.")]
Seeds = Annotated[str | None, typer.Option(help="Such as 0-4 or 0,3,7-9.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a key: problem.kappa=20.")]
Engine = Annotated[str | None, typer.Option(help="auto, vectorised, loop or ray.")]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster: auto or host:port; or start one here.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Deterministic = Annotated[
    bool | None, typer.Option("--deterministic", help="The same bits every time, also on a GPU.")
]
Out = Annotated[Path | None, typer.Option("--out", help="The run's folder.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")]
Write = Annotated[bool, typer.Option("--history", help="Write down what became of every invitation.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Seconds = Annotated[float, typer.Option(help="Make a checkpoint at most so often.")]


@app.command()
def run(
    experiment: Experiment,
    algorithm: Only = "",
    rounds: Rounds = None,
    seeds: Seeds = None,
    set_: Set = None,
    engine: Engine = None,
    address: Address = None,
    device: Device = None,
    deterministic: Deterministic = None,
    history: Write = False,
    folder: Out = None,
    resume: Resume = False,
    quiet: Quiet = False,
    checkpoint_seconds: Seconds = 10.0,
) -> None:
    """Run an experiment."""
    chosen = _check_options(algorithm, folder, resume, checkpoint_seconds)
    plan = load(
        experiment,
        algorithms=chosen,
        rounds=rounds,
        seeds=seeds,
        engine=engine,
        address=address,
        device=device,
        deterministic=deterministic,
        history=history or None,
        settings=set_ or [],
    )
    path = _carry_out(plan, folder, resume, quiet, checkpoint_seconds)
    if not _report(path, quiet):
        raise typer.Exit(ALL_DIVERGED)


@app.command()
def sweep(
    experiment: Experiment,
    algorithm: Only = "",
    by: Annotated[str | None, typer.Option(help="The metric that settings are chosen by.")] = None,
    budget: Annotated[int | None, typer.Option(help="How many settings of each algorithm.")] = None,
    halving: Annotated[int | None, typer.Option(help="Keep one of so many at each rung; 0: all.")] = None,
    rounds: Rounds = None,
    seeds: Seeds = None,
    set_: Set = None,
    engine: Engine = None,
    address: Address = None,
    device: Device = None,
    deterministic: Deterministic = None,
    folder: Out = None,
    resume: Resume = False,
    quiet: Quiet = False,
    checkpoint_seconds: Seconds = 10.0,
) -> None:
    """Try the settings of an experiment's [sweep], and find each algorithm's best."""
    chosen = _check_options(algorithm, folder, resume, checkpoint_seconds)
    plan = load_sweep(
        experiment,
        algorithms=chosen,
        by=by,
        budget=budget,
        halving=halving,
        rounds=rounds,
        seeds=seeds,
        engine=engine,
        address=address,
        device=device,
        deterministic=deterministic,
        settings=set_ or [],
    )
    path = _carry_out(plan, folder, resume, quiet, checkpoint_seconds)
    if not _report_sweep(path, quiet):
        raise typer.Exit(ALL_DIVERGED)


def _check_options(algorithm: str, folder: Path | None, resume: bool, checkpoint_seconds: float) -> list[str]:
    """Refuse options that do not fit; the names of the algorithms that were asked for."""
    if not checkpoint_seconds >= 0:
        raise BadInput(f"--checkpoint-seconds must be at least 0, got {checkpoint_seconds}")
    if algorithm and not algorithm.strip(", "):
        raise BadInput(f"--algorithm takes names such as cdma-ada,cdma-one; got '{algorithm}'")
    if resume and folder is None:
        raise BadInput("--resume needs the folder of the run: --out DIR")
    if folder is not None and str(folder) in ("", "."):
        raise BadInput("--out needs a folder of its own, such as runs/first")
    return [name.strip() for name in algorithm.split(",") if name.strip()]


def _carry_out(plan: Plan, folder: Path | None, resume: bool, quiet: bool, checkpoint_seconds: float) -> Path:
    """Run what is left of a plan, in its folder."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in plan.resolved["name"])
    kind = "-sweep" if plan.by else ""
    path = folder or Path("runs") / f"{name}{kind}-{datetime.now():%Y%m%d-%H%M%S}"
    run_folder = RunFolder(path, plan, resume)
    for note in (*plan.notes, *run_folder.notes):
        print(f"note: {note}", file=sys.stderr)
    try:
        _execute(run_folder, quiet, checkpoint_seconds)
    except Interrupted:
        place = shlex.quote(str(path))
        print(f"stopped; go on with the same command and: --out {place} --resume", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        run_folder.close()
        plan.close()
    if not (path / "rounds.csv").stat().st_size:
        print("no seed was finite even at the start", file=sys.stderr)
        raise typer.Exit(ALL_DIVERGED)
    return path


def _execute(run_folder: RunFolder, quiet: bool, checkpoint_seconds: float) -> None:
    # Here, because no other command needs it.
    from fedsaddle.tensorboard import TensorBoard

    plan, asked = run_folder.plan, _until_asked()
    machine.prepare(*(plan.resolved[key] for key in ("threads", "tf32", "deterministic")))
    if not quiet:
        print(f"engine: {_engine(plan)}", file=sys.stderr)

    def go(watch: Watch) -> None:
        execute(run_folder, TensorBoard(run_folder.path, plan, watch), asked, checkpoint_seconds)

    if quiet or not out.is_terminal:
        go(Silent() if quiet else Lines(plan))
    else:
        with _bars() as progress:
            go(Bars(plan, progress))


def _engine(plan: Plan) -> str:
    """How clients are asked, and by how many threads at once."""
    name, device, threads = (plan.resolved[key] for key in ("engine", "device", "threads"))
    graphs = next(iter(plan.studies.values())).graphs
    many = graphs.workers if isinstance(graphs, Tapes) else 1
    workers = f"{many} workers on {cores()} cores, " if many > 1 else ""
    return f"{name} on {device} ({workers}{threads} thread{'s' * (threads > 1)}{' each' * (many > 1)})"


def _report(path: Path, quiet: bool) -> bool:
    """Write a run's report and show its table. Whether every algorithm has a seed that came to its end."""
    runs = read_runs([path])
    page = write_report(runs)
    metric = runs[0].metrics[0]
    found = findings(runs[0].series, metric)
    if not quiet:
        table = Table(title=f"{metric} at the end, mean ± standard deviation over the seeds", box=box.SIMPLE)
        for column in ("algorithm", metric, "seeds", "floats up", "seconds", "abandoned"):
            table.add_column(column, justify="left" if column == "algorithm" else "right", no_wrap=True)
        for one in found:
            final, floats, seconds = (
                spread(list(values.values())) for values in (one.final, one.floats_up, one.seconds)
            )
            means = [f"{value.mean:.4g}" if value else "" for value in (floats, seconds)]
            seeds = f"{len(one.final)} of {one.seeds}"
            table.add_row(one.label, str(final or "diverged"), seeds, *means, str(one.abandoned))
        out.print(table)
        print(f"rounds   {path / 'rounds.csv'}\nreport   {page}")
    return all(one.final for one in found)


def _report_sweep(path: Path, quiet: bool) -> bool:
    """Write a sweep's report and its winners. Whether every algorithm has a setting that did not diverge."""
    runs = read_runs([path])
    page, families = write_report(runs), families_of(runs[0])
    best, by, first = path / "best.toml", families[0].by, runs[0].metrics[0]
    write_atomically(best, winners_toml(runs[0]).encode())
    if families[0].by_test:
        print(f"warning: {CHOSEN_BY_TEST.format(by)}", file=sys.stderr)
    if not quiet:
        table = Table(
            title=f"the best setting of each algorithm by {by}, mean over the seeds", box=box.SIMPLE
        )
        columns = dict.fromkeys(("algorithm", "best setting", by, first, "tried", "diverged", "dropped"))
        for column in columns:
            words = column in ("algorithm", "best setting")
            table.add_column(column, justify="left" if words else "right", no_wrap=column != "best setting")
        for family in families:
            values = [family.value_of(metric) for metric in dict.fromkeys((by, first))]
            means = ["diverged" if value is None else f"{value:.4g}" for value in values]
            counts = (len(family.tried), family.diverged, family.dropped)
            table.add_row(family.name, family.told(), *means, *map(str, counts))
        out.print(table)
        print(f"rounds   {path / 'rounds.csv'}\nreport   {page}\nbest     {best}")
    return all(family.best for family in families)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, finished or not.", metavar="RUN...")],
    place: Annotated[
        Path | None,
        typer.Option(
            "--out", help="A folder or FILE.html; without it, the run's folder, or ./report for several."
        ),
    ] = None,
) -> None:
    """Make a page that opens anywhere, with figures as PNG and tables as CSV beside it."""
    if place is not None and str(place) in ("", "."):
        raise BadInput("--out needs a folder of its own or a FILE.html, such as report")
    found = read_runs(runs)
    for run in found:
        if run.unfinished:
            print(f"note: {run.folder} is unfinished: {run.unfinished}", file=sys.stderr)
    print(f"report   {write_report(found, place)}")


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has written its history.")],
    tolerance: Annotated[
        float | None, typer.Option(help="What a parameter may differ by, relative to 1 + its size.")
    ] = None,
    engine: Engine = None,
    device: Device = None,
) -> None:
    """Run a run's history again in the simulator, and say whether it comes to the same."""
    if tolerance is not None and not tolerance >= 0:
        raise BadInput(f"--tolerance must be at least 0, got {tolerance}")
    agreed = True
    for one in replay_run(run, tolerance=tolerance, engine=engine, device=device):
        print(one)
        agreed &= one.agrees
    raise typer.Exit(0 if agreed else 1)


@app.command("list")
def list_() -> None:
    """Show the experiments, algorithms, problems and fleets there are."""
    sections = {
        "experiments": shipped(),
        "algorithms": {name: entry.summary for name, entry in ALGORITHMS.items()},
        "problems": {name: entry.summary for name, entry in PROBLEMS.items()},
        "fleets": {name: (model.__doc__ or "").splitlines()[0] for name, model in FLEETS.items()},
    }
    for title, entries in sections.items():
        out.print(title, style="bold")
        for name, summary in entries.items():
            out.print(f"  {name:<26}{summary}", highlight=False, soft_wrap=True, markup=False)


@app.command()
def data(
    names: Annotated[
        list[str] | None, typer.Argument(help="Datasets to get; none shows what there is.")
    ] = None,
) -> None:
    """Show the datasets, or get some: verified, and kept for the next time."""
    for name in names or []:
        sources.known(name)  # an unknown name is refused before anything is got
    for name in names or []:
        with _downloads() as progress:
            tasks: dict[str, TaskID] = {}

            def tell(what: str, done: int, total: int) -> None:
                if what not in tasks:  # noqa: B023
                    if not out.is_terminal:
                        sources.say(what, done, total)
                    tasks[what] = progress.add_task(what, total=total or None)  # noqa: B023
                progress.update(tasks[what], completed=done)  # noqa: B023

            print(f"{name} is in {sources.fetch(name, tell)}")
    if names:
        return
    table = Table(box=box.SIMPLE)
    for column in ("dataset", "what", "MB", "licence", "here"):
        table.add_column(column)
    table.add_row(
        "digits", "handwritten digits, 1,797 grey images of 8 x 8", "0", "CC BY 4.0", "scikit-learn's"
    )
    for name, files in sources.CATALOGUE.items():
        here = f"yes, from {sources.served_by(name)}" if sources.is_there(name) else "no"
        table.add_row(name, files.title, str(files.megabytes), files.licence, here)
    out.print(table)
    print(
        f"kept in {sources.cache()} (FEDSADDLE_DATA names another folder); get one with: fedsaddle data mnist"
    )
    for name, files in sources.CATALOGUE.items():
        print(f"{name} can come from: {', '.join(source.name for source in files.sources)}")


def _downloads() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=out,
        disable=not out.is_terminal,
    )


def _version(show: bool) -> None:
    if show:
        print(f"fedsaddle {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; what a person can put right ends in one line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without the sign ± is no reason to fail
    try:
        sys.exit(app(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError:
        sys.exit(BAD_INPUT)  # the help has been shown
    except (BadInput, click.UsageError) as error:
        told = error.format_message() if isinstance(error, click.UsageError) else str(error)
        print(f"error: {BadInput(told)}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"error: {error.strerror or error}{where}; a run that was saved can be resumed", file=sys.stderr
        )
        sys.exit(1)
