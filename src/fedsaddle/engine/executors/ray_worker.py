"""What an actor of Ray does: it holds the problem, and answers a part of the visits of a phase."""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from fedsaddle.core import Algorithm
from fedsaddle.engine import machine
from fedsaddle.engine.compile.cuda_graphs import Graphs
from fedsaddle.engine.compile.cuts import Cut, rounded_up
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.visits import Answer, Extent, Task, Visits
from fedsaddle.problem import Problem
from fedsaddle.steady import Steady


class Job(NamedTuple):
    """What all visits of one phase share, but for what an actor already has."""

    algorithm: Algorithm
    phase: int
    batch: int
    steady: Steady
    partial: bool
    extent: Extent


class Worker:
    """What an actor does: it holds the problem, and a vectorised engine for each algorithm."""

    def begin(
        self, problem: Problem, device: str, memory: int | None, tf32: bool, deterministic: bool
    ) -> int:
        """Receive what stays the same. The number of the process."""
        machine.prepare(1, tf32, deterministic)
        self.problem, self.device = problem, torch.device(device)
        self.federation = problem.federation.to(self.device)
        self.memory = _share() if memory is None and self.device.type == "cpu" else memory
        self.engines: dict[tuple[Algorithm, int, Steady, bool], tuple[Vectorised, Graphs]] = {}
        return os.getpid()

    def ask(self, job: Job, by_lane: Any, rest: Any) -> tuple[Any, str | None]:
        """The answers to a part of the visits, and what a person should hear."""
        task = Task(
            self.problem, self.federation, job.algorithm, job.phase, job.batch, job.steady, job.partial
        )
        visits = Visits(to_tensors(by_lane, self.device), *to_tensors(rest, self.device))
        key = (job.algorithm, job.batch, job.steady, job.partial)
        if key not in self.engines:
            self.engines[key] = Vectorised(self.memory), Graphs()
        engine, graphs = self.engines[key]
        if self.device.type == "cpu":
            answers = engine.within_memory(lambda: engine.answers(task, job.extent, visits))
        else:
            answers = engine.within_memory(lambda: replayed(engine, graphs, task, job, visits), graphs.forget)
        return arrays_of(answers), engine.news()


def replayed(engine: Vectorised, graphs: Graphs, task: Task, job: Job, visits: Visits) -> Answer:
    """The same, recorded and replayed."""
    real, lanes = len(visits), len(visits.by_lane["t"])
    cut = Cut.of(engine, task, job.extent)
    count = rounded_up(real)
    pad = torch.arange(count, device=visits.key.device).clamp(max=real - 1)  # the last again and again
    padded: Any = tree_map(lambda rows: rows[pad], visits.rest)
    engine.measure_visit(task, cut.room, lambda: visits)
    work = cut.work(lambda inputs: Visits(inputs[0], *inputs[1]), lambda inputs, visits, answer: answer)
    answers = graphs((job.phase, cut.key, count, lanes), work, (visits.by_lane, padded))
    cut_back: Answer = tree_map(lambda rows: rows[:real], answers)
    return cut_back


def _share() -> int:
    """What one of as many workers as this machine has cores may hold: at most what one alone would."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(4 << 30, there // 2 // (os.cpu_count() or 1))


def arrays_of(tensors: Any) -> Any:
    """Ray passes arrays on without a copy, and of a slice only the slice."""
    return tree_map(lambda value: value.detach().cpu().numpy(), tensors)


def to_tensors(arrays: Any, device: torch.device) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they cannot be written to: nobody does
        return tree_map(lambda value: torch.from_numpy(value).to(device), arrays)
