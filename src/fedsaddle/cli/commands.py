"""What can be asked for, in words. What a command does is `app`'s, imported when it is clear that it runs."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedsaddle import __version__
from fedsaddle.border import files, plugins
from fedsaddle.border.trained import check_history
from fedsaddle.cli import keys, models
from fedsaddle.cli.board import board
from fedsaddle.cli.doctor import doctor
from fedsaddle.cli.new import new
from fedsaddle.cli.options import (
    Chosen,
    Code,
    DeviceOption,
    Engine,
    ExperimentArgument,
    Fewer,
    Listen,
    Perhaps,
    Quiet,
    Set,
    Simulation,
    Write,
    engine_named,
    flattened,
    until_asked,
)
from fedsaddle.cli.reproduce import reproduce
from fedsaddle.cli.watch import watch
from fedsaddle.errors import BadInput, check_count, meant, printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fedsaddle.app.run import Way
    from fedsaddle.border.build import Wanted

app = typer.Typer(
    help="Minimax learning on fleets of unreliable devices.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
out = Console() if sys.stdout.isatty() else Console(width=120)


# --- runs and sweeps -------------------------------------------------------------------------------------


@app.command()
@flattened
def run(chosen: Chosen, simulated: Simulation, experiment: Perhaps = None, history: Write = False) -> None:
    """Run an experiment."""
    _simulate("run", experiment, chosen, simulated, history=history or None)


@app.command()
@flattened
def sweep(
    chosen: Chosen,
    simulated: Simulation,
    experiment: Perhaps = None,
    by: Annotated[str | None, typer.Option(help="The metric that settings are chosen by.")] = None,
    budget: Annotated[int | None, typer.Option(help="How many settings of each algorithm.")] = None,
    halving: Annotated[int | None, typer.Option(help="Keep one of so many at each rung; 0: all.")] = None,
) -> None:
    """Try the settings of an experiment's \\[sweep], and find each algorithm's best."""
    _simulate("sweep", experiment, chosen, simulated, by=by, budget=budget, halving=halving)


def _simulate(
    command: str, experiment: str | None, chosen: Chosen, simulated: Simulation, **own: Any
) -> None:
    """Run or sweep, and show what it has come to."""
    which = chosen.experiment(experiment, command, **simulated.wanted, **own)

    from fedsaddle.app.run import run, sweep
    from fedsaddle.cli.tables import show_run, show_sweep

    go, show = {"run": (run, show_run), "sweep": (sweep, show_sweep)}[command]
    ran = go(which, _way(chosen, simulated.checkpoint_seconds), **(chosen.wanted | simulated.wanted), **own)
    raise typer.Exit(ran.code or show(out, ran.folder, chosen.quiet))


def _way(chosen: Chosen, checkpoint_seconds: float = 0) -> Way:
    from fedsaddle.app.run import Way
    from fedsaddle.cli.progress import Terminal

    show = Terminal(out, chosen.quiet)
    return Way(chosen.folder, chosen.resume, checkpoint_seconds, show, until_asked)


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
            inside = ", ".join(str(found.parent) for found in sorted(run.glob("*/experiment.json")))
            told = f"; it holds the runs {inside}" if inside else ""
            raise BadInput(f"{run} is not a run folder: it has no experiment.json{told}")

    from fedsaddle.report import read_runs, write_report

    found = read_runs(runs)
    for one in found:
        if one.unfinished:
            print(f"note: {one.folder} is unfinished: {one.unfinished}", file=sys.stderr)
    print(f"report   {write_report(found, place)}")


app.command()(watch)


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has written its history.")],
    tolerance: Annotated[
        float | None, typer.Option(help="What a parameter may differ by, relative to 1 + its size.")
    ] = None,
    engine: Engine = None,
    device: DeviceOption = None,
    quiet: Quiet = False,
    code: Code = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="If rows were on devices: their files, client 0's first; once for each."),
    ] = None,
) -> None:
    """Run a run's history again in the simulator, and say whether it comes to the same."""
    if tolerance is not None and not tolerance >= 0:
        raise BadInput(f"--tolerance must be at least 0, got {tolerance}")
    check_history(run)
    engine = engine_named(engine)
    if os.path.exists(run / "experiment.json"):
        plugins.check_approved(*files.read_tables(str(run / "experiment.json")), code or ())

    from fedsaddle.app.replay import replay_run
    from fedsaddle.cli.progress import watching

    agreed = True
    with_bars = partial(watching, out, quiet=quiet, transient=True, to=sys.stderr)
    where = device and device.lower()
    for one in replay_run(run, tolerance, engine, where, with_bars, code or (), data or ()):
        print(one)
        agreed &= one.agrees
    raise typer.Exit(0 if agreed else 1)


app.command("new")(new)


@app.command("list")
def list_(
    code: Annotated[
        list[Path] | None, typer.Argument(help="Files of your own, to be shown too.", metavar="[FILE.py]...")
    ] = None,
) -> None:
    """Show the experiments, algorithms, problems, fleets, networks and datasets there are, and whose."""
    for title, entries in files.listed(code or ()).items():
        out.print(title, style="bold")
        wide = max(24, *(len(one.name) for one in entries)) + 2
        room = max(len(one.home) for one in entries) + 2
        for one in entries:
            line = f"  {one.name:<{wide}}{one.home:<{room}}{one.summary}"
            out.print(printable(line), highlight=False, soft_wrap=True, markup=False)


@app.command()
def data(
    names: Annotated[
        list[str] | None, typer.Argument(help="Datasets to get; none shows what there is.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--from", help="Of celeba: the folder of faces that you have.")
    ] = None,
) -> None:
    """Show the datasets, or get some: verified, and kept for the next time."""
    from fedsaddle.data import sources

    if folder is not None or "celeba" in (names or []):
        _keep_faces(names or [], folder)
        return
    names = [meant(name, sources.CATALOGUE) for name in names or []]
    for name in names or []:
        sources.known(name)  # an unknown name is refused before anything is got
    for name in names or []:
        with _downloads() as progress:
            tasks: dict[str, TaskID] = {}

            def tell(what: str, done: int, total: int) -> None:
                if what not in tasks:  # noqa: B023
                    if not out.is_terminal:
                        sources.show_progress(what, done, total)
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
    for name, kept in sources.CATALOGUE.items():
        here = f"yes, from {sources.served_by(name)}" if sources.is_there(name) else "no"
        table.add_row(name, kept.title, str(kept.megabytes), kept.licence, here)
    faces = "yes, from you" if (sources.cache() / "celeba").is_dir() else "no: --from FOLDER"
    table.add_row("celeba", "faces, by whose they are, that you have", "2,250", "research only", faces)
    out.print(table)
    print(
        f"kept in {sources.cache()} (FEDSADDLE_DATA names another folder); get one with: fedsaddle data mnist"
    )
    for name, kept in sources.CATALOGUE.items():
        print(f"{name} can come from: {', '.join(source.name for source in kept.sources)}")


def _keep_faces(names: list[str], folder: Path | None) -> None:
    """CelebA may not be passed on by anybody: a person has it, and it is converted once."""
    if names != ["celeba"] or folder is None:
        raise BadInput(
            "faces are a person's to download: say fedsaddle data celeba --from FOLDER, and nothing else"
        )
    from fedsaddle.data import celeba

    kept = celeba.keep(folder)
    print(
        f"{kept.pictures:,} faces of {kept.people:,} people, {kept.tested:,} of them to test on, are in "
        f"{kept.path}\nsha256   {kept.sha256}"
    )


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


# --- deployment ------------------------------------------------------------------------------------------

# Flower is imported when a command needs it: it takes a second, and not everybody has it.


app.add_typer(keys.keys_app)


@app.command()
@flattened
def serve(
    chosen: Chosen,
    experiment: ExperimentArgument,
    keys_: Annotated[Path, typer.Option("--keys", help="The server's keys: KEYS/server.")],
    listen: Listen = "127.0.0.1:9092",
    clients: Fewer = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="A port on 127.0.0.1 for /health and Prometheus's /metrics.")
    ] = None,
) -> None:
    """Run an experiment on the devices that join."""
    files.parse_address(listen, "--listen")
    which = chosen.experiment(experiment, "run", clients=clients)

    from fedsaddle.app import deploy
    from fedsaddle.cli.tables import show_run

    wanted: Wanted = {**chosen.wanted, "clients": clients}
    ran = deploy.serve(which, keys_, listen, _way(chosen), metrics_port, **wanted)
    raise typer.Exit(ran.code or show_run(out, ran.folder, chosen.quiet))


@app.command()
@flattened
def local(
    chosen: Chosen,
    experiment: ExperimentArgument,
    nodes: Annotated[int, typer.Option(help="How many devices, each a process of this machine.")] = 4,
) -> None:
    """Try a deployment on this machine: a server, devices, keys, everything."""
    check_count("--nodes", nodes)
    which = chosen.experiment(experiment, "run", engine="loop", history=True, clients=nodes)

    from fedsaddle.app import deploy
    from fedsaddle.cli.tables import show_run

    ran = deploy.local(which, nodes, _way(chosen), **chosen.wanted)
    raise typer.Exit(ran.code or show_run(out, ran.folder, chosen.quiet))


@app.command()
def join(
    experiment: ExperimentArgument,
    server: Annotated[str, typer.Option(help="Where the server listens, as HOST:PORT.")],
    key: Annotated[Path, typer.Option(help="This device's keys: KEYS/node-0.")],
    client: Annotated[
        int | None, typer.Option(help="Which client this is; by default, as the keys' folder says.")
    ] = None,
    clients: Fewer = None,
    data: Annotated[Path | None, typer.Option(help="This device's own rows, a .csv or .npz file.")] = None,
    set_: Set = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where this device keeps things; by default, beside its key.")
    ] = None,
    most_visits: Annotated[
        int | None, typer.Option(help="Policy: answer at most so often, in all runs.")
    ] = None,
    least_batch: Annotated[int, typer.Option(help="Policy: the least rows of a minibatch.")] = 1,
    least_rows: Annotated[int, typer.Option(help="Policy: the least rows of a full gradient.")] = 1,
    code: Code = None,
) -> None:
    """Take part in an experiment as one device."""
    files.parse_address(server, "--server")
    plugins.check_approved(*files.read_tables(experiment), code or ())

    from fedsaddle.app import deploy
    from fedsaddle.cli.progress import Terminal
    from fedsaddle.flower.policy import Policy

    own: Wanted = {"clients": clients, "settings": set_ or [], "code": code or []}
    policy = Policy(most_visits, least_batch, least_rows)
    device = deploy.Device(client, data, folder, policy)
    raise typer.Exit(deploy.join(experiment, server, key, device, Terminal(out), **own))


for _command in (reproduce, board, models.predict, models.export, models.sample, models.rescore, doctor):
    app.command()(_command)


# --- every command ---------------------------------------------------------------------------------------


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
