"""One lane's round on answers that come from devices, and what becomes of a merge that one of them spoils."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from fedsaddle.checks import norm
from fedsaddle.core import Message, Pair
from fedsaddle.engine.course import BEYOND
from fedsaddle.engine.gather import NOBODY
from fedsaddle.engine.phase import exchange, send
from fedsaddle.engine.round import play
from fedsaddle.engine.study import Event, Executor, Lanes, Lost, Meeting, PhaseInputs, PhaseResult, Study
from fedsaddle.engine.visits import Answer, Extent, Task, Visits
from fedsaddle.fleet import Verdict
from fedsaddle.flower.usual import Measure
from fedsaddle.history import Gathering, Told


class Heard(NamedTuple):
    """What came of one phase: how its wait ended, the good answers by client, and how large they are."""

    end: Gathering
    answers: dict[int, Message]
    measure: Measure

    @property
    def used(self) -> dict[int, Message]:
        return {client: self.answers[client] for client in self.end.used}


class Spoilt(Exception):
    """A merge that nobody can go on from."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number, self.why = number, why


@dataclass
class Deployed(Executor):
    """One lane's answers, which come from devices: who arrives, and in place of what would be computed.

    A merge that is not finite, or makes a metric so, is not the end of a run if an answer is to blame that is
    larger than the others. Then the round is played again from the same state with that answer refused and
    the phase abandoned, which is what the history says and a replay does. Where no answer stands out, the
    lane has diverged.
    """

    study: Study
    lane: int
    gather: Callable[[Study, int, int, int, int, Message, Gathering | None], Heard]
    strike: Callable[[Study, int, str], None]
    moved: dict[tuple[str, int], float]  # the farthest that each lane has moved in a round so far
    heard: list[Heard] = field(default_factory=list)  # phase by phase
    _borne: set[int] = field(default_factory=set)  # phases in which no answer stands out
    _why: str = ""

    def play(self, lanes: Lanes, round: int, told: list[Told]) -> tuple[Lanes, list[Event]]:
        """The lane's round. Its answers are checked as they arrive, and not again."""
        only = replace(lanes, alive=[other == self.lane for other in range(len(lanes.alive))])
        study = replace(self.study, executor=self, checks=None)
        while True:
            own: list[Told] = []
            try:
                after, events = play(study, only, round, own, self)
            except Spoilt as error:
                self._blame(error)
                continue
            told += own
            if self._why:
                events = [e._replace(detail=self._why) if e.what == "abandoned" else e for e in events]
            return after, events

    def learn(self) -> None:
        """Remember how large the answers were that were used."""
        for one in self.heard:
            one.measure.learn(one.used)

    def known(
        self, study: Study, round: int, clock: list[float], strikes: Sequence[Counter[int]], refused: object
    ) -> list[Meeting]:
        return []

    def wait(
        self, study: Study, lanes: Lanes, round: int, number: int, server: Any, playing: list[bool]
    ) -> Meeting:
        lane = self.lane
        if number == len(self.heard):
            down = {name: _of(pair, lane) for name, pair in send(study, server, number).items()}
            before = self.heard[-1].end if number and study.cohorts == "answered" else None
            t = lanes.completed[lane]
            self.heard.append(self.gather(self.study, lane, round, number, t, down, before))
        return [self.heard[number].end if other == lane else NOBODY for other in range(len(study.seeds))]

    def run(self, study: Study, number: int, extent: Extent, inputs: PhaseInputs) -> PhaseResult | Lost:
        def answered(task: Task, extent: Extent, visits: Visits) -> Answer:
            order = [self.heard[number].answers[client] for client in visits.client.tolist()]
            return Answer(tree_map(lambda *own: torch.stack(own).to(study.device), *order))

        result = exchange(study, number, extent, inputs, answered)
        if isinstance(result, PhaseResult) and number not in self._borne:
            self._look(study, number, inputs.server, result.server)
        return result

    def _look(self, study: Study, number: int, before: Any, after: Any) -> None:
        """Whether one can go on from a merge.

        A metric is looked at where the point has moved farther than in any round so far: evaluations are
        dear, and what is spoilt by an answer has moved far.
        """
        for leaf in tree_leaves(after):
            if leaf.is_floating_point() and not _sound(leaf[self.lane]):
                raise Spoilt(number, "is not finite, or its square would not be")
        if number < len(study.phases) - 1:
            return
        lane = study.names[self.lane], study.seeds[self.lane]
        z = _of(after.z, self.lane)
        far = float(norm(z - _of(before.z, self.lane)))
        if far > self.moved.get(lane, -1.0):
            metrics = self.measure(study, Pair(z.x[None], z.y[None]))[0]
            for name, value in metrics.items():
                if not abs(value) < BEYOND:
                    raise Spoilt(number, f"makes {name} {value:g}")
            self.moved[lane] = far

    def _blame(self, error: Spoilt) -> None:
        """Refuse the answers that stand out, and abandon their phase; if none does, bear it."""
        end, answers, measure = heard = self.heard[error.number]
        worst = {}
        if any(_finite(answer) for answer in heard.used.values()):
            worst = measure.too_large(heard.used, {}, known=1, together=False)
        if not worst:
            self._borne.add(error.number)
            return
        phase = self.study.phases[error.number].name
        self._why = f"{phase}: the merge of {len(end.used)} answers {error.why}; {len(worst)} refused"
        for client, why in worst.items():
            self.strike(self.study, client, why)
        late = [client for client in end.used if client not in worst]
        end = end._replace(
            used=[],
            late=[*late, *end.late],
            refused=end.refused | worst,
            verdict=Verdict.ABANDON,
            answered=len(late),
        )
        self.heard[error.number] = Heard(end, answers, measure)


def _of(pair: Pair, lane: int) -> Pair:
    return Pair(pair.x[lane], pair.y[lane])


def _finite(answer: Message) -> bool:
    return all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(answer))


def _sound(values: torch.Tensor) -> bool:
    return bool((values.abs() < torch.finfo(values.dtype).max ** 0.5).all())
