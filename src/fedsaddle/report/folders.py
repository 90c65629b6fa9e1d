"""The files of a run folder, one by one. Hands and disks damage them, so nothing in them is trusted."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsaddle.errors import BadInput
from fedsaddle.metric import Metric
from fedsaddle.pictures import chosen_lines
from fedsaddle.problem import Detail
from fedsaddle.runs import KEYS, REAL, refuse_constant

HUGE = 1e150  # a seed beyond this is about to diverge; its squares and sums would already be infinite


def damage(place: str, why: str) -> BadInput:
    return BadInput(f"{place} is damaged: {why}; restore the folder from a copy")


def read_experiment(folder: Path) -> dict[str, Any]:
    path = folder / "experiment.json"
    try:
        experiment = json.loads(path.read_bytes(), parse_constant=refuse_constant)
    except OSError:
        raise BadInput(f"{folder} is not a run folder: it has no experiment.json") from None
    except (ValueError, RecursionError):
        raise damage(str(path), "it is not JSON") from None
    kinds = {"name": str, "rounds": int, "seeds": list, "algorithms": dict}
    for key, kind in kinds.items():
        if not isinstance(experiment, dict) or not isinstance(experiment.get(key), kind):
            raise damage(str(path), f"it has no {key}")
    if not all(isinstance(seed, int) for seed in experiment["seeds"]):
        raise damage(str(path), "its seeds are not whole numbers")
    return dict(experiment)


def read_declared(folder: Path, names: Sequence[str]) -> dict[str, Metric]:
    """What the problem has declared of the metrics that there are."""
    path = folder / "metrics.json"
    try:
        told = json.loads(path.read_bytes(), parse_constant=refuse_constant)
        found = {name: Metric(**told[name]) for name in names}
    except FileNotFoundError:
        raise BadInput(
            f"{path} is missing, as in runs of older versions; resuming the run (--resume --out {folder}) "
            "writes it"
        ) from None
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        raise damage(str(path), "it does not declare the metrics of rounds.csv") from None
    if not all(metric.valid for metric in found.values()):
        raise damage(str(path), "what it declares is no metric")
    return found


def read_real(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """What real rows have by the metrics that there are, where a problem says so."""
    path = folder / REAL
    try:
        told = json.loads(path.read_bytes(), parse_constant=refuse_constant)
        return {name: float(value) for name, value in dict(told).items() if name in names}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, TypeError):
        raise damage(str(path), "it does not say what real rows have") from None


def read_table(path: Path) -> tuple[list[str], Iterator[tuple[str, list[str]]]]:
    """The header of a table and its rows, each with where it stands."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise damage(str(path), f"cannot read it ({error.strerror})") from None
    except ValueError:
        raise damage(str(path), "it is not text") from None
    # A row that is being written at this moment, or was when the machine lost its power, is not there yet.
    lines = _lines(path, text[: text.rfind("\n") + 1])
    place, header = next(lines, (str(path), []))
    keys = KEYS[path.name]
    if header and (tuple(header[: len(keys)]) != keys or len(set(header)) != len(header)):
        raise damage(place, f"it should begin with {','.join(keys)}")
    return header, _fitting(lines, len(header))


def _lines(path: Path, text: str) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            yield f"{path} line {reader.line_num}", row
    except csv.Error as error:
        raise damage(f"{path} line {reader.line_num}", str(error)) from None


def _fitting(lines: Iterator[tuple[str, list[str]]], cells: int) -> Iterator[tuple[str, list[str]]]:
    for place, row in lines:
        if len(row) != cells:
            raise damage(place, f"it has {len(row)} cells, not {cells}")
        yield place, row


def count_of(cell: str, place: str) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) < 20):
        raise damage(place, f"'{cell[:40]}' is not a count")
    return int(cell)


def number_of_cell(cell: str, place: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise damage(place, f"'{cell[:40]}' is not a finite number")
    return min(max(value, -HUGE), HUGE)


# --- what problems tell and show beside their metrics ------------------------------------------------------


@dataclass(frozen=True)
class Pictures:
    """What the first seed of an algorithm has learnt to make: PNG files."""

    last: bytes
    round: int  # of the last
    over_rounds: bytes
    rounds: list[int]  # of its lines
    real: bytes | None = None  # what it was to learn


def read_pictures(folder: Path, label: str) -> Pictures | None:
    """The samples of an algorithm, if it makes any."""
    rounds = sorted(
        int(path.stem.removeprefix(f"{label}-"))
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.name.startswith(f"{label}-") and path.suffix == ".png"
        if path.stem.removeprefix(f"{label}-").isdecimal()
    )
    over, real = folder / f"{label}-rounds.png", folder / "real.png"
    if not rounds or not over.is_file():
        return None
    files = (folder / f"{label}-{rounds[-1]}.png", over)
    try:
        last, lines = (path.read_bytes() for path in files)
        originals = real.read_bytes() if real.is_file() else None
    except OSError as error:
        raise damage(str(folder), f"cannot read its pictures ({error.strerror})") from None
    return Pictures(last, rounds[-1], lines, [rounds[at] for at in chosen_lines(len(rounds))], originals)


MOST_ROWS = 5_000  # of one detail; a page need not hold more


def read_details(folder: Path, label: str) -> dict[int, dict[str, Detail]]:
    """What the problem has told of each seed's end, if it tells anything."""
    path = folder / "details" / f"{label}.json"
    try:
        told = json.loads(path.read_bytes(), parse_constant=refuse_constant)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        if "/" in label or len(label) > 200:  # such a label is no file's name
            return {}
        raise damage(str(path), f"cannot read it ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise damage(str(path), "it is not JSON") from None
    try:
        found = {
            int(seed): {str(title): Detail(**own) for title, own in details.items()}
            for seed, details in told.items()
        }
        sound = all(detail.valid for own in found.values() for detail in own.values())
    except (TypeError, ValueError, AttributeError):
        sound = False
    if not sound:
        raise damage(str(path), "what it tells cannot be drawn")
    short = {}
    for seed, own in found.items():
        short[seed] = {title: one for title, one in own.items() if one.length <= MOST_ROWS}
    return short
