"""Which commit a study was measured at: as its run folders say, or as who started it does.

A copy of the tree may have no history, or another's: then git cannot know, and a page must not guess.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from fedsaddle.environment import here
from fedsaddle.report.markdown import all_named
from fedsaddle.report.reading import read_run
from fedsaddle.report.spent import NOTHING_SPENT, Spent, spent_on


def add_commit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--commit", help="of a copy of the tree that git cannot tell it of")


def check_commit(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Before hours of work, rather than after them."""
    if not given.commit and "commit" not in here():
        parser.error("git does not know what this copy of the tree is: say which, with --commit")


def spent_in(folders: Iterable[Path]) -> Spent:
    """What all sittings of some runs took, and the commits that they were made at."""
    return sum((spent_on(read_run(folder)) for folder in folders), NOTHING_SPENT)


def commits(spent: Spent, given: argparse.Namespace) -> str:
    """As somebody said, or as the folders do."""
    return given.commit or all_named(spent.commits)
