"""Robust merges: what they compute, that lanes do not touch, and that liars ruin the mean and not them."""

import math
import statistics
from dataclasses import replace

import pytest
import torch

import fedsaddle as fs
from fedsaddle.border.build import load
from fedsaddle.checks import bounds
from fedsaddle.core import Pair
from fedsaddle.engine.course import course
from fedsaddle.engine.phase import calls_of, merge
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points
from fedsaddle.merges import MERGES, Mean, Median, Merge, TrimmedMean, clipped, merged
from fedsaddle.simulate import make_study
from zoo import ALGORITHMS, quadratic

RULES = [Mean(), TrimmedMean(0.1), TrimmedMean(0.25), TrimmedMean(0.49), Median()]


def by_hand(rule, values: list[float]) -> float:
    if isinstance(rule, Median):
        return statistics.median(values)
    off = math.floor(rule.trim * len(values) + 1e-9) if isinstance(rule, TrimmedMean) else 0
    return statistics.fmean(sorted(values)[off : len(values) - off])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_rules_are_what_they_say(rule):
    """Lanes with 1 to 9 answers of 9 places, in one call and under vmap; what is not there is NaN."""
    values = torch.randn(9, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    there = torch.arange(9) < torch.arange(1, 10)[:, None]
    answers = torch.where(there[..., None], values, torch.nan)
    found = rule(answers, there)
    for lane in range(9):
        for value in range(4):
            own = values[lane, : lane + 1, value].tolist()
            assert float(found[lane, value]) == pytest.approx(by_hand(rule, own), abs=1e-15)
        assert torch.equal(rule(answers[lane], there[lane]), found[lane])
    assert torch.equal(torch.func.vmap(rule)(answers, there), found)
    assert rule(answers[:1], torch.zeros(1, 9, dtype=torch.bool)).shape == (1, 4)  # nobody: not looked at


def test_trimming_counts_as_a_person_does():
    values = torch.arange(100, dtype=torch.float64)[:, None] ** 3
    there = torch.ones(100, dtype=torch.bool)
    assert float(TrimmedMean(0.29)(values, there)) == pytest.approx(float(values[29:71].mean()))
    assert float(TrimmedMean(0.1)(values[:10], there[:10])) == pytest.approx(float(values[1:9].mean()))


@pytest.mark.parametrize("rule", [TrimmedMean(0.25), Median()], ids=str)
def test_a_few_answers_cannot_move_them_far(rule):
    answers = torch.tensor([[1.0], [2.0], [3.0], [4.0], [math.inf], [math.nan], [-1e30], [2.5]])
    found = rule(answers, torch.ones(8, dtype=torch.bool))
    assert 1.0 <= float(found) <= 4.0


def test_a_merge_of_a_list_is_the_engines():
    study = make_study(quadratic(), ALGORITHMS["cdma-nc"], seeds=range(2), fleet=fs.Everybody())
    for rule in RULES:
        own = replace(study, merge=Merge(rule, clip=0.5))
        lanes = begin(own)
        calls, _ = calls_of(own, lanes.completed, 0, 0, [[0, 3, 5], [1, 2, 3, 4, 8]])
        up = {"z": Pair(torch.randn(8, 3).double(), torch.randn(8, 4).double())}
        server = merge(own, lanes.server, 0, calls, up)
        sent = {"z": points(lanes.server)[1]}
        answers = [{"z": Pair(up["z"].x[visit], up["z"].y[visit])} for visit in range(3, 8)]
        alone = merged(own.merge, answers, sent, bounds(own.merge.clip, own.kinds[0]))["z"]
        assert torch.allclose(alone.x, server.z.x[1], rtol=0, atol=1e-15)
        assert torch.allclose(alone.y, server.z.y[1], rtol=0, atol=1e-15)


def test_what_is_clipped_is_the_update():
    """A changed copy of what was sent is judged by the change; anything else by itself; x and y together."""
    sent = {"z": Pair(torch.full((1, 2), 100.0), torch.full((1, 1), -100.0))}
    up = {
        "z": Pair(torch.tensor([[103.0, 100.0], [100.3, 100.0]]), torch.tensor([[-96.0], [-100.4]])),
        "g": Pair(torch.tensor([[0.0, 30.0], [0.1, 0.0]]), torch.tensor([[40.0], [0.0]])),
    }
    sent = {"z": Pair(sent["z"].x.repeat(2, 1), sent["z"].y.repeat(2, 1))}
    found = clipped(up, sent, {"z": 1.0, "g": 5.0})
    assert torch.allclose(found["z"].x[0], torch.tensor([100.6, 100.0]))
    assert torch.allclose(found["z"].y[0], torch.tensor([-99.2]))
    assert torch.allclose(found["g"].x[0], torch.tensor([0.0, 3.0]))
    assert torch.allclose(found["g"].y[0], torch.tensor([4.0]))
    for name in up:  # what is short enough keeps its bits
        assert torch.equal(found[name].x[1], up[name].x[1])
        assert torch.equal(found[name].y[1], up[name].y[1])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_can_be_merged_by_every_rule(name):
    """Vectorised equals client by client; a clip that nobody reaches changes no bit; a small one does."""
    ends = []
    for how in (
        Merge(),
        Merge(clip=1e9),
        Merge(TrimmedMean(0.25)),
        Merge(Median()),
        Merge(clip={"parameters": 0.01, "gradients": 0.05}),
    ):
        found = []
        for ask in (fs.Vectorised(), fs.Loop()):
            study = make_study(quadratic(), ALGORITHMS[name], seeds=range(2), merge=how, executor=ask)
            lanes = begin(study)
            for round in range(2):
                lanes, events = play(study, lanes, round)
                assert not events
            found.append(lanes.server.z.x)
        assert torch.allclose(*found, rtol=0, atol=1e-10)
        ends.append(found[0])
    assert torch.equal(ends[0], ends[1])
    assert len({float(end.sum()) for end in ends}) == 4


def test_kinds_tell_what_each_bound_is_for():
    study = make_study(quadratic(), ALGORITHMS["codasca"])
    assert study.kinds == [{"z": "parameters", "dc": "control variates"}]
    assert bounds({"parameters": 2.0}, study.kinds[0]) == {"z": 2.0}
    assert bounds(3.0, study.kinds[0]) == {"z": 3.0, "dc": 3.0}
    assert bounds(None, study.kinds[0]) == {}


# --- liars -----------------------------------------------------------------------------------------------

LIARS = fs.Faults(hostile=0.1, corruption="sign", factor=30.0)


def judged(how: Merge, faults: fs.Faults | None) -> list[float]:
    """CDMA-NC finding the zeros among scikit-learn's digits, which 50 clients hold at random."""
    return fs.simulate(
        fs.AUC(dataset="digits", clients=50, network="mlp", partition="iid"),
        fs.CDMANC(eta=0.3, gamma=0.3, K=5),
        rounds=25,
        evaluate_every=25,
        seeds=range(3),
        quorum=fs.Quorum(invite=20),
        fleet=fs.Everybody(),
        batch=5,
        merge=how,
        faults=faults,
    ).last("test_auc")


def test_one_liar_in_ten_ruins_the_mean_and_not_the_others():
    assert min(judged(Merge(), None)) > 0.99
    assert max(judged(Merge(), LIARS)) < 0.7  # 0.5 is a coin
    for how in (Merge(TrimmedMean(0.3)), Merge(Median()), Merge(clip=0.1)):
        assert min(judged(how, LIARS)) > 0.98, how


@pytest.mark.parametrize("name", ALGORITHMS)
def test_liars_ruin_the_mean_of_every_algorithm(name):
    def far(*settings: str) -> float:
        common = ["fleet.model=everybody", "K=5", "problem.heterogeneity=0.3", f"algorithms.{name}.invite=20"]
        liars = ["faults.hostile=0.1", "faults.corruption=sign", "faults.factor=100.0"]
        plan = load("quadratic", algorithms=[name], seeds="0", settings=[*common, *liars, *settings])
        *_, end = course(plan.studies[name], 30, 30)
        return end.rows[0].metrics["stationarity"] if end.rows else math.inf

    ruined = far()
    for settings in (["merge.rule=trimmed_mean", "merge.trim=0.3"], ["merge.rule=median"]):
        assert far(*settings) < ruined / 3


# --- the border ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["merge.rule=mode"], "known: mean, median, trimmed_mean"),
        (["merge.rule=trimmed_mean", "merge.trim=0.5"], "trim must be at least 0 and below 0.5"),
        (["merge.trim=0.1"], "unknown key in merge 'trim'"),
        (["merge.clip=-1"], "clip must be above 0"),
        (["merge.clip=long"], "should be a number above 0, or a table"),
        (["merge.clip={parameter=1.0}"], "unknown kind 'parameter'"),
        (["checks.norm=0"], "norm must be above 0"),
        (["checks.strikes=0"], "strikes must be at least 1"),
        (["checks.colour=1"], "unknown key in checks"),
        (["faults.drop=1.5"], "drop must be between 0 and 1"),
        (["faults.corruption=red"], "faults.corruption"),
        (["faults.factor=0"], "factor must be above 0"),
        (["faults.seconds=-1"], "seconds must be between 0"),
    ],
)
def test_what_cannot_be_used_is_refused(settings, why):
    with pytest.raises(fs.BadInput, match=why):
        load("quadratic", settings=settings)


EQUAL = {"weights": "equal", "most_weight": 10.0}


def test_an_experiment_says_how_to_merge():
    plan = load("quadratic", settings=["merge.rule=trimmed_mean", "merge.trim=0.2", "merge.clip=3"])
    study = next(iter(plan.studies.values()))
    assert study.merge == Merge(TrimmedMean(0.2), 3.0)
    assert plan.resolved["merge"] == {"rule": "trimmed_mean", "trim": 0.2, "clip": 3, **EQUAL}
    assert load("quadratic").resolved["merge"] == {
        "rule": "mean",
        "clip": None,
        "weights": "equal",
        "most_weight": 10.0,
    }
    assert set(MERGES) == {"mean", "trimmed_mean", "median"}
