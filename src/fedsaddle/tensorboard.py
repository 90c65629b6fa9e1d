"""Events for TensorBoard in RUN/tensorboard/ALGORITHM/seed-N: every metric, and floats_up, by round.

They are a copy of rounds.csv. When an algorithm begins or goes on, its events are written anew from the rows
that the checkpoint has kept, so that no point of a resumed run is there twice.
"""

from __future__ import annotations

import csv
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from fedsaddle.engine.course import Stop
from fedsaddle.runs import KEYS, Plan, Watch

MOST_CURVES = 16  # with more, one curve of the seeds' means: nobody can read hundreds
Scalars = dict[str, float]


class TensorBoard:
    """A Watch that writes events and passes on what it sees to another."""

    def __init__(self, run: Path, plan: Plan, other: Watch) -> None:
        self.run, self.plan, self.other = run, plan, other

    def begin(self, study: str, start: int) -> None:
        names = set(self.plan.studies[study].names)
        for name in names:
            shutil.rmtree(self.run / "tensorboard" / name, ignore_errors=True)
        for (name, round), seeds in _kept(self.run / "rounds.csv", names).items():
            self._write(study, name, round, seeds)
        self.other.begin(study, start)

    def stop(self, study: str, stop: Stop) -> None:
        names = self.plan.studies[study].names
        found: dict[str, dict[int, Scalars]] = {}
        for row in stop.rows:
            scalars = {**row.metrics, "floats_up": float(row.floats_up)}
            found.setdefault(names[row.lane], {})[row.seed] = scalars
        for name, seeds in found.items():
            self._write(study, name, stop.round, seeds)
        self.other.stop(study, stop)

    def _write(self, study: str, name: str, round: int, seeds: dict[int, Scalars]) -> None:
        place = self.run / "tensorboard" / name
        if len(self.plan.studies[study].seeds) <= MOST_CURVES:
            for seed, scalars in seeds.items():
                _append(place / f"seed-{seed}", round, scalars)
        elif seeds:
            _append(place / "mean", round, _mean(seeds.values()))


def _mean(seeds: Iterable[Scalars]) -> Scalars:
    seeds = list(seeds)
    return {tag: fmean(scalars[tag] for scalars in seeds) for tag in seeds[0]}


def _kept(path: Path, names: set[str]) -> dict[tuple[str, int], dict[int, Scalars]]:
    """The rows that a run goes on from, by name, round and seed."""
    kept: dict[tuple[str, int], dict[int, Scalars]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["algorithm"] in names:
                metrics = [name for name in row if name not in KEYS["rounds.csv"]]
                scalars = {tag: float(row[tag]) for tag in (*metrics, "floats_up")}
                kept.setdefault((row["algorithm"], int(row["round"])), {})[int(row["seed"])] = scalars
    return kept


def _append(folder: Path, round: int, scalars: Scalars) -> None:
    """Add one evaluation. The file is closed again: a run may have hundreds."""
    path = folder / "events.out.tfevents.fedsaddle"  # TensorBoard knows its files by the middle of the name
    events = []
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        events.append(Event(wall_time=time.time(), file_version="brain.Event:2"))
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    events.append(Event(wall_time=time.time(), step=round, summary=Summary(value=values)))
    with path.open("ab") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
