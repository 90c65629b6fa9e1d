"""FedSaddle: minimax learning on fleets of unreliable devices."""

from fedsaddle.algorithms import (
    ALGORITHMS,
    CDMAADA,
    CDMANC,
    CDMAONE,
    CODASCA,
    CatalystScaffoldS,
    CODAPlus,
    ExtraStep,
    LocalSGDAPlus,
    ParallelSGDA,
)
from fedsaddle.checks import Checks
from fedsaddle.core import Pair
from fedsaddle.engine.loop import Loop
from fedsaddle.engine.ray import Ray
from fedsaddle.engine.vectorised import Vectorised
from fedsaddle.errors import BadInput, Notice
from fedsaddle.faults import Faults
from fedsaddle.fleet import Dropout, Everybody, Latency, Paper, Quorum, Trace
from fedsaddle.merges import Mean, Median, Merge, TrimmedMean
from fedsaddle.problems import (
    AUC,
    GAN,
    PROBLEMS,
    Bilinear,
    Fair,
    Quadratic,
    Robust,
    RobustLeastSquares,
    ToyWGAN,
    TwoSines,
)
from fedsaddle.simulate import Outcome, make_study, simulate

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "AUC",
    "CDMAADA",
    "CDMANC",
    "CDMAONE",
    "CODASCA",
    "GAN",
    "PROBLEMS",
    "BadInput",
    "Bilinear",
    "CODAPlus",
    "CatalystScaffoldS",
    "Checks",
    "Dropout",
    "Everybody",
    "ExtraStep",
    "Fair",
    "Faults",
    "Latency",
    "LocalSGDAPlus",
    "Loop",
    "Mean",
    "Median",
    "Merge",
    "Notice",
    "Outcome",
    "Pair",
    "Paper",
    "ParallelSGDA",
    "Quadratic",
    "Quorum",
    "Ray",
    "Robust",
    "RobustLeastSquares",
    "ToyWGAN",
    "Trace",
    "TrimmedMean",
    "TwoSines",
    "Vectorised",
    "make_study",
    "simulate",
]
