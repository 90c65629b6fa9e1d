"""Networks that look at pictures: classifiers of a dataset, trained here once, and Inception.

A classifier gives the probabilities of the Inception Score and the features of the Frechet distance. It is
trained from a fixed seed, has to reach a stated accuracy on the test rows, and is kept in the data cache
under a name that holds a hash of all that made it. Weights are kept as safetensors.
"""

from __future__ import annotations

import hashlib
import sys
import typing
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor, nn

from fedsaddle import networks
from fedsaddle.data import federated, sources
from fedsaddle.data.datasets import Dataset, scaled
from fedsaddle.data.downloads import hash_of
from fedsaddle.errors import BadInput
from fedsaddle.scores import Moments, moments

PICTURES_AT_ONCE = 500  # pictures looked at together, or as many as rows may be


@dataclass(frozen=True)
class Judge:
    """What looks at pictures (row, channel, height, width) in [-1, 1]."""

    name: str  # of these very weights
    features: Callable[[Tensor], Tensor]  # pictures -> (row, feature)
    probabilities: Callable[[Tensor], Tensor] | None = None  # features -> (row, class)


@dataclass(frozen=True)
class Recipe:
    """How a classifier is trained: Adam, with a step that rises and falls once."""

    accuracy: float  # at least, on the test rows
    epochs: int
    batch: int = 128
    peak: float = 4e-3  # the largest step
    seed: int = 0


RECIPES = {
    ("digits", "small"): Recipe(accuracy=0.97, epochs=30, batch=32),
    ("mnist", "small"): Recipe(accuracy=0.99, epochs=3),
    ("fashion-mnist", "small"): Recipe(accuracy=0.92, epochs=8),
    ("mnist", "resnet18"): Recipe(accuracy=0.99, epochs=6, peak=2e-3),
    ("fashion-mnist", "resnet18"): Recipe(accuracy=0.92, epochs=12, peak=2e-3),
}


# --- classifiers -----------------------------------------------------------------------------------------


def classifier(dataset: str, size: str, data: Dataset, device: torch.device, epochs: int = 0) -> Judge:
    """The classifier of a dataset; it is trained if it is not in the cache.

    It is another one for other epochs: the longer it is trained the surer it is, and the higher it scores.
    """
    recipe = RECIPES[dataset, size]
    recipe = replace(recipe, epochs=epochs or recipe.epochs)
    side = data.inputs.shape[-1]
    build = {"small": lambda: networks.small_classifier(side), "resnet18": networks.resnet18}[size]
    net = build()
    made_of = hashlib.sha256(f"{recipe} {net}".encode())
    for rows in (data.inputs, data.labels):
        made_of.update(rows.numpy().tobytes())
    path = sources.cache() / "judges" / f"{dataset}-{size}-{made_of.hexdigest()[:16]}.safetensors"

    def make() -> dict[str, Tensor]:
        return _trained(f"the {size} classifier of {dataset}", recipe, build, data, device).state_dict()

    net.load_state_dict(_kept(path, make))
    net.eval().requires_grad_(False).to(device)
    seen, decide = typing.cast("nn.Sequential", net)
    return Judge(_hash_of(net), seen, lambda features: torch.softmax(decide(features), dim=1))


def _trained(
    what: str, recipe: Recipe, build: Callable[[], nn.Module], data: Dataset, device: torch.device
) -> nn.Module:
    print(f"training {what}, once: it will be kept in {sources.cache()}", file=sys.stderr)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(recipe.seed)
        net = build().to(device)
        inputs, labels = data.inputs.to(device), data.labels.to(device)
        adam = torch.optim.Adam(net.parameters())
        steps = recipe.epochs * -(-len(inputs) // recipe.batch)
        rise_and_fall = torch.optim.lr_scheduler.OneCycleLR(adam, recipe.peak, total_steps=steps)
        for epoch in range(recipe.epochs):
            if (epoch + 1) % max(1, recipe.epochs // 6) == 0:
                print(f"  {what}: epoch {epoch + 1} of {recipe.epochs}", file=sys.stderr)
            for rows in torch.randperm(len(inputs)).to(device).split(recipe.batch):
                adam.zero_grad()
                nn.functional.cross_entropy(net(scaled(inputs[rows])), labels[rows]).backward()
                adam.step()
                rise_and_fall.step()
    net.eval()
    accuracy = _accuracy(net, data.test_inputs.to(device), data.test_labels.to(device))
    told = f"{what} is right on {accuracy:.2%} of the test rows"
    if accuracy < recipe.accuracy:
        raise BadInput(f"{told}, {recipe.accuracy:.0%} are needed; it is not used")
    print(told, file=sys.stderr)
    return net


@torch.no_grad()
def _accuracy(net: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    right = [
        (net(scaled(rows)).argmax(1) == some).sum()
        for rows, some in zip(inputs.split(PICTURES_AT_ONCE), labels.split(PICTURES_AT_ONCE), strict=True)
    ]
    return float(sum(right)) / len(labels)


def _hash_of(net: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in net.state_dict().items():
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()


# --- Inception -------------------------------------------------------------------------------------------


def inception(path: str, device: torch.device) -> Judge:
    """Inception's features, by the TorchScript network of `fedsaddle data inception` or by a person's file.

    A file gets what that one gets, and returns (row, feature).
    """
    place = Path(path) if path else sources.fetch("inception") / sources.INCEPTION
    if not place.is_file():
        raise BadInput(f"there is no file {place}; inception takes the path of a TorchScript network")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Inception's features come in no other form
            net = torch.jit.load(str(place), map_location=device).eval()
    except (RuntimeError, ValueError, OSError) as error:
        raise BadInput(f"{place} is not a TorchScript network ({str(error).splitlines()[0]})") from None

    def features(pictures: Tensor) -> Tensor:
        seen: Tensor = net(for_inception(pictures))
        return seen

    return Judge(hash_of(place), features)


def for_inception(pictures: Tensor) -> Tensor:
    """Pictures in [-1, 1] as that network was taught to see them: 299 x 299, a byte v as (v - 128) / 128.

    They are enlarged as the TensorFlow of its day did, which places its first pixel on their first.
    """
    tall, wide = (_enlargement(side, 299, pictures) for side in pictures.shape[2:])
    enlarged = tall @ ((pictures + 1) * 127.5).expand(-1, 3, -1, -1) @ wide.mT
    return (enlarged - 128) / 128


def _enlargement(old: int, new: int, like: Tensor) -> Tensor:
    """The matrix (new, old) of a bilinear enlargement along one side."""
    place = torch.arange(new, device=like.device, dtype=like.dtype) * (old / new)
    distance = place.clamp(max=old - 1)[:, None] - torch.arange(old, device=like.device, dtype=like.dtype)
    return (1 - distance.abs()).clamp(min=0)


# --- what is kept ----------------------------------------------------------------------------------------


def look(judge: Judge, pictures: Tensor, device: torch.device) -> Tensor:
    """The features of all pictures, bytes or in [-1, 1]."""
    with torch.no_grad():
        together = min(PICTURES_AT_ONCE, federated.CHUNK[device.type])
        return torch.cat([judge.features(scaled(rows.to(device))) for rows in pictures.split(together)])


def real_moments(judge: Judge, pictures: Tensor, device: torch.device) -> Moments:
    """The moments of a judge's features of real pictures (bytes), computed once and kept."""
    name = hashlib.sha256(judge.name.encode() + pictures.numpy().tobytes()).hexdigest()[:16]

    def make() -> dict[str, Tensor]:
        return {key: value.cpu() for key, value in moments(look(judge, pictures, device))._asdict().items()}

    kept = _kept(sources.cache() / "judges" / f"moments-{name}.safetensors", make)
    return Moments(kept["mean"].to(device), kept["covariance"].to(device))


def _kept(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What a file holds; if it is not there it is made, by one process at a time, and appears whole."""
    # Here, because the library can be used without them.
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    with _cannot_be_kept(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                part = path.with_suffix(".part")
                save_file({name: value.contiguous() for name, value in make().items()}, part)
                part.replace(path)
    try:
        found: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise BadInput(f"{path} is damaged ({error}); remove it, and it will be made again") from None
    return found


@contextmanager
def _cannot_be_kept(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"cannot write to {folder}: {error.strerror}; name another folder in FEDSADDLE_DATA"
        ) from None
