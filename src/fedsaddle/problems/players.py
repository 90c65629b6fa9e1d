"""What a player of a task may be: a network, or a vector; and the set it stays in.

lambda: Net()               a network, by what makes one
10 or (3, 4)                a free vector or array of this shape, at first zero
torch.ones(10)              the same, with where it starts
Simplex(10), Ball(10, 1.0)  a vector that stays in a set, at first the point of it that is next to zero
Box(lambda: Critic(), -0.01, 0.01)  so does a network, each of its parameters
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedsaddle import projections
from fedsaddle.errors import BadInput, shown
from fedsaddle.layers import Mapped
from fedsaddle.networks import Network

Of = int | tuple[int, ...] | Tensor | nn.Module | Callable[[], nn.Module]


class ConvexSet(Protocol):
    """Where a player may be."""

    @property
    def of(self) -> Of: ...

    def project(self, v: Tensor) -> Tensor:
        """The nearest point of it, for a flat vector."""


@dataclass(frozen=True)
class Free:
    """Anywhere."""

    of: Of

    def project(self, v: Tensor) -> Tensor:
        return v


@dataclass(frozen=True)
class Simplex:
    """Weights that are not negative and add up to one. They begin equal."""

    of: int | Tensor

    def __post_init__(self) -> None:
        if isinstance(self.of, bool) or not isinstance(self.of, int | Tensor):
            raise BadInput(f"Simplex takes the number of weights, such as Simplex(10), got {shown(self.of)}")

    def project(self, v: Tensor) -> Tensor:
        return projections.simplex(v)


@dataclass(frozen=True)
class Ball:
    """All whose l2 norm is at most a radius."""

    of: Of
    radius: float

    def __post_init__(self) -> None:
        _check_number("the radius of a Ball", self.radius)
        if not self.radius > 0:
            raise BadInput(f"the radius of a Ball must be above 0, got {self.radius:g}")

    def project(self, v: Tensor) -> Tensor:
        return projections.ball(v, self.radius)


@dataclass(frozen=True)
class Box:
    """All whose every number is between two."""

    of: Of
    low: float
    high: float

    def __post_init__(self) -> None:
        _check_number("low of a Box", self.low)
        _check_number("high of a Box", self.high)
        if not self.low < self.high:
            raise BadInput(f"low of a Box must be below high, got {self.low:g} and {self.high:g}")

    def project(self, v: Tensor) -> Tensor:
        return projections.box(v, self.low, self.high)


@dataclass(frozen=True)
class Nonnegative:
    """All whose every number is at least 0, and at most `most`: the multipliers of constraints, say."""

    of: Of
    most: float = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.most, int | float) or not self.most > 0:
            raise BadInput(f"most of Nonnegative must be above 0, got {shown(self.most)}")

    def project(self, v: Tensor) -> Tensor:
        return projections.box(v, 0.0, self.most)


def _check_number(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{what} must be a finite number, got {shown(value)}")


class Applied:
    """A network with the parameters of one point, as a loss sees it: to be called as the module is."""

    parameters: dict[str, Tensor]  # those that are trained, by their names: for a penalty on them, say

    def __init__(self, network: Network, vector: Tensor, judged: bool = False) -> None:
        # Cut once, whoever uses the pieces how often: the gradient of each cut is a vector as long as all.
        self.parameters = network.named(vector)
        self._network, self._fixed, self._judged = network, network.fixed(vector), judged

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a loss has no '{name}' of a network: it calls the module, x(inputs), and finds parameters by "
            "their names, x.parameters['NAME']"
        )

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        with Mapped():
            return self._network.computed(self.parameters | self._fixed, inputs, named, self._judged)


@dataclass(frozen=True, eq=False)
class TaskPlayer:
    """One player of a task."""

    called: str  # x or y
    set: ConvexSet
    network: Network | None  # without one, it is a vector
    start: Tensor  # of a vector, in its shape

    def init(self, seed: int) -> Tensor:
        return self.start.flatten().clone() if self.network is None else self.network.init(seed)

    def seen(self, vector: Tensor, judged: bool = False) -> Any:
        """What a loss is given, or a metric, by which it is judged: a network is in eval mode there."""
        if self.network is None:
            return vector.view(self.start.shape)
        return Applied(self.network, vector, judged)

    @property
    def told(self) -> list[Any]:
        """The set by its name and its numbers."""
        return [type(self.set).__name__, *(value for name, value in vars(self.set).items() if name != "of")]


def player_from(called: str, given: object) -> TaskPlayer:
    """A player from what a person gives for it."""
    own: Any = given if hasattr(given, "project") and hasattr(given, "of") else Free(given)  # type: ignore[arg-type]
    of = own.of
    if isinstance(of, Tensor):
        return TaskPlayer(called, own, None, _checked_start(called, of))
    if isinstance(of, nn.Module) or (callable(of) and not isinstance(of, type)) or _is_module(of):
        return TaskPlayer(called, own, _network(called, of), torch.zeros(0))
    shape = (of,) if isinstance(of, int) and not isinstance(of, bool) else of
    if not isinstance(shape, tuple) or not shape or not all(type(n) is int and n > 0 for n in shape):
        raise BadInput(
            f"{called} must be a function that makes a module (lambda: Net()), the shape of a vector (10), "
            f"or a set (Simplex(10)), got {shown(of)}"
        )
    return TaskPlayer(called, own, None, torch.zeros(shape))


def _is_module(of: object) -> bool:
    return isinstance(of, type) and issubclass(of, nn.Module)


def _checked_start(called: str, start: Tensor) -> Tensor:
    if not start.is_floating_point() or not start.numel() or not bool(torch.isfinite(start).all()):
        raise BadInput(f"{called} must start at finite floats, got {shown(start)}")
    return start.detach().cpu()


def _network(called: str, of: Any) -> Network:
    """A network, if what makes it gives the same for the same seed."""
    build = (lambda: deepcopy(of)) if isinstance(of, nn.Module) else of
    try:
        network = Network(build)
        again, once = (network.init(1), network.init(1)) if network.size else (torch.zeros(0),) * 2
    except BadInput as error:
        raise BadInput(f"{called}: {error}") from None
    except Exception as error:
        raise BadInput(
            f"{called}: what makes its module failed: {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error
    if not network.size:
        raise BadInput(f"{called}: its module has no parameters that require a gradient")
    if not torch.equal(again, once):
        raise BadInput(
            f"{called}: what makes its module gives other parameters for the same torch.manual_seed: let all "
            "of them be drawn by PyTorch, or be loaded"
        )
    return network
