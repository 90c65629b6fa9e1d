"""What every contender is given: a folder with the data, the draws and the sizes of the work.

The orchestrator writes the folder once. Cohorts and minibatches in it are those that FedSaddle draws, so that
all contenders walk the same clients over the same rows, and only rounding may tell their results apart. This
file and what it imports need PyTorch and NumPy, nothing else: the rivals read it in their own environments.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from fedsaddle import networks

WARM = 10  # rounds that are not timed


class Order:
    """One folder: `order.json` and arrays that are mapped, not loaded, until somebody needs them."""

    def __init__(self, folder: str | Path, device: str = "cpu") -> None:
        self.folder, self.device = Path(folder), torch.device(device)
        self.rule: dict[str, Any] = json.loads((self.folder / "order.json").read_text())
        self.rounds: int = self.rule["rounds"]  # with those that only warm up
        self.cohort = self._array("cohort")  # (round, visit)
        self.batches = self._array("batches")  # (round, visit, step, row): numbers of rows
        self.visits: int = self.cohort.shape[1]

    def _array(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy", mmap_mode="r")

    def tensor(self, name: str) -> Tensor:
        """A table on the device."""
        return torch.from_numpy(np.load(self.folder / f"{name}.npy")).to(self.device)

    @cached_property
    def table(self) -> tuple[Tensor, Tensor]:
        return self.tensor("input"), self.tensor("label")

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """Where each client's rows begin and end."""
        ends = np.cumsum(self._array("sizes")).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @cached_property
    def plan(self) -> Tensor:
        return self.tensor("batches")

    def minibatches(self, round: int, visit: int) -> tuple[Tensor, Tensor]:
        """All minibatches of one visit, one after another: (step x row, ...)."""
        inputs, labels = self.table
        rows = self.plan[round, visit].flatten()
        return scaled(inputs[rows]), labels[rows]

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """All rows of one client."""
        start, stop = self.runs[number]
        inputs, labels = self.table
        return scaled(inputs[start:stop]), labels[start:stop]

    def model(self) -> Any:
        """The model at its starting point."""
        model = pytorchs(MODELS[self.rule["model"]](self.rule)).to(self.device)
        for player, name in ((model.descending(), "x"), (model.ascending(), "y")):
            nn.utils.vector_to_parameters(self.tensor(name), player)
        return model


def scaled(inputs: Tensor) -> Tensor:
    return (inputs.to(torch.float32) - 127.5) * (1 / 127.5) if inputs.dtype == torch.uint8 else inputs


# --- the models, as anybody would write them ---------------------------------------------------------------


def pytorchs(model: nn.Module) -> Any:
    """The model with PyTorch's own layers: the engine's are made for many networks at once."""
    for layer in model.modules():
        for own in (nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d):
            if isinstance(layer, own):
                layer.__class__ = own
    return model


class AUC(nn.Module):
    """x = (network, a, b), y = alpha."""

    def __init__(self, rule: dict[str, Any]) -> None:
        super().__init__()
        build = {
            "lenet5": networks.lenet5,
            "logistic": lambda: networks.logistic(rule["features"]),
            "mlp": lambda: networks.mlp(rule["features"]),
        }
        self.network = build[rule["network"]]()
        self.ab, self.alpha = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
        self.p = rule["p"]

    def descending(self) -> list[nn.Parameter]:
        return [*self.network.parameters(), self.ab]

    def ascending(self) -> list[nn.Parameter]:
        return [self.alpha]

    def loss(self, inputs: Tensor, positive: Tensor) -> Tensor:
        s, p, one = torch.sigmoid(self.network(inputs)[:, 0]), self.p, positive.to(torch.float32)
        a, b = self.ab
        squares = (1 - p) * (s - a) ** 2 * one + p * (s - b) ** 2 * (1 - one)
        pairs = 2 * (1 + self.alpha) * s * (p - one)  # p for a negative, p - 1 for a positive
        return (squares + pairs).mean() - p * (1 - p) * self.alpha[0] ** 2

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        return {}  # pfl-research wants one

    def grads(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """Of all parameters, those of x first."""
        both = [*self.descending(), *self.ascending()]
        return list(torch.autograd.grad(self.loss(inputs, labels), both))


class Robust(nn.Module):
    """x = an MLP, y = what is added to every input."""

    def __init__(self, rule: dict[str, Any]) -> None:
        super().__init__()
        self.network = networks.mlp(rule["features"], rule["classes"], rule["hidden"])
        self.y = nn.Parameter(torch.zeros(rule["features"]))
        self.penalty = rule["penalty"]

    def descending(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    def ascending(self) -> list[nn.Parameter]:
        return [self.y]

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        outputs = self.network(inputs.flatten(1) + self.y)
        return cross_entropy(outputs, labels) - self.penalty / 2 * self.y.square().sum()

    metrics, grads = AUC.metrics, AUC.grads


class GAN(nn.Module):
    """x = a generator, y = a discriminator; noise is drawn by PyTorch. Not a loss but a game: no rivals."""

    def __init__(self, rule: dict[str, Any]) -> None:
        super().__init__()
        self.G, self.D = networks.mnist_generator(), networks.mnist_discriminator()

    def descending(self) -> list[nn.Parameter]:
        return list(self.G.parameters())

    def ascending(self) -> list[nn.Parameter]:
        return list(self.D.parameters())

    def grads(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        weight = torch.full((len(inputs),), 1 / len(inputs), device=inputs.device)
        noise = 2 * torch.rand(len(inputs), networks.NOISE, device=inputs.device) - 1
        fake = self.D(self.G(noise, weight), weight)  # one pass serves both players
        x = torch.autograd.grad(softplus(-fake).mean(), self.descending(), retain_graph=True)
        f = -softplus(-self.D(inputs, weight)).mean() - softplus(fake).mean()
        return [*x, *torch.autograd.grad(f, self.ascending())]


MODELS: dict[str, Any] = {"auc": AUC, "robust": Robust, "gan": GAN}


# --- the clock and the answer -------------------------------------------------------------------------------


class Clock:
    """Times rounds. The first only warm up: on a CPU they try one thread and all, and the better stays."""

    def __init__(self, device: str, rounds: int, threads: Sequence[int] = ()) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = threads or ([1] if device != "cpu" or cores == 1 else [1, cores])
        self.device, self.rounds, self.seconds = torch.device(device), rounds, list[float]()

    def run(self, play: Callable[[int], None]) -> Clock:
        for round in range(self.rounds):
            self.begin(round)
            play(round)
            self.end(round)
        return self

    def begin(self, round: int) -> None:
        if round == WARM and len(self.threads) > 1:
            second = self.seconds[len(self.threads) :]  # without each one's first turn
            best = min(range(len(second)), key=second.__getitem__)
            self.threads = [self.threads[best % len(self.threads)]]
        torch.set_num_threads(self.threads[round % len(self.threads)])
        self.began = time.perf_counter()

    def end(self, round: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.began)


def answer(order: Order, clock: Clock, x: Tensor, y: Tensor, memory: float | None = None) -> None:
    """Leave the end point in the folder and print one line of JSON."""
    for name, vector in (("x", x), ("y", y)):
        np.save(order.folder / f"end-{name}.npy", vector.detach().cpu().numpy())
    found = {"threads": clock.threads[0], "seconds": clock.seconds[WARM:]}
    print(json.dumps(found | {"memory": peak_memory(order.device) if memory is None else memory}))


def peak_memory(device: torch.device) -> float:
    """The most this process ever held, in MB: on a GPU, of the GPU's memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's memory at the moment of the fork
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
