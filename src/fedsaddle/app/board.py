"""The board of the field: tune, play with fresh seeds what is left, and write the page of all there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from fedsaddle.app.jobs import hands_beside
from fedsaddle.app.run import PLAINLY, Way
from fedsaddle.app.sitting import Sitting, resuming
from fedsaddle.board.html import write_html
from fedsaddle.board.matches import BoardTrial, Match, check_known, is_lost, matches_of, played
from fedsaddle.board.page import Hung, write_board
from fedsaddle.board.published import Entrant, shipped_entrants, submitted
from fedsaddle.board.standings import all_standings
from fedsaddle.board.tasks import WHOLE_BOARD, BoardForm
from fedsaddle.border.plugged import plug
from fedsaddle.border.plugins import reference_in
from fedsaddle.border.schema import check_label, rule_named
from fedsaddle.errors import BadInput
from fedsaddle.exits import ALL_DIVERGED
from fedsaddle.report.reading import Run
from fedsaddle.report.spent import NOTHING_SPENT, is_begun, is_finished, spent_on
from fedsaddle.runs import read_environment


class Boarded(NamedTuple):
    """Where the pages are, what they say in a line, and how it ended: 0, or a number of `exits`."""

    page: Path
    html: Path
    told: str
    code: int


@dataclass(frozen=True)
class Pick:
    """Who plays what where; without names, everybody everything everywhere."""

    tasks: Sequence[str] = ()
    fleets: Sequence[str] = ()
    algorithms: Sequence[str] = ()
    entered: Sequence[str] = ()  # algorithms of somebody's own, as my_rule.py:MyRule
    code: Sequence[Path] = ()  # the files that may be run for it


@dataclass(frozen=True)
class Draw:
    """All matches of a form, and those of them that were chosen."""

    form: BoardForm
    out: Path
    chosen: Pick

    @cached_property
    def entrants(self) -> tuple[list[Entrant], dict[str, str]]:
        """Everybody, with those who do not take part and why."""
        found, out = shipped_entrants()
        return [*found, *entered(self.chosen.entered, self.chosen.code)], out

    @cached_property
    def matches(self) -> list[Match]:
        return self._matches[0]

    @cached_property
    def _matches(self) -> tuple[list[Match], dict[str, str]]:
        return matches_of(self.form, self.out, list(self.form.tasks), self.form.fleets, self.entrants[0])

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Who does not take part at all, or not everywhere, and why."""
        return self.entrants[1] | self._matches[1]

    @cached_property
    def wanted(self) -> list[Match]:
        known = {one.label: one for one in self.entrants[0]}
        names = check_known("algorithm of the board", self.chosen.algorithms, known)
        if self.chosen.algorithms:  # who was entered is meant
            names += [one.label for one in self.entrants[0] if one.algorithm in self._references]
        tasks = check_known("task of the board", self.chosen.tasks, self.form.tasks)
        fleets = check_known("fleet of the board", self.chosen.fleets, dict.fromkeys(self.form.fleets))
        return [
            match
            for match in self.matches
            if match.task.name in tasks and match.fleet in fleets and match.entrant.label in names
        ]

    @property
    def _references(self) -> set[str]:
        return {one.algorithm for one in self.entrants[0]} - set(known_names())

    @property
    def trials(self) -> list[BoardTrial]:
        return [trial for match in self.wanted for trial in match.trials]


def known_names() -> list[str]:
    return [one.algorithm for one in shipped_entrants()[0]]


def entered(references: Sequence[str], code: Sequence[Path]) -> list[Entrant]:
    """Algorithms of somebody's own, each with the ranges that its class declares."""
    found: list[Entrant] = []
    tables: dict[str, Any] = {"algorithms": {}}
    for text in references:
        reference = reference_in(text)
        if reference is None:
            raise BadInput(f"--enter takes an algorithm of yours, as my_rule.py:MyRule, got '{text}'")
        label = reference.name
        check_label(label)
        if label in tables["algorithms"]:
            raise BadInput(f"two algorithms that are entered are called {label}")
        place = str(Path(reference.place).resolve()) if reference.of_file else reference.place
        tables["algorithms"][label] = {"algorithm": f"{place}:{reference.name}"}
    for note in plug(tables, code, groups=("algorithms",)) if tables["algorithms"] else ():
        raise BadInput(note)
    for label, table in tables["algorithms"].items():
        found.append(submitted(label, table["algorithm"], rule_named(table["algorithm"])))
    return found


def own_code(one: Entrant, code: Sequence[Path]) -> list[Path]:
    """The file that an algorithm of somebody's own is in; none, of one that ships."""
    reference = reference_in(one.algorithm)
    if reference is None or not reference.of_file:
        return []
    return [file for file in code if file.resolve() == Path(reference.place)]


def board(
    chosen: Pick = Pick(),  # noqa: B008  it is a value
    *,
    out: Path = Path("runs/board"),
    form: BoardForm = WHOLE_BOARD,
    device: str | None = None,
    resume: bool = False,
    minutes: float | None = None,
    jobs: int = 1,
    page: Path | None = None,
    command: str = "fedsaddle board",
    way: Way = PLAINLY,
) -> Boarded:
    """Play what was chosen, or what is left of it, and write the pages of all that has been played.

    After so many `minutes` it stops as Ctrl-C does: with a checkpoint, to be resumed. With `jobs`, so many
    trials are run at once.
    """
    draw = Draw(form, out, chosen)
    trials = draw.trials
    if not trials:
        raise BadInput("nobody who was named fits a task and fleet that were named")
    if not resume and any(is_begun(out / trial.name) for trial in trials):
        raise BadInput(f"{out} already holds some of this: go on with --resume, or choose another --out")
    play_left = partial(_play_left, chosen, out, form, device, None, jobs, command)
    jobs = min(jobs, sum(not is_finished(out / trial.name) for trial in trials))
    with hands_beside(jobs, play_left, way.show):
        code = _play_left(chosen, out, form, device, minutes, jobs, command, way)
    hung = hang(draw, command)
    place = page or out / "board.md"
    html = place.with_name(f"{place.stem}-tables.html")  # the page may become HTML of its own name
    write_html(hung, html)
    return Boarded(place, html, write_board(hung, place), code)


def _play_left(
    chosen: Pick,
    out: Path,
    form: BoardForm,
    device: str | None,
    minutes: float | None,
    jobs: int,
    command: str,
    way: Way,
) -> int:
    """Play what is left of what was chosen, to an exit code."""
    draw = Draw(form, out, chosen)
    sitting = Sitting[BoardTrial](
        out,
        device,
        minutes,
        way,
        resuming(command),
        lambda trial: trial.tables(),
        lambda trial: own_code(trial.match.entrant, chosen.code),
        frozenset({ALL_DIVERGED}),
        lambda some: told_left(out, some, draw.matches, jobs),
    )
    return sitting.through(draw.trials)


def hang(draw: Draw, command: str) -> Hung:
    """All that has been played."""
    runs: dict[str, Run] = {}
    lost, spent = [], NOTHING_SPENT
    for match in draw.matches:
        run = played(match)
        if run is not None:
            runs[match.place] = run
            spent += spent_on(run)
        elif is_lost(match):
            lost.append(match.place)
    tables = [one for one in all_standings(draw.matches, runs, lost) if one.rows or one.lost]
    seconds = sum(seconds_of(draw.out / trial.name) for match in draw.matches for trial in match.trials)
    return Hung(draw.form, tables, draw.entrants[0], draw.left_out, spent._replace(seconds=seconds), command)


# --- how long it takes -----------------------------------------------------------------------------------


def seconds_of(folder: Path) -> float:
    """What a run has taken so far."""
    found = 0.0
    for entry in read_environment(folder):
        seconds = entry.get("seconds")
        found += sum(seconds.values()) if isinstance(seconds, dict) else 0.0
    return found


class HowFar(NamedTuple):
    """How far a task on a fleet is, and how long what is left may take."""

    task: str
    fleet: str
    done: int
    trials: int
    seconds: float | None  # none, where nothing has been measured here


def paces(out: Path, matches: Sequence[Match]) -> dict[str, float]:
    """Seconds a visit of each task, by the trials that have come to their end here."""
    spent: dict[str, list[float]] = {}
    for match in matches:
        for trial in match.trials:
            if is_finished(out / trial.name):
                own = spent.setdefault(match.task.name, [0.0, 0.0])
                own[0] += seconds_of(out / trial.name)
                own[1] += trial.visits
    return {name: seconds / max(visits, 1.0) for name, (seconds, visits) in spent.items()}


def left_of(out: Path, trials: Sequence[BoardTrial], pace: dict[str, float]) -> float | None:
    """Seconds that trials will take; none, where a task's pace is not known."""
    left = [trial for trial in trials if not is_finished(out / trial.name)]
    if not all(trial.match.task.name in pace for trial in left):
        return None
    return sum(trial.visits * pace[trial.match.task.name] for trial in left)


def told_left(out: Path, trials: Sequence[BoardTrial], matches: Sequence[Match], jobs: int = 1) -> str:
    """In words, for somebody who waits for so many trials at once."""
    pace = paces(out, matches)
    known = [trial for trial in trials if trial.match.task.name in pace]
    seconds = left_of(out, known, pace)
    if not known or seconds is None:
        return ""
    rest = len({trial.match.task.name for trial in trials} - pace.keys())
    more = f", and {rest} task{'s' if rest > 1 else ''} that nothing is known of" if rest else ""
    return f"; {_about(seconds / jobs)} left{more}"


def _about(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def how_far(draw: Draw) -> list[HowFar]:
    """Every task on every fleet that was chosen."""
    groups: dict[tuple[str, str], list[BoardTrial]] = {}
    for trial in draw.trials:
        groups.setdefault((trial.match.task.name, trial.match.fleet), []).append(trial)
    pace = paces(draw.out, draw.matches)
    return [
        HowFar(
            *place,
            sum(is_finished(draw.out / trial.name) for trial in own),
            len(own),
            left_of(draw.out, own, pace),
        )
        for place, own in groups.items()
    ]
