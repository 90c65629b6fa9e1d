"""What is played for, on which fleets, and how large everything is."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsaddle.board.published import StepRanges
from fedsaddle.border.files import read_tables

VALIDATION_PART = 0.1  # of the training rows, from the clients, while settings are chosen
REFERENCE = 8  # clients that are invited a phase by who sends two vectors a round, in two phases
FIRST_SEED_OF_TUNING = 1000  # far from the fresh ones, which begin at 0

BOARD_FLEETS: dict[str, dict[str, Any]] = {
    "everybody": {"model": "everybody"},
    "paper": {"model": "paper"},
    "latency": {
        "model": "latency",
        "median": 10.0,
        "spread": 0.5,
        "slow": 0.3,
        "slowdown": 4.0,
        "dropout": 0.1,
    },
}
FLEETS_TOLD = {
    "everybody": "all who are invited answer, each after one second",
    "paper": "between half and all of the invited answer, each after one second",
    "latency": "log-normal delays, three in ten devices four times slower, one answer in ten lost",
}


@dataclass(frozen=True)
class BoardTask:
    """A problem, by what its settings are chosen and by what algorithms are ranked."""

    name: str
    title: str
    base: str  # the shipped experiment: its problem, batch and K
    by: str  # chooses settings: of validation rows, where the problem can set some aside
    metric: str  # ranks, with fresh seeds
    steps: StepRanges
    rounds: int  # of who sends two vectors in two phases
    every: int  # rounds between evaluations
    ratios: bool = False  # whether values lie over decades, and are compared by their logarithms
    validates: bool = False  # whether the problem sets rows aside if it is asked to
    heavy: bool = False  # whether fewer settings and seeds must do
    problem: Mapping[str, Any] = field(default_factory=dict)  # other than the base's
    more: Mapping[str, Any] = field(default_factory=dict)  # keys of the experiment other than the base's

    @property
    def experiment(self) -> dict[str, Any]:
        """Its tables, without algorithms."""
        tables = copy.deepcopy(read_tables(self.base)[0])
        found: dict[str, Any] = {"name": f"board-{self.name}", "description": self.title}
        found |= {key: tables[key] for key in ("batch", "K") if key in tables}
        found["problem"] = ({} if "name" in self.problem else tables["problem"]) | dict(self.problem)
        return found | dict(self.more)


def _steps(
    x: tuple[float, float], y: tuple[float, float], both: tuple[float, float], source: str
) -> StepRanges:
    return StepRanges(x, y, both, source)


_WIDE = (0.001, 1.0)
_QUADRATIC = _steps(_WIDE, _WIDE, _WIDE, "docs/results/quadratic.md")
_AUC = _steps((0.1, 1.0), (0.001, 1.0), (0.01, 1.0), "the appendix of the CDMA paper")
_ROBUST = _steps((0.001, 0.03162), (0.001, 1.0), (0.001, 0.1), "the appendix of the CDMA paper")
_LITTLE_GAN = _steps(
    (0.01, 0.3), (0.01, 0.1), (0.01, 0.1), "the scans of gan-digits and wgan-digits, which ship"
)


def _of_the_sweep(x: tuple[float, float], y: tuple[float, float], base: str) -> StepRanges:
    return _steps(x, y, (min(x[0], y[0]), min(x[1], y[1])), f"the [sweep] of {base}, which ships")


def _task(name: str, title: str, base: str, judged: tuple[str, str], **more: Any) -> BoardTask:
    return BoardTask(name, title, base, *judged, **more)


_BY_STATIONARITY = ("stationarity", "stationarity")
_BY_AUC = ("validation_auc", "test_auc")
_BY_LOSS = ("validation_robust_loss", "robust_loss")
_DIGITS_GAN = {"clients": 50, "samples": 1000}


def _quadratics(rounds: int, every: int, clients: int) -> list[BoardTask]:
    return [
        _task(
            f"quadratic-{kappa}", f"a quadratic of {clients:,} unlike clients, kappa = {kappa}",
            "quadratic", _BY_STATIONARITY, steps=_QUADRATIC, rounds=rounds, every=every, ratios=True,
            problem={"clients": clients, "kappa": float(kappa)},
        )
        for kappa in (10, 100)
    ]  # fmt: skip


_WHOLE_TASKS = [
    *_quadratics(400, 10, 2000),
    _task(
        "auc-mnist", "AUC maximisation on MNIST, 500 clients of one digit each, nine of two", "auc-mnist",
        _BY_AUC, steps=_AUC, rounds=400, every=20, validates=True,
    ),
    _task(
        "auc-cifar10", "AUC maximisation on CIFAR-10, 500 clients of one class each", "auc-cifar10", _BY_AUC,
        steps=_AUC, rounds=400, every=20, validates=True,
    ),
    _task(
        "auc-adult", "AUC maximisation on Adult, clients by occupation and schooling", "groups-adult",
        _BY_AUC,
        steps=_of_the_sweep((0.03, 3.0), (0.001, 0.1), "groups-adult"), rounds=200, every=20, validates=True,
        problem={
            "name": "auc", "dataset": "adult", "partition": "column",
            "network": "logistic", "positive": ">50K",
        },
    ),
    _task(
        "robust-mnist", "robust training on MNIST, 500 clients of one digit each, nine of two",
        "robust-mnist", _BY_LOSS, steps=_ROBUST, rounds=400, every=40, validates=True,
        problem={"evaluate_rows": 1000},
    ),
    _task(
        "fair-fashion", "fair classification on Fashion-MNIST, the worst of ten classes", "fair-fashion",
        ("train_worst_loss", "worst_loss"), rounds=200, every=20,
        steps=_steps((0.01, 0.3), (0.0003, 0.01), (0.0003, 0.01), "the scan of fair-fashion, which ships"),
    ),
    _task(
        "groups-adult", "worst-group classification on Adult, clients by occupation and schooling",
        "groups-adult", ("phi", "worst_loss"), rounds=100, every=10,
        steps=_of_the_sweep((0.03, 3.0), (0.001, 0.1), "groups-adult"),
    ),
    _task(
        "clients-census", "the worst of 32 countries of birth on the census, who are the clients",
        "clients-census", ("phi", "worst_loss"), rounds=100, every=10,
        steps=_of_the_sweep((0.01, 1.0), (1e-5, 0.01), "clients-census"),
    ),
    _task(
        "pauc-census", "partial AUC on the census, clients by country of birth", "pauc-census",
        ("train_pauc", "test_pauc"), rounds=150, every=15,
        steps=_of_the_sweep((0.03, 1.0), (0.1, 1.0), "pauc-census"),
    ),
    _task(
        "np-card", "at most 30 % missed defaults, by a multiplier; clients by age and sex", "np-card",
        ("phi", "test_phi"), rounds=150, every=15,
        steps=_of_the_sweep((0.03, 3.0), (0.003, 0.3), "np-card"),
    ),
    _task(
        "odds-adult", "equalised odds on Adult, by eight multipliers", "odds-adult", ("phi", "test_phi"),
        rounds=200, every=20, steps=_of_the_sweep((0.01, 1.0), (0.01, 1.0), "odds-adult"),
    ),
    _task(
        "gmm-sine", "DeepGMM: the sine from confounded rows, 50 clients", "gmm-sine",
        ("validation_moments", "test_mse"), rounds=300, every=20,
        steps=_of_the_sweep((0.001, 0.3), (0.003, 1.0), "gmm-sine"),
    ),
    _task(
        "gan-digits", "a GAN on small digits, 50 unlike clients", "gan-digits",
        ("validation_frechet", "frechet"), steps=_LITTLE_GAN, rounds=120, every=20, validates=True,
        heavy=True, problem=_DIGITS_GAN,
    ),
]  # fmt: skip
_QUICK_TASKS = [
    _quadratics(24, 4, 200)[0],
    _task(
        "auc-digits", "AUC maximisation on small digits, 50 clients of one digit each, nine of two",
        "auc-digits", _BY_AUC, steps=_AUC, rounds=12, every=4, validates=True,
    ),
    _task(
        "robust-digits", "robust training on small digits, 50 clients of one digit each, nine of two",
        "robust-mnist", _BY_LOSS, steps=_ROBUST, rounds=8, every=4, validates=True, more={"K": 5, "batch": 5},
        problem={
            "dataset": "digits", "clients": 50, "hidden": 32, "evaluate_rows": 100, "ascent_steps": 3,
            "restarts": 0, "steps": 1,
        },
    ),
]  # fmt: skip


@dataclass(frozen=True)
class BoardForm:
    """How large everything is."""

    name: str
    tasks: Mapping[str, BoardTask]
    settings: int  # that every algorithm tries
    heavy_settings: int
    seeds_of_tuning: int
    seeds: int  # fresh ones
    heavy_seeds: int
    fleets: tuple[str, ...] = tuple(BOARD_FLEETS)

    def tries(self, task: BoardTask) -> int:
        return self.heavy_settings if task.heavy else self.settings

    def fresh(self, task: BoardTask) -> int:
        return self.heavy_seeds if task.heavy else self.seeds


def _named(tasks: list[BoardTask]) -> dict[str, BoardTask]:
    return {one.name: one for one in tasks}


WHOLE_BOARD = BoardForm("whole", _named(_WHOLE_TASKS), 32, 12, 2, 16, 8)
QUICK_BOARD = BoardForm("quick", _named(_QUICK_TASKS), 4, 4, 2, 5, 5, ("paper", "latency"))
