"""The sweeps and runs of one algorithm at one task on one fleet, each in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsaddle.board.costs import BUDGETS, Round, Terms, round_of, terms_of
from fedsaddle.board.published import Entrant, grid_of
from fedsaddle.board.scores import Worth, worth_of
from fedsaddle.board.tasks import (
    BOARD_FLEETS,
    FIRST_SEED_OF_TUNING,
    REFERENCE,
    VALIDATION_PART,
    BoardForm,
    BoardTask,
)
from fedsaddle.border.schema import variant
from fedsaddle.errors import BadInput, meant, unknown
from fedsaddle.problem import Problem
from fedsaddle.report.reading import Run, Series, read_run
from fedsaddle.report.spent import is_finished
from fedsaddle.runs import write_atomically
from fedsaddle.sweep import Span, settings


@dataclass(frozen=True, eq=False)
class Match:
    """One algorithm at one task on one fleet."""

    task: BoardTask
    fleet: str
    entrant: Entrant
    form: BoardForm
    out: Path  # where all matches are kept
    makers: dict[str, Problem] = field(default_factory=dict)  # by task: a problem is made once

    @property
    def place(self) -> str:
        return f"{self.task.name}/{self.fleet}/{self.entrant.label}"

    @property
    def trials(self) -> tuple[BoardTrial, BoardTrial]:
        return BoardTrial(self, sweeps=True), BoardTrial(self, sweeps=False)

    @property
    def problem(self) -> Problem:
        if self.task.name not in self.makers:
            self.makers[self.task.name] = variant("problem", self.task.experiment["problem"]).build()
        return self.makers[self.task.name]

    @property
    def _kept(self) -> Path:
        return self.out / self.place / "terms.json"

    @property
    def terms_known(self) -> bool:
        return self._kept.is_file()

    @cached_property
    def terms(self) -> Terms:
        """Worked out once, and kept: a page is written without the rows."""
        file = self._kept
        if self.terms_known:
            return Terms(**json.loads(file.read_text(encoding="utf-8")))
        found = terms_of(self.task, BOARD_FLEETS[self.fleet], self.problem, self.entrant, self._round)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(found._asdict()).encode())
        return found

    @property
    def _round(self) -> Round:
        grid = grid_of(self.entrant, self.task.steps)
        choices = {
            name: Span(given["low"], given["high"], given["log"]) if isinstance(given, dict) else given
            for name, given in grid.items()
        }
        return round_of(self.problem, self.entrant, settings(choices, 1, 0)[0], self.task.experiment.get("K"))

    def _base(self) -> dict[str, Any]:
        return {
            **self.task.experiment,
            "fleet": BOARD_FLEETS[self.fleet],
            "rounds": self.terms.rounds,
            "evaluate_every": self.task.every,
        }

    def _own(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        return {"algorithm": self.entrant.algorithm, "invite": self.terms.invite, **setting}

    def tuning(self) -> dict[str, Any]:
        """The sweep. A task's settings are drawn alike for all fleets: by its name and the algorithm's."""
        tables, label = self._base(), self.entrant.label
        last = FIRST_SEED_OF_TUNING + self.form.seeds_of_tuning - 1
        if self.task.validates:
            tables["problem"] |= {"validation_share": VALIDATION_PART}
        return tables | {
            "seeds": f"{FIRST_SEED_OF_TUNING}-{last}",
            "algorithms": {label: self._own({})},
            "sweep": {
                "by": self.task.by,
                "budget": self.form.tries(self.task),
                "grid": {label: grid_of(self.entrant, self.task.steps)},
            },
        }

    def playing(self, winners: Mapping[str, Series]) -> dict[str, Any]:
        """Fresh seeds for the best setting of each budget; one that is best for several runs once."""
        labels = labels_of(winners)
        fields = set(self.entrant.entry.rule.__dataclass_fields__)
        algorithms = {
            label: self._own({key: value for key, value in one.setting.items() if key in fields})
            for label, one in labels.items()
        }
        seeds = f"0-{self.form.fresh(self.task) - 1}"
        return self._base() | {"seeds": seeds, "algorithms": algorithms}

    def winners(self) -> dict[str, Series]:
        """By budget, the setting that was worth most by then; none, where all lost every seed."""
        folder, metric = self.out / self.trials[0].name, self.task.by
        if not (folder / "rounds.csv").stat().st_size:  # nobody was finite even at the start
            return {}
        run, found = read_run(folder), dict[str, Series]()
        for kind in BUDGETS:
            worth: list[tuple[Worth, Series]] = [
                (worth_of(one, metric, kind, self.terms, self.task.ratios), one) for one in run.series
            ]
            usable = [pair for pair in worth if pair[0].usable]
            if usable:
                found[kind] = min(usable, key=lambda pair: pair[0])[1]
        return found


def labels_of(winners: Mapping[str, Series]) -> dict[str, Series]:
    """What a run calls the winners: by the budgets that each is best for."""
    kinds: dict[str, list[str]] = {}
    for kind, one in winners.items():
        kinds.setdefault(one.label, []).append(kind)
    by_label = {one.label: one for one in winners.values()}
    return {"-".join(own): by_label[label] for label, own in kinds.items()}


@dataclass(frozen=True)
class BoardTrial:
    """The sweep of a match, or the run of what it has found."""

    match: Match
    sweeps: bool

    @property
    def name(self) -> str:
        return f"{self.match.place}/{'tune' if self.sweeps else 'play'}"

    @property
    def after(self) -> str:
        return "" if self.sweeps else self.match.trials[0].name

    @property
    def visits(self) -> float:
        """How often clients are asked in it, about."""
        form, task = self.match.form, self.match.task
        if self.match.terms_known:
            terms = self.match.terms
            asked = terms.rounds * terms.phases * terms.invite
        else:
            asked = task.rounds * 2 * REFERENCE
        lanes = form.tries(task) * form.seeds_of_tuning if self.sweeps else 2 * form.fresh(task)
        return lanes * asked

    def tables(self) -> dict[str, Any] | None:
        """Its experiment; none, where no setting has survived."""
        if self.sweeps:
            return self.match.tuning()
        winners = self.match.winners()
        return self.match.playing(winners) if winners else None


def matches_of(
    form: BoardForm, out: Path, tasks: Sequence[str], fleets: Sequence[str], entrants: Sequence[Entrant]
) -> tuple[list[Match], dict[str, str]]:
    """Every algorithm wherever it fits; and where one does not, with the reason."""
    found, misfits = [], {}
    makers: dict[str, Problem] = {}
    for task in map(form.tasks.__getitem__, tasks):
        for fleet in fleets:
            for entrant in entrants:
                match = Match(task, fleet, entrant, form, out, makers)
                if why := misfit(match):
                    misfits[match.place] = why
                else:
                    found.append(match)
    return found, misfits


def misfit(match: Match) -> str:
    """Why an algorithm cannot play somewhere; nothing, if it can."""
    ranges = match.entrant.ranges
    if ranges.everybody and match.fleet != "everybody":
        return "needs an answer of every client in every round"
    problem = str(match.task.experiment["problem"]["name"])
    if ranges.problems and problem not in ranges.problems:
        return f"is for {', '.join(ranges.problems)}, not for {problem}"
    return ""


def played(match: Match) -> Run | None:
    """What a match has come to; nothing, if it has not come to its end."""
    folder = match.out / match.trials[1].name
    return read_run(folder) if is_finished(folder) else None


def is_lost(match: Match) -> bool:
    """Whether it was tuned, and no setting has survived."""
    return is_finished(match.out / match.trials[0].name) and not match.winners()


def check_known(what: str, names: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Those that are meant, in the board's order; without any, all."""
    chosen = [meant(name, known) for name in names]
    for name in chosen:
        if name not in known:
            raise unknown(what, name, known)
    if len(set(chosen)) < len(chosen):
        raise BadInput(f"a {what} is named twice: {', '.join(chosen)}")
    return [name for name in known if not chosen or name in chosen]
