"""`fedsaddle board`: all algorithms on all tasks and fleets, after the same tuning."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedsaddle.cli.options import Sittings, flattened, until_asked

Names = Annotated[list[str] | None, typer.Option(help="Only these, such as cdma-ada,fedavg-m.")]


@flattened
def board(
    sittings: Sittings,
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Only these tasks: quadratic-10, auc-mnist, ... (see --list).")
    ] = None,
    fleet: Annotated[list[str] | None, typer.Option(help="Only these: everybody, paper, latency.")] = None,
    algorithm: Names = None,
    enter: Annotated[
        list[str] | None, typer.Option("--enter", help="An algorithm of yours: my_rule.py:MyRule.")
    ] = None,
    code: Annotated[
        list[Path] | None, typer.Option("--code", help="A Python file of yours that may be run.")
    ] = None,
) -> None:
    """Let all algorithms play all tasks on all fleets, equally tuned, and say who is ahead of whom."""
    from fedsaddle.app.board import Draw, Pick
    from fedsaddle.app.board import board as carried_out
    from fedsaddle.app.run import Way
    from fedsaddle.board.tasks import QUICK_BOARD, WHOLE_BOARD
    from fedsaddle.cli.progress import Terminal

    screen = Console() if sys.stdout.isatty() else Console(width=120)
    place, form = sittings.place("board"), QUICK_BOARD if sittings.quick else WHOLE_BOARD
    chosen = Pick(tasks or (), _split(fleet), _split(algorithm), enter or (), code or ())
    if sittings.list_:
        _show(screen, Draw(form, place, chosen))
        return
    way = Way(show=Terminal(screen, sittings.quiet), asked=until_asked)
    done = carried_out(
        chosen, out=place, form=form, device=sittings.on, resume=sittings.resume, minutes=sittings.minutes,
        jobs=sittings.at_once, page=sittings.page, command=_command(), way=way,
    )  # fmt: skip
    print(f"board    {done.told}\npage     {done.page}\nhtml     {done.html}")
    raise typer.Exit(done.code)


def _split(names: list[str] | None) -> list[str]:
    return [one.strip() for name in names or () for one in name.split(",") if one.strip()]


def _command() -> str:
    """As it was typed, but for what only goes on."""
    words = [word for word in sys.argv[1:] if word != "--resume" and not word.startswith("--minutes=")]
    while "--minutes" in words:
        at = words.index("--minutes")
        del words[at : at + 2]
    return shlex.join(["fedsaddle", *words])


def _show(screen: Console, draw: object) -> None:
    from fedsaddle.app.board import Draw, how_far
    from fedsaddle.cli.progress import about

    assert isinstance(draw, Draw)
    table = Table(box=box.SIMPLE)
    for column in ("task", "what", "fleet", "trials done", "left"):
        table.add_column(column)
    for one in how_far(draw):
        left = "not known yet" if one.seconds is None else about(one.seconds)
        title = draw.form.tasks[one.task].title
        done = f"{one.done} of {one.trials}"
        table.add_row(one.task, title, one.fleet, done, left if one.done < one.trials else "nothing")
    screen.print(table)
    print(f"algorithms: {', '.join(one.label for one in draw.entrants[0])}")
    for name, why in draw.entrants[1].items():
        print(f"not entered: {name}: {why}")
