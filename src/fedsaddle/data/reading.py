"""What new rows need: how a file becomes rows, as it did with the rows that were learnt from.

A `Reader` is a value, and JSON, so that a trained model, or a device, reads a file without the data that a
task was made from: columns in their order, the words that are features, means and deviations, classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from fedsaddle.data.datasets import Dataset, Scaling
from fedsaddle.data.readers import NONE, READERS, Rows, Words
from fedsaddle.data.tables import WHOLE, read_bytes
from fedsaddle.errors import BadInput

DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Reader:
    """How a file becomes rows. A row is what stands in the file: a model scales it."""

    kind: str  # .csv or .npz
    label: str  # the column of the classes, and
    client: str  # of who holds a row: no features, and new rows may lack them
    columns: dict[str, tuple[str, ...]]  # of a CSV file: each feature's words, none if it holds numbers
    shape: tuple[int, ...]  # of a row
    dtype: str  # uint8 or float32 of images, float64 of tables
    scaling: Scaling | None  # of a table's numbers, which come before its words
    classes: tuple[str, ...]

    @classmethod
    def of(cls, data: Dataset, kind: str = ".npz", label: str = "label", client: str = "client") -> Reader:
        """That of a dataset whose rows came from such a file, or could have."""
        dtype = "float64" if data.scaling is not None else str(data.inputs.dtype).removeprefix("torch.")
        shape = tuple(data.inputs.shape[1:])
        return cls(kind, label, client, data.columns, shape, dtype, data.scaling, data.classes)

    @property
    def features(self) -> list[str]:
        """What the numbers of a row of a CSV file are: a column, or whether a column holds a word."""
        numbers = [name for name, words in self.columns.items() if not words]
        return numbers + [f"{name}={word}" for name, words in self.columns.items() for word in words]

    def rows(self, path: str) -> Tensor:
        """The rows of a file, whatever it says of classes and clients: (row, ...)."""
        return self._table(self._read(path, labelled=False))

    def labelled(self, path: str) -> tuple[Tensor, Tensor]:
        """The rows of a file, and the numbers of their classes."""
        read = self._read(path, labelled=True)
        return self._table(read), _numbers_of(path, "class", read.labels, self.classes)

    def told_apart(self, path: str, by: str, names: tuple[str, ...]) -> Tensor:
        """The numbers of what the rows of a file are told apart by, such as their sex, in another column."""
        read = replace(self, client=by)._read(path, labelled=True)
        if read.owners is None:
            raise BadInput(
                f"{path}: '{by}' is missing; the rows are told apart by it: {', '.join(names[:20])}"
            )
        return _numbers_of(path, by, read.owners, names)

    def scaled(self, rows: Tensor) -> Tensor:
        """What a network takes: numbers standardised, words as ones and zeros, images as they are."""
        if self.scaling is None:
            return rows
        numbers, words = rows.split([len(self.scaling.mean), rows.shape[1] - len(self.scaling.mean)], dim=1)
        return torch.cat([self.scaling(numbers), words.to(torch.float32)], dim=1)

    def _read(self, path: str, labelled: bool) -> Rows:
        kind = Path(path).suffix.lower()
        if kind != self.kind:
            what = "with an array 'features'" if self.kind == ".npz" else "as the rows to learn from"
            raise BadInput(f"{path}: expected a {self.kind} file {what}")
        # A CSV file is held to its columns, and arrays to the shape and type of a row.
        like = numpy.empty((0, *self.shape), dtype=self.dtype)
        rows, _ = READERS[kind](
            path,
            read_bytes(path)[0],
            self.label,
            self.client,
            Rows(like, NONE, None, numpy.zeros((0, 0), dtype=bool), self.columns),
            labelled,
        )
        return rows

    def _table(self, rows: Rows) -> Tensor:
        inputs = torch.from_numpy(rows.inputs)
        return (
            torch.cat([inputs, torch.from_numpy(rows.flags).to(inputs.dtype)], dim=1)
            if self.columns
            else inputs
        )

    # --- as JSON ---

    def to_json(self) -> dict[str, Any]:
        scaling = self.scaling
        return {
            "kind": self.kind,
            "label": self.label,
            "client": self.client,
            "columns": {name: list(words) for name, words in self.columns.items()},
            "shape": list(self.shape),
            "dtype": self.dtype,
            "mean": None if scaling is None else scaling.mean.tolist(),
            "spread": None if scaling is None else scaling.spread.tolist(),
            "classes": list(self.classes),
        }

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> Reader:
        """The inverse; a ValueError or TypeError, if that is not what it is."""
        names = (held["kind"], held["label"], held["client"])
        if held["kind"] not in READERS or not all(isinstance(name, str) for name in names):
            raise ValueError("kind")
        columns = {str(name): _words(words) for name, words in dict(held["columns"]).items()}
        shape, dtype = tuple(held["shape"]), held["dtype"]
        if dtype not in DTYPES or not shape or not all(type(size) is int and size > 0 for size in shape):
            raise ValueError("shape")
        scaling = None
        if held["mean"] is not None:
            scaling = Scaling(_numbers(held["mean"]), _numbers(held["spread"]))
            numbers = len(scaling.mean)  # the first of a row; ones and zeros that are words come after them
            fits = numbers == sum(not words for words in columns.values()) if columns else numbers <= shape[0]
            if not fits or len(scaling.spread) != numbers or len(shape) > 1 or (scaling.spread < 0).any():
                raise ValueError("scaling")
        reader = cls(*names, columns, shape, dtype, scaling, _words(held["classes"]))
        if columns and shape != (len(reader.features),):
            raise ValueError("columns")
        return reader


def _numbers_of(path: str, what: str, column: Words, names: tuple[str, ...]) -> Tensor:
    """The places of words among names; 1.0 and 01 are the name 1."""
    place, found = {name: number for number, name in enumerate(names)}, []
    for word in column.words:
        whole = WHOLE.fullmatch(word)
        name = word if word in place or not whole else str(int(whole[1]))
        if name not in place:
            known = ", ".join(names[:20])
            raise BadInput(f"{path}: the {what} '{word[:80]}' was not learnt; known: {known}")
        found.append(place[name])
    return torch.tensor(found)[torch.from_numpy(column.number)]


def _words(held: Any) -> tuple[str, ...]:
    if not isinstance(held, list) or not all(isinstance(word, str) for word in held):
        raise ValueError("words")
    return tuple(held)


def _numbers(held: Any) -> Tensor:
    if not all(isinstance(number, float | int) and math.isfinite(number) for number in held):
        raise ValueError("numbers")
    return torch.tensor(held, dtype=torch.float64)
