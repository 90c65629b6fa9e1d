"""Who answers may hold other data than who does not: the bias of it, and what takes it away."""

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
from benchmarks import availability

import fedsaddle as fs
from fedsaddle.app.replay import replay_run
from fedsaddle.border.build import load
from fedsaddle.checks import origin
from fedsaddle.core import Pair
from fedsaddle.engine.executors.loop import Loop
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.propensity import count, propensities, weights_of
from fedsaddle.engine.round import play
from fedsaddle.engine.study import Attendance, begin, points
from fedsaddle.fleet import NEVER, Quorum, Verdict
from fedsaddle.history import Gathering
from fedsaddle.merges import Median, Merge, weighted
from fedsaddle.runs import RunFolder, execute, read_checkpoint
from fedsaddle.simulate import make_study
from zoo import ALGORITHMS, NEWER, quadratic

INVERSE = Merge(weights="inverse_propensity")
TORN = fs.Dropout(tuple(0.7 * (client % 2) for client in range(12)))  # every other client is hardly there
GO = Verdict.GO


# --- the bias, predicted and measured -----------------------------------------------------------------------


def where_it_leads(problem, fleet, merge, rounds=600):
    """The mean of the second half of a run's points: of a quadratic, where its expected steps end."""
    found = []

    def watch(stop):
        if stop.round > rounds // 2:
            found.append(stop.lanes.server.z.x.mean(0))

    fs.simulate(
        problem,
        fs.ParallelSGDA(eta=0.15, gamma=0.3),
        rounds=rounds,
        evaluate_every=rounds,
        seeds=range(4),
        quorum=Quorum(invite=8),
        fleet=fleet,
        merge=merge,
        watch=watch,
    )
    return float(problem.grad_phi(torch.stack(found).mean(0)).square().sum())


@pytest.fixture(scope="module")
def torn():
    problem = fs.Quadratic(clients=40, kappa=5.0, dissimilarity=0.1, noise=0.0, samples=1)
    return problem, availability.absences(problem)


def test_the_answers_alone_lead_to_another_solution_and_weights_back(torn):
    """T11: to x', which solves the problem with weights proportional to 1 - r_i."""
    problem, rates = torn
    assert float(problem.grad_phi(availability.solved(problem, torch.ones(40).double()).x).norm()) < 1e-12
    predicted = availability.predicted(problem, rates)
    fleet = fs.Dropout(tuple(rates.tolist()))
    assert where_it_leads(problem, fs.Everybody(), Merge()) < 0.02 * predicted
    assert where_it_leads(problem, fleet, Merge()) == pytest.approx(predicted, rel=0.35)
    assert where_it_leads(problem, fleet, INVERSE) < 0.1 * predicted


def test_what_was_measured_once_is_what_is_predicted():
    """The instance of docs/results/availability.md."""
    problem = fs.Quadratic(clients=200)
    assert availability.predicted(problem, availability.absences(problem)) == pytest.approx(0.01311, abs=5e-6)


# --- the weights --------------------------------------------------------------------------------------------


def test_known_propensities_make_the_mean_unbiased():
    """Over all that can happen to a cohort, the expected weighted mean is the mean of all, exactly."""
    chances, updates = [1.0, 0.2, 0.5, 0.05], torch.tensor([3.0, -1.0, 7.0, 40.0]).double()
    outcomes = [
        (math.prod(p if there else 1 - p for p, there in zip(chances, answered, strict=True)), answered)
        for answered in product([0, 1], repeat=4)
        if any(answered)
    ]
    scale, many = sum(chance for chance, _ in outcomes), 1e15
    attendance = Attendance(*torch.zeros(2, 1, 1, 4).double())
    attendance.invited[:] = many
    for chance, answered in outcomes:
        attendance.used[0, 0] += many * chance / scale * 4 / sum(answered) * torch.tensor(answered).double()
    weights = weights_of(attendance, 0, [[0, 1, 2, 3]], most=1e6)
    plain = mean = 0.0
    for chance, answered in outcomes:
        there = torch.tensor(answered).bool()
        plain += chance / scale * float(updates[there].mean())
        mean += chance / scale * float((weights * updates)[there].mean())
    assert mean == pytest.approx(float(updates.mean()), rel=1e-12)
    assert abs(plain - mean) > 5


def test_where_all_answer_all_weights_are_one():
    attendance = Attendance(*torch.zeros(2, 2, 1, 5).double())
    for round in range(7):
        cohort = [(round + place) % 5 for place in range(3)]
        count(attendance, 1, 0, cohort, Gathering(cohort, cohort, [], {}, [], 1.0, GO, []))
    assert torch.equal(propensities(attendance), torch.ones(2, 1, 5).double())
    # Nor does it matter that some rounds have fewer answers, if that is all that differs.
    for there in ([0, 1, 2, 3], [4, 0, 1, 2]):
        count(attendance, 0, 0, there, Gathering(there, there[:2], there[2:], {}, [], 1.0, GO, []))
    assert float(attendance.used[0].sum()) == float(attendance.invited[0].sum()) == 8
    nothing = Gathering([0, 1], [], [0], {}, [1], 1.0, Verdict.ABANDON, [])
    before = attendance.invited.clone()
    count(attendance, 0, 0, [0, 1], nothing)
    assert torch.equal(attendance.invited, before)


def test_a_weight_is_clipped_and_the_absent_weigh_more():
    attendance = Attendance(
        torch.tensor([[[9.0, 9.0, 0.0]]]).double(), torch.tensor([[[14.0, 0, 0]]]).double()
    )
    found = weights_of(attendance, 0, [[0, 1, 2]], most=4.0)
    assert found.tolist() == pytest.approx([10 / 15, 4.0, 1.0])


def test_an_update_is_scaled_and_one_that_counts_once_keeps_its_bits():
    up = {"z": Pair(torch.randn(3, 2), torch.randn(3, 4)), "g": Pair(torch.ones(3, 2), torch.ones(3, 4))}
    up["dc"] = up["z"]
    sent = {"z": Pair(torch.randn(3, 2), torch.randn(3, 4))}
    kinds = {"z": "parameters", "g": "gradients", "dc": "control variates"}
    found = weighted(up, sent, torch.tensor([1.0, 2.0, 0.5]).double(), kinds)
    assert torch.equal(found["z"].x[0], up["z"].x[0])
    assert torch.allclose(found["z"].y[1], sent["z"].y[1] + 2 * (up["z"].y[1] - sent["z"].y[1]))
    assert found["g"].x.tolist() == [[1, 1], [2, 2], [0.5, 0.5]]
    assert found["dc"] is up["dc"]
    with pytest.raises(fs.BadInput, match="send them down as 'z' too"):
        weighted(up, {}, torch.ones(3), kinds)


def test_an_update_of_one_player_is_counted_from_what_was_sent_of_it():
    sent = {"z": Pair(torch.ones(3), torch.ones(4))}
    found = origin("z", Pair(torch.zeros(3), torch.zeros(0)), sent)
    assert torch.equal(found.x, sent["z"].x)
    assert found.y.shape == (0,)


# --- every engine, every algorithm --------------------------------------------------------------------------


def after(study, rounds=10):
    lanes = begin(study)
    for round in range(rounds):
        lanes, _ = play(study, lanes, round)
    return lanes


@pytest.mark.parametrize("name", ["cdma-ada", "codasca"])
def test_weights_of_one_change_no_bit(name):
    common = {"quorum": Quorum(invite=4), "fleet": fs.Everybody(), "seeds": range(2), "batch": 2}
    rule = (ALGORITHMS | NEWER)[name]
    plain = after(make_study(quadratic(), rule, **common))
    found = after(make_study(quadratic(), rule, merge=INVERSE, **common))
    assert plain.attendance is None
    assert found.attendance is not None
    assert all(
        torch.equal(*both)
        for mine, theirs in zip(points(plain.server), points(found.server), strict=True)
        for both in zip(mine, theirs, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "cohorts"), [("cdma-ada", "answered"), ("codasca", "independent"), ("fednest", "invited")]
)
def test_the_loop_and_recordings_agree(name, cohorts):
    rule = (ALGORITHMS | NEWER)[name]
    ends = []
    for executor in (Loop(), Vectorised(compiled=False), Vectorised()):
        study = make_study(
            quadratic(),
            rule,
            merge=INVERSE,
            quorum=Quorum(invite=4),
            fleet=TORN,
            seeds=range(2),
            batch=2,
            cohorts=cohorts,
            executor=executor,
        )
        lanes = after(study, rounds=12)
        assert not torch.equal(lanes.attendance.used, lanes.attendance.invited)
        ends.append(lanes)
        study.close()
    for other in ends[1:]:
        assert torch.equal(other.attendance.used, ends[0].attendance.used)
        for mine, theirs in zip(points(other.server), points(ends[0].server), strict=True):
            assert torch.allclose(mine.x, theirs.x, atol=1e-12)
            assert torch.allclose(mine.y, theirs.y, atol=1e-12)
    if name == "codasca":  # the server's c is still the mean of all c_i
        mean = ends[0].memory.x.mean(1)
        assert torch.allclose(ends[0].server.c.x, mean, atol=1e-12)


def test_of_those_who_answered_whoever_was_drawn_was_to_be_used():
    lanes = after(
        make_study(
            quadratic(),
            ALGORITHMS["cdma-one"],
            merge=INVERSE,
            quorum=Quorum(invite=4),
            fleet=TORN,
            cohorts="answered",
        )
    )
    invited = lanes.attendance.invited
    assert torch.equal(invited[:, 0], invited[:, 1])


# --- run folders --------------------------------------------------------------------------------------------

TOLD = ["fleet={model='dropout', rate=0.4}", "merge.weights=inverse_propensity", "K=2"]


class Quiet:
    def begin(self, algorithm, start): ...
    def stop(self, algorithm, stop): ...


def executed(folder, rounds, stop=None, resume=False):
    settings = [*TOLD, "problem.clients=20", "quorum.invite=6"]
    plan = load(
        "quadratic", algorithms=["codasca"], rounds=rounds, seeds="0,1", settings=settings, history=True
    )
    run = RunFolder(folder, plan, resume=resume)
    try:
        execute(run, Quiet(), checkpoint_seconds=0, **({} if stop is None else {"play": stop}))
    finally:
        run.close()


def test_a_weighted_run_replays_and_resumes_to_the_same_bytes(tmp_path):
    executed(tmp_path / "whole", 8)
    assert all(one.exact and one.agrees for one in replay_run(tmp_path / "whole"))

    def until_five(study, lanes, round, history=None):
        if round == 5:
            raise fs.BadInput("killed")
        return play(study, lanes, round, history)

    with pytest.raises(fs.BadInput, match="killed"):
        executed(tmp_path / "cut", 8, until_five)
    assert read_checkpoint(tmp_path / "cut")["state"]["round"] == 5
    executed(tmp_path / "cut", 8, resume=True)
    name = "final/codasca.safetensors"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# --- stratified quorums -------------------------------------------------------------------------------------


def test_seats_are_shared_in_proportion_and_parts_of_a_seat_go_round():
    strata = [0] * 5 + [1] * 2 + [2]
    total = Counter()
    for word in range(8):
        seats = Quorum(invite=8, enough=4, stratified=True).seats(strata, word)
        assert sum(seats.values()) == 4
        assert all(abs(seats[own] - 4 * strata.count(own) / 8) < 1 for own in range(3))
        total += seats
    assert total == {0: 20, 1: 8, 2: 4}  # 2.5, 1 and 0.5 seats on average
    assert Quorum(invite=8, stratified=True).seats(strata) == Counter(strata)  # all are waited for


def test_a_stratified_quorum_waits_for_the_slow_ones():
    quorum, strata = Quorum(invite=6, enough=3, minimum=2, deadline=20.0, stratified=True), [0, 0, 0, 0, 1, 1]
    seats = quorum.seats(strata)
    assert seats == {0: 2, 1: 1}
    delays = [1.0, 2.0, 3.0, 4.0, 9.0, 8.0]
    assert quorum.settle(delays, (), strata, seats)[:4] == ([0, 1, 5], [2, 3, 4], 8.0, GO)
    assert quorum.settle(delays)[:4] == ([0, 1, 2], [3, 5, 4], 3.0, GO)
    # An answer that is refused leaves its seat to the next; one that never comes, at the deadline, empty.
    assert quorum.settle(delays, [1, 5], strata, seats)[:4] == ([0, 2, 4], [3], 9.0, GO)
    lost = [1.0, 2.0, 3.0, 4.0, NEVER, NEVER]
    assert quorum.settle(lost, (), strata, seats)[:4] == ([0, 1], [2, 3], 20.0, GO)


def test_a_stratified_run_uses_each_stratum_in_its_share():
    study = make_study(
        quadratic(),
        ALGORITHMS["cdma-nc"],
        quorum=Quorum(invite=6, enough=3, stratified=True),
        strata=[0, 1] * 6,
        fleet=fs.Latency(slow=tuple([0.0, 1.0] * 6), slowdown=50.0),
        seeds=range(2),
    )
    lanes, told = begin(study), []
    for round in range(20):
        lanes, _ = play(study, lanes, round, told)
    used = Counter(client % 2 for one in told for client in one.gathering.used)
    assert used.total() == 120
    assert abs(used[0] - used[1]) <= 14
    plain = replace(study, quorum=Quorum(invite=6, enough=3))
    lanes, told = begin(plain), []
    for round in range(20):
        lanes, _ = play(plain, lanes, round, told)
    assert not any(client % 2 for one in told for client in one.gathering.used)


# --- fleets that are tied to the data -----------------------------------------------------------------------


def test_a_fleet_is_tied_to_the_data():
    settings = ["fleet={model='latency', slow={positive=[0.0, 0.9]}}"]
    plan = load("auc-digits", algorithms=["cdma-nc"], settings=settings)
    study = plan.studies["cdma-nc"]
    held = study.problem.federation
    owner = torch.repeat_interleave(torch.arange(len(held)), held.sizes)
    holders = set(owner[held.rows["positive"]].tolist())
    assert study.fleet.slow == tuple(0.9 * (client in holders) for client in range(50))
    assert plan.resolved["fleet"]["slow"] == {"positive": [0.0, 0.9]}
    found = fs.Dropout({"positive": (0.1, 0.2)}).tied(lambda column: torch.tensor([1, 0, 1]))
    assert found.rate == (0.2, 0.1, 0.2)


# --- the border ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["merge.weights=size"], "merge.weights: should be 'equal' or 'inverse_propensity', got 'size'"),
        (["merge.weights=inverse_propensity", "merge.rule=median"], "goes with the rule mean"),
        (["merge.most_weight=0.5"], "most_weight must be between 1 and"),
        (["quorum.stratified=true"], r"needs strata: say sampling = \{ strata"),
        (["quorum.stratified=1"], "quorum.stratified: "),
        (["fleet={model='latency', slow={colour=[0.1, 0.2]}}"], "unknown column in strata 'colour'"),
        (["fleet={model='latency', slow={positive=[0.1]}}"], "a rate for each of the 2 strata by 'positive'"),
        (["fleet={model='latency', slow={positive=[0.1, 2.0]}}"], "slow.positive must be between 0 and 1"),
        (["fleet={model='dropout', rate={a=[0.1], b=[0.2]}}"], "rate goes by one column"),
        (["fleet={model='dropout', rate={positive=0.3}}"], "fleet.rate: should be a number, a list"),
    ],
)
def test_what_cannot_be_is_refused(settings, why):
    with pytest.raises(fs.BadInput, match=why):
        load("auc-digits", algorithms=["cdma-nc"], settings=settings)


def test_what_has_no_effect_is_said():
    plan = load("quadratic", settings=["merge.most_weight=3.0"])
    assert "merge: most_weight = 3.0 has no effect: all answers weigh the same" in plan.notes
    with pytest.raises(fs.BadInput, match="goes with the rule mean"):
        Merge(Median(), weights="inverse_propensity")


def test_the_benchmark_runs_and_tells(tmp_path, capsys):
    availability.main(
        ["quadratic", "--rounds", "2", "--seeds", "2", "--clients", "20", "--out", str(tmp_path)]
    )
    small = ["--algorithm", "cdma-nc", "--rounds", "2", "--seeds", "2", "--slowdowns", "2"]
    availability.main(["auc", *small, "--out", str(tmp_path)])
    told = capsys.readouterr().out
    assert "predicted for the mean of the answers: " in told
    assert "slowdown 2: holders of positives had " in told
    for contender in ("| 0.8 | weights, at most 10 | ", "| 2 | first 8, stratified | "):
        assert contender in told
    for name in ("availability-digits.png", "availability-quadratic.csv"):
        assert (tmp_path / name).exists()
