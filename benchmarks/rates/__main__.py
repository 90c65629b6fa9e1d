"""The theorems about CDMA, measured: `python -m benchmarks.rates T1 T3 T6`.

Without names, all experiments. What has been computed is kept in --folder and never computed again, so a
command that was stopped goes on when it is given again; what a part takes, in seconds of a processor, is kept
with it. Prints verdicts and writes theory-NAME.csv and, where there are curves, theory-NAME.png to --out.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.rates import literal, local
from benchmarks.rates.experiments import EXPERIMENTS, ONLY, Experiment, Size
from benchmarks.rates.picture import draw
from benchmarks.rates.points import Kept, Line, Part, Point, compute, parts_of, read
from benchmarks.rates.verdicts import Curves, Verdict, best, curves_of, judged
from fedsaddle.engine.compile.tapes import cores
from fedsaddle.errors import BadInput

LANES = 64  # that are computed together at most
TABLES: dict[str, Any] = {"T2b": local.verdicts, "T14": literal.verdicts}  # that have no curves


class Way(NamedTuple):
    """How an experiment is run."""

    folder: Path
    jobs: int


class Found(NamedTuple):
    curves: Curves
    tuned: list[list[Line]]
    seconds: float


def carry_out(name: str, parts: Sequence[Part], way: Way, stage: str) -> dict[str, Kept]:
    """What all parts give, computed where it is not there yet."""
    kept = {part.file: found for part in parts if (found := read(part, way.folder)) is not None}
    missing = [part for part in parts if part.file not in kept]
    began = time.monotonic()
    if missing:
        print(f"{name} {stage}: {len(kept)} of {len(parts)} parts are there", file=sys.stderr)
    for number, part in enumerate(_computed(missing, way), start=1):
        found = read(part, way.folder)
        assert found is not None
        kept[part.file] = found
        spent = time.monotonic() - began
        more = f"{spent * (len(missing) - number) / number:.0f} s to go"
        print(
            f"{name} {stage}: part {number} of {len(missing)}, {part.point.curve} ({spent:.0f} s, {more})",
            file=sys.stderr,
        )
    return kept


def _computed(parts: Sequence[Part], way: Way) -> Iterator[Part]:
    """The parts as they are done."""
    if way.jobs == 1 or len(parts) < 2:
        for part in parts:
            compute(part, str(way.folder))
            yield part
        return
    with ProcessPoolExecutor(way.jobs, get_context("spawn")) as pool:
        try:
            asked = {pool.submit(compute, part, str(way.folder)): part for part in parts}
            for done in as_completed(asked):
                done.result()
                yield asked[done]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run(name: str, experiment: Experiment, size: Size, way: Way) -> Found:
    """Choose the best settings with seeds of their own, then measure them with others."""
    points = experiment.points(size)
    tuning = size.tuning if experiment.noisy else ONLY
    alone = all(len(point.settings) == 1 or point.xs for point in points)
    asked = [
        []
        if alone and experiment.noisy
        else parts_of(f"{name}-tune", point, range(len(point.settings)), tuning, LANES)
        for point in points
    ]
    kept = carry_out(name, [part for own in asked for part in own], way, "tuning")
    tuned = [[line for part in own for line in kept[part.file].lines] for own in asked]
    seconds = sum(found.seconds for found in kept.values())
    chosen = [choices(point, lines, experiment) for point, lines in zip(points, tuned, strict=True)]
    lines = tuned
    if experiment.noisy:
        again = [
            [
                part
                for T, numbers in needed(choice).items()
                for part in parts_of(name, point.until(T), numbers, size.seeds, LANES)
            ]
            for point, choice in zip(points, chosen, strict=True)
        ]
        kept = carry_out(name, [part for own in again for part in own], way, "with fresh seeds")
        lines = [[line for part in own for line in kept[part.file].lines] for own in again]
        seconds += sum(found.seconds for found in kept.values())
    return Found(curves_of(points, chosen, lines), tuned, seconds)


def choices(point: Point, lines: Sequence[Line], experiment: Experiment) -> dict[int, int]:
    """The best setting at each T."""
    if len(point.settings) == 1:
        return dict.fromkeys(point.horizons, 0)
    return {T: best(lines, T, experiment.quantity) for T in point.horizons}


def needed(choice: Mapping[int, int]) -> dict[int, list[int]]:
    """The chosen settings by the longest T that each was chosen for: none is played longer."""
    longest: dict[int, int] = {}
    for T, setting in sorted(choice.items()):
        longest[setting] = T
    return {T: sorted(own for own in longest if longest[own] == T) for T in sorted(set(longest.values()))}


# --- what is written --------------------------------------------------------------------------------------


def described(setting: Any) -> str:
    return " ".join(f"{key}={value:.6g}" for key, value in dataclasses.asdict(setting).items())


def write_csv(path: Path, found: Found, points: Sequence[Point]) -> None:
    """A row for each seed at each place; and, with the seeds of tuning, the mean of each setting there."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["curve", "x", "seed", *Line._fields[2:], "setting"])
        for curve, places in found.curves.items():
            for x, place in sorted(places.items()):
                setting = described(place.point.settings[place.setting])
                for line in place.lines:
                    writer.writerow([curve, f"{x:g}", line.seed, *map(rounded, line[2:]), setting])


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """The same for what has no curves; the last value of a row is its setting."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0]._fields)
        writer.writerows([*map(rounded, row[:-1]), described(row[-1])] for row in rows)


def rounded(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def table(verdicts: Sequence[Verdict]) -> str:
    rows = ["| what | found | claimed | verdict |", "|---|---|---|---|"]
    return "\n".join([*rows, *(f"| {' | '.join(verdict)} |" for verdict in verdicts)])


def settings_told(curves: Curves) -> list[str]:
    """Which settings were chosen, and whether a grid ended there."""
    found = []
    for curve, places in curves.items():
        edges = [f"{x:g}" for x, place in sorted(places.items()) if place.edge]
        if edges:
            found.append(f"{curve}: the best setting is the first or last of its grid at {', '.join(edges)}")
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The theorems about CDMA, measured.")
    parser.add_argument("names", nargs="*", metavar="T", help=f"of {', '.join(EXPERIMENTS)}; by default all")
    parser.add_argument("--most", type=int, default=Size().most, help="the longest horizon, in rounds")
    parser.add_argument("--seeds", type=int, default=len(Size().seeds), help="fresh ones, which are reported")
    parser.add_argument("--tuning", type=int, default=len(Size().tuning), help="seeds settings are chosen by")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes; by default one a core")
    parser.add_argument("--folder", type=Path, default=Path("runs/rates"), help="where parts are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    given = parser.parse_args(words)
    unknown = [name for name in given.names if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"nobody knows {unknown[0]}: there are {', '.join(EXPERIMENTS)}")
    if given.most < 128 or min(given.jobs, given.seeds, given.tuning) < 1:
        parser.error("--most must be at least 128, --jobs, --seeds and --tuning at least 1")
    torch.set_num_threads(1)
    size = Size(given.most, tuple(range(100, 100 + given.tuning)), tuple(range(given.seeds)))
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.names or EXPERIMENTS:
        experiment, way = EXPERIMENTS[name], Way(given.folder, given.jobs)
        print(f"\n### {name}: {experiment.claim}\n")
        if name in TABLES:
            began = time.process_time()
            verdicts, rows = TABLES[name](size, way.folder)
            write_rows(given.out / f"theory-{name.lower()}.csv", rows)
            print(table(verdicts))
            print(f"\n{time.process_time() - began:.0f} seconds of a processor, now.")
            continue
        found = run(name, experiment, size, way)
        verdicts = judged(name, found.curves)
        write_csv(given.out / f"theory-{name.lower()}.csv", found, experiment.points(size))
        draw(given.out / f"theory-{name.lower()}.png", experiment, found.curves)
        print(table(verdicts))
        print(f"\n{found.seconds:.0f} seconds of a processor.")
        for line in settings_told(found.curves):
            print(line)


if __name__ == "__main__":
    try:
        main()
    except BadInput as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command goes on") from None
