"""FedSaddle: minimax learning on fleets of unreliable devices.

A name is imported when it is first asked for: PyTorch takes seconds, and `fedsaddle --help` needs none of it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # typing takes its time to import, in which Ctrl-C would not be quiet
if TYPE_CHECKING:
    from fedsaddle.algorithms import (
        ALGORITHMS,
        CDMAADA,
        CDMANC,
        CDMAONE,
        CODASCA,
        DRFA,
        FESSGDA,
        FGDA,
        FSGDA,
        SAGDA,
        AdaFGDA,
        CatalystScaffoldS,
        CODAPlus,
        ExtraStep,
        FedAvgM,
        FedGDAGT,
        FedNest,
        FedNormSGDA,
        FedNormSGDAPlus,
        FeDualEx,
        LocalSGDAPlus,
        MomentumLocalSGDA,
        ParallelSGDA,
        ProxSkipVIP,
        SAGDAMinibatch,
        ServerEG,
        ServerOGDA,
    )
    from fedsaddle.app.models import load
    from fedsaddle.app.python import Swept, run, sweep
    from fedsaddle.checks import Checks
    from fedsaddle.core import (
        Algorithm,
        Client,
        ControlVariates,
        Count,
        Exponent,
        Gradients,
        Message,
        Pair,
        Parameters,
        Phase,
        Positive,
        Reply,
        StepSize,
        Turn,
        Weight,
        further,
        only_x,
        only_y,
        pull,
        step,
        travelled,
        where,
        zeros_like,
    )
    from fedsaddle.data.clients import Clients, clients
    from fedsaddle.engine.executors.loop import Loop
    from fedsaddle.engine.executors.ray import Ray
    from fedsaddle.engine.executors.vectorised import Vectorised
    from fedsaddle.engine.stationarity import Stationarity
    from fedsaddle.errors import BadInput, Notice
    from fedsaddle.faults import Faults
    from fedsaddle.fleet import Dropout, Everybody, Latency, Paper, Quorum, Trace
    from fedsaddle.merges import Mean, Median, Merge, TrimmedMean
    from fedsaddle.metric import Metric
    from fedsaddle.networks import Network
    from fedsaddle.outcome import Outcome
    from fedsaddle.problem import Batch, Federation, Problem
    from fedsaddle.problems import (
        AUC,
        GAN,
        PROBLEMS,
        Bilinear,
        DeepGMM,
        Fair,
        Groups,
        Limits,
        PartialAUC,
        Quadratic,
        Robust,
        RobustLeastSquares,
        ToyWGAN,
        TwoSines,
    )
    from fedsaddle.problems.players import Ball, Box, Free, Nonnegative, Simplex
    from fedsaddle.problems.task import task
    from fedsaddle.simulate import make_study, simulate
    from fedsaddle.steady import Steady

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "AUC",
    "CDMAADA",
    "CDMANC",
    "CDMAONE",
    "CODASCA",
    "DRFA",
    "FESSGDA",
    "FGDA",
    "FSGDA",
    "GAN",
    "PROBLEMS",
    "SAGDA",
    "AdaFGDA",
    "Algorithm",
    "BadInput",
    "Ball",
    "Batch",
    "Bilinear",
    "Box",
    "CODAPlus",
    "CatalystScaffoldS",
    "Checks",
    "Client",
    "Clients",
    "ControlVariates",
    "Count",
    "DeepGMM",
    "Dropout",
    "Everybody",
    "Exponent",
    "ExtraStep",
    "Fair",
    "Faults",
    "FeDualEx",
    "FedAvgM",
    "FedGDAGT",
    "FedNest",
    "FedNormSGDA",
    "FedNormSGDAPlus",
    "Federation",
    "Free",
    "Gradients",
    "Groups",
    "Latency",
    "Limits",
    "LocalSGDAPlus",
    "Loop",
    "Mean",
    "Median",
    "Merge",
    "Message",
    "Metric",
    "MomentumLocalSGDA",
    "Network",
    "Nonnegative",
    "Notice",
    "Outcome",
    "Pair",
    "Paper",
    "ParallelSGDA",
    "Parameters",
    "PartialAUC",
    "Phase",
    "Positive",
    "Problem",
    "ProxSkipVIP",
    "Quadratic",
    "Quorum",
    "Ray",
    "Reply",
    "Robust",
    "RobustLeastSquares",
    "SAGDAMinibatch",
    "ServerEG",
    "ServerOGDA",
    "Simplex",
    "Stationarity",
    "Steady",
    "StepSize",
    "Swept",
    "ToyWGAN",
    "Trace",
    "TrimmedMean",
    "Turn",
    "TwoSines",
    "Vectorised",
    "Weight",
    "clients",
    "further",
    "load",
    "make_study",
    "only_x",
    "only_y",
    "pull",
    "run",
    "simulate",
    "step",
    "sweep",
    "task",
    "travelled",
    "where",
    "zeros_like",
]

# Where each name of `__all__` is at home.
_HOMES = {
    name: f"fedsaddle.{home}"
    for home, names in {
        "algorithms": "ALGORITHMS CDMAADA CDMANC CDMAONE CODAPlus CODASCA CatalystScaffoldS DRFA "
        "ExtraStep LocalSGDAPlus ParallelSGDA FESSGDA FGDA FSGDA SAGDA AdaFGDA FeDualEx FedAvgM FedGDAGT "
        "FedNest FedNormSGDA FedNormSGDAPlus MomentumLocalSGDA ProxSkipVIP SAGDAMinibatch "
        "ServerEG ServerOGDA",
        "app.models": "load",
        "app.python": "Swept run sweep",
        "checks": "Checks",
        "core": "Algorithm Client ControlVariates Count Exponent Gradients Message Pair "
        "Parameters Phase Positive Reply StepSize Turn Weight further only_x only_y pull step "
        "travelled where zeros_like",
        "data.clients": "Clients clients",
        "engine.executors.loop": "Loop",
        "engine.executors.ray": "Ray",
        "engine.executors.vectorised": "Vectorised",
        "engine.stationarity": "Stationarity",
        "errors": "BadInput Notice",
        "faults": "Faults",
        "fleet": "Dropout Everybody Latency Paper Quorum Trace",
        "merges": "Mean Median Merge TrimmedMean",
        "metric": "Metric",
        "networks": "Network",
        "outcome": "Outcome",
        "problem": "Batch Federation Problem",
        "problems": "AUC Bilinear DeepGMM Fair GAN Groups Limits PROBLEMS PartialAUC Quadratic Robust "
        "RobustLeastSquares ToyWGAN TwoSines",
        "problems.players": "Ball Box Free Nonnegative Simplex",
        "problems.task": "task",
        "simulate": "make_study simulate",
        "steady": "Steady",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsaddle' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """So that `fedsaddle.simulate` is the function, although a module of that name is imported too."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
