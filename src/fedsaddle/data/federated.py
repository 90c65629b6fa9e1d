"""A dataset in the hands of clients: what the tasks that learn from labelled rows share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fedsaddle.data.datasets import DATASETS, Dataset
from fedsaddle.data.devices import DEVICES, alone
from fedsaddle.data.partition import VALIDATION, divide, held_out
from fedsaddle.data.tables import is_table, load_table
from fedsaddle.errors import BadInput, unknown
from fedsaddle.problem import Federation

FULL_CHUNK = {"cpu": 1_000, "cuda": 5_000}  # rows evaluated at a time: what a cache holds, or a GPU needs
CHUNK = dict(FULL_CHUNK)  # the same now: fewer, once memory has run out, until the study is over
FEWEST = 50


def dataset_named(dataset: str) -> Dataset:
    """A dataset by its name."""
    if dataset not in DATASETS:
        raise unknown("dataset", dataset, DATASETS)
    return DATASETS[dataset]()


def dataset_of(dataset: str, label: str, sha256: str, partition: str, seed: int) -> Dataset:
    """A dataset by its name, or a person's file. If rows are on devices, all of the file is for testing."""
    if not is_table(dataset):
        if label != "label" or sha256:
            raise BadInput(f"label and sha256 go with a .csv or .npz file, not with {dataset}")
        if dataset not in DATASETS:
            raise BadInput(
                f"{unknown('dataset', dataset, DATASETS)}; or give the path of a .csv or .npz file"
            )
        return dataset_named(dataset)
    test = dataset if partition == DEVICES else ""
    return load_table(dataset, test, label=label, seed=seed, sha256=sha256)


def pinned_file(dataset: str, data: Dataset) -> dict[str, str]:
    """What an experiment has to say to mean this very file again."""
    return {"dataset": str(Path(dataset).resolve()), "sha256": data.sha256[0]} if is_table(dataset) else {}


def set_aside(data: Dataset, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """The numbers of the training rows that clients get, and of those that settings are chosen by."""
    if not share:
        return torch.arange(len(data.labels)), torch.arange(0)
    out = held_out(data.labels, share, seed, data.owners, VALIDATION)
    return (~out).nonzero().flatten(), out.nonzero().flatten()


def federate(
    data: Dataset, partition: str, clients: int, alpha: float, seed: int, share: float = 0.0
) -> Federation:
    """The training rows, `input` and `label`, cut into one run for each client; a share may be set aside."""
    if partition == DEVICES:  # they are elsewhere: nobody looks at these
        return alone({"input": data.inputs[:1], "label": data.labels[:1]}, 0, clients)
    rows, _ = set_aside(data, share, seed)
    owners = None if data.owners is None else data.owners[rows]
    parts = divide(data.labels[rows], partition, clients, alpha, seed, owners)
    order = rows[torch.cat(parts)]
    return Federation(
        rows={"input": data.inputs[order], "label": data.labels[order]},
        sizes=torch.tensor([len(part) for part in parts]),
    )


def test_rows(data: Dataset) -> Federation:
    """The test rows, as one client would hold them: they too are moved to a device once."""
    rows = {"input": data.test_inputs, "label": data.test_labels}
    return Federation(rows, sizes=torch.tensor([len(data.test_labels)]))


def as_usual(device: str) -> None:
    """Evaluate as many rows at a time as before memory ran out: the last bits depend on it."""
    CHUNK[device] = FULL_CHUNK[device]


def fewer(device: str) -> int:
    """Evaluate half as many rows at a time from now on, for memory is short. How many that are."""
    if CHUNK[device] <= FEWEST:
        raise BadInput(
            f"memory ran out with {CHUNK[device]} rows at a time: lower the number of seeds, or use a "
            "machine with more memory"
        )
    CHUNK[device] = max(FEWEST, CHUNK[device] // 2)
    return CHUNK[device]


def chunks(*tables: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same few rows of each table at a time."""
    return zip(*(table.split(CHUNK[table.device.type]) for table in tables), strict=True)
