"""Which remedy keeps runs with long steps alive: `python -m benchmarks.steady --device cuda`.

Every remedy at each of its strengths, for two corrected algorithms and an uncorrected one, with the steps of
the experiment; all seeds are lanes. Each is a run in a folder of its own, so what was stopped goes on, and
what is done is not done again. Training rows are kept from the clients (`problem.validation_share`): of each
remedy the strength is chosen by them alone, and a seed is dead if it ends at chance on them, or diverged.
Writes NAME.csv, a line for each seed, and NAME.md, a page with the tables, to docs/results or to the folder
that is named. On two cores take `--experiment auc-digits` with a `--set` for steps that are too long.
"""

from __future__ import annotations

import argparse
import csv
import math
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks import provenance
from fedsaddle.app.run import Way, run
from fedsaddle.report.reading import Run, read_run
from fedsaddle.report.spent import Spent

ALGORITHMS = ("cdma-one", "cdma-ada", "cdma-nc")
BY, TOLD = "validation_auc", "test_auc"
STRATA = "sampling={strata='positive'}"
# What is tried, by what it does: each strength by the settings that make it.
REMEDIES: dict[str, dict[str, list[str]]] = {
    "none": {"": []},
    "clipped steps": {f"{most:g}": [f"steady.clip={most}"] for most in (0.01, 0.03, 0.1, 0.3)},
    "bounded walks": {f"{most:g}": [f"steady.reach={most}"] for most in (0.1, 0.3, 1.0)},
    "clipped collected gradients": {
        f"{most:g}": [f"merge.clip={{gradients={most}}}"] for most in (0.03, 0.1, 0.3)
    },
    "warm-up": {str(rounds): [f"steady.warmup={rounds}"] for rounds in (20, 100)},
    "larger first cohorts": {str(clients): [f"quorum.collect={clients}"] for clients in (16, 32)},
    "strata": {"": [STRATA]},
    "strata, larger first cohorts": {
        str(clients): [STRATA, f"quorum.collect={clients}"] for clients in (16, 32)
    },
}


class Line(NamedTuple):
    """One seed."""

    algorithm: str
    remedy: str
    strength: str
    seed: int
    dead: bool
    validation_auc: float  # at the end, or where it diverged
    test_auc: float
    floats_up: int


class Place(NamedTuple):
    """All seeds of an algorithm with one strength of a remedy."""

    strength: str
    lines: list[Line]

    @property
    def dead(self) -> int:
        return sum(line.dead for line in self.lines)

    def mean(self, metric: str) -> float:
        return fmean(getattr(line, metric) for line in self.lines)

    def worst(self, metric: str) -> float:
        return min(getattr(line, metric) for line in self.lines)


def interval(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval for a part of which so many were counted."""
    part, room = hits / of, z * z / of
    half = z * math.sqrt(part * (1 - part) / of + room / (4 * of))
    return tuple(max(0.0, min(1.0, (part + room / 2 + way) / (1 + room))) for way in (-half, half))  # type: ignore[return-value]


def lines_of(found: Run, remedy: str, strength: str) -> Iterator[Line]:
    for series in found.series:
        for lane in series.lanes:
            end = lane.points[-1]
            values = end.metrics
            dead = bool(lane.diverged) or found.metrics[BY].collapsed(values[BY])
            yield Line(
                series.label, remedy, strength, lane.seed, dead, values[BY], values[TOLD], end.floats_up
            )


def folder_of(given: argparse.Namespace, remedy: str, strength: str) -> Path:
    called = "-".join((remedy + " " + strength).replace(",", "").split())
    return Path(given.runs / given.experiment / called)


def measure(given: argparse.Namespace, remedy: str, strength: str, settings: list[str]) -> list[Line]:
    """All seeds of all algorithms, as far as they are not there already."""
    folder = folder_of(given, remedy, strength)
    run(
        given.experiment,
        Way(folder, resume=(folder / "checkpoint.json").exists(), tensorboard=False),
        algorithms=ALGORITHMS,
        rounds=given.rounds,
        seeds=given.seeds,
        device=given.device,
        settings=[f"problem.validation_share={given.share}", *given.set, *settings],
    )
    return list(lines_of(read_run(folder), remedy, strength))


def places_of(lines: Sequence[Line], algorithm: str, remedy: str) -> list[Place]:
    """The strengths of a remedy, the best first: by dead seeds, then by the mean, on validation rows."""
    own = [line for line in lines if (line.algorithm, line.remedy) == (algorithm, remedy)]
    strengths = dict.fromkeys(line.strength for line in own)
    places = [Place(one, [line for line in own if line.strength == one]) for one in strengths]
    return sorted(places, key=lambda place: (place.dead, -place.mean(BY)))


def table(lines: Sequence[Line], algorithm: str) -> str:
    """A row for each remedy, at the strength that validation rows choose; in Markdown."""
    out = [
        "| remedy | strength (tried) | dead seeds (95 % interval) | validation AUC, mean, worst "
        "| test AUC, mean, worst | floats up |",
        "|---|---|---|---|---|---|",
    ]
    for remedy in dict.fromkeys(line.remedy for line in lines):
        places = places_of(lines, algorithm, remedy)
        if not places:
            continue
        best = places[0]
        low, high = interval(best.dead, len(best.lines))
        out.append(
            f"| {remedy} | {best.strength or '-'} ({len(places)}) "
            f"| {best.dead} of {len(best.lines)} ({low:.0%} to {high:.0%}) "
            f"| {best.mean(BY):.4f}, {best.worst(BY):.4f} | {best.mean(TOLD):.4f}, {best.worst(TOLD):.4f} "
            f"| {best.mean('floats_up') / 1e6:.1f} M |"
        )
    return "\n".join(out)


def chosen(lines: Sequence[Line], algorithm: str) -> str:
    """What validation rows choose of everything that was tried, in words and as settings."""
    tried = dict.fromkeys(line.remedy for line in lines)
    best = {remedy: places[0] for remedy in tried if (places := places_of(lines, algorithm, remedy))}
    remedy = min(best, key=lambda one: (best[one].dead, -best[one].mean(BY)))
    strength = best[remedy].strength
    settings = " ".join(f"`--set {one}`" for one in REMEDIES[remedy][strength])
    return f"- {algorithm}: {remedy} {strength}".rstrip() + (f", {settings}" if settings else "")


def page(lines: Sequence[Line], given: argparse.Namespace, words: Sequence[str], spent: Spent) -> str:
    command = shlex.join(["python", "-m", "benchmarks.steady", *words])
    parts = [
        f"# Remedies for long steps: {given.experiment}",
        f"Measured at commit {provenance.commits(spent, given)} by:",
        f"    {command}",
        "Of each remedy the strength with the fewest dead seeds is shown, then with the highest mean, both "
        "on validation rows. A seed is dead if its validation AUC ends at chance (0.6), or if it diverged; "
        f"it stays in the means. Intervals are Wilson's. Test rows chose nothing. "
        f"{spent.seconds:.0f} seconds. Each seed of each strength: [{given.name}.csv]({given.name}.csv).",
        *(f"## {name}\n\n{table(lines, name)}" for name in ALGORITHMS),
        "## What validation rows choose\n\n" + "\n".join(chosen(lines, name) for name in ALGORITHMS),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steady", description="Which remedy keeps runs with long steps alive."
    )
    parser.add_argument("--experiment", default="auc-mnist", help="such as auc-mnist or auc-cifar10")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seeds", default="0-19")
    parser.add_argument("--device", default=None)
    parser.add_argument("--share", type=float, default=0.1, help="of the training rows, to choose by")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as fedsaddle run")
    parser.add_argument("--name", default=None, help="of the files that are written")
    parser.add_argument("--runs", type=Path, default=Path("runs/steady"), help="where runs are, and go on")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    provenance.add_commit(parser)
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = parser.parse_args(words)
    provenance.check_commit(parser, given)
    given.name = given.name or f"steady-{given.experiment.removeprefix('auc-')}"
    given.out.mkdir(parents=True, exist_ok=True)
    lines: list[Line] = []
    try:
        for remedy, strengths in REMEDIES.items():
            for strength, settings in strengths.items():
                began = time.monotonic()
                lines += measure(given, remedy, strength, settings)
                print(f"{remedy} {strength}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        raise SystemExit(130) from None
    with (given.out / f"{given.name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Line._fields)
        writer.writerows(line._replace(dead=int(line.dead)) for line in lines)
    spent = provenance.spent_in(
        folder_of(given, remedy, strength) for remedy, strengths in REMEDIES.items() for strength in strengths
    )
    text = page(lines, given, words, spent)
    (given.out / f"{given.name}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
