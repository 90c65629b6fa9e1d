"""All nine algorithms on the quadratic, after the same tuning budget: `python -m benchmarks.quadratic`.

Every algorithm tries 48 random settings with two seeds of their own, 600 rounds each, all as lanes. The
ranges below are shared: a step size means the same range in every algorithm. The setting with the least mean
stationarity over the last 100 rounds is then run with five fresh seeds. S^ is 16 for the algorithms that
send one vector up and 8 for those that send two, so that all send the same floats, but for the 4 % by which
rounding S_t up favours the smaller cohorts. Prints the table and writes NAME.csv to docs/results, or to the
folder that --out names. `--clients 20000 --algorithm codasca` tunes one of them anew for more clients.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
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


def measure(name: str, clients: int) -> Line:
    """Tune an algorithm, then run the best setting with fresh seeds."""
    torch.set_num_threads(1)
    began = time.monotonic()
    best = tune(name, clients)
    outcome = run(name, clients, [best], SEEDS)
    final = outcome.last("stationarity")
    late = [row.metrics["stationarity"] for row in outcome.rows if row.round >= ROUNDS - 100]
    up = statistics.fmean(row.floats_up for row in outcome.rows if row.round == ROUNDS)
    setting = " ".join(f"{key}={value:.6g}" for key, value in dataclasses.asdict(best).items())
    print(f"{name}: {setting} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
    means = statistics.fmean(final), statistics.stdev(final), statistics.fmean(late)
    return Line(name, INVITED[name], *means, round(up), setting)


def main() -> None:
    parser = argparse.ArgumentParser(description="All algorithms on the quadratic, each tuned alike.")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--algorithm", nargs="*", choices=INVITED, default=list(INVITED))
    parser.add_argument("--name", default="quadratic")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = pool.map(measure, given.algorithm, [given.clients] * len(given.algorithm))
        lines = sorted(found, key=lambda line: line.stationarity)
    with (given.out / f"{given.name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Line._fields)
        writer.writerows(lines)
    print("| algorithm | S^ | final stationarity | last 100 rounds | floats up | setting |")
    print("|---|---|---|---|---|---|")
    for line in lines:
        final = f"{line.stationarity:.2e} ± {line.deviation:.1e}"
        print(
            f"| {line.algorithm} | {line.invited} | {final} | {line.last_100_rounds:.2e} | {line.floats_up} "
            f"| {line.setting} |"
        )


if __name__ == "__main__":
    main()
