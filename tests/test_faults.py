"""Faults are drawn, seen or not seen, counted, and never break a rule: hundreds of random plans, replayed."""

import math
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import fedsaddle as fs
from fedsaddle import runs
from fedsaddle.checks import NOT_FINITE, REASONS, TOO_LARGE, Checks, judge, refuse
from fedsaddle.core import Pair
from fedsaddle.engine.course import traffic
from fedsaddle.engine.round import play
from fedsaddle.engine.study import Posted, begin
from fedsaddle.faults import Faults
from fedsaddle.fleet import Verdict, invite
from fedsaddle.history import Rules, Told, line, read_history
from fedsaddle.merges import Mean, Median, Merge, TrimmedMean
from fedsaddle.simulate import make_study
from test_replay import fedsaddle
from zoo import ALGORITHMS, quadratic

PAIR = Pair(torch.tensor([1.0, 2.0]), torch.tensor([-1.0]))


# --- the check of answers --------------------------------------------------------------------------------


def test_an_answer_that_fits_is_taken():
    assert refuse({"z": PAIR}, {"z": PAIR}, {}, {}) is None
    assert refuse({"z": tuple(PAIR)}, {"z": PAIR}, {"z": PAIR}, {"z": 1e-9}) is None


BAD = {
    "not a message": ([PAIR], "expected z, got list"),
    "other names": ({"g": PAIR}, "expected z, got"),
    "more names": ({"z": PAIR, "g": PAIR}, "expected z, got"),
    "no pair": ({"z": PAIR.x}, "z is not a pair"),
    "three": ({"z": (*PAIR, PAIR.x)}, "z is not a pair"),
    "numbers": ({"z": ([1.0], [2.0])}, "z.x is not a tensor"),
    "type": ({"z": Pair(PAIR.x.double(), PAIR.y)}, "z.x is torch.float64, not torch.float32"),
    "shape": ({"z": Pair(PAIR.x, PAIR.x)}, r"z.y has shape \(2,\), not \(1,\)"),
    "stacked": ({"z": Pair(PAIR.x[None], PAIR.y)}, r"z.x has shape \(1, 2\), not \(2,\)"),
    "nan": ({"z": PAIR * math.nan}, "not finite"),
    "inf": ({"z": Pair(PAIR.x, PAIR.y * math.inf)}, "not finite"),
    "large": ({"z": PAIR * 100.0}, "larger than the norm bound"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_answer_that_does_not_fit_is_refused(name):
    message, why = BAD[name]
    told = refuse(message, {"z": PAIR}, {"z": PAIR}, {"z": 10.0})
    assert told is not None
    assert re.search(why, told)


def test_answers_are_judged_one_by_one():
    z = Pair(torch.zeros(3, 2), torch.zeros(3, 1))
    up = {"z": Pair(torch.tensor([[1.0, 0.0], [math.nan, 0.0], [1e30, 1e30]]), z.y), "g": z}
    assert judge(up, {"z": z}, {"z": 5.0}).tolist() == [0, NOT_FINITE, TOO_LARGE]
    assert judge(up, {"z": z}, {}).tolist() == [0, NOT_FINITE, 0]


@pytest.mark.parametrize("corruption", ["nan", "inf", "shape", "sign", "scale"])
def test_what_is_said_to_be_seen_is_seen(corruption):
    """The simulator refuses these without looking: the check would too."""
    faults = Faults(corruption=corruption)
    sent, up = {"z": PAIR * 3.0}, {"z": PAIR * 4.0}
    told = refuse(faults.spoil(up, sent), {"z": PAIR}, sent, {})
    assert (told is not None) == (faults.seen is not None)
    if corruption in ("sign", "scale"):
        factor = {"sign": -10.0, "scale": 10.0}[corruption]
        assert torch.allclose(faults.spoil(up, sent)["z"].x, PAIR.x * (3 + factor))
        assert torch.allclose(faults.spoil(up, {})["z"].x, PAIR.x * 4 * factor)


# --- drawing ---------------------------------------------------------------------------------------------


def test_faults_are_a_function_of_seed_round_phase_and_client():
    faults = Faults(drop=0.3, delay=0.2, seconds=7.0, duplicate=0.4, corrupt=0.1, hostile=0.2)
    seeds, clients = torch.arange(40), torch.arange(50).repeat(40, 1)
    ones = torch.ones(40, 50, dtype=torch.float64)
    whole = faults.delays(seeds, 3, 1, clients, ones)
    lost, held = whole == math.inf, whole == 8.0
    assert float(lost.double().mean()) == pytest.approx(0.3, abs=0.04)
    assert float(held.double().mean()) == pytest.approx(0.2 * 0.7, abs=0.04)
    assert torch.equal(faults.delays(seeds[5:6], 3, 1, clients[5:6, 7:9], ones[5:6, 7:9])[0], whole[5, 7:9])
    assert not torch.equal(faults.delays(seeds, 4, 1, clients, ones), whole)
    assert not torch.equal(faults.delays(seeds, 3, 0, clients, ones), whole)
    assert float(faults.duplicated(seeds, 3, 1, clients).double().mean()) == pytest.approx(0.4, abs=0.04)
    bad = [faults.corrupted(seeds[:, None], round, 0, clients) for round in range(12)]
    assert float(bad[0].double().mean()) == pytest.approx(0.28, abs=0.04)
    always = torch.stack(bad).all(0)
    assert float(always.double().mean()) == pytest.approx(0.2, abs=0.04)  # the hostile ones


def test_barred_clients_are_passed_over():
    seeds = torch.arange(30)
    whole = invite(seeds, 2, 0, 12, 12, None).tolist()
    out = [set(order[::3]) for order in whole]
    found = invite(seeds, 2, 0, 12, 6, None, out).tolist()
    for order, barred, own in zip(whole, out, found, strict=True):
        assert own == [client for client in order if client not in barred][:6]
    # Too few are left: the barred come last.
    found = invite(seeds[:1], 2, 0, 12, 10, None, out[:1]).tolist()[0]
    assert set(found[:8]) == set(range(12)) - out[0]


# --- in rounds -------------------------------------------------------------------------------------------


def history_of(study, rounds: int):
    told: list[Told] = []
    lanes, events = begin(study), []
    for round in range(rounds):
        lanes, more = play(study, lanes, round, told)
        events += more
    return lanes, told, events


def test_corrupted_answers_are_refused_and_made_up_for():
    """A third of the answers are not numbers; the first four good ones are merged, as if alone."""
    quorum = fs.Quorum(invite=10, enough=4)
    faults = Faults(corrupt=0.33, duplicate=0.2, corruption="nan")
    study = make_study(quadratic(), ALGORITHMS["cdma-one"], quorum=quorum, fleet=fs.Latency(), faults=faults)
    lanes, told, _ = history_of(study, 8)
    refused = Counter()
    for one in told:
        bad = faults.corrupted(
            torch.tensor(0), one.round, one.phase, torch.tensor(one.gathering.invited)
        ).tolist()
        spoilt = {client for client, is_bad in zip(one.gathering.invited, bad, strict=True) if is_bad}
        assert not spoilt & set(one.gathering.used)
        assert len(one.gathering.used) == min(4, 10 - len(spoilt))
        assert set(one.gathering.refused) <= spoilt
        assert set(one.gathering.refused.values()) <= {REASONS[NOT_FINITE]}
        refused[one.phase] += len(one.gathering.refused) + len(one.gathering.duplicate)
    assert refused[0] > 5
    assert lanes.posted[0][Posted("refused", 0)] == refused[0]
    assert sum(n for flow, n in traffic(study, lanes, 0).items() if flow.direction == "refused") == 7 * (
        refused[0] + refused[1]
    )


def test_the_norm_bound_refuses_what_it_should_and_goes_on():
    """Liars a thousand times too far are refused, and struck out; the run is that of a fleet without them."""
    quorum = fs.Quorum(invite=6, enough=4, minimum=2)
    faults = Faults(hostile=0.25, corruption="scale", factor=1e4)
    checks = Checks(norm={"parameters": 5.0, "gradients": 50.0}, strikes=2)
    for name in ("cdma-ada", "codasca", "parallel-sgda"):
        study = make_study(
            quadratic(),
            ALGORITHMS[name],
            seeds=range(3),
            quorum=quorum,
            fleet=fs.Latency(),
            faults=faults,
            checks=checks,
        )
        lanes, told, _ = history_of(study, 12)
        liars = faults.corrupted(torch.arange(3)[:, None], 0, 0, torch.arange(12).repeat(3, 1))
        refused = 0
        for one in told:
            liar = {client for client in range(12) if liars[one.seed, client]}
            assert not liar & set(one.gathering.used)
            assert set(one.gathering.refused) <= liar
            assert set(one.gathering.refused.values()) <= {REASONS[TOO_LARGE]}
            refused += len(one.gathering.refused)
        assert refused > 3
        for lane, strikes in enumerate(lanes.strikes):
            assert set(strikes) <= {client for client in range(12) if liars[lane, client]}
            assert all(count <= 2 for count in strikes.values())  # nobody who is out is invited
        # The honest clients' answers alone make the same parameters.
        rules = {study.names[0]: Rules(study.quorums, 12, len(study.algorithm.phases()), 12, study.seeds)}
        script = read_history("".join(map(line, told)).encode(), rules)
        honest = replace(study, faults=None, checks=None, history=script)
        again, _, _ = history_of(honest, 12)
        for mine, theirs in zip(tree_leaves(again.server), tree_leaves(lanes.server), strict=True):
            assert torch.equal(mine, theirs)


def test_an_honest_answer_that_is_not_finite_is_refused_if_answers_are_checked():
    """Without checks the lane diverges; with them its answer is refused like any other's."""
    hot = fs.CDMANC(eta=1e200, gamma=1e200, K=3)
    lanes, _, events = history_of(make_study(quadratic(), hot), 1)
    assert lanes.alive == [False]
    assert events[0].what == "diverged"
    lanes, told, events = history_of(make_study(quadratic(), hot, checks=Checks(strikes=1)), 3)
    assert lanes.alive == [True]
    assert [event.what for event in events] == ["abandoned"] * 3
    assert "refused" in events[0].detail
    assert all(one.gathering.refused for one in told if one.gathering.invited)
    assert torch.equal(lanes.server.z.x[0], quadratic().init(0).x)


def test_strikes_survive_a_checkpoint(tmp_path, monkeypatch):
    words = ["run", "quadratic", "--algorithm=cdma-one", "--rounds=8", "--seeds=0", "--history", "--quiet"]
    words += ["--set=problem.clients=20", "--set=faults.hostile=0.3", "--set=checks.strikes=1"]
    words += ["--set=evaluate_every=2", "--checkpoint-seconds=0"]
    assert fedsaddle(monkeypatch, *words, f"--out={tmp_path / 'whole'}") == 0
    execute = runs.execute

    def until(folder, watch, asked, seconds, play):
        rounds = []
        execute(folder, watch, lambda: rounds.append(0) or len(rounds) > 4, seconds, play)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "execute", until)
        assert fedsaddle(patch, *words, f"--out={tmp_path / 'half'}") == 130
    assert fedsaddle(monkeypatch, *words, f"--out={tmp_path / 'half'}", "--resume") == 0
    whole, again = ((tmp_path / name / "history.jsonl").read_bytes() for name in ("whole", "half"))
    assert whole == again
    assert b"not finite" in whole
    assert fedsaddle(monkeypatch, "replay", tmp_path / "half") == 0


# --- hundreds of plans -----------------------------------------------------------------------------------

PROBLEM = quadratic(clients=10, dim_x=2, dim_y=2)
ASKS = {name: fs.Vectorised() for name in ALGORITHMS}  # each remembers how much memory its visits need
RATE = st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0])


@st.composite
def plans(draw):
    invited = draw(st.integers(1, 8))
    enough = draw(st.none() | st.integers(1, invited))
    deadline = draw(st.none() | st.sampled_from([5.0, 20.0, 100.0]))
    quorum = fs.Quorum(
        invited,
        enough,
        draw(st.integers(1, enough or invited)),
        deadline,
        draw(st.sampled_from([0.0, 3.0])) if deadline else 0.0,
    )
    fleet = draw(
        st.sampled_from([fs.Everybody(), fs.Paper(), fs.Dropout(0.4), fs.Latency(dropout=0.2), fs.Latency()])
    )
    faults = Faults(
        drop=draw(RATE) / 2,
        delay=draw(RATE),
        seconds=draw(st.sampled_from([1.0, 10.0, 1000.0])),
        duplicate=draw(RATE),
        corrupt=draw(RATE) / 2,
        hostile=draw(RATE) / 2,
        corruption=draw(st.sampled_from(["nan", "inf", "shape", "sign", "scale"])),
        factor=draw(st.sampled_from([1.0, 10.0, 1e6, 1e200])),
    )
    norm = draw(st.sampled_from([None, 1e-3, 0.5, 10.0, {"parameters": 2.0}]))
    checks = draw(st.none() | st.builds(Checks, st.just(norm), st.sampled_from([None, 1, 2])))
    rule = draw(st.sampled_from([Mean(), TrimmedMean(0.2), Median()]))
    merge = Merge(rule, draw(st.sampled_from([None, 0.3])))
    name = draw(st.sampled_from(sorted(ALGORITHMS)))
    seeds = draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=3, unique=True))
    weights = draw(st.none() | st.just([0.0, 0.0, *range(1, 9)]))
    return make_study(
        PROBLEM,
        ALGORITHMS[name],
        seeds=seeds,
        quorum=quorum,
        fleet=fleet,
        faults=faults,
        checks=checks,
        merge=merge,
        weights=weights,
        cohorts=draw(st.sampled_from(["independent", "invited", "answered"])),
        executor=ASKS[name],
    )


def bits(lanes) -> list:
    leaves = [*tree_leaves(lanes.server), *(lanes.memory or ())]
    return [leaf.numpy().tobytes() for leaf in leaves]


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(plans())
def test_a_run_equals_its_replay_or_abandons_its_rounds(study):
    lanes, told = begin(study), []
    for round in range(4):
        before, news = (lanes, bits(lanes)), []
        server = [leaf.clone() for leaf in tree_leaves(lanes.server)]
        lanes, events = play(study, lanes, round, news)
        told += news
        ended = {(event.lane, event.what) for event in events}
        for lane, alive in enumerate(lanes.alive):
            finite = (
                torch.isfinite(lanes.server.z.x[lane]).all() & torch.isfinite(lanes.server.z.y[lane]).all()
            )
            assert finite  # a lane that diverges keeps its last finite point
            assert alive == (before[0].alive[lane] and (lane, "diverged") not in ended)
            if (lane, "abandoned") in ended or not alive:
                assert lanes.completed[lane] == before[0].completed[lane]
                for old, new in zip(server, tree_leaves(lanes.server), strict=True):
                    assert torch.equal(old[lane], new[lane])
            else:
                assert lanes.completed[lane] == before[0].completed[lane] + 1
        if all((lane, "abandoned") in ended for lane in range(len(lanes.alive))):
            assert bits(lanes) == before[1]

    posted = [Counter() for _ in study.seeds]
    strikes = [Counter() for _ in study.seeds]
    idle = {0, 1} if study.weights is not None else set()
    used = {}  # in the phase before, by lane
    for one in told:
        own, lane = one.gathering, study.seeds.index(one.seed)
        # Every invitation comes to one end; nobody who is out, or has no odds, is invited.
        assert sorted(own.invited) == sorted([*own.used, *own.late, *own.refused, *own.lost])
        out = study.checks.barred(strikes[lane]) if study.checks else set()
        assert not set(own.invited) & (out | idle)
        if study.cohorts == "answered" and one.phase:
            assert set(own.invited) == used[lane]
        else:
            assert len(own.invited) == min(study.quorum.invite, 10 - len(out | idle))
        used[lane] = set(own.used)
        assert own.verdict in (Verdict.GO, Verdict.ABANDON)
        strikes[lane].update(own.refused.keys())
        counts = {
            "down": len(own.invited),
            "up": len(own.used),
            "late": len(own.late),
            "refused": len(own.refused) + len(own.duplicate),
        }
        posted[lane].update({Posted(way, one.phase): count for way, count in counts.items()})
    for lane in range(len(study.seeds)):
        assert +posted[lane] == +lanes.posted[lane]
        assert strikes[lane] == lanes.strikes[lane]
        seconds = [one.gathering.seconds for one in told if one.seed == study.seeds[lane]]
        assert lanes.clock[lane] == sum(seconds)

    rules = {study.names[0]: Rules(study.quorums, 10, len(study.algorithm.phases()), 4, study.seeds)}
    script = read_history("".join(map(line, told)).encode(), rules)  # and it obeys the rules of a history
    scripted, again = replace(study, history=script), begin(study)
    for round in range(4):
        again, _ = play(scripted, again, round)
    assert bits(again) == bits(lanes)
    assert (again.clock, again.completed, again.alive) == (lanes.clock, lanes.completed, lanes.alive)
    assert [+own for own in again.posted] == [+own for own in lanes.posted]
