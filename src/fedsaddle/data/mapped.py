"""Columns that stay in their files: the operating system reads what is asked for, and forgets it again."""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from fedsaddle.data.readers import Array
from fedsaddle.errors import BadInput

AT_ONCE = 1 << 24  # bytes that are held at a time, where a file is gone through


@dataclass(frozen=True)
class OnDisk:
    """A column in a file: numbers without gaps, from a place on. It is pickled as this, not as its rows."""

    path: str
    offset: int  # bytes before the first number
    shape: tuple[int, ...]  # (row, ...)
    stored: str  # numpy's name of the type in the file
    kind: torch.dtype  # of the rows that are taken out of it

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def bytes(self) -> int:
        """What its rows would take in memory."""
        return math.prod(self.shape) * self.kind.itemsize

    def array(self) -> Array:
        """The file as an array that cannot be written to."""
        # Not copy-on-write: Linux refuses such a mapping if the file is larger than the memory.
        try:
            return numpy.memmap(self.path, self.stored, "r", self.offset, self.shape)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise BadInput(f"cannot read {self.path}: {why}; has it been moved or cut off?") from None

    def open(self) -> Tensor:
        """The file as a tensor of the stored type, of which rows are taken here and there."""
        array = self.array()
        mapping: mmap.mmap = array._mmap  # type: ignore[attr-defined]
        mapping.madvise(mmap.MADV_RANDOM)  # so that a row does not bring its neighbours
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it cannot be written to: nobody does
            return torch.from_numpy(array)

    def blocks(self) -> Iterator[Tensor]:
        """Some rows at a time, in memory and of their kind."""
        row = math.prod(self.shape[1:])
        rows = max(1, AT_ONCE // max(1, row * self.kind.itemsize))
        with open(self.path, "rb") as file:  # not mapped: what has been read need not stay
            file.seek(self.offset)
            for start in range(0, len(self), rows):
                some = min(rows, len(self) - start)
                block = numpy.fromfile(file, self.stored, some * row).reshape(some, *self.shape[1:])
                yield torch.from_numpy(block).to(self.kind)


def kind_of(stored: numpy.dtype[Any], floats: torch.dtype, at: str) -> torch.dtype:
    """What numbers of a type become: floats of one kind, int64, and bytes and booleans as they are."""
    if stored.kind == "b":
        return torch.bool
    if stored == numpy.uint8:
        return torch.uint8
    if stored.kind in "iu":
        return torch.int64
    if stored.kind == "f":
        return floats
    hint = "; turn times into numbers first" if stored.kind in "mM" else ""
    raise BadInput(f"{at}: expected numbers or words, got {stored}{hint}")


def of_array(array: numpy.memmap[Any, Any], floats: torch.dtype, at: str) -> OnDisk | None:
    """A memory-mapped array as the part of its file that it is; None if its numbers do not lie together."""
    root = array.base if isinstance(array.base, numpy.memmap) else array
    if root.filename is None or not array.flags.c_contiguous:
        return None
    begins = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    kind = _kept(array.dtype, floats, at)
    return OnDisk(str(root.filename), root.offset + begins, array.shape, array.dtype.str, kind)


def of_npy(path: Path, floats: torch.dtype, at: str) -> OnDisk:
    """A .npy file."""
    try:
        array = numpy.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{at}: cannot read {path}: {why}; save it with numpy.save, without objects") from None
    if not isinstance(array, numpy.memmap) or not array.ndim or not array.size:
        raise BadInput(f"{at}: {path} holds no rows")
    if not array.flags.c_contiguous:
        raise BadInput(f"{at}: {path} is in Fortran order; save it with numpy.ascontiguousarray")
    return OnDisk(
        str(path.resolve()), array.offset, array.shape, array.dtype.str, _kept(array.dtype, floats, at)
    )


def _kept(stored: numpy.dtype[Any], floats: torch.dtype, at: str) -> torch.dtype:
    """The kind of a column that stays in its file, and so must be of a type that PyTorch can read there."""
    kind = kind_of(stored, floats, at)
    if not stored.isnative or stored.itemsize > 8 or (stored.kind == "u" and stored.itemsize > 1):
        raise BadInput(f"{at}: PyTorch cannot read {stored.str} in a file; save it as int64 or float32")
    return kind
