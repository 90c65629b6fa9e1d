"""`fedsaddle reproduce`: the paper's figures and tables, and what became of its claims."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedsaddle.cli.options import DeviceOption, Quiet, until_asked
from fedsaddle.errors import BadInput


def reproduce(
    exhibits: Annotated[
        list[str] | None, typer.Argument(help="all, or some: figure-1, table-2, dropout, ... (see --list).")
    ] = None,
    device: DeviceOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where trials are kept.", show_default="runs/paper")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="The page that is written.", show_default="OUT/paper.md")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the trials in that folder.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Stop in time, to go on with --resume.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="All of it in little, on digits.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show what there is, and how long it takes.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's experiments again, draw its figures and tables, and judge what it says."""
    if minutes is not None and not 0 < minutes < float("inf"):
        raise BadInput(f"--minutes must be above 0, got {minutes:g}")
    if page is not None and page.suffix != ".md":
        raise BadInput(f"--page is a page of Markdown: say {page.with_suffix('.md')}, not {page}")
    place = out or Path("runs") / ("paper-quick" if quick else "paper")

    from fedsaddle.app.reproduce import exhibits_named
    from fedsaddle.app.reproduce import reproduce as carried_out
    from fedsaddle.app.run import Way
    from fedsaddle.cli.progress import Terminal
    from fedsaddle.paper.forms import FULL, QUICK

    screen, form = Console() if sys.stdout.isatty() else Console(width=120), QUICK if quick else FULL
    device = device and device.lower()
    if list_:
        _show_estimates(screen, place, quick, device)
        return
    names = exhibits_named(exhibits or [])
    words = ["fedsaddle", "reproduce", *(exhibits or [])]
    words += ["--quick"] * quick + (["--device", device] if device else [])
    words += (["--out", str(out)] if out else []) + (["--page", str(page)] if page else [])
    way = Way(show=Terminal(screen, quiet), asked=until_asked)
    done = carried_out(
        names, out=place, form=form, device=device, resume=resume, minutes=minutes, page=page,
        command=shlex.join(words), way=way,
    )  # fmt: skip
    print(f"claims   {done.told}\npage     {done.page}")
    raise typer.Exit(done.code)


def _show_estimates(screen: Console, out: Path, quick: bool, device: str | None) -> None:
    from fedsaddle.cli.progress import about
    from fedsaddle.paper.forms import FULL, QUICK
    from fedsaddle.paper.pace import estimates

    table = Table(box=box.SIMPLE)
    for column in ("exhibit", "what", "trials done", "left, at most", "by"):
        table.add_column(column)
    for one in estimates(out, QUICK if quick else FULL, device):
        left = (
            about(one.seconds) if one.done < one.trials else "nothing" if one.trials else "cannot be had here"
        )
        by = "" if one.done == one.trials else "what ran here" if one.here else "a guess from elsewhere"
        table.add_row(one.name, one.title, f"{one.done} of {one.trials}", left, by)
    screen.print(table)
    print("exhibits share trials: what one has run, another need not")
