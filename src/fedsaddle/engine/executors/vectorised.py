"""All clients at once: one vmap over the flat list of visits, in chunks that fit the memory.

Phases and evaluations are compiled: recorded once for each shape, and replayed. What is measured here is how
much memory a visit needs; how a recording is made is in `engine.compile`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedsaddle.core import Pair
from fedsaddle.engine.compile.cuda_graphs import Graphs
from fedsaddle.engine.compile.cuts import BLOCK, Cut
from fedsaddle.engine.compile.referred import Referred
from fedsaddle.engine.compile.tapes import Tapes, workers
from fedsaddle.engine.compile.work import Work
from fedsaddle.engine.memory import peak_bytes, until_it_fits
from fedsaddle.engine.phase import conclude, exchange, padded, visits_in, without_padding
from fedsaddle.engine.study import CPU, Executor, Lost, PhaseInputs, PhaseResult, Study
from fedsaddle.engine.visits import Answer, Extent, Given, Stage, Task, Visits, answer, batch_rows, walked
from fedsaddle.errors import BadInput, Notice, check_count
from fedsaddle.mishaps import in_words, is_engines, out_of_memory, place_of
from fedsaddle.problem import Measured, floats, name_of

T = TypeVar("T")
SMALL, PIECE = 8 << 20, 32 << 20  # bytes that visits hold which are asked all at once, or piece by piece
SHARES = 4  # pieces, at least, of what is not small
SHORT = (2, 3)  # steps of the walks whose memory is measured
TOGETHER = 8  # lanes that a GPU evaluates at once
ALONE = "if PyTorch cannot do this for many clients at once, --engine loop, executor=Loop(), asks one by one"


class Vectorised(Executor):
    """One computation for many visits. `memory` bounds, in bytes, what it holds at a time.

    Without one it may hold 4 GiB, or half of a GPU. What is not `compiled` is computed as it is written.
    """

    def __init__(self, memory: int | None = None, compiled: bool = True) -> None:
        if memory is not None:
            check_count("memory", memory, most=2**63 - 1)
        self.memory, self.compiled = memory, compiled
        self.asked = memory  # what it may hold becomes known, and less, on the way
        self._recorders: weakref.WeakKeyDictionary[Study, Tapes | Graphs | None] = weakref.WeakKeyDictionary()
        self._apart: weakref.WeakSet[Study] = weakref.WeakSet()  # whose lanes are evaluated one by one
        # Bytes of one visit with a short walk, and how many more with a longer one, by phase and rows.
        self._needs: dict[tuple[int, int], tuple[int, int]] = {}
        self._at_once = self._held = 1  # visits, and bytes, that the last computation held at a time
        self._ran_out = self._told = False

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made again when it is needed: recordings hold what cannot be pickled."""
        return {key: own for key, own in vars(self).items() if key not in ("_recorders", "_apart")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _recorders=weakref.WeakKeyDictionary(), _apart=weakref.WeakSet())

    def run(self, study: Study, number: int, extent: Extent, inputs: PhaseInputs) -> PhaseResult | Lost:
        recorder = self.recorder(study)
        if isinstance(recorder, Tapes):
            return self.within_memory(
                lambda: self._taped(study, number, extent, inputs, recorder), recorder.forget
            )
        if isinstance(recorder, Graphs):
            return self.within_memory(
                lambda: self._captured(study, number, extent, inputs, recorder), recorder.forget
            )
        return self.within_memory(lambda: exchange(study, number, extent, inputs, self.answers))

    def recorder(self, study: Study) -> Tapes | Graphs | None:
        """What records a study's phases: they hold its hyperparameters and its merge."""
        if study not in self._recorders:
            self._recorders[study] = self._new_recorder(study)
        return self._recorders[study]

    def _new_recorder(self, study: Study) -> Tapes | Graphs | None:
        if not self.compiled:
            return None
        device, referred = study.device, Referred(study.problem)
        if device.type == "cuda":
            return Graphs(lambda: self.limit(device), referred, device)
        return Tapes(referred) if type(self) is Vectorised else None  # another may do what no tape can tell

    def release(self, study: Study) -> None:
        recorder = self._recorders.pop(study, None)
        if recorder is not None:
            recorder.close()

    def close(self) -> None:
        for study in list(self._recorders):
            self.release(study)

    def beside(self, device: torch.device) -> int:
        return workers() if self.compiled and device.type == "cpu" else 1

    # --- phases and evaluations, recorded ---

    def _taped(
        self, study: Study, number: int, extent: Extent, inputs: PhaseInputs, tapes: Tapes
    ) -> PhaseResult | Lost:
        """A phase on a CPU: all visits in one tape, or piece by piece, by all threads."""
        real, most = len(inputs.calls.lane), len(study.seeds) * study.quorums[number].wanted
        cut = Cut.of(self, study.task(number), extent)
        piece = self.piece(cut.task, cut.room, lambda: visits_in(study, number, inputs), most)
        count = -(-real // piece) * piece
        own = inputs if count == real else padded(inputs, count)
        if piece == count:
            return without_padding(self._whole(study, number, cut, own, count, tapes), real)
        shape = ("pieces", number, cut.key, piece)  # not what a whole phase of so many visits is
        asked = cut.work(lambda part: Visits(*part), lambda part, visits, answer: answer)
        result = exchange(
            study, number, extent, own, lambda task, extent, visits: tapes.pieces(shape, asked, visits, piece)
        )
        assert isinstance(result, PhaseResult)
        return without_padding(result, real)

    def _captured(
        self, study: Study, number: int, extent: Extent, inputs: PhaseInputs, graphs: Graphs
    ) -> PhaseResult:
        """A phase on a GPU. There is room for some more visits than there are, so that few shapes occur."""
        real, most = len(inputs.calls.lane), len(study.seeds) * study.quorums[number].wanted
        cut = Cut.of(self, study.task(number), extent)
        self.measure_visit(cut.task, cut.room, lambda: visits_in(study, number, inputs))
        piece = max(8, most // 8)
        count = min(most, -(-real // piece) * piece)
        own = inputs if count == real else padded(inputs, count)
        return without_padding(self._whole(study, number, cut, own, count, graphs), real)

    def _whole(
        self, study: Study, number: int, cut: Cut, inputs: PhaseInputs, count: int, recorder: Tapes | Graphs
    ) -> PhaseResult:
        def end(inputs: PhaseInputs, visits: Visits, answer: Answer) -> PhaseResult:
            return conclude(study, number, inputs, visits.by_lane["down"], answer)

        work = cut.work(lambda inputs: visits_in(study, number, inputs), end)
        result: PhaseResult = recorder((number, cut.key, count), work, inputs)
        return result

    def measure(self, study: Study, z: Pair) -> list[dict[str, float]]:
        """A GPU works on several points together, and on all before it is asked for a number."""
        problem, graphs = study.problem, self.recorder(study)
        if not isinstance(graphs, Graphs) or not isinstance(problem, Measured) or study in self._apart:
            return super().measure(study, z)
        name = f"the evaluation of {name_of(problem)}"
        work = Work(name, together(problem), before=lambda z: problem.measure(Pair(z.x[0], z.y[0])))
        count, size, found = len(z.x), min(TOGETHER, len(study.seeds)), []
        try:
            for at in range(0, count, size):
                part = torch.arange(at, at + size).clamp(max=count - 1)  # always so many, for one recording
                found.append(graphs("metrics", work, Pair(*(rows[part] for rows in z))))
        except Unmappable as why:
            self._apart.add(study)
            warnings.warn(f"{name} goes lane by lane, which is slower: {why}", Notice, stacklevel=2)
            return super().measure(study, z)
        metrics = tree_map(lambda *parts: torch.cat(parts)[:count], *found)
        return floats(metrics)

    # --- visits, many at a time ---

    def answers(self, task: Task, extent: Extent, visits: Visits, stage: Stage | None = None) -> Answer:
        """The answers to all visits; of a stage, to those whose walks are over."""
        found: Answer = self._in_parts(task, extent, visits, stage)
        return found

    def walked(self, task: Task, extent: Extent, visits: Visits, stage: Stage) -> Any:
        """Where all walks are after a stage that ends in them."""
        return self._in_parts(task, extent, visits, stage)

    def _in_parts(self, task: Task, extent: Extent, visits: Visits, stage: Stage | None) -> Any:
        count, extent = len(visits), with_prefetch(extent, visits.key.device)
        at_once = self.at_once(task, extent, visits)
        parts = [
            self._ask(task, extent, visits.part(at, at + at_once), _part(stage, at, at + at_once))
            for at in range(0, count, at_once)
        ]
        return parts[0] if len(parts) == 1 else tree_map(lambda *chunks: torch.cat(chunks), *parts)

    def at_once(self, task: Task, extent: Extent, visits: Visits) -> int:
        """How many of these visits fit into memory together."""
        self._at_once, limit = 1, self.limit(visits.key.device)  # one at a time while its need is measured
        need = self._need(task, with_prefetch(extent, visits.key.device), lambda: visits)
        self._at_once = max(1, min(len(visits), limit // need))
        self._held = self._at_once * need
        return self._at_once

    def piece(self, task: Task, extent: Extent, visits: Callable[[], Visits], most: int) -> int:
        """How many of at most so many visits a thread should ask at once, on a CPU.

        All of them, if they are small: then Python and the interpreter are what takes time. Otherwise few
        enough to stay near the caches and to give every core its share. The number of threads does not
        matter, unless memory is short, so that it does not move a bit.
        """
        threads = self.beside(CPU)
        self._at_once = 1  # while the need of one is measured
        need = self._need(task, with_prefetch(extent, CPU), visits)
        step, _ = self._needs[task.phase, extent.rows]  # of a short walk: of a few steps
        near = most if most * step <= SMALL else min(PIECE // step, most // SHARES)
        fit = max(1, min(near, self.limit(CPU) // threads // need))
        piece = most if fit == most else 1 << fit.bit_length() - 1  # cohorts are often divided by 2, 4 or 8
        self._at_once, self._held = piece, piece * need * threads
        return piece

    def measure_visit(self, task: Task, extent: Extent, visits: Callable[[], Visits]) -> None:
        """Find out what a visit needs, once, before it is recorded: that would be recorded too."""
        self._at_once = 1
        self._need(task, with_prefetch(extent, task.federation.sizes.device), visits)

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

    def _ask(self, task: Task, extent: Extent, visits: Visits, stage: Stage | None = None) -> Any:
        def one(rows: Tensor, given: Given, state: Any) -> Any:
            if stage is None:
                return answer(task, extent, rows, given)
            work = answer if stage.part == "last" else walked
            return work(task, extent, rows, given, stage._replace(state=state))

        given = visits.given(task.federation)
        mapped = (batch_rows(task, extent, given), given, None if stage is None else stage.state)
        try:
            return torch.func.vmap(one, in_dims=(0, 0, None if mapped[2] is None else 0))(*mapped)
        except (RuntimeError, BadInput) as error:
            told = _unmapped(error, f"{name_of(task.problem)} with {type(task.algorithm).__name__}")
            if told is None:
                raise
            raise told from error

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


def _unmapped(error: RuntimeError | BadInput, who: str) -> BadInput | None:
    """What went wrong under a map, in words; none, if it has them, or if the engine knows what to do.

    One client of every phase was computed alone before, and went well.
    """
    if isinstance(error, BadInput):
        odd = isinstance(error.__cause__, RuntimeError) and "executor=" not in str(error)
        return BadInput(f"{error}; {ALONE}") if odd else None
    if not str(error).startswith("vmap:"):
        return None if is_engines(error) else BadInput(f"{who} failed: {in_words(error)}; {ALONE}")
    if "random" in str(error):
        return BadInput(f"{who} draws random numbers of its own: draw them by draws.uniform(xi.key, ...)")
    return BadInput(
        f"{who} cannot be computed for many clients at once, for it looks at values (.item(), if, a shape "
        f"that depends on them){place_of(error)}: write it without, or use --engine loop, executor=Loop()"
    )


def with_prefetch(extent: Extent, device: torch.device) -> Extent:
    """Whether gradients at the start of the walks are computed ahead: of walks that are short, or on a GPU
    of any whose length is known."""
    short = extent.steps <= BLOCK or device.type == "cuda"
    return extent._replace(ahead=short and not extent.ragged)


class Unmappable(Exception):
    """Why an evaluation cannot be mapped over lanes."""


def together(problem: Measured) -> Callable[[Pair], dict[str, Tensor]]:
    """The metrics of some lanes, as one computation if PyTorch can map this one.

    What it cannot map may be a mistake: lane by lane, that will be told as what it is.
    """

    def measure(z: Pair) -> dict[str, Tensor]:
        try:
            found: dict[str, Tensor] = torch.func.vmap(problem.measure)(z)
        except (RuntimeError, BadInput) as error:
            if out_of_memory(error):
                raise
            raise Unmappable(next(iter(str(error).splitlines()), "")) from error
        return found

    return measure


def _part(stage: Stage | None, start: int, stop: int) -> Stage | None:
    """The stage of some of the visits."""
    if stage is None or stage.state is None:
        return stage
    return stage._replace(state=tree_map(lambda rows: rows[start:stop], stage.state))
