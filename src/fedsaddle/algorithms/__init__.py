"""The algorithms, by the names an experiment calls them."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedsaddle.algorithms.catalyst import CatalystScaffoldS
from fedsaddle.algorithms.cdma import CDMAADA, CDMANC, CDMAONE
from fedsaddle.algorithms.coda import CODASCA, CODAPlus
from fedsaddle.algorithms.drfa import DRFA
from fedsaddle.algorithms.fednest import FedNest
from fedsaddle.algorithms.fednorm import FedNormSGDA, FedNormSGDAPlus
from fedsaddle.algorithms.fess import FESSGDA, FSGDA
from fedsaddle.algorithms.fgda import FGDA, AdaFGDA
from fedsaddle.algorithms.momentum import FedAvgM, MomentumLocalSGDA
from fedsaddle.algorithms.optimism import FeDualEx, ServerEG, ServerOGDA
from fedsaddle.algorithms.proxskip import ProxSkipVIP
from fedsaddle.algorithms.sgda import ExtraStep, LocalSGDAPlus, ParallelSGDA
from fedsaddle.algorithms.tracking import SAGDA, FedGDAGT, SAGDAMinibatch

__all__ = [
    "ALGORITHMS",
    "CDMAADA",
    "CDMANC",
    "CDMAONE",
    "CODASCA",
    "DRFA",
    "FESSGDA",
    "FGDA",
    "FSGDA",
    "SAGDA",
    "AdaFGDA",
    "CODAPlus",
    "CatalystScaffoldS",
    "Entry",
    "ExtraStep",
    "FeDualEx",
    "FedAvgM",
    "FedGDAGT",
    "FedNest",
    "FedNormSGDA",
    "FedNormSGDAPlus",
    "LocalSGDAPlus",
    "MomentumLocalSGDA",
    "ParallelSGDA",
    "ProxSkipVIP",
    "SAGDAMinibatch",
    "ServerEG",
    "ServerOGDA",
]


class Entry(NamedTuple):
    """A name in an experiment file: a class of algorithms, and the values that make it a named variant."""

    rule: type[Any]
    summary: str
    fixed: dict[str, float] = {}  # noqa: RUF012


ALGORITHMS = {
    "cdma-nc": Entry(CDMANC, "CDMA without correction"),
    "cdma-one": Entry(CDMAONE, "CDMA corrected by one cohort's mean gradient"),
    "cdma-ada": Entry(CDMAADA, "CDMA corrected by a recursive momentum"),
    "parallel-sgda": Entry(ParallelSGDA, "one step along the cohort's mean gradient"),
    "local-sgda-plus": Entry(LocalSGDAPlus, "local steps, ascent against a snapshot of x"),
    "extra-step": Entry(ExtraStep, "local extragradient steps"),
    "coda-plus": Entry(CODAPlus, "proximal stages of local steps"),
    "codasca": Entry(CODASCA, "CODA+ with control variates"),
    "catalyst-scaffold-s": Entry(CatalystScaffoldS, "corrected walks of random length in proximal stages"),
    # Newer than the paper:
    "fsgda": Entry(FSGDA, "local steps, then a step of the server"),
    "fess-gda": Entry(FESSGDA, "the same on a smoothed loss, whose centre follows x"),
    "momentum-local-sgda": Entry(MomentumLocalSGDA, "local steps along a mean of the visit's gradients"),
    "fedavg-m": Entry(FedAvgM, "local steps mixed with the last round's direction"),
    "sagda": Entry(SAGDA, "local steps corrected by gradients on all rows, and a step of the server"),
    "sagda-minibatch": Entry(SAGDAMinibatch, "the same corrected by a gradient on one minibatch"),
    "fedgda-gt": Entry(FedGDAGT, "SAGDA on all rows in every step"),
    "fgda": Entry(FGDA, "recursive momentum within the walks, averaged too"),
    "adafgda": Entry(AdaFGDA, "the same with steps scaled entry by entry"),
    "fednest": Entry(FedNest, "corrected walks of y, then of x"),
    "fed-norm-sgda": Entry(
        FedNormSGDA, "a step along the clients' mean directions, however many steps each makes"
    ),
    "fed-norm-sgda-plus": Entry(FedNormSGDAPlus, "the same, ascent against a snapshot of x"),
    "drfa": Entry(DRFA, "walks of x, and a step of y's weights on clients at a random place of them"),
    "afl": Entry(ParallelSGDA, "Parallel SGDA, where y weighs clients"),
    "server-eg": Entry(ServerEG, "an extragradient step whose gradients are walks"),
    "server-ogda": Entry(ServerOGDA, "an optimistic step whose gradients are walks"),
    "fedualex": Entry(FeDualEx, "local extragradient steps on a sum of directions"),
    "proxskip-vip": Entry(ProxSkipVIP, "controlled local steps until a common coin falls; all must answer"),
    # Where the authors' release of CDMA departs from the published rules:
    "codasca-release": Entry(CODASCA, "CODASCA whose dual is not corrected", {"beta": 0.0}),
    # Its snapshot follows every local step, so both gradients are taken at one point: CDMA-NC.
    "local-sgda-plus-release": Entry(CDMANC, "Local SGDA+ whose snapshot follows every step"),
}
