"""The runs and sweeps behind the exhibits: what each is, after which, and how many rounds of lanes it has."""

from __future__ import annotations

import copy
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from fedsaddle.border.files import parse_seeds, read_tables
from fedsaddle.border.schema import Experiment
from fedsaddle.errors import BadInput
from fedsaddle.paper.forms import Form, in_little
from fedsaddle.paper.grids import CELEBA_K, GRIDS, Choices, refined
from fedsaddle.sweep import rungs

# How a round's second cohort comes about; the first is the paper's own, two that are drawn independently.
COHORTS: tuple[str, ...] = typing.get_args(Experiment.model_fields["cohorts"].annotation)
TWO_PHASES = ("cdma-ada", "cdma-one", "catalyst-scaffold-s")  # who has a second cohort
VALIDATION_SHARE = 0.1  # of the training rows, from the clients, while settings are chosen
FIRST_TUNING_SEED = 1000  # far from the fresh ones, which begin at 0


@dataclass(frozen=True)
class Contest:
    """A task of the paper that algorithms are compared on."""

    name: str  # of the shipped experiment, unless `base` is another
    kind: str  # auc, robust or gan
    data: str  # as a page says it
    by: str  # the metric of validation rows that settings are chosen by
    metrics: tuple[str, str]  # what the paper shows, and what is told beside it
    measure: str = "final"  # of the first: at the end, or the best on the way
    cohorts: tuple[str, ...] = COHORTS
    base: str = ""
    problem: Mapping[str, Any] = field(default_factory=dict)  # in place of the base's
    positive: int = 0  # the digit that stands in for its class in little

    @property
    def experiment(self) -> dict[str, Any]:
        return copy.deepcopy(read_tables(self.base or self.name)[0])


# Where the appendix says that a rho below the theory's does better in some cases.
MEMORY = ("auc-mnist", "auc-cifar10", "robust-mnist", "robust-fashion", "gan-mnist", "gan-fashion")

_AUC = ("auc", "validation_auc", ("test_auc", "train_auc"))
_ROBUST = ("robust", "validation_robust_loss", ("robust_loss", "train_robust_loss"))
_GAN = ("gan", "validation_frechet", ("inception_score", "frechet"))


def _contest(name: str, data: str, own: tuple[str, str, tuple[str, str]], **more: Any) -> Contest:
    kind, by, metrics = own
    return Contest(name, kind, data, by, metrics, **more)


CONTESTS = {
    one.name: one
    for one in (
        _contest("auc-mnist", "MNIST", _AUC),
        _contest("auc-cifar10", "CIFAR-10", _AUC, positive=1),
        _contest("robust-mnist", "MNIST", _ROBUST),
        _contest("robust-fashion", "Fashion-MNIST", _ROBUST),
        _contest("gan-mnist", "MNIST", _GAN, measure="best"),
        _contest("gan-fashion", "Fashion-MNIST", _GAN, measure="best"),
        _contest(
            "gan-celeba",
            "CelebA",
            ("gan", "validation_fid", ("fid", "fid")),
            measure="best",
            cohorts=COHORTS[:1],
        ),
        _contest("gan-mnist-k", "MNIST", _GAN, measure="best", cohorts=COHORTS[:1]),
        _contest("gan-fashion-k", "Fashion-MNIST", _GAN, measure="best", cohorts=COHORTS[:1]),
        _contest(
            "auc-census",
            "the census",
            _AUC,
            base="auc-mnist",
            cohorts=COHORTS[:1],
            positive=8,
            # 199,523 people: MNIST has too few rows for 100,000 clients.
            problem={
                "name": "auc",
                "dataset": "census",
                "clients": 500,
                "partition": "label",
                "network": "logistic",
                "positive": ">50K",
            },
        ),
    )
}


@dataclass(frozen=True, eq=False)
class Trial:
    """A run, or a sweep, in a folder of its own."""

    name: str  # the folder, below that of all
    contest: Contest
    tables: dict[str, Any]  # the experiment; of a run of winners, with the published settings in their place
    sweeps: bool = False
    after: str = ""  # the sweep whose winners it runs
    by: str = ""  # the key that tells its entries apart; of each value the winner is run

    @property
    def lane_rounds(self) -> int:
        """How many rounds of one lane it has."""
        tables = self.tables
        rounds, families = int(tables["rounds"]), len(tables["algorithms"])
        seeds = len(parse_seeds(tables["seeds"]))
        if not self.sweeps:
            return families * seeds * rounds
        budget, halving = tables["sweep"]["budget"], tables["sweep"]["halving"]
        keep = rungs(budget, halving, rounds, tables["evaluate_every"]) if halving else {}
        ends, lanes = [0, *keep, rounds], [budget, *keep.values()]
        one = sum(many * (end - start) for many, (start, end) in zip(lanes, pairwise(ends), strict=True))
        return int(families * seeds * one)


class Spot(typing.NamedTuple):
    """One place on a panel's axis: what it is called, and what it changes in the experiment."""

    label: str
    change: dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """What the paper lacks: how a contest's winners fare along one axis."""

    name: str
    title: str
    axis: str
    contest: str
    spots: tuple[Spot, ...]


PANEL_ALGORITHMS = ("cdma-ada", "cdma-one", "cdma-nc", "parallel-sgda", "codasca")
PANELS = {
    one.name: one
    for one in (
        Panel(
            "dropout",
            "clients that fail to answer",
            "rate of dropout",
            "auc-mnist",
            tuple(
                Spot(f"{rate:g}", {"fleet": {"model": "dropout", "rate": rate}})
                for rate in (0.0, 0.7, 0.3, 0.1, 0.5)
            ),
        ),
        Panel(
            "heterogeneity",
            "from one class a client to clients that are alike",
            "partition",
            "auc-mnist",
            (
                Spot("one-class", {}),
                Spot("iid", {"problem": {"partition": "iid"}}),
                *(
                    Spot(f"dirichlet-{alpha:g}", {"problem": {"partition": "dirichlet", "alpha": alpha}})
                    for alpha in (0.3, 0.1, 1.0, 10.0)
                ),
            ),
        ),
        Panel(
            "clients",
            "from 50 to 100,000 clients",
            "clients",
            "auc-census",
            tuple(
                Spot(f"{count}", {"problem": {"clients": count}})
                for count in (50, 100_000, 500, 1_000, 5_000, 50_000)
            ),
        ),
        Panel(
            "sizes",
            "unequal clients: the k-th largest has 1 / k^s of the largest's rows",
            "s",
            "auc-mnist",
            (
                Spot("0", {}),
                *(Spot(f"{s:g}", {"problem": {"partition": "zipf", "alpha": s}}) for s in (1.5, 1.0, 0.5)),
            ),
        ),
        Panel(
            "cohorts",
            "clients invited a round: so many by who sends two vectors, twice as many by who sends one",
            "invited, of two vectors",
            "auc-mnist",
            tuple(Spot(f"{count}", {"invite": count}) for count in (4, 128, 8, 32, 16, 64)),
        ),
    )
}


# --- what runs -------------------------------------------------------------------------------------------


def data_of(contest: Contest, form: Form) -> str:
    """What a contest is about, as a page says it."""
    return f"digits, for {contest.data}" if form.stand_in else contest.data


def missing(contest: Contest, form: Form) -> str:
    """Why a contest cannot be had; nothing, if it can."""
    if contest.name != "gan-celeba":
        return ""
    if form.stand_in:
        return "nothing small stands in for CelebA's faces"
    from fedsaddle.data.celeba import folder_of

    try:
        folder_of("")
    except BadInput as error:
        return f"CelebA is not here: {error}"
    return ""


def trials(form: Form) -> dict[str, Trial]:
    """Everything that runs, each after what it depends on; what is cheap and the paper's own first."""
    found: dict[str, Trial] = {}
    for contest in CONTESTS.values():
        if not missing(contest, form):
            for cohorts in contest.cohorts:
                found |= {one.name: one for one in _of_contest(contest, cohorts, form)}
    found["rates"] = Trial("rates", _RATES, _of_rates(form))
    for panel in PANELS.values():
        for spot in spots_of(panel, form):
            one = _of_panel(panel, spot, form)
            found[one.name] = one
    return {one.name: one for one in sorted(found.values(), key=_turn)}


def _turn(trial: Trial) -> int:
    if trial.contest.name == "rates":
        return 0
    if trial.tables["cohorts"] != COHORTS[0]:
        return 4
    if trial.name.startswith("panels/"):
        return 2
    return 3 if trial.contest.kind == "gan" else 1


def spots_of(panel: Panel, form: Form) -> list[Spot]:
    """The places of a panel's axis that a form goes to: digits have 1,437 rows, 50 clients hold them."""

    def fits(spot: Spot) -> bool:
        clients, invite = spot.change.get("problem", {}).get("clients", 0), spot.change.get("invite", 0)
        return not form.stand_in or (clients <= 1000 and invite <= 16)

    return [spot for spot in panel.spots if fits(spot)][: form.spots]


def panel_trial(panel: Panel, spot: Spot) -> str:
    """The run of one place."""
    return f"panels/{panel.name}/{spot.label}"


def memory_of(contest: str) -> str:
    """The run of CDMA-ADA's best setting for each rho, with fresh seeds."""
    return f"{contest}/{COHORTS[0]}/memory"


def winners_of(contest: str, cohorts: str = COHORTS[0]) -> str:
    """The sweep that finds a contest's winners."""
    return f"{contest}/{cohorts}/tune"


def _base(contest: Contest, form: Form) -> dict[str, Any]:
    """The contest in a form, with the published settings of all its algorithms."""
    tables = contest.experiment
    kind = contest.kind
    if contest.problem:
        tables["problem"] = dict(contest.problem)
    tables.pop("sweep", None)
    if form.stand_in:
        tables = in_little(tables, kind, contest.positive)
    tables |= {"description": "", "evaluate_every": form.evaluate_every[kind]}
    if kind in form.rounds:
        tables["rounds"] = form.rounds[kind]
    return tables


def _rule(name: str, table: Mapping[str, Any]) -> str:
    return str(table.get("algorithm", name))


def _of_contest(contest: Contest, cohorts: str, form: Form) -> list[Trial]:
    """Tuning, the winners with fresh seeds, and the published settings with the same seeds."""
    tables, kind = _base(contest, form), contest.kind
    tables["cohorts"] = cohorts
    if cohorts != COHORTS[0]:  # of one phase they would do the same once more
        own = {name: one for name, one in tables["algorithms"].items() if _rule(name, one) in TWO_PHASES}
        tables["algorithms"] = own
    fresh = f"0-{form.seeds[kind] - 1}"
    last = FIRST_TUNING_SEED + form.tuning_seeds - 1
    sweep = {
        "by": contest.by,
        "budget": form.budget[kind],
        "halving": form.halving[kind],
        "grid": {name: _grid(contest, name, own, form) for name, own in tables["algorithms"].items()},
    }
    held = tables["problem"] | {"validation_share": VALIDATION_SHARE}
    tuning = {"seeds": f"{FIRST_TUNING_SEED}-{last}", "problem": held, "sweep": sweep}
    at = f"{contest.name}/{cohorts}"
    found = [
        _trial(f"{at}/tune", contest, tables | tuning, sweeps=True),
        _trial(f"{at}/tuned", contest, tables | {"seeds": fresh}, after=f"{at}/tune"),
        _trial(f"{at}/published", contest, tables | {"seeds": fresh}),
    ]
    if contest.name == "auc-census":
        return found[:1]  # whose winners a panel takes further
    if contest.name in MEMORY and cohorts == COHORTS[0]:
        ada = tables["algorithms"]["cdma-ada"]
        each = {
            f"cdma-ada-rho-{Fraction(rho).limit_denominator(9)}".replace("/", "-"): ada
            | {"algorithm": "cdma-ada", "rho": rho}
            for rho in GRIDS[kind]["cdma-ada"]["rho"]
        }
        own = tables | {"seeds": fresh, "algorithms": each}
        found.append(_trial(memory_of(contest.name), contest, own, after=f"{at}/tune", by="rho"))
    return found


def _trial(name: str, contest: Contest, tables: dict[str, Any], **more: Any) -> Trial:
    return Trial(name, contest, copy.deepcopy(tables) | {"name": name.replace("/", "-")}, **more)


def _grid(contest: Contest, name: str, table: Mapping[str, Any], form: Form) -> Choices:
    grid = GRIDS[contest.kind][_rule(name, table)]
    if contest.name == "gan-celeba" and name != "parallel-sgda":
        grid = {"K": CELEBA_K, **grid}
    return refined(grid, form.budget[contest.kind])


_RATES = Contest("rates", "rates", "the quadratic", "", ("stationarity", "distance"), base="quadratic")


def _of_rates(form: Form) -> dict[str, Any]:
    """The guaranteed algorithms on a problem whose gradient is known exactly (Table 1)."""
    tables = _RATES.experiment
    keep = ("cdma-ada", "cdma-one", "cdma-nc", "parallel-sgda")
    tables["algorithms"] = {name: tables["algorithms"][name] for name in keep}
    little = {"rounds": 60, "seeds": "0-2"} if form.stand_in else {"seeds": "0-15"}
    return tables | {"name": "rates", "description": ""} | little


def _of_panel(panel: Panel, spot: Spot, form: Form) -> Trial:
    contest = CONTESTS[panel.contest]
    tables = _base(contest, form)
    tables["algorithms"] = {name: tables["algorithms"][name] for name in PANEL_ALGORITHMS}
    change = copy.deepcopy(spot.change)
    if invite := change.pop("invite", None):
        for one in tables["algorithms"].values():
            one["invite"] = invite * one["invite"] // 8
    tables["problem"] |= change.pop("problem", {})
    tables |= change | {"seeds": f"0-{form.panel_seeds - 1}", "cohorts": COHORTS[0]}
    return _trial(panel_trial(panel, spot), contest, tables, after=winners_of(contest.name))
