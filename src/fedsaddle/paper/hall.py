"""Where exhibits are made: of which form, from which trials, and beside which page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fedsaddle.paper.evidence import Evidence, evidence_of, read_trial
from fedsaddle.paper.forms import Form
from fedsaddle.paper.trials import CONTESTS, Trial, missing, trials
from fedsaddle.report.reading import Run
from fedsaddle.report.spent import NOTHING_SPENT, Spent, is_finished, spent_on

SETTINGS = ("tuned", "published")


@dataclass(frozen=True, eq=False)
class Hall:
    """Where exhibits are made: of which form, from which folders, and beside which page."""

    form: Form
    out: Path  # the trials'
    folder: Path  # the page's
    trials: dict[str, Trial] = field(default_factory=dict)

    @cache  # noqa: B019  a hall lives as long as one page is written
    def evidence(self, contest: str, cohorts: str, settings: str) -> Evidence | None:
        if missing(CONTESTS[contest], self.form):
            return None
        return evidence_of(CONTESTS[contest], cohorts, settings, self.out)

    @cache  # noqa: B019
    def run(self, trial: str) -> Run | None:
        return read_trial(self.trials[trial], self.out) if self.finished(trial) else None

    def finished(self, trial: str) -> bool:
        return trial in self.trials and is_finished(self.out / trial)

    def picture(self, name: str) -> Path:
        little = "" if self.form.name == "full" else f"{self.form.name}-"
        return self.folder / f"paper-{little}{name}.png"


def hall_of(form: Form, out: Path, folder: Path) -> Hall:
    return Hall(form, out, folder, trials(form))


@dataclass(frozen=True)
class Exhibit:
    """A figure, a table, or a panel that the paper lacks."""

    name: str
    title: str
    says: str  # what the paper shows, in our words
    contests: tuple[str, ...]
    body: Callable[[Exhibit, Hall], Iterator[str]]
    own: str = ""  # what the names of further trials begin with
    memory: bool = False  # whether CDMA-ADA's settings are shown by rho

    def needed(self, all_trials: Mapping[str, Trial]) -> list[Trial]:
        """The trials behind it, in their order."""

        def wanted(trial: Trial) -> bool:
            if self.own and (trial.name == self.own or trial.name.startswith(f"{self.own}/")):
                return True
            if trial.by and not self.memory:
                return False
            return trial.contest.name in self.contests and not trial.name.startswith("panels/")

        chosen = [trial for trial in all_trials.values() if wanted(trial)]
        before = {trial.after for trial in chosen if trial.after} - {trial.name for trial in chosen}
        return [*(all_trials[name] for name in all_trials if name in before), *chosen]

    def spent(self, hall: Hall) -> Spent:
        found = NOTHING_SPENT
        for trial in self.needed(hall.trials):
            if run := hall.run(trial.name):
                found += spent_on(run)
        return found
