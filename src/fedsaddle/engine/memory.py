"""Memory that runs out, on a GPU or in the machine, is no end: less is computed at a time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedsaddle.mishaps import out_of_memory

T = TypeVar("T")


def until_it_fits(work: Callable[[], T], shrink: Callable[[], None]) -> T:
    """work(), again after `shrink` whenever memory runs out. What cannot shrink any more says so."""
    while True:
        try:
            return work()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Not inside `except`: there the error's traceback holds on to all that was being computed.
        shrink()
        give_back()


def give_back() -> None:
    """Return to the device what nobody uses."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most memory that tensors made by `work` held at any moment."""
    with _Peak() as peak:
        work()
    return int(peak.peak)


class _Peak(TorchDispatchMode):
    """Adds up the memory of all tensors alive that were made while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self._notice(leaf.untyped_storage())
        return result

    def _notice(self, storage: torch.UntypedStorage) -> None:
        name, size = storage._cdata, storage.nbytes()
        if name not in self.known:
            self.known.add(name)
            self.alive += size
            self.peak = max(self.peak, self.alive)
            weakref.finalize(storage, self._forget, name, size)

    def _forget(self, name: int, size: int) -> None:
        self.known.discard(name)
        self.alive -= size
