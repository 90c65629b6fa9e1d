"""A run that has died is told from one that has arrived, and from one that has only begun."""

import csv
import dataclasses
import json
import subprocess
import sys

import pytest
import torch

import fedsaddle as fs
from fedsaddle.problem import Federation

QUICK = {"batch": 5, "quorum": fs.Quorum(invite=8), "evaluate_every": 5}
TOO_LONG = fs.CDMAONE(eta=3.0, gamma=3.0, K=5)  # nearly all do; which, and when, rounding decides
SEEDS = tuple(range(6))


def fallen(outcome):
    return {event.lane: event for event in outcome.events if event.what == "collapsed"}


@pytest.fixture(scope="module")
def digits():
    return fs.AUC(dataset="digits")


@pytest.fixture(scope="module")
def died(digits):
    return fs.simulate(digits, TOO_LONG, rounds=20, seeds=SEEDS, **QUICK)


def test_steps_that_are_too_long_are_said_to_have_killed_a_seed(died):
    """Scores saturate: docs/results/auc-mnist.md says how."""
    found = [event for event in fallen(died).values() if "no better than chance" in event.detail]
    assert len(found) >= 3
    for event in found:
        curve = [row.metrics["test_auc"] for row in died.rows if row.lane == event.lane]
        assert event.round % 5 == 4
        assert curve[(event.round + 1) // 5] <= 0.6
        assert all(one > 0.6 for one in curve[1 : (event.round + 1) // 5])  # said when it happened
        assert "no better than chance, and its scores are all alike (their spread is " in event.detail
        assert event.detail.endswith("lower eta (3) and gamma (3), or bound the steps by steady.clip")
        assert died.alive[event.lane] or curve[-1] <= 0.6  # it goes on


def test_looking_for_collapses_moves_no_bit(died, digits, monkeypatch):
    monkeypatch.setattr("fedsaddle.engine.course.collapses", lambda *_: [])
    blind = fs.simulate(digits, TOO_LONG, rounds=20, seeds=SEEDS, **QUICK)
    assert not fallen(blind)
    assert all(torch.equal(a.x, b.x) for a, b in zip(died.z, blind.z, strict=True))
    assert [row.metrics for row in died.rows] == [row.metrics for row in blind.rows]


def test_scores_of_a_run_that_learns_are_not_looked_at(digits, monkeypatch):
    def refuse(*_):
        raise AssertionError("a run above chance that moves pays for the length of an update")

    monkeypatch.setattr(fs.AUC, "score_spread", refuse)
    fs.simulate(digits, fs.CDMAONE(eta=0.3, gamma=0.3, K=5), rounds=10, **QUICK)


@pytest.mark.parametrize("executor", [fs.Loop(), fs.Vectorised()])
def test_every_executor_finds_the_same(executor, died, digits):
    again = fs.simulate(digits, TOO_LONG, rounds=5, seeds=SEEDS, executor=executor, **QUICK)
    soon = {lane: event.round for lane, event in fallen(died).items() if event.round < 5}
    assert soon == {lane: event.round for lane, event in fallen(again).items()} != {}


# --- without scores: updates ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Well:
    """Each client pulls x to its target; where |x| is beyond the edge, nobody pulls any more."""

    edge: float = 5.0
    chance: float | None = 4.0

    @property
    def federation(self):
        return Federation(
            {"target": torch.linspace(-0.5, 0.5, 12, dtype=torch.float64)}, torch.ones(12, dtype=torch.int64)
        )

    @property
    def metrics(self):
        return {"distance": fs.Metric("low", rows="none", chance=self.chance)}

    def init(self, seed):
        return fs.Pair(torch.full((1,), 4.5, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))

    def loss(self, z, xi):
        pull = (z.x - xi.rows["target"]).square() * (z.x.abs() < self.edge)
        return xi.mean(pull / 2) - z.y[0] ** 2 / 2

    def evaluate(self, z):
        return {"distance": float(z.x.abs())}


def well(eta, rounds=40, of=Well, **dials):
    return fs.simulate(
        of(**dials),
        fs.ParallelSGDA(eta, 0.1),
        rounds=rounds,
        quorum=fs.Quorum(invite=12),
        fleet=fs.Everybody(),
    )


def test_a_run_that_has_walked_out_and_stands_still_has_collapsed():
    outcome = well(3.0)
    (event,) = fallen(outcome).values()
    assert (event.round, outcome.last("distance")) == (9, [pytest.approx(9.0)])
    assert (
        "distance is 9, no better than chance, and its updates have no length left (0, on the way"
        in event.detail
    )
    assert "lower eta (3) and gamma (0.1)" in event.detail


def test_a_run_that_has_arrived_has_not():
    outcome = well(0.9, rounds=60)
    assert outcome.last("distance")[0] < 1e-12  # no update has any length
    assert not fallen(outcome)


def test_nor_has_one_that_has_hardly_begun():
    assert not fallen(well(1e-5))  # at chance, and slow: it still goes as fast as ever


def test_nor_one_that_does_not_move_at_all():
    assert not fallen(well(1e-30))


@dataclasses.dataclass(frozen=True)
class Ranked(Well):
    """Its scores saturate beyond the edge, and rank rows by their last digits."""

    def score_spread(self, z):
        return 1e-9 if abs(float(z.x)) > 8.0 else 1.0


def test_scores_that_have_saturated_may_still_rank_rows():
    (event,) = fallen(well(3.0, of=Ranked, chance=20.0)).values()
    assert event.detail.startswith("distance is 9, and its scores are all alike (their spread is 1e-09, at")
    assert not fallen(well(3.0, chance=20.0))  # without scores: it may have arrived
    assert not fallen(well(0.9, rounds=60, of=Ranked, chance=20.0))


def test_without_a_chance_level_nobody_can_tell():
    assert not fallen(well(3.0, chance=None))


def test_an_abandoned_round_is_no_update_without_length():
    problem, rule = Well(), fs.ParallelSGDA(1e-3, 0.1)
    outcome = fs.simulate(
        problem,
        rule,
        rounds=30,
        evaluate_every=1,
        quorum=fs.Quorum(invite=12, minimum=12),
        fleet=fs.Dropout(0.05),
    )
    assert any(event.what == "abandoned" for event in outcome.events)
    assert outcome.last("distance")[0] > 4.0
    assert not fallen(outcome)


# --- on the terminal, in the folder, in the report --------------------------------------------------------

DIE = ["--algorithm", "cdma-one", "--seeds", "0-1", "--set", "algorithms.cdma-one.eta=1.0",
       "--set", "algorithms.cdma-one.gamma=1.0"]  # fmt: skip


def told(folder):
    with (folder / "events.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["event"] == "collapsed"]


def test_it_is_said_once_also_when_the_run_goes_on(tmp_path):
    def run(*more):
        words = [sys.executable, "-m", "fedsaddle", "run", "auc-digits", *DIE, *more]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    whole = run("--rounds", "40", "--out", str(tmp_path / "whole"))
    first = run("--rounds", "22", "--out", str(tmp_path / "parts"))
    rest = run("--rounds", "40", "--resume", "--out", str(tmp_path / "parts"))
    one = told(tmp_path / "whole")
    assert whole.count(" collapsed in round ") == (first + rest).count(" collapsed in round ") == len(one)
    assert one
    for table in ("events.csv", "rounds.csv"):
        assert (tmp_path / "whole" / table).read_bytes() == (tmp_path / "parts" / table).read_bytes()
    page = (tmp_path / "whole" / "report.html").read_text()
    assert one[0]["detail"] in page.replace("\\u0027", "'")
    data = json.loads((tmp_path / "whole" / "checkpoint.json").read_text())
    said = {int(row["seed"]) for row in one}
    assert data["kept"]["cdma-one"]["lanes"]["collapsed"] == [seed in said for seed in (0, 1)]
