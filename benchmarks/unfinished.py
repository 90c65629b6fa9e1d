"""What unfinished walks are worth, in simulated time: `python -m benchmarks.unfinished`.

Devices of the latency fleet, three in ten of them slow, are asked for K local steps. A server may *wait* for
all; go on with the *first* five of eight; *drop* whoever is not back by a deadline; or let devices *send* the
steps that they have made by then (`quorum.partial_work`). Every way gets the same settings of the step sizes
to choose from, and three deadlines where it has one. That whose slowest of two seeds reached the goal first
then runs on fresh seeds. Prints a table: simulated time to the goal, a geometric mean over the seeds with its
95 % interval, and its ratio to waiting, paired by seed. Writes each seed to unfinished-TASK.csv in
docs/results, or in the folder that --out names.

`--slow positives` lets those be slow that hold a row of the class to be found, of an AUC task; the file is
then unfinished-TASK-positives.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from scipy import stats

import fedsaddle as fs
from benchmarks.dropout import holders
from fedsaddle.border.build import load
from fedsaddle.engine import machine
from fedsaddle.engine.course import Stop, course
from fedsaddle.engine.study import Study
from fedsaddle.scores import auroc

WAYS = ("wait", "first", "drop", "send")
DEADLINES = (10.0, 20.0, 40.0)  # seconds: the medians of a fast and of a slow device, and between
TUNING, FRESH = range(100, 102), range(16)
INVITE, FIRST = 8, 5


class Task(NamedTuple):
    """An experiment, the metric whose goal is to be reached, and what step sizes are tried."""

    experiment: str
    metric: str
    goal: float
    horizon: float  # simulated seconds after which a goal counts as not reached
    eta: tuple[float, ...]
    gamma: tuple[float, ...]
    batch: int
    K: int
    rows: int = 0  # of the test rows, that are looked at; with 0 all, and all other metrics with them


TASKS = {
    "quadratic": Task("quadratic", "stationarity", 1e-2, 20_000.0, (0.005, 0.01, 0.02), (0.03, 0.12), 5, 10),
    "digits": Task("auc-digits", "test_auc", 0.999, 4_000.0, (0.1, 0.3, 1.0), (0.1, 1.0), 5, 10),
    "mnist": Task(
        "auc-mnist-small", "test_auc", 0.99, 4_000.0, (0.1, 0.3, 1.0), (0.1, 1.0), 5, 10, rows=2_000
    ),
}
RULES = {"fed-norm-sgda": fs.FedNormSGDA, "cdma-one": fs.CDMAONE}


def quorum_of(way: str, deadline: float) -> fs.Quorum:
    if way == "wait":
        return fs.Quorum(invite=INVITE)
    if way == "first":
        return fs.Quorum(invite=INVITE, enough=FIRST)
    return fs.Quorum(invite=INVITE, deadline=deadline, partial_work=deadline if way == "send" else None)


def looked_at(task: Task, problem: Any, stop: Stop) -> dict[int, float]:
    """The metric of each lane that is alive.

    All metrics on all rows of MNIST take twenty times as long as a round; hence some test rows alone.
    """
    if not task.rows:
        return {row.lane: row.metrics[task.metric] for row in stop.rows}
    unseen = problem.test_rows.rows
    some = torch.arange(task.rows) * len(unseen["positive"]) // task.rows
    inputs, positive = unseen["input"][some], unseen["positive"][some]
    alive = [lane for lane, on in enumerate(stop.lanes.alive) if on]
    return {
        lane: float(auroc(problem.all_scores(stop.lanes.server.z.x[lane], inputs), positive))
        for lane in alive
    }


def times(
    task: Task, problem: Any, fleet: fs.Latency, rules: list[Any], quorum: fs.Quorum, seeds: Sequence[int]
) -> torch.Tensor:
    """Simulated seconds until the goal is reached, (setting, seed); infinite where it is not."""
    study: Study = fs.make_study(problem, rules, seeds=seeds, fleet=fleet, quorum=quorum, batch=task.batch)
    found = torch.full((len(rules) * len(seeds),), math.inf, dtype=torch.float64)
    better = problem.metrics[task.metric].better
    for stop in course(study, 1_000_000, 1_000_000 if task.rows else 1):
        for lane, value in looked_at(task, problem, stop).items():
            there = value <= task.goal if better == "low" else value >= task.goal
            if there and stop.lanes.clock[lane] <= task.horizon:
                found[lane] = min(float(found[lane]), stop.lanes.clock[lane])
        lanes = zip(stop.lanes.alive, stop.lanes.clock, found.tolist(), strict=True)
        over = all(not alive or clock > task.horizon or own < math.inf for alive, clock, own in lanes)
        if over or bool((found.reshape(len(rules), -1) < math.inf).all(1).any()):
            break  # all are over, or one setting has reached the goal with every seed
    study.close()
    return found.reshape(len(rules), len(seeds))


def measure(task: Task, problem: Any, fleet: fs.Latency, rule: Any, way: str) -> tuple[torch.Tensor, str]:
    """The times on fresh seeds of what was soonest on others, and what that was."""
    rules = [rule(eta, gamma, K=task.K) for eta, gamma in product(task.eta, task.gamma)]
    best, chosen = math.inf, (rules[0], DEADLINES[0])
    for deadline in DEADLINES if way in ("drop", "send") else DEADLINES[:1]:
        found = times(task, problem, fleet, rules, quorum_of(way, deadline), TUNING)
        slowest = found.clamp(max=task.horizon).amax(1)
        if float(slowest.min()) < best:
            best, chosen = float(slowest.min()), (rules[int(slowest.argmin())], deadline)
    one, deadline = chosen
    told = f"eta {one.eta:g}, gamma {one.gamma:g}" + (f", {deadline:g} s" if way in ("drop", "send") else "")
    return times(task, problem, fleet, [one], quorum_of(way, deadline), FRESH)[0], told


class Seed(NamedTuple):
    """One fresh seed of one way."""

    rule: str
    server: str
    settings: str
    seed: int
    seconds: float  # simulated, to the goal; infinite, where it was not reached


def write(path: Path, rows: Sequence[Seed]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Seed._fields)
        writer.writerows(row._replace(seconds=round(row.seconds, 3)) for row in rows)


def shown(values: torch.Tensor, form: str) -> str:
    """A geometric mean with its 95 % interval, by Student's t on logarithms."""
    logs = values.log()
    wide = float(stats.t.ppf(0.975, len(logs) - 1)) * float(logs.std()) / math.sqrt(len(logs))
    mean, least, most = (format(math.exp(float(logs.mean()) + off), form) for off in (0, -wide, wide))
    return f"{mean} ({least} to {most})"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unfinished", description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--rule", choices=RULES, action="append")
    parser.add_argument("--slow", choices=("any", "positives"), default="any")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="where the CSV file goes")
    given = parser.parse_args(arguments)
    task = TASKS[given.task]
    machine.prepare()
    name = next(iter(load(task.experiment).studies))
    problem: Any = load(task.experiment).studies[name].problem
    slow: Any = 0.3
    if given.slow == "positives":
        slow = tuple(json.loads(holders(task.experiment, name)))
    fleet, began = fs.Latency(median=10.0, spread=0.5, slow=slow, slowdown=4.0), time.monotonic()
    print(
        f"{task.experiment}: simulated seconds to {task.metric} {task.goal:g}, {len(FRESH)} fresh seeds, "
        f"slow: {given.slow}\n"
    )
    print("| rule | server | settings | reached | time to the goal | ratio to waiting |")
    print("|---|---|---|---|---|---|")
    rows: list[Seed] = []
    for label in given.rule or RULES:
        waited = None
        for way in WAYS:
            found, told = measure(task, problem, fleet, RULES[label], way)
            rows += [Seed(label, way, told, *own) for own in zip(FRESH, found.tolist(), strict=True)]
            there = int((found < math.inf).sum())
            found = found.clamp(max=task.horizon)
            waited = found if waited is None else waited
            cells = [
                label,
                way,
                told,
                f"{there} of {len(FRESH)}",
                shown(found, ".0f"),
                shown(found / waited, ".2f"),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
    write(given.out / f"unfinished-{given.task}{'' if given.slow == 'any' else f'-{given.slow}'}.csv", rows)
    print(f"\n{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
