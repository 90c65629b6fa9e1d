"""What it costs that slow or absent devices hold other data: `python -m benchmarks.availability`.

`quadratic`: half of the clients, those with the largest first linear coefficient, fail to answer four times
in five. The mean of the answers is then that of another objective, whose solution x' is known; so is the
stationarity at x', which is predicted and compared with what CDMA-ADA comes to (T11 of the theory's list).
`auc`: the devices that hold the class to be found are slower, and the server goes on with the first 8 of 16.

Both compare the remedies: weights by the inverse propensity, a stratified quorum, waiting for everybody.
Writes availability-NAME.csv and .png to docs/results, or to the folder that is named, and prints a table;
NAME is `quadratic`, or what the experiment is about.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")  # no screen is needed to write a file

import torch
from matplotlib import pyplot as plt
from scipy.stats import t as student
from torch import Tensor

import fedsaddle as fs
from fedsaddle.border.build import load
from fedsaddle.engine import machine
from fedsaddle.engine.course import Row, Stop, course
from fedsaddle.engine.study import Study
from fedsaddle.simulate import ProgressLine
from fedsaddle.strata import strata_of

RATE = 0.8  # at which half of the quadratic's clients fail to answer
SLOWDOWNS = (1.0, 2.0, 4.0)  # of the devices that hold the class to be found
WEIGHTS = ["merge.weights=inverse_propensity"]
MEAN = -1  # in place of a seed: at the mean of all seeds' x
STRATA = ["sampling={strata='positive'}", "quorum.stratified=true"]


class Line(NamedTuple):
    """One seed of one contender, at one evaluation."""

    contender: str
    setting: float  # the slowdown, or the rate of absence
    seed: int
    round: int
    value: float  # stationarity, or the test AUC
    hours: float  # simulated


# --- the quadratic -------------------------------------------------------------------------------------


def absences(problem: fs.Quadratic) -> Tensor:
    """The rate at which each client fails to answer: the half with the larger coefficients, at `RATE`."""
    first = torch.stack([rows[:, 0].mean() for rows in rows_of(problem)])
    rates = torch.zeros(len(first), dtype=torch.float64)
    rates[first.argsort(descending=True)[: len(first) // 2]] = RATE
    return rates


def rows_of(problem: fs.Quadratic) -> Sequence[Tensor]:
    federation = problem.federation
    rows: Sequence[Tensor] = federation.rows["linear"].split(federation.sizes.tolist())
    return rows


def solved(problem: fs.Quadratic, weights: Tensor) -> fs.Pair:
    """The saddle of the quadratic in which clients have these weights."""
    own, share = problem.federation.own, weights / weights.sum()
    A, B, C = (torch.einsum("i,ijk->jk", share, own[name]) for name in "ABC")
    linear = share @ torch.stack([rows.mean(0) for rows in rows_of(problem)])
    system = torch.cat([torch.cat([A, B], 1), torch.cat([B.mT, -C], 1)])
    z = torch.linalg.solve(system, -linear)
    return fs.Pair(z[: problem.dim_x], z[problem.dim_x :])


def predicted(problem: fs.Quadratic, rates: Tensor) -> float:
    """|grad Phi(x')|^2, x' being the solution where clients weigh what they answer."""
    return float(problem.grad_phi(solved(problem, 1 - rates).x).square().sum())


def quadratic(given: argparse.Namespace) -> list[Line]:
    problem = fs.Quadratic(clients=given.clients)
    rates = absences(problem)
    fleet = fs.Dropout(tuple(rates.tolist()))
    ada = fs.CDMAADA(c_eta=0.05, c_gamma=0.2, c_alpha=1.0, rho=1 / 3, K=5)
    inverse = fs.Merge(weights="inverse_propensity")
    contenders: dict[str, tuple[object, fs.Merge, object]] = {
        "everybody answers": (ada, fs.Merge(), fs.Everybody()),
        "mean of the answers": (ada, fs.Merge(), fleet),
        "weights, at most 2": (ada, fs.Merge(weights="inverse_propensity", most_weight=2.0), fleet),
        "weights, at most 10": (ada, inverse, fleet),
        "CODASCA, mean of the answers": (fs.CODASCA(eta_l=0.02, K=5), fs.Merge(), fleet),
    }
    lines = []
    for contender, (algorithm, merge, who) in contenders.items():
        out = fs.simulate(
            problem,
            algorithm,  # type: ignore[arg-type]
            rounds=given.rounds or 2500,
            evaluate_every=max(1, (given.rounds or 2500) // 25),
            seeds=range(given.seeds),
            quorum=fs.Quorum(invite=8),
            fleet=who,  # type: ignore[arg-type]
            merge=merge,
            progress=False,
            watch=ProgressLine(given.rounds or 2500, f"{contender}: "),
        )
        lines += [_line(contender, RATE, row, "stationarity") for row in out.rows]
        mean = torch.stack([z.x for z in out.z]).mean(0)
        lines.append(lines[-1]._replace(seed=MEAN, value=float(problem.grad_phi(mean).square().sum())))
    print(f"predicted for the mean of the answers: {predicted(problem, rates):.5f}")
    return lines


def _line(contender: str, setting: float, row: Row, metric: str) -> Line:
    hours = row.time_simulated / 3600
    return Line(contender, setting, row.seed, row.round, row.metrics[metric], hours)


# --- AUC -------------------------------------------------------------------------------------------------


def auc(given: argparse.Namespace) -> list[Line]:
    first = ["quorum.enough=8", "quorum.minimum=4"]
    contenders = {
        "wait for all 16": [],
        "first 8 of 16": first,
        "first 8, weights": [*first, *WEIGHTS],
        "first 8, stratified": [*first, *STRATA],
    }
    lines = []
    for slowdown in given.slowdowns:
        fleet = f"fleet={{model='latency', slow={{positive=[0.0, 1.0]}}, slowdown={slowdown}}}"
        for contender, settings in contenders.items():
            plan = load(
                given.experiment,
                algorithms=[given.algorithm],
                rounds=given.rounds,
                seeds=f"0-{given.seeds - 1}",
                device=given.device,
                settings=[fleet, f"algorithms.{given.algorithm}.invite=16", *settings],
            )
            machine.prepare(plan.resolved["threads"], plan.resolved["tf32"])
            told = ProgressLine(plan.rounds, f"slowdown {slowdown:g}, {contender}: ")
            for stop in course(plan.studies[given.algorithm], plan.rounds, plan.evaluate_every):
                told(stop)
                lines += [_line(contender, slowdown, row, "test_auc") for row in stop.rows]
            told.close()
            if stop.lanes.attendance is not None:
                print(f"slowdown {slowdown:g}: {holders_told(plan.studies[given.algorithm], stop)}")
    return lines


def holders_told(study: Study, stop: Stop) -> str:
    """How much those who hold the class to be found had of the merges."""
    strata = strata_of(study.problem.federation, "positive")
    attendance = stop.lanes.attendance
    assert attendance is not None
    invited, used = (float(counts[..., strata == 1].sum()) for counts in attendance)
    return f"holders of positives had {used / invited:.1%} of what they would have had if all had answered"


# --- what is told ----------------------------------------------------------------------------------------


def ends(lines: Sequence[Line]) -> dict[tuple[float, str], list[Line]]:
    """The last evaluation of each seed, by setting and contender."""
    last: dict[tuple[float, str, int], Line] = {}
    for line in lines:
        last[line.setting, line.contender, line.seed] = line
    found: dict[tuple[float, str], list[Line]] = {}
    for (setting, contender, seed), line in last.items():
        if seed != MEAN:
            found.setdefault((setting, contender), []).append(line)
    return found


def interval(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of their mean."""
    if len(values) < 2:
        return float("nan")
    factor = float(student.ppf(0.975, len(values) - 1))
    return factor * statistics.stdev(values) / len(values) ** 0.5


def table(lines: Sequence[Line], digits: int) -> str:
    """Means over the seeds with 95 % intervals, in Markdown."""
    at_mean = {(line.setting, line.contender): line.value for line in lines if line.seed == MEAN}
    parted = " bias | variance |" if at_mean else ""
    out = [
        f"| setting | contender | mean |{parted} worst and best | simulated hours |",
        "|---|---|---|" + ("---|---|" if parted else "") + "---|---|",
    ]
    for place, own in ends(lines).items():
        values = [line.value for line in own]
        mean, hours = statistics.fmean(values), statistics.fmean(line.hours for line in own)
        cells = [f"{place[0]:g}", place[1], f"{mean:.{digits}f} ± {interval(values):.{digits}f}"]
        if parted:
            bias = squared_bias(mean, at_mean[place], len(values))
            cells += [f"{bias:.{digits}f}", f"{mean - bias:.{digits}f}"]
        cells += [f"{min(values):.{digits}f}, {max(values):.{digits}f}", f"{hours:.2f}"]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def squared_bias(mean: float, at_mean: float, seeds: int) -> float:
    """|E grad Phi(x)|^2, of the mean of the seeds' |grad Phi(x)|^2 and that at their mean x.

    As grad Phi of a quadratic is linear, the first is bias + variance, the second bias + variance / seeds.
    """
    return (seeds * at_mean - mean) / (seeds - 1) if seeds > 1 else float("nan")


def draw(lines: Sequence[Line], path: Path, guide: Mapping[str, float]) -> None:
    """The quadratic: stationarity by rounds. AUC: where it ends and how long it takes, by slowdown."""
    lines = [line for line in lines if line.seed != MEAN]
    settings = sorted({line.setting for line in lines})
    by_round = len(settings) == 1
    figure, places = plt.subplots(1, 1 if by_round else 2, figsize=(9, 3.8), layout="constrained")
    axes = [places] if by_round else list(places)
    for number, contender in enumerate(dict.fromkeys(line.contender for line in lines)):
        own = [line for line in lines if line.contender == contender]
        if by_round:
            _curve(
                axes[0],
                number,
                contender,
                {at: [o.value for o in own if o.round == at] for at in _rounds(own)},
            )
            continue
        last = {at: ends(own)[at, contender] for at in settings}
        _curve(axes[0], number, contender, {at: [line.value for line in there] for at, there in last.items()})
        _curve(axes[1], number, contender, {at: [line.hours for line in there] for at, there in last.items()})
    for name, value in guide.items():
        axes[0].axhline(value, color="black", linestyle=":", linewidth=1, label=name)
    if by_round:
        axes[0].set(yscale="log", xlabel="round", ylabel="stationarity")
    else:
        axes[0].set(xlabel="how much slower the positives' devices are", ylabel="test AUC")
        axes[1].set(xlabel="how much slower the positives' devices are", ylabel="simulated hours")
    for place in axes:
        place.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _rounds(lines: Sequence[Line]) -> list[int]:
    return sorted({line.round for line in lines})


def _curve(place: plt.Axes, number: int, label: str, values: Mapping[float, Sequence[float]]) -> None:
    """Means, with a band of the 95 % interval."""
    means = [statistics.fmean(own) for own in values.values()]
    widths = [interval(own) for own in values.values()]
    width = max(1.2, 4 - number)  # so that of lines that lie on each other all are seen
    (drawn,) = place.plot(list(values), means, "o-", markersize=3, linewidth=width, label=label)
    low, high = zip(*((mean - w, mean + w) for mean, w in zip(means, widths, strict=True)), strict=True)
    place.fill_between(list(values), low, high, alpha=0.15, color=drawn.get_color())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What it costs that slow devices hold other data.")
    parser.add_argument("task", choices=("quadratic", "auc"))
    parser.add_argument("--experiment", default="auc-digits")
    parser.add_argument("--algorithm", default="cdma-ada")
    parser.add_argument("--clients", type=int, default=200, help="of the quadratic")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--slowdowns", type=float, nargs="+", default=SLOWDOWNS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    began, spent = time.monotonic(), time.process_time()
    lines = quadratic(given) if given.task == "quadratic" else auc(given)
    task = given.task if given.task == "quadratic" else given.experiment.removeprefix("auc-")
    name = f"availability-{task}"
    with (given.out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Line._fields)
        writer.writerows(lines)
    guide = {}
    if given.task == "quadratic":
        problem = fs.Quadratic(clients=given.clients)
        guide = {"predicted for the mean of the answers": predicted(problem, absences(problem))}
    draw(lines, given.out / f"{name}.png", guide)
    print(table(lines, 5 if given.task == "quadratic" else 4))
    seconds, processor = time.monotonic() - began, time.process_time() - spent
    print(f"{seconds:.0f} s, {processor:.0f} s of processor time", file=sys.stderr)


if __name__ == "__main__":
    main()
