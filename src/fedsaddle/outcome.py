"""What a simulation or a run has come to, and what is made of it: a table, a report, a folder, a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from fedsaddle.core import Pair
from fedsaddle.engine.course import Row, Stop
from fedsaddle.engine.study import Event, Study
from fedsaddle.errors import BadInput, unknown
from fedsaddle.problem import Modelled, Problem


class Made(NamedTuple):
    """How an outcome came about, for a folder that tells of it."""

    study: Study
    settings: tuple[Any, ...]  # of the algorithm, as they were given
    rounds: int
    evaluate_every: int
    threads: int
    end: Stop  # without what clients keep


@dataclass(frozen=True, repr=False)
class Outcome:
    """What `simulate` or `run` leaves behind. A lane is a seed of an algorithm, or of a setting of it."""

    rows: list[Row]  # evaluations, lane by lane at each
    events: list[Event]  # abandoned rounds, diverged and collapsed lanes
    z: list[Pair]  # each lane's last finite point
    alive: list[bool]  # lanes that did not diverge
    problem: Problem | None = None
    names: tuple[str, ...] = ()  # what each lane's algorithm is called
    seeds: tuple[int, ...] = ()  # of each lane
    folder: Path | None = None  # of a run
    made: Made | None = field(default=None, compare=False)

    def last(self, metric: str) -> list[float]:
        """The metric at each lane's last evaluation."""
        known = self.rows[0].metrics if self.rows else {}
        if self.rows and metric not in known:
            raise unknown("metric", metric, known)
        found = {row.lane: row.metrics[metric] for row in self.rows}
        return [found.get(lane, math.nan) for lane in range(len(self.z))]

    def lane(self, seed: int = 0, algorithm: str | None = None) -> int:
        """Which lane a seed of an algorithm is; one that is alone need not be named."""
        there = list(dict.fromkeys(self.names))
        if algorithm is None and len(there) == 1:
            algorithm = there[0]
        if algorithm is None:
            raise BadInput(f"which algorithm? There are {', '.join(there) or 'none'}: say algorithm=...")
        if algorithm not in there:
            raise unknown("algorithm of this outcome", algorithm, there)
        lanes = list(zip(self.names, self.seeds, strict=True))
        if (algorithm, seed) not in lanes:
            known = ", ".join(str(own) for name, own in lanes if name == algorithm)
            raise BadInput(f"there is no seed {seed} of {algorithm}; its seeds are {known}")
        return lanes.index((algorithm, seed))

    def model(self, seed: int = 0, algorithm: str | None = None, player: str | None = None) -> nn.Module:
        """The trained network of a seed, on the CPU, in eval mode.

        Of a problem with several networks, `player` says which; by default the one that the problem puts
        first. A seed that diverged gives its last finite point.
        """
        if not isinstance(self.problem, Modelled):
            name = "a problem that is not known" if self.problem is None else type(self.problem).__name__
            raise BadInput(f"{name} has no network to give; outcome.z has its points, lane by lane")
        networks = self.problem.models(self.z[self.lane(seed, algorithm)].to("cpu"))
        if player is not None and player not in networks:
            raise unknown("player", player, networks)
        return networks[next(iter(networks)) if player is None else player]

    def to_pandas(self) -> Any:
        """A pandas.DataFrame, a row for each evaluation of a lane. Pandas does not come with FedSaddle."""
        names = self.names or ("",) * len(self.z)
        keys = ("algorithm", "seed", "round", "floats_up", "floats_down", "time_simulated")
        table = [
            (
                *(names[row.lane], row.seed, row.round, row.floats_up, row.floats_down, row.time_simulated),
                *row.metrics.values(),
            )
            for row in self.rows
        ]
        return pandas().DataFrame(table, columns=[*keys, *(self.rows[0].metrics if self.rows else ())])

    def save(self, folder: str | Path) -> Path:
        """Write a run folder, as `fs.run(..., out=folder)` would have; of pictures only the last."""
        place: Path = _above().save_outcome(self, Path(folder))
        return place

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report: to FILE.html or into a folder; without one, into the run's own folder."""
        page: Path = _above().report_outcome(self, None if path is None else Path(path))
        return page

    def __repr__(self) -> str:
        told, there = [], list(dict.fromkeys(self.names))
        for name in there:
            lanes = [lane for lane, own in enumerate(self.names) if own == name]
            lost = [lane for lane in lanes if not self.alive[lane]]
            rows = {row.lane: row for row in self.rows if row.lane in lanes}
            ends = [row for row in rows.values() if row.lane not in lost]
            rounds = [row.round for row in ends] or [one.round for one in self.events if one.lane in lost]
            words = [_counted(len(lanes), "seed"), _counted(max(rounds, default=0), "round")]
            if ends:
                metric = next(iter(ends[0].metrics))
                words.append(f"{metric} {sum(row.metrics[metric] for row in ends) / len(ends):.4g}")
            if lost:
                start = "" if rows else " where it starts"
                words.append(f"{len(lost)} of {len(lanes)} diverged{start}")
            told.append(f"{name}: {', '.join(words)}")
        if len(there) > 1:
            what = "setting" if self.made is not None else "algorithm"
            told.insert(0, f"{_counted(len(there), what)}, {_counted(len(set(self.seeds)), 'seed')}")
        return f"Outcome({'; '.join(told)})"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def pandas() -> Any:
    """Pandas, if it is here."""
    try:
        return import_module("pandas")
    except ImportError:
        raise BadInput("to_pandas needs pandas, which is not here: pip install pandas") from None


def _above() -> Any:
    """The room where folders and reports are made.

    It is above this one, and imported when somebody asks: a simulation needs none of it.
    """
    return import_module("fedsaddle.app.outcomes")
