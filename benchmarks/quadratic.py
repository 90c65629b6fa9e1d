"""All nine algorithms on the quadratic, after the same tuning budget: `python -m benchmarks.quadratic`.

Every algorithm tries 48 random settings with two seeds of their own, 600 rounds each, all as lanes. The
ranges below are shared: a step size means the same range in every algorithm. The setting with the least mean
stationarity over the last 100 rounds is then run with five fresh seeds. S^ is 16 for the algorithms that
send one vector up and 8 for those that send two, so that all send the same floats, but for the 4 % by which
rounding S_t up favours the smaller cohorts. Prints the table and writes NAME.csv, and NAME-seeds.csv with
each seed, to docs/results or to the folder that --out names. `--clients 2000 20000 --algorithm codasca
cdma-ada --name quadratic-clients` tunes two of them anew for each number of clients.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fedsaddle as fs
from fedsaddle import draws
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.simulate import Outcome, hyperparameters

ROUNDS, TUNING_SEEDS, SEEDS = 600, (100, 101), (0, 1, 2, 3, 4)
SETTINGS = 48

INVITED = {
    "cdma-ada": 8,
    "cdma-one": 8,
    "cdma-nc": 16,
    "parallel-sgda": 16,
    "local-sgda-plus": 16,
    "extra-step": 16,
    "coda-plus": 16,
    "codasca": 8,
    "catalyst-scaffold-s": 8,
}
STEP = (1e-3, 1.0)  # log-uniform
RANGES: dict[str, tuple[float, float] | list[Any]] = {
    **dict.fromkeys(["eta", "gamma", "c_eta", "c_gamma", "eta_l"], STEP),
    "c_alpha": (0.03, 10.0),  # log-uniform
    # One of these: the values of the paper's own grids.
    "rho": [0.0, 1 / 5, 1 / 3],
    "theta": [0.0, 0.1, 10.0],
    "K_0": [2000, 4000],
    "eta_g": [0.99, 1.0, 1.1],
}


def settings_of(name: str) -> list[Any]:
    """The random settings of an algorithm; what has no range keeps its default."""
    rule = ALGORITHMS[name].rule
    names = [field.name for field in dataclasses.fields(rule) if field.name in RANGES]
    luck = draws.uniform(draws.key(draws.PROBLEM, 2026), SETTINGS, len(names)).tolist()
    found = []
    for chances in luck:
        chosen: dict[str, Any] = {}
        for key, chance in zip(names, chances, strict=True):
            among = RANGES[key]
            if isinstance(among, list):
                chosen[key] = among[int(chance * len(among))]
            else:
                chosen[key] = among[0] * (among[1] / among[0]) ** chance
        if name == "catalyst-scaffold-s":
            chosen["eta_g"] = chosen["eta_l"]  # as the paper does
        found.append(rule(**chosen))
    return found


def run(name: str, clients: int, settings: list[Any], seeds: tuple[int, ...]) -> Outcome:
    problem, quorum = fs.Quadratic(clients=clients, kappa=10.0), fs.Quorum(invite=INVITED[name])
    return fs.simulate(problem, settings, rounds=ROUNDS, seeds=seeds, quorum=quorum, batch=5)


def tune(name: str, clients: int) -> Any:
    """The best setting. Those that differ in a count cannot share lanes, and run in turn."""
    settings = settings_of(name)
    counts = [key for key, known in hyperparameters(type(settings[0])).items() if known.static]
    scored: list[tuple[float, str, Any]] = []

    def static(setting: Any) -> tuple[int, ...]:
        return tuple(getattr(setting, key) for key in counts)

    for _, group in groupby(sorted(settings, key=static), key=static):
        together = list(group)
        outcome = run(name, clients, together, TUNING_SEEDS)
        for number, setting in enumerate(together):
            lanes = {number * len(TUNING_SEEDS) + seed for seed in range(len(TUNING_SEEDS))}
            late = [r for r in outcome.rows if r.lane in lanes and r.round >= ROUNDS - 100]
            if all(outcome.alive[lane] for lane in lanes):
                score = statistics.fmean(row.metrics["stationarity"] for row in late)
                scored.append((score, repr(setting), setting))
    return min(scored)[2]


class Line(NamedTuple):
    """One algorithm in the table."""

    algorithm: str
    invited: int
    stationarity: float  # mean over the seeds after the last round
    deviation: float
    last_100_rounds: float  # mean over seeds and evaluations
    floats_up: int
    setting: str
    clients: int


class Seed(NamedTuple):
    """One fresh seed of one algorithm."""

    algorithm: str
    clients: int
    seed: int
    stationarity: float  # after the last round
    last_100_rounds: float  # the mean over evaluations


def measure(name: str, clients: int) -> tuple[Line, list[Seed]]:
    """Tune an algorithm, then run the best setting with fresh seeds."""
    torch.set_num_threads(1)
    began = time.monotonic()
    best = tune(name, clients)
    outcome = run(name, clients, [best], SEEDS)
    final = outcome.last("stationarity")
    late: dict[int, list[float]] = {seed: [] for seed in SEEDS}
    for row in outcome.rows:
        if row.round >= ROUNDS - 100:
            late[SEEDS[row.lane]].append(row.metrics["stationarity"])
    up = statistics.fmean(row.floats_up for row in outcome.rows if row.round == ROUNDS)
    setting = " ".join(f"{key}={value:.6g}" for key, value in dataclasses.asdict(best).items())
    print(f"{name}: {setting} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
    seeds = [
        Seed(name, clients, seed, last, statistics.fmean(late[seed]))
        for seed, last in zip(SEEDS, final, strict=True)
    ]
    means = (
        statistics.fmean(final),
        statistics.stdev(final),
        statistics.fmean(s.last_100_rounds for s in seeds),
    )
    return Line(name, INVITED[name], *means, round(up), setting, clients), seeds


def write(path: Path, rows: Sequence[Line] | Sequence[Seed]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0]._fields)
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="All algorithms on the quadratic, each tuned alike.")
    parser.add_argument("--clients", type=int, nargs="+", default=[200])
    parser.add_argument("--algorithm", nargs="*", choices=INVITED, default=list(INVITED))
    parser.add_argument("--name", default="quadratic")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--jobs", type=int, help="processes; by default one a core")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        asked = zip(*product(given.algorithm, given.clients), strict=True)
        found = sorted(pool.map(measure, *asked), key=lambda one: (one[0].clients, one[0].stationarity))
    lines = [line for line, _ in found]
    write(given.out / f"{given.name}.csv", lines)
    write(given.out / f"{given.name}-seeds.csv", [seed for _, seeds in found for seed in seeds])
    print("| algorithm | N | S^ | final stationarity | last 100 rounds | floats up | setting |")
    print("|---|---|---|---|---|---|---|")
    for line in lines:
        final = f"{line.stationarity:.2e} ± {line.deviation:.1e}"
        print(
            f"| {line.algorithm} | {line.clients} | {line.invited} | {final} | {line.last_100_rounds:.2e} "
            f"| {line.floats_up} | {line.setting} |"
        )


if __name__ == "__main__":
    main()
