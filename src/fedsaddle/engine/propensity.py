"""What an answer weighs: the inverse of its client's propensity to be used (inverse propensity weighting).

In the mean over S_t used of S^ invited clients, a client has 1/S_t if it is used, and would have 1/S^ if all
were. Its propensity is what it had of what it would have had, in all rounds before this one:

    propensity_i = (1 + sum_t [i used in t] S^_t / S_t) / (1 + sum_t [i invited in t])

The one on each side says that all are alike, until more is known. With weights 1 / propensity_i every client
has in the long run what it would have had if all had answered, however the server decides whom to wait for,
and the weights of a mean are 1 on average. (Were the number of answers alone what differs from round to
round, all propensities would be 1.) Phases are counted apart: they may take unlike times. A phase that is
abandoned merges nothing and is not counted.
"""

from __future__ import annotations

from torch import Tensor

from fedsaddle.engine.study import Attendance
from fedsaddle.fleet import Verdict
from fedsaddle.history import Gathering

PRIOR = 1.0  # invitations with an average outcome, which every client begins with


def propensities(attendance: Attendance) -> Tensor:
    """(lane, phase, client)"""
    return (attendance.used + PRIOR) / (attendance.invited + PRIOR)


def weights_of(attendance: Attendance, number: int, asked: list[list[int]], most: float) -> Tensor:
    """What the answer of each visit weighs in this phase, at most so much; lanes' clients as in `asked`."""
    lanes = [lane for lane, clients in enumerate(asked) for _ in clients]
    clients = [client for own in asked for client in own]
    own = Attendance(attendance.invited[lanes, number, clients], attendance.used[lanes, number, clients])
    return (1 / propensities(own)).clamp(max=most)


def count(attendance: Attendance, lane: int, number: int, drawn: list[int], end: Gathering) -> None:
    """Add how a phase ended, in place, of those that were `drawn` for it."""
    if end.verdict is Verdict.GO:
        attendance.invited[lane, number, drawn] += 1
        attendance.used[lane, number, end.used] += len(drawn) / len(end.used)


def copied(attendance: Attendance | None) -> Attendance | None:
    return None if attendance is None else Attendance(*(counts.clone() for counts in attendance))
