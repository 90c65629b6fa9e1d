"""Unfinished walks: at `partial_work` a device sends the steps that it has made, and they count as a walk."""

import json
import math
import warnings
from dataclasses import dataclass, replace

import pytest
import torch

import fedsaddle as fs
from fedsaddle.algorithms.cdma import plain_walk
from fedsaddle.app.replay import replay_run
from fedsaddle.core import Pair, Reply
from fedsaddle.engine.compile import tapes
from fedsaddle.engine.partial import steps_by
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points
from fedsaddle.fleet import NEVER, Verdict
from fedsaddle.history import Rules, read_history
from test_by_hand import SEEDS, Waves, fed_norm_sgda
from test_engine import assert_same, run
from test_replay import run as run_folder
from zoo import ALGORITHMS, NEWER, fleets, quadratic

BEAR = {
    name: rule
    for name, rule in (ALGORITHMS | NEWER).items()
    if all(phase.partial or not phase.length(0.0) for phase in rule.phases())
    and name not in ("parallel-sgda", "afl")  # which have no walk
}
QUORUM = fs.Quorum(invite=6, minimum=2, deadline=30.0, partial_work=12.0)


@dataclass(frozen=True)
class Paced:
    """Client i needs so many seconds, in every round."""

    seconds: tuple[float, ...]

    def check(self, clients):
        pass

    def delays(self, seeds, round, phase, clients, now):
        return torch.tensor(self.seconds, dtype=torch.float64)[clients]


def test_which_rules_bear_it():
    expected = "cdma-nc cdma-one cdma-ada local-sgda-plus extra-step coda-plus codasca catalyst-scaffold-s"
    newer = (
        "fsgda fess-gda fedavg-m sagda sagda-minibatch fedgda-gt fednest fed-norm-sgda fed-norm-sgda-plus "
        "server-eg server-ogda fedualex"
    )
    assert sorted(BEAR) == sorted([*expected.split(), *newer.split()])


# --- when devices answer, and with how many steps ---------------------------------------------------------


def test_when_devices_answer_and_with_what():
    delays = torch.tensor([[3.0, 10.0, 10.5, 40.0, 79.0, 101.0, NEVER]], dtype=torch.float64)
    there, made = steps_by(10.0, delays, torch.zeros_like(delays), torch.tensor([[8]]))
    assert made.tolist() == [[8, 8, 7, 2, 1, 1, 8]]
    # A step at least: one that is not made by then is waited for.
    assert there.tolist() == [[3.0, 10.0, 10.0, 10.0, 10.0, 101 / 8, NEVER]]


def test_a_device_that_waits_for_its_turn_makes_no_steps_meanwhile(tmp_path):
    trace = fleets(tmp_path)["trace"]  # an answer takes 2 seconds
    delays = torch.tensor([[2.0, 9.0, 11.0, 30.0]], dtype=torch.float64)
    there, made = steps_by(10.0, delays, trace.begun(delays), torch.tensor([[4]]))
    assert made.tolist() == [[4, 4, 2, 1]]
    assert there.tolist() == [[2.0, 9.0, 10.0, 28.5]]


def gatherings(**settings):
    study = fs.make_study(quadratic(), NEWER["fed-norm-sgda"], **{"seeds": (0, 1), "batch": 2} | settings)
    lanes, told = begin(study), []
    for round in range(20):
        lanes, _ = play(study, lanes, round, told)
    return [one.gathering for one in told]


def test_at_its_time_a_phase_has_every_answer_that_will_come():
    fleet = fs.Latency(spread=0.3, slowdown=2.0, dropout=0.2)
    ends = gatherings(fleet=fleet, quorum=QUORUM)
    assert all(end.seconds <= 12.0 or end.lost for end in ends)
    assert all(not end.late for end in ends)
    assert {steps for end in ends for steps in end.steps.values()} <= {1, 2}  # of 3
    assert all(end.steps.keys() <= set(end.used) for end in ends)
    dropped = gatherings(fleet=fleet, quorum=replace(QUORUM, partial_work=None, deadline=12.0))
    # Those who are late there are cut short here.
    for cut, late in zip(ends, dropped, strict=True):
        assert set(cut.used) == {*late.used, *late.late}
        if late.verdict is Verdict.GO:  # of an abandoned phase every answer is late
            assert cut.steps.keys() == set(late.late)


def test_enough_whole_walks_end_a_phase_before():
    ends = gatherings(fleet=fs.Latency(), quorum=replace(QUORUM, enough=2))
    assert any(end.seconds < 12.0 and not end.steps for end in ends)
    assert all(len(end.used) == 2 for end in ends)


# --- what it comes to -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [fs.Loop, fs.Vectorised])
def test_walks_of_different_lengths_by_hand(ask, monkeypatch):
    monkeypatch.setattr(tapes, "PATIENCE", 0)
    hyper = {"eta": 0.11, "gamma": 0.07, "eta_g": 1.2, "gamma_g": 0.7, "K": 6}
    problem, steps = Waves(), [6, 4, 1, 2, 5]
    study = fs.make_study(
        problem,
        fs.FedNormSGDA(**hyper),
        seeds=SEEDS,
        quorum=fs.Quorum(invite=3, partial_work=1.0),
        fleet=Paced(tuple(6 / (n + 0.1) for n in steps)),
        batch=3,
        executor=ask(),
    )
    lanes, told = begin(study), []
    rounds = zip(*(fed_norm_sgda(*problem.init(s), s, **hyper, steps=steps) for s in SEEDS), strict=True)
    for t, expected in enumerate(rounds):
        lanes, _ = play(study, lanes, t, told)
        for z, (x, y) in zip(points(lanes.server), expected, strict=True):
            torch.testing.assert_close(z, Pair(x, y), rtol=0, atol=1e-12)
    assert {client: steps for one in told for client, steps in one.gathering.steps.items()} == {
        client: n for client, n in enumerate(steps) if n < 6
    }


@pytest.mark.parametrize("name", BEAR)
def test_every_way_to_ask_gives_the_same(name, monkeypatch):
    settings = {"fleet": fs.Latency(dropout=0.1), "quorum": QUORUM, "rounds": 6}
    loop = run(BEAR[name], **settings, executor=fs.Loop())
    assert_same(run(BEAR[name], **settings, executor=fs.Vectorised(compiled=False)), loop)
    replays = []
    for kind in (tapes.Tape, tapes.WalkTape):
        monkeypatch.setattr(
            kind, "__call__", lambda *given, play=kind.__call__: replays.append(given) or play(*given)
        )
    monkeypatch.setattr(tapes, "PATIENCE", 0)
    assert_same(run(BEAR[name], **settings, executor=fs.Vectorised()), loop)
    assert len(replays) >= 3


@pytest.mark.parametrize("name", BEAR)
def test_where_nobody_is_cut_short_nothing_changes(name):
    """To the last bit by the loop; the mask of a recording may round its sums otherwise."""
    settings = {"fleet": fs.Latency(), "rounds": 4, "executor": fs.Loop()}
    whole = run(BEAR[name], **settings, quorum=fs.Quorum(invite=6))
    cut = run(BEAR[name], **settings, quorum=fs.Quorum(invite=6, partial_work=1e6))
    assert_same(cut, whole, tolerance=0.0)


def test_codascas_c_stays_the_mean_of_all():
    lanes = run(ALGORITHMS["codasca"], rounds=12, fleet=fs.Latency(dropout=0.1), quorum=QUORUM)
    torch.testing.assert_close(lanes.server.c.x, lanes.memory.x.mean(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(lanes.server.c.y, lanes.memory.y.mean(1), rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Unnormalised(fs.CDMANC):
    """What a client sends counts by how far it has come."""

    def update(self, client, z: fs.Parameters) -> Reply:
        return Reply({"z": plain_walk(client, z, self.eta, self.gamma)})


def stationarity(rule, rounds=200):
    """All answer with exact gradients, and make 1 to 8 steps, always the same."""
    problem = fs.Quadratic(
        clients=6, dim_x=3, dim_y=5, samples=1, noise=0.0, dissimilarity=0.3, heterogeneity=2.0, kappa=3.0
    )
    outcome = fs.simulate(
        problem,
        rule,
        rounds=rounds,
        evaluate_every=rounds,
        progress=False,
        fleet=Paced((1.0, 1.1, 2.1, 3.0, 5.0, 7.9)),
        quorum=fs.Quorum(invite=6, partial_work=1.0),
        batch=1,
    )
    return outcome.last("stationarity")[0]


def test_without_the_division_those_who_step_more_count_more():
    """They go to another point; what is left otherwise is the clients' drift."""
    assert stationarity(Unnormalised(0.04, 0.12, K=8)) > 0.5
    assert stationarity(fs.FedNormSGDA(0.04, 0.12, K=8)) < 1e-3


@pytest.mark.parametrize("rule", [fs.CDMAONE(0.04, 0.12, K=8), fs.SAGDA(0.04, 0.12, K=8)])
def test_corrected_walks_stay_exact(rule):
    assert stationarity(rule, rounds=600) < 1e-20


# --- histories --------------------------------------------------------------------------------------------

SET = ["--set=fleet.model=latency", "--set=quorum.partial_work=12.0", "--set=quorum.minimum=2"]
RULES = "cdma-nc,cdma-one,codasca,catalyst-scaffold-s"


def test_a_run_is_replayed_to_the_last_bit(tmp_path, monkeypatch):
    folder = run_folder(monkeypatch, tmp_path / "run", f"--algorithm={RULES}", *SET)
    told = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert sum(len(line.get("steps", {})) for line in told) > 50
    found = list(replay_run(folder))
    assert len(found) == 12
    assert all(one.exact and one.agrees for one in found)


LINE = {
    "algorithm": "a", "seed": 0, "round": 0, "phase": 0, "invited": [4, 2], "used": [2], "late": [4],
    "refused": {}, "lost": [], "seconds": 1.0, "verdict": "go", "steps": {"2": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ({"4": 1}, "steps of client 4, whose answer was not used"),
        ({"2": 0}, "client 2 made 0 steps"),
        ({"2": 1.5}, "client 2 made 1.5 steps"),
        ({"2": True}, "client 2 made True steps"),
        ({"x": 1}, "'x' is not a client"),
        ([2], "'steps' is not what it should be"),
    ],
)
def test_steps_that_cannot_be_are_refused(steps, why):
    rules = {"a": Rules([fs.Quorum(invite=4, partial_work=1.0)], 5, 1, 3, (0,))}
    assert read_history((json.dumps(LINE) + "\n").encode(), rules).round("a", 0, 0)[0].steps == {2: 1}
    with pytest.raises(fs.BadInput, match=why):
        read_history((json.dumps(LINE | {"steps": steps}) + "\n").encode(), rules)


def test_a_history_with_too_many_steps_or_without_the_option_is_refused():
    plain = {"a": Rules([fs.Quorum(invite=4)], 5, 1, 3, (0,))}
    with pytest.raises(fs.BadInput, match="was cut short, and partial_work is not set"):
        read_history((json.dumps(LINE) + "\n").encode(), plain)
    quorum = fs.Quorum(invite=4, partial_work=1.0)
    data = (json.dumps(LINE | {"steps": {"2": 99}}) + "\n").encode()
    history = read_history(data, {"a": Rules([quorum], 12, 1, 3, (0,))})
    study = fs.make_study(quadratic(), ALGORITHMS["cdma-nc"], quorum=quorum, names=["a"])
    with pytest.raises(fs.BadInput, match="a walk of more steps than were asked for"):
        play(replace(study, history=history), begin(study), 0)


# --- what cannot be ---------------------------------------------------------------------------------------


def test_what_counts_on_all_steps_is_refused():
    with pytest.raises(fs.BadInput, match="MomentumLocalSGDA counts on all steps of a walk"):
        fs.make_study(quadratic(), NEWER["momentum-local-sgda"], quorum=QUORUM)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"partial_work": 0.0}, "partial_work must be above 0"),
        ({"partial_work": math.inf}, "partial_work"),
        ({"partial_work": 31.0}, r"partial_work must be at most deadline \(30\), got 31"),
    ],
)
def test_times_that_cannot_be_are_refused(more, why):
    with pytest.raises(fs.BadInput, match=why):
        fs.Quorum(deadline=30.0, **more)


def test_where_no_steps_are_made_it_is_said_that_it_has_no_effect():
    with pytest.warns(fs.Notice, match="partial_work has no effect"):
        fs.simulate(quadratic(), ALGORITHMS["parallel-sgda"], rounds=1, quorum=QUORUM, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.Notice)
        fs.simulate(quadratic(), ALGORITHMS["cdma-one"], rounds=1, quorum=QUORUM, progress=False)
