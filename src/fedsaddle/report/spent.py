"""What runs have cost, where, and whether they have come to their end."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedsaddle.report.reading import Run
from fedsaddle.runs import read_checkpoint


class Spent(NamedTuple):
    """What trials have cost, and where."""

    seconds: float
    commits: tuple[str, ...]
    devices: tuple[str, ...]

    def __add__(self, other: Spent) -> Spent:  # type: ignore[override]
        both = (
            tuple(dict.fromkeys((*a, *b)))
            for a, b in ((self.commits, other.commits), (self.devices, other.devices))
        )
        return Spent(self.seconds + other.seconds, *both)


NOTHING_SPENT = Spent(0.0, (), ())


def is_begun(folder: Path) -> bool:
    return (folder / "checkpoint.json").is_file()


def is_finished(folder: Path) -> bool:
    """Whether a trial has come to its end, by its checkpoint."""
    if not is_begun(folder):
        return False
    saved = read_checkpoint(folder)
    return set(saved["experiment"]["algorithms"]) <= set(saved["done"])


def spent_on(run: Run) -> Spent:
    commits = [str(one.get("commit", "unknown"))[:7] for one in run.environment]
    dirty = [str(one.get("commit", "")).endswith("-dirty") for one in run.environment]
    told = [f"{commit}-dirty" if odd else commit for commit, odd in zip(commits, dirty, strict=True)]
    devices = [str(one.get("gpu") or one.get("processor", "unknown")) for one in run.environment]
    unique = (tuple(dict.fromkeys(one)) for one in (told, devices))
    return Spent(sum(run.spent.values()), *unique)
