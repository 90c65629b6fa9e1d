"""Why published steps collapse on AUC: `python -m benchmarks.collapse --device cuda`.

CDMA-ONE and CDMA-ADA with the steps of the paper's Table 3, three kinds of cohorts, three scorings, all
seeds as lanes. What counts as collapsed, what is asked and how it is judged stand below, before any run. Each
of the nine places of the table is a run folder below --runs: stopped by Ctrl-C or killed, the same command
goes on. Writes NAME.csv and the page NAME.md, whose every sentence follows from the data, to --out. On a CPU
take `--experiment auc-digits`, whose small network has no ReLU to leave out.
"""

from __future__ import annotations

import argparse
import csv
import math
import platform
import shlex
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fedsaddle as fs
from benchmarks import provenance
from fedsaddle.border.files import tables_of
from fedsaddle.errors import BadInput
from fedsaddle.report.comparing import holm
from fedsaddle.report.spent import Spent

COHORTS = ("independent", "invited", "answered")
SCORINGS = {"release": "ReLU", "softmax": "no ReLU", "sigmoid": "sigmoid"}
MEANT = {
    "release": "the release's, the second of ten softmax outputs after a ReLU on LeNet's",
    "softmax": "the second of ten softmax outputs",
    "sigmoid": "of one output",
}
STEPS = {  # Table 3, AUC on MNIST; K = 12, B = 10, S^ = 8
    "cdma-one": {"eta": 0.3162, "gamma": 1.0, "invite": 8},
    "cdma-ada": {"c_eta": 0.7, "c_gamma": 0.3162, "c_alpha": 5.0, "rho": 0.2, "invite": 8},
}

FROZEN = (
    1e-5  # the largest test score less the smallest, after the last round: below it, nothing is told apart
)
DEAD = 0.6  # the test AUC after the last round: below it, the authors' release gives a run up
FROM, BY = (
    0.9,
    0.08,
)  # a crash: from above the one the test AUC falls by more than the other in one evaluation
LEAST_SEEDS, LEAST_ROUNDS = 20, 400  # with fewer nothing is judged
LEVEL = 0.05  # of the p-values, after Holm's rule over all questions
Z = 1.959964  # of intervals that hold 95 %


class Line(NamedTuple):
    """One seed of one place in the table."""

    cohorts: str
    scoring: str
    algorithm: str
    seed: int
    rounds: int
    test_auc: float  # at the last evaluation
    best_auc: float
    spread: float  # of the test scores at the last finite point
    crashes: int
    finite: bool

    @property
    def frozen(self) -> bool:
        return self.spread < FROZEN

    @property
    def dead(self) -> bool:
        return self.test_auc < DEAD

    @property
    def collapsed(self) -> bool:
        return self.frozen or self.dead or not self.finite


class Question(NamedTuple):
    """Does the first of two places collapse less often, or more often, than the second?"""

    words: str
    one: tuple[str, str]  # cohorts, scoring
    other: tuple[str, str]


QUESTIONS = [
    *(
        Question(
            f"`{one}` rather than `independent` cohorts, {words}", (one, scoring), ("independent", scoring)
        )
        for one in ("answered", "invited")
        for scoring, words in SCORINGS.items()
    ),
    *(
        Question(f"no ReLU rather than ReLU, `{one}` cohorts", (one, "softmax"), (one, "release"))
        for one in COHORTS
    ),
]


# --- measuring -------------------------------------------------------------------------------------------


def folder_of(given: argparse.Namespace, cohorts: str, scoring: str) -> Path:
    return Path(given.runs / f"{given.experiment}-{cohorts}-{scoring}")


def measure(given: argparse.Namespace, cohorts: str, scoring: str) -> list[Line]:
    """All seeds of both algorithms in one place, in a run folder that may be there already."""
    folder = folder_of(given, cohorts, scoring)
    steps = {f"algorithms.{name}.{key}": value for name, own in STEPS.items() for key, value in own.items()}
    outcome = fs.run(
        given.experiment,
        list(STEPS),
        rounds=given.rounds,
        seeds=given.seeds,
        evaluate_every=10,
        batch=10,
        device=given.device,
        settings={"K": 12, "cohorts": cohorts, "problem.scoring": scoring, **steps},
        out=folder,
        resume=(folder / "checkpoint.json").exists(),
        report=False,
        tensorboard=False,
    )
    return lines_of(outcome, cohorts, scoring, given.device)


def lines_of(outcome: fs.Outcome, cohorts: str, scoring: str, device: str) -> list[Line]:
    problem: Any = outcome.problem
    test = problem.test_rows.to(torch.device(device)).rows["input"]
    found = []
    for lane, (name, seed, z) in enumerate(zip(outcome.names, outcome.seeds, outcome.z, strict=True)):
        rows = [row for row in outcome.rows if row.lane == lane]
        curve = [row.metrics["test_auc"] for row in rows]
        scores = problem.all_scores(z.x.to(device), test)
        found.append(
            Line(
                cohorts,
                scoring,
                name,
                seed,
                rows[-1].round,
                curve[-1],
                max(curve),
                float(scores.max() - scores.min()),
                sum(then > FROM and then - now > BY for then, now in pairwise(curve)),
                outcome.alive[lane],
            )
        )
    return found


# --- judging ---------------------------------------------------------------------------------------------


def wilson(count: int, of: int) -> tuple[float, float]:
    """Wilson's interval for a rate: 95 %."""
    if of == 0:
        return 0.0, 1.0
    rate, more = count / of, Z**2 / of
    middle, half = rate + more / 2, Z * math.sqrt(rate * (1 - rate) / of + more / (4 * of))
    return max(0.0, (middle - half) / (1 + more)), min(1.0, (middle + half) / (1 + more))


def sign_flips(differences: Sequence[int]) -> float:
    """How often a sum as far from zero comes about if each sign is a coin's: exactly, two-sided."""
    sums = Counter({0: 1})
    for one in differences:
        turned: Counter[int] = Counter()
        for total, ways in sums.items():
            turned[total + one] += ways
            turned[total - one] += ways
        sums = turned
    far = abs(sum(differences))
    return sum(ways for total, ways in sums.items() if abs(total) >= far) / sums.total()


def differences(lines: Sequence[Line], question: Question) -> list[int]:
    """For each seed, how many more of its algorithms collapse in the first place than in the second."""
    found: Counter[int] = Counter({line.seed: 0 for line in lines})
    for line in lines:
        where = (line.cohorts, line.scoring)
        found[line.seed] += line.collapsed * ((where == question.one) - (where == question.other))
    return [found[seed] for seed in sorted(found)]


def is_whole(lines: Sequence[Line]) -> bool:
    """Whether there is enough to judge by."""
    seeds = Counter((line.cohorts, line.scoring, line.algorithm) for line in lines)
    long = all(line.rounds >= LEAST_ROUNDS or not line.finite for line in lines)
    return bool(lines) and min(seeds.values()) >= LEAST_SEEDS and long


def answers(lines: Sequence[Line]) -> list[str]:
    """What is said to each question whose places were measured."""
    there = {(line.cohorts, line.scoring) for line in lines}
    asked = [question for question in QUESTIONS if {question.one, question.other} <= there]
    apart = [differences(lines, question) for question in asked]
    found = []
    for question, own, p in zip(asked, apart, holm([sign_flips(own) for own in apart]), strict=True):
        counts = [
            sum(line.collapsed for line in lines if (line.cohorts, line.scoring) == where)
            for where in (question.one, question.other)
        ]
        verdict = "not told apart"
        if p < LEVEL:
            verdict = "**fewer collapse**" if sum(own) < 0 else "**more collapse**"
        found.append(f"| {question.words} | {counts[0]} for {counts[1]} | {p:.2g} | {verdict} |")
    return found


def reading(lines: Sequence[Line]) -> str:
    """What explains the collapse, by counts alone: the rule is this function."""
    fell = {(line.cohorts, line.scoring) for line in lines if line.collapsed}
    there = {(line.cohorts, line.scoring) for line in lines}
    if len(there) < len(COHORTS) * len(SCORINGS):
        return "What explains the collapse is judged only where all nine places are measured."
    if not fell:
        return "No seed collapsed anywhere: there is nothing to explain."
    matched = {where for where in fell if where[0] == "answered"}
    smooth = {where for where in fell if where[1] != "release"}
    if not matched:
        return (
            "**Cohorts explain it**: where those who answered walk, no seed collapsed, whatever the scoring."
        )
    if not smooth:
        return "**The ReLU explains it**: without it no seed collapsed, whatever the cohorts."
    if not matched & smooth:
        return (
            "**Cohorts and the ReLU explain it together**: with matched cohorts and no ReLU none collapsed."
        )
    return (
        "**Neither cohorts nor the ReLU explain all of it**: with matched cohorts and without the ReLU seeds "
        "collapsed too, so the steps themselves are too long."
    )


# --- writing ---------------------------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> list[str]:
    """A row for each place and algorithm that was measured."""
    found = [
        "| algorithm | scoring | cohorts | collapsed, 95 % | frozen | AUC < 0.6 | not finite | crashed | "
        "test AUC: median, worst, best |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in STEPS:
        for scoring, words in SCORINGS.items():
            for cohorts in COHORTS:
                own = [line for line in lines if line[:3] == (cohorts, scoring, name)]
                if not own:
                    continue
                count, auc = sum(line.collapsed for line in own), [line.test_auc for line in own]
                rate = "{:.0%} to {:.0%}".format(*wilson(count, len(own)))
                tallies = [
                    sum(line.frozen for line in own),
                    sum(line.dead for line in own),
                    sum(not line.finite for line in own),
                    sum(line.crashes > 0 for line in own),
                ]
                told = " | ".join(map(str, tallies))
                found.append(
                    f"| {name} | {words} | {cohorts} | {count} of {len(own)} ({rate}) | {told} "
                    f"| {statistics.median(auc):.3f}, {min(auc):.3f}, {max(auc):.3f} |"
                )
    return found


def page(lines: Sequence[Line], given: argparse.Namespace, command: str, machine: str, spent: Spent) -> str:
    """The page of results."""
    seeds = len({line.seed for line in lines})
    rounds = max((line.rounds for line in lines), default=0)
    there = {line.scoring for line in lines}
    scorings = "; ".join(f"{SCORINGS[key]}, {told}" for key, told in MEANT.items() if key in there)
    judged = [
        f"**Nothing is judged**: that takes {LEAST_SEEDS} seeds and {LEAST_ROUNDS} rounds, and this was "
        f"{seeds} and {rounds}. It shows that the command works.",
    ]
    if is_whole(lines):
        judged = [
            f"Each question is asked of both algorithms together. The units are the {seeds} seeds: for each, "
            "how many more of its runs collapse in the one place than in the other, tested by all flips of "
            "signs; p is after Holm's rule.",
            "",
            "| question | collapsed | p | answer |",
            "|---|---|---|---|",
            *answers(lines),
            "",
            reading(lines),
        ]
    parts = [
        f"# Which seeds collapse: cohorts and scorings on `{given.experiment}`",
        "",
        f"Measured at commit {provenance.commits(spent, given)} by:",
        "",
        f"    {command}",
        "",
        "CDMA-ONE and CDMA-ADA with the steps that the paper's Table 3 has for AUC on MNIST (K = 12, B = 10, "
        f"S^ = 8, the paper's fleet), {seeds} seeds, {rounds} rounds. {machine}, "
        f"{spent.seconds:.0f} seconds. All seeds: [{given.name}.csv]({given.name}.csv).",
        f"[Cohorts](../experiments.md#cohorts) are of three kinds. Scorings: {scorings}.",
        "",
        "Fixed before the run, in `benchmarks/collapse.py`: a seed has **collapsed** if after the last round "
        f"it is frozen (all test scores within {FROZEN:g}), its test AUC is below {DEAD:g}, or it is no",
        "longer finite. It has **crashed** if from one evaluation to the next, ten rounds later, the AUC "
        f"fell by more than {BY:g} from above {FROM:g}. Intervals are Wilson's.",
        "",
        *table(lines),
        "",
        *judged,
        "",
    ]
    return "\n".join(parts)


def write(lines: Sequence[Line], given: argparse.Namespace, command: str) -> None:
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / f"{given.name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Line._fields, "frozen", "dead", "collapsed"])
        for line in lines:
            values = [f"{value:.6g}" if isinstance(value, float) else value for value in line]
            writer.writerow([*values, line.frozen, line.dead, line.collapsed])
    gpu = torch.device(given.device).type == "cuda"
    machine = torch.cuda.get_device_name() if gpu else f"A CPU ({platform.machine()})"
    told = f"{machine}, torch {torch.__version__.split('+')[0]}, float32"
    places = dict.fromkeys((line.cohorts, line.scoring) for line in lines)
    spent = provenance.spent_in(folder_of(given, *place) for place in places)
    (given.out / f"{given.name}.md").write_text(page(lines, given, command, told, spent))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collapse", description="Which seeds collapse, by cohorts and scoring."
    )
    parser.add_argument("--experiment", default="auc-mnist", help="auc-mnist, or auc-digits on a CPU")
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help="with fewer nothing is judged")
    parser.add_argument("--seeds", default=f"0-{LEAST_SEEDS - 1}", help="such as 0-19: of fewer neither")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--runs", type=Path, default=Path("runs/collapse"), help="where runs are, and go on")
    parser.add_argument("--name", default="collapse", help="of the page and the table that are written")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="where to")
    provenance.add_commit(parser)
    given = parser.parse_args(arguments)
    provenance.check_commit(parser, given)
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join([".venv/bin/python", "-m", "benchmarks.collapse", *words])
    lines: list[Line] = []
    try:
        problem = tables_of(given.experiment)["problem"]
        if problem["name"] != "auc":
            raise BadInput(f"--experiment must be one of auc, such as auc-mnist, got '{given.experiment}'")
        # Of LeNet alone the release has a ReLU on the outputs: elsewhere its scoring is the one without.
        has_relu = problem.get("network") == "lenet5"
        for scoring in SCORINGS if has_relu else ("softmax", "sigmoid"):
            for cohorts in COHORTS:
                lines += measure(given, cohorts, scoring)
                fell = sum(line.collapsed for line in lines if line[:2] == (cohorts, scoring))
                print(f"{cohorts}, {SCORINGS[scoring]}: {fell} collapsed", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        raise SystemExit(130) from None
    except BadInput as error:
        parser.error(str(error))
    finally:
        if lines:  # what is there already may be of a whole run
            write(lines, given, command)
    print("\n".join(table(lines)))


if __name__ == "__main__":
    main()
