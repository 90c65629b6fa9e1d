"""A run folder: what a run leaves behind, and how it goes on after a crash as if nothing had happened.

    experiment.json         the resolved experiment; it can be run again as it is
    metrics.json            what the problem declares of each metric
    rounds.csv              one row an evaluation of a lane
    traffic.csv             floats sent so far at each evaluation, by direction, variable and kind
    events.csv              abandoned rounds, diverged lanes, lanes that a sweep has dropped, answers
                            that were lost with a worker, a lack of memory
    history.jsonl           if it was asked for: what became of every invitation
    environment.json        for each time it was started: when, with what, on what, and for how long
    final/ALGORITHM.safetensors   each seed's last finite point
    samples/ALGORITHM-ROUND.png   of a problem that makes pictures: the first seed's at each evaluation,
    samples/ALGORITHM-rounds.png  and some of them over the rounds
    best.toml               of a sweep: an experiment with each algorithm's best setting
    checkpoint.json, state-*.safetensors
    kept/*.safetensors      where each algorithm was at its end, so that it can go on to more rounds
    before-ROUNDS/          while a run goes on to more rounds: the tables as they were

checkpoint.json is the one place that says how far the run is. It names the state file and holds its hash,
the length and hash of every table, and a hash of itself; replacing it, atomically, is what makes a
checkpoint. A resumed run cuts the tables back to the lengths in it and goes on: since no draw depends on
anything but (seed, round, phase, client), it writes the same bytes again.

A run goes on to more rounds in the same way. Tables hold one algorithm after another, so the rows that there
are are put aside; each algorithm, in its turn, takes up its own and goes on from where it was.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fedsaddle.engine.course import Play, Prune, Stop, course, traffic
from fedsaddle.engine.round import play as simulated
from fedsaddle.engine.study import Lanes, Posted, Study, begin, points
from fedsaddle.environment import here
from fedsaddle.errors import BadInput, is_machines
from fedsaddle.history import line
from fedsaddle.metric import declared
from fedsaddle.pictures import grid, over_rounds
from fedsaddle.problem import Pictured

FORMAT = 1
KEEP = 2**27  # bytes of a state at an algorithm's end; a larger one is not worth its room
RARELY = 20  # times as long as a checkpoint took, before the next
WRITTEN = 5e8  # bytes a second, until one has been made: it is copied from a GPU, hashed and written
KEYS = {
    "rounds.csv": ("algorithm", "seed", "round", "floats_up", "floats_down", "time_simulated"),
    "traffic.csv": ("algorithm", "seed", "round", "direction", "variable", "kind", "floats"),
    "events.csv": ("algorithm", "seed", "round", "event", "detail"),
}
HISTORY = "history.jsonl"


@dataclass(frozen=True)
class Plan:
    """A resolved experiment and the studies made of it."""

    resolved: dict[str, Any]  # what identifies it, as JSON
    studies: dict[str, Study]  # by the algorithm's name in the experiment; of a sweep, many settings in each
    rounds: int
    evaluate_every: int
    by: str = ""  # of a sweep: the metric that settings are chosen by
    prunes: dict[str, Prune] = field(default_factory=dict)  # of a sweep that halves: for each study
    notes: tuple[str, ...] = ()  # what a person should hear before it runs
    # Fills in the defaults of an experiment that an older version has written down without them.
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda experiment: experiment

    def close(self) -> None:
        """Give back what its studies have opened, and end what they have started elsewhere."""
        for study in self.studies.values():
            study.close()
            study.executor.close()


class Watch(Protocol):
    """Somebody who wants to see a run's progress."""

    def begin(self, study: str, start: int) -> None: ...
    def stop(self, study: str, stop: Stop) -> None: ...


class Interrupted(Exception):
    """The run was asked to stop, has made a checkpoint, and can be resumed."""


# --- files that are whole or not there -------------------------------------------------------------------


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None  # the .part is nobody's concern
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _json(value: object) -> bytes:
    # In the order it is in: the order of the algorithms is part of an experiment.
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Table:
    """A CSV or JSON Lines file that only grows, and knows its length and hash."""

    def __init__(self, path: Path, length: int = 0, expected: str | None = None) -> None:
        self.path = path
        try:
            prefix = path.read_bytes()[:length] if path.exists() else b""
        except OSError as error:
            raise _damaged(path, f"cannot read it ({error.strerror})") from None
        if len(prefix) < length or (expected is not None and _hash(prefix) != expected):
            raise _damaged(path, "its beginning is not what the checkpoint says")
        self._length, self._digest = length, hashlib.sha256(prefix)

    def open(self) -> None:
        """Cut off what came after the checkpoint, and go on writing there."""
        self._file = self.path.open("ab")
        self._file.truncate(self._length)

    def write(self, rows: Iterable[Iterable[object]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.append(text.getvalue())

    def append(self, text: str) -> None:
        data = text.encode()
        self._file.write(data)
        self._file.flush()
        self._length += len(data)
        self._digest.update(data)

    @property
    def empty(self) -> bool:
        return self._length == 0

    def seal(self) -> dict[str, Any]:
        """Put it on the disk and say what is there."""
        os.fsync(self._file.fileno())
        return {"length": self._length, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        self._file.close()


def _damaged(path: Path, why: str) -> BadInput:
    return BadInput(
        f"{path} is damaged: {why}. Nothing was changed; restore the folder from a copy, or start again with "
        "another --out"
    )


# --- checkpoints -----------------------------------------------------------------------------------------


def _state_of(lanes: Lanes) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Lanes as tensors and JSON."""
    leaves, _ = tree_flatten(lanes.server)
    tensors = {f"server.{number}": leaf.cpu().contiguous().clone() for number, leaf in enumerate(leaves)}
    if lanes.memory is not None:
        tensors |= {"memory.x": lanes.memory.x.cpu(), "memory.y": lanes.memory.y.cpu()}
    posted = [
        [[*kind, count] for kind, count in sorted(lane.items())] for lane in lanes.posted
    ]  # JSON has no tuples for keys
    rest = {"completed": lanes.completed, "clock": lanes.clock, "alive": lanes.alive, "posted": posted}
    if any(lanes.strikes):
        rest["strikes"] = [sorted(own.items()) for own in lanes.strikes]
    return tensors, rest


def _lanes_of(study: Study, tensors: dict[str, torch.Tensor], rest: dict[str, Any], path: Path) -> Lanes:
    """The inverse of `_state_of`. A fresh start tells what must be there."""
    fresh = begin(study)
    expected, _ = _state_of(fresh)
    if {name: (t.shape, t.dtype) for name, t in tensors.items()} != {
        name: (t.shape, t.dtype) for name, t in expected.items()
    }:
        raise _damaged(path, "it does not fit this experiment")
    leaves, structure = tree_flatten(fresh.server)
    server = tree_unflatten(
        [tensors[f"server.{number}"].to(study.device) for number in range(len(leaves))], structure
    )
    memory = fresh.memory
    if memory is not None:
        shelf = memory.x.device
        memory = memory._replace(x=tensors["memory.x"].to(shelf), y=tensors["memory.y"].to(shelf))
    posted = [Counter({Posted(way, phase): count for way, phase, count in lane}) for lane in rest["posted"]]
    none: list[list[list[int]]] = [[] for _ in study.seeds]
    strikes = [Counter(dict(own)) for own in rest.get("strikes", none)]
    return Lanes(server, memory, rest["completed"], rest["clock"], posted, rest["alive"], strikes)


def _size_of(lanes: Lanes) -> int:
    """How many bytes a state has."""
    held = tree_leaves((lanes.server, lanes.memory))
    return sum(leaf.nbytes for leaf in held if isinstance(leaf, torch.Tensor))


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """What a folder's checkpoint.json says, if nobody has touched it."""
    path = folder / "checkpoint.json"
    try:
        saved: dict[str, Any] = json.loads(path.read_bytes())
        checksum = saved.pop("checksum")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise _damaged(path, "it is not a checkpoint") from None
    if checksum != _hash(_json(saved)):
        raise _damaged(path, "its checksum does not match")
    if saved["format"] != FORMAT:
        raise BadInput(f"{path} has format {saved['format']}; this version reads format {FORMAT}")
    return saved


def verified(path: Path, expected: str, length: int | None = None) -> bytes:
    """What a file holds, or its first bytes, if that is what the checkpoint says."""
    try:
        data = path.read_bytes()[:length]
    except OSError as error:
        raise _damaged(path, f"cannot read it ({error.strerror})") from None
    if _hash(data) != expected:
        raise _damaged(path, "its checksum does not match")
    return data


def read_tensors(path: Path, expected: str) -> dict[str, torch.Tensor]:
    try:
        return load(verified(path, expected))
    except SafetensorError as error:
        raise _damaged(path, str(error)) from None


def read_state(folder: Path, plan: Plan, state: dict[str, Any]) -> Stop:
    """Where an algorithm was when this was written."""
    path = folder / state["file"]
    tensors = read_tensors(path, state["sha256"])
    study = plan.studies.get(state["algorithm"])
    if study is None:
        raise BadInput(
            f"{path} holds {state['algorithm']}, but this machine's memory groups the settings "
            "otherwise: resume it where it was begun, or choose another --out"
        )
    return Stop(state["round"], _lanes_of(study, tensors, state["lanes"], path), [], [])


def _own_rows(name: str, data: bytes, names: set[str], without: int | None = None) -> str:
    """What a table holds of some algorithms, perhaps without their evaluations after one round."""
    if name == HISTORY:
        lines = data.decode().splitlines(keepends=True)
        return "".join(one for one in lines if json.loads(one)["algorithm"] in names)
    rows = list(csv.reader(io.StringIO(data.decode(), newline="")))[1:]
    evaluated = name != "events.csv"
    kept = [row for row in rows if row[0] in names and not (evaluated and row[2] == str(without))]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(kept)
    return text.getvalue()


def _header(name: str, data: bytes) -> str:
    return "" if name == HISTORY else data[: data.find(b"\n") + 1].decode()


class RunFolder:
    """A folder that one process at a time may write. One that `may_grow` can be given more rounds."""

    def __init__(self, path: Path, plan: Plan, resume: bool, may_grow: bool = False) -> None:
        self.path, self.plan, self._may_grow = path, plan, may_grow
        self.notes: list[str] = []
        self.start: Stop | None = None  # where the algorithm that was interrupted goes on
        self._saved: dict[str, Any] = {}  # what the checkpoint says
        self._declared = declared(next(iter(plan.studies.values())).problem)
        self._experiment = plan.resolved  # as the folder has it: an older one may not hold the defaults
        self._check_free(resume)
        locked_before = os.path.exists(path / ".lock")
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path / ".lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise BadInput(f"{path} is in use by another process") from None
        except OSError as error:
            if is_machines(error):
                raise
            raise BadInput(f"cannot write to {path}: {error.strerror}; choose another --out") from None
        try:
            self._take(resume)
        except BaseException:
            self._lock.release()
            if not locked_before:
                (path / ".lock").unlink(missing_ok=True)
            raise

    @property
    def _begun(self) -> bool:
        return os.path.exists(self.path / "checkpoint.json")

    def _check_free(self, resume: bool) -> None:
        """Refuse a folder that holds something else, before anything is written to it."""
        files = ("experiment.json", "metrics.json", *KEYS, HISTORY)
        there = [name for name in files if os.path.exists(self.path / name)]
        if (self._begun or "experiment.json" in there) and not resume:
            raise BadInput(f"{self.path} already holds a run: go on with --resume, or choose another --out")
        if "experiment.json" in there and not self._begun:  # killed between the two, or somebody else's
            foreign = (self.path / "experiment.json").read_bytes() != _json(self.plan.resolved)
            if foreign:
                raise BadInput(f"{self.path} holds another experiment.json: choose another --out")
        tables = [name for name in there if name != "experiment.json"]
        if tables and not self._begun:
            raise BadInput(f"{self.path} holds {tables[0]} but no checkpoint.json: choose another --out")

    def _take(self, resume: bool) -> None:
        self._check_free(resume)  # once more, now that nobody else can write here
        if self._begun:
            self._load()
        else:
            names = [*KEYS, HISTORY] if self.plan.resolved.get("history") else list(KEYS)
            tables = {name: {"length": 0, "sha256": _hash(b"")} for name in names}
            self._saved = {"done": {}, "tables": tables, "state": None, "kept": {}}
            if resume:
                self.notes.append(f"there is nothing to resume in {self.path} yet; the run begins")
            write_atomically(self.path / "experiment.json", _json(self.plan.resolved))
            self._commit()
        self.tables = {
            name: Table(self.path / name, entry["length"], entry["sha256"])
            for name, entry in self._saved["tables"].items()
        }
        for table in self.tables.values():
            table.open()
        metrics = {name: metric._asdict() for name, metric in self._declared.items()}
        write_atomically(self.path / "metrics.json", _json(metrics))  # also into a folder of an older version
        self._tidy()

    def _tidy(self) -> None:
        """Remove what no checkpoint speaks of any more."""
        before = self._saved.get("before") or {"rounds": None, "starts": {}}
        states = [self._saved["state"], *self._saved["kept"].values(), *before["starts"].values()]
        needed = {state["file"] for state in states if state} | {f"before-{before['rounds']}"}
        ours = re.compile(
            r"((kept/\d+|state-\d+)-\d+\.safetensors(\.part)?)|((checkpoint|experiment|metrics|environment)\.json\.part)"
            r"|(before-\d+)"
        )
        for path in [*self.path.iterdir(), *self.path.glob("kept/*")]:
            name = path.relative_to(self.path).as_posix()
            if name in needed or not ours.fullmatch(name):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    # --- reading ---

    def _load(self) -> None:
        saved = {"kept": {}, "before": None} | read_checkpoint(self.path)
        now = json.loads(_json(self.plan.resolved))
        was = self.plan.complete(saved["experiment"])
        order = [list(experiment["algorithms"]) for experiment in (was, now)]
        grows = was | {"rounds": now["rounds"]} == now and order[0] == order[1]
        grows = grows and self._may_grow and now["rounds"] > was["rounds"]
        if not grows and (was != now or order[0] != order[1]):
            change = _first_difference(was | {"order": order[0]}, now | {"order": order[1]})
            kind = "sweep" if self.plan.by else "run"
            alone = f"fedsaddle {kind} --resume --out {shlex.quote(str(self.path))}"
            how = f"{alone}, which needs no other options" if self._may_grow else "the same options"
            raise BadInput(
                f"{self.path} was made by another experiment ({change}): resume it with {how}, or choose "
                "another --out"
            )
        if grows and self.plan.prunes:
            raise BadInput(
                f"{self.path} has given up settings on the way to {was['rounds']} rounds; on the way to "
                f"{now['rounds']} it would have given up others: choose another --out"
            )
        if saved["versions"] != _versions():
            begun = ", ".join(f"{name} {version}" for name, version in sorted(saved["versions"].items()))
            self.notes.append(f"this run was begun with {begun}; later digits may differ from then on")
        self._saved = {key: saved[key] for key in ("done", "tables", "state", "kept", "before")}
        stale = self._check_experiment(saved["experiment"])
        self._experiment = self.plan.resolved if grows else saved["experiment"]
        for algorithm, expected in self.done.items():
            verified(self.path / "final" / f"{algorithm}.safetensors", expected)
        for name in saved["before"]["tables"] if saved["before"] else ():
            self._aside(name)
        if grows:
            self._grow(saved["experiment"]["rounds"])
        elif saved["state"]:
            self.start = read_state(self.path, self.plan, saved["state"])
        if grows or stale:
            write_atomically(self.path / "experiment.json", _json(self.plan.resolved))

    def _check_experiment(self, experiment: dict[str, Any]) -> bool:
        """Whether experiment.json is still that of the fewer rounds: killed between it and the checkpoint."""
        path, before = self.path / "experiment.json", self._saved["before"]
        try:
            verified(path, _hash(_json(experiment)))
        except BadInput:
            if not before:
                raise
            verified(path, _hash(_json(experiment | {"rounds": before["rounds"]})))
            return True
        return False

    def _aside(self, name: str) -> bytes:
        """A table as it was before the run went on to more rounds."""
        before = self._saved["before"]
        return verified(self.path / f"before-{before['rounds']}" / name, before["tables"][name])

    def _grow(self, rounds: int) -> None:
        """Put aside what is there of so many rounds, as the beginning of a run of more.

        An algorithm whose state is not there begins again, and comes to the same. So does one in which a lane
        was found diverged at its last evaluation, where that was made only because the run ended there.
        """
        done, state, kept, old = (self._saved[key] for key in ("done", "state", "kept", "before"))
        there = {
            name: verified(self.path / name, entry["sha256"], entry["length"])
            for name, entry in self._saved["tables"].items()
        }
        extra = rounds if rounds % self.plan.evaluate_every else None  # an evaluation only of the shorter run
        starts: dict[str, Any] = {}
        tables = {name: _header(name, data) for name, data in there.items()}
        for key, study in self.plan.studies.items():
            names, ended = set(study.names), study.names[0] in done
            if ended or (state and state["algorithm"] == key):
                start, source = kept.get(key) if ended else state, there
            else:
                start = old["starts"].get(key) if old else None
                source = {name: self._aside(name) for name in there} if start else {}
            if (
                ended
                and extra
                and f",{rounds - 1},diverged," in _own_rows("events.csv", there["events.csv"], names)
            ):
                start = None
            if start and not (self.path / start["file"]).exists() and ended:
                start = None
            if start:
                verified(self.path / start["file"], start["sha256"])
                starts[key] = start
                for name, data in source.items():
                    tables[name] += _own_rows(name, data, names, extra if ended else None)
            elif ended:
                self.notes.append(f"{key} begins again: its state after round {rounds} was not kept")
        place = self.path / f"before-{rounds}"
        place.mkdir(exist_ok=True)
        for name, text in tables.items():
            write_atomically(place / name, text.encode())
        before = {
            "rounds": rounds,
            "starts": starts,
            "tables": {name: _hash(text.encode()) for name, text in tables.items()},
        }
        empty = {name: {"length": 0, "sha256": _hash(b"")} for name in tables}
        self._saved = {"done": {}, "tables": empty, "state": None, "kept": {}, "before": before}
        self._commit()
        if extra:
            for study in self.plan.studies.values():
                if isinstance(study.problem, Pictured):
                    for name in set(study.names):
                        (self.path / "samples" / f"{name}-{extra}.png").unlink(missing_ok=True)

    def begin(self, key: str) -> Stop | None:
        """Where a study goes on from, if it has begun. Rows of it that were put aside are taken up."""
        if key == self.started:
            start, self.start = self.start, None  # not held while the next algorithms run
            return start
        before = self._saved.get("before")
        if not before or key not in before["starts"]:
            return None
        for name, table in self.tables.items():
            data = self._aside(name)
            if table.empty:
                table.append(_header(name, data))
            table.append(_own_rows(name, data, set(self.plan.studies[key].names)))
        return read_state(self.path, self.plan, before["starts"][key])

    # --- writing ---

    @property
    def done(self) -> dict[str, str]:
        """The algorithms, of a sweep their settings, that have had all rounds; and their final hashes."""
        done: dict[str, str] = self._saved["done"]
        return done

    @property
    def left(self) -> dict[str, int]:
        """The studies that have not had all rounds, and after how many each goes on."""
        states = ((self._saved.get("before") or {}).get("starts", {})).values()
        at = {state["algorithm"]: state["round"] for state in (*states, self._saved["state"]) if state}
        studies = self.plan.studies.items()
        return {key: at.get(key, 0) for key, study in studies if study.names[0] not in self.done}

    @property
    def started(self) -> str | None:
        """The study whose state the checkpoint holds."""
        return (self._saved["state"] or {}).get("algorithm")

    @cached_property
    def _metrics(self) -> list[str]:
        """What the columns of rounds.csv after the first ones are called."""
        with (self.path / "rounds.csv").open(newline="", encoding="utf-8") as file:
            return next(csv.reader(file))[len(KEYS["rounds.csv"]) :]

    def _commit(self) -> None:
        saved = {"format": FORMAT, "versions": _versions(), "experiment": self._experiment, **self._saved}
        write_atomically(self.path / "checkpoint.json", _json({**saved, "checksum": _hash(_json(saved))}))

    def save(self, algorithm: str | None, stop: Stop | None) -> None:
        """Make a checkpoint in the middle of an algorithm, or between two (without a stop)."""
        old = (self._saved["state"] or {}).get("file")
        state = None
        if stop is not None:
            assert algorithm is not None
            state = self._write_state(algorithm, stop, f"state-{len(self.done)}-{stop.round}.safetensors")
        tables = {name: table.seal() for name, table in self.tables.items()}
        self._saved |= {"tables": tables, "state": state}
        self._commit()
        if old is not None and (state is None or old != state["file"]):
            (self.path / old).unlink(missing_ok=True)

    def _write_state(self, algorithm: str, stop: Stop, file: str) -> dict[str, Any]:
        """Write where an algorithm is; and what a checkpoint says of it."""
        tensors, rest = _state_of(stop.lanes)
        data = save(tensors)
        write_atomically(self.path / file, data)
        return {
            "algorithm": algorithm,
            "round": stop.round,
            "lanes": rest,
            "file": file,
            "sha256": _hash(data),
        }

    def record(self, study: Study, stop: Stop) -> None:
        """Write down what has happened since the stop before."""
        for row in stop.rows:
            algorithm = study.names[row.lane]
            if self.tables["rounds.csv"].empty:
                self.tables["rounds.csv"].write([[*KEYS["rounds.csv"], *row.metrics]])
                self.tables["traffic.csv"].write([KEYS["traffic.csv"]])
            if set(row.metrics) != set(self._metrics):
                raise BadInput(
                    f"evaluate gave {', '.join(row.metrics)} after round {row.round}, and before that "
                    f"{', '.join(self._metrics)}: its metrics must always be the same"
                )
            counts = (row.floats_up, row.floats_down, row.time_simulated)
            values = [row.metrics[name] for name in self._metrics]
            self.tables["rounds.csv"].write([[algorithm, row.seed, row.round, *counts, *values]])
            flows = sorted(traffic(study, stop.lanes, row.lane).items())
            self.tables["traffic.csv"].write(
                [algorithm, row.seed, row.round, flow.direction, *flow.content, floats]
                for flow, floats in flows
            )
        if self.tables["events.csv"].empty:
            self.tables["events.csv"].write([KEYS["events.csv"]])
        self.tables["events.csv"].write(
            [study.names[event.lane], study.seeds[event.lane], event.round, event.what, event.detail]
            for event in stop.events
        )
        if HISTORY in self.tables:
            self.tables[HISTORY].append("".join(line(told) for told in stop.history))
        if isinstance(study.problem, Pictured):
            firsts = {study.names.index(name) for name in set(study.names)}
            for lane in (row.lane for row in stop.rows if row.lane in firsts):
                for what, pictures in study.problem.pictures(points(stop.lanes.server)[lane]).items():
                    (self.path / what).mkdir(exist_ok=True)
                    name = study.names[lane]
                    write_atomically(self.path / what / f"{name}-{stop.round}.png", grid(pictures))
                    self._line_up(what, name, stop.round)

    def _line_up(self, what: str, algorithm: str, last: int) -> None:
        """Put the pictures of an algorithm's rounds so far into one."""
        every, end = self.plan.evaluate_every, self.plan.rounds
        paths = [self.path / what / f"{algorithm}-{n}.png" for n in (*range(0, end, every), end) if n <= last]
        grids = [path.read_bytes() for path in paths if path.exists()]
        write_atomically(self.path / what / f"{algorithm}-rounds.png", over_rounds(grids))

    def finish(self, key: str, stop: Stop) -> None:
        """Keep the last finite points of a study, and where it is, and go on to the next."""
        study = self.plan.studies[key]
        for folder in ("final", "kept"):
            (self.path / folder).mkdir(exist_ok=True)
        files: dict[str, dict[str, torch.Tensor]] = {}
        for name, seed, z in zip(study.names, study.seeds, points(stop.lanes.server), strict=True):
            files.setdefault(name, {}).update(
                {f"{seed}.x": z.x.cpu().clone(), f"{seed}.y": z.y.cpu().clone()}
            )
        for name, tensors in files.items():
            data = save(tensors)
            write_atomically(self.path / "final" / f"{name}.safetensors", data)
            self.done[name] = _hash(data)
        file = f"kept/{list(self.plan.studies).index(key)}-{stop.round}.safetensors"
        if _size_of(stop.lanes) <= KEEP:
            self._saved["kept"][key] = self._write_state(key, stop, file)
        if before := self._saved.get("before"):
            before["starts"].pop(key, None)
            if not self.left:
                self._saved["before"] = None
        self.save(None, None)
        if before:
            self._tidy()

    def close(self) -> None:
        for table in self.tables.values():
            table.close()
        self._lock.release()


class Diary:
    """environment.json: a line of its own for every time a run is started, since each may be another machine.

    No result depends on it, so it is no part of the checkpoint, and one that cannot be read is begun anew.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._before = folder / "environment.json", read_environment(folder)
        self._began = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        self._seconds: dict[str, float] = {}
        self._write()

    def note(self, algorithm: str, seconds: float) -> None:
        """Write down how long an algorithm has taken since this start, on the clock on the wall."""
        self._seconds[algorithm] = round(seconds, 3)
        self._write()

    def _write(self) -> None:
        entry = {"began": self._began, **here(), "seconds": self._seconds}
        write_atomically(self._path, _json([*self._before, entry]))


def refuse(constant: str) -> None:
    """For JSON: NaN and Infinity are Python's, and nobody else can read them."""
    raise ValueError(constant)


def read_environment(folder: Path) -> list[dict[str, Any]]:
    """Each time a run was started, as far as it was written down."""
    try:
        entries = json.loads((folder / "environment.json").read_bytes(), parse_constant=refuse)
    except (OSError, ValueError, RecursionError):
        return []
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def execute(
    folder: RunFolder,
    watch: Watch,
    should_stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = 10.0,
    play: Play | None = None,
) -> None:
    """Run what is left of a plan. Checkpoints are made after evaluations, at most so often.

    One that takes long (clients that remember may hold many gigabytes) is made more rarely still, unless
    0 seconds ask for one after every evaluation. Rounds that somebody else plays, on real devices, are dear:
    there is a checkpoint after each.
    """
    plan = folder.plan
    left = list(folder.left)
    if not left:
        return
    diary = Diary(folder.path)
    for algorithm in left:
        study, start = plan.studies[algorithm], folder.begin(algorithm)
        began = saved_at = time.monotonic()
        watch.begin(algorithm, start.round if start else 0)
        stop, took = start, None
        prune = plan.prunes.get(algorithm)
        for stop in course(study, plan.rounds, plan.evaluate_every, start, prune, play or simulated):
            folder.record(study, stop)
            watch.stop(algorithm, stop)
            if should_stop():
                folder.save(algorithm, stop)
                diary.note(algorithm, time.monotonic() - began)
                raise Interrupted
            took = _size_of(stop.lanes) / WRITTEN if took is None else took
            now = time.monotonic()
            due = now - saved_at >= (checkpoint_seconds and max(checkpoint_seconds, RARELY * took))
            if (stop.rows and due) or play is not None:
                folder.save(algorithm, stop)
                diary.note(algorithm, now - began)
                saved_at = time.monotonic()
                took = saved_at - now
        assert stop is not None  # a course has at least its start
        folder.finish(algorithm, stop)
        del stop, start
        study.close()  # nothing of one algorithm is held while the next one runs
        diary.note(algorithm, time.monotonic() - began)


def _versions() -> dict[str, str]:
    import fedsaddle

    return {"fedsaddle": fedsaddle.__version__, "torch": torch.__version__}


def _first_difference(old: Any, new: Any, at: str = "") -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return _first_difference(old.get(key), new.get(key), f"{at}.{key}" if at else key)
    return f"{at} was {json.dumps(old)}, is {json.dumps(new)}"
