"""Whom a round's later phases ask: a cohort of their own, the first phase's, or those who answered it."""

import hashlib
import json
import shutil
import sys
import warnings

import pytest
import torch

import fedsaddle as fs
from fedsaddle.app.replay import replay_run
from fedsaddle.cli import main
from fedsaddle.engine.round import play
from fedsaddle.engine.study import Posted, begin, points
from fedsaddle.report.reading import read_run
from test_by_hand import SEEDS, Waves, everything, gradient, mean, minibatches
from zoo import ALGORITHMS, fleets, quadratic

TWO_PHASES = ["cdma-one", "cdma-ada", "catalyst-scaffold-s"]
QUORUM = fs.Quorum(invite=6, enough=4, minimum=2, deadline=40.0, grace=10.0)


def played(algorithm, rounds=8, problem=None, **settings):
    """Lanes after some rounds, what was told, and what happened."""
    study = fs.make_study(problem or quadratic(), algorithm, **{"batch": 2, "seeds": (0, 1)} | settings)
    lanes, told, events = begin(study), [], []
    for round in range(rounds):
        lanes, new = play(study, lanes, round, told)
        events += new
    return lanes, told, events


def pairs_of(told):
    """The gatherings of both phases, of every lane and round that reached the second."""
    first = {(one.seed, one.round): one.gathering for one in told if one.phase == 0}
    return [(first[one.seed, one.round], one.gathering) for one in told if one.phase == 1]


# --- who is asked, and who answers ------------------------------------------------------------------------


def test_under_the_papers_fleet_the_s_t_that_answered_answer_again():
    _, told, events = played(ALGORITHMS["cdma-one"], rounds=30, fleet=fs.Paper(), cohorts="answered")
    assert not events
    seen = set()
    for first, second in pairs_of(told):
        assert len(first.invited) == 8
        assert second.invited == [client for client in first.invited if client in first.used]
        assert sorted(second.used) == sorted(first.used)
        assert (second.lost, second.late, second.seconds) == ([], [], 1.0)
        seen.add(len(second.used))
    assert seen == {5, 6, 7, 8}


@pytest.mark.parametrize("name", ["everybody", "dropout", "latency", "trace"])
def test_other_fleets_may_fail_those_who_answered(name, tmp_path):
    """They are asked anew, and each answers as its own draw for the second phase says."""
    settings = {"fleet": fleets(tmp_path)[name], "quorum": QUORUM}
    _, told, _ = played(ALGORITHMS["cdma-one"], rounds=40, cohorts="answered", **settings)
    _, drawn, _ = played(ALGORITHMS["cdma-one"], rounds=40, cohorts="invited", **settings)
    pairs = pairs_of(told)
    for first, second in pairs:
        assert second.invited == [client for client in first.invited if client in first.used]
        assert len(second.invited) <= 4
    again = any(second.lost or second.late for _, second in pairs)
    assert again == (name not in ("everybody", "trace"))  # who was reachable is so a moment later
    if name == "dropout":  # no draw depends on who else is asked, or on when
        whole = {(one.seed, one.round): one.gathering for one in drawn if one.phase == 1}
        for one in told:
            if one.phase == 1 and (one.seed, one.round) in whole:
                assert set(one.gathering.lost) <= set(whole[one.seed, one.round].lost)


def test_too_few_who_answer_again_abandon_the_round():
    quorum = fs.Quorum(invite=6, minimum=4)
    lanes, _, events = played(
        ALGORITHMS["cdma-one"], rounds=20, fleet=fs.Dropout(0.25), quorum=quorum, cohorts="answered"
    )
    late = [event.detail for event in events if event.detail.startswith("update")]
    assert late
    assert all("the minimum is 4" in detail for detail in late)
    assert lanes.completed == [20 - sum(event.lane == lane for event in events) for lane in range(2)]


def test_whose_first_answer_is_refused_is_not_asked_for_a_second():
    lanes, told, _ = played(
        ALGORITHMS["cdma-one"],
        rounds=10,
        fleet=fs.Everybody(),
        cohorts="answered",
        faults=fs.Faults(corrupt=0.2),
        checks=fs.Checks(strikes=2),
    )
    refused = 0
    for first, second in pairs_of(told):
        assert set(second.invited) == set(first.used)
        assert not set(second.invited) & first.refused.keys()
        refused += len(first.refused)
    assert refused
    assert sum(own.total() for own in lanes.strikes) == sum(len(one.gathering.refused) for one in told)


def test_the_second_phase_is_counted_by_whom_it_asks():
    quorum = fs.Quorum(invite=6, enough=4)
    lanes, told, _ = played(ALGORITHMS["cdma-ada"], fleet=fs.Latency(), quorum=quorum, cohorts="answered")
    for lane, seed in enumerate((0, 1)):
        own = [one.gathering for one in told if one.seed == seed and one.phase == 1]
        assert lanes.posted[lane][Posted("down", 1)] == sum(len(end.invited) for end in own) == 4 * len(own)
        assert lanes.posted[lane][Posted("up", 1)] == sum(len(end.used) for end in own)
        seconds = [one.gathering.seconds for one in told if one.seed == seed]
        assert lanes.clock[lane] == sum(seconds)


# --- what it comes to -------------------------------------------------------------------------------------


def one_by_hand(x, y, seed, answerers, eta, gamma, K):
    """CDMA-ONE whose walkers are those whose gradients were collected: the averaged first step is u's."""
    for t, cohort in enumerate(answerers):
        u, v = mean([gradient(x, y, everything(i)) for i in cohort])
        ends = []
        for i in cohort:
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 1, i, K):
                gx, gy = gradient(x_i, y_i, rows)
                hx, hy = gradient(x, y, rows)
                x_i, y_i = x_i - eta * (gx + u - hx), y_i + gamma * (gy + v - hy)
            ends.append((x_i, y_i))
        x, y = mean(ends)
    return x, y


def test_a_run_of_those_who_answered_by_hand():
    lanes, told, _ = played(
        fs.CDMAONE(eta=0.05, gamma=0.08, K=4),
        rounds=5,
        problem=Waves(),
        seeds=SEEDS,
        batch=3,
        quorum=fs.Quorum(invite=4),
        fleet=fs.Paper(),
        cohorts="answered",
    )
    for seed, z in zip(SEEDS, points(lanes.server), strict=True):
        answerers = [sorted(one.gathering.used) for one in told if one.seed == seed and one.phase == 0]
        assert {len(cohort) for cohort in answerers} > {3}
        x, y = one_by_hand(*Waves().init(seed), seed, answerers, 0.05, 0.08, 4)
        torch.testing.assert_close(z.x, x, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(z.y, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", TWO_PHASES)
@pytest.mark.parametrize("fleet", [fs.Paper(), fs.Latency(dropout=0.2)])
def test_loop_equals_vectorised(name, fleet):
    settings = {"fleet": fleet, "quorum": QUORUM, "cohorts": "answered", "problem": quadratic()}
    one, told, _ = played(ALGORITHMS[name], executor=fs.Loop(), **settings)
    other, again, _ = played(ALGORITHMS[name], executor=fs.Vectorised(), **settings)
    assert told == again
    for z, w in zip(points(one.server), points(other.server), strict=True):
        torch.testing.assert_close(z, w, rtol=1e-13, atol=1e-13)
    assert (one.completed, one.clock, one.posted) == (other.completed, other.clock, other.posted)


@pytest.mark.parametrize("cohorts", ["independent", "answered"])
def test_settings_meet_as_each_would_alone(cohorts, tmp_path):
    """Lanes of one seed are settled together; what was refused of one of them is its own."""
    settings = {"a": fs.CDMAONE(0.02, 0.03, K=3), "b": fs.CDMAONE(0.2, 0.3, K=3)}
    usual = {"quorum": QUORUM, "cohorts": cohorts, "fleet": fleets(tmp_path)["trace"], "rounds": 12}
    usual |= {"faults": fs.Faults(delay=0.2, duplicate=0.2), "checks": fs.Checks(norm=2.0, strikes=2)}
    _, together, _ = played(list(settings.values()), names=list(settings), **usual)
    alone = [told for name, rule in settings.items() for told in played(rule, names=[name], **usual)[1]]
    assert sorted(together, key=where_of) == sorted(alone, key=where_of)
    ends = {where_of(one): one.gathering for one in together}
    unlike = [where for where, end in ends.items() if where[0] == "a" and end != ends.get(("b", *where[1:]))]
    assert 0 < len(unlike) < len(ends) / 2


def where_of(one):
    return one.algorithm, one.seed, one.round, one.phase


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(TWO_PHASES)))
def test_an_algorithm_of_one_phase_does_not_change(name):
    one, other = (played(ALGORITHMS[name], cohorts=kind)[0] for kind in ("independent", "answered"))
    assert torch.equal(one.server.z.x, other.server.z.x)
    assert torch.equal(one.server.z.y, other.server.z.y)


# --- the names they had -----------------------------------------------------------------------------------

SMALL = ["problem.clients=20", "problem.dim_x=3", "problem.dim_y=4", "K=2", "evaluate_every=4"]
WORDS = ["run", "quadratic", "--algorithm=cdma-one,cdma-ada", "--seeds=0-1", "--rounds=8", "--history"]
OLD = {"independent": "another", "invited": "same"}


def fedsaddle(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fedsaddle", *map(str, arguments)])
    with warnings.catch_warnings():
        warnings.simplefilter("default", fs.Notice)
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def run(monkeypatch, folder, cohorts, *more):
    given = [f"--set={key}" for key in (*SMALL, f"cohorts={cohorts}")]
    assert fedsaddle(monkeypatch, *WORDS, *given, *more, "--quiet", f"--out={folder}") == 0
    return folder


def as_json(value):
    return (json.dumps(value, indent=1) + "\n").encode()


def aged(folder):
    """The folder as an older version would have written it."""
    saved = json.loads((folder / "checkpoint.json").read_text())
    saved["experiment"]["cohorts"] = OLD[saved["experiment"]["cohorts"]]
    del saved["checksum"]
    saved["checksum"] = hashlib.sha256(as_json(saved)).hexdigest()
    (folder / "checkpoint.json").write_bytes(as_json(saved))
    (folder / "experiment.json").write_bytes(as_json(saved["experiment"]))
    return folder


def tables(folder):
    names = ("rounds.csv", "traffic.csv", "history.jsonl", "final/cdma-one.safetensors")
    return [(folder / name).read_bytes() for name in names]


@pytest.mark.parametrize("cohorts", OLD)
def test_old_names_mean_what_they_meant(cohorts, tmp_path, monkeypatch, capsys):
    new = run(monkeypatch, tmp_path / "new", cohorts)
    assert "is called" not in capsys.readouterr().err
    old = run(monkeypatch, tmp_path / "old", OLD[cohorts])
    assert capsys.readouterr().err.count(f"cohorts = '{OLD[cohorts]}' is called '{cohorts}' now") == 1
    assert tables(new) == tables(old)
    assert json.loads((old / "experiment.json").read_text())["cohorts"] == cohorts

    with pytest.warns(fs.Notice, match=f"'{OLD[cohorts]}' is called '{cohorts}' now"):
        study = fs.make_study(quadratic(), ALGORITHMS["cdma-one"], cohorts=OLD[cohorts])
    assert study.cohorts == cohorts
    with pytest.warns(fs.Notice, match=f"'{OLD[cohorts]}' is called"):
        fs.run("quadratic", "cdma-one", rounds=1, seeds=[0], settings={"cohorts": OLD[cohorts]},
               out=tmp_path / "named", report=False, tensorboard=False)  # fmt: skip


@pytest.mark.parametrize("cohorts", OLD)
def test_an_old_folder_is_resumed_replayed_and_compared(cohorts, tmp_path, monkeypatch, capsys):
    whole = run(monkeypatch, tmp_path / "whole", cohorts, "--rounds=12")
    folder = aged(run(monkeypatch, tmp_path / "run", cohorts))
    capsys.readouterr()
    assert fedsaddle(monkeypatch, "replay", folder) == 0
    told = capsys.readouterr()
    assert told.out.count("last bit") == 4
    assert told.err.count("is called") == 1
    assert read_run(folder).series[0].terms["cohorts"] == read_run(whole).series[0].terms["cohorts"]
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert fedsaddle(monkeypatch, "run", "--resume", f"--out={copy}", "--quiet") == 0  # and has ended
    assert "is called" in capsys.readouterr().err
    assert fedsaddle(monkeypatch, "run", "--resume", f"--out={folder}", "--rounds=12", "--quiet") == 0
    assert tables(folder) == tables(whole)
    assert all(one.exact for one in replay_run(folder))  # whose experiment.json has been written anew


def test_an_old_folder_of_values_is_resumed(tmp_path):
    class Own(fs.Quadratic):
        """No file can name it."""

    def go_on(rounds, resume):
        return fs.run(
            Own(clients=12, dim_x=3, dim_y=4, samples=3),
            ALGORITHMS["cdma-one"],
            rounds=rounds,
            cohorts="invited",
            out=tmp_path / "run",
            resume=resume,
            report=False,
            tensorboard=False,
        )

    go_on(4, resume=False)
    aged(tmp_path / "run")
    assert go_on(8, resume=True).rows[-1].round == 8


def test_a_replay_of_those_who_answered(tmp_path, monkeypatch):
    folder = run(
        monkeypatch,
        tmp_path / "run",
        "answered",
        "--set=fleet.model=latency",
        "--set=fleet.dropout=0.2",
        "--set=quorum.minimum=3",
    )
    found = list(replay_run(folder))
    assert len(found) == 4
    assert all(one.exact and one.agrees for one in found)
