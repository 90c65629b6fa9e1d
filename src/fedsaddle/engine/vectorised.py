"""Ask all clients at once: one vmap over the flat list of visits, in chunks that fit the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedsaddle.engine.memory import peak_bytes, until_it_fits
from fedsaddle.engine.visits import Extent, Given, Stage, Task, Visits, answer, batch_rows
from fedsaddle.errors import BadInput

T = TypeVar("T")
CPU = torch.device("cpu")
SMALL, PIECE = 8 << 20, 32 << 20  # bytes that visits hold which are asked all at once, or piece by piece
SHARES = 4  # pieces, at least, of what is not small
SHORT = (2, 3)  # steps of the walks whose memory is measured
BLOCK = 16  # steps of a walk whose gradients at the start are computed ahead, and that is recorded as a whole


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

    def __call__(
        self, task: Task, extent: Extent, visits: Visits, stage: Stage | None = None
    ) -> dict[str, Any]:
        """The answers to all visits; or, of a stage that ends in the walk, where their walks are."""
        count, extent = len(visits), ahead(extent, visits.key.device)
        at_once = self.at_once(task, extent, visits)
        answers = [
            self._ask(task, extent, visits.part(at, at + at_once), _part(stage, at, at + at_once))
            for at in range(0, count, at_once)
        ]
        if len(answers) == 1:
            return answers[0]
        stacked: dict[str, Any] = tree_map(lambda *chunks: torch.cat(chunks), *answers)
        return stacked

    def at_once(self, task: Task, extent: Extent, visits: Visits) -> int:
        """How many of these visits fit into memory together."""
        self._at_once, limit = 1, self.limit(visits.key.device)  # one at a time while its need is measured
        need = self._need(task, ahead(extent, visits.key.device), lambda: visits)
        self._at_once = max(1, min(len(visits), limit // need))
        self._held = self._at_once * need
        return self._at_once

    def piece(self, task: Task, extent: Extent, visits: Callable[[], Visits], most: int, workers: int) -> int:
        """How many of at most so many visits a thread should ask at once, on a CPU.

        All of them, if they are small: then Python and the interpreter are what takes time. Otherwise few
        enough to stay near the caches and to give every core its share. The number of workers does not
        matter, unless memory is short, so that it does not move a bit.
        """
        self._at_once = 1  # while the need of one is measured
        need = self._need(task, ahead(extent, CPU), visits)
        step, _ = self._needs[task.phase, extent.rows]  # of a short walk: of a few steps
        near = most if most * step <= SMALL else min(PIECE // step, most // SHARES)
        fit = max(1, min(near, self.limit(CPU) // workers // need))
        piece = most if fit == most else 1 << fit.bit_length() - 1  # cohorts are often divided by 2, 4 or 8
        self._at_once, self._held = piece, piece * need * workers
        return piece

    def measure(self, task: Task, extent: Extent, visits: Callable[[], Visits]) -> None:
        """Find out what a visit needs, once, before it is recorded: that would be recorded too."""
        self._at_once = 1
        self._need(task, ahead(extent, task.federation.sizes.device), visits)

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

        def shrink() -> None:
            nonlocal freed
            free()
            if self._at_once > 1:
                self.memory, self._ran_out = self._held // 2, True
            elif freed:
                raise BadInput(
                    "memory ran out with a single visit at a time: lower batch, K or the number of seeds, or "
                    "use a machine with more memory"
                )
            freed = True

        return until_it_fits(work, shrink)

    def news(self) -> str | None:
        """What a person should hear: once, that memory ran out."""
        if self._told or not self._ran_out:
            return None
        self._told = True
        gib = (self.memory or 0) / 2**30
        return f"memory ran out; from now on visits hold at most {gib:.3g} GiB at a time (memory_gb)"

    def _ask(self, task: Task, extent: Extent, visits: Visits, stage: Stage | None = None) -> dict[str, Any]:
        def one(rows: Tensor, given: Given, state: Any) -> dict[str, Any]:
            return answer(task, extent, rows, given, None if stage is None else stage._replace(state=state))

        given = visits.given(task.federation)
        mapped = (batch_rows(task, extent, given), given, None if stage is None else stage.state)
        try:
            result: dict[str, Any] = torch.func.vmap(one, in_dims=(0, 0, None if mapped[2] is None else 0))(
                *mapped
            )
        except RuntimeError as error:
            if not str(error).startswith("vmap:"):
                raise
            who = f"{type(task.problem).__name__} with {type(task.algorithm).__name__}"
            if "random" in str(error):
                raise BadInput(
                    f"{who} draws random numbers of its own: draw them by draws.uniform(xi.key, ...)"
                ) from error
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
            short, *longer = [
                peak_bytes(lambda: self._ask(task, extent._replace(steps=steps), first))  # noqa: B023
                for steps in sorted({min(steps, extent.steps) for steps in SHORT})
            ]
            self._needs[kind] = (max(1, short), max(0, longer[0] - short) if longer else 0)
        least, growth = self._needs[kind]
        return least + growth * max(0, extent.steps - SHORT[0]) // (SHORT[1] - SHORT[0])


def ahead(extent: Extent, device: torch.device) -> Extent:
    """Whether gradients at the start of the walks are computed ahead: of walks that are short, or on a GPU
    of any whose length is known."""
    short = extent.steps <= BLOCK or device.type == "cuda"
    return extent._replace(ahead=short and not extent.ragged)


def _part(stage: Stage | None, start: int, stop: int) -> Stage | None:
    """The stage of some of the visits."""
    if stage is None or stage.state is None:
        return stage
    return stage._replace(state=tree_map(lambda rows: rows[start:stop], stage.state))
