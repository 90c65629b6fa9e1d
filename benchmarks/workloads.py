"""What is timed: problems, rules and sizes; and how one becomes an order that all contenders can read."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedsaddle as fs
from fedsaddle import draws
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.core import Pair
from fedsaddle.engine.gather import meet
from fedsaddle.engine.study import Study
from fedsaddle.problem import Batch, Federation
from fedsaddle.problems import AUC, GAN, Robust


@dataclass(frozen=True)
class Many:
    """As many clients as one likes, of four rows each: f = mean y (a x - b) - y^2 / 2."""

    clients: int

    metrics = {"residual": fs.Metric("low", rows="train")}  # noqa: RUF012

    @cached_property
    def federation(self) -> Federation:
        source = torch.Generator().manual_seed(0)
        rows = {
            "a": torch.rand(4 * self.clients, 8, generator=source),
            "b": torch.rand(4 * self.clients, generator=source),
        }
        return Federation(rows, torch.full((self.clients,), 4))

    def init(self, seed: int) -> Pair:
        return Pair(torch.zeros(8), torch.zeros(1))

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        return xi.mean(z.y * (xi.rows["a"] @ z.x - xi.rows["b"])) - z.y[0] ** 2 / 2

    def evaluate(self, z: Pair) -> dict[str, float]:
        rows = self.federation.to(z.x.device).rows
        return {"residual": float((rows["a"][:1000] @ z.x - rows["b"][:1000]).mean())}


@dataclass(frozen=True)
class Workload:
    """One model, one rule, one cohort size."""

    name: str
    problem: Callable[[], Any]
    algorithm: Any
    visits: int
    batch: int = 10
    lanes: tuple[int, ...] = (1, 8)
    metric: str = "test_auc"
    loop: bool = True  # whether the plain loop runs it too
    rivals: bool = False  # whether pfl-research and Flower do
    only: str | None = None  # a device, if it is not for both
    times: int = 1  # how many rounds are timed for one of another workload: more, if they are short

    def study(self, lanes: int = 1, device: str = "cpu") -> Study:
        return fs.make_study(
            self.problem(),
            self.algorithm,
            seeds=range(lanes),
            quorum=fs.Quorum(invite=self.visits),
            fleet=fs.Everybody(),
            batch=self.batch,
            device=device,
        )

    def judge(self, x: Tensor, y: Tensor) -> float:
        """How good a point is."""
        problem, z = self.problem(), Pair(x, y)
        if isinstance(problem, GAN):  # the scores need a trained classifier; f on test rows tells enough
            return problem.losses(z, torch.cat(problem.generate(x, 1000)))["f"]
        return problem.evaluate(z)[self.metric]


def write(workload: Workload, folder: Path, rounds: int) -> None:
    """Everything that the first lane of the engine would draw and read."""
    study = workload.study()
    problem, federation, algorithm = study.problem, study.federation, study.algorithm
    folder.mkdir(parents=True, exist_ok=True)
    name = next(name for name, entry in ALGORITHMS.items() if entry.rule is type(algorithm))
    rule = {"algorithm": name, "rounds": rounds, "batch": workload.batch, **dataclasses.asdict(algorithm)}
    rule |= _model(problem)
    z, clock, cohorts, batches = problem.init(0), [0.0], [], []
    walk = len(algorithm.phases()) - 1
    for round in range(rounds):
        meetings = meet(study, round, clock)
        cohorts.append([sorted(meeting[0].used) for meeting in meetings])
        clients = torch.tensor(cohorts[-1][walk])
        key = draws.fold(draws.key(draws.BATCHES, study.lane_seeds, round, walk, clients), 0)
        sizes, count = federation.sizes[clients], algorithm.K * workload.batch
        rows = draws.batches(key, sizes, count, int(sizes.max())) + federation.offsets[clients][:, None]
        batches.append(rows.reshape(workload.visits, algorithm.K, workload.batch))
    inputs, labels = _rows(federation)
    arrays = {
        "input": inputs,
        "label": labels,
        "sizes": federation.sizes,
        "x": z.x,
        "y": z.y,
        "collect": torch.tensor(cohorts)[:, 0],
        "cohort": torch.tensor(cohorts)[:, walk],
        "batches": torch.stack(batches),
    }
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values.numpy())
    (folder / "order.json").write_text(json.dumps(rule, indent=1))


def _rows(federation: Federation) -> tuple[Tensor, Tensor]:
    tables = list(federation.rows.values())
    return (tables[0], tables[1]) if len(tables) == 2 else (tables[0], torch.zeros(len(tables[0])))


def _model(problem: Any) -> dict[str, Any]:
    if isinstance(problem, AUC):
        features = math.prod(problem.data.inputs.shape[1:])
        return {"model": "auc", "network": problem.network, "features": features, "p": problem.p}
    if isinstance(problem, Robust):
        sizes = {"classes": len(problem.data.classes), "hidden": problem.hidden}
        return {"model": "robust", "penalty": problem.penalty, "features": problem.features, **sizes}
    return {"model": "gan" if isinstance(problem, GAN) else "none"}


# --- the list -------------------------------------------------------------------------------------------

NC, ADA = fs.CDMANC, fs.CDMAADA


def auc_mnist() -> AUC:
    return AUC(dataset="mnist", clients=500, network="lenet5")


def logistic_digits() -> AUC:
    # Clients have 28 or 29 rows; those who are compared with count clients, as the paper does.
    return AUC(dataset="digits", clients=50, network="logistic", mean="clients")


def robust_mnist(hidden: int = 200) -> Robust:
    return Robust(dataset="mnist", clients=500, hidden=hidden, evaluate_rows=1000, ascent_steps=1, steps=1)


def gan_mnist() -> GAN:
    return GAN(dataset="mnist", clients=500, network="mnist", objective="non-saturating")


robust_nc = NC(0.01, 0.01, K=12)
robust = {"algorithm": robust_nc, "metric": "test_accuracy", "lanes": (1,)}
WORKLOADS = [
    Workload("auc-mnist cdma-ada", auc_mnist, ADA(0.1, 0.1, 1.0, 0.2, K=12), 8),
    Workload("auc-mnist cdma-nc", auc_mnist, NC(0.1, 0.1, K=12), 16, rivals=True),
    Workload(
        "logistic-digits cdma-ada", logistic_digits, ADA(0.2, 0.2, 1.0, 0.2, K=5), 8, 5, (1, 8, 32), times=10
    ),
    Workload(
        "logistic-digits cdma-nc",
        logistic_digits,
        NC(0.1, 0.1, K=5),
        16,
        5,
        (1, 8, 32),
        rivals=True,
        times=10,
    ),
    Workload(
        "robust-mnist cdma-ada", robust_mnist, ADA(0.01, 0.1, 1.0, 0.2, K=12), 8, metric="test_accuracy"
    ),
    Workload("robust-mnist cdma-nc", robust_mnist, robust_nc, 16, metric="test_accuracy", rivals=True),
    Workload("gan-mnist cdma-nc", gan_mnist, NC(0.01, 0.001, K=20), 16, 30, (1,), "f", only="cuda"),
    Workload(
        "gan-mnist cdma-ada", gan_mnist, ADA(0.01, 0.01, 0.99, 0.0, K=20), 8, 30, (1,), "f", only="cuda"
    ),
    *(Workload(f"visits={visits}", robust_mnist, visits=visits, **robust) for visits in (8, 32, 128)),
    *(
        Workload(f"hidden={hidden}", lambda hidden=hidden: robust_mnist(hidden), visits=16, **robust)
        for hidden in (50, 200, 800)
    ),
    *(
        Workload(
            f"clients={clients}",
            lambda clients=clients: Many(clients),
            NC(0.1, 0.1, K=12),
            16,
            lanes=(1,),
            metric="residual",
            loop=False,
            times=10,
        )
        for clients in (500, 10_000, 1_000_000)
    ),
]
BY_NAME = {workload.name: workload for workload in WORKLOADS}
