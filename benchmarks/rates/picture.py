"""An experiment as a picture: its curves on logarithmic axes, with the bound's slope."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen is needed to write a file

from matplotlib import pyplot as plt

from benchmarks.rates.experiments import Experiment
from benchmarks.rates.verdicts import Curves

SAID = {
    "Y": "mean of |grad Phi|$^2$ over t < T",
    "late": "mean of |grad Phi|$^2$ over the last quarter",
    "last": "|grad Phi|$^2$ at the end",
    "reached": "rounds to the goal",
}


def draw(path: Path, experiment: Experiment, curves: Curves) -> None:
    figure, panel = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for number, (curve, places) in enumerate(curves.items()):
        xs = sorted(x for x in places if x > 0)
        rows = [places[x].values(experiment.quantity) for x in xs]
        means = [sum(row) / len(row) for row in rows]
        colour, mark = f"C{number % 10}", "osv^D"[number // 10 % 5]
        panel.plot(xs, means, f"{mark}-", color=colour, label=curve, markersize=4)
        if all(math.isfinite(mean) and mean > 0 for mean in means) and len(rows[0]) > 1:
            panel.fill_between(
                xs, [min(row) for row in rows], [max(row) for row in rows], color=colour, alpha=0.1
            )
        bound = next((one for key, one in experiment.bounds.items() if key in curve), None)
        if bound is not None and means and math.isfinite(means[0]):
            panel.plot(xs, [means[0] * (x / xs[0]) ** bound[0] for x in xs], ":", color=colour, linewidth=1)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel(experiment.axis)
    panel.set_ylabel(SAID[experiment.quantity])
    panel.grid(alpha=0.3)
    panel.legend(fontsize="x-small", ncols=1 + len(curves) // 8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
