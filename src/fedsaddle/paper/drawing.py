"""The paper's figures, in its own form: curves over floats in panels, and grids of samples."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import pyplot as plt

from fedsaddle.report.figures import save
from fedsaddle.report.paired import Interval
from fedsaddle.report.reading import Series
from fedsaddle.report.statistics import curve, frame, short_count

# In the order of the paper's legend; every figure has the same colours.
STYLES = {
    name: (color, style)
    for name, color, style in (
        ("cdma-ada", "tab:red", "-"),
        ("cdma-one", "tab:blue", "-"),
        ("cdma-nc", "tab:green", "-"),
        ("codasca", "tab:purple", "--"),
        ("coda-plus", "tab:brown", "--"),
        ("catalyst-scaffold-s", "tab:pink", "--"),
        ("local-sgda-plus", "tab:gray", ":"),
        ("extra-step", "tab:olive", ":"),
        ("parallel-sgda", "tab:cyan", "-."),
    )
}


class Curves(NamedTuple):
    """One panel of a figure."""

    title: str
    series: Sequence[Series]
    metric: str


def draw_panels(rows: Sequence[Sequence[Curves]], path: Path) -> None:
    """Panels in rows, a mean over the seeds for each algorithm; what was not run is an empty panel."""
    tall, wide = len(rows), max(map(len, rows))
    figure, axes = plt.subplots(
        tall, wide, figsize=(5 * wide, 3.6 * tall + 1), squeeze=False, layout="constrained"
    )
    handles: dict[str, Any] = {}
    for row, panels in zip(rows, axes, strict=True):
        for one, axis in zip(row, panels, strict=False):
            if not one.series:
                axis.text(0.5, 0.5, "not run", ha="center", va="center")
                axis.set_axis_off()
                continue
            handles |= _curves(one, axis)
    if handles:
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=min(5, len(handles)),
            fontsize="small",
        )
    save(figure, path)


def _curves(one: Curves, axis: Any) -> dict[str, Any]:
    shown = {series.label: curve(series, one.metric) for series in one.series}
    high = frame(one.series[0].metrics[one.metric], [own for own in shown.values() if own]).high
    handles = {}
    for label, places in shown.items():
        color, style = STYLES.get(label, (None, "-"))
        xs = [place.floats_up for place in places]
        ys = [min(place.values.mean, high) for place in places]
        name = re.sub(r".*-k(\d+)$", r"K = \1", label)  # in a panel of one algorithm
        (handles[name],) = axis.plot(xs, ys, style, color=color)
    axis.set_title(one.title, fontsize=10)
    axis.set_xlabel("floats received by the server")
    axis.xaxis.set_major_formatter(lambda value, _: short_count(value))
    axis.set_ylabel(one.metric)
    axis.grid(alpha=0.3)
    return handles


def draw_samples(pictures: Mapping[str, bytes], path: Path) -> None:
    """What each algorithm has learnt to make, three side by side."""
    from PIL import Image

    tall = -(-len(pictures) // 3)
    figure, axes = plt.subplots(tall, 3, figsize=(9, 3.3 * tall), squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.set_axis_off()
    for (label, data), axis in zip(pictures.items(), axes.flat, strict=False):
        axis.imshow(Image.open(io.BytesIO(data), formats=("PNG",)), cmap="gray")
        axis.set_title(label, fontsize=9)
    save(figure, path)


def draw_panel(
    axis_name: str,
    metric: str,
    labels: Sequence[str],
    values: Mapping[str, Sequence[tuple[float, Interval]]],
    path: Path,
) -> None:
    """A mean with its interval at each place of an axis, for each algorithm."""
    figure, axis = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    for number, (name, own) in enumerate(values.items()):
        color, style = STYLES.get(name, (None, "-"))
        xs = [at + 0.04 * (number - len(values) / 2) for at in range(len(own))]
        means = [mean for mean, _ in own]
        errors = [[mean - within.low for mean, within in own], [within.high - mean for mean, within in own]]
        axis.errorbar(xs, means, yerr=errors, fmt="o", ls=style, color=color, label=name, capsize=2, ms=3)
    axis.set_xticks(range(len(labels)), labels)
    axis.set_xlabel(axis_name)
    axis.set_ylabel(metric)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    save(figure, path)
