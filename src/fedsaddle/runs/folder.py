"""The folder of one run: taken, read, given more rounds, and written. The package says what is in it."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import save

from fedsaddle.engine.course import Stop
from fedsaddle.engine.study import Study, points
from fedsaddle.errors import BadInput, another_experiment, is_machines
from fedsaddle.history import line
from fedsaddle.metric import declared
from fedsaddle.problem import Pictured
from fedsaddle.runs.before import BEFORE, put_aside, recovered, state_before
from fedsaddle.runs.best import Best, Seen
from fedsaddle.runs.checkpoints import FORMAT, bytes_of, read_checkpoint, read_state, state_of, versions
from fedsaddle.runs.details import keep_details, keep_pictures
from fedsaddle.runs.files import as_json, sha256, verified, verify, write_atomically, write_tensors
from fedsaddle.runs.models import check_models, write_models
from fedsaddle.runs.plan import Plan
from fedsaddle.runs.tables import HISTORY, KEYS, Table, header, own_rows

KEEP = 2**27  # bytes of a state at an algorithm's end; a larger one is not worth its room


class RunFolder:
    """A folder that one process at a time may write. One that `may_grow` can be given more rounds."""

    def __init__(self, path: Path, plan: Plan, resume: bool, may_grow: bool = False) -> None:
        self.path, self.plan, self._may_grow = path, plan, may_grow
        self.notes: list[str] = []
        self.fell_back = ""  # what to say of a damaged checkpoint
        self.start: Stop | None = None  # where the algorithm that was interrupted goes on
        self._saved: dict[str, Any] = {}  # what the checkpoint says
        self._best = Best()  # of the algorithm that runs
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
            foreign = (self.path / "experiment.json").read_bytes() != as_json(self.plan.resolved)
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
            tables = {name: {"length": 0, "sha256": sha256(b"")} for name in names}
            self._saved = {"done": {}, "tables": tables, "state": None, "kept": {}, "models": {}}
            if resume:
                self.notes.append(f"there is nothing to resume in {self.path} yet; the run begins")
            write_atomically(self.path / "experiment.json", as_json(self.plan.resolved))
            self._commit()
        self.tables = {
            name: Table(self.path / name, entry["length"], entry["sha256"])
            for name, entry in self._saved["tables"].items()
        }
        for table in self.tables.values():
            table.open()
        metrics = {name: metric.as_json() for name, metric in self._declared.items()}
        write_atomically(self.path / "metrics.json", as_json(metrics))  # an older version's folder has none
        self._tidy()

    def _tidy(self) -> None:
        """Remove what no checkpoint speaks of any more."""
        before = self._saved.get("before") or {"rounds": None, "starts": {}}
        states = [self._saved["state"], *self._saved["kept"].values(), *before["starts"].values()]
        states.append(state_before(self.path))
        needed = {state["file"] for state in states if state} | {f"before-{before['rounds']}"}
        ours = re.compile(
            r"((kept/\d+|state-\d+)-\d+\.safetensors(\.part)?)|((checkpoint|checkpoint-before|experiment|metrics|environment)\.json\.part)"
            r"|(before-\d+)|(models/.+\.part)|((kept/)?\.tmp\w{6})"  # the last are safetensors' own
        )
        for path in [*self.path.iterdir(), *self.path.glob("kept/*"), *self.path.glob("models/**/*.part")]:
            name = path.relative_to(self.path).as_posix()
            if name in needed or not ours.fullmatch(name):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _states(self) -> set[str]:
        """The files of states that a run may still go on from, but for those of algorithms that are done."""
        starts = (self._saved.get("before") or {"starts": {}})["starts"]
        states = [self._saved["state"], state_before(self.path), *starts.values()]
        return {state["file"] for state in states if state}

    # --- reading ---

    def _load(self) -> None:
        if recovered(self.path):
            self.fell_back = f"{self.path} was damaged; the run goes on from the checkpoint before the last"
            self.notes.append(self.fell_back)
        saved = {"kept": {}, "before": None, "models": {}} | read_checkpoint(self.path)
        now = json.loads(as_json(self.plan.resolved))
        was = self.plan.complete(saved["experiment"])
        order = [list(experiment["algorithms"]) for experiment in (was, now)]
        grows = was | {"rounds": now["rounds"]} == now and order[0] == order[1]
        grows = grows and self._may_grow and now["rounds"] > was["rounds"]
        if not grows and (was != now or order[0] != order[1]):
            change = _first_difference(was | {"order": order[0]}, now | {"order": order[1]})
            kind = ("sweep" if self.plan.by else "run") if self._may_grow else ""
            raise another_experiment(self.path, change, kind, "code" in was, "python" in now)
        if grows and self.plan.prunes:
            raise BadInput(
                f"{self.path} has given up settings on the way to {was['rounds']} rounds; on the way to "
                f"{now['rounds']} it would have given up others: choose another --out"
            )
        if saved["versions"] != versions():
            begun = ", ".join(f"{name} {version}" for name, version in sorted(saved["versions"].items()))
            self.notes.append(f"this run was begun with {begun}; later digits may differ from then on")
        self._saved = {key: saved[key] for key in ("done", "tables", "state", "kept", "before", "models")}
        stale = self._check_experiment(saved["experiment"])
        self._experiment = self.plan.resolved if grows else saved["experiment"]
        for algorithm, expected in self.done.items():
            verified(self.path / "final" / f"{algorithm}.safetensors", expected)
        check_models(self.path, self._saved["models"])
        for name in saved["before"]["tables"] if saved["before"] else ():
            self._aside(name)
        if grows:
            self._grow(saved["experiment"]["rounds"])
        elif saved["state"]:
            self.start = read_state(self.path, self.plan, saved["state"], self._best)
        if grows or stale:
            write_atomically(self.path / "experiment.json", as_json(self.plan.resolved))

    def _check_experiment(self, experiment: dict[str, Any]) -> bool:
        """Whether experiment.json is still that of the fewer rounds: killed between it and the checkpoint."""
        path, before = self.path / "experiment.json", self._saved["before"]
        try:
            verified(path, sha256(as_json(experiment)))
        except BadInput:
            if not before:
                raise
            verified(path, sha256(as_json(experiment | {"rounds": before["rounds"]})))
            return True
        return False

    def _aside(self, name: str) -> bytes:
        """A table as it was before the run went on to more rounds."""
        before = self._saved["before"]
        return verified(self.path / f"before-{before['rounds']}" / name, before["tables"][name])

    def _grow(self, rounds: int) -> None:
        """Put aside what is there of so many rounds, as the beginning of a run of more.

        An algorithm whose state is not there begins again, and comes to the same. So does one in which a lane
        was found diverged or collapsed at an evaluation that was made only because the run ended there.
        """
        done, state, kept, old = (self._saved[key] for key in ("done", "state", "kept", "before"))
        there = {
            name: verified(self.path / name, entry["sha256"], entry["length"])
            for name, entry in self._saved["tables"].items()
        }
        extra = rounds if rounds % self.plan.evaluate_every else None  # an evaluation only of the shorter run
        starts: dict[str, Any] = {}
        tables = {name: header(name, data) for name, data in there.items()}
        for key, study in self.plan.studies.items():
            names, ended = set(study.names), study.names[0] in done
            if ended or (state and state["algorithm"] == key):
                start, source = kept.get(key) if ended else state, there
            else:
                start = old["starts"].get(key) if old else None
                source = {name: self._aside(name) for name in there} if start else {}
            last = own_rows("events.csv", there["events.csv"], names) if ended and extra else ""
            if any(f",{rounds - 1},{what}," in last for what in ("diverged", "collapsed")):
                start = None
            if start and not (self.path / start["file"]).exists() and ended:
                start = None
            if start:
                verify(self.path / start["file"], start["sha256"])
                starts[key] = start
                for name, data in source.items():
                    tables[name] += own_rows(name, data, names, extra if ended else None)
            elif ended:
                self.notes.append(f"{key} begins again: its state after round {rounds} was not kept")
        place = self.path / f"before-{rounds}"
        place.mkdir(exist_ok=True)
        for name, text in tables.items():
            write_atomically(place / name, text.encode())
        before = {
            "rounds": rounds,
            "starts": starts,
            "tables": {name: sha256(text.encode()) for name, text in tables.items()},
        }
        empty = {name: {"length": 0, "sha256": sha256(b"")} for name in tables}
        self._saved = {"done": {}, "tables": empty, "state": None, "kept": {}, "before": before, "models": {}}
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
        self._best, before = Best(), self._saved.get("before")
        if not before or key not in before["starts"]:
            return None
        for name, table in self.tables.items():
            data = self._aside(name)
            if table.empty:
                table.append(header(name, data))
            table.append(own_rows(name, data, set(self.plan.studies[key].names)))
        return read_state(self.path, self.plan, before["starts"][key], self._best)

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
        saved = {"format": FORMAT, "versions": versions(), "experiment": self._experiment, **self._saved}
        write_atomically(
            self.path / "checkpoint.json", as_json({**saved, "checksum": sha256(as_json(saved))})
        )

    def save(self, algorithm: str | None, stop: Stop | None) -> None:
        """Make a checkpoint in the middle of an algorithm, or between two (without a stop)."""
        put_aside(self.path, self._saved["state"])
        state = None
        if stop is not None:
            assert algorithm is not None
            file = f"state-{len(self.done)}-{stop.round}.safetensors"
            state = self._write_state(algorithm, stop, file, self._best.lanes)
        tables = {name: table.seal() for name, table in self.tables.items()}
        self._saved |= {"tables": tables, "state": state}
        self._commit()
        if not self.left:
            (self.path / BEFORE).unlink(missing_ok=True)
        needed = self._states()
        for path in self.path.glob("state-*.safetensors"):
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def _write_state(self, algorithm: str, stop: Stop, file: str, best: dict[int, Seen]) -> dict[str, Any]:
        """Write where an algorithm is; and what a checkpoint says of it."""
        tensors, rest = state_of(stop.lanes)
        self._best.write(tensors, rest, best)
        return {
            "algorithm": algorithm,
            "round": stop.round,
            "lanes": rest,
            "file": file,
            "sha256": write_tensors(self.path / file, tensors),
        }

    def record(self, study: Study, stop: Stop) -> None:
        """Write down what has happened since the stop before."""
        self._best.see(study, stop, self.plan.evaluate_every)
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
            flows = sorted(row.traffic.items())
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

    def picture(self, study: Study, stop: Stop) -> None:
        """Keep pictures of an evaluation, if the problem makes any."""
        keep_pictures(self.path, self.plan, study, stop)

    def finish(self, key: str, stop: Stop, keep: bool = True) -> None:
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
            self.done[name] = sha256(data)
        if not self.plan.by:  # of a sweep's settings, the best one is to be run again
            write_models(self.path, study, points(stop.lanes.server), self._best, self._saved["models"])
        keep_details(self.path, self.plan, key, stop)
        file = f"kept/{list(self.plan.studies).index(key)}-{stop.round}.safetensors"
        if keep and bytes_of(stop.lanes) <= KEEP:
            self._saved["kept"][key] = self._write_state(key, stop, file, self._best.on_beat)
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


def _first_difference(old: Any, new: Any, at: str = "") -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return _first_difference(old.get(key), new.get(key), f"{at}.{key}" if at else key)
    return f"{at} was {json.dumps(old)}, is {json.dumps(new)}"
