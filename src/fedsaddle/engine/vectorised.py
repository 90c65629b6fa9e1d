"""Ask all clients at once: one vmap over the flat list of visits, in chunks that fit the memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fedsaddle.engine.visits import Extent, Given, Task, Visits, answer, batch_rows
from fedsaddle.errors import BadInput

T = TypeVar("T")
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
        self._at_once = self._held = 1  # visits, and bytes, that the last computation held at a time
        self._ran_out = self._told = False

    def __call__(self, task: Task, extent: Extent, visits: Visits) -> dict[str, Any]:
        count, extent = len(visits), extent._replace(ahead=True)
        self._at_once, limit = 1, self.limit(visits.key.device)  # one at a time while its need is measured
        need = self._need(task, extent, lambda: visits)
        at_once = max(1, min(count, limit // need))
        self._at_once, self._held = at_once, at_once * need
        answers = [self._ask(task, extent, visits.part(at, at + at_once)) for at in range(0, count, at_once)]
        stacked: dict[str, Any] = tree_map(lambda *chunks: torch.cat(chunks), *answers)
        return stacked

    def piece(self, task: Task, extent: Extent, visits: Callable[[], Visits], most: int, workers: int) -> int:
        """How many of at most so many visits a thread should ask at once, on a CPU.

        All of them, if they are small: then Python and the interpreter are what takes time. Otherwise few
        enough to stay near the caches and to give every core its share. The number of workers does not
        matter, unless memory is short, so that it does not move a bit.
        """
        self._at_once = 1  # while the need of one is measured
        need = self._need(task, extent._replace(ahead=True), visits)
        step, _ = self._needs[task.phase, extent.rows]  # of a short walk: of a few steps
        near = most if most * step <= SMALL else min(PIECE // step, most // SHARES)
        fit = max(1, min(near, self.limit(CPU) // workers // need))
        piece = most if fit == most else 1 << fit.bit_length() - 1  # cohorts are often divided by 2, 4 or 8
        self._at_once, self._held = piece, piece * need * workers
        return piece

    def limit(self, device: torch.device) -> int:
        """What may be held at a time, in bytes."""
        if self.memory is None:
            on_gpu = device.type == "cuda"
            self.memory = torch.cuda.get_device_properties(device).total_memory // 2 if on_gpu else 4 << 30
        return self.memory

    def within_memory(self, work: Callable[[], T], free: Callable[[], None] = lambda: None) -> T:
        """work(), which asks; again with half as many visits at a time whenever memory runs out.

        `free` gives back what can be made again.
        """
        freed = False
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
            # Not inside `except`: there the error's traceback holds on to all that was being computed.
            free()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if self._at_once > 1:
                self.memory, self._ran_out = self._held // 2, True
            elif freed:
                raise BadInput(
                    "memory ran out with a single visit at a time: lower batch, K or the number of seeds, or "
                    "use a machine with more memory"
                )
            freed = True

    def news(self) -> str | None:
        """What a person should hear: once, that memory ran out."""
        if self._told or not self._ran_out:
            return None
        self._told = True
        gib = (self.memory or 0) / 2**30
        return f"memory ran out; from now on visits hold at most {gib:.3g} GiB at a time (memory_gb)"

    def _ask(self, task: Task, extent: Extent, visits: Visits) -> dict[str, Any]:
        def one(rows: Tensor, given: Given) -> dict[str, Any]:
            return answer(task, extent, rows, given)

        given = visits.given(task.federation)
        try:
            result: dict[str, Any] = torch.func.vmap(one)(batch_rows(task, extent, given), given)
        except RuntimeError as error:
            if not str(error).startswith("vmap:"):
                raise
            who = f"{type(task.problem).__name__} with {type(task.algorithm).__name__}"
            raise BadInput(
                f"{who} cannot be computed for many clients at once, for it looks at values (.item(), if, a "
                "shape that depends on them): write it without, or use --engine loop, ask=Loop()"
            ) from error
        return result

    def _need(self, task: Task, extent: Extent, visits: Callable[[], Visits]) -> int:
        """The memory of one visit, measured once for each phase by asking one client alone.

        It holds what its client is given, and grows with the walk: its rows, and the gradients that are
        computed ahead, all at once. Two short walks tell how fast.
        """
        kind = (task.phase, extent.rows)
        if kind not in self._needs:
            first = visits().part(0, 1)
            short, longer = (
                peak_bytes(lambda: self._ask(task, extent._replace(steps=min(steps, extent.steps)), first))  # noqa: B023
                for steps in SHORT
            )
            self._needs[kind] = (max(1, short), max(0, longer - short))
        least, growth = self._needs[kind]
        return least + growth * max(0, extent.steps - SHORT[0]) // (SHORT[1] - SHORT[0])


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


def out_of_memory(error: BaseException | None) -> bool:
    """Whether this, or what led to it, is a lack of memory: a GPU's, its libraries' or the machine's."""
    words = ("can't allocate memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words):
            return True
        error = error.__context__
    return False


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most memory that tensors made by `work` held at any moment."""
    with _Peak() as peak:
        work()
    return int(peak.peak)
