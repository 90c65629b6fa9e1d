"""The datasets, as tensors: pixels stay bytes until they are used."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsaddle import draws


@dataclass(frozen=True)
class Dataset:
    """Training and test rows. Pixels are 0 to 255; `scaled` brings them to [-1, 1]."""

    inputs: Tensor  # (row, channel, height, width), uint8
    labels: Tensor  # (row,), int64
    test_inputs: Tensor
    test_labels: Tensor


def scaled(inputs: Tensor) -> Tensor:
    """Bytes to [-1, 1]; what is not bytes is left as it is."""
    return inputs.to(torch.float32) / 127.5 - 1 if inputs.dtype == torch.uint8 else inputs


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


DATASETS = {"digits": digits}
