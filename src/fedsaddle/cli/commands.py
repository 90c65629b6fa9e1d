"""What can be asked for. What a command needs beyond its words is imported when it is clear that it runs."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedsaddle import __version__, catalogue
from fedsaddle.cli import ALL_DIVERGED, BAD_INPUT, INTERRUPTED, NOTHING_LEARNT
from fedsaddle.errors import BadInput, check_count, meant, unknown

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fedsaddle.engine.course import Play
    from fedsaddle.flower import deploy
    from fedsaddle.flower.server import Deployment
    from fedsaddle.report.reading import Series
    from fedsaddle.runs import Plan, RunFolder, Watch

app = typer.Typer(
    help="Minimax learning on fleets of unreliable devices.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console() if sys.stdout.isatty() else Console(width=120)


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
Perhaps = Annotated[
    str | None,
    typer.Argument(help="The name of a shipped experiment, or a TOML file; none to --resume a folder."),
]
Only = Annotated[list[str] | None, typer.Option(help="Only these, such as cdma-ada,cdma-one.")]
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
Quiet = Annotated[bool, typer.Option("--quiet", help="Only what goes wrong.")]
Seconds = Annotated[float, typer.Option(help="Make a checkpoint at most so often.")]


@app.command()
def run(
    experiment: Perhaps = None,
    algorithm: Only = None,
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
    chosen = _check_options(algorithm, folder, resume, checkpoint_seconds, rounds)
    which = _which(experiment, "run", folder, resume, chosen, set_)
    engine = _check_engine(engine)

    from fedsaddle.engine import machine
    from fedsaddle.spec import load

    machine.prepare()  # what is loaded is computed on one thread too; the experiment may ask for more
    plan = load(
        which,
        algorithms=chosen,
        rounds=rounds,
        seeds=seeds,
        engine=engine,
        address=address,
        device=device and device.lower(),
        deterministic=deterministic,
        history=history or None,
        settings=set_ or [],
    )
    path = _place(plan, folder)
    _carry_out(plan, path, resume, quiet, checkpoint_seconds, again="run")
    raise typer.Exit(_report(path, quiet))


@app.command()
def sweep(
    experiment: Perhaps = None,
    algorithm: Only = None,
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
    """Try the settings of an experiment's \\[sweep], and find each algorithm's best."""
    chosen = _check_options(algorithm, folder, resume, checkpoint_seconds, rounds)
    which = _which(experiment, "sweep", folder, resume, chosen, set_)
    engine = _check_engine(engine)

    from fedsaddle.engine import machine
    from fedsaddle.spec import load_sweep

    machine.prepare()  # what is loaded is computed on one thread too; the experiment may ask for more
    plan = load_sweep(
        which,
        algorithms=chosen,
        by=by,
        budget=budget,
        halving=halving,
        rounds=rounds,
        seeds=seeds,
        engine=engine,
        address=address,
        device=device and device.lower(),
        deterministic=deterministic,
        settings=set_ or [],
    )
    path = _place(plan, folder)
    _carry_out(plan, path, resume, quiet, checkpoint_seconds, again="sweep")
    raise typer.Exit(_report_sweep(path, quiet))


def _check_options(
    algorithm: list[str] | None,
    folder: Path | None,
    resume: bool,
    checkpoint_seconds: float,
    rounds: int | None,
) -> list[str]:
    """Refuse options that do not fit; the names of the algorithms that were asked for."""
    if rounds is not None:
        check_count("rounds", rounds)
    if not checkpoint_seconds >= 0:
        raise BadInput(f"--checkpoint-seconds must be at least 0, got {checkpoint_seconds}")
    names = [name.strip() for several in algorithm or [] for name in several.split(",") if name.strip()]
    if algorithm and not names:
        raise BadInput(f"--algorithm takes names such as cdma-ada,cdma-one; got '{','.join(algorithm)}'")
    if resume and folder is None:
        raise BadInput("--resume needs the folder of the run: --out DIR")
    if folder is not None and str(folder) in ("", "."):
        raise BadInput("--out needs a folder of its own, such as runs/first")
    return names


ENGINES = ("auto", "vectorised", "loop", "ray")


def _check_engine(engine: str | None) -> str | None:
    if engine is not None and engine.lower() not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    return engine and engine.lower()


def _which(
    experiment: str | None,
    command: str,
    folder: Path | None,
    resume: bool,
    chosen: Sequence[str],
    settings: Sequence[str] | None,
) -> str:
    """The experiment that is meant. A slip in a name is answered here, before PyTorch is waited for."""
    if experiment is None:
        if folder is None or not resume:
            raise BadInput(
                "an experiment is missing: give the name of a shipped one or a TOML file; or, to go on with "
                "a run, --resume --out DIR"
            )
        experiment = str(folder / "experiment.json")
        if not os.path.isfile(experiment):
            raise BadInput(f"{folder} holds no run to go on with: name the experiment, to begin one there")
        kind = "sweep" if "sweep" in catalogue.read(experiment)[0] else "run"
        if kind != command:
            place = shlex.quote(str(folder))
            raise BadInput(f"{folder} holds a {kind}: go on with fedsaddle {kind} --resume --out {place}")
    tables, _ = catalogue.read(experiment)
    known = tables.get("algorithms")
    swept = tables.get("sweep")
    if command == "sweep" and isinstance(swept, dict) and swept.get("settings"):
        known = swept["settings"]
    if isinstance(known, dict) and not any(word.lstrip().startswith("algorithms") for word in settings or ()):
        for name in chosen:
            if meant(name, known) not in known:
                raise unknown("algorithm in this experiment", name, known)
    return experiment


def _place(plan: Plan, folder: Path | None) -> Path:
    """The folder of a run; without one that was asked for, a new one."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in plan.resolved["name"])
    kind = "-sweep" if plan.by else ""
    return folder or Path("runs") / f"{name}{kind}-{datetime.now():%Y%m%d-%H%M%S}"


def _carry_out(
    plan: Plan,
    path: Path,
    resume: bool,
    quiet: bool,
    checkpoint_seconds: float,
    asked: Callable[[], bool] | None = None,
    play: Play | None = None,
    again: str = "",
) -> None:
    """Run what is left of a plan, in its folder. Rounds are simulated unless somebody else plays them.

    `again` is the command that can go on with the folder alone, and with more rounds.
    """
    from fedsaddle.runs import Interrupted, RunFolder

    run_folder = RunFolder(path, plan, resume, may_grow=bool(again))
    for note in (*plan.notes, *run_folder.notes):
        print(f"note: {note}", file=sys.stderr)
    try:
        _execute(run_folder, quiet, checkpoint_seconds, asked or _until_asked(), play)
    except Interrupted:
        words = f"fedsaddle {again}" if again else "the same command and"
        print(f"stopped; go on with: {words} --resume --out {shlex.quote(str(path))}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        run_folder.close()
        plan.close()
    if not (path / "rounds.csv").stat().st_size:
        print("no seed was finite even at the start", file=sys.stderr)
        raise typer.Exit(ALL_DIVERGED)


def _execute(
    run_folder: RunFolder,
    quiet: bool,
    checkpoint_seconds: float,
    asked: Callable[[], bool],
    play: Play | None,
) -> None:
    from fedsaddle.cli.progress import Bars, Lines, Silent, bars
    from fedsaddle.engine import machine
    from fedsaddle.runs import execute
    from fedsaddle.tensorboard import TensorBoard

    plan = run_folder.plan
    machine.prepare(*(plan.resolved[key] for key in ("threads", "tf32", "deterministic")))
    if not quiet:
        print(f"engine: {_engine(plan)}", file=sys.stderr)

    def go(watch: Watch) -> None:
        execute(run_folder, TensorBoard(run_folder.path, plan, watch), asked, checkpoint_seconds, play)

    if quiet or not out.is_terminal:
        go(Silent() if quiet else Lines(plan, run_folder.left))
    else:
        with bars(out) as progress:
            go(Bars(plan, run_folder.left, progress))


def _engine(plan: Plan) -> str:
    """How clients are asked, and by how many threads at once."""
    from fedsaddle.engine.compile.tapes import cores

    name, device, threads = (plan.resolved[key] for key in ("engine", "device", "threads"))
    study = next(iter(plan.studies.values()))
    many = study.executor.beside(study.device)
    workers = f"{many} workers on {cores()} cores, " if many > 1 else ""
    return f"{name} on {device} ({workers}{threads} thread{'s' * (threads > 1)}{' each' * (many > 1)})"


def _report(path: Path, quiet: bool) -> int:
    """Write a run's report and show its table. To an exit code."""
    from fedsaddle.cli.progress import amount
    from fedsaddle.report import findings, read_runs, spread, write_report

    runs = read_runs([path])
    page = write_report(runs)
    metric, spent = runs[0].judged_by, runs[0].spent
    found = findings(runs[0].series, metric)
    if not quiet:
        wide = out.width >= 100
        table = Table(
            title=f"{metric} at the end, mean ± standard deviation over the seeds",
            box=box.SIMPLE,
            padding=(0, 1 if wide else 0),
            show_edge=wide,
        )
        counts = ("seeds", "floats\nup", "seconds\nsimulated", "seconds\nspent", "abandoned")
        for column in ("algorithm", metric, *counts):
            table.add_column(
                column, justify="left" if column == "algorithm" else "right", no_wrap=True, vertical="bottom"
            )
        for one in found:
            final, floats, seconds = (
                spread(list(values.values())) for values in (one.final, one.floats_up, one.seconds)
            )
            table.add_row(
                one.label,
                str(final or "diverged"),
                f"{len(one.final)}/{one.seeds}",
                amount(floats.mean) if floats else "",
                f"{seconds.mean:.4g}" if seconds else "",
                f"{spent[one.label]:.3g}" if one.label in spent else "",
                str(one.abandoned),
            )
        out.print(table)
        print(f"rounds   {path / 'rounds.csv'}\nreport   {page}\nspent    {_spent(spent)}")
    groups = {one.label: [one] for one in runs[0].series}
    return _code(groups, [one.label for one in found if not one.final])


def _report_sweep(path: Path, quiet: bool) -> int:
    """Write a sweep's report and its winners. To an exit code."""
    from fedsaddle.report import read_runs, write_report
    from fedsaddle.report.sweeps import CHOSEN_BY_TEST, families_of, winners_toml
    from fedsaddle.runs import write_atomically

    runs = read_runs([path])
    page, families = write_report(runs), families_of(runs[0])
    best, by, first = path / "best.toml", families[0].by, runs[0].judged_by
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
        print(f"spent    {_spent(runs[0].spent)}")
    groups = {family.name: family.tried for family in families}
    return _code(groups, [family.name for family in families if not family.best])


def _spent(seconds: Mapping[str, float]) -> str:
    return f"{sum(seconds.values()):.3g} s on this machine's clock, for rounds and evaluations"


def _code(groups: Mapping[str, Sequence[Series]], diverged: Sequence[str]) -> int:
    """What a run ends with, given all it has of each algorithm; and a word if one came to nothing."""
    if diverged:
        print(f"every seed of {', '.join(diverged)} diverged: try smaller step sizes", file=sys.stderr)
    idle = [name for name, series in groups.items() if all(one.idle for one in series)]
    if idle:
        print(
            f"nothing was learnt by {', '.join(idle)}: every round was abandoned, for too few clients "
            "answered in time; lower quorum.minimum, or ask more clients or for longer",
            file=sys.stderr,
        )
    return ALL_DIVERGED if diverged else NOTHING_LEARNT if idle else 0


# What somebody might want a report as.
NO_REPORT = {".pdf", ".htm", ".png", ".svg", ".jpg", ".csv", ".txt", ".md", ".json", ".tex", ".docx", ".zip"}


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
    if place is not None and place.suffix.lower() in NO_REPORT and not os.path.isdir(place):
        raise BadInput(
            f"--out {place}: a report is a page of HTML, with its figure as curves.png and its tables as CSV "
            f"beside it: say --out {place.with_suffix('.html')}, or a folder"
        )
    for run in runs:
        if not os.path.exists(run / "experiment.json"):
            raise BadInput(f"{run} is not a run folder: it has no experiment.json")

    from fedsaddle.report import read_runs, write_report

    found = read_runs(runs)
    for one in found:
        if one.unfinished:
            print(f"note: {one.folder} is unfinished: {one.unfinished}", file=sys.stderr)
    print(f"report   {write_report(found, place)}")


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has written its history.")],
    tolerance: Annotated[
        float | None, typer.Option(help="What a parameter may differ by, relative to 1 + its size.")
    ] = None,
    engine: Engine = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Run a run's history again in the simulator, and say whether it comes to the same."""
    if tolerance is not None and not tolerance >= 0:
        raise BadInput(f"--tolerance must be at least 0, got {tolerance}")
    if not os.path.exists(run / "checkpoint.json"):
        raise BadInput(f"{run} is not the folder of a run: it has no checkpoint.json")
    engine = _check_engine(engine)

    from fedsaddle.cli.progress import Bars, Lines, Silent, bars
    from fedsaddle.replay import replay_run

    agreed = True
    with bars(out, transient=True) if out.is_terminal and not quiet else nullcontext() as progress:

        def watching(plan: Plan, left: Mapping[str, int]) -> Watch:
            if quiet:
                return Silent()
            return Bars(plan, left, progress) if progress else Lines(plan, left, sys.stderr)

        for one in replay_run(run, tolerance, engine, device and device.lower(), watching):
            print(one)
            agreed &= one.agrees
    raise typer.Exit(0 if agreed else 1)


@app.command("list")
def list_() -> None:
    """Show the experiments, algorithms, problems and fleets there are."""
    sections = {
        "experiments": catalogue.shipped(),
        "algorithms": catalogue.algorithms(),
        "problems": catalogue.problems(),
        "fleets": catalogue.fleets(),
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
    from fedsaddle.data import sources

    names = [meant(name, sources.CATALOGUE) for name in names or []]
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


# --- deployment ------------------------------------------------------------------------------------------

# Flower is imported when a command needs it: it takes a second, and not everybody has it.

Listen = Annotated[str, typer.Option(help="Where nodes find the server, as HOST:PORT.")]
Poll = Annotated[float, typer.Option(help="Seconds between looks for a message.")]
Fewer = Annotated[
    int | None,
    typer.Option("--clients", help="So many clients, of whom a quorum asks no more than there are."),
]
KEEP_AN_EYE = 0.5  # seconds between looks of the nodes of `local`


@app.command("keys")
def keys_(
    folder: Annotated[Path, typer.Argument(help="A new folder; or one with keys, to add nodes to.")],
    nodes: Annotated[int, typer.Option(help="How many devices may join.")] = 4,
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address the server will be reached by.")
    ] = None,
) -> None:
    """Make a CA, the server's certificate and a key for each device."""
    from fedsaddle.flower import keys

    keys.make(folder, nodes, host or [])
    print(f"server   {folder / 'server'}\nnodes    {folder / 'node-0'} to {folder / f'node-{nodes - 1}'}")


@app.command()
def serve(
    experiment: Experiment,
    keys: Annotated[Path, typer.Option(help="The server's keys: KEYS/server.")],
    listen: Listen = "127.0.0.1:9092",
    clients: Fewer = None,
    algorithm: Only = None,
    rounds: Rounds = None,
    seeds: Seeds = None,
    set_: Set = None,
    folder: Out = None,
    resume: Resume = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment on the devices that join."""
    chosen = _check_options(algorithm, folder, resume, 0, rounds)
    _which(experiment, "run", folder, resume, chosen, set_)

    from fedsaddle.flower import deploy
    from fedsaddle.runs import RunFolder
    from fedsaddle.spec import load

    plan = load(
        experiment,
        algorithms=chosen,
        rounds=rounds,
        seeds=seeds,
        engine="loop",
        history=True,
        settings=set_ or [],
        clients=clients,
        devices=True,
    )
    path = _place(plan, folder)
    server = _server(plan, path, keys, deploy.parse_address(listen, "--listen"), resume, quiet)
    may_join = len(deploy.check(server))
    RunFolder(path, plan, resume).close()  # a folder that cannot be used is refused before all is started
    print(f"listening on {listen}; {may_join} devices may join", file=sys.stderr)
    _after(deploy.serve(server), path, quiet)


@app.command()
def join(
    experiment: Experiment,
    server: Annotated[str, typer.Option(help="Where the server listens, as HOST:PORT.")],
    key: Annotated[Path, typer.Option(help="This device's keys: KEYS/node-0.")],
    client: Annotated[
        int | None, typer.Option(help="Which client this is; by itself, as the keys' folder says.")
    ] = None,
    clients: Fewer = None,
    data: Annotated[Path | None, typer.Option(help="This device's own rows, a .csv or .npz file.")] = None,
    set_: Set = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where this device keeps things; by itself, beside its key.")
    ] = None,
    poll: Poll = 3.0,
) -> None:
    """Take part in an experiment as one device."""
    catalogue.read(experiment)

    from fedsaddle.flower import deploy
    from fedsaddle.flower.client import Site
    from fedsaddle.flower.keys import node_key
    from fedsaddle.flower.node import Address
    from fedsaddle.spec import load

    host, port = deploy.parse_address(server, "--server")
    number = client if client is not None else _client_of(key)
    private, ca = node_key(key)
    plan = load(
        experiment,
        engine="loop",
        device="cpu",
        settings=set_ or [],
        clients=clients,
        devices=data is not None,
    )
    there = min(len(study.problem.federation) for study in plan.studies.values())
    if not 0 <= number < there:
        raise BadInput(f"--client must be from 0 to {there - 1} in this experiment, got {number}")
    if not poll > 0:
        raise BadInput(f"--poll must be above 0, got {poll}")
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    own = folder or key / "state"
    site = Site(plan, number, own) if data is None else Site.holding(plan, number, own, str(data))
    print(f"client {number} of {there}, joining {place}", file=sys.stderr)
    raise typer.Exit(deploy.join(site, Address(place, ca, private), poll))


def _client_of(key: Path) -> int:
    name = key.resolve().name
    if not name.startswith("node-") or not name[5:].isdecimal():
        raise BadInput(f"which client is this? Say --client N, or name the keys' folder node-N; got {key}")
    return int(name[5:])


@app.command()
def local(
    experiment: Experiment,
    nodes: Annotated[int, typer.Option(help="How many devices, each a process of this machine.")] = 4,
    algorithm: Only = None,
    rounds: Rounds = None,
    seeds: Seeds = None,
    set_: Set = None,
    folder: Out = None,
    resume: Resume = False,
    quiet: Quiet = False,
) -> None:
    """Try a deployment on this machine: a server, devices, keys, everything."""
    chosen = _check_options(algorithm, folder, resume, 0, rounds)
    _which(experiment, "run", folder, resume, chosen, set_)

    from fedsaddle.flower import deploy, keys
    from fedsaddle.runs import RunFolder
    from fedsaddle.spec import load

    plan = load(
        experiment,
        algorithms=chosen,
        rounds=rounds,
        seeds=seeds,
        engine="loop",
        history=True,
        settings=set_ or [],
        clients=nodes,
    )
    path = _place(plan, folder)
    own = path / "deployment" / "keys"
    RunFolder(path, plan, resume).close()
    keys.make(own, nodes)
    server = _server(plan, path, own / "server", ("127.0.0.1", deploy.free_port()), resume, quiet)
    _after(deploy.local(server, list(range(nodes)), KEEP_AN_EYE), path, quiet)


def _server(
    plan: Plan, path: Path, keys: Path, address: tuple[str, int], resume: bool, quiet: bool
) -> deploy.Server:
    from fedsaddle.flower import deploy

    def work(deployment: Deployment, again: bool) -> int:
        """In the ServerApp's process: the rounds, to an exit code."""
        try:
            _carry_out(plan, path, resume or again, quiet, 0, deployment.roll.asked, deployment.play)
        except typer.Exit as end:
            return end.exit_code
        except BadInput as error:
            print(f"error: {error}", file=sys.stderr)
            return BAD_INPUT
        return 0

    return deploy.Server(plan, path, keys, address, work, _until_asked)


def _after(code: int, path: Path, quiet: bool) -> None:
    """What a person sees at the end of a deployment."""
    raise typer.Exit(code or _report(path, quiet))


def _downloads() -> Progress:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

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
