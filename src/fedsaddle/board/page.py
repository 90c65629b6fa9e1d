"""All of the board as one page of Markdown, and as a table of numbers beside it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from fedsaddle.board.costs import BUDGETS, TOLD_BUDGETS
from fedsaddle.board.published import Entrant
from fedsaddle.board.standings import Standing, Standings, by_how_much, verdict_on
from fedsaddle.board.tasks import FLEETS_TOLD, BoardForm
from fedsaddle.report.markdown import all_named, duration, number, table
from fedsaddle.report.spent import Spent
from fedsaddle.report.statistics import short_count
from fedsaddle.runs import write_atomically


class Hung(NamedTuple):
    """What a board shows."""

    form: BoardForm
    tables: list[Standings]
    entrants: Sequence[Entrant]
    left_out: Mapping[str, str]  # who does not take part, at all or somewhere, and why
    spent: Spent
    command: str


class Fare(NamedTuple):
    """How one algorithm has fared over all tables."""

    label: str
    tables: int
    won: int
    leading: int  # tables in which nobody is told ahead of it
    behind: int
    failed: int  # seeds
    seeds: int
    lost: int  # tables for which no setting survived


def fares_of(tables: Sequence[Standings]) -> list[Fare]:
    """Who has won most first, then who leads most."""
    labels = dict.fromkeys(label for one in tables for label in (*(row.label for row in one.rows), *one.lost))
    found = []
    for label in labels:
        rows = [(one, row) for one in tables for row in one.rows if row.label == label]
        found.append(
            Fare(
                label,
                len(rows),
                sum(one.won and one.rows[0].label == label for one, _ in rows),
                sum(row.low == 1 for _, row in rows),
                sum(row.low > 1 for _, row in rows),
                sum(row.failed for _, row in rows),
                sum(row.seeds for _, row in rows),
                sum(label in one.lost for one in tables),
            )
        )
    return sorted(found, key=lambda one: (-one.won, -one.leading / max(one.tables, 1), one.label))


def tally_of_tables(hung: Hung) -> str:
    """How many tables have a winner."""
    won = sum(one.won for one in hung.tables)
    open = sum(not one.won for one in hung.tables)
    return f"{won} of {won + open} tables have a winner, {open} are undecided"


def write_board(hung: Hung, path: Path) -> str:
    """Write the page and its numbers. To what became of it, in a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "\n".join(_page(hung, path)).encode())
    write_atomically(path.with_suffix(".csv"), _numbers(hung.tables).encode())
    return tally_of_tables(hung)


_HOW = """Every algorithm tried {settings} settings of its published ranges with {tuning} seeds of their own,
chosen by validation rows (by training rows, where a task sets none aside; never by test rows); the best
for each budget then played with {seeds} fresh seeds. A value is the mean of a seed over the last quarter
of the budget; a seed that diverged or collapsed failed, and counts as the worst of its table. Of all
pairs, compared seed by seed and corrected together (Holm), those below 0.05 are told apart: a rank of
"2 to 5" says that one is told ahead and that the tests leave the rest open. *Wins* is only who is told
ahead of all others. [How it is done](../board.md).
"""


def _page(hung: Hung, path: Path) -> Iterator[str]:
    form, spent = hung.form, hung.spent
    little = "" if form.name == "whole" else " in little: how its page looks, not what it says"
    yield f"# The board of the field{little}"
    yield ""
    yield f"Measured at commit {all_named(spent.commits)} by:"
    yield ""
    yield f"    {hung.command}"
    yield ""
    yield f"{duration(spent.seconds)} of computing on {all_named(spent.devices)}; {tally_of_tables(hung)}."
    how = _HOW.format(settings=form.settings, tuning=form.seeds_of_tuning, seeds=form.seeds)
    yield how if path.parent.name == "results" else how.replace(" [How it is done](../board.md).", "")
    yield "## Who wins"
    yield ""
    header = ["task", "fleet", *(TOLD_BUDGETS[kind] for kind in BUDGETS)]
    yield from table(header, _overview(hung.tables))
    yield "## How they fare"
    yield ""
    yield "Over all tables above: those won, those in which nobody is told ahead, those behind somebody,"
    yield "failed seeds, and tables for which no setting survived tuning."
    yield ""
    yield from table(
        ["algorithm", "tables", "won", "may be first", "behind", "failed seeds", "no setting"],
        [[*one[:5], f"{one.failed} of {one.seeds}", one.lost] for one in fares_of(hung.tables)],
    )
    for (task, fleet), own in groupby(hung.tables, key=lambda one: (one.task, one.fleet)):
        yield from _match_up(hung.form.tasks[task].title, task, fleet, list(own))
    yield from _absent(hung)


def _overview(tables: Sequence[Standings]) -> list[list[object]]:
    rows = []
    for (task, fleet), own in groupby(tables, key=lambda one: (one.task, one.fleet)):
        by_kind = {one.kind: one for one in own}
        rows.append([task, fleet, *(_short(by_kind[kind]) if kind in by_kind else "" for kind in BUDGETS)])
    return rows


def _short(one: Standings) -> str:
    """A cell: the winner, or who leads."""
    if one.won:
        return f"**{one.rows[0].label}**{by_how_much(one)}"
    if not one.rows:
        return "no setting survived" if one.lost else ""
    leading = one.leading or [one.rows[0].label]
    more = f" and {len(leading) - 3} more" if len(leading) > 3 else ""
    return f"undecided: {', '.join(leading[:3])}{more}"


def _match_up(title: str, task: str, fleet: str, own: Sequence[Standings]) -> Iterator[str]:
    """One task on one fleet: verdicts, and one line for each algorithm."""
    first = own[0]
    yield f"## {task}, {fleet}"
    yield ""
    way = f", {first.better} is better" if first.better else ""
    yield f"{title[0].upper()}{title[1:]}; {FLEETS_TOLD[fleet]}. `{first.metric}`{way}."
    yield ""
    for one in own:
        yield f"- At {TOLD_BUDGETS[one.kind]}{_budget(one)}: {verdict_on(one)}."
    yield ""
    by_label = {one.kind: {row.label: row for row in one.rows} for one in own}
    labels = dict.fromkeys(row.label for one in own for row in one.rows)
    header = ["algorithm"]
    for one in own:
        header += [f"rank, {TOLD_BUDGETS[one.kind].removeprefix('equal ')}", "value (95 %)"]
    cells = [
        [label, *(cell for one in own for cell in _cells(by_label[one.kind].get(label)))] for label in labels
    ]
    yield from table(header, cells)
    lost = list(dict.fromkeys(label for one in own for label in one.lost))
    if lost:
        yield f"No setting survived tuning: {', '.join(lost)}."
        yield ""
    if first.open:
        yield f"Not played yet: {', '.join(first.open)}."
        yield ""


def _budget(one: Standings) -> str:
    """How much there was, as the first has used it."""
    spent = one.rows[0].spent if one.rows else {}
    if one.kind not in spent:
        return ""
    unit = {"floats": "floats up", "trips": "round trips", "time": "simulated seconds"}[one.kind]
    return f" ({short_count(spent[one.kind])} {unit})"


def _cells(row: Standing | None) -> list[str]:
    if row is None:
        return ["", ""]
    ranks = f"{row.low}" if row.low == row.high else f"{row.low} to {row.high}"
    failed = f", {row.failed} of {row.seeds} failed" if row.failed else ""
    if not math.isfinite(row.value):
        return [ranks, f"all {row.seeds} failed"]
    return [ranks, f"{number(row.value)} ({number(row.interval.low)} to {number(row.interval.high)}){failed}"]


def _absent(hung: Hung) -> Iterator[str]:
    """Who does not take part, and who does with which ranges."""
    yield "## What each may try"
    yield ""
    yield "A step size is drawn from its task's range, log-uniformly, as all that is given as two ends."
    yield ""
    rows = [[one.label, _told_ranges(one), one.ranges.source] for one in hung.entrants]
    yield from table(["algorithm", "beside its step sizes", "from"], rows)
    if hung.left_out:
        yield "## Who does not take part"
        yield ""
        for why, places in _by_reason(hung.left_out).items():
            yield f"- {', '.join(places)}: {why}."
        yield ""


def _told_ranges(one: Entrant) -> str:
    told = []
    for name, choice in one.ranges.values.items():
        if isinstance(choice, tuple):
            told.append(f"{name} {choice[0]:g} to {choice[1]:g}")
        elif isinstance(choice, str):
            told.append(f"{name} as {choice}")
        else:
            told.append(f"{name} of {', '.join(f'{value:.3g}' for value in choice)}")
    return "; ".join(told)


def _by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """Places are named by their algorithm alone where the reason is the same at many."""
    found: dict[str, list[str]] = {}
    for place, why in left_out.items():
        names = found.setdefault(why, [])
        name = place.rpartition("/")[2]
        if name not in names:
            names.append(name)
    return found


# --- numbers ---------------------------------------------------------------------------------------------

COLUMNS = (
    *("task", "fleet", "budget", "algorithm", "rank_low", "rank_high", "metric", "value", "low", "high"),
    *("failed", "seeds", "effect", "effect_low", "effect_high", "rival", "p", "floats_up", "trips"),
    *("time_simulated", "setting"),
)


def _numbers(tables: Sequence[Standings]) -> str:
    """Every row of every table."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for one in tables:
        for row in one.rows:
            out.writerow(
                [
                    *(one.task, one.fleet, one.kind, row.label, row.low, row.high, one.metric),
                    *map(_digits, (row.value, *row.interval)),
                    *(row.failed, row.seeds, *_effect(row), _digits(row.p)),
                    *(_digits(row.spent.get(kind)) for kind in BUDGETS),
                    row.setting,
                ]
            )
    return text.getvalue()


def _effect(row: Standing) -> list[str]:
    """The first less this one; of the first, less the next. Of ratios, their logarithm."""
    told = row.behind
    if told is None:
        return ["", "", "", ""]
    rival = told.rival if told.one == row.label else told.one
    return [*map(_digits, (told.effect, *told.interval)), rival]


def _digits(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"
