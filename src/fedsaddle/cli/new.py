"""`fedsaddle new`: the first files of something of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    kind: Annotated[str, typer.Argument(help="algorithm, problem or experiment.")],
    name: Annotated[str, typer.Argument(help="What it shall be called, such as my_rule.")],
    folder: Annotated[Path, typer.Option("--out", help="The folder to write to.")] = Path(),
) -> None:
    """Write a small algorithm, problem or experiment of your own, that runs, and its test."""
    from fedsaddle.app.new import write_skeleton

    written = write_skeleton(kind, name, folder)
    for path in written.paths:
        print(f"wrote    {path}")
    print(f"run it   {written.run}\ntest it  {written.test}")
