"""The networks, and how one is a flat vector: a player's x is the network's parameters, end to end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """A network as a function of one flat vector. It has no hidden state, so it can be mapped over lanes."""

    build: Callable[[], nn.Module]
    module: nn.Module = field(init=False, repr=False)  # the layers; their own values are never used
    shapes: dict[str, torch.Size] = field(init=False, repr=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        # Now, not on first use: that may be inside a gradient, where no parameter can be made.
        module = self.build().requires_grad_(False)
        shapes = {name: value.shape for name, value in module.named_parameters()}
        object.__setattr__(self, "module", module)
        object.__setattr__(self, "shapes", shapes)
        object.__setattr__(self, "size", sum(math.prod(shape) for shape in shapes.values()))

    def init(self, seed: int) -> Tensor:
        """PyTorch's own initialisation, from a seed, leaving its generator as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return torch.cat([value.detach().flatten() for value in self.build().parameters()])

    def __call__(self, vector: Tensor, inputs: Tensor) -> Tensor:
        pieces = torch.split(vector, [math.prod(shape) for shape in self.shapes.values()])
        named = {
            name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }
        outputs: Tensor = torch.func.functional_call(self.module, named, (inputs,))
        return outputs


def lenet5(outputs: int = 1) -> nn.Module:
    """LeNet5 for 28 x 28 grey images: 44,426 parameters with ten outputs."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs),
    )  # fmt: skip


def cifar_cnn(outputs: int = 1) -> nn.Module:
    """A small network for 32 x 32 colour images: 122,570 parameters with ten outputs."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, outputs),
    )  # fmt: skip


def logistic(features: int, outputs: int = 1) -> nn.Module:
    """A linear score."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, outputs))


def mlp(features: int, outputs: int = 1, hidden: int = 64) -> nn.Module:
    """Two hidden layers, for tables and small images."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, outputs),
    )  # fmt: skip
