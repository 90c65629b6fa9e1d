"""What the theorems claim holds in little, and the laboratory that measures it counts rightly."""

import csv
import math

import numpy as np
import pytest
import torch
from benchmarks.rates import __main__ as rates
from benchmarks.rates import local
from benchmarks.rates.experiments import EXPERIMENTS, Size, ada, one, quadratic
from benchmarks.rates.fits import ruling, slope
from benchmarks.rates.points import Point, measure
from benchmarks.rates.verdicts import judged

import fedsaddle as fs
from fedsaddle.algorithms import theorems
from fedsaddle.fleet import invite


@pytest.mark.parametrize("name", ["T1", "T3", "T6"])
def test_claims_without_randomness_hold_in_little(tmp_path, name):
    """With the limits of docs/theory.md, which refute where they are crossed."""
    found = rates.run(name, EXPERIMENTS[name], Size(little=True), rates.Way(tmp_path, jobs=1))
    verdicts = judged(name, found.curves)
    assert len(verdicts) >= 2
    for verdict in verdicts:
        assert verdict.says in ("tight", "consistent with the bound", "too few K before"), verdict


def test_a_false_claim_is_refuted():
    """Where few clients answer, the mean over rounds of ONE does not fall as 1/T."""
    point = Point("cdma-one", quadratic(clients=50), (one(0.5),), 256, read=(16, 64, 256))
    found = slope({line.T: [line.Y] for line in measure(point, [0], [0])})
    assert ruling(found, -1.0, -0.9) == "slower than the bound"


def test_slopes_are_those_of_lines_and_intervals_hold_them():
    xs = (1, 2, 4, 8)
    assert slope({x: [3 * x**-0.5] for x in xs}) == pytest.approx((-0.5,) * 3)
    luck = np.random.default_rng(1).normal(scale=0.1, size=(4, 30))
    found = slope({x: 3 * x**-0.5 * np.exp(own) for x, own in zip(xs, luck, strict=True)})
    assert found.low < -0.5 < found.high
    assert found.high - found.low < 0.1
    assert ruling(found, -0.5, -0.4) == "tight"
    assert ruling(found, -0.2, -0.1) == "consistent with the bound"
    assert ruling(found, -0.9, -0.8) == "slower than the bound"


def test_the_mean_over_rounds_is_what_evaluations_after_every_round_give():
    problem, seeds = fs.Quadratic(clients=20, start_seed=3), (0, 1)
    seen = fs.Stationarity(problem)
    outcome = fs.simulate(
        problem, fs.CDMAONE(0.05, 0.1, K=2), rounds=6, evaluate_every=1, seeds=seeds, watch=seen
    )
    for lane in (0, 1):
        rows = [row.metrics["stationarity"] for row in outcome.rows if row.lane == lane]
        assert len(rows) == 7
        assert float(seen.mean()[lane]) == pytest.approx(sum(rows[:6]) / 6)
        assert float(seen.mean(5, first=2)[lane]) == pytest.approx(sum(rows[2:5]) / 3)
    with pytest.raises(fs.BadInput, match="T must be at most 6, got 7"):
        seen.mean(7)
    with pytest.raises(fs.BadInput, match="no round was watched"):
        fs.Stationarity(problem).mean()
    with pytest.raises(fs.BadInput, match="AUC has no grad_phi"):
        fs.Stationarity(fs.AUC())


def test_the_mean_over_local_iterates_is_that_of_walks_by_hand(tmp_path):
    """And to look changes nothing."""
    problem, rule = local.PROBLEM, ada(2.0, 1.0, K=2)
    looking = local.LocalADA(rule.c_eta, rule.c_gamma, rule.c_alpha, rule.rho, rule.K)
    seen = fs.Stationarity(problem)
    whole = {"batch": 1, "quorum": fs.Quorum(invite=3), "fleet": fs.Everybody(), "evaluate_every": 9}
    ends = [
        fs.simulate(problem, own, rounds=9, watch=seen, **whole).last("stationarity")[0]
        for own in (rule, looking)
    ]
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)
    server, clients = local.means([rule], (0,), (1, 4))
    # The first step of every walk is at the server's point, and with 8 clients the second along u_0.
    z, first = problem.init(0), float(problem.grad_phi(problem.init(0).x).square().sum())
    assert float(server[0, 0, 0]) == pytest.approx(first)
    drawn = invite(torch.tensor([0]), 0, 0, 1000, 8)[0].tolist()
    own = problem.federation.own
    rows = problem.federation.rows["linear"][drawn].mean(0)
    A, B = (own[name][drawn].mean(0) for name in "AB")
    x = z.x - rule.c_eta * (A @ z.x + B @ z.y + rows[:10])
    second = float(problem.grad_phi(x).square().sum())
    assert float(clients[0, 0, 0]) == pytest.approx((first + second) / 2)
    verdicts, seeds = local.verdicts(Size(seeds=(0, 1), little=True), tmp_path)
    assert len(verdicts) == 4
    assert [(own.x, own.seed) for own in seeds] == 2 * [(16, 0), (16, 1), (32, 0), (32, 1)]


def test_one_start_serves_all_seeds_which_then_decide_the_sampling_alone():
    problem = fs.Quadratic(clients=20, start_seed=3)
    start = fs.Quadratic(clients=20).init(3)
    for seed in (0, 3, 5):
        assert torch.equal(problem.init(seed).x, start.x)
    one_step = fs.ParallelSGDA(0.05, 0.1)
    ends = fs.simulate(problem, one_step, rounds=1, seeds=(0, 1)).last("stationarity")
    assert ends[0] != ends[1]


def test_waves_are_bounded_far_away_and_reach_their_bound():
    problem, plain = fs.Quadratic(clients=5, waves=0.3), fs.Quadratic(clients=5)
    own = problem.federation.own["waves"]
    assert "waves" not in plain.federation.own
    torch.testing.assert_close(own.mean(0), torch.zeros_like(own[0]), atol=1e-15, rtol=0.0)
    lengths = own.flatten(1).norm(dim=1)
    assert float(lengths.max()) == pytest.approx(0.3)
    z = 1e3 * torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def wave(z):
        return own[0][0] @ torch.cos(z) + own[0][1] @ torch.sin(z)

    assert float(torch.func.grad(wave)(z).norm()) <= float(lengths[0])
    assert float(torch.autograd.functional.hessian(wave, z).diagonal().abs().max()) <= float(lengths[0])


def test_adas_alpha_has_an_exponent_of_its_own():
    t = torch.tensor([0.0, 7.0, 63.0], dtype=torch.float64)
    paper = fs.CDMAADA(0.1, 0.1, c_alpha=2.0, rho=1 / 3)
    assert torch.equal(paper.alpha(t), torch.where(t == 0, 1.0, (2 / (t + 1) ** (2 * (1 / 3))).clamp(max=1)))
    falling = fs.CDMAADA(0.1, 0.1, c_alpha=2.0, rho=0.0, rho_alpha=1.0)
    torch.testing.assert_close(falling.alpha(t), torch.tensor([1, 0.25, 2 / 64], dtype=torch.float64))
    assert torch.equal(falling.gamma(t), torch.full_like(t, 0.1))
    steady = fs.CDMAADA(0.1, 0.1, c_alpha=0.2, rho=0.5, rho_alpha=-1.0)
    torch.testing.assert_close(steady.alpha(t), torch.tensor([1, 0.2, 0.2], dtype=torch.float64))
    with pytest.raises(fs.BadInput, match="rho_alpha must be between -2 and 2, got 3"):
        fs.simulate(fs.Quadratic(clients=9), fs.CDMAADA(0.1, 0.1, rho_alpha=3.0), rounds=1)


# --- the theorems' steps ----------------------------------------------------------------------------------

KNOWN = {"L": 1.1, "kappa": 5.0, "sigma": (3.0, 4.0), "K": 4, "gap": 20.0}


def test_the_theorems_steps_are_as_printed():
    """Each bound in turn is the least one."""
    few, many = ({**KNOWN, "S": 8, "T": T} for T in (10, 10**9))
    first = fs.CDMANC.theorem_1(G=(0.0, 0.0), **few)
    assert first.gamma == pytest.approx(1 / (87 * 1.1 * 4))
    assert first.eta == pytest.approx(first.gamma / (21 * 25))
    late = fs.CDMANC.theorem_1(G=(0.0, 3.0), **many)
    assert late.gamma == pytest.approx(math.sqrt(20 * 20 * 8 / (1.1 * 1e9 * 16 * 16)))
    assert late.eta == pytest.approx(late.gamma / 525)
    other = fs.CDMAONE.theorem_2(**many)
    assert other.gamma == pytest.approx(math.sqrt(4 * 20 * 8 / (3 * 1.1 * 1e9 * 16 * 16)))
    flat = fs.CDMAONE.theorem_2(**{**many, "kappa": 1.0})
    assert flat.eta == pytest.approx(min(flat.gamma / 21, math.sqrt(40 * 20 * 8 / (21 * 3.3 * 1e9 * 16 * 9))))


def test_theorem_3_asks_for_constant_steps_and_theorem_4_for_longer_ones():
    third = fs.CDMAADA.theorem_3(S=8, **KNOWN)
    assert third.c_gamma == pytest.approx(5.78e-4 / (1.1 * 4))
    assert third.c_eta == pytest.approx(third.c_gamma / 300)
    assert third.c_alpha == pytest.approx(2e5 * 5.78e-4**2)
    assert (third.rho, third.rho_alpha, third.K) == (0.0, 0.0, 4)
    fourth = fs.CDMAADA.theorem_4(delta=0.3, S=8, **KNOWN)
    assert fourth.c_gamma == pytest.approx(third.c_gamma * 1.1 / 0.3)
    assert fourth.c_alpha == pytest.approx(third.c_alpha)
    assert fs.CDMAADA.theorem_4(delta=0.0, S=8, **KNOWN).c_gamma == pytest.approx(third.c_gamma * 5)
    # When the bound that falls with t becomes the least one.
    noise = (3 / 5) ** 2 + 16
    assert 8 * 1.1 * 20 / noise / theorems.TIGHT**3 > 5e9


def test_what_a_theorem_does_not_cover_is_refused():
    with pytest.raises(fs.BadInput, match="S must be at least 15 for this theorem, got 8"):
        fs.CDMAADA.theorem_3(S=8, **{**KNOWN, "gap": 1.0})
    with pytest.raises(fs.BadInput, match="delta must be between 0 and L"):
        fs.CDMAADA.theorem_4(delta=2.0, S=8, **KNOWN)
    with pytest.raises(fs.BadInput, match=r"kappa must be at least 1 and finite, got 0\.5"):
        fs.CDMAONE.theorem_2(S=8, T=10, **{**KNOWN, "kappa": 0.5})
    with pytest.raises(fs.BadInput, match="sigma must be two numbers"):
        fs.CDMAONE.theorem_2(S=8, T=10, **{**KNOWN, "sigma": 3.0})


# --- the command ------------------------------------------------------------------------------------------


def test_an_experiment_is_measured_in_little_and_gone_on_with(tmp_path, monkeypatch, capsys):
    def points(size):
        return [Point("cdma-one", quadratic(clients=20), (one(0.5), one(0.25)), 32, read=(8, 16, 32))]

    little = EXPERIMENTS["T2"]._replace(points=points)
    monkeypatch.setitem(EXPERIMENTS, "T2", little)
    words = ["T2", "--seeds=2", "--jobs=1", f"--folder={tmp_path / 'parts'}", f"--out={tmp_path}"]
    rates.main(words)
    first = capsys.readouterr().out
    assert "| cdma-one | -" in first
    assert len((tmp_path / "theory-t2.csv").read_text().splitlines()) == 1 + 3 * 2
    assert (tmp_path / "theory-t2.png").exists()
    monkeypatch.setattr(rates, "compute", None)  # nothing is computed twice
    rates.main(words)
    assert capsys.readouterr().out == first


def test_what_has_no_curves_is_written_seed_by_seed(tmp_path, capsys):
    rates.main(["T14", "--most=128", "--seeds=2", f"--folder={tmp_path / 'parts'}", f"--out={tmp_path}"])
    with (tmp_path / "theory-t14.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["0", "1"] * 3
    plain = [float(row["Y"]) for row in rows if row["curve"] == "h = 0.25"]
    assert f"Y = {sum(plain) / 2:.4g}" in capsys.readouterr().out
    assert all("eta=" in row["setting"] for row in rows)


def test_slips_are_answered_in_a_line(capsys):
    with pytest.raises(SystemExit):
        rates.main(["T99"])
    assert "nobody knows T99: there are T1" in capsys.readouterr().err
