"""Ask one client after another: slow, plain, and the oracle that every other way is tested against."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from fedsaddle.engine.visits import Extent, Task, Visits, answer, batch_rows


class Loop:
    """The plainest way to ask."""

    def __call__(self, task: Task, extent: Extent, visits: Visits) -> dict[str, Any]:
        answers = []
        for number in range(len(visits["size"])):
            visit = tree_map(lambda rows: rows[number], visits)  # noqa: B023
            own = Extent(int(visit["steps"]), int(visit["size"]), ragged=False)
            answers.append(answer(task, own, batch_rows(task, own, visit), visit))
        stacked: dict[str, Any] = tree_map(lambda *rows: torch.stack(rows), *answers)
        return stacked
