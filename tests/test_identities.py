"""Identities between algorithms: where two rules are the same rule, two runs are the same run."""

import dataclasses
from itertools import combinations

import pytest
import torch

import fedsaddle as fs
from fedsaddle.algorithms import ALGORITHMS as NAMES
from fedsaddle.core import Pair, pull, step, travelled
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin
from zoo import ALGORITHMS, quadratic


def end(algorithm, rounds=5, **settings):
    settings = {"quorum": fs.Quorum(invite=5), "seeds": (0, 1), "batch": 2} | settings
    study = fs.make_study(quadratic(), algorithm, **settings)
    lanes = begin(study)
    for round in range(rounds):
        lanes, _ = play(study, lanes, round)
    return lanes


def assert_same(one, other):
    torch.testing.assert_close(one.server.z, other.server.z, rtol=1e-12, atol=1e-12)


def test_one_with_a_single_step_is_parallel_sgda():
    """To the last bit, and in what it sends: there is nothing for an update phase to do."""
    one, parallel = end(fs.CDMAONE(0.1, 0.2, K=1)), end(fs.ParallelSGDA(0.1, 0.2))
    assert torch.equal(one.server.z.x, parallel.server.z.x)
    assert torch.equal(one.server.z.y, parallel.server.z.y)
    assert one.posted == parallel.posted


@pytest.mark.parametrize("rule", [fs.CDMAONE, fs.CDMAADA])
def test_a_single_step_on_the_server_is_the_walk_of_one_step_that_clients_would_make(rule):
    @dataclasses.dataclass(frozen=True)
    class Asked(rule):
        def phases(self):
            more = vars(self) | {"K": 2}
            collect, update = rule(**more).phases()
            return collect, dataclasses.replace(update, steps=1)

    settings = (0.1, 0.2) if rule is fs.CDMAONE else (0.1, 0.2, 0.7, 0.3)
    assert len(rule(*settings, K=1).phases()) == 1
    assert_same(end(rule(*settings, K=1)), end(Asked(*settings, K=1)))


def test_ada_with_alpha_one_is_one():
    assert_same(end(fs.CDMAADA(0.05, 0.08, c_alpha=1.0, rho=0.0, K=3)), end(fs.CDMAONE(0.05, 0.08, K=3)))


def test_ada_with_another_alpha_is_not_one():
    ada, one = end(fs.CDMAADA(0.05, 0.08, c_alpha=0.9, rho=0.0, K=3)), end(fs.CDMAONE(0.05, 0.08, K=3))
    assert not torch.allclose(ada.server.z.x, one.server.z.x)


def test_ada_begins_as_one():
    assert_same(
        end(fs.CDMAADA(0.05, 0.08, c_alpha=0.3, rho=0.0, K=3), rounds=1),
        end(fs.CDMAONE(0.05, 0.08, K=3), rounds=1),
    )


def test_coda_plus_without_pull_in_one_stage_is_nc():
    assert_same(end(fs.CODAPlus(0.05, theta=0.0, K=3)), end(fs.CDMANC(0.05, 0.05, K=3)))


def test_catalyst_without_pull_and_with_fixed_length_is_one():
    @dataclasses.dataclass(frozen=True)
    class Fixed(fs.CatalystScaffoldS):
        def walk_length(self, chance):
            return self.K

    assert_same(end(Fixed(0.05, 0.05, theta=0.0, K=3)), end(fs.CDMAONE(0.05, 0.05, K=3)))


def test_catalyst_walks_k_steps_on_average():
    catalyst = fs.CatalystScaffoldS(0.1, 0.1, K=12)
    lengths = [catalyst.walk_length((n + 0.5) / 10_000) for n in range(10_000)]
    assert min(lengths) == 1
    assert sum(lengths) / len(lengths) == pytest.approx(12, rel=0.01)
    assert lengths.count(1) / len(lengths) == pytest.approx(1 / 12, rel=0.02)
    assert fs.CatalystScaffoldS(0.1, 0.1, K=1).walk_length(0.999999) == 1


def test_local_sgda_plus_whose_snapshot_follows_every_step_is_nc():
    """The authors' release renews the snapshot after every step; with K = 1 so does the published rule."""
    assert NAMES["local-sgda-plus-release"].rule is fs.CDMANC
    assert_same(end(fs.LocalSGDAPlus(0.05, 0.08, s=1, K=1)), end(fs.CDMANC(0.05, 0.08, K=1)))
    published, release = end(fs.LocalSGDAPlus(0.05, 0.08, s=1, K=3)), end(fs.CDMANC(0.05, 0.08, K=3))
    assert not torch.allclose(published.server.z.y, release.server.z.y)


def test_codasca_begins_as_coda_plus():
    coda = fs.CODAPlus(0.05, theta=0.3, K=3)
    codasca = fs.CODASCA(0.05, eta_g=1.0, theta=0.3, K=3)
    assert_same(end(codasca, rounds=1), end(coda, rounds=1))
    assert not torch.allclose(end(codasca).server.z.x, end(coda).server.z.x)


@pytest.mark.parametrize("name", ["codasca", "codasca-release"])
@pytest.mark.parametrize("fleet", [fs.Paper(), fs.Latency(dropout=0.4)])
def test_codascas_c_is_the_mean_of_all_c_i(name, fleet):
    algorithm = dataclasses.replace(ALGORITHMS["codasca"], **NAMES[name].fixed)
    lanes = end(algorithm, rounds=10, fleet=fleet, quorum=fs.Quorum(invite=5, minimum=3))
    assert min(lanes.completed) > 2
    assert (lanes.memory.x != 0).any()
    for c, c_i in zip(lanes.server.c, lanes.memory, strict=True):
        torch.testing.assert_close(c, c_i.mean(1), rtol=1e-12, atol=1e-14)


def test_codasca_release_differs_in_the_dual_only_by_its_correction():
    published = end(ALGORITHMS["codasca"], rounds=2)
    release = end(dataclasses.replace(ALGORITHMS["codasca"], beta=0.0), rounds=2)
    assert not torch.allclose(published.server.z.y, release.server.z.y)


def test_travelled_is_the_inverse_of_step():
    z, d = (Pair(torch.randn(3), torch.randn(2)) for _ in range(2))
    torch.testing.assert_close(travelled(z, step(z, d, 0.5, 0.25), 0.5, 0.25), d, rtol=1e-5, atol=1e-5)


def test_pull_draws_both_players_to_the_centre():
    z, centre = Pair(torch.ones(3), torch.ones(2)), Pair(torch.zeros(3), 3 * torch.ones(2))
    torch.testing.assert_close(step(z, pull(z, centre), 1.0, 1.0), centre)


@pytest.mark.parametrize("name", ["cdma-one", "cdma-ada", "catalyst-scaffold-s"])
def test_each_kind_of_cohorts_is_a_run_of_its_own(name):
    ends = [end(ALGORITHMS[name], cohorts=cohorts) for cohorts in ("independent", "invited", "answered")]
    for one, other in combinations(ends, 2):
        assert not torch.allclose(one.server.z.x, other.server.z.x)
