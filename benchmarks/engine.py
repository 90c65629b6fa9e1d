"""This engine: one lane or many, as `fedsaddle run` would play them."""

from __future__ import annotations

import sys

from benchmarks.work import Clock, Order, answer
from benchmarks.workloads import BY_NAME
from fedsaddle.engine import machine
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points


def main(folder: str, device: str, workload: str, lanes: str) -> None:
    machine.prepare()
    order, study = Order(folder, device), BY_NAME[workload].study(int(lanes), device)
    state = begin(study)

    def one(round: int) -> None:
        nonlocal state
        state, _ = play(study, state, round)

    clock = Clock(device, order.rounds, threads=[1]).run(one)  # and as many workers as there are cores
    answer(order, clock, *points(state.server)[0])


if __name__ == "__main__":
    main(*sys.argv[1:5])
