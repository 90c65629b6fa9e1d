"""Whether an algorithm and a problem can be called, and do what the quorum and each other ask of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from fedsaddle.core import Algorithm, Phase, Remembers
from fedsaddle.errors import BadInput
from fedsaddle.fleet import Quorum
from fedsaddle.problem import Composite, Problem, name_of
from fedsaddle.steady import Steady

# What is called of them, and with what.
OF_ALGORITHMS = {"init": ("z",), "phases": ()}
OF_PROBLEMS = {
    "init": ("seed",),
    "evaluate": ("z",),
    "loss": ("z", "xi"),
    "field": ("z", "xi"),
    "project": ("z",),
    "prox": ("z", "by"),
}


def check_fits(
    algorithm: Algorithm, problem: Problem, quorum: Quorum | None, steady: Steady | None = None
) -> None:
    check_called(type(algorithm).__name__, algorithm, OF_ALGORITHMS)
    check_called(name_of(problem), problem, OF_PROBLEMS)
    check_phases(type(algorithm).__name__, algorithm.phases())
    check_partial(algorithm, quorum)
    if quorum is not None and quorum.replacement and isinstance(algorithm, Remembers):
        raise BadInput(
            f"quorum.replacement: the clients of {type(algorithm).__name__} remember, and what they keep "
            "counts once; leave it out"
        )
    if isinstance(problem, Composite) and not getattr(algorithm, "proximal", False):
        raise BadInput(
            f"{name_of(problem)} has a prox, which {type(algorithm).__name__} does not take; take fedualex, "
            "or put the penalty into the loss"
        )
    if isinstance(problem, Composite) and steady is not None and steady.warmup is not None:
        raise BadInput(
            f"warmup: {type(algorithm).__name__} follows the penalty of {name_of(problem)} by the length of "
            "all steps so far, which must not change; leave it out"
        )


def check_called(who: str, one: object, methods: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a method that does not take what it will be given."""
    for name, given in methods.items():
        if getattr(one, name, None) is None:
            continue
        try:
            inspect.signature(getattr(one, name)).bind(*given)
        except ValueError:  # one that is written in C does not tell
            continue
        except TypeError:
            written = f"def {name}({', '.join(('self', *given))})"
            raise BadInput(f"{who}.{name} cannot be called as it will be: write {written}") from None


def check_phases(who: str, phases: object) -> None:
    """Refuse what is no tuple of phases: one pair of brackets is not enough."""
    if not isinstance(phases, tuple) or not phases or not all(isinstance(one, Phase) for one in phases):
        raise BadInput(
            f"{who}.phases must give a tuple of phases, such as (Phase(...),), got {type(phases).__name__}"
        )
    for phase in phases:
        check_called(who, phase, {"send": ("server",)})
        if not (isinstance(phase.steps, int) or callable(phase.steps)):
            raise BadInput(
                f"phase '{phase.name}' of {who}: steps must be a whole number, got {phase.steps!r}"
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
