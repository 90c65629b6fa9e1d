"""Reports: what runs have found, as one page that opens anywhere, a picture and tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedsaddle.errors import BadInput
from fedsaddle.report.figures import draw, draw_heat_map
from fedsaddle.report.page import GENERATOR, page
from fedsaddle.report.reading import Run, Series, all_metrics, read_runs
from fedsaddle.report.statistics import Finding, curve, findings, spread
from fedsaddle.report.sweeps import families_of, file_of, main_series
from fedsaddle.runs import write_atomically

BESIDE = ("curves.png", "summary.csv", "curves.csv")

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
    if out is not None or len(runs) > 1:
        _check_free(html, [*BESIDE, *maps])
    try:
        html.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write to {html.parent}: {error.strerror}; choose another --out") from None
    series = [one for run in runs for one in run.series]
    metrics = all_metrics(runs)
    # The page first: where it lies, the other files are known to be a report's.
    write_atomically(html, page(runs).encode())
    draw(main_series(runs), metrics[0], html.parent / "curves.png")
    for name, family in maps.items():
        draw_heat_map(family, html.parent / name)
    write_atomically(html.parent / "summary.csv", _csv(_summary(series, metrics)))
    write_atomically(html.parent / "curves.csv", _csv(_curves(series, metrics)))
    return html


def _check_free(html: Path, beside: Sequence[str]) -> None:
    """Refuse to write over what is not a report."""
    try:
        if html.is_file() and GENERATOR in html.read_text(encoding="utf-8", errors="replace"):
            return
        taken = [path for path in (html, *(html.parent / name for name in beside)) if path.exists()]
    except OSError as error:
        raise BadInput(f"cannot write to {html}: {error.strerror}; choose another --out") from None
    if taken:
        raise BadInput(f"{taken[0]} is there already and is not a report's: choose another --out")


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _summary(series: Sequence[Series], metrics: Sequence[str]) -> Iterable[list[object]]:
    measured = ("final", "best", "area", "floats_up", "late", "seconds")
    header = ["metric", "algorithm", "seeds", "seeds_alive", "rounds", "rounds_reached"]
    header += [f"{name}_{what}" for name in measured for what in ("mean", "std")]
    yield [*header, "abandoned", "diverged", "collapsed", "rival", "common_seeds", "difference", "p_value"]
    for metric in metrics:
        for one in findings(series, metric):
            values = [spread(list(getattr(one, name).values())) for name in measured]
            yield [
                *(metric, one.label, one.seeds, len(one.final), one.rounds, one.reached),
                *(cell for value in values for cell in ((value.mean, value.std) if value else ("", ""))),
                *(one.abandoned, one.diverged, one.collapsed),
                *(one.against or [""] * 4),
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
