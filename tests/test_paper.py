"""The paper whole: grids, trials, rules, statistics, and all of it once, in very little."""

import math
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

import fedsaddle as fs
from fedsaddle import judges
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.app.reproduce import exhibits_named, reproduce
from fedsaddle.app.run import Silent, Way
from fedsaddle.border.files import parse_seeds, read_tables
from fedsaddle.border.sweeps import load_sweep
from fedsaddle.cli.reproduce import reproduce as command
from fedsaddle.exits import INTERRUPTED
from fedsaddle.metric import Metric
from fedsaddle.paper.claims import (
    CLAIMS,
    CONFIRMED,
    CONTRADICTED,
    UNDECIDED,
    Ahead,
    BestAt,
    Level,
    SameFloats,
    ShorterMemory,
    Unmeasured,
    corrected,
    rule_on,
)
from fedsaddle.paper.evidence import Evidence, at_the_end
from fedsaddle.paper.exhibits import EXHIBITS
from fedsaddle.paper.forms import FULL, QUICK
from fedsaddle.paper.grids import GRIDS, refined, size
from fedsaddle.paper.pace import estimates
from fedsaddle.paper.trials import (
    COHORTS,
    CONTESTS,
    PANELS,
    TWO_PHASES,
    Contest,
    spots_of,
    trials,
    winners_of,
)
from fedsaddle.paper.winners import experiment_of_trial, winners_by
from fedsaddle.report.paired import compare, mean_interval, median_interval, share_interval, sign_test
from fedsaddle.report.reading import Evaluation, Happening, Lane, Run, Series
from fedsaddle.report.spent import NOTHING_SPENT, is_finished
from fedsaddle.report.statistics import area
from fedsaddle.report.sweeps import Family, families_of
from fedsaddle.sweep import settings, to_toml

ROOT = Path(__file__).parent.parent
HIGH = Metric("high", rows="test", chance=0.6)
KINDS = ("auc", "robust", "gan")
TINY = replace(
    QUICK,
    name="tiny",
    budget=dict.fromkeys(KINDS, 2),
    tuning_seeds=1,
    seeds={"auc": 3, "robust": 3, "gan": 2},
    rounds={"auc": 2, "robust": 2, "gan": 1},
    evaluate_every=dict.fromkeys(KINDS, 1),
    panel_seeds=2,
    spots=2,
)


# --- what is tried ---------------------------------------------------------------------------------------


def test_the_grid_of_auc_is_the_shipped_one():
    shipped = read_tables("auc-mnist")[0]["sweep"]["grid"]
    assert shipped == GRIDS["auc"]


def test_the_grids_have_the_appendixs_sizes():
    sizes = {kind: {name: size(grid) for name, grid in own.items()} for kind, own in GRIDS.items()}
    assert sizes["auc"]["cdma-ada"] == 504
    assert sizes["robust"] == {
        **dict.fromkeys(("cdma-one", "cdma-nc", "parallel-sgda", "local-sgda-plus"), 20),
        "cdma-ada": 80,
        "codasca": 90,
        "catalyst-scaffold-s": 30,
        "coda-plus": 30,
        "extra-step": 9,
    }
    assert sizes["gan"]["cdma-ada"] == 81
    assert sizes["gan"]["extra-step"] == 4


def test_a_small_grid_is_refined_between_its_ends():
    grid = refined({"eta_l": [0.01, 0.001, 0.0001, 0.00001]}, 9)
    assert len(grid["eta_l"]) == 9
    assert {0.01, 0.001, 0.0001, 0.00001} <= set(grid["eta_l"])
    assert min(grid["eta_l"]), max(grid["eta_l"]) == (0.00001, 0.01)
    assert 0.003162 in grid["eta_l"]
    assert refined(GRIDS["auc"]["cdma-ada"], 24) == GRIDS["auc"]["cdma-ada"]


@pytest.mark.parametrize("form", [FULL, QUICK], ids=["full", "quick"])
def test_every_algorithm_has_as_many_tries(form):
    for trial in trials(form).values():
        if trial.sweeps:
            budget = form.budget[trial.contest.kind]
            assert trial.tables["sweep"]["budget"] == budget
            for name, grid in trial.tables["sweep"]["grid"].items():
                assert len(settings(grid, budget, 0, 1)) == budget, (trial.name, name)
            assert trial.tables["problem"]["validation_share"] > 0


def test_settings_are_never_chosen_by_test_rows():
    assert {one.by for one in CONTESTS.values()} == {
        "validation_auc",
        "validation_robust_loss",
        "validation_frechet",
        "validation_fid",
    }


def test_who_has_a_second_cohort():
    values = {"eta": 0.1, "gamma": 0.1, "eta_l": 0.1, "eta_g": 1.0, "theta": 0.0, "K_0": 100}
    values |= {"c_eta": 0.1, "c_gamma": 0.1, "c_alpha": 1.0, "rho": 0.2}
    for name in CONTESTS["auc-mnist"].experiment["algorithms"]:
        rule = ALGORITHMS[name].rule
        one = rule(**{key: value for key, value in values.items() if key in rule.__dataclass_fields__})
        assert (len(one.phases()) == 2) == (name in TWO_PHASES)


# --- what runs -------------------------------------------------------------------------------------------


def test_every_trial_is_an_experiment(tmp_path):
    """Its keys are known; two that sweep are made, on digits."""
    for trial in trials(QUICK).values():
        (tmp_path / "one.toml").write_text(to_toml(trial.tables))
        assert tomllib.loads((tmp_path / "one.toml").read_text())["name"] == trial.name.replace("/", "-")
    for name in (winners_of("robust-mnist"), winners_of("auc-cifar10", COHORTS[-1])):
        (tmp_path / "one.toml").write_text(to_toml(trials(QUICK)[name].tables))
        plan = load_sweep(str(tmp_path / "one.toml"))
        assert plan.by.startswith("validation_")
        assert plan.resolved["seeds"] == [1000, 1001]


def test_fresh_seeds_are_not_those_that_chose():
    every = trials(FULL)
    for trial in every.values():
        if trial.after:
            assert not set(_seeds(trial)) & set(_seeds(every[trial.after]))
            assert list(every).index(trial.after) < list(every).index(trial.name)
    assert len(_seeds(every["auc-mnist/" + COHORTS[0] + "/tuned"])) == 16
    assert len(_seeds(every["gan-mnist/" + COHORTS[0] + "/tuned"])) == 5


def _seeds(trial):
    return parse_seeds(trial.tables["seeds"])


def test_the_panels_reach_as_far_as_they_say():
    every = trials(FULL)
    clients = [
        trial.tables["problem"]["clients"] for name, trial in every.items() if "panels/clients" in name
    ]
    assert (min(clients), max(clients)) == (50, 100_000)
    rates = [trial.tables["fleet"]["rate"] for name, trial in every.items() if "panels/dropout" in name]
    assert (min(rates), max(rates)) == (0.0, 0.7)
    invited = [
        own["invite"]
        for name, trial in every.items()
        if "panels/cohorts" in name
        for own in trial.tables["algorithms"].values()
    ]
    assert (min(invited), max(invited)) == (4, 256)
    for panel in PANELS.values():
        assert 3 <= len(spots_of(panel, QUICK)) <= len(panel.spots)


def test_rounds_of_lanes_are_counted_with_halving():
    trial = trials(FULL)[winners_of("gan-mnist")]
    # 9 settings to round 60, 3 to 140, 1 to 400 (evaluations are every 20), of 9 algorithms, 2 seeds
    assert trial.lane_rounds == 9 * 2 * (9 * 60 + 3 * 80 + 1 * 260)


def test_celeba_is_named_where_it_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path))
    assert not any("celeba" in name for name in trials(FULL))
    told = {one.name: one for one in estimates(tmp_path, FULL, "cuda")}
    assert told["figure-8"].trials == 0
    assert told["figure-1"].trials == 2 * 3 * len(COHORTS)
    assert told["all"].seconds > told["figure-1"].seconds > 0


def test_every_figure_and_table_is_there():
    wanted = [f"figure-{n}" for n in range(1, 9)] + [f"table-{n}" for n in range(1, 8)]
    assert set(wanted) | set(PANELS) == set(EXHIBITS)
    for claim in CLAIMS:
        assert set(claim.contests) <= set(CONTESTS)
    assert exhibits_named(["all"]) == list(EXHIBITS)
    with pytest.raises(fs.BadInput, match="unknown exhibit 'figure-9'"):
        exhibits_named(["figure-9"])
    with pytest.raises(fs.BadInput, match="say what: all, or some of table-1"):
        exhibits_named([])


# --- statistics ------------------------------------------------------------------------------------------


def test_intervals_are_those_of_scipy():
    values = [0.1, 0.4, 0.35, 0.8, 0.2, 0.5]
    known = stats.t.interval(0.95, 5, loc=sum(values) / 6, scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx(known)
    exact = stats.binomtest(2, 16).proportion_ci(method="exact")
    assert share_interval(2, 16) == pytest.approx((exact.low, exact.high))
    assert share_interval(0, 16).low == 0
    assert share_interval(16, 16).high == 1
    assert sign_test([1, 2, 3, -1, 4, 5, 6, 7]) == pytest.approx(stats.binomtest(1, 8).pvalue)
    assert sign_test([0.0, 0.0]) is None


def test_the_medians_interval_is_between_values_that_the_sign_test_leaves():
    values = [float(n) for n in range(16)]
    assert median_interval(values) == (3.0, 12.0)
    assert median_interval([1.0, 2.0, 3.0]) == (-math.inf, math.inf)


def test_area_along_time():
    points = [Evaluation(0, 0, 0.0, {"m": 0.0}), Evaluation(1, 10, 2.0, {"m": 1.0})]
    assert area(points, "m", 10) == 0.5
    assert area(points, "m", 1.0, along="time_simulated") == pytest.approx(0.25)


# --- rules -----------------------------------------------------------------------------------------------


def lane(seed, value, diverged="", floats=1000):
    points = [Evaluation(0, 0, 0.0, {"m": 0.5}), Evaluation(10, floats, 10.0, {"m": value})]
    return Lane(seed, points, {}, diverged)


def made_up(tmp_path=Path(), meant=HIGH, **values):
    """Algorithms with these final values, one a seed; a value that is text is where a seed diverged."""
    series = {}
    for label, own in values.items():
        lanes = [
            lane(seed, 0.9 if isinstance(value, str) else value, value if isinstance(value, str) else "")
            for seed, value in enumerate(own)
        ]
        name = label.replace("_", "-")
        series[name] = Series(name, lanes, len(lanes), 10, 0, {"m": meant, "validation_auc": HIGH})
    contest = Contest("auc-mnist", "auc", "MNIST", "validation_auc", ("m", "m"))
    return Evidence(contest, COHORTS[0], "tuned", series, NOTHING_SPENT, tmp_path)


def verdict_of(rule, found, measure="final"):
    (ruling,) = rule_on([replace(CLAIMS[0], rule=rule)], found, "m", measure)
    return ruling


NOISE = [0.001, -0.002, 0.0015, -0.0005, 0.0, 0.002, -0.001, 0.0005]


def around(value, turn=0):
    return [value + one for one in NOISE[turn:] + NOISE[:turn]]


def test_ahead_is_told_from_level_and_behind():
    rule = Ahead(("a",), ("b", "c"))
    best = verdict_of(rule, made_up(a=around(0.95), b=around(0.9, 2), c=around(0.8, 3)))
    assert (best.verdict, best.seeds, best.by) == (CONFIRMED, 8, "mean")
    assert best.effect == pytest.approx(0.05)
    assert best.told == "a against b"
    assert best.interval.low < 0.05 < best.interval.high
    level = verdict_of(rule, made_up(a=around(0.9), b=around(0.9, 2), c=around(0.8, 3)))
    assert level.verdict == UNDECIDED
    behind = verdict_of(rule, made_up(a=around(0.85), b=around(0.9, 2), c=around(0.8, 3)))
    assert (behind.verdict, behind.told) == (CONTRADICTED, "a against b")
    assert behind.effect < 0


def test_second_is_behind_the_first_too():
    rule = Ahead(("a",), ("b", "c"), ("first",))
    others = {"b": around(0.9, 2), "c": around(0.8, 3)}
    assert verdict_of(rule, made_up(first=around(0.97, 1), a=around(0.95), **others)).verdict == CONFIRMED
    level = verdict_of(rule, made_up(first=around(0.95, 1), a=around(0.95), **others))
    assert (level.verdict, level.told) == (UNDECIDED, "first against a")
    ahead = verdict_of(rule, made_up(first=around(0.92, 1), a=around(0.95), **others))
    assert (ahead.verdict, ahead.told) == (CONTRADICTED, "first against a")
    seconds = [claim.rule.first for claim in CLAIMS if "second" in claim.says]
    assert seconds == [("cdma-ada",), ("cdma-ada",)]


def test_two_seeds_decide_nothing():
    assert verdict_of(Ahead(("a",), ("b",)), made_up(a=[0.9, 0.91], b=[0.8, 0.802])).verdict == UNDECIDED


def test_correction_is_over_all_claims_of_a_table():
    found = made_up(a=around(0.9), **{f"r{n}": around(0.8975, 1) for n in range(1, 8)})
    alone = verdict_of(Ahead(("a",), ("r1",)), found)
    many = [replace(CLAIMS[0], rule=Ahead(("a",), (f"r{n}",))) for n in range(1, 8)]
    tests = rule_on(many, found, "m", "final")
    raw = compare("a", "r1", found.values("m", "final"), HIGH, {})
    assert raw.p < 0.05 <= 7 * raw.p  # else this shows nothing
    assert alone.verdict == CONFIRMED
    assert tests[0].verdict == UNDECIDED


def test_where_seeds_die_medians_and_signs_decide():
    rule = Ahead(("a",), ("b",))
    one_dead = [0.5, *around(0.95)[1:]]
    ruling = verdict_of(rule, made_up(a=one_dead, b=around(0.9, 2)))
    assert (ruling.by, ruling.verdict) == ("median", UNDECIDED)  # 7 of 8: p = 0.07
    more = verdict_of(rule, made_up(a=one_dead * 2, b=around(0.9, 2) * 2))
    assert (more.by, more.verdict) == ("median", CONFIRMED)  # 14 of 16
    assert more.effect == pytest.approx(0.05, abs=0.01)


def test_a_seed_that_diverged_counts_as_the_worst():
    found = made_up(a=["round 3", *around(0.95)[1:]], b=around(0.9))
    values = found.values("m", "final")
    assert values["a"][0] == min(values["b"].values())
    assert found.dead("m") == {"a": 1, "b": 0}


def test_level_needs_the_whole_interval():
    rule = Level("a", "b", 0.01)
    assert verdict_of(rule, made_up(a=around(0.9), b=around(0.903, 2))).verdict == CONFIRMED
    assert verdict_of(rule, made_up(a=around(0.9), b=around(0.95, 2))).verdict == CONTRADICTED
    assert verdict_of(rule, made_up(a=around(0.9), b=around(0.91, 2))).verdict == UNDECIDED


def test_the_best_of_some():
    rule = BestAt(("a", "b"), ("c",))
    assert verdict_of(rule, made_up(a=around(0.9), b=around(0.95, 1), c=around(0.92, 2))).verdict == CONFIRMED
    assert (
        verdict_of(rule, made_up(a=around(0.9), b=around(0.8, 1), c=around(0.92, 2))).verdict == CONTRADICTED
    )
    assert verdict_of(rule, made_up(a=around(0.92), b=around(0.8, 1), c=around(0.92, 2))).verdict == UNDECIDED


def test_of_several_that_are_better_the_best_is_named():
    rivals = {name: around(0.92 + 0.01 * at, at) for at, name in enumerate("cdefg")}
    ruling = verdict_of(BestAt(("a",), tuple(rivals)), made_up(a=around(0.9), **rivals))
    assert (ruling.verdict, ruling.told) == (CONTRADICTED, "a against g")


def test_the_best_of_some_by_a_metric_that_is_better_low():
    rule, low = BestAt(("a", "b"), ("c",)), Metric("low", rows="test")
    found = made_up(meant=low, a=around(0.95), b=around(0.9, 1), c=around(0.92, 2))
    assert verdict_of(rule, found)[:2] == (CONFIRMED, "b against c")


def test_the_best_of_some_needs_them_all():
    rule = BestAt(("a", "b"), ("c", "d"))
    found = made_up(a=around(0.9), b=around(0.95, 1), c=around(0.92, 2))
    assert verdict_of(rule, found).verdict == UNDECIDED


def curve_of(seed, values):
    points = [Evaluation(10 * at, 100 * at, 1.0 * at, {"m": value}) for at, value in enumerate(values)]
    return Lane(seed, points, {}, "")


def series_of(lanes, happened=()):
    return Series("a", lanes, len(lanes), 100, 0, {"m": HIGH}, happened=list(happened))


def test_the_end_is_the_last_fifth_of_the_rounds():
    """One evaluation is luck where a run swings."""
    swinging = curve_of(0, [0.5, *[0.9] * 7, 0.7, 0.9, 0.8])
    assert at_the_end(swinging.points, "m") == pytest.approx((0.7 + 0.9 + 0.8) / 3)
    assert at_the_end(swinging.points[:2], "m") == 0.9


def test_a_seed_that_froze_above_chance_is_dead_unless_it_came_back():
    frozen, back, alive = (
        curve_of(seed, [0.5, 0.9, 0.86, end]) for seed, end in enumerate((0.86, 0.99, 0.86))
    )
    fell = [Happening(seed, 19, "collapsed", "its scores are all alike") for seed in (0, 1)]
    found = replace(made_up(), series={"a": series_of([frozen, back, alive], fell)})
    assert found.dead("m") == {"a": 1}


def test_a_setting_with_a_frozen_seed_comes_after_those_without():
    def tried(label, value, *fell):
        happened = [Happening(seed, 5, "collapsed", "its scores are all alike") for seed in fell]
        lanes = [lane(seed, value) for seed in (0, 1)]
        return replace(series_of(lanes, happened), label=label, family="a")

    some = [tried("a-0", 0.97, 1), tried("a-1", 0.9), tried("a-2", 0.5, 0)]
    run = Run(Path(), {"sweep": {"by": "m"}, "algorithms": {}}, {"m": HIGH}, some, [])
    (family,) = families_of(run)
    assert [one.label for one in family.tried] == ["a-1", "a-0", "a-2"]


def test_rulings_say_the_corrected_p_and_whose_settings_all_failed():
    found = made_up(a=around(0.95), b=around(0.9, 2), c=around(0.9, 3))
    tests = corrected([("a", "b"), ("a", "c")], found, "m", "final")
    raw = compare("a", "b", found.values("m", "final"), HIGH, {}).p
    ruling = verdict_of(Ahead(("a",), ("b", "c")), found)
    closest = min(tests.values(), key=lambda one: one.effect)
    assert ruling.p == closest.p >= raw > 0
    lost = verdict_of(Ahead(("a",), ("b", "gone")), found)
    assert (lost.verdict, lost.told) == (UNDECIDED, "a against b; no setting of gone survived")
    few = verdict_of(Ahead(("a",), ("b",)), made_up(a=[0.9, 0.91], b=[0.8, 0.802]))
    assert few.told.endswith("fewer than 3 seeds decide nothing")


def test_memory_is_judged_by_fresh_seeds_of_the_best_of_equally_many(monkeypatch):
    found = made_up(cdma_ada=around(0.9))
    values = {"cdma-ada-rho-0": 0.0, "cdma-ada-rho-1-5": 0.2, "cdma-ada-rho-1-3": 1 / 3}

    def with_ends(*ends):
        some = made_up(**dict(zip([name.replace("-", "_") for name in values], ends, strict=True)))
        each = {name: replace(one, setting={"rho": values[name]}) for name, one in some.series.items()}
        monkeypatch.setattr("fedsaddle.paper.claims.by_memory", lambda _: replace(some, series=each))
        return verdict_of(ShorterMemory(), found)

    better = with_ends(around(0.9), around(0.93, 1), around(0.9, 2))
    assert (better.verdict, better.told) == (
        CONFIRMED,
        "the best setting with rho 0.2 against the best with 1/3",
    )
    assert with_ends(around(0.9), around(0.9, 1), around(0.9, 2)).verdict == UNDECIDED
    assert with_ends(around(0.8), around(0.8, 1), around(0.9, 2)).verdict == UNDECIDED  # "in some cases"

    def tried(label, rho, value):
        one = Series(label, [lane(0, value)], 1, 10, 0, {"m": HIGH})
        return replace(one, setting={"rho": rho, "c": label}, family="cdma-ada")

    some = [tried("x-0", 0.0, 0.7), tried("x-1", 0.0, 0.8), tried("x-2", 0.0, 0.99), tried("x-3", 1 / 3, 0.9)]
    family = Family("cdma-ada", "m", HIGH, some[::-1])
    entries = {name: {"algorithm": "cdma-ada", "rho": rho} for name, rho in values.items()}
    chosen = winners_by("rho", entries, [family])
    assert {name: own["c"] for name, own in chosen.items()} == {
        "cdma-ada-rho-0": "x-0",  # one try of 1/3, so the first of 0
        "cdma-ada-rho-1-3": "x-3",
    }


def test_equal_floats_are_counted():
    found = made_up(a=around(0.9), b=around(0.9))
    assert verdict_of(SameFloats(0.05), found).verdict == CONFIRMED
    more = replace(found.series["b"], lanes=[lane(seed, 0.9, floats=1100) for seed in range(8)])
    ruling = verdict_of(SameFloats(0.05), replace(found, series={**found.series, "b": more}))
    assert (ruling.verdict, ruling.effect) == (CONTRADICTED, pytest.approx(1.1))


def test_what_no_number_decides_is_undecided_and_says_why(tmp_path):
    found = made_up(tmp_path, a=around(0.9))
    assert verdict_of(Unmeasured("nobody knows"), found)[:2] == (UNDECIDED, "nobody knows")
    assert verdict_of(ShorterMemory(), found).verdict == UNDECIDED
    assert verdict_of(Ahead(("x",), ("y",)), found).verdict == UNDECIDED


# --- all of it, in very little ---------------------------------------------------------------------------


class Heard(Silent):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


WANTED = ["table-1", "figure-1", "figure-6", "dropout"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Where all of it is; its judge has learnt little."""
    out = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FEDSADDLE_DATA", str(out))
        patched.setitem(judges.RECIPES, ("digits", "small"), judges.Recipe(accuracy=0.0, epochs=1))
        yield out / "trials", reproduce(WANTED, out=out / "trials", form=TINY)


def test_the_page_has_every_exhibit_and_every_claim(whole):
    _, done = whole
    assert done.code == 0
    text = done.page.read_text()
    assert text.startswith("# The paper in little")
    for exhibit in EXHIBITS.values():
        assert f"## {exhibit.title}\n" in text
    for claim in CLAIMS:
        assert f"| {claim.says} | {claim.where} |" in text
    short = text[text.index("## What the paper says") : text.index("## What waits for a GPU")]
    verdicts = re.findall(r"\*\*(confirmed|contradicted|undecided)\*\*", short)
    assert sum(int(n) for n in re.findall(r"\d+", done.told)) == len(verdicts)
    every = text[text.index("## All verdicts") :]
    assert 0 < every.count("| tuned | independent |") < len(verdicts)  # those whose trials were run
    assert re.search(r"\n\d+ more wait for their trials", every)
    assert "`fedsaddle reproduce all --device cuda --minutes 9 --resume`" in text
    assert "CelebA was not run" in text
    for picture in re.findall(r"\]\((paper-[^)]+png)\)", text):
        assert (done.page.parent / picture).stat().st_size > 1000
    drawn = set(re.findall(r"\]\(paper-tiny-([^)]+)\.png\)", text))
    shared = {f"figure-{n}-{settings}" for n in (1, 4, 6) for settings in ("tuned", "published")}
    assert drawn == shared | {"dropout"}  # Figure 4 has the trials of Figure 6
    assert re.search(r"\| all algorithms send the same amount a round \|.*\| tuned \|.*confirmed", text)


def test_winners_run_with_what_tuning_chose(whole):
    out, _ = whole
    trial = trials(TINY)[f"auc-mnist/{COHORTS[0]}/tuned"]
    tables = experiment_of_trial(trial, out)
    tried = tomllib.loads((out / f"{winners_of('auc-mnist')}.toml").read_text())
    for name, own in tables["algorithms"].items():
        assert own["invite"] == trial.tables["algorithms"][name]["invite"]
        for key, values in tried["sweep"]["grid"][name].items():
            assert isinstance(values, str) or own[key] in values
    assert "validation_share" not in tables["problem"]


def test_what_is_done_is_not_done_again(whole):
    out, done = whole
    again = Heard()
    more = reproduce(WANTED[:2], out=out, form=TINY, resume=True, way=Way(show=again))
    assert again.lines == []
    assert more.told == done.told
    with pytest.raises(fs.BadInput, match="already holds trials: go on with --resume"):
        reproduce(WANTED, out=out, form=TINY)
    with pytest.raises(fs.BadInput, match="made by another experiment"):
        reproduce(["figure-1"], out=out, form=replace(TINY, tuning_seeds=2), resume=True)
    told = {one.name: one for one in estimates(out, TINY)}
    assert told["figure-1"].seconds == 0
    assert told["figure-2"].seconds > 0


def test_time_that_is_up_stops_it_and_it_goes_on(tmp_path):
    heard = Heard()
    out = tmp_path / "trials"
    stopped = reproduce(["table-1"], out=out, form=TINY, minutes=1e-9, way=Way(show=heard))
    assert stopped.code == INTERRUPTED
    assert heard.lines[-1].endswith("go on with: fedsaddle reproduce table-1 --resume")
    assert "not run" in stopped.page.read_text()
    asked = iter([False] * 3 + [True] * 99)
    way = Way(show=heard, asked=lambda: lambda: next(asked))
    assert reproduce(["table-1"], out=out, form=TINY, resume=True, way=way).code == INTERRUPTED
    assert heard.lines[-1] == "stopped; go on with: fedsaddle reproduce table-1 --resume"
    assert (out / "rates" / "checkpoint.json").exists()
    assert not is_finished(out / "rates")
    shutil.copytree(out, tmp_path / "another machine")
    out = tmp_path / "another machine"
    done = reproduce(["table-1"], out=out, form=TINY, resume=True, way=Way(show=heard))
    assert done.code == 0
    assert done.page.parent == out
    straight = reproduce(["table-1"], out=tmp_path / "other", form=TINY)
    rows = [(one / "rates" / "rounds.csv").read_bytes() for one in (out, tmp_path / "other")]
    assert rows[0] == rows[1]
    assert straight.told == done.told


def test_what_cannot_be_written_or_computed_on_is_said_before_anything_runs(tmp_path):
    (tmp_path / "file").touch()
    for given, told in (
        ({"out": tmp_path / "file"}, "cannot keep trials in"),
        ({"out": tmp_path / "out", "page": tmp_path / "file" / "paper.md"}, "cannot write a page into"),
        ({"out": tmp_path / "out", "device": "tpu"}, "device must be auto, cpu or cuda, got 'tpu'"),
    ):
        with pytest.raises(fs.BadInput, match=told):
            reproduce(["table-1"], form=TINY, **given)
    assert not (tmp_path / "out" / "rates").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"minutes": 0.0}, "--minutes must be above 0, got 0"),
        ({"page": Path("paper.html")}, "say paper.md, not paper.html"),
        ({"exhibits": ["table-9"]}, "unknown exhibit 'table-9'"),
        ({}, "say what: all, or some of"),
    ],
)
def test_slips_are_answered_in_a_line(given, told):
    with pytest.raises(fs.BadInput, match=re.escape(told)):
        command(**{"exhibits": None, **given})


def test_the_list_says_what_is_left(tmp_path, capsys):
    command(list_=True, quick=True, folder=tmp_path)
    shown = capsys.readouterr().out
    for name in EXHIBITS:
        assert f" {name} " in shown
    assert "cannot be had here" in shown
    command(exhibits=["figure-1"], list_=True, quick=True, folder=tmp_path)
    shown = capsys.readouterr().out
    assert " figure-1 " in shown
    assert " figure-2 " not in shown
    with pytest.raises(fs.BadInput, match="unknown exhibit 'figure-9'"):
        command(exhibits=["figure-9"], list_=True, quick=True, folder=tmp_path)
