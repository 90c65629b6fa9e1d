"""What a task of one's own costs: `python -m benchmarks.own_task --device cuda`.

The shipped `auc` with LeNet5 on MNIST, and `fs.task` with the same loss and a LeNet that a person wrote in
plain PyTorch layers. Both walk the same clients over the same rows from the same start, in one process, by
turns: a round of one, then the same round of the other, and who begins changes. A ratio is of the medians
over the timed rounds of a repeat. That of CPU time counts all threads together; what others do on the machine
moves it less. Where MNIST is not, random pictures of its shape take its place.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

import fedsaddle as fs
from fedsaddle import draws
from fedsaddle.data import sources
from fedsaddle.data.datasets import DATASETS, Dataset
from fedsaddle.engine import machine
from fedsaddle.engine.round import play
from fedsaddle.engine.study import Study, begin, points
from fedsaddle.environment import here

ALGORITHMS = {
    "cdma-ada": (fs.CDMAADA(0.1, 0.1, 5.0, 0.2, K=12), 8),
    "cdma-nc": (fs.CDMANC(0.1, 0.1, K=12), 16),
}
WARM = 6  # rounds until all is recorded, and replayed as fast as it will be


class LeNet(nn.Module):
    """As anybody would write it; a and b are the loss's own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.full, self.fuller, self.last = nn.Linear(256, 120), nn.Linear(120, 84), nn.Linear(84, 1)
        self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = max_pool2d(relu(self.one(pictures)), 2)
        hidden = max_pool2d(relu(self.two(hidden)), 2).flatten(1)
        return torch.sigmoid(self.last(relu(self.fuller(relu(self.full(hidden)))))).squeeze(1)


def own_task(shipped: fs.AUC) -> Any:
    """The task again, by `fs.task`."""
    p, held = shipped.p, shipped.federation
    ends = held.sizes.cumsum(0).tolist()
    clients = [
        {name: rows[end - size : end] for name, rows in held.rows.items()}
        for end, size in zip(ends, held.sizes.tolist(), strict=True)
    ]

    def loss(x: Any, alpha: Tensor, batch: Any) -> Tensor:
        s = x((batch["input"].to(alpha.dtype) - 127.5) / 127.5)
        a, b, positive = x.parameters["a"], x.parameters["b"], batch["positive"]
        one, zero = (1 - p) * positive.to(s.dtype), p * (~positive).to(s.dtype)
        squares = one * (s - a) ** 2 + zero * (s - b) ** 2
        return squares + 2 * (1 + alpha) * s * (zero - one) - p * (1 - p) * alpha**2

    return fs.task(x=LeNet, y=1, loss=loss, data=fs.clients(clients))


class Spent(NamedTuple):
    """Of one round."""

    wall: float  # seconds
    cpu: float  # seconds of all threads together, which others on the machine lengthen less


class Contender(NamedTuple):
    study: Study
    lanes: Any
    spent: list[Spent]


def turn(one: Contender, round: int, timed: bool) -> Contender:
    """A round of one of them."""
    wall, cpu = time.perf_counter(), time.process_time()
    lanes, _ = play(one.study, one.lanes, round)
    if one.study.device.type == "cuda":
        torch.cuda.synchronize()
    spent = Spent(time.perf_counter() - wall, time.process_time() - cpu)
    return Contender(one.study, lanes, one.spent + [spent] * timed)


def repeat(
    problems: list[Any], rule: Any, visits: int, device: str, rounds: int
) -> tuple[list[Spent], float]:
    """What a round of each takes in the median, and how far they are apart at the end."""
    pair = []
    for problem in problems:
        quorum = fs.Quorum(invite=visits)
        study = fs.make_study(
            problem, rule, seeds=(0,), quorum=quorum, fleet=fs.Everybody(), batch=10, device=device
        )
        pair.append(Contender(study, begin(study), []))
    for round in range(WARM + rounds):
        for place in (0, 1) if round % 2 else (1, 0):
            pair[place] = turn(pair[place], round, round >= WARM)
    # A module's own parameters, a and b, come before those of its layers.
    ours, theirs = points(pair[0].lanes.server)[0].x, points(pair[1].lanes.server)[0].x.roll(-2)
    for one in pair:
        one.study.close()
    medians = [Spent(*map(statistics.median, zip(*one.spent, strict=True))) for one in pair]
    return medians, float((ours - theirs).norm() / ours.norm())


def stand_in(rows: int = 12_000) -> Dataset:
    """Random pictures of MNIST's shape, each class with its own bright places."""
    labels = torch.arange(rows) % 10
    bright = draws.uniform(draws.key(draws.PROBLEM, 0, 0), 10, 1, 28, 28)[labels]
    pictures = (bright + draws.uniform(draws.key(draws.PROBLEM, 0, 1), rows, 1, 28, 28)) / 2
    pictures = (255 * pictures).to(torch.uint8)
    few = rows // 6
    return Dataset(pictures[few:], labels[few:], pictures[:few], labels[:few])


def main(words: list[str] | None = None) -> float:
    """The table; the largest median ratio."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.own_task", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds of each in a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=500)
    given = parser.parse_args(words)
    machine.prepare()
    there = sources.is_there("mnist")
    if not there:
        made = stand_in()
        DATASETS["mnist"] = lambda: made
    about = {"command": " ".join(["python -m benchmarks.own_task", *(words or sys.argv[1:])]), **here()}
    about["rows"] = "MNIST" if there else "random pictures of MNIST's shape: MNIST is not here"
    about["load_before"] = list(os.getloadavg())
    if given.device == "cuda":
        about["gpu"] = torch.cuda.get_device_name()
    print(json.dumps(about, indent=1), flush=True)
    shipped = fs.AUC(dataset="mnist", clients=given.clients, network="lenet5")
    problems, worst = [shipped, own_task(shipped)], 0.0
    print(f"{'algorithm':12}{'shipped ms':>12}{'own ms':>10}{'ratio':>8}{'of cpu time':>13}{'apart':>10}")
    for name, (rule, visits) in ALGORITHMS.items():
        ratios = []
        for _ in range(given.repeats):
            (one, own), apart = repeat(problems, rule, visits, given.device, given.rounds)
            ratios.append(Spent(own.wall / one.wall, own.cpu / one.cpu))
            told = f"{name:12}{1e3 * one.wall:12.1f}{1e3 * own.wall:10.1f}{ratios[-1].wall:8.3f}"
            print(f"{told}{ratios[-1].cpu:13.3f}{apart:10.1e}", flush=True)
        wall, cpu = map(statistics.median, zip(*ratios, strict=True))
        print(f"{name:12}{'the median of them':>22}{wall:8.3f}{cpu:13.3f}", flush=True)
        worst = max(worst, wall)
    print(f"load after: {os.getloadavg()[0]:.2f}")
    return worst


if __name__ == "__main__":
    main()
