"""What a person types, on every shipped experiment: `python -m benchmarks.journeys --device cuda`.

For each experiment of `fedsaddle list`, through the command line's own `main`, on real data:

    enter     in a process of its own: seconds until the first evaluation is on the terminal, then Ctrl-C
    run       all algorithms, a few rounds with evaluations and a report, timed round by round
    plain     the same rounds without recordings come to the same points, if not in float32, where rounding
              may drive them apart, as in a GAN, then in float64; on a GPU, metrics to the same values
    resume    Ctrl-C in the middle of an algorithm, then --resume: the tables and parameters of `run`
    sweep     --halving 3, where there is a grid
    dropout   a fleet of which 80 % do not answer
    latency   a fleet with slow devices, and a server that goes on with the first five answers

Of more than three algorithms, the last four take one, another in each experiment. Each experiment is a
process of its own, forked from one that has imported everything: what one breaks, or does not give back, is
not the next one's.

seconds_to_first_round: from the end of the algorithm before, in the first from the command, to the end of
round one; the imports are not in it. seconds_to_speed: to the end of the last round that took twice as long
as rounds do at the end. peak_memory_gb and memory_held_after_gb: of a GPU, what PyTorch has reserved,
afterwards without what it could give back; of a CPU, the process's resident memory.

What is measured goes into the table in benchmarks/results as it comes, in place of the same experiments'
rows; the others' stay, and each row says its commit. Only when all experiments have arrived is the table
theirs alone. Other rounds or seeds are for another place, `--out`.

`--small` is part of the tests: less work in a round, a part of the rows, and GANs judged by a network that
was never trained.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import io
import json
import math
import multiprocessing
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from safetensors.torch import load_file
from torch import Tensor

import fedsaddle.report
import fedsaddle.tensorboard  # noqa: F401  before a fork, once for all
from fedsaddle import cli, exits, judges, networks, runs, scores
from fedsaddle.border import files
from fedsaddle.border.build import load
from fedsaddle.core import Pair
from fedsaddle.data import celeba, sources
from fedsaddle.data.datasets import DATASETS, Dataset
from fedsaddle.engine.compile import tapes
from fedsaddle.engine.course import Stop
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.round import play
from fedsaddle.engine.study import Study, begin, points
from fedsaddle.environment import here
from fedsaddle.errors import BadInput
from fedsaddle.runs import write_atomically

GB = 1e9
SPARE = {"cpu": 0.25, "cuda": 0.1}  # gigabytes that may stay behind after an algorithm, beside 5 %
FLEETS = {
    "dropout": ['fleet={model="dropout", rate=0.8}'],
    "latency": [
        'fleet={model="latency", median=10.0, slow=0.3, slowdown=4.0, dropout=0.1}',
        "quorum={enough=5, deadline=60.0}",
    ],
}
EXACT = 1e-8  # how far recorded and plain may be apart in float64
COMPARED = {"cpu": 4, "cuda": 2}  # rounds after which recorded and plain are compared
LITTLE = ("quadratic", "auc-digits", "auc-table")  # which are small enough as they are
# Experiments at a time: what takes time on a GPU is recording, on a core of its own. Six fit into 139 GiB.
JOBS = {"cpu": 1, "cuda": 6}
LONG = ("gan-", "robust-", "auc-cifar10")  # what is begun first, so that nobody is waited for at the end
FEW = 3  # algorithms that take every journey
ENTERED = ("auc-mnist", "quadratic")  # whose first evaluation is waited for
BYTES = 2 << 20  # of the small form's training rows: more than the megabyte that the recorder keeps


class Line(NamedTuple):
    """One row of the table."""

    experiment: str
    algorithm: str
    seconds_to_first_round: float
    seconds_to_speed: float
    seconds_per_round: float | str  # of all lanes together
    seconds_per_evaluation: float | str
    peak_memory_gb: float
    memory_held_after_gb: float
    commit: str


@dataclass(frozen=True)
class Form:
    """How much of an experiment is travelled."""

    device: str
    rounds: int
    seeds: str | None
    settings: list[str] = field(default_factory=list)
    small: bool = False

    def words(self, rounds: int | None = None) -> list[str]:
        """The options of a command."""
        rounds = rounds or self.rounds
        found = [
            "--device",
            self.device,
            "--rounds",
            str(rounds),
            *self.sets([f"evaluate_every={every(rounds)}"]),
        ]
        return [*found, "--seeds", self.seeds] if self.seeds else found

    def sets(self, more: list[str]) -> list[str]:
        return [word for setting in [*self.settings, *more] for word in ("--set", setting)]


@dataclass
class Trip:
    """What became of one experiment."""

    experiment: str
    lines: list[Line] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # of each journey
    skipped: str = ""
    gpu: str = ""


def every(rounds: int) -> int:
    return max(2, rounds // 2)


def tables(experiment: str) -> dict[str, Any]:
    return tomllib.loads((files.SHIPPED / f"{experiment}.toml").read_text(encoding="utf-8"))


def form_of(experiment: str, device: str, small: bool, rounds: int | None, seeds: str | None) -> Form:
    own = tables(experiment)
    gan, network = own["problem"]["name"] == "gan", own["problem"].get("network")
    if small:
        long = [f"algorithms.{name}.K=2" for name, rule in own["algorithms"].items() if rule.get("K", 0) > 2]
        settings = (
            [] if experiment in LITTLE else ["problem.clients=50", "K=2", *long, f"batch={10 if gan else 3}"]
        )
        usual, lanes = 3 if network in ("lenet5", "cifar-cnn") else 6, "0-1"
        if gan:
            settings += ["problem.samples=200"]
        if own["problem"]["name"] == "robust":  # whose judge climbs from four starts, and again by PGD
            settings += ["problem.hidden=16"]
        if experiment == "auc-digits":  # where many are absent, it takes some time until all shapes were met
            usual, lanes = 40, "0-2"
        return Form(device, rounds or usual, seeds or lanes, settings, small)
    seeds = seeds or ("0-1" if gan or device == "cpu" else None)
    return Form(device, rounds or (4 if gan and experiment != "gan-digits" else 12), seeds)


def missing(experiment: str) -> str:
    """Why an experiment's data cannot be had; nothing, if they are there."""
    problem = tables(experiment)["problem"]
    name = problem.get("dataset", "")
    if name == "celeba":
        try:
            celeba.folder_of("")
        except BadInput as error:
            return str(error)
    elif name in sources.CATALOGUE and not sources.is_there(name):
        return f"{name} is not in {sources.cache()}; get it with: fedsaddle data {name}"
    if problem.get("judge") == "inception" and not sources.is_there("inception"):
        return f"inception is not in {sources.cache()}; get it with: fedsaddle data inception"
    return ""


def beyond(experiment: str, form: Form) -> str:
    """Why the small form of an experiment is not for a CPU; nothing, if it is."""
    if (
        form.small
        and form.device == "cpu"
        and tables(experiment)["problem"].get("network") in ("mnist", "dcgan")
    ):
        return "its networks have millions of parameters, which takes a CPU minutes"
    return ""


# --- a command, and how long it takes ----------------------------------------------------------------------


class Wrong(Exception):
    """What a journey should not have found."""


class Lap(NamedTuple):
    """From one stop of a run to the next."""

    round: int
    seconds: float
    evaluated: bool


@dataclass
class Course:
    """One algorithm of a run, as it was seen."""

    laps: list[Lap] = field(default_factory=list)
    early: list[Pair] = field(default_factory=list)  # the lanes' points after some rounds
    peak: float = 0.0
    held: float = 0.0
    ended: bool = False

    def line(self, experiment: str, algorithm: str, commit: str) -> Line:
        ends, now = [], 0.0
        for lap in self.laps:
            now += lap.seconds
            ends.append(now)
        rounds = [(lap, end) for lap, end in zip(self.laps, ends, strict=True) if lap.round]
        usual = [lap.seconds for lap, _ in rounds if not lap.evaluated]
        pace = statistics.median(usual[len(usual) // 2 :]) if usual else None
        judged = [lap.seconds for lap, _ in rounds if lap.evaluated]
        known = pace is not None and bool(judged)
        slow = [end for lap, end in rounds if pace and not lap.evaluated and lap.seconds > 2 * pace]
        first = rounds[0][1]
        return Line(
            experiment,
            algorithm,
            round(first, 3),
            round(max([first, *slow]), 3),
            "" if pace is None else float(f"{pace:.4g}"),
            float(f"{max(0.0, statistics.median(judged) - (pace or 0.0)):.4g}") if known else "",
            round(self.peak, 3),
            round(self.held, 3),
            commit,
        )


class Clock:
    """Stands between a run and whoever watches it, and times what is in between."""

    def __init__(self, device: str, keep_at: int = 0, stop_at: int = 0) -> None:
        self.device, self.keep_at, self.stop_at = device, keep_at, stop_at
        self.courses: dict[str, Course] = {}
        self.mark = time.monotonic()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        real = runs.execute

        def timed(folder: Any, watch: Any, *rest: Any, **more: Any) -> None:
            self.watch = watch
            try:
                real(folder, self, *rest, **more)
            finally:
                self._leave()

        places = [place for place in (runs, cli) if hasattr(place, "execute")]
        with contextlib.ExitStack() as stack:
            for place in places:
                stack.enter_context(mock.patch.object(place, "execute", timed))
            yield

    def begin(self, study: str, start: int) -> None:
        self._leave()
        forget_peak(self.device)
        self.courses[study] = Course()
        self.watch.begin(study, start)

    def stop(self, study: str, stop: Stop) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        own, now = self.courses[study], time.monotonic()
        own.laps.append(Lap(stop.round, now - self.mark, bool(stop.rows)))
        self.mark = now
        if self.keep_at and stop.round <= self.keep_at:
            own.early = [z.to("cpu") for z in points(stop.lanes.server)]
        self.watch.stop(study, stop)
        if self.stop_at and stop.round == self.stop_at:
            signal.raise_signal(signal.SIGINT)  # what Ctrl-C sends

    def _leave(self) -> None:
        """After an algorithm: its peak, and what is still held when what can be given back is."""
        own = next(reversed(self.courses.values()), None)
        if own is not None and not own.ended:
            own.peak, own.held, own.ended = peak_memory(self.device), memory_held(self.device), True


def memory_held(device: str) -> float:
    """Gigabytes that are not given back when they are asked for."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() / GB
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def peak_memory(device: str) -> float:
    return torch.cuda.max_memory_reserved() / GB if device == "cuda" else _status("VmHWM")


def forget_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):  # then the peak is that of the whole process so far
            Path("/proc/self/clear_refs").write_text("5")


def _status(key: str) -> float:
    path = Path("/proc/self/status")
    return int(path.read_text().split(f"{key}:")[1].split()[0]) * 1024 / GB if path.exists() else 0.0


class Said(NamedTuple):
    """How a command ended, and all it has said."""

    code: int
    text: str


def command(words: list[str]) -> Said:
    """`fedsaddle words`, in this process."""
    text = io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            mock.patch.object(sys, "argv", ["fedsaddle", *words]),
            contextlib.redirect_stdout(text),
            contextlib.redirect_stderr(text),
        ):
            cli.main()
    except SystemExit as end:
        return Said(end.code if isinstance(end.code, int) else 0 if end.code is None else 1, text.getvalue())
    except Exception:
        return Said(1, text.getvalue() + traceback.format_exc())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    raise AssertionError("main always exits")


def succeed(words: list[str], code: int = 0) -> str:
    said = command(words)
    if said.code != code:
        last = (said.text.strip().splitlines() or ["it said nothing"])[-1]
        raise Wrong(f"{last[:200]} (exit code {said.code}: fedsaddle {' '.join(words)})\n{said.text}")
    return said.text


# --- the journeys ------------------------------------------------------------------------------------------


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "rounds.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check_rows(folder: Path, rounds: int, names: list[str], lanes: int) -> None:
    """Every lane has come to its end, and every number of it is finite."""
    rows = rows_of(folder)
    for row in rows:
        for key, value in row.items():
            if key != "algorithm" and not math.isfinite(float(value)):
                raise Wrong(f"{row['algorithm']} seed {row['seed']} round {row['round']}: {key} is {value}")
    for name in names:
        ended = sum(row["algorithm"] == name and row["round"] == str(rounds) for row in rows)
        if ended != lanes:
            raise Wrong(f"{ended} of {lanes} seeds of {name} have come to round {rounds}")
    for page in ("report.html", "curves.png"):
        if not (folder / page).exists():
            raise Wrong(f"{folder.name} has no {page}")


class Traveller:
    """One experiment's journeys. Their folders are below one that is thrown away."""

    def __init__(self, experiment: str, form: Form, folder: Path, commit: str) -> None:
        self.experiment, self.form, self.folder, self.commit = experiment, form, folder, commit
        own = tables(experiment)
        self.names, self.grid = list(own["algorithms"]), list(own.get("sweep", {}).get("grid", {}))
        self.lanes = len(files.parse_seeds(form.seeds or own.get("seeds", "0-4")))
        self.turn = list(files.shipped()).index(experiment)
        self.gan = own["problem"]["name"] == "gan"
        self.lines: list[Line] = []

    def some(self, shift: int, names: list[str] | None = None) -> list[str]:
        """Who takes a journey: all of a few, or one, another in each experiment."""
        names = names or self.names
        return names if len(names) <= FEW else [names[(self.turn + shift) % len(names)]]

    @property
    def tolerance(self) -> float:
        """What two computations of few rounds may differ by, of the way they went; most are in float32."""
        return 1e-8 if self.experiment == "quadratic" else 1e-2

    def enter(self) -> None:
        place = self.folder / "enter"
        words = [sys.executable, "-m", "fedsaddle", "run", self.experiment, "--device", self.form.device]
        began = time.monotonic()
        with subprocess.Popen(
            [*words, "--out", str(place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            seen = any(" round 0/" in line for line in process.stdout)
            self.first_evaluation = time.monotonic() - began
            process.send_signal(signal.SIGINT)
            said = process.communicate()[1]
        if not seen:
            raise Wrong(f"it ended before an evaluation: {(said.strip().splitlines() or ['?'])[-1]}\n{said}")
        if process.returncode != exits.INTERRUPTED or "--resume" not in said:
            raise Wrong(f"after Ctrl-C: exit code {process.returncode}: {said}")

    def run(self) -> None:
        rounds, place = self.form.rounds, self.folder / "run"
        self.clock = Clock(self.form.device, keep_at=COMPARED[self.form.device])
        with self.clock.watching():
            said = command(["run", self.experiment, *self.form.words(), "--out", str(place)])
        courses = self.clock.courses
        self.lines = [
            own.line(self.experiment, name, self.commit) for name, own in courses.items() if len(own.laps) > 1
        ]
        if said.code:
            last = (said.text.strip().splitlines() or ["?"])[-1]
            raise Wrong(f"after {len(self.lines)} of {len(self.names)} algorithms: {last}\n{said.text}")
        check_rows(place, rounds, self.names, self.lanes)
        before = None
        for name, own in courses.items():
            if before is not None and own.held > 1.05 * before + SPARE[self.form.device]:
                raise Wrong(f"memory: {before:.2f} GB were held before {name}, {own.held:.2f} GB after it")
            before = own.held

    def plain(self) -> None:
        form, apart = self.form, []
        plan = load(
            self.experiment, rounds=form.rounds, seeds=form.seeds, device=form.device, settings=form.settings
        )
        # Of entries that differ in their numbers alone, such as K, the last is enough.
        kinds = {type(study.algorithm): name for name, study in plan.studies.items()}
        for name in kinds.values():
            study = plan.studies[name]
            if form.device == "cuda":
                recorded, rounds = self.clock.courses[name].early, COMPARED[form.device]
            else:  # where a shape is recorded after some uses: here after the first
                rounds = COMPARED[form.device]
                with mock.patch.object(tapes, "PATIENCE", 0):
                    recorded = played(study, rounds)
            plainly = replace(study, executor=Vectorised(compiled=False))
            far = furthest(study, played(plainly, rounds), recorded)
            if not far <= self.tolerance:
                again = replace(study)  # a recording is of one precision
                with in_float64(study):
                    exact = furthest(study, played(plainly, rounds), played(again, rounds))
                again.close()
                if not exact <= EXACT:
                    apart.append(f"{name}: {far:.2g} apart after {rounds} rounds, in float64 {exact:.2g}")
            if form.device == "cuda":
                apart += self._metrics_apart(name, plainly)
            for opened in (study, plainly):
                getattr(opened, "close", lambda: None)()
        plan.close()
        if apart:
            raise Wrong(f"recorded is not plain: {apart[0]}" + "".join(f"\n{line}" for line in apart))

    def _metrics_apart(self, name: str, study: Study) -> list[str]:
        """The last metrics of the first seed, which a GPU replayed, against those of its final point."""
        final = load_file(self.folder / "run" / "final" / f"{name}.safetensors")
        z = Pair(*(final[f"{study.seeds[0]}.{player}"] for player in "xy")).to(study.device)
        row = next(
            row
            for row in reversed(rows_of(self.folder / "run"))
            if row["algorithm"] == name and row["seed"] == str(study.seeds[0])
        )
        return [
            f"{name}: {key} is {row[key]} recorded and {value} plain"
            for key, value in study.problem.evaluate(z).items()
            if not abs(float(row[key]) - value) <= self.tolerance * (1 + abs(value))
        ]

    def resume(self) -> None:
        """Those who remember, if there are any: they have the most to lose."""
        # But what a GAN's 500 clients remember is 31 GB.
        others = [name for name in self.names if name != "codasca"]
        name = "codasca" if "codasca" in self.names and not self.gan else self.some(0, others)[0]
        place, whole = self.folder / "resume", self.folder / "run"
        words = ["run", self.experiment, *self.form.words(), "--algorithm", name, "--out", str(place)]
        clock = Clock(self.form.device, stop_at=max(1, self.form.rounds // 2))
        with clock.watching():
            said = succeed(words, exits.INTERRUPTED)
        if f"fedsaddle run --resume --out {place}" not in said.replace("\n", " "):
            raise Wrong(f"Ctrl-C does not say how to go on: {said}")
        succeed([*words, "--resume"])
        one, other = (
            [row for row in rows_of(folder) if row["algorithm"] == name] for folder in (whole, place)
        )
        files = [folder / "final" / f"{name}.safetensors" for folder in (whole, place)]
        if self.form.device == "cpu":
            if one != other or files[0].read_bytes() != files[1].read_bytes():
                raise Wrong(f"{name} has other bytes when it is interrupted and resumed")
            return
        first, second = (Pair(*(torch.cat([*load_file(file).values()]) for _ in "xy")) for file in files)
        far = distance(first, second)
        if not far <= self.tolerance or len(one) != len(other):
            raise Wrong(f"{name} is {far:.2g} apart when it is interrupted and resumed")

    def sweep(self) -> None:
        place, names = self.folder / "sweep", self.some(1, self.grid)
        words = [*self.form.words(), "--algorithm", ",".join(names), "--halving", "3", "--budget", "6"]
        succeed(["sweep", self.experiment, *words, "--out", str(place)])
        best = tomllib.loads((place / "best.toml").read_text(encoding="utf-8"))
        if list(best["algorithms"]) != names:
            raise Wrong(f"best.toml has {', '.join(best['algorithms'])}, not {', '.join(names)}")

    def fleet(self, kind: str, shift: int) -> None:
        # With 80 % away many rounds are abandoned: enough are played that not all are.
        place, names, rounds = self.folder / kind, self.some(shift), max(6, self.form.rounds)
        words = [*self.form.words(rounds), *(w for s in FLEETS[kind] for w in ("--set", s))]
        succeed(["run", self.experiment, *words, "--algorithm", ",".join(names), "--out", str(place)])
        check_rows(place, rounds, names, self.lanes)

    def journeys(self) -> dict[str, Callable[[], None]]:
        found: dict[str, Callable[[], None]] = {}
        if self.experiment in ENTERED and not self.form.small:
            found["enter"] = self.enter
        found |= {"run": self.run, "plain": self.plain, "resume": self.resume}
        if self.grid:
            found["sweep"] = self.sweep
        found |= {kind: lambda kind=kind, at=at: self.fleet(kind, at) for at, kind in enumerate(FLEETS, 2)}  # type: ignore[misc]
        return found


def played(study: Study, rounds: int) -> list[Pair]:
    """Where the lanes are after some rounds."""
    lanes = begin(study)
    for round in range(rounds):
        lanes, _ = play(study, lanes, round)
    return [z.to("cpu") for z in points(lanes.server)]


@contextlib.contextmanager
def in_float64(study: Study) -> Iterator[None]:
    """What a study computes from its start on, it computes in double precision."""
    kind = type(study.problem)
    start: Callable[[Any, int], Pair] = kind.init

    def precise(problem: Any, seed: int) -> Pair:
        z = start(problem, seed)
        return Pair(z.x.double(), z.y.double())

    with mock.patch.object(kind, "init", precise):
        yield


def furthest(study: Study, some: list[Pair], others: list[Pair]) -> float:
    """How far the lanes of two computations are apart at most, of the way they went."""
    lanes = zip(study.seeds, some, others, strict=True)
    ways = [distance(z, w, study.problem.init(seed)) for seed, z, w in lanes]
    return max(ways, key=lambda far: (math.isnan(far), far))


def distance(z: Pair, w: Pair, start: Pair | None = None) -> float:
    """How far two points are apart, relative to the way from the start, or to their size."""
    a, b = (torch.cat([*point]).double() for point in (z, w))
    way = b if start is None else b - torch.cat([*start.to("cpu")]).double()
    return float((a - b).norm() / way.norm().clamp(min=1e-30))


# --- the small form ----------------------------------------------------------------------------------------


def read_once(patch: contextlib.ExitStack, small: bool) -> None:
    """Every command of an experiment reads the same rows: once is enough; in the small form, some of them."""

    def part(read: Callable[[], Dataset]) -> Callable[[], Dataset]:
        @cache
        def some() -> Dataset:
            data = read()
            if not small:
                return data
            rows = BYTES // data.inputs[0].nbytes
            groups = {
                what: replace(own, rows=own.rows[:rows], test_rows=own.test_rows[: rows // 2])
                for what, own in data.groups.items()
            }
            return replace(
                data,
                inputs=data.inputs[:rows],
                labels=data.labels[:rows],
                test_inputs=data.test_inputs[: rows // 2],
                test_labels=data.test_labels[: rows // 2],
                owners=None if data.owners is None else data.owners[:rows],
                groups=groups,
            )

        return some

    patch.enter_context(mock.patch.dict(DATASETS, {name: part(read) for name, read in DATASETS.items()}))


def untrained(dataset: str, size: str, data: Dataset, device: torch.device, epochs: int = 0) -> judges.Judge:
    """A classifier as it is before it has seen a picture."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = networks.small_classifier(data.inputs.shape[-1]).eval().requires_grad_(False).to(device)
    seen, decide = net
    return judges.Judge("untrained", seen, lambda features: torch.softmax(decide(features), dim=1))


def without_training(patch: contextlib.ExitStack) -> None:
    def moments(judge: judges.Judge, pictures: Tensor, device: torch.device) -> scores.Moments:
        return scores.moments(judges.look(judge, pictures, device))

    patch.enter_context(mock.patch.object(judges, "classifier", untrained))
    patch.enter_context(mock.patch.object(judges, "real_moments", moments))


# --- all of it ---------------------------------------------------------------------------------------------


def travel(
    experiment: str, form: Form, folder: Path, commit: str = "", tell: Callable[[str], None] = print
) -> Trip:
    """All journeys of one experiment. One that fails does not keep the others from being tried."""
    trip = Trip(experiment, skipped=missing(experiment) or beyond(experiment, form))
    if trip.skipped:
        return trip
    with contextlib.ExitStack() as patch:
        read_once(patch, form.small)
        if form.small and experiment != "gan-digits":
            without_training(patch)
        traveller = Traveller(experiment, form, folder, commit)
        for name, go in traveller.journeys().items():
            began, told = time.monotonic(), "ok"
            if name in ("plain", "resume") and not (folder / "run" / "final").exists():
                continue  # there is nothing to compare with, and `run` has said why
            try:
                go()
            except Exception as error:
                lines = str(error).splitlines() if isinstance(error, Wrong) else [repr(error)]
                told = f"FAILED: {lines[0][:300]}"
                trip.failures.append(f"{name}: {lines[0]}")
                log = str(error) if isinstance(error, Wrong) else traceback.format_exc()
                (folder / f"{name}.log").write_text(log, encoding="utf-8")
                del error
            trip.seconds[name] = round(time.monotonic() - began, 2)
            if name == "enter" and told == "ok":
                trip.seconds["first evaluation on the terminal"] = round(traveller.first_evaluation, 2)
            tell(f"{experiment:18}{name:9}{trip.seconds[name]:8.1f} s  {told}")
        trip.lines = traveller.lines
    if form.device == "cuda":
        trip.gpu = torch.cuda.get_device_name()
    return trip


class Apart:
    """The same in a process of its own, which may die."""

    def __init__(self, experiment: str, form: Form, folder: Path, commit: str) -> None:
        self.experiment, self.folder = experiment, folder
        folder.mkdir(parents=True)

        def child() -> None:
            with contextlib.suppress(OSError, AttributeError):  # Linux: if this ends, so does the child
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            trip = travel(experiment, form, folder, commit, lambda line: print(line, flush=True))
            (folder / "trip.json").write_text(json.dumps({**vars(trip), "lines": [*map(list, trip.lines)]}))

        self.process = multiprocessing.get_context("fork").Process(target=child)
        self.process.start()

    def end(self, late: bool) -> Trip:
        """What became of it; one that is late is not waited for."""
        if late:
            self.process.terminate()
            self.process.join(5)
            self.process.kill()
        self.process.join()
        if (self.folder / "trip.json").exists():
            found = json.loads((self.folder / "trip.json").read_text())
            return Trip(**{**found, "lines": [Line(*line) for line in found["lines"]]})
        why = "no time was left for it" if late else f"its process ended with {self.process.exitcode}"
        return Trip(self.experiment, failures=[why])


def side_by_side(
    names: list[str], jobs: int, until: float, start: Callable[[str], Apart]
) -> Iterator[tuple[Trip, Path | None]]:
    """Every experiment's trip, so many at a time, as they end."""
    waiting, under_way = list(names), list[Apart]()
    while waiting or under_way:
        late = time.monotonic() >= until
        while waiting and not late and len(under_way) < jobs:
            under_way.append(start(waiting.pop(0)))
        for one in [one for one in under_way if late or not one.process.is_alive()]:
            under_way.remove(one)
            yield one.end(late), one.folder
        if late:
            yield from ((Trip(name, failures=["no time was left for it"]), None) for name in waiting)
            return
        time.sleep(0.05)


RESULTS = Path("benchmarks/results")
OF_EACH = ("skipped", "failures", "seconds_of_journeys")  # what is told of each experiment


class Results:
    """The table and what was run, in a folder, with what is there of other experiments."""

    def __init__(self, folder: Path, device: str) -> None:
        self.table, self.page = folder / f"journeys-{device}.csv", folder / f"journeys-{device}.json"
        self.rows: dict[str, list[list[Any]]] = {}
        self.was: dict[str, Any] = json.loads(self.page.read_text()) if self.page.exists() else {}
        if self.table.exists():
            with self.table.open(newline="") as file:
                for row in list(csv.reader(file))[1:]:
                    self.rows.setdefault(row[0], []).append(row)

    def keep(self, trips: list[Trip], about: dict[str, Any], everything: bool) -> None:
        """Write what was measured so far; of one that failed only where there is nothing better."""
        own = {trip.experiment: [list(line) for line in trip.lines] for trip in trips}
        failed = {trip.experiment for trip in trips if trip.failures}
        rows, page = own, about
        if not everything:
            better = {name: own[name] for name in own if own[name] and not {name} & failed & {*self.rows}}
            rows = self.rows | better
            page = self._beside(about, [trip.experiment for trip in trips])
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(Line._fields)
        table.writerows(row for several in rows.values() for row in several)
        write_atomically(self.table, text.getvalue().encode())
        write_atomically(self.page, f"{json.dumps(page, indent=1)}\n".encode())

    def _beside(self, about: dict[str, Any], names: list[str]) -> dict[str, Any]:
        """What was run before, and this; of each experiment, what was found last."""
        if not self.was:
            return about
        of_each = {
            key: {name: told for name, told in dict(self.was.get(key) or {}).items() if name not in names}
            | about[key]
            for key in OF_EACH
        }
        later = {key: value for key, value in about.items() if key not in OF_EACH} | {"experiments": names}
        return self.was | of_each | {"later": [*self.was.get("later", []), later]}


def show(lines: list[Line]) -> None:
    print(
        f"\n{'experiment':18}{'algorithm':21}{'first':>8}{'to speed':>9}{'s/round':>10}{'s/eval':>9}", end=""
    )
    print(f"{'peak GB':>9}{'held GB':>9}")
    for line in lines:
        numbers = [f"{v:.4g}" if isinstance(v, float) else v for v in line[2:8]]
        print(f"{line.experiment:18}{line.algorithm:21}", end="")
        print("".join(f"{n:>{w}}" for n, w in zip(numbers, (8, 9, 10, 9, 9, 9), strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.journeys", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--experiment", nargs="+", action="extend", help="by default, all that are shipped")
    parser.add_argument("--rounds", type=int, help="of every run; by default 12, of a GAN 4")
    parser.add_argument(
        "--seeds", help="such as 0-4; by default 0-1, on a GPU the experiment's own but for a GAN"
    )
    parser.add_argument("--small", action="store_true", help="as in the tests: less work, a part of the rows")
    parser.add_argument("--jobs", type=int, help="experiments at a time; by default 1, or 6 on a GPU")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--commit", help="of a copy that git cannot tell it of")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--keep", type=Path, help="a new folder for the runs, which are otherwise thrown away"
    )
    given = parser.parse_args()
    names = given.experiment or sorted(files.shipped(), key=lambda name: not name.startswith(LONG))
    for name in names:
        if name not in files.shipped():
            parser.error(f"no such experiment: {name}; known: {', '.join(files.shipped())}")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this PyTorch finds no GPU")
    if (given.small or given.rounds or given.seeds) and given.out.resolve() == RESULTS.resolve():
        parser.error(f"{RESULTS} is for the usual rounds and seeds: give another place, with --out")

    torch.set_num_threads(1)  # a process with threads of its own cannot be forked safely
    began = time.monotonic()
    until = began + given.budget_seconds
    about: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.journeys", *sys.argv[1:]]),
        "began": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        **here(),
    }
    commit = given.commit or about.get("commit", "")
    about["commit"] = commit
    trips: list[Trip] = []
    place = given.keep or Path(tempfile.mkdtemp(prefix="journeys-"))
    given.out.mkdir(parents=True, exist_ok=True)
    results = Results(given.out, given.device)

    def start(name: str) -> Apart:
        form = form_of(name, given.device, given.small, given.rounds, given.seeds)
        return Apart(name, form, place / name, commit[:12])

    lines: list[Line] = []
    for trip, folder in side_by_side(names, given.jobs or JOBS[given.device], until, start):
        if trip.skipped:
            print(f"{trip.experiment:18}skipped: {trip.skipped}", flush=True)
        trips.append(trip)
        for log in folder.glob("*.log") if folder else ():
            print(f"--- {trip.experiment} {log.stem}\n{log.read_text()[-2000:]}", flush=True)
        if folder and not given.keep:
            shutil.rmtree(folder)
        trips.sort(key=lambda trip: names.index(trip.experiment))
        lines = [line for trip in trips for line in trip.lines]
        about |= {
            "seconds": round(time.monotonic() - began, 1),
            "gpu": next((trip.gpu for trip in trips if trip.gpu), None),
            "skipped": {trip.experiment: trip.skipped for trip in trips if trip.skipped},
            "failures": {trip.experiment: trip.failures for trip in trips if trip.failures},
            "seconds_of_journeys": {trip.experiment: trip.seconds for trip in trips if trip.seconds},
        }
        arrived = {trip.experiment for trip in trips if not trip.skipped and not trip.failures}
        # After each, so that a run that is stopped leaves what it has.
        results.keep(trips, about, everything=arrived == set(files.shipped()))
    show(lines)
    for name, failures in about["failures"].items():
        for failure in failures:
            print(f"FAILED  {name}: {failure}")
    for name, why in about["skipped"].items():
        print(f"skipped {name}: {why}")
    done = len(trips) - len(about["failures"]) - len(about["skipped"])
    print(f"{done} of {len(names)} experiments in {about['seconds']} s")
    if not given.keep:
        shutil.rmtree(place)
    sys.exit(1 if about["failures"] else 0)


if __name__ == "__main__":
    main()
