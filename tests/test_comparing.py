"""Who is ahead of whom: against scipy, by hand, and never more than a test supports."""

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from fedsaddle.metric import Metric
from fedsaddle.report import findings, read_runs
from fedsaddle.report.comparing import holm, verdict
from fedsaddle.report.statistics import curve, scale_of, share
from test_report import DECLARED, write_run


def ends(folder, values, *, metric="test_auc", rounds=2, floats=200, **more):
    """A run whose algorithms end with these values, seed by seed."""
    rows = [
        (name, seed, at, at * floats // rounds, value if at else 0.5)
        for name, own in values.items()
        for seed, value in enumerate(own)
        for at in (0, rounds)
    ]
    return write_run(folder, rows, metrics=metric, rounds=rounds, **more)


def found(*folders, metric="test_auc"):
    runs = read_runs(list(folders))
    return findings([one for run in runs for one in run.series], metric)


def said(*folders, metric="test_auc"):
    return verdict(found(*folders, metric=metric), metric, DECLARED[metric])


# --- Holm's rule -----------------------------------------------------------------------------------------


def test_holms_rule_by_hand():
    # 0.01 times 4; 0.02 times 3; 0.03 times 2 is no more than that; 0.6 times 1.
    assert holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])
    assert holm([0.7, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.floats(0.001, 0.5))
@settings(deadline=None, derandomize=True, database=None)
def test_holms_rule_rejects_step_by_step(ps, level):
    """As it is defined: the smallest against level / m, the next against level / (m - 1), until one fails."""
    rejected = set()
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        if ps[place] * (len(ps) - rank) > level:
            break
        rejected.add(place)
    assert {place for place, p in enumerate(holm(ps)) if p <= level} == rejected


def test_all_pairs_are_tested_and_corrected_together(tmp_path):
    values = {
        "a": [0.80, 0.82, 0.85, 0.81, 0.84],
        "b": [0.79, 0.80, 0.83, 0.80, 0.81],
        "c": [0.61, 0.65, 0.63, 0.66, 0.62],
    }
    pairs = list(combinations(values, 2))
    corrected = dict(
        zip(pairs, holm([ttest_rel(values[a], values[b]).pvalue for a, b in pairs]), strict=True)
    )
    a, b, c = found(ends(tmp_path / "run", values))
    assert a.against.p == pytest.approx(ttest_rel(values["a"], values["b"]).pvalue)
    assert a.against.corrected == pytest.approx(corrected["a", "b"])
    assert b.against.corrected == a.against.corrected
    assert c.against.corrected == pytest.approx(corrected["a", "c"])
    assert (b.against.difference, c.against.rival) == (pytest.approx(-0.018), "a")
    assert [one.standing for one in (a, b, c)] == ["best", "behind", "behind"]
    assert said(tmp_path / "run").startswith("a ends best, with test_auc 0.824 ± 0.021 over 5 seeds; a ")


def test_values_over_decades_are_compared_by_their_logarithms(tmp_path):
    values = {"a": [1e-6, 3e-6, 2e-6, 5e-6], "b": [1e-3, 0.5, 2e-3, 1e-2]}
    a, _ = found(ends(tmp_path / "run", values, metric="loss"), metric="loss")
    logs = [[math.log(value) for value in own] for own in values.values()]
    assert a.against.p == pytest.approx(ttest_rel(*logs).pvalue)
    assert a.standing == "best"
    assert ttest_rel(*values.values()).pvalue > 0.3  # one seed would hide it


# --- no winner that a test does not support --------------------------------------------------------------


def test_nobody_wins_by_chance(tmp_path):
    values = {"a": [0.90, 0.95, 0.93], "b": [0.92, 0.90, 0.91], "c": [0.1, 0.12, 0.14]}
    run = ends(tmp_path / "run", values)
    assert ttest_rel(values["a"], values["b"]).pvalue > 0.4
    a, b, c = found(run)
    assert (a.standing, b.standing, c.standing) == ("level", "level", "behind")
    assert "but cannot be told apart from b, ahead of c by a corrected test." in said(run)


def test_what_one_test_would_call_better_many_do_not(tmp_path):
    better = [0.030, 0.028, 0.045, 0.012, 0.037]
    base = [0.5, 0.52, 0.48, 0.51, 0.49]
    values = {"a": [one + more for one, more in zip(base, better, strict=True)], "b": base}
    few, _ = found(ends(tmp_path / "few", values))
    assert 0.001 < few.against.p < 0.01
    assert few.standing == "best"
    others = {
        f"z{number}": [0.3 + 0.07 * ((seed * (number + 3)) % 5) for seed in range(5)] for number in range(7)
    }
    many = {one.label: one for one in found(ends(tmp_path / "many", values | others))}
    assert many["a"].against.p == few.against.p
    assert many["a"].standing == "level"  # 36 pairs


@pytest.mark.parametrize("seeds", [1, 2])
def test_of_too_few_seeds_nothing_can_be_said(tmp_path, seeds):
    run = ends(tmp_path / "run", {"a": [0.9, 0.91][:seeds], "b": [0.2, 0.21][:seeds]})
    assert [(one.standing, one.against.p) for one in found(run)] == [("untested", None)] * 2
    plural = "s" if seeds > 1 else ""
    assert f"nothing can be said of b ({seeds} seed{plural} in common, and a test needs 3)" in said(run)
    assert "best value" in said(run) if seeds == 1 else "best mean" in said(run)


def test_the_same_values_are_not_told_apart(tmp_path):
    run = ends(tmp_path / "run", {"a": [0.9, 0.8, 0.7], "b": [0.9, 0.8, 0.7]})
    assert [one.standing for one in found(run)] == ["level", "level"]
    assert "a and b have the same best mean" in said(run)


def test_who_lost_a_seed_comes_after_all_who_lost_none(tmp_path):
    values = {"brave": [0.99, 0.98, 0.97], "calm": [0.9, 0.91, 0.93, 0.92]}
    run = ends(tmp_path / "run", values, events=[("brave", 3, 1, "diverged", "gone")])
    calm, brave = found(run)
    assert (calm.label, brave.diverged) == ("calm", 1)
    assert brave.standing == "level"  # it is not behind on the seeds that it has
    assert "calm has the best mean" in said(run)


# --- unequal chances -------------------------------------------------------------------------------------

WIDE = {"a": [0.9, 0.91, 0.92], "b": [0.1, 0.12, 0.11]}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"rounds": 4, "floats": 200}, "2 rounds against 4"),
        ({"floats": 400}, "200 floats sent up against 400"),
        ({"floats": 210}, ""),
    ],
)
def test_unequal_budgets_are_said_and_nobody_wins(tmp_path, other, told):
    first = ends(tmp_path / "first", {"a": WIDE["a"]})
    second = ends(tmp_path / "second", {"b": WIDE["b"]}, **other)
    a, b = found(first, second)
    assert (a.against.unequal, a.against.corrected < 0.05) == (told, True)
    assert [a.standing, b.standing] == (["untested", "untested"] if told else ["best", "behind"])
    assert ("unequal chances" in said(first, second)) == bool(told)


def test_other_settings_are_said_too(tmp_path):
    folders = [ends(tmp_path / name, {name: own}) for name, own in WIDE.items()]
    text = (folders[1] / "experiment.json").read_text()
    (folders[1] / "experiment.json").write_text(
        text.replace('"quadratic"}', '"quadratic", "clients": 9}, "batch": 7')
    )
    a, _ = found(*folders)
    assert (a.against.unequal, a.standing) == ("they differ in batch, problem.clients", "untested")


# --- values of a game ------------------------------------------------------------------------------------


def test_values_of_a_game_are_not_ranked(tmp_path, monkeypatch):
    monkeypatch.setitem(DECLARED, "f", Metric("neither", rows="test", chance=0.5))
    run = ends(tmp_path / "run", {"b": [3.0, 4.0, 5.0], "a": [1.0, 1.5, 2.0]}, metric="f")
    b, a = found(run, metric="f")
    assert (b.label, a.label) == ("b", "a")  # as in the experiment
    for one in (a, b):
        assert (one.against, one.standing, one.best, one.collapsed) == (None, "", {}, 0)
    assert (
        said(run, metric="f")
        == "f is a value of the game, better neither high nor low: nobody is ranked by it."
    )


# --- how it is shown -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "metric", "scale"),
    [
        ({"a": [0.999], "b": [0.98]}, Metric("high", "test", 0.6), "error"),
        ({"a": [0.999], "b": [0.5]}, Metric("high", "test", 0.6), "error"),  # that one failed hides the other
        ({"a": [0.9], "b": [0.8]}, Metric("high", "test", 0.6), "linear"),
        ({"a": [0.999], "b": [0.98]}, Metric("high", "test"), "linear"),  # nothing says that 1 is the most
        ({"a": [0.999], "b": [0.98]}, Metric("low", "test", 0.6), "linear"),
        ({"a": [1.5], "b": [0.98]}, Metric("high", "test", 0.6), "linear"),
        ({"a": [1e-4], "b": [0.98]}, Metric("low", "test"), "log"),
        ({"a": [-1e-4], "b": [0.98]}, Metric("low", "test"), "linear"),
    ],
)
def test_a_metric_is_shown_as_it_differs(tmp_path, values, metric, scale):
    (run,) = read_runs([ends(tmp_path / "run", values)])
    assert scale_of(metric, [curve(one, "test_auc") for one in run.series]) == scale


# --- outcomes with two modes -------------------------------------------------------------------------------


def test_a_mean_of_two_modes_is_not_tested(tmp_path):
    """CDMA-ONE on MNIST, as it was: two seeds of five died, and the t-test had p = 0.18 for that."""
    values = {
        "codasca": [0.9942, 0.9956, 0.9978, 0.9943, 0.9968],
        "cdma-nc": [0.9872, 0.9830, 0.9816, 0.9845, 0.9876],
        "cdma-one": [0.9961, 0.5000, 0.5000, 0.9965, 0.9961],
    }
    first, second, third = found(ends(tmp_path / "run", values))
    assert second.standing == "behind"
    assert (third.label, third.standing, third.against.p) == ("cdma-one", "untested", None)
    assert third.median == 0.9961
    assert third.dead == share(2, 5)
    told = said(tmp_path / "run")
    assert "nothing can be said of cdma-one (seeds collapsed: a test of means says nothing of two mod" in told
    assert not first.two_modes
    all_dead = found(ends(tmp_path / "dead", {"a": values["codasca"], "b": [0.5, 0.51, 0.52, 0.5, 0.49]}))
    assert all_dead[1].standing == "behind"  # one mode


def test_wilsons_interval():
    # From the formula by hand: (2 + 1.92) / (5 + 3.84) plus and minus 0.326.
    assert share(2, 5)[2:] == pytest.approx((0.1176, 0.7693), abs=1e-4)
    assert share(0, 5)[2:] == pytest.approx((0.0, 0.4345), abs=1e-4)
    assert share(5, 5)[2:] == pytest.approx((0.5655, 1.0), abs=1e-4)


def test_the_last_evaluations_are_averaged_seed_by_seed(tmp_path):
    rows = [("a", seed, at, at, 0.5 + at / 20 + seed / 100) for seed in (0, 1) for at in range(8)]
    (one,) = found(write_run(tmp_path / "run", rows, metrics="test_auc", rounds=7))
    assert one.last == pytest.approx({0: 0.5 + 5 / 20, 1: 0.51 + 5 / 20})
