"""How fast: `make bench`, or `python -m benchmarks --device cuda`.

In one run, on the same model, clients, cohorts and minibatches: this engine with one lane and with many, the
plain loop (plain.py), pfl-research and Flower's simulation. Each contender is a process of its own; they take
turns, `--repeats` times. What counts is the median over all timed rounds. CDMA-ADA is compared with the plain
loop; the rivals' own rule is local SGD, so they are compared on CDMA-NC, which is that.

`seconds_per_round` is for all lanes together. `ratio_to_loop` is how much faster than the plain loop, which
would play the lanes one after another: loop's seconds x lanes / seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import rivals
from benchmarks.figure import draw
from benchmarks.work import WARM
from benchmarks.workloads import WORKLOADS, Workload, write
from fedsaddle.environment import here

ABSENT = "absent"


class Line(NamedTuple):
    """One row of the table."""

    workload: str
    contender: str  # engine, loop, pfl or flower
    lanes: int
    seconds_per_round: float | str
    ratio_to_loop: float | str
    peak_memory_mb: float | str
    metric_after: float | str


class Contender(NamedTuple):
    name: str
    lanes: int
    words: list[str]  # the command, without the folder and the device


def contenders(workload: Workload, pythons: dict[str, Path | None]) -> list[Contender]:
    """Who takes part, the plain loop first. A rival without an environment has no command."""
    found = [Contender("loop", 1, [sys.executable, "-m", "benchmarks.plain"])] if workload.loop else []
    own = [sys.executable, "-m", "benchmarks.engine"]
    found += [Contender("engine", lanes, own) for lanes in workload.lanes]
    if workload.rivals:
        for name, python in pythons.items():
            words = [str(python), "-m", f"benchmarks.{name}_contender"] if python else []
            found.append(Contender(name, 1, words))
    return found


def ask(contender: Contender, workload: Workload, folder: Path, device: str) -> dict[str, Any] | None:
    """What a contender's process answers; None if it failed."""
    words = [*contender.words, str(folder), device]
    if contender.name == "engine":
        words += [workload.name, str(contender.lanes)]
    settings = {**os.environ, **rivals.SETTINGS, "PYTHONPATH": f"src{os.pathsep}."}
    told = subprocess.run(words, capture_output=True, text=True, env=settings)
    if told.returncode:
        print(f"{contender.name} failed: {(told.stderr.strip().splitlines() or ['?'])[-1]}", flush=True)
        return None
    answer: dict[str, Any] = json.loads(told.stdout.strip().splitlines()[-1])
    x, y = (torch.from_numpy(np.load(folder / f"end-{player}.npy")) for player in "xy")
    return answer | {"metric": workload.judge(x, y)}


def measure(
    workload: Workload, pythons: dict[str, Path | None], device: str, rounds: int, repeats: int
) -> list[Line]:
    """All contenders on one workload."""
    folder = rivals.CACHE / "order"
    shutil.rmtree(folder, ignore_errors=True)
    write(workload, folder, WARM + rounds * workload.times)
    entered = contenders(workload, pythons)
    answers: list[list[dict[str, Any]]] = [[] for _ in entered]
    for _ in range(repeats):
        for contender, own in zip(entered, answers, strict=True):
            answer = ask(contender, workload, folder, device) if contender.words else None
            own += [answer] if answer else []

    lines, loop = [], None
    for contender, own in zip(entered, answers, strict=True):
        if not own:
            lines.append(Line(workload.name, contender.name, contender.lanes, ABSENT, "", "", ""))
            continue
        seconds = statistics.median(second for answer in own for second in answer["seconds"])
        loop = seconds if contender.name == "loop" else loop
        ratio = loop * contender.lanes / seconds if loop else ""
        memory, metric = max(answer["memory"] for answer in own), own[0]["metric"]
        lines.append(
            Line(workload.name, contender.name, contender.lanes, seconds, ratio, round(memory), metric)
        )
    return [
        Line(*(float(f"{value:.5g}") if isinstance(value, float) else value for value in line))
        for line in lines
    ]


def show(lines: list[Line]) -> None:
    """The table, with how much faster one lane of the engine is than each."""
    one = {line.workload: line.seconds_per_round for line in lines if line[1:3] == ("engine", 1)}
    print(f"{'workload':26}{'contender':>10}{'lanes':>6}{'ms/round':>10}{'x loop':>8}{'engine':>8}", end="")
    print(f"{'MB':>7}  metric after")
    for line in lines:
        seconds, ratio, base = line.seconds_per_round, line.ratio_to_loop, one.get(line.workload)
        told = f"{1e3 * seconds:.2f}" if isinstance(seconds, float) else seconds
        against = (
            f"{seconds / line.lanes / base:.2f}"
            if isinstance(seconds, float) and isinstance(base, float)
            else ""
        )
        faster = f"{ratio:.2f}" if isinstance(ratio, float) else ""
        print(
            f"{line.workload:26}{line.contender:>10}{line.lanes:>6}{told:>10}{faster:>8}{against:>8}", end=""
        )
        print(f"{line.peak_memory_mb:>7}  {line.metric_after}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workload", action="append", help="those whose name contains this; may be repeated")
    parser.add_argument(
        "--rounds",
        type=int,
        default=10,
        help="timed rounds of each process; ten times as many, if they are short",
    )
    parser.add_argument("--repeats", type=int, default=3, help="times that the contenders take turns")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()

    chosen = [
        workload
        for workload in WORKLOADS
        if (any(part in workload.name for part in given.workload) if given.workload else True)
        and (workload.only in (None, given.device) or given.workload)
    ]
    if not chosen:
        parser.error(f"no such workload; known: {', '.join(workload.name for workload in WORKLOADS)}")
    wanted = any(workload.rivals for workload in chosen)
    pythons = {name: rivals.environment(name) for name in rivals.REQUIREMENTS} if wanted else {}
    given.out.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"command": " ".join(["python -m benchmarks", *sys.argv[1:]]), **here()}
    if given.device == "cuda":
        about["gpu"] = torch.cuda.get_device_name()
    about["rivals"] = {
        name: rivals.REQUIREMENTS[name] if python else ABSENT for name, python in pythons.items()
    }
    about["load_before"] = list(os.getloadavg())
    print(json.dumps(about, indent=1), flush=True)
    lines: list[Line] = []
    for workload in chosen:
        lines += measure(workload, pythons, given.device, given.rounds, given.repeats)
        show([line for line in lines if line.workload == workload.name])
        about["load_after"] = list(os.getloadavg())
        # After each workload, so that a run that is stopped leaves what it has.
        with (given.out / f"{given.device}.csv").open("w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(Line._fields)
            table.writerows(lines)
        (given.out / f"{given.device}.json").write_text(json.dumps(about, indent=1) + "\n")
    draw(lines, given.out / f"{given.device}.png", given.device)


if __name__ == "__main__":
    main()
