"""The networks, and how one is a flat vector: a player's x is the network's parameters, end to end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from fedsaddle.convolutions import Conv2d, ConvTranspose2d
from fedsaddle.errors import BadInput, shown
from fedsaddle.pooling import MaxPool2d
from fedsaddle.problem import COPIED


@dataclass(frozen=True, eq=False)
class Network:
    """A network as a function of one flat vector. It has no hidden state, so it can be mapped over lanes.

    Layers that draw or keep something in training are refused. A module that looks at `self.training` itself
    is as it was built where it learns, and in eval mode where it is `judged`. Parameters that do not require
    a gradient, and buffers, are no part of the vector: nobody sends them, and all lanes share the ones of the
    first that was built.
    """

    build: Callable[[], nn.Module]
    module: nn.Module = field(init=False, repr=False)  # the layers; what the vector holds is not used
    shapes: dict[str, torch.Size] = field(init=False, repr=False)
    size: int = field(init=False)
    _modes: list[tuple[nn.Module, bool]] = field(init=False, repr=False)  # of the layers, as they were built
    _copies: dict[torch.device, dict[torch.dtype, dict[str, Tensor]]] = field(
        init=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        # Now, not on first use: that may be inside a gradient, where no parameter can be made.
        module = _built(self.build, 0)
        _check_layers(module)
        shapes = {name: value.shape for name, value in module.named_parameters() if value.requires_grad}
        object.__setattr__(self, "module", module.requires_grad_(False))
        object.__setattr__(self, "_modes", [(layer, layer.training) for layer in module.modules()])
        object.__setattr__(self, "shapes", shapes)
        object.__setattr__(self, "size", sum(math.prod(shape) for shape in shapes.values()))

    def init(self, seed: int) -> Tensor:
        """PyTorch's own initialisation, from a seed, leaving its generator as it was."""
        named = dict(_built(self.build, seed).named_parameters())
        return torch.cat([named[name].detach().flatten() for name in self.shapes])

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The parameters that a vector holds, by their names."""
        pieces = torch.split(vector, [math.prod(shape) for shape in self.shapes.values()])
        return {
            name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def fixed(self, vector: Tensor) -> dict[str, Tensor]:
        """What no vector holds, where it is needed. It is copied there once."""
        there = self._copies.setdefault(vector.device, {})
        if vector.dtype not in there:
            held = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
            there[vector.dtype] = {
                name: value.to(vector.device, vector.dtype if value.is_floating_point() else None)
                for name, value in held.items()
                if name not in self.shapes
            }
            COPIED.add(self)
        return there[vector.dtype]

    def __call__(self, vector: Tensor, *inputs: Any, **named: Any) -> Any:
        return self.computed(self.named(vector) | self.fixed(vector), inputs, named)

    def computed(
        self, held: dict[str, Tensor], inputs: tuple[Any, ...], named: dict[str, Any], judged: bool = False
    ) -> Any:
        """What the layers give with these values in place of their own."""
        for layer, training in self._modes:
            layer.training = training and not judged
        return torch.func.functional_call(self.module, held, inputs, named or None)

    def at(self, vector: Tensor) -> nn.Module:
        """The module itself with these parameters, on the CPU and in eval mode."""
        module = _built(self.build, 0)
        held = {name: value.detach().cpu().clone() for name, value in self.named(vector).items()}
        module.load_state_dict({**module.state_dict(), **self.fixed(vector.cpu()), **held})
        return module.eval()


def _built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module whose random values are those of a seed. PyTorch's generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build()
    if not isinstance(module, nn.Module):
        raise BadInput(f"what makes a network must return a torch.nn.Module, got {shown(module)}")
    return module


def _check_layers(network: nn.Module) -> None:
    """Refuse layers that draw random numbers, or that look at rows which only pad a batch and keep a mean."""
    for name, layer in network.named_modules():
        called = f"the network's {type(layer).__name__}{f' ({name})' if name else ''}"
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats):
            raise BadInput(
                f"{called} keeps running means, which no client sends, and counts rows that only pad a "
                "batch: use GroupNorm or LayerNorm, or fedsaddle.networks.BatchNorm, which goes by the batch "
                "and is called with its rows' weights, batch.weight"
            )
        rate = getattr(layer, "p", 0) if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0)
        if isinstance(layer, nn.RReLU) or (isinstance(rate, int | float) and rate > 0):
            raise BadInput(
                f"{called} draws random numbers of its own, so two gradients on the same rows would differ: "
                "leave it out (its rate may be 0), or draw a mask in the loss by batch.uniform(...)"
            )


PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    Conv2d: nn.Conv2d,
    ConvTranspose2d: nn.ConvTranspose2d,
    MaxPool2d: nn.MaxPool2d,
}


def plain(module: nn.Module) -> nn.Module:
    """The same with PyTorch's own convolutions and pooling, for use outside, where nothing is mapped."""
    for layer in module.modules():
        if type(layer) in PLAIN:
            layer.__class__ = PLAIN[type(layer)]  # ours differ in how they compute, and hold nothing more
    return module


def lenet5(outputs: int = 1) -> nn.Module:
    """LeNet5 for 28 x 28 grey images: 44,426 parameters with ten outputs."""
    return nn.Sequential(
        Conv2d(1, 6, 5), nn.ReLU(), MaxPool2d(2),
        Conv2d(6, 16, 5), nn.ReLU(), MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs),
    )  # fmt: skip


def cifar_cnn(outputs: int = 1) -> nn.Module:
    """A small network for 32 x 32 colour images: 122,570 parameters with ten outputs."""
    return nn.Sequential(
        Conv2d(3, 32, 3), nn.ReLU(), MaxPool2d(2),
        Conv2d(32, 64, 3), nn.ReLU(), MaxPool2d(2),
        Conv2d(64, 64, 3), nn.ReLU(),
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


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": lenet5,
    "cifar-cnn": cifar_cnn,
    "logistic": logistic,
    "mlp": mlp,
}


def arguments_for(name: str, shape: tuple[int, ...], outputs: int) -> dict[str, Any]:
    """What a network's function is told: of features, outputs and shape, what it has parameters for."""
    told = {"features": math.prod(shape), "outputs": outputs, "shape": shape}
    asked = signature(NETWORKS[name]).parameters
    return {key: value for key, value in told.items() if key in asked}


def network_named(name: str, shape: tuple[int, ...], outputs: int) -> Network:
    """A network for inputs of a shape."""
    found = Network(partial(NETWORKS[name], **arguments_for(name, shape, outputs)))
    try:
        given = tuple(found.module(torch.zeros(2, *shape)).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        line = " ".join(str(error).split())
        raise BadInput(f"network {name} does not take inputs of {shape}: {line}") from error
    if given != (2, outputs):
        raise BadInput(f"network {name} must give {outputs} numbers for a row; for two rows it gave {given}")
    return found


# --- generators and discriminators: outputs of (inputs, the rows' weights) --------------------------------

NOISE = 100  # numbers a generator makes a picture of


class BatchNorm(nn.Module):
    """Batch normalisation by the batch's own mean and variance, in which a row counts by its weight.

    It keeps no running mean, so a client has nothing to send but parameters; and rows that only pad a batch
    weigh nothing and change nothing. Without weights all rows count the same.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, values: Tensor, weight: Tensor | None = None) -> Tensor:
        if weight is None:
            weight = torch.ones_like(values.flatten(1)[:, 0]) / values.shape[0]
        flat = values.flatten(2) if values.dim() > 2 else values[:, :, None]  # (row, channel, place)
        centred = flat - (weight @ flat.mean(2))[:, None]
        variance = weight @ centred.square().mean(2)
        scaled = (self.scale / (variance + 1e-5).sqrt())[:, None] * centred + self.shift[:, None]
        return scaled.reshape(values.shape)


class Layers(nn.Sequential):
    """Layers one after another; batch normalisation is told what the rows weigh."""

    def forward(self, inputs: Tensor, weight: Tensor | None = None) -> Tensor:
        for layer in self:
            inputs = layer(inputs, weight) if isinstance(layer, BatchNorm) else layer(inputs)
        return inputs


def _xavier(layers: Layers) -> Layers:
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.ConvTranspose2d):
            nn.init.xavier_uniform_(layer.weight)
    return layers


def mnist_generator() -> nn.Module:
    """A 28 x 28 grey picture from noise: 6,679,105 parameters."""
    return _xavier(
        Layers(
            nn.Linear(NOISE, 1024), nn.ReLU(), BatchNorm(1024),
            nn.Linear(1024, 6272), nn.ReLU(), BatchNorm(6272), nn.Unflatten(1, (128, 7, 7)),
            ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), BatchNorm(64),
            ConvTranspose2d(64, 1, 4, 2, 1), nn.Tanh(),
        )
    )  # fmt: skip


def mnist_discriminator() -> nn.Module:
    """Whether a 28 x 28 grey picture is real, as a logit: 1,102,721 parameters."""
    return _xavier(
        Layers(
            Conv2d(1, 32, 5), nn.LeakyReLU(0.01), MaxPool2d(2),
            Conv2d(32, 64, 5), nn.LeakyReLU(0.01), MaxPool2d(2),
            nn.Flatten(), nn.Linear(1024, 1024), nn.LeakyReLU(0.01), nn.Linear(1024, 1),
        )
    )  # fmt: skip


def dcgan_generator() -> nn.Module:
    """A 64 x 64 colour picture from noise (DCGAN, without biases): 3,576,704 parameters."""
    layers: list[nn.Module] = [nn.Unflatten(1, (NOISE, 1, 1))]
    widths = (NOISE, 512, 256, 128, 64)
    for number, (wide, narrow) in enumerate(pairwise(widths)):
        up = (4, 2, 1) if number else (4, 1, 0)
        layers += [ConvTranspose2d(wide, narrow, *up, bias=False), BatchNorm(narrow), nn.ReLU()]
    return Layers(*layers, ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


def dcgan_discriminator() -> nn.Module:
    """Whether a 64 x 64 colour picture is real, as a logit: 2,765,568 parameters."""
    layers: list[nn.Module] = [Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for narrow, wide in pairwise((64, 128, 256, 512)):
        layers += [Conv2d(narrow, wide, 4, 2, 1, bias=False), BatchNorm(wide), nn.LeakyReLU(0.2)]
    return Layers(*layers, Conv2d(512, 1, 4, 1, 0, bias=False), nn.Flatten())


def digits_generator() -> nn.Module:
    """An 8 x 8 grey picture from noise, small enough for a minute on a CPU."""
    return _xavier(
        Layers(
            nn.Linear(NOISE, 128), nn.ReLU(), BatchNorm(128), nn.Linear(128, 128), nn.ReLU(), BatchNorm(128),
            nn.Linear(128, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)),
        )
    )  # fmt: skip


def digits_discriminator() -> nn.Module:
    """Whether an 8 x 8 grey picture is real, as a logit."""
    return _xavier(
        Layers(
            nn.Flatten(), nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2),
            nn.Linear(128, 1),
        )
    )  # fmt: skip


# --- classifiers that judge pictures: logits of ten classes; their last layer but one gives features ------


def small_classifier(side: int) -> nn.Module:
    """Three convolutions for small grey pictures; a feature vector has 128 numbers."""
    layers: list[nn.Module] = []
    for narrow, wide in pairwise((1, 16, 32, 64)):
        layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if wide < 64 else []
    flat = 64 * (side // 4) ** 2
    features = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.25), nn.Linear(flat, 128), nn.ReLU())
    return nn.Sequential(features, nn.Linear(128, 10))


class Residual(nn.Module):
    """The block of a ResNet: two convolutions beside a short cut."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(narrow, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(),
            nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide),
        )  # fmt: skip
        same = narrow == wide and stride == 1
        cut = (nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))
        self.cut = nn.Sequential(*(() if same else cut))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.body(inputs) + self.cut(inputs))


def resnet18() -> nn.Module:
    """ResNet-18 with one input channel and ten classes: 11,175,370 parameters, 512 features."""
    layers: list[nn.Module] = [
        nn.Conv2d(1, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    for narrow, wide in pairwise((64, 64, 128, 256, 512)):
        layers += [Residual(narrow, wide, 1 if wide == 64 else 2), Residual(wide, wide, 1)]
    features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(features, nn.Linear(512, 10))
