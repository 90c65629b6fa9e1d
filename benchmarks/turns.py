"""Is a round as fast as before: `python -m benchmarks.turns ../before`.

`../before` is a checkout of another commit (`git worktree add ../before COMMIT`). The two take turns, each in
a process of its own, so that what else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parents[1]
WARM = 20
WORKLOADS = {
    "logistic-digits cdma-ada": 400,
    "logistic-digits cdma-nc": 400,
    "hidden=50": 40,
    "robust-mnist cdma-ada": 15,
}


def play(workload: str, rounds: int) -> None:
    """Print the median milliseconds of a round, on the clock and of the processor."""
    from benchmarks.workloads import BY_NAME
    from fedsaddle.engine import machine
    from fedsaddle.engine.round import play
    from fedsaddle.engine.study import begin

    machine.prepare()
    study = BY_NAME[workload].study(1, "cpu")
    state, walls = begin(study), []
    for round in range(WARM + rounds):
        if round == WARM:
            spent = time.process_time()
        start = time.perf_counter()
        state, _ = play(study, state, round)
        walls.append(time.perf_counter() - start)
    spent = time.process_time() - spent
    print(1e3 * statistics.median(walls[WARM:]), 1e3 * spent / rounds)


def turn(checkout: Path, workload: str, rounds: int) -> list[float]:
    """One turn of one commit."""
    own = os.environ | {"PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{checkout}"}
    command = [sys.executable, __file__, "--play", workload, str(rounds)]
    done = subprocess.run(command, cwd=checkout, env=own, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr}")
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__.splitlines()[0])
    words.add_argument("before", type=Path, help="a checkout of the other commit")
    words.add_argument("--turns", type=int, default=5)
    words.add_argument("--workload", nargs="+", default=list(WORKLOADS), choices=WORKLOADS, metavar="NAME")
    given = words.parse_args()
    if not (given.before / "src" / "fedsaddle").is_dir():
        words.error(f"{given.before} is no checkout; make one: git worktree add {given.before} COMMIT")
    if given.turns < 1:
        words.error(f"--turns must be at least 1, got {given.turns}")
    print("| workload | before, ms a round | now | ratio | of processor time |\n|---|---|---|---|---|")
    for workload in given.workload:
        both = [
            (
                turn(given.before.resolve(), workload, WORKLOADS[workload]),
                turn(HERE, workload, WORKLOADS[workload]),
            )
            for _ in range(given.turns)
        ]
        before, now = (
            [statistics.median(kind) for kind in zip(*one, strict=True)] for one in zip(*both, strict=True)
        )
        ratios = [after / earlier for earlier, after in zip(before, now, strict=True)]
        print(
            f"| {workload} | {before[0]:.3g} | {now[0]:.3g} | {ratios[0]:.3f} | {ratios[1]:.3f} |", flush=True
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(sys.argv[2], int(sys.argv[3]))
    else:
        main()
