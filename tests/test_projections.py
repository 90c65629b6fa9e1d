"""Projections by their definition, and every algorithm on a problem whose constrained saddle is known."""

import dataclasses
import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedsaddle as fs
from fedsaddle.core import Pair, Parameters, Reply, step, zeros_like
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points
from fedsaddle.problem import Batch, Constrained, Federation
from fedsaddle.projections import ball, box, simplex
from zoo import ALGORITHMS

SETS: dict[str, Callable[[Tensor], Tensor]] = {
    "ball": lambda v: ball(v, 0.8),
    "box": lambda v: box(v, -0.3, 0.6),
    "simplex": simplex,
}

vectors = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


# --- by definition ---------------------------------------------------------------------------------------


def inside(name: str, v: Tensor) -> bool:
    return {
        "ball": lambda: float(v.norm()) <= 0.8 + 1e-12,
        "box": lambda: bool(((v >= -0.3) & (v <= 0.6)).all()),
        "simplex": lambda: bool((v >= 0).all()) and abs(float(v.sum()) - 1) <= 1e-12,
    }[name]()


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=50, deadline=None)
@given(v=vectors, seed=st.integers(0, 10**6))
def test_a_projection_is_the_nearest_point(name, v, seed):
    """It lies in the set, and v is seen from it under an obtuse angle to every other point of the set."""
    p = SETS[name](v)
    assert inside(name, p)
    torch.testing.assert_close(SETS[name](p), p, rtol=0, atol=1e-12)
    luck = torch.Generator().manual_seed(seed)
    for _ in range(5):
        other = SETS[name](3 * torch.randn(len(v), generator=luck, dtype=torch.float64))
        assert float((v - p) @ (other - p)) <= 1e-9 * (1 + float(v.norm()))


@pytest.mark.parametrize("name", SETS)
def test_a_projection_can_be_mapped(name):
    many = torch.randn(7, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mapped = torch.func.vmap(SETS[name])(many)
    torch.testing.assert_close(mapped, torch.stack([SETS[name](v) for v in many]), rtol=0, atol=0)


@pytest.mark.parametrize("name", SETS)
def test_what_is_not_a_number_stays_so(name):
    assert not torch.isfinite(SETS[name](torch.tensor([0.5, math.nan, 0.1]))).all()


def test_a_zero_stays_in_the_ball_and_large_numbers_reach_the_simplex():
    assert not ball(torch.zeros(3), 0.5).any()
    torch.testing.assert_close(simplex(torch.tensor([1e9, 1e9, -1e9])), torch.tensor([0.5, 0.5, 0.0]))


# --- in the engine ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tethered:
    """f = 1/2 |x - a|^2 + x'y with y in a convex set Y: the saddle is y = P_Y(a), x = a - P_Y(a).

    For given y the best x is a - y, which leaves a'y - 1/2 |y|^2 to be maximised over Y: the point of Y that
    is nearest to a. Without the set y would go to a itself. Clients hold different a; f has their mean.
    """

    name: str
    heterogeneity: float = 1.0
    dim: int = 4

    @cached_property
    def federation(self) -> Federation:
        luck = torch.Generator().manual_seed(2)
        a = torch.randn(6, self.dim, generator=luck, dtype=torch.float64)
        middle = torch.tensor([1.5, -0.4, 1.1, 0.2], dtype=torch.float64)
        return Federation({"a": middle + self.heterogeneity * (a - a.mean(0))}, torch.ones(6).long())

    def init(self, seed: int) -> Pair:
        return Pair(torch.zeros(self.dim).double(), torch.full((self.dim,), 9.0 + seed).double())

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        return xi.mean(0.5 * (z.x - xi.rows["a"]).square().sum(1)) + z.x @ z.y

    def project(self, z: Pair) -> Pair:
        return Pair(z.x, SETS[self.name](z.y))

    def evaluate(self, z: Pair) -> dict[str, float]:
        return {}

    @property
    def solution(self) -> Pair:
        a = self.federation.rows["a"].mean(0)
        return Pair(a - SETS[self.name](a), SETS[self.name](a))


class Unbound(Tethered):
    project = None  # type: ignore[assignment]


# Small enough steps for a game, and stages long enough not to matter.
GAME = {
    "cdma-nc": fs.CDMANC(eta=0.3, gamma=0.3, K=3),
    "cdma-one": fs.CDMAONE(eta=0.3, gamma=0.3, K=3),
    "cdma-ada": fs.CDMAADA(c_eta=0.3, c_gamma=0.3, c_alpha=0.5, rho=0.0, K=3),
    "parallel-sgda": fs.ParallelSGDA(eta=0.5, gamma=0.5),
    "local-sgda-plus": fs.LocalSGDAPlus(eta=0.3, gamma=0.3, K=3),
    "extra-step": fs.ExtraStep(eta_l=0.3, K=3),
    "coda-plus": fs.CODAPlus(eta_l=0.3, theta=0.1, K_0=30, decay=1.0, K=3),
    "codasca": fs.CODASCA(eta_l=0.3, eta_g=1.1, theta=0.1, K_0=30, decay=1.0, K=3),
    "catalyst-scaffold-s": fs.CatalystScaffoldS(eta_l=0.3, eta_g=0.33, theta=0.1, K_0=30, K=3),
}
DRIFTING = {"cdma-nc", "local-sgda-plus", "extra-step", "coda-plus"}  # biased where clients differ


def play_on(problem, algorithm, rounds, **settings):
    everyone = {"quorum": fs.Quorum(invite=6), "fleet": fs.Everybody(), "batch": 1, "seeds": (0,)}
    study = fs.make_study(problem, algorithm, **everyone | settings)
    lanes = begin(study)
    for round in range(rounds):
        lanes, _ = play(study, lanes, round)
        if isinstance(problem, Constrained):
            assert all(inside(problem.name, z.y) for z in points(lanes.server))
    return lanes


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("algorithm", GAME)
def test_every_algorithm_ends_in_the_constrained_saddle(algorithm, name):
    problem = Tethered(name, heterogeneity=0.0 if algorithm in DRIFTING else 1.0)
    lanes = play_on(problem, GAME[algorithm], rounds=60)
    for z in points(lanes.server):
        torch.testing.assert_close(z, problem.solution, rtol=0, atol=1e-4)


@pytest.mark.parametrize("algorithm", GAME)
def test_without_the_projection_y_leaves_the_set(algorithm):
    problem = Unbound("ball", heterogeneity=0.0)
    assert not isinstance(problem, Constrained)
    (z,) = points(play_on(problem, GAME[algorithm], rounds=20).server)
    assert float(z.y.norm()) > 1.5  # on its way to a


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_vectorised_equals_loop_where_points_are_projected(algorithm, name):
    fleet = {"quorum": fs.Quorum(invite=4), "fleet": fs.Paper()}
    fast, slow = (
        play_on(Tethered(name), ALGORITHMS[algorithm], 4, executor=ask, seeds=(0, 1), **fleet)
        for ask in (fs.Vectorised(), fs.Loop())
    )
    torch.testing.assert_close(fast.server, slow.server, rtol=1e-12, atol=1e-12)
    if slow.memory is not None:
        torch.testing.assert_close(fast.memory, slow.memory, rtol=1e-12, atol=1e-12)


def test_x_is_projected_too():
    """f = 1/2 |x - a|^2 + x'y - 1/2 |y|^2: y answers with x, so the saddle has x = P(a / 2) = y."""

    class Boxed(Tethered):
        def loss(self, z, xi):
            return super().loss(z, xi) - 0.5 * z.y.square().sum()

        def project(self, z):
            return Pair(box(z.x, -0.3, 0.6), z.y)

    problem = Boxed("box")
    study = fs.make_study(
        problem, GAME["cdma-one"], quorum=fs.Quorum(invite=6), fleet=fs.Everybody(), batch=1
    )
    lanes = begin(study)
    for round in range(60):
        lanes, _ = play(study, lanes, round)
    best = box(problem.federation.rows["a"].mean(0) / 2, -0.3, 0.6)
    torch.testing.assert_close(points(lanes.server)[0], Pair(best, best), rtol=0, atol=1e-6)


def test_every_local_step_and_the_look_ahead_are_projected():
    asked = []

    class Listening(Tethered):
        def loss(self, z, xi):
            asked.append(z.y.norm().detach())
            return super().loss(z, xi)

    wild = fs.ExtraStep(eta_l=2.0, K=4)
    play_on(Listening("ball"), wild, rounds=2, executor=fs.Loop())
    assert len(asked) > 50
    assert all(bool((norm <= 0.8 + 1e-12).all()) for norm in asked)


class Rolling(NamedTuple):
    z: Pair
    speed: Pair


@dataclasses.dataclass(frozen=True)
class HeavyBall(fs.CDMANC):
    """A walk that carries more than a point."""

    def update(self, client, z: Parameters) -> Reply:
        def move(w: Rolling, xi: object) -> Rolling:
            speed = 0.5 * w.speed + client.grad(w.z, xi)
            return Rolling(step(w.z, speed, self.eta, self.gamma), speed)

        return Reply({"z": client.walk(move, Rolling(z, zeros_like(z))).z})


@dataclasses.dataclass(frozen=True)
class Nameless(fs.CDMANC):
    def update(self, client, z: Parameters) -> Reply:
        return Reply({"z": client.walk(lambda w, xi: w, (z, z))[0]})


def test_a_walk_that_carries_more_has_its_z_projected():
    problem = Tethered("simplex", heterogeneity=0.0)
    lanes = play_on(problem, HeavyBall(eta=0.15, gamma=0.15, K=3), rounds=60)
    torch.testing.assert_close(points(lanes.server)[0], problem.solution, rtol=0, atol=1e-4)


def test_a_walk_without_a_point_is_refused_where_there_is_something_to_project():
    with pytest.raises(TypeError, match="nothing to project in a tuple"):
        play_on(Tethered("ball"), Nameless(0.1, 0.1), rounds=1)
    play_on(Unbound("ball"), Nameless(0.1, 0.1), rounds=1)


def test_codascas_variates_add_up_to_the_servers_on_the_boundary():
    """A projected walk tells less than its gradients: c_i is what it went, and c stays the mean of all."""
    problem = Tethered("ball")
    settings = {"quorum": fs.Quorum(invite=3), "fleet": fs.Paper()}
    lanes = play_on(problem, ALGORITHMS["codasca"], rounds=12, **settings)
    torch.testing.assert_close(lanes.server.c.x, lanes.memory.x.mean(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(lanes.server.c.y, lanes.memory.y.mean(1), rtol=0, atol=1e-12)
