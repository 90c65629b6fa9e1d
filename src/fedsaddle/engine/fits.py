"""Whether an algorithm can do what the quorum and the problem ask of it."""

from __future__ import annotations

from fedsaddle.core import Algorithm
from fedsaddle.errors import BadInput
from fedsaddle.fleet import Quorum
from fedsaddle.problem import Composite, Problem, name_of


def check_fits(algorithm: Algorithm, problem: Problem, quorum: Quorum | None) -> None:
    check_partial(algorithm, quorum)
    if isinstance(problem, Composite) and not getattr(algorithm, "proximal", False):
        raise BadInput(
            f"{name_of(problem)} has a prox, which {type(algorithm).__name__} does not take; take fedualex, "
            "or put the penalty into the loss"
        )


def check_partial(algorithm: Algorithm, quorum: Quorum | None) -> None:
    """Refuse to cut walks short where all of their steps are counted on."""
    if quorum is None or quorum.partial_work is None:
        return
    for phase in algorithm.phases():
        if phase.length(0.0) and not phase.partial:
            raise BadInput(
                f"quorum.partial_work: {type(algorithm).__name__} counts on all steps of a walk (its phase "
                f"'{phase.name}' is not partial); leave it out, or take a rule that does not, such as "
                "fed-norm-sgda"
            )
