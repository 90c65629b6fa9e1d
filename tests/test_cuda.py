"""A GPU draws the same bits and computes the same rounds, eagerly or replayed. Runs where there is a GPU."""

import dataclasses

import pytest
import torch

import fedsaddle as fs
from fedsaddle import draws
from fedsaddle.engine.rounds import begin, play, points
from zoo import ALGORITHMS, quadratic

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """PyTorch lets convolutions round to TF32 by itself; the command line does not."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def test_draws_are_the_same_bits():
    seeds, clients = torch.arange(20), torch.arange(0, 10**12, 10**11)
    cpu = draws.key(draws.BATCHES, seeds[:, None], 7, 1, clients)
    gpu = draws.key(draws.BATCHES, seeds[:, None].cuda(), 7, 1, clients.cuda())
    assert torch.equal(cpu, gpu.cpu())
    assert torch.equal(draws.words(cpu, 50), draws.words(gpu, 50).cpu())
    assert torch.equal(draws.uniform(cpu, 3, 5), draws.uniform(gpu, 3, 5).cpu())
    size = 1 + torch.arange(cpu.numel()).reshape(cpu.shape) % 13
    rows = draws.batches(cpu, size, 40, 13)
    assert torch.equal(rows, draws.batches(gpu, size.cuda(), 40, 13).cpu())


def test_normals_are_the_same_to_rounding():
    key = draws.key(draws.PROBLEM, torch.arange(20))
    torch.testing.assert_close(
        draws.normal(key, 100), draws.normal(key.cuda(), 100).cpu(), rtol=1e-13, atol=1e-13
    )


def run(problem, algorithm, rounds=6, captured=True, **settings):
    quorum = fs.Quorum(invite=6, enough=4, minimum=2, deadline=30.0, grace=10.0)
    study = fs.make_study(
        problem, algorithm, seeds=(0, 1, 2), quorum=quorum, fleet=fs.Latency(dropout=0.4), batch=2, **settings
    )
    if not captured:
        study = dataclasses.replace(study, graphs=None)
    lanes = begin(study)
    for round in range(rounds):
        lanes, _ = play(study, lanes, round)
    return study, lanes


def assert_same(one, other, tolerance):
    for z, w in zip(points(one.server), points(other.server), strict=True):
        torch.testing.assert_close(z.to("cpu"), w.to("cpu"), rtol=tolerance, atol=tolerance)
    if one.memory is not None:
        torch.testing.assert_close(
            one.memory.to("cpu"), other.memory.to("cpu"), rtol=tolerance, atol=tolerance
        )
    assert (one.completed, one.clock, one.posted) == (other.completed, other.clock, other.posted)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_captured_equals_eager_equals_loop(name):
    problem, algorithm = quadratic(), ALGORITHMS[name]
    _, expected = run(problem, algorithm, ask=fs.Loop())
    assert 0 < min(expected.completed) < 6  # some rounds are abandoned
    for settings in ({"ask": fs.Loop()}, {"captured": False}, {}):
        study, lanes = run(problem, algorithm, device="cuda", **settings)
        assert_same(lanes, expected, 1e-10)
    assert study.graphs._recordings


@pytest.mark.parametrize("name", ALGORITHMS)
def test_captured_equals_loop_on_a_network(name):
    problem = fs.AUC(dataset="digits", clients=40, partition="dirichlet", network="mlp")
    _, expected = run(problem, ALGORITHMS[name], rounds=3, ask=fs.Loop())
    study, lanes = run(problem, ALGORITHMS[name], rounds=3, device="cuda")
    assert_same(lanes, expected, 1e-4)
    for z, w in zip(points(lanes.server), points(expected.server), strict=True):
        assert study.problem.evaluate(z) == pytest.approx(study.problem.evaluate(w), rel=1e-3)


def test_captured_equals_loop_on_a_gan():
    problem = fs.GAN(objective="non-saturating", clients=40, partition="dirichlet")
    _, expected = run(problem, ALGORITHMS["cdma-ada"], rounds=2, ask=fs.Loop())
    study, lanes = run(problem, ALGORITHMS["cdma-ada"], rounds=2, device="cuda")
    assert_same(lanes, expected, 1e-3)
    shown = [study.problem.pictures(points(end.server)[0])["samples"].cpu() for end in (lanes, expected)]
    assert (shown[0].float() - shown[1].float()).abs().max() <= 2


def test_a_lane_that_diverges_on_a_gpu_stops_alone():
    wild = [fs.CODASCA(0.05, K=3), fs.CODASCA(1e60, K=3)]
    outcome = fs.simulate(quadratic(), wild, rounds=20, evaluate_every=2, device="cuda")
    assert outcome.alive == [True, False]
    assert all(torch.isfinite(torch.cat(z)).all() for z in outcome.z)


GUARDED = {
    "trimmed": {"merge": fs.Merge(fs.TrimmedMean(0.3)), "faults": fs.Faults(hostile=0.2, corruption="sign")},
    "median, clipped": {"merge": fs.Merge(fs.Median(), clip=0.5), "faults": fs.Faults(corrupt=0.2)},
    "bounded": {
        "checks": fs.Checks(norm={"parameters": 5.0, "gradients": 50.0}, strikes=2),
        "faults": fs.Faults(hostile=0.2, corruption="scale", factor=1e4, duplicate=0.1),
    },
}


@pytest.mark.parametrize("guard", GUARDED)
@pytest.mark.parametrize("name", ["cdma-ada", "codasca", "parallel-sgda"])
def test_merges_faults_and_checks_can_be_recorded(name, guard):
    problem, algorithm, settings = quadratic(), ALGORITHMS[name], GUARDED[guard]
    _, expected = run(problem, algorithm, ask=fs.Loop(), **settings)
    for more in ({"captured": False}, {}):
        study, lanes = run(problem, algorithm, device="cuda", **settings, **more)
        assert_same(lanes, expected, 1e-10)
        assert lanes.strikes == expected.strikes
    assert study.graphs._recordings
