"""CUDA graphs: a computation is recorded once for each shape and then replayed without Python.

Thousands of small kernels make up a round. Launched one by one they keep a GPU waiting for Python nearly
all of the time; replayed as one graph they do not. What goes into the graph is a shortened tape.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedsaddle.engine.recording import record


class Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: Any  # where it reads from
    outputs: Any  # where it writes to
    work: Any  # what it was made of, which holds the constants that it reads


class Graphs:
    """The recordings of one study. They share their memory, so only one may be replayed at a time."""

    def __init__(self) -> None:
        self._recordings: dict[Hashable, Recording] = {}
        self._pool: Any = None

    def __call__(self, shape: Hashable, work: Callable[[Any], Any], inputs: Any) -> Any:
        """work(inputs), by a replay. All it does with its inputs must follow from their `shape`."""
        if shape not in self._recordings:
            self._recordings[shape] = self._record(work, inputs)
        recording = self._recordings[shape]
        for place, value in zip(tree_leaves(recording.inputs), tree_leaves(inputs), strict=True):
            place.copy_(value, non_blocking=True)
        recording.graph.replay()
        return tree_map(Tensor.clone, recording.outputs)  # the next replay writes to the same place

    def forget(self) -> None:
        """Give back the memory of all recordings."""
        self._recordings.clear()
        self._pool = None

    def _record(self, work: Callable[[Any], Any], inputs: Any) -> Recording:
        places = tree_map(lambda value: value.to("cuda", copy=True), inputs)
        # Libraries set themselves up on their first calls, which cannot be part of a graph.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            work = record(work, places) or work
            work(places)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = work(places)
        self._pool = graph.pool()
        return Recording(graph, places, outputs, work)
