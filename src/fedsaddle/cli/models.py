"""The commands that use what was trained: scores of new rows, a file for others, pictures."""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsaddle.border.trained import ALL, check_format, which_model
from fedsaddle.cli.options import Code
from fedsaddle.errors import BadInput, check_count, check_seed

RunArgument = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")]
Whose = Annotated[str | None, typer.Option(help="Whose model, if there are several.")]
SeedOption = Annotated[int | None, typer.Option(help="Of which seed, if there are several.")]
BestOption = Annotated[
    bool, typer.Option("--best", help="That of the best evaluation on validation rows, not the last.")
]


def predict(
    run: RunArgument,
    data: Annotated[Path, typer.Argument(help="New rows, a .csv or .npz file as the one learnt from.")],
    file: Annotated[Path | None, typer.Option("--out", help="A CSV file; without it, the terminal.")] = None,
    algorithm: Whose = None,
    seed: Annotated[str | None, typer.Option(help="Of which seed; all: the mean over all.")] = None,
    best: BestOption = False,
    code: Code = None,
) -> None:
    """Score new rows with a trained model, scaled as the rows that it has learnt from."""
    which_model(run, algorithm, seed if seed is None or seed.lower() != ALL else ALL, best)
    if not os.path.isfile(data):
        raise BadInput(f"cannot read the table {data}: there is no such file")
    _check_place(file)

    from fedsaddle.app import models

    found = models.predict(run, data, algorithm, seed and seed.lower(), best, code or ())
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(found.header)
    for row in found.rows:
        lines.writerow([f"{cell:.9g}" if isinstance(cell, float) else cell for cell in row])
    if file is None:
        sys.stdout.write(text.getvalue())
        sys.stdout.flush()
    else:
        _write(file, text.getvalue().encode())
        print(f"scores   {file}")


def export(
    run: RunArgument,
    to: Annotated[Path, typer.Option("--to", help="MODEL.pt2, MODEL.onnx or MODEL.safetensors.")],
    algorithm: Whose = None,
    seed: SeedOption = None,
    best: BestOption = False,
    role: Annotated[str | None, typer.Option(help="Which network, such as discriminator.")] = None,
    code: Code = None,
) -> None:
    """Write a trained model for use without FedSaddle: torch.export, ONNX or safetensors."""
    check_format(to)
    which_model(run, algorithm, seed, best)
    _check_place(to)

    from fedsaddle.app import models

    made = models.export(run, to, algorithm, seed, best, role, code or ())
    print(f"model    {made.path}\ntakes    {made.takes}\ngives    {made.gives}")


def sample(
    run: RunArgument,
    count: Annotated[int, typer.Option(help="How many pictures.")] = 64,
    file: Annotated[Path, typer.Option("--out", help="A PNG file.")] = Path("grid.png"),
    algorithm: Whose = None,
    seed: SeedOption = None,
    best: BestOption = False,
    seed_noise: Annotated[int, typer.Option(help="What the noise is drawn from.")] = 0,
) -> None:
    """Let a GAN's generator make pictures."""
    check_count("--count", count, most=10_000)
    check_seed("--seed-noise", seed_noise)
    if file.suffix.lower() != ".png":
        raise BadInput(f"--out {file}: pictures are written as .png")
    which_model(run, algorithm, seed, best)
    _check_place(file)

    from fedsaddle.app import models

    _write(file, models.sample(run, count, algorithm, seed, best, seed_noise))
    print(f"pictures {file}")


def _check_place(file: Path | None) -> None:
    """Refuse where nothing can be written, before anything is computed."""
    if file is not None and os.path.isdir(file):
        raise BadInput(f"{file} is a folder: name a file in it")
    if file is not None and not os.path.isdir(file.parent):
        raise BadInput(f"cannot write {file}: there is no folder {file.parent}")


def _write(file: Path, data: bytes) -> None:
    from fedsaddle.runs import write_atomically

    write_atomically(file, data)
