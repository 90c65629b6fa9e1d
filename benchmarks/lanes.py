"""What many seeds at once cost: `python -m benchmarks.lanes` prints the ratio to one seed, from one run."""

from __future__ import annotations

import statistics
import time

import torch

import fedsaddle as fs

LANES, ROUNDS, REPEATS = 32, 40, 5
SETTINGS = {
    "cdma-ada": fs.CDMAADA(0.03, 0.1),
    "cdma-one": fs.CDMAONE(0.005, 0.02),
    "cdma-nc": fs.CDMANC(0.005, 0.02),
}


def seconds(algorithm: object, lanes: int) -> float:
    began = time.perf_counter()
    fs.simulate(fs.Quadratic(), algorithm, rounds=ROUNDS, seeds=range(lanes), batch=5)  # type: ignore[arg-type]
    return time.perf_counter() - began


def main() -> None:
    torch.set_num_threads(1)  # as the command line does
    for name, algorithm in SETTINGS.items():
        seconds(algorithm, 1)  # warm
        one, many = zip(
            *((seconds(algorithm, 1), seconds(algorithm, LANES)) for _ in range(REPEATS)), strict=True
        )
        ratio = statistics.median(many) / statistics.median(one)
        print(f"{name}: {LANES} seeds cost {ratio:.2f} times one seed ({ROUNDS} rounds, median of {REPEATS})")


if __name__ == "__main__":
    main()
