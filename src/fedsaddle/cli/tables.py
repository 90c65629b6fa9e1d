"""What a person sees when a run has ended: its table, where its files are, and what came to nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from fedsaddle.app.results import Results, of_run, of_sweep
from fedsaddle.cli.progress import NARROW, amount
from fedsaddle.report import spread
from fedsaddle.report.sweeps import CHOSEN_BY_TEST


def show_run(out: Console, path: Path, quiet: bool) -> int:
    """Write a run's report and show its table. To an exit code."""
    results = of_run(path)
    if not quiet:
        out.print(_run_table(results, out.width))
        print(f"rounds   {path / 'rounds.csv'}\nreport   {results.page}\nspent    {_spent(results)}")
    return _code(results)


def _run_table(results: Results, width: int) -> Table:
    metric, spent = results.run.judged_by, results.run.spent
    wide, narrow = width >= 100, width < NARROW
    table = Table(
        title=f"{metric} at the end, mean ± standard deviation over the seeds",
        box=box.SIMPLE,
        padding=(0, 1 if wide else 0),
        show_edge=wide,
    )
    counts = ("seeds", "floats\nup", "seconds\nsimulated", "seconds\nspent", "abandoned")
    columns = ("algorithm", metric, *counts[: 1 if narrow else None])
    for column in columns:
        words = column == "algorithm"
        table.add_column(
            column,
            justify="left" if words else "right",
            no_wrap=not (words and narrow),
            overflow="fold",
            vertical="bottom",
        )
    for one in results.found:
        final, floats, seconds = (
            spread(list(values.values())) for values in (one.final, one.floats_up, one.seconds)
        )
        cells = (
            one.label,
            str(final or "diverged"),
            f"{len(one.final)}/{one.seeds}",
            amount(floats.mean) if floats else "",
            f"{seconds.mean:.4g}" if seconds else "",
            f"{spent[one.label]:.3g}" if one.label in spent else "",
            str(one.abandoned),
        )
        table.add_row(*cells[: len(columns)])
    if metric in results.run.real:
        table.add_row("real rows", f"{results.run.real[metric]:.4g}")
    return table


def show_sweep(out: Console, path: Path, quiet: bool) -> int:
    """Write a sweep's report and its winners, and show them. To an exit code."""
    results = of_sweep(path)
    first = results.families[0]
    if first.by_test:
        print(f"warning: {CHOSEN_BY_TEST.format(first.by)}", file=sys.stderr)
    if not quiet:
        out.print(_sweep_table(results, narrow=out.width < NARROW))
        print(f"rounds   {path / 'rounds.csv'}\nreport   {results.page}\nbest     {results.best}")
        print(f"spent    {_spent(results)}")
    return _code(results)


def _sweep_table(results: Results, narrow: bool) -> Table:
    families, first = results.families, results.run.judged_by
    by = families[0].by
    table = Table(title=f"the best setting of each algorithm by {by}, mean over the seeds", box=box.SIMPLE)
    columns = list(dict.fromkeys(("algorithm", "best setting", by, first, "tried", "diverged", "dropped")))
    columns = columns[: 3 if narrow else None]
    for column in columns:
        words = column in ("algorithm", "best setting")
        folds = column == "best setting" or (words and narrow)
        table.add_column(column, justify="left" if words else "right", no_wrap=not folds, overflow="fold")
    for family in families:
        values = [family.value_of(metric) for metric in dict.fromkeys((by, first))]
        means = ["diverged" if value is None else f"{value:.4g}" for value in values]
        counts = (len(family.tried), family.diverged, family.dropped)
        table.add_row(*(family.name, family.told(), *means, *map(str, counts))[: len(columns)])
    return table


def _spent(results: Results) -> str:
    seconds = sum(results.run.spent.values())
    return f"{seconds:.3g} s on this machine's clock, for rounds and evaluations"


def _code(results: Results) -> int:
    """What a run ends with; and a word if one of its algorithms came to nothing."""
    if results.diverged:
        print(
            f"every seed of {', '.join(results.diverged)} diverged: try smaller step sizes", file=sys.stderr
        )
    if results.idle:
        print(
            f"nothing was learnt by {', '.join(results.idle)}: every round was abandoned, for too few "
            "clients answered in time; lower quorum.minimum, or ask more clients or for longer",
            file=sys.stderr,
        )
    return results.code
