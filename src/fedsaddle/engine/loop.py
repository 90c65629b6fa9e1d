"""Ask one client after another: slow, plain, and the oracle that every other way is tested against."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from fedsaddle.engine.visits import Extent, Task, Visits, answer, batch_rows


class Loop:
    """The plainest way to ask."""

    def __call__(self, task: Task, extent: Extent, visits: Visits) -> dict[str, Any]:
        answers, given = [], visits.given(task.federation)
        for number in range(len(visits)):
            one = tree_map(lambda rows: rows[number], given)  # noqa: B023
            own = Extent(int(one["steps"]), int(one["size"]), ragged=False)
            answers.append(answer(task, own, batch_rows(task, own, one), one))
        stacked: dict[str, Any] = tree_map(lambda *rows: torch.stack(rows), *answers)
        return stacked
