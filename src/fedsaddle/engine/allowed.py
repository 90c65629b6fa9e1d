"""Where a problem lets the players be: the nearest point that it allows, and the prox of its penalties."""

from __future__ import annotations

from typing import TypeVar

from fedsaddle.core import Pair, Scalar
from fedsaddle.errors import BadInput, shown
from fedsaddle.mishaps import told_if_theirs
from fedsaddle.problem import Composite, Constrained, Problem, name_of

T = TypeVar("T")


def projected(problem: Problem, state: T) -> T:
    """The state with its point, itself or its z, brought back to where the problem allows it."""
    if not isinstance(problem, Constrained):
        return state
    if isinstance(state, Pair):
        return _moved(problem, "project", state)  # type: ignore[return-value]
    if isinstance(getattr(state, "z", None), Pair):
        return state._replace(z=_moved(problem, "project", state.z))  # type: ignore[attr-defined,no-any-return]
    raise TypeError(f"nothing to project in a {type(state).__name__}: it is neither a Pair nor has a Pair z")


def proximal(problem: Problem, z: Pair, by: Scalar) -> Pair:
    """The prox of the problem's penalties; of one without, the nearest point that it allows."""
    return _moved(problem, "prox", z, by) if isinstance(problem, Composite) else projected(problem, z)


def _moved(problem: Problem, method: str, z: Pair, *by: Scalar) -> Pair:
    """A point as the problem's own method moves it."""
    who = f"{name_of(problem)}.{method}"
    with told_if_theirs(who):
        found = getattr(problem, method)(z, *by)
    if not isinstance(found, Pair) or [one.shape for one in found] != [one.shape for one in z]:
        raise BadInput(f"{who} must give a Pair whose x and y have the shapes they had, got {shown(found)}")
    return found
