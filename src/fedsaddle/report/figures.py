"""Pictures: curves against floats sent up, rounds and, where a clock ran, simulated time; heat maps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib

from fedsaddle.report.reading import Series
from fedsaddle.report.statistics import curve, ended, frame, scale_of
from fedsaddle.report.sweeps import Family, value_of

matplotlib.use("Agg")  # no screen is needed to write a file

from matplotlib import pyplot as plt

AXES = {
    "floats_up": "floats sent up",
    "round": "rounds",
    "time_simulated": "simulated seconds",
}


FEW_BANDS = 4  # algorithms whose bands do not hide each other


def draw(series: Sequence[Series], metric: str, path: Path) -> None:
    """A line for each mean, a band of one standard deviation about it, a cross where a seed diverged."""
    curves = {one.label: curve(one, metric) for one in series}
    places = [place for some in curves.values() for place in some]
    meant = series[0].metrics[metric]
    shown, scale = frame(meant, curves.values()), scale_of(meant, curves.values())
    # An error of 0 has no place on a logarithmic axis: it is drawn below the smallest there is.
    errors = [1 - place.values.mean for place in places if place.values.mean < 1]
    floor = min(errors, default=1e-3) / 2

    def height(value: float) -> float:
        return max(1 - value, floor) if scale == "error" else min(value, shown.high)

    axes = {
        column: name
        for column, name in AXES.items()
        if column == "round" or any(getattr(place, column) for place in places)
    }
    figure, panels = plt.subplots(
        1, len(axes), figsize=(5.5 * len(axes), 4.2), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, (column, name) in zip(panels[0], axes.items(), strict=True):
        for one in series:
            some = curves[one.label]
            xs = [getattr(place, column) for place in some]
            line: Any = panel.plot(xs, [height(p.values.mean) for p in some], label=_plain(one.label))[0]
            low, high = ([height(place.band[end]) for place in some] for end in (0, 1))
            if scale == "log":  # what lies below 0 goes to the lowest value that there is
                low = [max(value, shown.low) for value in low]
            alpha = 0.15 if len(series) <= FEW_BANDS else 0.07
            panel.fill_between(xs, low, high, color=line.get_color(), alpha=alpha, linewidth=0)
            for end in filter(None, map(ended, one.lanes)):
                panel.plot(getattr(end, column), height(end.metrics[metric]), "x", color=line.get_color())
        panel.set_xlabel(name)
        panel.grid(alpha=0.3)
        if scale != "linear":
            panel.set_yscale("log")
    panels[0][0].set_ylabel(_plain(f"1 - {metric}" if scale == "error" else metric))
    lines, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside right upper", fontsize="small")
    save(figure, path)


def draw_heat_map(family: Family, path: Path) -> None:
    """The best value at each place, the darker the better by rank; a cross where every seed diverged."""
    rows = family.heat_maps
    tall, wide, first = len(rows), len(rows[0]), rows[0][0]
    size = (1.5 + wide * (1 + 0.62 * len(first.xs)), 1 + tall * (1 + 0.45 * len(first.ys)))
    figure, panels = plt.subplots(
        tall, wide, figsize=size, layout="constrained", squeeze=False, sharex=True, sharey=True
    )
    for heat, panel in zip(chain(*rows), panels.flat, strict=True):
        shades = [[math.nan] * len(heat.xs) for _ in heat.ys]
        for x, y, series in heat.cells:
            value = value_of(series, family.by)
            if value is None:
                panel.plot(x, y, "x", color="tab:red")
                continue
            shade = shades[y][x] = family.shades[series.label]
            ink = "w" if shade > 0.6 else "k"
            panel.text(x, y, f"{value:.4g}", ha="center", va="center", fontsize=7, color=ink)
        panel.imshow(shades, cmap="Blues", vmin=-0.15, vmax=1.1, origin="lower", aspect="auto")
        panel.set_xticks(range(len(heat.xs)), heat.xs, rotation=45, ha="right", fontsize=7)
        panel.set_yticks(range(len(heat.ys)), heat.ys, fontsize=7)
        panel.set_title(_plain(heat.title), fontsize=8)
    figure.supxlabel(_plain(first.x), fontsize=9)
    figure.supylabel(_plain(first.y), fontsize=9)
    figure.suptitle(_plain(f"{family.name}: {family.by}, the darker the better"), fontsize=9)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a folder's name may have letters that the font has not
        figure.savefig(path, dpi=120)
    plt.close(figure)


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # between two of them Matplotlib would read mathematics
