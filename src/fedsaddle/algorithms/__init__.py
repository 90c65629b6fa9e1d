"""The algorithms, by the names an experiment calls them."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedsaddle.algorithms.catalyst import CatalystScaffoldS
from fedsaddle.algorithms.cdma import CDMAADA, CDMANC, CDMAONE
from fedsaddle.algorithms.coda import CODASCA, CODAPlus
from fedsaddle.algorithms.sgda import ExtraStep, LocalSGDAPlus, ParallelSGDA

__all__ = [
    "ALGORITHMS",
    "CDMAADA",
    "CDMANC",
    "CDMAONE",
    "CODASCA",
    "CODAPlus",
    "CatalystScaffoldS",
    "Entry",
    "ExtraStep",
    "LocalSGDAPlus",
    "ParallelSGDA",
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
    # Where the authors' release of CDMA departs from the published rules:
    "codasca-release": Entry(CODASCA, "CODASCA whose dual is not corrected", {"beta": 0.0}),
    # Its snapshot follows every local step, so both gradients are taken at one point: CDMA-NC.
    "local-sgda-plus-release": Entry(CDMANC, "Local SGDA+ whose snapshot follows every step"),
}
