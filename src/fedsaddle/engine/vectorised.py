"""Ask all clients at once: one vmap over the flat list of visits, in chunks that fit the memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fedsaddle.engine.visits import Extent, Task, Visits, answer, batch_rows

CPU = torch.device("cpu")
SMALL, PIECE = 8 << 20, 32 << 20  # bytes that visits hold which are asked all at once, or piece by piece
SHARES = 4  # pieces, at least, of what is not small
SHORT = (3, 5)  # steps of the walks whose memory is measured


class Vectorised:
    """One computation for many visits. `memory` bounds, in bytes, what it holds at a time.

    Without one it may hold 4 GiB, or half of a GPU.
    """

    def __init__(self, memory: int | None = None) -> None:
        self.memory = memory
        # Bytes of one visit with a short walk, and how many more with a longer one, by phase and rows.
        self._needs: dict[tuple[int, int], tuple[int, int]] = {}

    def __call__(self, task: Task, extent: Extent, visits: Visits) -> dict[str, Any]:
        count, keys, extent = len(visits["key"]), visits["key"], extent._replace(ahead=True)
        at_once = max(1, self.limit(keys.device) // self._need(task, extent, lambda: visits))
        answers = [
            self._ask(task, extent, _slice(visits, at, at + at_once)) for at in range(0, count, at_once)
        ]
        stacked: dict[str, Any] = tree_map(lambda *chunks: torch.cat(chunks), *answers)
        return stacked

    def piece(self, task: Task, extent: Extent, visits: Callable[[], Visits], most: int, workers: int) -> int:
        """How many of at most so many visits a thread should ask at once, on a CPU.

        All of them, if they are small: then Python and the interpreter are what takes time. Otherwise few
        enough to stay near the caches and to give every core its share. The number of workers does not
        matter, unless memory is short, so that it does not move a bit.
        """
        need = self._need(task, extent._replace(ahead=True), visits)
        step, _ = self._needs[task.phase, extent.rows]  # of a short walk: of a few steps
        near = most if most * step <= SMALL else min(PIECE // step, most // SHARES)
        fit = max(1, min(near, self.limit(CPU) // workers // need))
        return most if fit == most else 1 << fit.bit_length() - 1  # cohorts are often divided by a power of 2

    def limit(self, device: torch.device) -> int:
        """What may be held at a time, in bytes."""
        if self.memory is None:
            on_gpu = device.type == "cuda"
            self.memory = torch.cuda.get_device_properties(device).total_memory // 2 if on_gpu else 4 << 30
        return self.memory

    def _ask(self, task: Task, extent: Extent, visits: Visits) -> dict[str, Any]:
        def one(rows: Tensor, visit: Visits) -> dict[str, Any]:
            return answer(task, extent, rows, visit)

        result: dict[str, Any] = torch.func.vmap(one)(batch_rows(task, extent, visits), visits)
        return result

    def _need(self, task: Task, extent: Extent, visits: Callable[[], Visits]) -> int:
        """The memory of one visit, measured once for each phase by asking one client alone.

        It grows with the walk: its rows, and the gradients that are computed ahead, all at once. Two short
        walks tell how fast.
        """
        kind = (task.phase, extent.rows)
        if kind not in self._needs:
            first = _slice(visits(), 0, 1)
            short, longer = (
                peak_bytes(lambda: self._ask(task, extent._replace(steps=min(steps, extent.steps)), first))  # noqa: B023
                for steps in SHORT
            )
            self._needs[kind] = (max(1, short), max(0, longer - short))
        least, growth = self._needs[kind]
        return least + growth * max(0, extent.steps - SHORT[0]) // (SHORT[1] - SHORT[0])


def _slice(visits: Visits, start: int, stop: int) -> Visits:
    part: Visits = tree_map(lambda rows: rows[start:stop], visits)
    return part


class _Peak(TorchDispatchMode):
    """Adds up the memory of all tensors alive that were made while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
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


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most memory that tensors made by `work` held at any moment."""
    with _Peak() as peak:
        work()
    return int(peak.peak)
