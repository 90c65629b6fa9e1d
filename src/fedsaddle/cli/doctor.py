"""`fedsaddle doctor`: what is wrong or slow here."""

from __future__ import annotations

import sys

import typer


def doctor() -> None:
    """Look at versions, devices, data and folders: what is wrong or slow here, and what to do."""
    from rich.console import Console

    from fedsaddle.app.doctor import examine

    out = Console() if sys.stdout.isatty() else Console(width=120)
    styles = {"ok": "green", "note": "yellow", "problem": "bold red"}
    wrong = 0
    for line in examine():
        wrong += line.kind == "problem"
        out.print(f"{line.kind:<8} ", style=styles[line.kind], end="")
        todo = f"; {line.todo}" if line.todo else ""
        out.print(f"{line.what:<18} {line.told}{todo}", highlight=False, markup=False, soft_wrap=True)
    if wrong:
        print(f"{wrong} problem{'s' * (wrong > 1)}")
    raise typer.Exit(1 if wrong else 0)
