"""How often something befalls each client: at one rate, at one of its own, or at one of its stratum's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedsaddle.errors import BadInput
from fedsaddle.ranges import Rate

ClientRates = Rate | tuple[Rate, ...] | dict[str, tuple[Rate, ...]]  # for all; for each; or by a column


def by_stratum(name: str, rates: ClientRates, strata: Callable[[str], Tensor]) -> ClientRates:
    """One for each client, of rates for the strata by a column."""
    if not isinstance(rates, dict):
        return rates
    if len(rates) != 1:
        raise BadInput(f"{name} goes by one column, such as {{ label = [...] }}, got {len(rates)}")
    ((column, each),) = rates.items()
    stratum = strata(column)
    if len(each) != (there := int(stratum.max()) + 1):
        raise BadInput(
            f"{name} must have a rate for each of the {there} strata by '{column}', got {len(each)}: clients "
            "belong where most of their rows do"
        )
    return tuple(torch.tensor(each, dtype=torch.float64)[stratum].tolist())


def check_each(name: str, rates: ClientRates, clients: int) -> None:
    if isinstance(rates, tuple) and len(rates) != clients:
        raise BadInput(
            f"{name} must be one number or one for each of the {clients} clients, got {len(rates)}"
        )


def rate_of(rates: ClientRates, clients: Tensor) -> Tensor:
    """The rate of each client, where all have the same or each its own."""
    values = torch.tensor(rates, dtype=torch.float64)
    return values[clients] if values.dim() else values
