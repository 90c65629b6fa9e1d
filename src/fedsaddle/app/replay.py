"""Replay: the history of a run, played again in the simulator, must come to the same.

The folder of a run holds its experiment, its history and what it came to. The same experiment is run with the
history in place of its fleet, and compared: the parameters of every lane, the floats and the clock at every
evaluation, the floats that were sent in vain at the end. A run that is not finished is compared as far as its
checkpoint goes.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedsaddle.app.run import SILENT
from fedsaddle.border.build import load
from fedsaddle.border.trained import check_history
from fedsaddle.core import Pair
from fedsaddle.data.devices import OnDevices
from fedsaddle.engine import machine
from fedsaddle.engine.course import Row, Stop, course, traffic
from fedsaddle.engine.study import Study, points
from fedsaddle.errors import BadInput
from fedsaddle.history import Rules, read_history
from fedsaddle.problem import Held
from fedsaddle.runs import (
    HISTORY,
    KEYS,
    Plan,
    Watch,
    read_checkpoint,
    read_state,
    read_tensors,
    unsealed,
    verified,
)

# What arithmetic on another machine, in another order, may do to a parameter: relative to 1 + its size.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
VAIN = ("abandoned", "diverged")  # events that a history decides


@dataclass(frozen=True)
class Agreement:
    """How one lane of a run compares with its replay."""

    algorithm: str
    seed: int
    rounds: int
    abandoned: int
    difference: float  # the largest of any parameter, relative to 1 + its size
    tolerance: float
    exact: bool  # every bit of every parameter
    quarrels: tuple[str, ...]  # what is counted and differs

    @property
    def agrees(self) -> bool:
        return not self.quarrels and (self.exact or self.difference <= self.tolerance)

    def __str__(self) -> str:
        if self.exact:
            told = "equal to the last bit"
        else:
            within = "within" if self.difference <= self.tolerance else "NOT within"
            told = f"differ by {self.difference:.3g}, {within} {self.tolerance:g}"
        counted = "; ".join(self.quarrels) or "floats and clock agree"
        gone = f", {self.abandoned} abandoned" if self.abandoned else ""
        return f"{self.algorithm} seed {self.seed}: {self.rounds} rounds{gone}; parameters {told}; {counted}"


def replay_run(
    folder: Path,
    tolerance: float | None = None,
    engine: str | None = None,
    device: str | None = None,
    watching: Callable[[Plan, Mapping[str, int]], AbstractContextManager[Watch]] = SILENT.watching,
    code: Sequence[str | Path] = (),
    rows: Sequence[str | Path] = (),
) -> Iterator[Agreement]:
    """Every lane of a run against its replay, one after another. What cannot be replayed is refused.

    `watching` makes somebody who sees the progress, as a `Show` does. Files of `code` that the run needs are
    run if they are named, and are what they were. `rows` are the files of all devices, client 0's first, of a
    run whose rows were on them.
    """
    check_history(folder)
    saved = read_checkpoint(folder)
    plan = _plan(folder, saved, engine, device, code, rows)
    data = {
        name: verified(folder / name, own["sha256"], own["length"]) for name, own in saved["tables"].items()
    }
    history = read_history(data[HISTORY], _rules(plan), str(folder / HISTORY))
    machine.prepare(plan.resolved["threads"], plan.resolved["tf32"])
    begun = [
        name for name in plan.studies if name in (*saved["done"], (saved["state"] or {}).get("algorithm"))
    ]
    with watching(plan, dict.fromkeys(begun, 0)) as watch:
        for name, study in plan.studies.items():
            scripted = replace(study, history=history)
            if name in saved["done"]:
                path = folder / "final" / f"{name}.safetensors"
                stored = read_tensors(path, saved["done"][name])
                ends = [point_of(stored, seed, path) for seed in study.seeds]
                rounds = plan.rounds
            elif saved["state"] and saved["state"]["algorithm"] == name:
                stop = read_state(folder, plan, saved["state"])
                ends, rounds = points(stop.lanes.server), stop.round
            else:
                continue
            yield from _compare(name, scripted, plan, rounds, ends, data, tolerance, watch)


def _plan(
    folder: Path,
    saved: dict[str, Any],
    engine: str | None,
    device: str | None,
    code: Sequence[str | Path],
    rows: Sequence[str | Path],
) -> Plan:
    path = folder / "experiment.json"
    try:
        same = json.loads(path.read_bytes()) == saved["experiment"]
    except (OSError, ValueError, RecursionError):
        same = False
    if not same:
        raise BadInput(f"{path} is not the experiment of this run; restore the folder from a copy")
    plan = load(str(path), engine=engine, device=device, code=code, devices=bool(rows))
    problem = next(iter(plan.studies.values())).problem
    away = isinstance(problem, Held) and problem.away
    if not away and rows:
        raise BadInput("--data goes with a run whose rows were on devices; this one's are here")
    if not away:
        return plan
    if not isinstance(problem, OnDevices):
        raise BadInput("a task of one's own, with rows on devices, cannot be replayed")
    pooled = problem.pooled([str(file) for file in rows])
    facts = folder / "deployment" / "facts.json"
    known = json.loads(unsealed(facts)) if facts.exists() else None
    pooled.learn(known or pooled.facts([pooled.counts(client) for client in range(len(rows))]))
    studies = {name: replace(study, problem=pooled) for name, study in plan.studies.items()}
    return replace(plan, studies=studies)


def _rules(plan: Plan) -> dict[str, Rules]:
    return {
        name: Rules(
            study.quorums,
            len(study.problem.federation),
            len(study.phases),
            plan.rounds,
            study.seeds,
        )
        for name, study in plan.studies.items()
    }


def point_of(stored: dict[str, torch.Tensor], seed: int, path: Path) -> Pair:
    """A seed's last point, of a file that holds those of all seeds."""
    try:
        return Pair(stored[f"{seed}.x"], stored[f"{seed}.y"])
    except KeyError:
        raise BadInput(f"{path} has no parameters of seed {seed}; restore the folder from a copy") from None


def _compare(
    called: str,
    study: Study,
    plan: Plan,
    rounds: int,
    ends: list[Pair],
    data: dict[str, bytes],
    tolerance: float | None,
    watch: Watch,
) -> Iterator[Agreement]:
    """Play the history of one algorithm and compare where it leads."""
    stop: Stop | None = None
    rows: list[Row] = []
    ended: list[tuple[int, int, str]] = []  # lanes' rounds that came to nothing
    # To the last round of the plan, and no further than the checkpoint: what is evaluated does not change.
    watch.begin(called, 0)
    for stop in course(study, plan.rounds, plan.evaluate_every):
        watch.stop(called, stop)
        rows += stop.rows
        ended += [(event.lane, event.round, event.what) for event in stop.events if event.what in VAIN]
        if stop.round == rounds:
            break
    assert stop is not None  # a course has at least its start
    counted = _counted(data["rounds.csv"])
    for lane, (z, seed) in enumerate(zip(points(stop.lanes.server), study.seeds, strict=True)):
        name = study.names[lane]
        found = [
            (row.round, row.floats_up, row.floats_down, row.time_simulated)
            for row in rows
            if row.lane == lane
        ]
        quarrels = _quarrels(counted.get((name, seed), []), found)
        mine = {(round, what) for own, round, what in ended if own == lane}
        quarrels += _untold(data["events.csv"], name, seed, mine)
        last = found[-1][0] if found else 0
        if last == stop.round:
            quarrels += _in_vain(data["traffic.csv"], study, stop, lane)
        assert study.history is not None
        told = len(study.history.lanes.get((name, seed), []))
        if told > stop.round:
            quarrels.append(f"the history goes on to round {told}, the replay ended in round {last}")
        end, here = ends[lane], z.to("cpu")
        far = [_difference(here.x, end.x), _difference(here.y, end.y)]
        yield Agreement(
            name,
            seed,
            told,
            sum(what == "abandoned" for _, what in mine),
            max(far),
            TOLERANCE[end.x.dtype] if tolerance is None else tolerance,
            all(_same(mine, theirs) for mine, theirs in zip(here, end, strict=True)),
            tuple(quarrels),
        )


def _same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    return mine.dtype == theirs.dtype and torch.equal(mine, theirs.cpu())


def _difference(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    if mine.shape != theirs.shape:
        return torch.inf
    far = (mine.double() - theirs.cpu().double()).abs() / (1 + theirs.cpu().double().abs())
    return float(far.max()) if far.numel() else 0.0


Tally = tuple[int, int, int, float]  # round, floats up, floats down, the clock


def _counted(table: bytes) -> dict[tuple[str, int], list[Tally]]:
    """What rounds.csv counted at each evaluation."""
    found: dict[tuple[str, int], list[Tally]] = {}
    for row in _rows(table):
        name, seed, round, up, down, clock = row[: len(KEYS["rounds.csv"])]
        found.setdefault((name, int(seed)), []).append((int(round), int(up), int(down), float(clock)))
    return found


def _rows(table: bytes) -> list[list[str]]:
    """All but the header. The checkpoint has the table's hash, so it is what the run wrote."""
    return list(csv.reader(io.StringIO(table.decode(), newline="")))[1:]


def _quarrels(run: list[Tally], found: list[Tally]) -> list[str]:
    """The first evaluation whose counts differ."""
    for mine, theirs in zip(found, run, strict=False):
        for what, own, other in zip(
            ("round", "floats up", "floats down", "clock"), mine, theirs, strict=True
        ):
            if own != other:
                return [f"{what} after round {theirs[0]}: the run has {other}, the replay {own}"]
    if len(found) != len(run):
        return [f"the run has {len(run)} evaluations, the replay {len(found)}"]
    return []


def _untold(table: bytes, name: str, seed: int, mine: set[tuple[int, str]]) -> list[str]:
    """The first round that one of both abandoned, or diverged in, and the other did not."""
    theirs = {
        (int(round), what)
        for algorithm, own, round, what, _ in _rows(table)
        if (algorithm, int(own)) == (name, seed) and what in VAIN
    }
    for round, what in sorted(mine ^ theirs):
        who, other = ("the run", "the replay") if (round, what) in theirs else ("the replay", "the run")
        return [f"{who} {what} in round {round}, {other} did not"]
    return []


def _in_vain(table: bytes, study: Study, stop: Stop, lane: int) -> list[str]:
    """Floats that were sent and not used, at the end."""
    name, seed, flows = study.names[lane], study.seeds[lane], traffic(study, stop.lanes, lane)
    result = []
    for way in ("late", "refused"):
        theirs = sum(
            int(floats)
            for algorithm, own, round, direction, _, _, floats in _rows(table)
            if (algorithm, int(own), int(round), direction) == (name, seed, stop.round, way)
        )
        mine = sum(floats for flow, floats in flows.items() if flow.direction == way)
        if mine != theirs:
            result.append(f"{way} floats: the run has {theirs}, the replay {mine}")
    return result
