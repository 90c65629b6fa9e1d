"""The library's front door: put an algorithm, a problem and a fleet together, checked, and run them."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedsaddle.checks import Checks
from fedsaddle.core import Algorithm, Pair, Range
from fedsaddle.engine.course import Row, Stop, course
from fedsaddle.engine.graphs import Graphs
from fedsaddle.engine.rounds import Ask, Event, Study, points
from fedsaddle.engine.tapes import Tapes
from fedsaddle.engine.vectorised import Vectorised
from fedsaddle.errors import BadInput, check_count, check_memory, check_seed, shown
from fedsaddle.faults import Faults
from fedsaddle.fleet import Fleet, Paper, Quorum
from fedsaddle.merges import MEAN, Merge
from fedsaddle.problem import Problem


class Hyperparameter(typing.NamedTuple):
    """One field of an algorithm."""

    name: str
    static: bool  # a count, which shapes the computation; the others may differ from lane to lane
    range: Range
    default: Any  # dataclasses.MISSING if it must be given


def hyperparameters(rule: type[Any]) -> dict[str, Hyperparameter]:
    """The fields of a class of algorithms, read off their annotations."""
    hints = typing.get_type_hints(rule, include_extras=True)
    found = {}
    for field in dataclasses.fields(rule):
        hint = hints[field.name]
        base, *notes = typing.get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        limits = next((note for note in notes if isinstance(note, Range)), Range())
        found[field.name] = Hyperparameter(field.name, base is int, limits, field.default)
    return found


def check_algorithm(algorithm: Algorithm) -> None:
    """Refuse counts that are not counts, and values out of range."""
    for name, known in hyperparameters(type(algorithm)).items():
        value = getattr(algorithm, name)
        if known.static:
            check_count(name, value)
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not abs(value) <= sys.float_info.max:
            raise BadInput(f"{name} must be a finite number, got {shown(value)}")
        least, above, most = known.range.least, known.range.above, known.range.most
        if least is not None and value < least:
            raise BadInput(f"{name} must be at least {least:g}, got {value:g}")
        if above is not None and value <= above:
            raise BadInput(f"{name} must be above {above:g}, got {value:g}")
        if most is not None and value > most:
            raise BadInput(f"{name} must be at most {most:g}, got {value:g}")


def make_study(
    problem: Problem,
    algorithm: Algorithm | Sequence[Algorithm],
    *,
    seeds: Iterable[int] = (0,),
    names: Sequence[str] = (),
    quorum: Quorum | None = None,
    fleet: Fleet | None = None,
    batch: int = 10,
    weights: Sequence[float] | Tensor | None = None,
    cohorts: Literal["another", "same"] = "another",
    merge: Merge | None = None,
    faults: Faults | None = None,
    checks: Checks | None = None,
    ask: Ask | None = None,
    device: str = "cpu",
) -> Study:
    """A checked study. All seeds of all settings of one algorithm become lanes, setting by setting.

    `names` are what the settings are called; without them, each is called by its class.
    """
    settings: list[Any] = list(algorithm) if isinstance(algorithm, Sequence) else [algorithm]
    seeds = list(seeds)
    quorum, fleet = quorum or Quorum(), fleet or Paper()
    if not settings or not seeds:
        raise BadInput("at least one algorithm and one seed are needed")
    for seed in seeds:
        check_seed("seed", seed)
    twice = [seed for seed, times in Counter(seeds).items() if times > 1]
    if twice:
        raise BadInput(f"seed {twice[0]} is given twice")
    check_count("batch", batch)
    clients = len(problem.federation)
    if quorum.invite > clients:
        raise BadInput(f"invite must be at most the number of clients ({clients}), got {quorum.invite}")
    if cohorts not in ("another", "same"):
        raise BadInput(f"cohorts must be 'another' or 'same', got {cohorts!r}")
    fleet.check(clients)

    known = hyperparameters(type(settings[0]))
    counts = [name for name, field in known.items() if field.static]
    for setting in settings:
        check_algorithm(setting)
        rows = max(batch * phase.steps(0.5) * phase.batches for phase in setting.phases())
        check_memory("the minibatches of a visit", 6 * rows)
        if rows > 2**22 * int(problem.federation.sizes.min()):
            raise BadInput(f"a visit of {rows} rows reads its client too often; lower K or batch")
        if type(setting) is not type(settings[0]) or any(
            getattr(setting, name) != getattr(settings[0], name) for name in counts
        ):
            raise BadInput(
                f"lanes must share one algorithm and its counts: {settings[0]} and {setting} do not"
            )
    start = problem.init(seeds[0])
    for player, value in zip("xy", start, strict=True):
        if value.dim() != 1 or not value.is_floating_point():
            kind = f"{value.dtype} of shape {tuple(value.shape)}"
            raise BadInput(f"init must give {player} as one flat vector of floats, got {kind}")

    def by_lane(name: str) -> Tensor:
        values = [float(getattr(setting, name)) for setting in settings for _ in seeds]
        return start.x.new_tensor(values, device=place)

    place = device_named(device)
    called = names or [type(setting).__name__ for setting in settings]
    ask = ask or Vectorised()
    return Study(
        problem,
        settings[0],
        tuple(seeds * len(settings)),
        {name: by_lane(name) for name, field in known.items() if not field.static},
        quorum,
        fleet,
        batch,
        None if weights is None else _odds(weights, clients, quorum.invite),
        cohorts,
        ask,
        place,
        _recorder(ask, place),
        tuple(name for name in called for _ in seeds),
        merge or MEAN,
        faults,
        checks,
    )


def _recorder(ask: Ask, device: torch.device) -> Graphs | Tapes | None:
    if device.type == "cuda":
        return Graphs() if isinstance(ask, Vectorised) else None
    return Tapes() if type(ask) is Vectorised else None  # another may do what no tape can tell


def device_named(name: str) -> torch.device:
    """cpu, cuda (or cuda:1), or auto: a GPU if there is one."""
    there = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if there else "cpu")
    if name != "cpu" and not re.fullmatch(r"cuda(:\d{1,3})?", name):
        raise BadInput(f"device must be auto, cpu or cuda, got '{name}'")
    device = torch.device(name)
    if device.type == "cuda" and (not there or (device.index or 0) >= torch.cuda.device_count()):
        raise BadInput(f"device {name}: this PyTorch finds {torch.cuda.device_count()} GPUs; use device cpu")
    return device


def _odds(weights: Sequence[float] | Tensor, clients: int, invited: int) -> Tensor:
    odds = torch.as_tensor(weights, dtype=torch.float64)
    if odds.shape != (clients,):
        raise BadInput(f"weights must be one number for each of the {clients} clients, got {odds.numel()}")
    bad = [odd for odd in odds.tolist() if not 0 <= odd < math.inf]
    if bad:
        raise BadInput(f"weights must be finite and at least 0, got {bad[0]:g}")
    able = int((odds > 0).sum())
    if able < invited:
        raise BadInput(f"invite must be at most the clients with a weight above 0 ({able}), got {invited}")
    return odds


@dataclass(frozen=True)
class Outcome:
    """What a simulation leaves behind."""

    rows: list[Row]  # evaluations, lane by lane at each
    events: list[Event]  # abandoned rounds, diverged lanes
    z: list[Pair]  # each lane's last finite point
    alive: list[bool]  # lanes that did not diverge

    def last(self, metric: str) -> list[float]:
        """The metric at each lane's last evaluation."""
        found = {row.lane: row.metrics[metric] for row in self.rows}
        return [found.get(lane, math.nan) for lane in range(len(self.z))]


def simulate(
    problem: Problem,
    algorithm: Algorithm | Sequence[Algorithm],
    *,
    rounds: int,
    evaluate_every: int = 10,
    watch: Callable[[Stop], None] | None = None,
    **settings: Any,
) -> Outcome:
    """Run an algorithm for some rounds; `settings` are those of `make_study`.

    `watch` is called after every round.
    """
    check_count("rounds", rounds)
    check_count("evaluate_every", evaluate_every)
    study = make_study(problem, algorithm, **settings)
    rows, events = [], []
    for stop in course(study, rounds, evaluate_every):
        rows += stop.rows
        events += stop.events
        if watch is not None:
            watch(stop)
    study.close()
    return Outcome(rows, events, points(stop.lanes.server), stop.lanes.alive)
