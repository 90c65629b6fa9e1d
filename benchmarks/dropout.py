"""What dropout costs, and what inviting more than are needed buys: `python -m benchmarks.dropout`.

One algorithm of an AUC experiment, on the latency fleet with a deadline, at five rates of dropout and three
of over-invitation: the server needs S answers, invites ceil(S times over-invitation) clients, goes on with
the first S, at the deadline with half of them, and abandons the round below that. Prints a table, and writes
NAME.csv and NAME.png to docs/results, or to the folder that is named. `--device cuda` takes minutes; on two
cores take `--experiment auc-mnist-small`. Three devices in ten are slow, whatever they hold; with `--slow
positives` those are slow that hold a row of the class to be found.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")  # no screen is needed to write a file

from matplotlib import pyplot as plt

from fedsaddle.border.build import load
from fedsaddle.engine import machine
from fedsaddle.engine.course import Row, course, traffic

DROPOUTS = (0.0, 0.1, 0.3, 0.5, 0.7)
OVER = (1.0, 1.3, 2.0)
DEADLINE = 60.0  # seconds; a slow device's median is 40


class Line(NamedTuple):
    """One seed of one place in the table."""

    dropout: float
    over_invitation: float
    seed: int
    test_auc: float  # after the last round
    hours: float  # simulated, for all rounds
    hours_to_target: float  # until the test AUC was first there; empty if never
    completed: int  # rounds that were not abandoned
    floats_up: int
    wasted_floats: int  # sent up and not used
    floats_down: int


def measure(given: argparse.Namespace, dropout: float, over: float) -> list[Line]:
    """All seeds, as lanes."""
    fleet = ["fleet.model=latency", "fleet.median=10.0", "fleet.spread=0.5", f"fleet.slow={given.slow}"]
    settings = [
        *fleet,
        "fleet.slowdown=4.0",
        f"fleet.dropout={dropout}",
        f"algorithms.{given.algorithm}.invite={math.ceil(over * given.enough - 1e-9)}",
        f"quorum.enough={given.enough}",
        f"quorum.minimum={max(1, given.enough // 2)}",
        f"quorum.deadline={DEADLINE}",
    ]
    plan = load(
        given.experiment,
        algorithms=[given.algorithm],
        rounds=given.rounds,
        seeds=given.seeds,
        device=given.device,
        settings=settings,
    )
    machine.prepare(plan.resolved["threads"], plan.resolved["tf32"])
    study = plan.studies[given.algorithm]
    rows: dict[int, list[Row]] = {}
    for stop in course(study, plan.rounds, plan.evaluate_every):
        for row in stop.rows:
            rows.setdefault(row.lane, []).append(row)
    lines = []
    for lane, own in rows.items():
        reached = [row.time_simulated for row in own if row.metrics["test_auc"] >= given.target]
        late = sum(
            floats
            for flow, floats in traffic(study, stop.lanes, lane).items()
            if flow.direction in ("late", "refused")
        )
        end = own[-1]
        lines.append(
            Line(
                dropout,
                over,
                end.seed,
                end.metrics["test_auc"],
                end.time_simulated / 3600,
                min(reached, default=math.nan) / 3600,
                stop.lanes.completed[lane],
                end.floats_up,
                late,
                end.floats_down,
            )
        )
    return lines


def holders(experiment: str, algorithm: str) -> str:
    """Who holds a positive row: for each client 1, or 0."""
    problem: Any = load(experiment, algorithms=[algorithm], device="cpu").studies[algorithm].problem
    held = problem.federation
    counts = [int(part.sum()) for part in held.rows["positive"].split(held.sizes.tolist())]
    return str([float(count > 0) for count in counts])


def table(lines: Sequence[Line], target: float, rounds: int) -> str:
    """Means over the seeds, in Markdown."""
    out = [
        f"| dropout | over-invitation | test AUC | completed of {rounds} | simulated hours "
        f"| hours to {target:g} | floats up used | wasted | floats down |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for dropout in DROPOUTS:
        for over in OVER:
            own = [line for line in lines if (line.dropout, line.over_invitation) == (dropout, over)]
            if not own:
                continue
            auc = [line.test_auc for line in own]
            there = [line.hours_to_target for line in own if not math.isnan(line.hours_to_target)]
            spread = f" ± {statistics.stdev(auc):.4f}" if len(auc) > 1 else ""
            some = f" ({len(there)} of {len(own)})" if 0 < len(there) < len(own) else ""
            when = f"{statistics.fmean(there):.2f}{some}" if there else "never"
            means = [
                statistics.fmean(getattr(line, what) for line in own)
                for what in ("completed", "hours", "floats_up", "wasted_floats", "floats_down")
            ]
            completed, hours, up, wasted, down = means
            share = wasted / (wasted + up) if wasted + up else 0.0
            out.append(
                f"| {dropout:.0%} | {over:g} | {statistics.fmean(auc):.4f}{spread} | {completed:.0f} "
                f"| {hours:.2f} | {when} | {up / 1e6:.1f} M | {wasted / 1e6:.1f} M ({share:.0%}) "
                f"| {down / 1e6:.0f} M |"
            )
    return "\n".join(out)


def draw(lines: Sequence[Line], path: Path, target: float) -> None:
    """Means over the seeds against dropout, a line for each over-invitation; bands from worst to best."""
    panels = {
        "test AUC after the last round": lambda line: line.test_auc,
        f"simulated hours to {target:g}": lambda line: line.hours_to_target,
        "simulated hours in all": lambda line: line.hours,
        "wasted floats, millions": lambda line: line.wasted_floats / 1e6,
    }
    figure, places = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.4), layout="constrained")
    for place, (title, value) in zip(places, panels.items(), strict=True):
        for over in OVER:
            means, lows, highs, rates = [], [], [], []
            for dropout in DROPOUTS:
                own = [
                    value(line) for line in lines if (line.dropout, line.over_invitation) == (dropout, over)
                ]
                own = [number for number in own if not math.isnan(number)]
                if own:
                    rates.append(100 * dropout)
                    means.append(statistics.fmean(own))
                    lows.append(min(own))
                    highs.append(max(own))
            (drawn,) = place.plot(rates, means, "o-", label=f"{over:g} times as many invited")
            place.fill_between(rates, lows, highs, alpha=0.15, color=drawn.get_color())
        place.set_title(title, fontsize="medium")
        place.set_xlabel("dropout, %")
        place.grid(alpha=0.3)
    places[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What dropout costs, and what over-invitation buys.")
    parser.add_argument("--experiment", default="auc-mnist-steady")
    parser.add_argument("--algorithm", default="cdma-ada")
    parser.add_argument("--enough", type=int, default=8, help="answers that the server needs")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seeds", default=None)
    parser.add_argument("--device", default=None)
    parser.add_argument("--target", type=float, default=0.98, help="the test AUC whose time is taken")
    parser.add_argument("--slow", default="0.3", help="the part of devices that are slow; or: positives")
    parser.add_argument("--name", default="dropout")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.slow == "positives":
        given.slow = holders(given.experiment, given.algorithm)
    rounds = given.rounds or load(given.experiment, algorithms=[given.algorithm], device="cpu").rounds
    lines: list[Line] = []
    for dropout in DROPOUTS:
        for over in OVER:
            began = time.monotonic()
            lines += measure(given, dropout, over)
            told = f"dropout {dropout:.0%}, over-invitation {over:g}: {time.monotonic() - began:.0f} s"
            print(told, file=sys.stderr, flush=True)
    with (given.out / f"{given.name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Line._fields)
        writer.writerows(["" if value != value else value for value in line] for line in lines)
    draw(lines, given.out / f"{given.name}.png", given.target)
    print(table(lines, given.target, rounds))


if __name__ == "__main__":
    main()
