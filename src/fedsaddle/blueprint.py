"""How a task's networks are built again without its data: names, arguments, and what new rows need, as JSON.

A model is three things, one after the other, each by its name in PyTorch's `state_dict`:

    inputs     from what stands in a file to what the network takes: bytes to [-1, 1], numbers standardised
    network    the layers, PyTorch's own
    outputs    from what the network gives to what a person wants: a score, probabilities

So a model takes rows as they are, and nobody has to know how they were scaled. It has a flat vector's values,
or a file's, and nothing of it was ever a pickle.
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedsaddle import networks
from fedsaddle.data.reading import DTYPES, Reader
from fedsaddle.errors import BadInput

LARGEST_ARGUMENT = 10**7  # of a network: beyond it nobody means it

# Beside those that a problem takes by name, among which may be a person's own.
BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "mnist-generator": networks.mnist_generator,
    "mnist-discriminator": networks.mnist_discriminator,
    "dcgan-generator": networks.dcgan_generator,
    "dcgan-discriminator": networks.dcgan_discriminator,
    "digits-generator": networks.digits_generator,
    "digits-discriminator": networks.digits_discriminator,
}


# --- before and after a network --------------------------------------------------------------------------


class Bytes(nn.Module):
    """Pictures in bytes to [-1, 1]."""

    def forward(self, rows: Tensor) -> Tensor:
        return (rows.to(torch.float32) - 127.5) * (1 / 127.5)


class Standardise(nn.Module):
    """Numbers less the training rows' mean, by their deviation; words are left as they are."""

    mean: Tensor
    spread: Tensor

    def __init__(self, mean: Tensor, spread: Tensor, words: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.cat([mean, mean.new_zeros(words)]))
        self.register_buffer("spread", torch.cat([spread, spread.new_ones(words)]))

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows.to(torch.float64)
        small = torch.where(self.spread > 0, (rows - self.mean) / self.spread, 0.0)
        return small.clamp(-1e6, 1e6).to(torch.float32)


class Second(nn.Module):
    """The second column: by what the authors' release scores a row."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows[:, 1]


class Response(nn.Module):
    """Back to the unit of what was learnt from."""

    mean: Tensor
    spread: Tensor

    def __init__(self, mean: float = 0.0, spread: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("spread", torch.tensor(spread))

    def forward(self, rows: Tensor) -> Tensor:
        return rows.flatten() * self.spread + self.mean


OUTPUTS: dict[str, Callable[[], list[nn.Module]]] = {
    "score": lambda: [nn.Flatten(0), nn.Sigmoid()],
    "release": lambda: [nn.Softmax(1), Second()],
    "release-lenet5": lambda: [nn.ReLU(), nn.Softmax(1), Second()],
    "probabilities": lambda: [nn.Softmax(1)],
    "logit": lambda: [nn.Flatten(0)],
    "response": lambda: [Response()],
    "moment": lambda: [nn.Flatten(0)],
    "picture": list,
}


# --- a blueprint -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """One network of a task."""

    network: str
    arguments: dict[str, Any]  # whole numbers, or a shape
    outputs: str
    noise: int = 0  # of a generator: how many numbers between -1 and 1 it takes, in place of rows
    takes: Sequence[str] = ()  # what it takes in place of the rows of files: numbers, by their names

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.takes):
            raise ValueError(f"takes {self.takes}")
        for what, given, known in (
            ("network", self.network, {*BUILDERS, *networks.NETWORKS}),
            ("outputs", self.outputs, {*OUTPUTS}),
        ):
            if given not in known:
                raise ValueError(f"{what} {given} is not known here")
        known_arguments = inspect.signature(self.builder).parameters
        for name, value in (*self.arguments.items(), ("noise", self.noise)):
            least = 0 if name == "noise" else 1
            for one in value if isinstance(value, list | tuple) else [value]:
                if type(one) is not int or not least <= one <= LARGEST_ARGUMENT:
                    raise ValueError(f"{name} {value}")
            if name != "noise" and name not in known_arguments:
                raise ValueError(name)

    @property
    def builder(self) -> Callable[..., nn.Module]:
        return BUILDERS.get(self.network) or networks.NETWORKS[self.network]

    def module(self, reader: Reader) -> nn.Sequential:
        """The layers, whose values are nobody's."""
        return self.around(self.builder(**self.arguments), reader)

    def around(self, network: nn.Module, reader: Reader) -> nn.Sequential:
        """A network with what comes before and after it."""
        return nn.Sequential(
            OrderedDict(
                inputs=nn.Identity() if self.noise or self.takes else _inputs(reader),
                network=networks.plain(network),
                outputs=nn.Sequential(*OUTPUTS[self.outputs]()),
            )
        )


def _inputs(reader: Reader) -> nn.Module:
    scaling = reader.scaling
    if scaling is None:
        return Bytes() if reader.dtype == "uint8" else nn.Identity()
    words = math.prod(reader.shape) - len(scaling.mean)
    return Standardise(scaling.mean.cpu(), scaling.spread.cpu(), words)


@dataclass(frozen=True)
class Blueprint:
    """A task's networks by role, the first the one that a person wants, and how a file becomes their rows."""

    parts: dict[str, Piece]
    reader: Reader
    positive: str | None = None  # of a score: the class that is scored high
    together: int = 1  # rows that must be computed together, where they share batch statistics

    def whole(self, trained: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        """Trained networks as models that take rows as they are, ready to use."""
        return {
            role: part.around(trained[role].to(torch.float32), self.reader).eval()
            for role, part in self.parts.items()
        }

    def model(self, role: str, tensors: Mapping[str, Tensor]) -> nn.Module:
        """The model of a role with the values of a file."""
        with torch.device("meta"):  # nothing is made before it is known to fit
            module = self.parts[role].module(self.reader)
        return trusted(module, role, tensors)

    def example(self, role: str, rows: int) -> Tensor:
        """What a model takes, in shape and type."""
        part = self.parts[role]
        if part.noise or part.takes:
            return torch.zeros(rows, part.noise or len(part.takes))
        return torch.zeros(rows, *self.reader.shape, dtype=DTYPES[self.reader.dtype])

    # --- as JSON ---

    def to_json(self) -> dict[str, Any]:
        return {
            "parts": {role: vars(part) for role, part in self.parts.items()},
            "positive": self.positive,
            "together": self.together,
            "reader": self.reader.to_json(),
        }

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> Blueprint:
        """The inverse; what is none is refused in one line."""
        try:
            parts = {str(role): Piece(**part) for role, part in dict(held["parts"]).items()}
            positive, together = held["positive"], held["together"]
            if not parts or not isinstance(positive, str | None):
                raise ValueError("positive")
            if type(together) is not int or not 1 <= together <= LARGEST_ARGUMENT:
                raise ValueError("together")
            return cls(parts, Reader.from_json(held["reader"]), positive, together)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadInput(f"models/model.json does not say how to build a model ({error})") from None


def trusted(module: nn.Module, role: str, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module with the values of a file, ready to use; values of another module, or none, are refused."""
    expected = {name: (value.shape, value.dtype) for name, value in module.state_dict().items()}
    given = {name: (value.shape, value.dtype) for name, value in tensors.items()}
    for name in sorted(expected.keys() | given.keys()):
        if name not in given or name not in expected:
            lacks = "lacks" if name in expected else "has"
            raise BadInput(f"the file of '{role}' {lacks} '{name}': it is not of this model")
        if expected[name] != given[name]:
            (shape, dtype), (own_shape, own_dtype) = expected[name], given[name]
            raise BadInput(
                f"the file of '{role}' has {tuple(own_shape)} in {own_dtype} for '{name}', the model "
                f"{tuple(shape)} in {dtype}: it is not of this model"
            )
        if not tensors[name].isfinite().all():
            raise BadInput(f"the file of '{role}' holds a number in '{name}' that is not finite")
    module.load_state_dict(dict(tensors), assign=True)
    return module.requires_grad_(True).eval()


@runtime_checkable
class Drawn(Protocol):
    """A task whose networks can be built again without it."""

    @property
    def blueprint(self) -> Blueprint: ...
