"""Reports: what runs have found, as one page that opens anywhere, a picture and tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedsaddle.errors import BadInput, is_machines
from fedsaddle.report.comparing import Finding, findings
from fedsaddle.report.figures import draw, draw_heat_map
from fedsaddle.report.page import GENERATOR, page
from fedsaddle.report.reading import Run, Series, all_metrics, read_runs
from fedsaddle.report.statistics import curve, spread
from fedsaddle.report.sweeps import families_of, file_of, main_series
from fedsaddle.runs import write_atomically

__all__ = ["Finding", "findings", "read_runs", "spread", "write_report"]


def write_report(runs: Sequence[Run], out: Path | None = None) -> Path:
    """Write report.html and what lies beside it: into the run's own folder, or where `out` says."""
    target = out or (runs[0].folder if len(runs) == 1 else Path("report"))
    html = target if target.suffix == ".html" else target / "report.html"
    maps = {
        name: family
        for run in runs
        for family in families_of(run)
        if family.heat_map and (name := file_of(run, family, alone=len(runs) == 1))
    }
    picture, summary, curves, *pictures = beside(html, maps)
    if html.parent.resolve() != runs[0].folder.resolve() or len(runs) > 1:
        if (html.parent / "experiment.json").exists():
            raise BadInput(f"{html.parent} is a run's folder, with a report of its own: choose another --out")
        _check_free(html, [picture, summary, curves, *pictures])
    series = [one for run in runs for one in run.series]
    metrics = list(all_metrics(runs))
    try:
        html.parent.mkdir(parents=True, exist_ok=True)
        # The page first: where it lies, the other files are known to be a report's.
        write_atomically(html, page(runs).encode())
        draw(main_series(runs), metrics[0], picture)
        for family, path in zip(maps.values(), pictures, strict=True):
            draw_heat_map(family, path)
        write_atomically(summary, _csv(_summary(series, metrics)))
        write_atomically(curves, _csv(_curves(series, metrics)))
    except OSError as error:
        if is_machines(error):
            raise OSError(error.errno, error.strerror, str(error.filename or html.parent)) from None
        raise BadInput(f"cannot write to {html.parent}: {error.strerror}; choose another --out") from None
    return html


def beside(html: Path, maps: Iterable[str]) -> list[Path]:
    """The files that go with a page; those of one with a name of its own begin with that."""
    prefix = "" if html.name == "report.html" else f"{html.stem}-"
    return [html.parent / f"{prefix}{name}" for name in ("curves.png", "summary.csv", "curves.csv", *maps)]


def _check_free(html: Path, others: Sequence[Path]) -> None:
    """Refuse to write over what is not a report."""
    try:
        if html.is_file() and GENERATOR in html.read_text(encoding="utf-8", errors="replace"):
            return
        taken = [path for path in (html, *others) if path.exists()]
    except OSError as error:
        raise BadInput(f"cannot write to {html}: {error.strerror}; choose another --out") from None
    if taken:
        raise BadInput(f"{taken[0]} is there already and is not a report's: choose another --out")


def no_formula(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula: a stranger's folder may have labels such as =1+1."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(no_formula, row) for row in rows)
    return text.getvalue().encode()


AGAINST = ("rival", "common_seeds", "difference", "p_value", "p_holm", "unequal")


def _summary(series: Sequence[Series], metrics: Sequence[str]) -> Iterable[list[object]]:
    measured = ("final", "best", "last", "area", "floats_up", "late", "seconds")
    header = ["metric", "algorithm", "seeds", "seeds_alive", "rounds", "rounds_reached"]
    header += [f"{name}_{what}" for name in measured for what in ("mean", "std")]
    dead = ("dead", "dead_low", "dead_high")
    yield [*header, "final_median", "abandoned", "diverged", "collapsed", *dead, "standing", *AGAINST]
    for metric in metrics:
        for one in findings(series, metric):
            values = [spread(list(getattr(one, name).values())) for name in measured]
            yield [
                *(metric, one.label, one.seeds, len(one.final), one.rounds, one.reached),
                *(cell for value in values for cell in ((value.mean, value.std) if value else ("", ""))),
                *(one.median, one.abandoned, one.diverged, one.collapsed),
                *(one.dead.number, one.dead.low, one.dead.high, one.standing),
                *(one.against or [""] * len(AGAINST)),
            ]


def _curves(series: Sequence[Series], metrics: Sequence[str]) -> Iterable[list[object]]:
    yield [
        *("algorithm", "round", "floats_up", "time_simulated"),
        *("metric", "mean", "std", "min", "max", "seeds"),
    ]
    for one in series:
        for metric in metrics:
            for at in curve(one, metric):
                axes = (at.round, at.floats_up, at.time_simulated)
                yield [
                    one.label,
                    *axes,
                    metric,
                    at.values.mean,
                    at.values.std,
                    at.low,
                    at.high,
                    at.values.seeds,
                ]
