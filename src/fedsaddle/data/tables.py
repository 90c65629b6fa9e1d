"""A person's own data as a dataset: a CSV or .npz file with features, a label and, if there is one, a client.

The bytes that are read are the bytes that are hashed. `readers.py` knows what is in them; here rows are drawn
for testing, classes numbered and numbers standardised.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from pathlib import Path

import torch
from torch import Tensor

from fedsaddle.data.datasets import Dataset, Scaling
from fedsaddle.data.partition import held_out
from fedsaddle.data.readers import READERS, Array, Words
from fedsaddle.errors import BadInput, Notice, check_memory

MOST_CLASSES = 1000  # beyond these a label is a measurement
WHOLE = re.compile(r"(-?(?:0|[1-9]\d{0,17}))(?:\.0*)?")  # 7 and 7.0, but not 007, which may be a name


def is_table(dataset: str) -> bool:
    """Whether this is the path of a file, not the name of a dataset."""
    return Path(dataset).suffix.lower() in READERS


def load_table(
    path: str,
    test: str = "",
    *,
    label: str = "label",
    client: str = "client",
    test_share: float = 0.2,
    seed: int = 0,
    sha256: str = "",
    test_sha256: str = "",
) -> Dataset:
    """A person's table. Its test rows are in it, in a second file, or drawn from it."""
    kind = Path(path).suffix.lower()
    if label == client:
        raise BadInput(f"label and client must be two columns, got '{label}' for both")
    if test and Path(test).suffix.lower() != kind:
        raise BadInput(f"test must be a {kind} file as {path} is, got {test}")
    data, digest = read_bytes(path, sha256)
    train, held = READERS[kind](path, data, label, client, None)
    digests = [digest]
    if test:
        if held is not None:
            raise BadInput(f"{path} holds test rows already; leave out test, or its test_features")
        data, digest = read_bytes(test, test_sha256)
        held, _ = READERS[kind](test, data, label, client, train)
        digests.append(digest)

    if len(train.labels.words) > MOST_CLASSES:
        raise BadInput(f"{path}: '{label}' has more than {MOST_CLASSES} values; a label names a class")
    _notice_capitals(path, label, train.labels.words + (() if held is None else held.labels.words))
    owners = None if train.owners is None else numbered(train.owners)[1][0]
    if held is not None:
        classes, (labels, test_labels) = numbered(train.labels, held.labels)
        scaling = _scaling(train.inputs)
        halves = (
            features(train.inputs, train.flags, scaling),
            labels,
            features(held.inputs, held.flags, scaling),
            test_labels,
        )
        return Dataset(*halves, classes, owners, tuple(digests), scaling=scaling, columns=train.columns)
    classes, (labels,) = numbered(train.labels)
    out = held_out(labels, test_share, seed, owners)
    there, here = out.numpy(), ~out.numpy()
    scaling = _scaling(train.inputs[here])
    inputs, test_inputs = (features(train.inputs[rows], train.flags[rows], scaling) for rows in (here, there))
    owners = None if owners is None else owners[~out]
    drawn = inputs, labels[~out], test_inputs, labels[out]
    return Dataset(
        *drawn, classes, owners, tuple(digests), has_test=False, scaling=scaling, columns=train.columns
    )


def read_bytes(path: str, sha256: str = "") -> tuple[bytes, str]:
    """A file's bytes and their hash."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise BadInput(f"the table {path} is not a plain file")
        with open(path, "rb") as file:
            check_memory(path, os.fstat(file.fileno()).st_size)  # two bytes may become a number of eight
            data = file.read()
    except BadInput:
        raise
    except (OSError, ValueError) as error:  # also a path that no file can have
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot read the table {path}: {why}") from None
    digest = hashlib.sha256(data).hexdigest()
    if sha256 not in ("", digest):
        raise BadInput(f"the table {path} has changed: its sha256 is {digest}, not {sha256}")
    return data, digest


def numbered(*columns: Words) -> tuple[tuple[str, ...], list[Tensor]]:
    """The words of some columns in order, whole numbers by their value, and each row's place among them."""
    words = {word for column in columns for word in column.words}
    whole = {word: match[1] for word in words if (match := WHOLE.fullmatch(word))}
    names = {word: str(int(value)) for word, value in whole.items()} if len(whole) == len(words) else {}
    ordered = sorted(set(names.values()), key=int) if names else sorted(words)
    place = {name: number for number, name in enumerate(ordered)}
    return tuple(ordered), [
        torch.tensor([place[names.get(word, word)] for word in column.words])[torch.from_numpy(column.number)]
        for column in columns
    ]


def _notice_capitals(path: str, label: str, classes: tuple[str, ...]) -> None:
    """Say of classes that differ in capitals alone that they are two: 'yes' is learnt against 'Yes'."""
    known: dict[str, str] = {}
    for name in classes:
        if (other := known.setdefault(name.lower(), name)) != name:
            told = (
                f"{path}: '{label}' has both '{other}' and '{name}', which are two classes; write one of them"
            )
            warnings.warn(told, Notice, stacklevel=3)


def _scaling(train: Array) -> Scaling | None:
    """What numbers go through; images are left as they are."""
    return None if train.ndim > 2 else Scaling.of(torch.from_numpy(train))


def features(rows: Array, flags: Array, scaling: Scaling | None) -> Tensor:
    """What a network takes: numbers standardised, words as ones and zeros, images as they are."""
    if scaling is None:
        return torch.from_numpy(rows)
    return torch.cat([scaling(torch.from_numpy(rows)), torch.from_numpy(flags).to(torch.float32)], dim=1)
