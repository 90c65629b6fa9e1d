"""Bounds on steps: what they do, that they do it everywhere, and that without them no bit changes."""

import dataclasses
import itertools
import json

import pytest
import torch

import fedsaddle as fs
from fedsaddle import draws
from fedsaddle.border.build import load
from fedsaddle.border.sweeps import load_sweep
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin
from fedsaddle.flower.wire import agreement
from fedsaddle.steady import step_sizes
from zoo import ALGORITHMS, NEWER, quadratic

TIGHT = fs.Steady(clip=0.02, warmup=3, reach=0.04)


def ends(algorithm, rounds=5, problem=None, **settings):
    """The server's z after each round, of two lanes."""
    settings = {"quorum": fs.Quorum(invite=5), "seeds": (0, 1), "batch": 2} | settings
    study = fs.make_study(problem or quadratic(), algorithm, **settings)
    lanes = begin(study)
    found = [lanes.server.z]
    for round in range(rounds):
        lanes, _ = play(study, lanes, round)
        found.append(lanes.server.z)
    return found


def lengths(found):
    steps = [after - before for before, after in itertools.pairwise(found)]
    return torch.stack([torch.cat([*step], dim=1).norm(dim=1) for step in steps])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_bounds_that_nobody_reaches_move_no_bit(name):
    wide = fs.Steady(clip=1e9, warmup=1, reach=1e9)
    plain, bounded = ends(ALGORITHMS[name]), ends(ALGORITHMS[name], steady=wide)
    assert all(
        torch.equal(a, b)
        for one, other in zip(plain, bounded, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_executor_bounds_alike(name):
    fast, slow = (
        ends(ALGORITHMS[name], 12, executor=one, steady=TIGHT) for one in (fs.Vectorised(), fs.Loop())
    )
    torch.testing.assert_close(fast[-1], slow[-1], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(fast[-1].x, ends(ALGORITHMS[name], 12)[-1].x)


@pytest.mark.parametrize("name", ["cdma-one", "catalyst-scaffold-s", "codasca"])
def test_long_walks_which_are_recorded_by_the_step_are_bounded_too(name):
    long = dataclasses.replace(ALGORITHMS[name], K=20)
    fast, slow = (ends(long, 12, executor=one, steady=TIGHT) for one in (fs.Vectorised(), fs.Loop()))
    torch.testing.assert_close(fast[-1], slow[-1], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nobody_goes_further_than_the_reach(name):
    plain, held = ends(ALGORITHMS[name]), ends(ALGORITHMS[name], steady=fs.Steady(reach=0.01))
    assert lengths(plain).min() > 0.01
    assert lengths(held).max() <= 0.01 * (1 + 1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_is_no_longer_than_its_clipped_steps(name):
    rule = ALGORITHMS[name]
    held = ends(rule, steady=fs.Steady(clip=0.002))
    longest = {"parallel-sgda": 1, "codasca": 1.1 * 3, "catalyst-scaffold-s": 100}.get(name, 3)
    assert lengths(ends(rule)).min() > 0.002 * longest or name == "catalyst-scaffold-s"
    assert lengths(held).max() <= 0.002 * longest * (1 + 1e-12)


def test_a_clipped_walk_by_hand():
    """One client, full batches, two steps of CDMA-NC: each is cut to its length, and then the walk is."""
    problem = quadratic(clients=1, samples=(4, 4))
    clip, reach, eta, gamma = 0.05, 0.08, 0.3, 0.2
    z = problem.init(0)
    rows = dict(problem.federation.rows)
    own = {name: table[0] for name, table in problem.federation.own.items()}
    xi = fs.Batch(rows, own, torch.full((4,), 0.25, dtype=torch.float64), torch.zeros((), dtype=torch.int64))
    x, y = z
    for _ in range(2):
        slope = torch.func.grad(problem.loss)(fs.Pair(x, y), xi)
        dx, dy = -eta * slope.x, gamma * slope.y
        size = (dx.square().sum() + dy.square().sum()).sqrt()
        assert size > clip
        x, y = x + dx * clip / size, y + dy * clip / size
        far = ((x - z.x).square().sum() + (y - z.y).square().sum()).sqrt()
        if far > reach:
            x, y = z.x + (x - z.x) * reach / far, z.y + (y - z.y) * reach / far
    assert far > reach
    (end,) = ends(
        fs.CDMANC(eta, gamma, K=2), 1, problem, batch=4, seeds=(0,), quorum=fs.Quorum(invite=1),
        fleet=fs.Everybody(), steady=fs.Steady(clip=clip, reach=reach),
    )[1:]  # fmt: skip
    torch.testing.assert_close(end, fs.Pair(x[None], y[None]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS | NEWER)
def test_a_warm_up_is_smaller_step_sizes(name):
    rule = (ALGORITHMS | NEWER)[name]
    fields = step_sizes(type(rule))
    assert fields
    quarter = dataclasses.replace(rule, **{field: getattr(rule, field) / 4 for field in fields})
    warm, small = ends(rule, 1, steady=fs.Steady(warmup=4)), ends(quarter, 1)
    torch.testing.assert_close(warm[1], small[1], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(warm[1].x, ends(rule, 1)[1].x)


def test_a_warm_up_ends():
    eta = [0.05 * min(1, (t + 1) / 3) for t in range(5)]
    z = quadratic().init(0)
    warm = ends(fs.CDMANC(0.05, 0.05, K=1), steady=fs.Steady(warmup=3), seeds=(0,))
    for t, (before, after) in enumerate(itertools.pairwise(warm)):
        study = fs.make_study(
            quadratic(), fs.CDMANC(eta[t], eta[t], K=1), seeds=(0,), batch=2, quorum=fs.Quorum(invite=5)
        )
        lanes = begin(study)
        lanes = dataclasses.replace(lanes, server=lanes.server._replace(z=before), completed=[t])
        torch.testing.assert_close(play(study, lanes, t)[0].server.z, after, rtol=1e-12, atol=1e-12)
    assert not torch.equal(z.x, warm[-1].x[0])


def test_which_fields_are_step_sizes():
    assert step_sizes(fs.CDMAADA) == ("c_eta", "c_gamma")
    for rule in NEWER.values():  # what multiplies the way that steps have come is none
        assert not {"eta_g", "gamma_g"} & set(step_sizes(type(rule)))
    assert step_sizes(fs.CODASCA) == ("eta_l",)  # eta_g multiplies what such steps have come to
    assert step_sizes(fs.CatalystScaffoldS) == (
        "eta_l",
        "eta_g",
    )  # of which only the ratio counts at the server


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ({"clip": 0.0}, "clip must be above 0, got 0"),
        ({"reach": -1.0}, "reach must be above 0, got -1"),
        ({"warmup": 0}, "warmup must be at least 1, got 0"),
        ({"clip": float("nan")}, "clip must be"),
    ],
)
def test_bounds_that_cannot_be(bounds, says):
    with pytest.raises(fs.BadInput, match=says):
        fs.Steady(**bounds)


# --- in experiment files ----------------------------------------------------------------------------------


def test_a_table_for_all_and_a_key_for_one():
    plan = load(
        "quadratic",
        algorithms=["cdma-one", "cdma-nc"],
        settings=["steady.clip=0.1", "algorithms.cdma-one.reach=0.5", "algorithms.cdma-one.clip=0.2"],
    )
    assert plan.studies["cdma-nc"].steady == fs.Steady(clip=0.1)
    assert plan.studies["cdma-one"].steady == fs.Steady(clip=0.2, reach=0.5)
    assert plan.resolved["steady"] == {"clip": 0.1, "warmup": None, "reach": None}
    assert plan.resolved["algorithms"]["cdma-one"]["clip"] == 0.2
    assert "reach" not in plan.resolved["algorithms"]["cdma-nc"]
    assert plan.notes == ("steady.clip = 0.1 does not count for cdma-one: their own number does",)


def test_a_device_must_bound_its_steps_as_the_server_does():
    plain, bounded = (load("quadratic", settings=said) for said in ([], ["steady.reach=0.5"]))
    assert agreement(plain, "cdma-one") != agreement(bounded, "cdma-one")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("steady.clip=0.0", "steady: clip must be above 0"),
        ("steady.clamp=1.0", "unknown key in steady 'clamp'; did you mean 'clip'"),
        ("algorithms.cdma-one.warmup=0", "algorithms.cdma-one: warmup must be at least 1"),
        ("algorithms.cdma-one.reach=far", "algorithms.cdma-one.reach: "),
    ],
)
def test_a_bound_that_cannot_be_is_refused_by_its_key(said, says):
    with pytest.raises(fs.BadInput, match=says):
        load("quadratic", settings=[said])


def test_bounds_are_swept_like_hyperparameters(tmp_path):
    found = fs.sweep(
        quadratic(), fs.CDMANC, grid={"eta": [0.05, 0.1], "clip": [0.01, 1.0]}, fixed={"gamma": 0.1},
        rounds=2, by="stationarity", steady=fs.Steady(reach=5.0), out=tmp_path / "swept",
    )  # fmt: skip
    assert {(row["eta"], row["clip"], row["reach"]) for row in found.table} == {
        (eta, clip, 5.0) for eta in (0.05, 0.1) for clip in (0.01, 1.0)
    }
    by_clip = {row["clip"]: row["stationarity"] for row in found.table if row["eta"] == 0.05}
    assert by_clip[0.01] != by_clip[1.0]


def test_a_files_sweep_may_name_bounds(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nrounds = 2\n[problem]\nname = "quadratic"\nclients = 10\n[steady]\nreach = 2.0\n'
        "[algorithms.cdma-one]\neta = 0.1\ngamma = 0.1\n"
        "[sweep.grid.cdma-one]\nclip = [0.1, 0.2]\nwarmup = [5, 10]\n"
    )
    plan = load_sweep(str(path))
    steady = {study.steady for study in plan.studies.values()}
    assert steady == {fs.Steady(clip, warmup, 2.0) for clip in (0.1, 0.2) for warmup in (5, 10)}


# --- who is invited ---------------------------------------------------------------------------------------


def cohorts(study, rounds):
    """The invited clients of each phase, round by round, of the first lane."""
    lanes, found = begin(study), []
    for round in range(rounds):
        told = []
        lanes, _ = play(study, lanes, round, told)
        found.append([one.gathering.invited for one in told if one.seed == study.seeds[0]])
    return found


@pytest.mark.parametrize("executor", [fs.Loop(), fs.Vectorised()])
def test_the_collecting_phase_may_ask_more_clients(executor):
    settings = {"seeds": (0, 1), "batch": 2, "executor": executor}
    plain = fs.make_study(quadratic(), ALGORITHMS["cdma-one"], quorum=fs.Quorum(invite=4), **settings)
    more = fs.make_study(
        quadratic(), ALGORITHMS["cdma-one"], quorum=fs.Quorum(invite=4, collect=9), **settings
    )
    for usual, (collect, update) in zip(cohorts(plain, 12), cohorts(more, 12), strict=True):
        assert (len(collect), len(update)) == (9, 4)
        assert [collect[:4], update] == usual  # those that would be asked anyway are
    same = dataclasses.replace(more, cohorts="invited")
    assert all(collect[:4] == update for collect, update in cohorts(same, 3))


def test_larger_first_cohorts_give_the_mean_over_all_clients():
    """With everybody in the first cohort, u is the gradient of f itself, whoever then walks."""
    every = fs.Quorum(invite=2, collect=12)
    rule = fs.CDMAONE(0.1, 0.2, K=1)
    found = ends(rule, 1, quorum=every, fleet=fs.Everybody())
    whole = ends(fs.ParallelSGDA(0.1, 0.2), 1, quorum=fs.Quorum(invite=12), fleet=fs.Everybody())
    torch.testing.assert_close(found[1], whole[1], rtol=1e-12, atol=1e-12)


def test_of_a_larger_cohort_the_same_part_is_enough():
    quorum = fs.Quorum(invite=8, enough=5, minimum=2, collect=20)
    assert quorum.collecting == fs.Quorum(invite=20, enough=13, minimum=2)
    assert fs.Quorum(invite=8).collecting == fs.Quorum(invite=8)


@pytest.mark.parametrize(
    ("quorum", "says"),
    [
        ({"invite": 4, "collect": 13}, "collect must be at most the number of clients .12., got 13"),
        ({"invite": 4, "minimum": 3, "collect": 2}, "collect must be at least minimum .3., got 2"),
    ],
)
def test_first_cohorts_that_cannot_be(quorum, says):
    with pytest.raises(fs.BadInput, match=says):
        fs.make_study(quadratic(), ALGORITHMS["cdma-one"], quorum=fs.Quorum(**quorum))


def test_a_first_cohort_that_nobody_asks_for_is_noted():
    note = "quorum.collect = 9 has no effect: all phases take local steps"
    assert note in load("quadratic", algorithms=["cdma-nc"], settings=["quorum.collect=9"]).notes
    assert note not in load("quadratic", algorithms=["cdma-one"], settings=["quorum.collect=9"]).notes


def test_strata_take_turns():
    """Of 50 clients 5 hold mostly positives: a cohort of 20 has two of them, give or take one."""
    problem = fs.AUC(dataset="digits")
    positive = [(problem.data.labels[rows] == problem.target).double().mean() for rows in problem.parts]
    holders = {client for client, part in enumerate(positive) if part > 0.5}
    assert len(holders) == 5
    settings = {"quorum": fs.Quorum(invite=20), "fleet": fs.Everybody()}

    def counts(**more):
        study = fs.make_study(problem, fs.CDMANC(0.1, 0.1, K=1), **settings, **more)
        return [len(holders & set(phase)) for round in cohorts(study, 30) for phase in round]

    turns = counts(strata="positive")
    assert turns == counts(strata=[int(client in holders) for client in range(50)])
    assert set(turns) <= {1, 2, 3}
    assert not set(counts()) <= {1, 2, 3}


def test_every_client_is_invited_as_often_as_without_strata():
    strata = torch.tensor([0] * 3 + [1] * 9 + [2] * 28)
    keys = torch.arange(4000) * 7919
    chosen = torch.tensor(draws.choose_in_turn(keys, strata, 10))
    assert all(len(set(own)) == 10 for own in chosen[:100].tolist())
    often = torch.bincount(chosen.flatten(), minlength=40) / len(keys)
    assert (often - 0.25).abs().max() < 0.04
    share = torch.stack([(strata[chosen] == number).sum(1) for number in range(3)], 1)
    assert (share - torch.tensor([0.75, 2.25, 7.0])).abs().max() <= 1.25  # give or take one
    assert (
        draws.choose_in_turn(keys[:5], strata, 4) == chosen[:5, :4].tolist()
    )  # a cohort begins a larger one


@pytest.mark.parametrize(
    ("strata", "says"),
    [
        ("label", "unknown column in strata 'label'; .*positive"),
        ([0, 1], "strata must be a column, or a whole number for each of the 50 clients"),
        ([0.5] * 50, "strata must be a column"),
    ],
)
def test_strata_that_cannot_be(strata, says):
    with pytest.raises(fs.BadInput, match=says):
        fs.make_study(fs.AUC(dataset="digits"), fs.CDMANC(0.1, 0.1), strata=strata)


def test_strata_and_weights_are_two_answers_to_one_question():
    with pytest.raises(fs.BadInput, match="give one of them"):
        fs.make_study(quadratic(), fs.CDMANC(0.1, 0.1), weights=[1.0] * 12, strata=[0] * 12)


def test_strata_in_an_experiment_file():
    plan = load("auc-digits", settings=["sampling={strata='positive'}"])
    study = plan.studies["cdma-one"]
    assert int(study.strata.sum()) == 5
    assert study.weights is None
    assert plan.resolved["sampling"] == {"strata": "positive"}
    for said, says in (
        ("sampling={stratum='positive'}", "unknown key in sampling 'stratum'"),
        ("sampling={}", "sampling.strata is missing"),
        ("sampling={strata='colour'}", "unknown column in strata 'colour'"),
        ("sampling={strata=0.5}", "sampling: should be 'uniform', 'size', a list of weights, or"),
    ):
        with pytest.raises(fs.BadInput, match=says):
            load("auc-digits", settings=[said])


def test_strata_that_were_said_in_python_are_in_the_folder(tmp_path):
    fs.run(quadratic(), fs.CDMANC(0.1, 0.1), rounds=1, strata=[0, 1] * 6, out=tmp_path / "run", report=False)
    experiment = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert experiment["sampling"] == {"strata": [0, 1] * 6}
