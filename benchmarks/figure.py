"""The table as a picture: how much faster than the plain loop, and how the cost grows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen is needed to write a file

from matplotlib import pyplot as plt

COLOURS = {"engine": "tab:blue", "loop": "tab:gray", "pfl": "tab:orange", "flower": "tab:green"}


def draw(lines: Sequence[Any], path: Path, device: str) -> None:
    """Bars for the workloads with a name, and lines for those that are a size, such as clients=500."""
    bars = [line for line in lines if "=" not in line.workload and isinstance(line.ratio_to_loop, float)]
    sweeps: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for line in lines:
        what, _, size = line.workload.partition("=")
        if size and isinstance(line.seconds_per_round, float):
            points = sweeps.setdefault(what, {}).setdefault(line.contender, [])
            points.append((int(size), line.seconds_per_round))
    figure, panels = plt.subplots(
        1,
        1 + len(sweeps),
        figsize=(6 + 3.2 * len(sweeps), 1.5 + 0.22 * max(12, len(bars))),
        squeeze=False,
        layout="constrained",
        width_ratios=[2] + [1] * len(sweeps),
    )
    first, *rest = panels[0]
    names = [
        f"{line.workload}: {line.contender}{f', {line.lanes} lanes' if line.lanes > 1 else ''}"
        for line in bars
    ]
    first.barh(
        range(len(bars)),
        [line.ratio_to_loop for line in bars],
        color=[COLOURS[line.contender] for line in bars],
    )
    first.set_yticks(range(len(bars)), names, fontsize="small")
    first.invert_yaxis()
    first.axvline(1, color="black", linewidth=0.8)
    first.set_xscale("log")
    first.set_xlabel(f"times as fast as the plain loop ({device})")
    for panel, (what, contenders) in zip(rest, sweeps.items(), strict=True):
        for contender, points in contenders.items():
            panel.plot(*zip(*points, strict=True), "o-", color=COLOURS[contender], label=contender)
        panel.set_xscale("log")
        panel.set_yscale("log")
        seconds = [second for points in contenders.values() for _, second in points]
        panel.set_ylim(min(seconds) / 3, 3 * max(seconds))  # so that noise does not look like growth
        sizes = sorted({size for points in contenders.values() for size, _ in points})
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
        panel.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        panel.set_xlabel(what)
        panel.set_ylabel("seconds a round")
        panel.legend(fontsize="small")
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)
