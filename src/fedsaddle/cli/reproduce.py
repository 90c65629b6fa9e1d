"""`fedsaddle reproduce`: the paper's figures and tables, and what became of its claims."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedsaddle.border.slips import EVERYTHING, exhibits_named
from fedsaddle.cli.options import Sittings, flattened, until_asked


@flattened
def reproduce(
    sittings: Sittings,
    exhibits: Annotated[
        list[str] | None, typer.Argument(help="all, or some: figure-1, table-2, dropout, ... (see --list).")
    ] = None,
) -> None:
    """Run the paper's experiments again, draw its figures and tables, and judge what it says."""
    place, device = sittings.place("paper"), sittings.on
    names = exhibits_named(exhibits or [EVERYTHING] * sittings.list_)

    from fedsaddle.app.reproduce import reproduce as carried_out
    from fedsaddle.app.run import Way
    from fedsaddle.cli.progress import Terminal
    from fedsaddle.paper.forms import FULL, QUICK

    screen = Console() if sys.stdout.isatty() else Console(width=120)
    if sittings.list_:
        _show_estimates(screen, names if exhibits else [*names, EVERYTHING], place, sittings.quick, device)
        return
    words = ["fedsaddle", "reproduce", *(exhibits or [])]
    words += ["--quick"] * sittings.quick + (["--device", device] if device else [])
    for option, given in (("--out", sittings.folder), ("--page", sittings.page), ("--jobs", sittings.jobs)):
        words += [] if given is None else [option, str(given)]
    way = Way(show=Terminal(screen, sittings.quiet), asked=until_asked)
    done = carried_out(
        names, out=place, form=QUICK if sittings.quick else FULL, device=device, resume=sittings.resume,
        minutes=sittings.minutes, jobs=sittings.at_once, page=sittings.page,
        command=shlex.join(words), way=way,
    )  # fmt: skip
    print(f"claims   {done.told}\npage     {done.page}")
    raise typer.Exit(done.code)


def _show_estimates(
    screen: Console, names: Sequence[str], out: Path, quick: bool, device: str | None
) -> None:
    from fedsaddle.cli.progress import about
    from fedsaddle.paper.forms import FULL, QUICK
    from fedsaddle.paper.pace import estimates

    table = Table(box=box.SIMPLE)
    for column in ("exhibit", "what", "trials done", "left, at most", "by"):
        table.add_column(column)
    for one in (one for one in estimates(out, QUICK if quick else FULL, device) if one.name in names):
        left = (
            about(one.seconds) if one.done < one.trials else "nothing" if one.trials else "cannot be had here"
        )
        by = "" if one.done == one.trials else "what ran here" if one.here else "a guess from elsewhere"
        table.add_row(one.name, one.title, f"{one.done} of {one.trials}", left, by)
    screen.print(table)
    print("exhibits share trials: what one has run, another need not")
