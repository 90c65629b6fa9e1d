"""The datasets, as tensors: pixels stay bytes until they are used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedsaddle import draws
from fedsaddle.data import sources


@dataclass(frozen=True)
class Scaling:
    """Columns less the training rows' mean, by their standard deviation; one that does not vary is zero.

    A fleet would have to share these: three sums of each client, added up once.
    """

    mean: Tensor  # (feature,), float64
    spread: Tensor  # (feature,), float64: the standard deviation; 0 where a column does not vary

    @classmethod
    def of(cls, train: Tensor) -> Scaling:
        """That of some rows."""
        mean = train.mean(0)
        spread = (train - mean).square().mean(0).sqrt()
        varies = spread > 1e-12 * train.abs().amax(0)
        return cls(mean, torch.where(varies, spread, 0.0))

    def __call__(self, rows: Tensor) -> Tensor:
        # A column that hardly varies in training may in a test row lie beyond what a float32 holds.
        small = torch.where(self.spread > 0, (rows - self.mean) / self.spread, 0.0)
        return small.clamp(-1e6, 1e6).to(torch.float32)


@dataclass(frozen=True)
class Grouping:
    """One way to tell the people apart whom the rows are about."""

    names: tuple[str, ...]
    rows: Tensor  # (training row,), int64: numbers of groups
    test_rows: Tensor


@dataclass(frozen=True)
class Dataset:
    """Training and test rows. Pixels are 0 to 255; `scaled` brings them to [-1, 1]."""

    inputs: Tensor  # (row, channel, height, width), uint8; of a table (row, feature), floats
    labels: Tensor  # (row,), int64: numbers of classes
    test_inputs: Tensor
    test_labels: Tensor
    classes: tuple[str, ...] = tuple("0123456789")  # what the labels stand for
    owners: Tensor | None = None  # (training row,), int64: who holds it, where the data say so
    sha256: tuple[str, ...] = ()  # of a person's own files
    has_test: bool = True  # whether the test rows are given; or else they were drawn from the others
    scaling: Scaling | None = None  # of a table: what its numbers have gone through
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of a CSV file: see readers.Rows
    groups: dict[str, Grouping] = field(default_factory=dict)  # by what: sex, country, ...

    @cached_property
    def majority(self) -> float:
        """The part of the test rows that are of the largest class: a guess is right so often."""
        return int(torch.bincount(self.test_labels).max()) / len(self.test_labels)


def scaled(inputs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Bytes to [-1, 1]; what is not bytes is left as it is. A task computes in the type of its players."""
    # Not divided: by a number, a GPU multiplies with its inverse, and the last bit would not be a CPU's.
    small = (inputs.to(torch.float32) - 127.5) * (1 / 127.5) if inputs.dtype == torch.uint8 else inputs
    return small.to(dtype)


def digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels, shipped with scikit-learn; a fifth of each class is test."""
    from sklearn.datasets import load_digits

    source = load_digits()
    inputs = torch.from_numpy(source.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(source.target).to(torch.int64)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        rows = (labels == label).nonzero().flatten()
        luck = draws.words(draws.key(draws.PROBLEM, 0, label), len(rows))
        test[rows[torch.argsort(luck)[: len(rows) // 5]]] = True
    return Dataset(inputs[~test], labels[~test], inputs[test], labels[test])


def _idx(path: Path) -> Tensor:
    """A file of MNIST's format: two zeros, the type, the number of dimensions, the dimensions, the bytes."""
    data = path.read_bytes()
    shape = [int.from_bytes(data[4 + 4 * n : 8 + 4 * n]) for n in range(data[3])]
    return torch.frombuffer(bytearray(data[4 + 4 * len(shape) :]), dtype=torch.uint8).reshape(shape)


def _grey(name: str) -> Dataset:
    folder = sources.fetch(name)
    train, train_labels, test, test_labels = (_idx(folder / file) for file in sources.IDX)
    return Dataset(train[:, None], train_labels.long(), test[:, None], test_labels.long())


def mnist() -> Dataset:
    """MNIST."""
    return _grey("mnist")


def fashion_mnist() -> Dataset:
    """Fashion-MNIST."""
    return _grey("fashion-mnist")


def cifar10() -> Dataset:
    """CIFAR-10, in its binary layout: a label, then the planes of red, green and blue."""
    folder = sources.fetch("cifar10")
    files = [torch.frombuffer(bytearray((folder / f).read_bytes()), dtype=torch.uint8) for f in sources.CIFAR]
    train, test = torch.cat(files[:5]).reshape(-1, 3073), files[5].reshape(-1, 3073)
    pictures, test_pictures = (rows[:, 1:].reshape(-1, 3, 32, 32) for rows in (train, test))
    return Dataset(pictures, train[:, 0].long(), test_pictures, test[:, 0].long())


def satimage() -> Dataset:
    """Landsat pixels and their neighbours in four bands; the label is the kind of soil (Statlog, UCI)."""
    folder = sources.fetch("satimage")
    train, test = (
        torch.tensor([list(map(float, line.split())) for line in (folder / file).read_text().splitlines()])
        for file in sources.SATIMAGE
    )
    numbers, test_numbers = train[:, :-1].double(), test[:, :-1].double()
    scaling = Scaling.of(numbers)
    halves = scaling(numbers), train[:, -1].long(), scaling(test_numbers), test[:, -1].long()
    return Dataset(*halves, scaling=scaling)


def _of_people(name: str) -> Callable[[], Dataset]:
    def read() -> Dataset:
        from fedsaddle.data import people

        return people.READ[name]()

    return read


DATASETS = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "satimage": satimage,
    **{name: _of_people(name) for name in ("adult", "compas", "card", "law", "health", "census")},
}
