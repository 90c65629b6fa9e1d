"""The commands that use what was trained: scores of new rows, a file for others, pictures."""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsaddle.border.trained import ALL, check_format, which_generator, which_model
from fedsaddle.cli.options import Code, DeviceOption, Only, Set
from fedsaddle.errors import BadInput, check_count, check_seed

RunArgument = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")]
Whose = Annotated[str | None, typer.Option(help="Whose model, if there are several.")]
SeedOption = Annotated[int | None, typer.Option(help="Of which seed, if there are several.")]
BestOption = Annotated[
    bool, typer.Option("--best", help="That of the best evaluation on validation rows, not the last.")
]
_WRITTEN = {".csv": "scores", ".png": "pictures"}
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]


def predict(
    run: RunArgument,
    data: Annotated[Path, typer.Argument(help="New rows, a .csv or .npz file as the one learnt from.")],
    file: Annotated[Path | None, typer.Option("--out", help="A CSV file; without it, the terminal.")] = None,
    algorithm: Whose = None,
    seed: Annotated[str | None, typer.Option(help="Of which seed; all: the mean over all.")] = None,
    best: BestOption = False,
    code: Code = None,
    force: Force = False,
) -> None:
    """Score new rows with a trained model, scaled as the rows that it has learnt from."""
    which_model(run, algorithm, seed if seed is None or seed.lower() != ALL else ALL, best)
    if not os.path.isfile(data):
        raise BadInput(f"cannot read the table {data}: there is no such file")
    _check_place(file, force, ".csv", data)

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
    force: Force = False,
) -> None:
    """Write a trained model for use without FedSaddle: torch.export, ONNX or safetensors."""
    check_format(to)
    which_model(run, algorithm, seed, best)
    _check_place(to, force, option="--to")

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
    force: Force = False,
) -> None:
    """Let a GAN's generator make pictures."""
    check_count("--count", count, most=10_000)
    check_seed("--seed-noise", seed_noise)
    which_generator(run, algorithm, seed, best)
    _check_place(file, force, ".png")

    from fedsaddle.app import models

    _write(file, models.sample(run, count, algorithm, seed, best, seed_noise))
    print(f"pictures {file}")


def rescore(
    run: RunArgument,
    set_: Set = None,
    algorithm: Only = None,
    file: Annotated[Path | None, typer.Option("--out", help="A CSV file with all metrics.")] = None,
    device: DeviceOption = None,
    code: Code = None,
    force: Force = False,
) -> None:
    """Judge again what a run has trained, such as with --set problem.judge_epochs=60; nothing is trained."""
    if not os.path.isfile(run / "checkpoint.json"):
        raise BadInput(f"{run} is not the folder of a run: it has no checkpoint.json")
    _check_place(file, force, ".csv")

    from fedsaddle.app.rescore import rescore as judge_again

    chosen = [name.strip() for names in algorithm or () for name in names.split(",")]
    found = judge_again(run, set_ or (), chosen, device and device.lower(), code or ())
    rows = [(one.algorithm, str(one.seed), one.before, one.now) for one in found.lanes]
    if found.real_now:
        rows.append(("real rows", "", found.real_before, found.real_now))
    print(f"{found.metric} of each seed's last point\n{'algorithm':<24}{'seed':>6}{'before':>10}{'now':>10}")
    for name, seed, *scores in rows:
        before, now = (f"{one[found.metric]:.4g}" if found.metric in one else "" for one in scores)
        print(f"{name:<24}{seed:>6}{before:>10}{now:>10}")
    if file is not None:
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["algorithm", "seed", "metric", "before", "now"])
        for name, seed, was, scored in rows:
            lines.writerows([name, seed, key, was.get(key, ""), value] for key, value in scored.items())
        _write(file, text.getvalue().encode())
        print(f"scores   {file}")


def _check_place(
    file: Path | None, force: bool, suffix: str = "", rows: Path | None = None, option: str = "--out"
) -> None:
    """Refuse where nothing can be written, or something would be lost, before anything is computed."""
    if file is None:
        return
    if os.path.isdir(file):
        raise BadInput(f"{file} is a folder: name a file in it")
    if os.path.exists(file) and not os.path.isfile(file):
        return  # a pipe, or a terminal
    if suffix and file.suffix.lower() != suffix:
        raise BadInput(f"{option} {file}: {_WRITTEN[suffix]} are written as {suffix}")
    if not os.path.isdir(file.parent):
        raise BadInput(f"cannot write {file}: there is no folder {file.parent}")
    if rows is not None and os.path.exists(file) and os.path.samefile(file, rows):
        raise BadInput(f"{file} is the table of the rows that are scored: choose another {option}")
    for folder in Path(os.path.realpath(file)).parents:
        if os.path.exists(folder / "checkpoint.json"):
            raise BadInput(f"{file} lies in {folder}, which is the folder of a run: choose another {option}")
    if os.path.lexists(file) and not force:
        raise BadInput(f"{file} is there already: choose another {option}, or write over it with --force")


def _write(file: Path, data: bytes) -> None:
    from fedsaddle.runs import write_atomically

    write_atomically(file, data)
