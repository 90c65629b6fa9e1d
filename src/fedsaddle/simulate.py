"""The library's front door: put an algorithm, a problem and a fleet together, checked, and run them."""

from __future__ import annotations

import dataclasses
import math
import typing
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsaddle.checks import Checks
from fedsaddle.core import Algorithm, Pair
from fedsaddle.engine import machine
from fedsaddle.engine.compile.cuts import NEARLY_ALL
from fedsaddle.engine.course import Stop, course
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.fits import check_fits
from fedsaddle.engine.study import Executor, Study, points
from fedsaddle.errors import BadInput, Notice, check_count, check_memory, check_seed, shown
from fedsaddle.faults import Faults
from fedsaddle.fleet import FLEETS, Cohorts, Fleet, Latency, Paper, Quorum, cohorts_given
from fedsaddle.merges import MEAN, Merge, TrimmedMean
from fedsaddle.mishaps import told_if_theirs
from fedsaddle.outcome import Made, Outcome
from fedsaddle.problem import Held, Problem, name_of
from fedsaddle.progress import ProgressLine, is_shown
from fedsaddle.ranges import check
from fedsaddle.steady import AS_THEY_ARE, Steady
from fedsaddle.strata import Strata, check_sampling, strata_of, tied


class Hyperparameter(typing.NamedTuple):
    """One field of an algorithm."""

    name: str
    static: bool  # a count, which shapes the computation; the others may differ from lane to lane
    default: Any  # dataclasses.MISSING if it must be given


def hyperparameters(rule: type[Any]) -> dict[str, Hyperparameter]:
    """The fields of a class of algorithms, read off their annotations."""
    hints = typing.get_type_hints(rule)
    return {
        field.name: Hyperparameter(field.name, hints[field.name] is int, field.default)
        for field in dataclasses.fields(rule)
    }


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
    strata: Strata | None = None,
    cohorts: Cohorts = "independent",
    merge: Merge | None = None,
    faults: Faults | None = None,
    checks: Checks | None = None,
    steady: Steady | None = None,
    executor: Executor | None = None,
    device: str | torch.device = "cpu",
) -> Study:
    """A checked study. All seeds of all settings of one algorithm become lanes, setting by setting.

    `names` are what the settings are called; without them, each is called by its class, and if there are
    several also by its number: CDMANC-0, CDMANC-1.
    """
    settings = _settings(algorithm)
    seeds = _checked_seeds(seeds)
    if not settings or not seeds:
        raise BadInput("at least one algorithm and one seed are needed")
    _check_parts(problem, settings, quorum, fleet, merge, faults, checks, steady, executor)
    for setting in settings:
        check(setting)
    check_fits(settings[0], problem, quorum, steady)
    if names and len(names) != len(settings):
        raise BadInput(f"names must be one for each of the {len(settings)} settings, got {len(names)}")
    called = list(names) or _called(settings)
    if len(set(called)) < len(called):
        raise BadInput(f"names must differ, got {', '.join(map(shown, called))}")
    check_count("batch", batch)
    clients = len(problem.federation)
    quorum, fleet = quorum or _first_quorum(clients), fleet or Paper()
    if quorum.most > clients:
        name = "invite" if quorum.invite > clients else "collect"
        raise BadInput(f"{name} must be at most the number of clients ({clients}), got {quorum.most}")
    cohorts = cohorts_given(cohorts)
    if cohorts not in typing.get_args(Cohorts):
        raise BadInput(f"cohorts must be 'independent', 'invited' or 'answered', got {shown(cohorts)}")
    check_sampling(quorum, weights is not None, strata, checks is not None and checks.strikes is not None)
    fleet.check(clients)
    fleet = tied(fleet, problem)

    known = hyperparameters(type(settings[0]))
    place = machine.device_named(str(device))
    with told_if_theirs(f"{name_of(problem)} with {type(settings[0]).__name__}"):
        _check_settings(settings, batch, int(problem.federation.sizes.min()))
        start = _checked_start(problem.init(seeds[0]))

    def by_lane(name: str) -> Tensor:
        values = [float(getattr(setting, name)) for setting in settings for _ in seeds]
        return start.x.new_tensor(values, device=place)

    return Study(
        problem,
        settings[0],
        tuple(seeds * len(settings)),
        {name: by_lane(name) for name, field in known.items() if not field.static},
        quorum,
        fleet,
        batch,
        None if weights is None else _odds(weights, clients, quorum.most),
        cohorts,
        executor or Vectorised(),
        place,
        tuple(name for name in called for _ in seeds),
        merge or MEAN,
        faults,
        checks,
        steady or AS_THEY_ARE,
        None if strata is None else strata_of(problem.federation, strata),
    )


def _first_quorum(clients: int) -> Quorum:
    """Whom a study invites that does not say: 8 clients a round, or all of fewer."""
    usual = Quorum()
    if usual.invite <= clients:
        return usual
    told = f"all {clients} clients are invited in every round; for fewer, say quorum=Quorum(invite=...)"
    warnings.warn(told, Notice, stacklevel=4)
    return Quorum(invite=clients)


def _settings(algorithm: Any) -> list[Any]:
    """One algorithm, or several settings of it."""
    if isinstance(algorithm, Mapping):
        raise BadInput("simulate plays one algorithm, or settings of it in a list; fs.run compares several")
    several = isinstance(algorithm, Sequence) and not isinstance(algorithm, str)
    return list(algorithm) if several else [algorithm]


def _called(settings: Sequence[object]) -> list[str]:
    """What settings are called that nobody has named."""
    own = [type(setting).__name__ for setting in settings]
    return own if len(own) == 1 else [f"{name}-{number}" for number, name in enumerate(own)]


def _checked_seeds(seeds: Iterable[int]) -> list[int]:
    """Whole numbers, each once."""
    if isinstance(seeds, int | str) or not isinstance(seeds, Iterable):
        count = seeds if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0 else 5
        raise BadInput(f"seeds must be a list of whole numbers, such as range({count}), got {shown(seeds)}")
    found = [check_seed("seed", seed) for seed in seeds]
    twice = [seed for seed, times in Counter(found).items() if times > 1]
    if twice:
        raise BadInput(f"seed {twice[0]} is given twice")
    return found


def _checked_start(start: Pair) -> Pair:
    for player, value in zip("xy", start, strict=True):
        if value.dim() != 1 or not value.is_floating_point():
            kind = f"{value.dtype} of shape {tuple(value.shape)}"
            raise BadInput(f"init must give {player} as one flat vector of floats, got {kind}")
    return start


def _check_settings(settings: Sequence[Any], batch: int, smallest: int) -> None:
    """Refuse settings that cannot be lanes of one study, or read a client of so few rows too often."""
    first = settings[0]
    counts = [name for name, field in hyperparameters(type(first)).items() if field.static]
    for setting in settings:
        rows = max(batch * phase.length(NEARLY_ALL) * phase.batches for phase in setting.phases())
        check_memory("the minibatches of a visit", 6 * rows)
        if rows > 2**22 * smallest:
            raise BadInput(f"a visit of {rows} rows reads its client too often; lower K or batch")
        if type(setting) is not type(first) or any(
            getattr(setting, name) != getattr(first, name) for name in counts
        ):
            raise BadInput(f"lanes must share one algorithm and its counts: {first} and {setting} do not")


def _check_parts(
    problem: object,
    settings: Sequence[object],
    quorum: object,
    fleet: object,
    merge: object,
    faults: object,
    checks: object,
    steady: object,
    executor: object,
) -> None:
    """Refuse what is no problem, algorithm, quorum and so on, saying what would be one."""
    for name, value, has, such in (
        ("problem", problem, "federation", "AUC()"),
        *(("algorithm", setting, "phases", "CDMAONE(eta=0.1, gamma=0.1)") for setting in settings),
        ("quorum", quorum, "settle", f"Quorum(invite={quorum if type(quorum) is int else 8})"),
        ("fleet", fleet, "delays", _fleet_called(fleet)),
        ("merge", merge, "rule", "Merge(Median(), clip=10.0)"),
        ("faults", faults, "spoil", "Faults(drop=0.1)"),
        ("checks", checks, "barred", "Checks(norm=100.0)"),
        ("steady", steady, "stepped", "Steady(clip=0.1)"),
        ("executor", executor, "run", "Loop() or Vectorised()"),
    ):
        if isinstance(value, type):
            needed = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
            blanks = ", ".join(
                f"{one.name}=..." for one in needed if one.init and one.default is dataclasses.MISSING
            )
            raise BadInput(f"{name} must be made first, {value.__name__}({blanks}); got the class")
        if has not in dir(value) and (value is not None or name in ("problem", "algorithm")):
            raise BadInput(f"{name} must be such as {such}, got {shown(value)}")


def check_rows_are_here(problem: Problem) -> None:
    """Refuse to simulate what devices hold."""
    if isinstance(problem, Held) and problem.away is True:
        raise BadInput(
            "the rows of this task are on devices: run it with fedsaddle serve and join; who has all their "
            "files can replay a run, with fedsaddle replay --data"
        )


def _fleet_called(given: object) -> str:
    rule = FLEETS.get(given, Latency) if isinstance(given, str) else Latency
    return f"{rule.__name__}()"


def notes_of(studies: Sequence[Study]) -> list[str]:
    """What was asked for, and has no effect in any of some studies that differ in their algorithms alone."""
    one = studies[0]
    parts = {"problem": one.problem, "fleet": one.fleet, "faults": one.faults, "merge": one.merge}
    notes = [f"{name}: {note}" for name, part in parts.items() for note in getattr(part, "notes", ())]
    sent = {kind for study in studies for kinds in study.kinds for kind in kinds.values()}
    for name, norms in (("merge.clip", one.merge.clip), ("checks.norm", one.checks and one.checks.norm)):
        unsent = sorted(norms.keys() - sent) if isinstance(norms, dict) else []
        notes += [f"{name} of {kind} has no effect: no client here sends any" for kind in unsent]
    most, rule = max(one.wanted for study in studies for one in study.quorums), one.merge.rule
    if isinstance(rule, TrimmedMean) and rule.trim and not math.floor(most * rule.trim + 1e-9):
        notes.append(f"merge.trim = {rule.trim:g} has no effect: of {most} answers it takes off none")
    phases = [phase for study in studies for phase in study.phases]
    if one.quorum.collect is not None and all(phase.length(0.0) for phase in phases):
        notes.append(f"quorum.collect = {one.quorum.collect} has no effect: all phases take local steps")
    if one.quorum.partial_work is not None and not any(phase.length(0.0) for phase in phases):
        notes.append("quorum.partial_work has no effect: no phase takes local steps")
    if one.cohorts != "independent" and all(len(study.phases) == 1 for study in studies):
        notes.append(f"cohorts = '{one.cohorts}' has no effect: one cohort is invited a round")
    return notes


def _odds(weights: Sequence[float] | Tensor, clients: int, invited: int) -> Tensor:
    try:
        odds = torch.as_tensor(weights, dtype=torch.float64)
    except (TypeError, ValueError):
        raise BadInput(
            f"weights must be one number for each of the {clients} clients, got {shown(weights)}"
        ) from None
    if odds.shape != (clients,):
        raise BadInput(f"weights must be one number for each of the {clients} clients, got {odds.numel()}")
    bad = [odd for odd in odds.tolist() if not 0 <= odd < math.inf]
    if bad:
        raise BadInput(f"weights must be finite and at least 0, got {bad[0]:g}")
    able = int((odds > 0).sum())
    if able < invited:
        raise BadInput(f"invite must be at most the clients with a weight above 0 ({able}), got {invited}")
    return odds


def simulate(
    problem: Problem,
    algorithm: Algorithm | Sequence[Algorithm],
    *,
    rounds: int,
    evaluate_every: int = 10,
    seeds: Iterable[int] = (0,),
    names: Sequence[str] = (),
    quorum: Quorum | None = None,
    fleet: Fleet | None = None,
    batch: int = 10,
    weights: Sequence[float] | Tensor | None = None,
    strata: Strata | None = None,
    cohorts: Cohorts = "independent",
    merge: Merge | None = None,
    faults: Faults | None = None,
    checks: Checks | None = None,
    steady: Steady | None = None,
    executor: Executor | None = None,
    device: str | torch.device = "cpu",
    threads: int = 1,
    progress: bool | None = None,
    watch: Callable[[Stop], None] | None = None,
) -> Outcome:
    """Run an algorithm for some rounds. What is asked for and has no effect is warned of.

    PyTorch has `threads` threads meanwhile, as on the command line, and afterwards as many as before: with
    one, a thread for each core takes its share of the visits. `progress` is told on stderr; by default, if
    that is a terminal. `watch` is called after every round.
    """
    check_count("rounds", rounds)
    check_count("evaluate_every", evaluate_every)
    check_count("threads", threads, most=1024)
    seen = is_shown(progress)
    check_rows_are_here(problem)
    with machine.threads(threads):
        study = make_study(
            problem,
            algorithm,
            seeds=seeds,
            names=names,
            quorum=quorum,
            fleet=fleet,
            batch=batch,
            weights=weights,
            strata=strata,
            cohorts=cohorts,
            merge=merge,
            faults=faults,
            checks=checks,
            steady=steady,
            executor=executor,
            device=device,
        )
        for note in notes_of([study]):
            warnings.warn(note, Notice, stacklevel=2)
        told = ProgressLine(rounds) if seen else None
        rows, events = [], []
        try:
            for stop in course(study, rounds, evaluate_every):
                rows += stop.rows
                events += stop.events
                if told is not None:
                    told(stop)
                if watch is not None:
                    watch(stop)
        finally:
            study.close()
            if told is not None:
                told.close()
    if not rows:
        warnings.warn(
            "nothing was learnt: where it starts, a metric is not finite in any lane", Notice, stacklevel=2
        )
    elif not any(stop.lanes.alive):
        warnings.warn("every lane diverged: try smaller step sizes", Notice, stacklevel=2)
    elif not any(stop.lanes.completed):
        warnings.warn(
            "nothing was learnt: every round was abandoned, for too few clients answered",
            Notice,
            stacklevel=2,
        )
    end = stop._replace(lanes=dataclasses.replace(stop.lanes, memory=None), rows=[], events=[])
    return Outcome(
        rows,
        events,
        points(stop.lanes.server),
        stop.lanes.alive,
        problem,
        study.names,
        study.seeds,
        made=Made(study, tuple(_settings(algorithm)), rounds, evaluate_every, threads, end),
    )
