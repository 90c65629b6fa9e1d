"""The words an algorithm is written in.

Two players share one loss f(x, y): x descends, y ascends. Every sign of the package is in `step`,
its inverse `travelled`, and `pull`; nothing else adds or subtracts with a player in mind.

An algorithm is a frozen dataclass. Its fields are its hyperparameters; its phases say what the server
sends, what one client computes and how the server merges the mean of the answers. It never sees a
device, a dataset, a socket, a loop over clients or a log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from fedsaddle.ranges import Range as Range  # who says what a number may be finds it here

Scalar = float | Tensor  # a float in an experiment file, a tensor when a lane of them is mapped over
T = TypeVar("T")


class Pair(NamedTuple):
    """One flat vector for each player: an iterate, a gradient, a correction."""

    x: Tensor
    y: Tensor

    def __add__(self, other: Pair) -> Pair:  # type: ignore[override]
        return Pair(self.x + other.x, self.y + other.y)

    def __sub__(self, other: Pair) -> Pair:
        return Pair(self.x - other.x, self.y - other.y)

    def __mul__(self, scale: Scalar) -> Pair:  # type: ignore[override]
        return Pair(self.x * scale, self.y * scale)

    def __rmul__(self, scale: Scalar) -> Pair:  # type: ignore[override]
        return self * scale

    def to(self, device: torch.device | str) -> Pair:
        return Pair(self.x.to(device), self.y.to(device))


def step(z: Pair, d: Pair, eta: Scalar, gamma: Scalar) -> Pair:
    """Move along d: x descends by eta, y ascends by gamma."""
    return Pair(z.x - eta * d.x, z.y + gamma * d.y)


def travelled(start: Pair, end: Pair, eta: Scalar, gamma: Scalar) -> Pair:
    """The d for which step(start, d, eta, gamma) is end."""
    return Pair((start.x - end.x) / eta, (end.y - start.y) / gamma)


def pull(z: Pair, centre: Pair) -> Pair:
    """The direction that draws both players to the centre (the gradient of a proximal term)."""
    return Pair(z.x - centre.x, centre.y - z.y)


def zeros_like(z: Pair) -> Pair:
    return Pair(torch.zeros_like(z.x), torch.zeros_like(z.y))


def only_x(z: Pair) -> Pair:
    """What is left when nothing of y is sent."""
    return Pair(z.x, z.y[:0])


def only_y(z: Pair) -> Pair:
    """What is left when nothing of x is sent."""
    return Pair(z.x[:0], z.y)


def further(z: Pair, towards: Pair, eta_g: Scalar, gamma_g: Scalar) -> Pair:
    """From z towards another point, as far as the server's steps say: 1 is there."""
    return Pair(z.x + eta_g * (towards.x - z.x), z.y + gamma_g * (towards.y - z.y))


def where(condition: Tensor, then: Pair, otherwise: Pair) -> Pair:
    """Choose between two pairs by a tensor, so that one traced round serves all rounds."""
    return Pair(torch.where(condition, then.x, otherwise.x), torch.where(condition, then.y, otherwise.y))


# --- messages -----------------------------------------------------------------------------------------

Message = dict[str, Pair]  # its names are keyword arguments of the receiver: the signature is the schema

# What a message carries. Annotating an argument with one of these is how its floats are counted.
Parameters = Annotated[Pair, "parameters"]
Gradients = Annotated[Pair, "gradients"]
ControlVariates = Annotated[Pair, "control variates"]
KINDS = ("parameters", "gradients", "control variates")


class Reply(NamedTuple):
    """A client's answer: what goes up, and what it keeps for its next visit."""

    up: Message
    keep: Pair | None = None


class Turn(NamedTuple):
    """What the server knows when it merges."""

    t: Tensor  # rounds completed before this one
    share: Tensor  # S / N, the part of all clients whose answers are being merged
    steps: Tensor  # the local steps behind an answer, on average
    chance: Tensor  # U[0, 1), that of the phase's clients too
    prox: Callable[[Pair, Scalar], Pair]  # as a client's


class Client(Protocol):
    """An oracle for one client in one phase. The engine makes it; an algorithm only asks."""

    t: Tensor  # rounds completed before this one
    steps: Tensor  # local steps that this visit makes; where its walk may be cut short, known after it
    chance: Tensor  # U[0, 1), the same for all clients of this phase
    kept: Any  # the Pair this client kept, for an algorithm with `remember`; None otherwise

    def grad(self, z: Pair, xi: Any) -> Pair:
        """The gradients (df/dx, df/dy) on one minibatch. xi holds ALL its randomness: rows and noise."""

    def full_grad(self, z: Pair) -> Pair:
        """The same over all of the client's data."""

    def value(self, z: Pair, xi: Any) -> Tensor:
        """The loss on one minibatch, of a problem that has one."""

    def full_value(self, z: Pair) -> Tensor:
        """The same over all of the client's data."""

    def sample(self) -> Any:
        """A minibatch beside those of the walk. It is the same in all phases of a round: what a client found
        on it before need not be kept, it can be found again."""

    def walk(self, move: Callable[..., T], start: T) -> T:
        """Apply move(z, xi) once for each local step, each with minibatches of its own.

        A move is a function: what it leaves elsewhere, in a list or a counter, keeps a walk from being
        recorded by the step.

        What moves is a Pair, or a NamedTuple with a Pair z; after each step that is projected.
        """

    def normalised(self, start: Pair, end: Pair) -> Pair:
        """Where a walk would have ended with all of its steps: one that was cut short, as much farther on."""

    def project(self, z: Pair) -> Pair:
        """The nearest point that the problem allows, for a rule that looks at points beside its walk."""

    def prox(self, z: Pair, by: Scalar) -> Pair:
        """After steps of this length, z with the problem's penalties; without any, as `project`."""


# --- hyperparameters and their ranges, which `ranges.check` reads ---------------------------------------


STEP = "step size"  # what a warm-up multiplies, and what to lower where a run collapses
StepSize = Annotated[Scalar, Range(above=0), STEP]
Weight = Annotated[Scalar, Range(least=0)]
Exponent = Annotated[Weight, Range(most=1)]
Positive = Annotated[Scalar, Range(above=0)]
Count = Annotated[int, Range(least=1)]  # counts are static: they shape the computation


# --- phases and algorithms ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """One exchange with one cohort."""

    name: str
    send: Callable[[Any], Message]  # server -> what every invited client receives
    work: Callable[..., Reply]  # (client, **message) -> its answer
    merge: Callable[..., Any]  # (server, turn, **mean of the answers) -> server
    steps: int | Callable[[float], int] = 0  # local steps, or a rule for chance ~ U[0, 1) of a lane and round
    batches: int = 1  # minibatches a local step draws
    partial: bool = False  # whether walks may be cut short: then it goes by client.steps or client.normalised

    @property
    def varied(self) -> bool:
        """Whether the number of local steps is random."""
        return callable(self.steps)

    def length(self, chance: float) -> int:
        """The local steps of a visit."""
        return self.steps(chance) if callable(self.steps) else self.steps


class Algorithm(Protocol):
    """A frozen dataclass of hyperparameters with these two methods. Its server state has a field z."""

    def init(self, z: Pair) -> Any:
        """The server before the first round."""

    def phases(self) -> tuple[Phase, ...]:
        """The exchanges of one round, in order."""


@runtime_checkable
class Remembers(Protocol):
    """An algorithm whose clients keep something between rounds."""

    def remember(self, z: Pair) -> Pair:
        """What a client holds before its first visit."""
