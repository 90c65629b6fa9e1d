"""Randomness without state: every draw is a pure function of (seed, round, phase, client).

A key is a 64-bit integer. `fold` derives a new key from a key and a number by one step of SplitMix64, so a
key for a (seed, round, phase, client) is four folds, and the j-th random word of a key is one fold more.
The arithmetic is 64-bit integer multiplication, shift and exclusive-or, which is the same on a CPU, on a
GPU, under vmap, for one client or for a million at once. So keys, rows, cohorts and uniforms have the same
bits everywhere; normals and weighted choices go through a logarithm, whose last bit may differ on another
device. There is no generator state to save or to share.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# What a draw is for. Two purposes never share a key.
COHORT, FLEET, BATCHES, STEPS, INIT, PROBLEM, DEVICE, SWEEP, FAULTS = range(9)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_STRIDE = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift(word: Tensor, by: int) -> Tensor:
    # A signed >> copies the sign bit in; the mask takes it out again.
    return (word >> by) & ((1 << (64 - by)) - 1)


def fold(key: Tensor, number: Tensor | int) -> Tensor:
    """A new key from a key and a number; both broadcast."""
    # A plain number stays one: a tensor made of it would have to be copied to the key's device.
    word = key + (
        _STRIDE * (number + 1) if isinstance(number, Tensor) else _signed(_STRIDE * (int(number) + 1) % 2**64)
    )
    word = (word ^ _shift(word, 30)) * _MIX_1
    word = (word ^ _shift(word, 27)) * _MIX_2
    return word ^ _shift(word, 31)


def key(purpose: int, *numbers: Tensor | int) -> Tensor:
    """The key of a purpose and the numbers it depends on, such as (seed, round, phase, client)."""
    devices = [number.device for number in numbers if isinstance(number, Tensor)]
    result = torch.full((), purpose, device=devices[0] if devices else None)
    for number in numbers:
        result = fold(result, number)
    return result


def words(key: Tensor, count: int) -> Tensor:
    """`count` non-negative 63-bit words for each key, in a new last dimension."""
    return _shift(fold(key[..., None], torch.arange(count, device=key.device)), 1)


def uniform(key: Tensor, *shape: int) -> Tensor:
    """U[0, 1) in float64, exact multiples of 2^-53. Element j depends on the key and j alone."""
    flat: Tensor = _shift(fold(key[..., None], torch.arange(math.prod(shape), device=key.device)), 11)
    return (flat.to(torch.float64) * 2.0**-53).reshape(*key.shape, *shape)


def normal(key: Tensor, *shape: int) -> Tensor:
    """N(0, 1) in float64, by inversion of the uniforms."""
    # Away from 0 and 1, where the inverse is infinite.
    inverted: Tensor = torch.special.ndtri((uniform(key, *shape) + 2.0**-54).clamp(max=1 - 2.0**-53))
    return inverted


def batches(key: Tensor, size: Tensor, count: int, longest: int) -> Tensor:
    """`count` row numbers below `size` for each key: one shuffled epoch after another.

    Slot s stands for row s % size in epoch s // size. Sorting the slots by (epoch, random word) shuffles
    every epoch by itself, with one sort and a shape that depends only on `count` and on `longest`, the
    largest size. Slots past the last full epoch sort behind everything that is used, so a client's rows do
    not depend on how long the others are.
    """
    slot = torch.arange(count + longest, device=key.device)
    size = size[..., None]
    epoch = torch.minimum(slot // size, count // size + 1)  # what is never used need not be told apart
    word = _shift(fold(key[..., None], slot), 24)  # 40 bits, below the epoch's 23
    order = torch.sort((epoch << 40) | word, dim=-1, stable=True).indices
    return order[..., :count] % size


def choose(key: Tensor, population: int, count: int) -> list[list[int]]:
    """For each key, `count` different numbers below `population`, uniformly, in random order.

    The first steps of a Fisher-Yates shuffle, of which only the touched places are kept: the cost is that
    of the cohort, not of the population.
    """
    chosen = []
    for drawn in words(key, count).tolist():
        moved: dict[int, int] = {}
        for place, word in enumerate(drawn):
            other = place + word % (population - place)
            moved[place], moved[other] = moved.get(other, other), moved.get(place, place)
        chosen.append([moved[place] for place in range(count)])
    return chosen


def choose_with_replacement(key: Tensor, population: int, count: int) -> list[list[int]]:
    """The same where a number may come again."""
    chosen: list[list[int]] = (words(key, count) % population).tolist()
    return chosen


def choose_weighted(key: Tensor, weights: Tensor, count: int) -> list[list[int]]:
    """The same with a weight for each number: one after another, each with odds of its weight."""
    # The smallest of independent exponentials with rates w falls on i with odds w_i; so do the next ones.
    waits = -torch.log(uniform(key, len(weights)) + 2.0**-54) / weights
    chosen: list[list[int]] = waits.topk(count, largest=False, sorted=True).indices.tolist()
    return chosen


def choose_in_turn(key: Tensor, strata: Tensor, count: int) -> list[list[int]]:
    """The same where numbers of one stratum (0, 1, ...) come at equal distances, in random order."""
    sizes = torch.bincount(strata)
    first = sizes.cumsum(0) - sizes
    order = (strata + uniform(fold(key, 0), len(strata))).argsort(stable=True, dim=-1)
    rank = order.argsort(-1) - first[strata]
    begin = uniform(fold(key, 1), len(sizes))
    place = (rank + begin[..., strata]) / sizes[strata]
    chosen: list[list[int]] = place.argsort(stable=True, dim=-1)[..., :count].tolist()
    return chosen
