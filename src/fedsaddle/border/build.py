"""Studies and plans, made of an experiment that has been checked; and what in it has no effect."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.border import plugged
from fedsaddle.border.files import as_asked, parse_seeds, tables_of
from fedsaddle.border.schema import (
    Beside,
    Experiment,
    algorithm_of,
    build,
    complete,
    experiment_of,
    has_K,
    merge_of,
    variant,
)
from fedsaddle.checks import Checks
from fedsaddle.engine import machine
from fedsaddle.engine.executors.loop import Loop
from fedsaddle.engine.executors.ray import Ray
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.study import Study
from fedsaddle.errors import BadInput, meant, unknown
from fedsaddle.faults import Faults
from fedsaddle.fleet import Fleet, Quorum, cohorts_given
from fedsaddle.merges import Merge
from fedsaddle.problem import Held, Problem
from fedsaddle.runs import Plan
from fedsaddle.simulate import check_rows_are_here, make_study, notes_of
from fedsaddle.steady import BOUNDS, Steady
from fedsaddle.strata import Strata


class Wanted(TypedDict, total=False):
    """What may be asked for beside an experiment. What is None, or left out, is as the experiment says."""

    algorithms: Sequence[str]  # only these
    rounds: int | None
    seeds: str | None
    engine: str | None
    device: str | None
    deterministic: bool | None
    history: bool | None
    settings: Sequence[str]  # of --set
    address: str | None  # of a Ray cluster
    clients: int | None  # so many, and smaller quorums
    code: Sequence[str | Path]  # files that the experiment may run: somebody trusts them


@dataclass(frozen=True)
class Bench:
    """All of an experiment but its algorithms: what every study of it shares."""

    checked: Experiment
    problem: Problem
    fleet: Fleet
    seeds: list[int]
    device: str  # where the servers are and lanes are judged
    visits_on: str  # the same, but for engine ray, whose workers may have GPUs where this machine has none
    merge: Merge
    checks: Checks | None
    faults: Faults | None
    said: frozenset[str] = frozenset()  # the keys that --set has set
    ray: Ray | None = None  # all studies share its actors
    idle: tuple[str, ...] = ()  # what has no effect, of the code that was named

    @property
    def memory(self) -> int | None:
        return None if self.checked.memory_gb is None else max(1, int(self.checked.memory_gb * 2**30))

    def study(self, settings: Mapping[str, tuple[Any, Beside]]) -> Study:
        """One study of settings, by name, that share their rule, their counts and what is said beside."""
        (first, (_, (invite, steady))), checked = next(iter(settings.items())), self.checked
        table = {**checked.quorum, **({} if invite is None else {"invite": invite})}
        quorum: Quorum = build(Quorum, table, "quorum")
        sizes = self.problem.federation.sizes
        weights = {"uniform": None, "size": sizes}.get(str(checked.sampling), checked.sampling)
        strata = strata_in(checked.sampling)
        try:
            return make_study(
                self.problem,
                [algorithm for algorithm, _ in settings.values()],
                seeds=self.seeds,
                names=list(settings),
                quorum=quorum,
                fleet=self.fleet,
                batch=checked.batch,
                weights=weights if strata is None else None,  # type: ignore[arg-type]
                strata=strata,
                cohorts=checked.cohorts,
                merge=self.merge,
                checks=self.checks,
                faults=self.faults,
                steady=steady,
                # Each has its own, since it remembers how much memory this algorithm's visits need.
                executor=self.ray or (Loop() if checked.engine == "loop" else Vectorised(self.memory)),
                device=self.device,
            )
        except BadInput as error:
            raise BadInput(f"algorithms.{first}: {error}") from None

    def resolved(self, algorithms: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """The experiment as a run folder keeps it: every key with its value."""
        found = complete({**self.checked.model_dump(), "algorithms": algorithms})
        del found["sweep"]  # a run does not depend on it
        found |= {"seeds": self.seeds, "device": self.visits_on}
        found["engine"] = "vectorised" if self.checked.engine == "auto" else self.checked.engine
        for place, part in (("problem", self.problem), ("fleet", self.fleet)):
            found[place] |= getattr(part, "pinned", {})  # the files it reads, by their places and hashes
        return found


def strata_in(sampling: Any) -> Strata | None:
    """The strata that an experiment invites by, if it does."""
    if not isinstance(sampling, dict):
        return None
    for key in sampling:
        if key != "strata":
            raise unknown("key in sampling", key, ("strata",))
    if not sampling:
        raise BadInput("sampling.strata is missing: a column of the rows, or a number for each client")
    found: Strata = sampling["strata"]
    return found


def bench_of(experiment: str, wanted: Wanted) -> Bench:
    """A checked experiment, up to its algorithms."""
    tables = tables_of(experiment)
    address = wanted.get("address")
    said = as_asked(tables, wanted)
    idle = plugged.plug(tables, wanted.get("code", ()), wanted.get("algorithms", ()))
    if "cohorts" in tables:
        tables["cohorts"] = cohorts_given(tables["cohorts"])
    checked = experiment_of(tables)
    if address is not None and checked.engine != "ray":
        raise BadInput(f"an address is for engine ray, not for {checked.engine}: add --engine ray")
    if checked.deterministic:
        machine.fix_workspace()  # here, because a problem may use a GPU while it is made
    problem: Problem = variant("problem", checked.problem).build()
    _pin_rows(checked, problem)
    fleet: Fleet = variant("fleet", checked.fleet).build()
    try:
        fleet.check(len(problem.federation))
    except BadInput as error:
        raise BadInput(f"fleet: {error}") from None
    elsewhere = checked.engine == "ray" and checked.device == "cuda" and not torch.cuda.is_available()
    device = "cpu" if elsewhere else str(machine.device_named(checked.device))
    visits_on = "cuda" if elsewhere else device
    checks = None if checked.checks is None else build(Checks, checked.checks, "checks")
    faults = None if checked.faults is None else build(Faults, checked.faults, "faults")
    seeds, merge = parse_seeds(checked.seeds), merge_of(checked.merge)
    keys = frozenset(said)
    bench = Bench(
        checked, problem, fleet, seeds, device, visits_on, merge, checks, faults, keys, idle=tuple(idle)
    )
    if checked.engine != "ray":
        return bench
    kind = torch.device(visits_on).type
    return dataclasses.replace(bench, ray=Ray(checked.workers, address, memory=bench.memory, device=kind))


def _pin_rows(checked: Experiment, problem: Problem) -> None:
    """Hold a problem of somebody's own to the rows that it had, if it can tell them by a hash."""
    record = checked.code.get("problems", {}).get(str(checked.problem.get("name")))
    if record is None or (isinstance(problem, Held) and problem.away):
        return
    rows = (getattr(problem, "identity", None) or {}).get("data")
    if isinstance(rows, str) and record.setdefault("data", rows) != rows:
        was = record["data"]
        raise BadInput(f"problem: the rows of {checked.problem['name']} are others: {rows}, not {was}")


def load(experiment: str, *, devices: bool = False, **wanted: Unpack[Wanted]) -> Plan:
    """A checked, resolved experiment, ready to run.

    One whose rows are on devices is refused, unless it is for `devices`.
    """
    bench = bench_of(experiment, wanted)
    if isinstance(bench.problem, Held) and bench.problem.away:
        if not devices:
            check_rows_are_here(bench.problem)
        if bench.checked.sampling == "size":
            raise BadInput("sampling by size needs to know how many rows each device has; say uniform")
        if isinstance(strata_in(bench.checked.sampling), str):
            raise BadInput("strata by a column need the rows, which are on devices: say a number for each")
    tables, K = bench.checked.algorithms, bench.checked.K
    labels = algorithms_named(wanted, tables)
    steady = bounds_in(bench)
    studies = {label: bench.study({label: algorithm_of(label, tables[label], K, steady)}) for label in labels}
    resolved = bench.resolved({label: tables[label] for label in labels})
    notes = notes_on_effect(bench, studies, labels)
    if any(key.split(".")[0] == "sweep" for key in bench.said):
        notes.append("sweep is what fedsaddle sweep goes by; a run does not look at it")
    if devices and any(key.split(".")[0] == "fleet" for key in bench.said):
        notes.append("fleet has no effect: real devices answer when they do")
    checked = bench.checked
    return Plan(
        resolved, studies, checked.rounds, checked.evaluate_every, notes=tuple(notes), complete=complete
    )


def bounds_in(bench: Bench) -> dict[str, Any]:
    """The bounds of all algorithms that do not say."""
    steady: Steady = build(Steady, bench.checked.steady, "steady")
    return vars(steady)


def algorithms_named(wanted: Wanted, known: Mapping[str, Any]) -> list[str]:
    """The algorithms that were asked for: by default, all."""
    labels = list(dict.fromkeys(meant(name, known) for name in wanted.get("algorithms", ())))
    for label in labels:
        if label not in known:
            raise unknown("algorithm in this experiment", label, known)
    return labels or list(known)


# --- what has no effect ----------------------------------------------------------------------------------


def notes_on_effect(bench: Bench, studies: Mapping[str, Study], wanted: Iterable[str]) -> list[str]:
    """What an experiment says that changes nothing: a person may think that it does.

    What --set has set is held against the algorithms that run, a file against all that it holds.
    """
    checked, said = bench.checked, bench.said
    notes = [*bench.idle, *notes_of(list(studies.values()))]
    on_cpu = torch.device(bench.visits_on).type == "cpu"
    for key, none in {
        "workers": "" if checked.engine == "ray" else "it is of engine ray",
        "memory_gb": "engine loop asks one client at a time" if checked.engine == "loop" else "",
        "tf32": "it is of a GPU, and this runs on the CPU" if on_cpu else "",
        "deterministic": "a CPU gives the same bits every time as it is" if on_cpu else "",
        "threads": "each worker of engine ray has one"
        if checked.engine == "ray"
        else ("" if on_cpu else "visits are computed on a GPU"),
    }.items():
        value = getattr(checked, key)
        if none and value != Experiment.model_fields[key].default:
            notes.append(f"{key} = {json.dumps(value)} has no effect: {none}")
    batches = any(phase.length(0.5) for study in studies.values() for phase in study.phases)
    shipped = {entry.rule for entry in ALGORITHMS.values()}  # a rule of one's own may ask for client.sample()
    if "batch" in said and not batches and all(type(one.algorithm) in shipped for one in studies.values()):
        notes.append(f"batch = {checked.batch} has no effect: no minibatch is drawn here")
    rules: dict[str, Any] = {name: study.algorithm for name, study in studies.items()}
    own = {name: rule.K for name, rule in rules.items() if has_K(type(rule))}
    notes += _overridden("K", checked.K, own, "K" in said, _every(checked, "K"))
    invites = {name: study.quorum.invite for name, study in studies.items()}
    invite = checked.quorum.get("invite")
    asked = bool(said & {"quorum", "quorum.invite"})
    notes += _overridden("quorum.invite", invite, invites, asked, [Quorum.invite, *_every(checked, "invite")])
    for key in BOUNDS:
        most, asked = checked.steady.get(key), bool(said & {"steady", f"steady.{key}"})
        bounds = {name: getattr(study.steady, key) for name, study in studies.items()}
        notes += _overridden(f"steady.{key}", most, bounds, asked, _every(checked, key))
    spoken = {key.split(".")[1] for key in said if key.startswith("algorithms.")}
    left = sorted(spoken - set(wanted))
    notes += [f"--set algorithms.{name} has no effect: {name} is not among those that run" for name in left]
    return notes


def _overridden(
    key: str, value: float | None, own: Mapping[str, float], asked: bool, every: Sequence[float | None]
) -> list[str]:
    """A number that algorithms may have one of their own for, and that none, or not all of them, goes by."""
    if value is None:
        return []
    if asked and own:
        others = ", ".join(name for name, number in own.items() if number != value)
        return [f"{key} = {value} does not count for {others}: their own number does"] if others else []
    used = not asked and (value in every or None in every)
    return [] if used else [f"{key} = {value} has no effect: no algorithm here goes by it"]


def _every(checked: Experiment, key: str) -> list[Any]:
    """What each algorithm of the file has for K, invite or a bound; None, if it goes by that of all."""
    rules = {
        label: (ALGORITHMS | plugged.PLUGGED["algorithms"]).get(str(own.get("algorithm", label)))
        for label, own in checked.algorithms.items()
    }
    return [
        own.get(key)
        for label, own in checked.algorithms.items()
        if key != "K" or ((entry := rules[label]) is not None and has_K(entry.rule))
    ]
