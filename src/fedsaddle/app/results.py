"""What a run or a sweep has come to: its report is written, and what came to nothing is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsaddle.exits import ALL_DIVERGED, NOTHING_LEARNT
from fedsaddle.report import Finding, findings, read_runs, write_report
from fedsaddle.report.reading import Run, Series
from fedsaddle.report.sweeps import Family, families_of, winners_toml
from fedsaddle.runs import write_atomically


@dataclass(frozen=True)
class Results:
    """Of one folder."""

    run: Run
    page: Path  # the report
    diverged: list[str]  # algorithms of which no seed was finite to the end
    idle: list[str]  # algorithms of which every round was abandoned
    found: Sequence[Finding] = ()  # of a run, by algorithm
    families: Sequence[Family] = ()  # of a sweep, by algorithm
    best: Path | None = None  # of a sweep: the winners, as an experiment

    @property
    def code(self) -> int:
        return ALL_DIVERGED if self.diverged else NOTHING_LEARNT if self.idle else 0


def of_run(folder: Path) -> Results:
    """Write a run's report."""
    runs = read_runs([folder])
    (run,), page = runs, write_report(runs)
    found = findings(run.series, run.judged_by)
    idle = _idle({one.label: [one] for one in run.series})
    return Results(run, page, [one.label for one in found if not one.final], idle, found)


def of_sweep(folder: Path) -> Results:
    """Write a sweep's report and its winners."""
    runs = read_runs([folder])
    (run,), page = runs, write_report(runs)
    families, best = families_of(run), None
    if "python" not in run.experiment:  # else no experiment file can say it
        best = folder / "best.toml"
        write_atomically(best, winners_toml(run).encode())
    idle = _idle({family.name: family.tried for family in families})
    diverged = [family.name for family in families if not family.best]
    return Results(run, page, diverged, idle, families=families, best=best)


def _idle(groups: Mapping[str, Sequence[Series]]) -> list[str]:
    return [name for name, series in groups.items() if all(one.idle for one in series)]
