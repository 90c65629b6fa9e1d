"""Strata: groups of clients that take turns in being invited, so that no cohort is without one for long.

Clients of one stratum are put in random order and spread evenly over a line that begins at a random place,
stratum by stratum; a cohort is the first S^ of all (`draws.choose_in_turn`). Every client's place on the line
is uniform, as without strata, but a cohort has its share of each stratum, give or take one client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from fedsaddle.errors import BadInput, shown, unknown
from fedsaddle.fleet import Quorum
from fedsaddle.problem import Federation, Held, Problem

Strata = str | Sequence[int]  # a column of the clients' rows, or each client's number


def strata_of(federation: Federation, said: Strata) -> Tensor:
    """The stratum of each client: what most of its rows have in a column, or as it is said."""
    clients = len(federation)
    if not isinstance(said, str):
        numbers = [one for one in said if isinstance(one, int) and not isinstance(one, bool)]
        if len(numbers) != clients or len(said) != clients:
            raise BadInput(
                f"strata must be a column, or a whole number for each of the {clients} clients, got "
                f"{shown(list(said))[:80]}"
            )
        return _numbered(torch.tensor(numbers))
    able = {
        name: table
        for name, table in federation.rows.items()
        if table.dim() == 1 and not table.is_floating_point()
    }
    if said not in able:
        raise unknown("column in strata", said, able)
    table = able[said] if federation.order is None else able[said][federation.order]
    value, owner = _numbered(table), torch.repeat_interleave(torch.arange(clients), federation.sizes)
    kinds = int(value.max()) + 1
    counts = torch.bincount(owner * kinds + value, minlength=clients * kinds).reshape(clients, kinds)
    return _numbered(counts.argmax(1))


def check_sampling(quorum: Quorum, weighted: bool, strata: Strata | None, bars: bool) -> None:
    """Refuse two ways to say who is invited, and a stratified quorum where there are no strata."""
    ways = {"weights": weighted, "strata": strata is not None, "quorum.replacement": quorum.replacement}
    said = [name for name, given in ways.items() if given]
    if len(said) > 1:
        raise BadInput(f"{said[0]} and {said[1]} both say who is invited: give one of them")
    if quorum.replacement and bars:
        raise BadInput(
            "quorum.replacement draws from all clients, and checks.strikes bars some: leave one out"
        )
    if quorum.stratified and strata is None:
        raise BadInput(
            "a stratified quorum needs strata: say sampling = { strata = ... } (in Python, strata=...)"
        )


F = TypeVar("F")


def tied(fleet: F, problem: Problem) -> F:
    """The fleet with a number for each client where it has some for strata. Real devices need no fleet."""
    if isinstance(problem, Held) and problem.away:
        return fleet
    tie: Callable[[Callable[[str], Tensor]], F] | None = getattr(fleet, "tied", None)
    return fleet if tie is None else tie(partial(strata_of, problem.federation))


def _numbered(values: Tensor) -> Tensor:
    """The same groups, numbered from 0."""
    numbers: Tensor = torch.unique(values, return_inverse=True)[1]
    return numbers
