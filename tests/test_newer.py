"""The algorithms newer than the paper: when one is another, which are exact, and that all compute the same.

Each is written by hand in test_by_hand.py.
"""

import math
import re
from dataclasses import dataclass

import pytest
import torch

import fedsaddle as fs
from fedsaddle.algorithms import ALGORITHMS as NAMES
from fedsaddle.algorithms.cdma import plain_walk
from fedsaddle.algorithms.servers import Point
from fedsaddle.engine.compile import tapes
from fedsaddle.projections import simplex
from test_engine import assert_same, run
from zoo import ALGORITHMS, NEWER, fleets

PAIRS = {
    "fsgda": (fs.FSGDA(0.05, 0.08, K=3), fs.CDMANC(0.05, 0.08, K=3)),
    "fess-gda": (
        fs.FESSGDA(0.05, 0.08, p=0.0, eta_g=1.2, gamma_g=0.8, K=3),
        fs.FSGDA(0.05, 0.08, eta_g=1.2, gamma_g=0.8, K=3),
    ),
    "momentum-local-sgda": (fs.MomentumLocalSGDA(0.05, 0.08, b=1.0, K=3), fs.CDMANC(0.05, 0.08, K=3)),
    "fedavg-m": (fs.FedAvgM(0.05, 0.08, b=1.0, K=3), fs.CDMANC(0.05, 0.08, K=3)),
    "fed-norm-sgda": (
        fs.FedNormSGDA(0.05, 0.08, eta_g=1.2, gamma_g=0.8, K=3),
        fs.FSGDA(0.05, 0.08, eta_g=1.2, gamma_g=0.8, K=3),
    ),
    "fed-norm-sgda-plus": (
        fs.FedNormSGDAPlus(0.05, 0.08, s=2, K=3),
        fs.LocalSGDAPlus(0.05, 0.08, s=2, K=3),
    ),
    "adafgda": (
        fs.AdaFGDA(0.05, 0.08, decay=1.0, floor=1e-300, K=3),  # s stays 1
        fs.FGDA(0.05, 0.08, K=3),
    ),
}


def test_every_algorithm_that_ships_is_in_the_zoo():
    releases = {name for name in NAMES if name.endswith("-release")}
    assert NAMES.keys() - releases == ALGORITHMS.keys() | NEWER.keys()
    for name, rule in NEWER.items():
        assert type(rule) is NAMES[name].rule


@pytest.mark.parametrize("name", PAIRS)
def test_where_a_term_vanishes_it_is_another_rule(name):
    one, other = PAIRS[name]
    assert_same(run(one, rounds=5), run(other, rounds=5), tolerance=1e-12)
    if name != "fed-norm-sgda":  # which differs where walks are cut short: tests/test_partial.py
        assert not torch.allclose(run(NEWER[name]).server.z.x, run(other).server.z.x)


@pytest.mark.parametrize(
    ("one", "other", "rounds"),
    [
        (fs.SAGDA(0.05, 0.08, K=3), fs.CDMAONE(0.05, 0.08, K=3), 4),
        (fs.FedGDAGT(0.05, K=3), fs.CDMAONE(0.05, 0.05, K=3), 4),
        (fs.ServerOGDA(0.05, 0.08, K=3), fs.CDMANC(0.05, 0.08, K=3), 1),  # there is no way before the first
        (fs.FGDA(0.05, 0.08, K=1), fs.ParallelSGDA(0.05, 0.08), 1),  # v is 0 where its only step begins
    ],
)
def test_where_clients_have_one_row_it_is_another_rule(one, other, rounds):
    alone = {"problem": fs.Quadratic(clients=12, samples=1), "batch": 1, "rounds": rounds}
    alone |= {"quorum": fs.Quorum(invite=12), "fleet": fs.Everybody()}
    assert_same_points(run(one, **alone), run(other, **alone))


def assert_same_points(one, other):
    torch.testing.assert_close(one.server.z, other.server.z, rtol=1e-12, atol=1e-12)


def test_with_one_step_server_eg_is_an_extragradient_step_of_cohorts():
    """Everybody answers with the gradient on all rows: Korpelevich's method, on paper."""
    problem = fs.Quadratic(clients=6, dim_x=3, dim_y=5, samples=1, noise=0.0)
    everybody = {"fleet": fs.Everybody(), "quorum": fs.Quorum(invite=6), "batch": 1, "problem": problem}
    lanes = run(fs.ServerEG(0.1, 0.2, K=1), seeds=(4,), rounds=3, **everybody)
    z = problem.init(4)

    def slope(z):
        z = fs.Pair(*(value.clone().requires_grad_() for value in z))
        return fs.Pair(*torch.autograd.grad(problem.value(z), [*z]))

    for _ in range(3):
        ahead = fs.step(z, slope(z), 0.1, 0.2)
        z = fs.step(z, slope(ahead), 0.1, 0.2)
    torch.testing.assert_close(lanes.server.z.x[0], z.x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(lanes.server.z.y[0], z.y, rtol=1e-10, atol=1e-12)


@dataclass(frozen=True)
class StoringSAGDA(fs.SAGDAMinibatch):
    """SAGDA as it is printed, with a memory: who walks subtracts what it has kept."""

    def remember(self, z):
        return fs.zeros_like(z)

    def collect(self, client, z: fs.Parameters):
        g = client.grad(z, client.sample())
        return fs.Reply({"g": g}, keep=g)

    def update(self, client, z: fs.Parameters, u: fs.Gradients):
        correction = u - client.kept

        def move(w, xi):
            return fs.step(w, client.grad(w, xi) + correction, self.eta, self.gamma)

        return fs.Reply({"z": client.walk(move, z)}, keep=client.kept)


def test_what_is_found_again_is_what_was_sent(tmp_path):
    """Among those who answered, a memory would hold the same; and a minibatch is not all rows."""
    answered = {"fleet": fleets(tmp_path)["latency"], "cohorts": "answered", "rounds": 6}
    stored = run(StoringSAGDA(0.05, 0.08, eta_g=1.2, gamma_g=0.8, K=3), **answered)
    found = run(NEWER["sagda-minibatch"], **answered)
    torch.testing.assert_close(found.server.z, stored.server.z, rtol=1e-13, atol=1e-13)
    assert not torch.allclose(found.server.z.x, run(NEWER["sagda"], **answered).server.z.x)


def test_where_clients_have_one_row_a_minibatch_is_all_rows():
    alone = {"problem": fs.Quadratic(clients=12, samples=1), "batch": 1, "rounds": 5}
    assert_same(run(NEWER["sagda-minibatch"], **alone), run(NEWER["sagda"], **alone), tolerance=1e-12)


@dataclass(frozen=True)
class Loudest:
    """Clients weigh by their loss: sum_i w_i z_i / sum_i w_i with w = exp(f_i / lam), as TERM does."""

    eta: fs.StepSize
    gamma: fs.StepSize
    lam: fs.Positive = 1.0
    K: fs.Count = 3

    def init(self, z):
        return Point(z)

    def send(self, server):
        return {"z": server.z}

    def update(self, client, z: fs.Parameters):
        w = torch.exp(client.full_value(z) / self.lam)
        end = plain_walk(client, z, self.eta, self.gamma)
        return fs.Reply({"d": w * (end - z), "w": fs.Pair(w[None], z.y[:0])})

    def average(self, server, turn, d: fs.Gradients, w: fs.Gradients):
        return Point(server.z + (1 / w.x) * d)

    def phases(self):
        return (fs.Phase("update", self.send, self.update, self.average, steps=self.K),)


def test_answers_can_be_weighted_by_a_loss():
    """On paper: two clients, one row each, exact gradients."""
    problem, rule = fs.Quadratic(clients=2, samples=1, noise=0.0, dim_x=2, dim_y=3), Loudest(0.1, 0.2, K=1)
    both = {"fleet": fs.Everybody(), "quorum": fs.Quorum(invite=2), "batch": 1, "problem": problem}
    loop = run(rule, seeds=(4,), rounds=1, executor=fs.Loop(), **both)
    assert_same(run(rule, seeds=(4,), rounds=1, **both), loop, tolerance=1e-13)
    z, ends, weights = problem.init(4), [], []
    for client in (0, 1):
        own = {name: table[client] for name, table in problem.federation.own.items()}
        rows = {"linear": problem.federation.rows["linear"][client][None]}
        xi = fs.Batch(rows, own, torch.ones(1).double(), torch.tensor(0))
        at = fs.Pair(*(value.clone().requires_grad_() for value in z))
        value = problem.loss(at, xi)
        ends.append(fs.step(z, fs.Pair(*torch.autograd.grad(value, [*at])), 0.1, 0.2))
        weights.append(torch.exp(value.detach()))
    expected = (1 / sum(weights)) * (weights[0] * ends[0] + weights[1] * ends[1])
    torch.testing.assert_close(fs.Pair(*(value[0] for value in loop.server.z)), expected)
    assert abs(float(weights[0] / weights[1]) - 1) > 0.1


def test_a_game_has_no_loss_to_ask_for():
    class Turning:
        federation, metrics = fs.Quadratic(clients=2).federation, {}

        def init(self, seed):
            return fs.Pair(torch.ones(1).double(), torch.ones(1).double())

        def field(self, z, xi):
            return fs.Pair(z.y, -z.x)

        def evaluate(self, z):
            return {}

    with pytest.raises(
        fs.BadInput, match=r"Turning has no loss, which an algorithm with client\.value needs"
    ):
        run(Loudest(0.1, 0.1), problem=Turning(), quorum=fs.Quorum(invite=2), batch=1)


def test_a_task_of_ones_own_has_a_loss_to_ask_for_unless_it_has_two():
    """On paper: f_i = (x - a_i)^2 - y^2 from (1, 2), with a = 1 and 3; the clients weigh exp(-4) and 1."""

    def loss(x, y, batch):
        return (x - batch["a"]).square().sum(1) - y.square().sum()

    def task_of(rule):
        data = fs.clients([{"a": [[1.0]]}, {"a": [[3.0]]}])
        return fs.task(x=torch.ones(1), y=torch.full((1,), 2.0), loss=rule, data=data)

    both = {"fleet": fs.Everybody(), "quorum": fs.Quorum(invite=2), "batch": 1, "seeds": (0,), "rounds": 1}
    loop = run(Loudest(0.1, 0.2, K=1), problem=task_of(loss), executor=fs.Loop(), **both)
    assert loop.server.z.x.item() == pytest.approx(1 + 0.4 / (1 + math.exp(-4)))
    assert loop.server.z.y.item() == pytest.approx(1.2)
    assert_same(run(Loudest(0.1, 0.2, K=1), problem=task_of(loss), **both), loop, tolerance=1e-6)
    game = task_of(lambda x, y, batch: (loss(x, y, batch), loss(x, y, batch)))
    with pytest.raises(fs.BadInput, match=r"two losses, and an algorithm with client\.value needs one"):
        run(Loudest(0.1, 0.2), problem=game, **both)


class Sparse:
    """min over x, max over y of mean_i (x - a_i).y - |y|^2/2 + lam |x|_1: x* is mean a_i, shrunk by lam."""

    def __init__(self, places, lam=0.5):
        self.lam, self.metrics = lam, {}
        rows = {"a": torch.tensor(places, dtype=torch.float64)}
        self.federation = fs.problem.Federation(rows, torch.ones(len(places), dtype=torch.int64))

    def init(self, seed):
        return fs.Pair(torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))

    def loss(self, z, xi):
        return xi.mean((z.x - xi.rows["a"]) @ z.y) - z.y.square().sum() / 2

    def prox(self, z, by):
        return fs.Pair(torch.sign(z.x) * (z.x.abs() - by * self.lam).clamp(min=0), z.y)

    def evaluate(self, z):
        return {}


def test_a_penalty_by_its_prox_leads_to_the_sparse_solution():
    problem = Sparse([[2.0, 0.1, -1.5], [1.0, 0.3, -0.5], [3.0, -0.1, -2.5]])
    everybody = {"fleet": fs.Everybody(), "quorum": fs.Quorum(invite=3), "batch": 1, "problem": problem}
    rule = fs.FeDualEx(0.2, eta_g=0.9, K=3)
    found = run(rule, seeds=(0,), rounds=150, **everybody)
    torch.testing.assert_close(found.server.z.x[0], torch.tensor([1.5, 0.0, -1.0]).double())
    assert found.server.z.x[0, 1] == 0
    torch.testing.assert_close(found.server.z.y[0], torch.tensor([-0.5, -0.1, 0.5]).double())
    few = {"seeds": (0,), "rounds": 4, **everybody}
    assert_same(run(rule, **few), run(rule, executor=fs.Loop(), **few), tolerance=1e-13)


def test_a_warm_up_of_what_follows_a_penalty_is_refused():
    with pytest.raises(fs.BadInput, match="by the length of all steps so far"):
        fs.make_study(Sparse([[1.0, 2.0, 3.0]]), fs.FeDualEx(0.02, K=5), steady=fs.Steady(warmup=5))
    fs.make_study(fs.Quadratic(), fs.FeDualEx(0.02, K=5), steady=fs.Steady(warmup=5))


def test_a_prox_that_nobody_would_take_is_refused():
    said = "Sparse has a prox, which CDMANC does not take; take fedualex, or put the penalty into the loss"
    with pytest.raises(fs.BadInput, match=said):
        run(fs.CDMANC(0.1, 0.1), problem=Sparse([[1.0, 2.0, 3.0]]), quorum=fs.Quorum(invite=1))


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (
            {"prox": lambda self, z: z},
            "Sparse.prox cannot be called as it will be: write def prox(self, z, by)",
        ),
        ({"prox": 3}, "write def prox(self, z, by)"),
        ({"loss": lambda self, z: z.x.sum()}, "write def loss(self, z, xi)"),
        ({"init": lambda self: None}, "write def init(self, seed)"),
        ({"prox": lambda self, z, by: z.x}, "Sparse.prox must give a Pair whose x and y have the shapes"),
        ({"project": lambda self, z: fs.Pair(z.x[:1], z.y)}, "Sparse.project must give a Pair"),
        ({"prox": lambda self, z, by: z.x.nothing}, "Sparse.prox failed in <lambda> (test_newer.py, line "),
    ],
)
@pytest.mark.parametrize("executor", [fs.Loop(), fs.Vectorised()])
def test_a_method_of_a_problem_that_is_amiss_is_told_in_a_line(method, told, executor):
    problem = type("Sparse", (Sparse,), method)([[1.0, 2.0, 3.0]])
    with pytest.raises(fs.BadInput, match=re.escape(told)):
        run(fs.FeDualEx(0.1), problem=problem, quorum=fs.Quorum(invite=1), executor=executor)


# --- exactness: everybody answers, gradients are exact, clients differ ------------------------------------

EXACT = {
    "sagda": fs.SAGDA(0.05, 0.15, K=5),
    "sagda-minibatch": fs.SAGDAMinibatch(0.05, 0.15, K=5),
    "fedgda-gt": fs.FedGDAGT(0.05, K=5),
    "fednest": fs.FedNest(0.05, 0.15, T=1, K=5),
    "proxskip-vip": fs.ProxSkipVIP(0.05, K=5),
}
BIASED = {
    "fsgda": fs.FSGDA(0.05, 0.15, K=5),
    "fess-gda": fs.FESSGDA(0.05, 0.15, p=0.1, K=5),
    "momentum-local-sgda": fs.MomentumLocalSGDA(0.05, 0.15, b=0.5, K=5),
    "fedavg-m": fs.FedAvgM(0.05, 0.15, b=0.5, K=5),
    "fgda": fs.FGDA(0.05, 0.15, rho=0.0, K=5),
    "adafgda": fs.AdaFGDA(0.05, 0.15, rho=0.0, floor=1.0, K=5),
    "fed-norm-sgda": fs.FedNormSGDA(0.05, 0.15, K=5),
    "fed-norm-sgda-plus": fs.FedNormSGDAPlus(0.05, 0.15, K=5),
    "server-eg": fs.ServerEG(0.05, 0.15, K=5),
    "server-ogda": fs.ServerOGDA(0.05, 0.15, K=5),
    "fedualex": fs.FeDualEx(0.05, K=5),
}


class Centres:
    """Each client wants x at a place of its own; y weighs the clients, and in the end the farthest two."""

    def __init__(self, places):
        self.clients, self.metrics = len(places), {}
        rows = {"c": torch.tensor(places, dtype=torch.float64)[:, None]}
        ones = torch.ones(self.clients, dtype=torch.int64)
        self.federation = fs.problem.Federation(rows, ones, {"who": torch.arange(self.clients)})

    def init(self, seed):
        start = torch.full((self.clients,), 1 / self.clients, dtype=torch.float64)
        return fs.Pair(torch.zeros(1, dtype=torch.float64), start)

    def loss(self, z, xi):
        own = z.y[xi.own["who"].reshape(1)][0]
        return self.clients * own * xi.mean((z.x - xi.rows["c"]).square().sum(-1)) / 2

    def project(self, z):
        return fs.Pair(z.x, simplex(z.y))


@pytest.mark.parametrize("rule", [fs.DRFA(0.03, 0.004, K=5), fs.ParallelSGDA(0.1, 0.02)])
def test_weights_on_clients_find_the_worst(rule):
    """Between the two that are farthest apart: x is their midrange, and each has half of the weight."""
    problem = Centres([-2.0, -1.5, 0.2, 1.0, 1.3, 2.5, 3.0, 0.0])
    everybody = {"fleet": fs.Everybody(), "quorum": fs.Quorum(invite=8), "batch": 1, "problem": problem}
    lanes = run(rule, seeds=(0,), rounds=400, **everybody)
    assert lanes.server.z.x[0].item() == pytest.approx(0.5, abs=1e-5)
    assert lanes.server.z.y[0, [0, 6]].tolist() == pytest.approx([0.5, 0.5], abs=1e-5)


def test_drfa_is_drawn_to_the_plain_mean_by_long_walks():
    """With weights .7, .2, .1 held, clients drawn by them would take x to 0.5 for every K."""

    class Held(Centres):
        def init(self, seed):
            start = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
            return fs.Pair(torch.zeros(1, dtype=torch.float64), start)

    everybody = {"fleet": fs.Everybody(), "quorum": fs.Quorum(invite=3), "batch": 1}
    for K, x in ((1, 0.5), (5, 0.627), (20, 0.964)):
        rule = fs.DRFA(0.1, 1e-12, K=K)
        lanes = run(rule, seeds=(0,), rounds=300, problem=Held([0.0, 1.0, 3.0]), **everybody)
        assert lanes.server.z.x[0].item() == pytest.approx(x, abs=1e-3)


@pytest.mark.parametrize(
    "more",
    [
        {"merge": fs.Merge(clip={"parameters": 3.0, "gradients": 60.0})},
        {"checks": fs.Checks(norm={"parameters": 3.0, "gradients": 60.0})},
        {"merge": fs.Merge(weights="inverse_propensity")},
    ],
    ids=str,
)
def test_what_bounds_and_weighs_updates_leaves_drfa_alone_far_from_zero(more):
    """Places near 1,000: bounds are of updates, not of where they lead."""

    class Far(Centres):
        def init(self, seed):
            return super().init(seed)._replace(x=torch.tensor([1000.0], dtype=torch.float64))

    problem = Far([998.0, 998.5, 1000.2, 1001.0, 1001.3, 1002.5, 1003.0, 1000.0])
    everybody = {"fleet": fs.Everybody(), "quorum": fs.Quorum(invite=8), "batch": 1, "problem": problem}
    lanes = run(fs.DRFA(0.03, 0.004, K=5), seeds=(0,), rounds=400, **everybody, **more)
    assert lanes.completed == [400]
    assert lanes.server.z.x[0].item() == pytest.approx(1000.5, abs=1e-3)
    assert lanes.server.z.y[0, [0, 6]].tolist() == pytest.approx([0.5, 0.5], abs=1e-3)


def test_where_y_is_weighed_is_allowed():
    """A walk's steps are projected after they are made; the place that is sent must be, too."""

    class Boxed(Centres):
        def project(self, z):
            return super().project(fs.Pair(z.x.clamp(-1.0, 1.0), z.y))

    everybody = {"fleet": fs.Everybody(), "quorum": fs.Quorum(invite=2), "batch": 1}
    lanes = run(fs.DRFA(0.5, 0.01, K=3), seeds=(0,), rounds=5, problem=Boxed([8.0, 9.0]), **everybody)
    assert lanes.server.snap.x.tolist() == [[1.0]]


def stationarity(rule, rounds):
    problem = fs.Quadratic(
        clients=6, dim_x=3, dim_y=5, samples=1, noise=0.0, dissimilarity=0.3, heterogeneity=2.0, kappa=3.0
    )
    everybody = {"fleet": fs.Everybody(), "quorum": fs.Quorum(invite=6), "batch": 1, "seeds": (0,)}
    outcome = fs.simulate(problem, rule, rounds=rounds, evaluate_every=rounds, progress=False, **everybody)
    return outcome.last("stationarity")[0]


def test_every_newer_rule_is_exact_or_biased():
    assert EXACT.keys() | BIASED.keys() | {"drfa", "afl"} == NEWER.keys()  # those two find the worst clients


@pytest.mark.parametrize("name", EXACT)
def test_what_corrects_its_drift_is_exact(name):
    assert stationarity(EXACT[name], 800) < 1e-20


@pytest.mark.parametrize("name", BIASED)
def test_what_does_not_stays_away_by_its_drift(name):
    early, late = (stationarity(BIASED[name], rounds) for rounds in (400, 800))
    assert 1e-12 < late < 0.1
    assert late == pytest.approx(early, rel=0.2)


# --- whoever computes them ------------------------------------------------------------------------------


@pytest.mark.parametrize("fleet", ["paper", "latency"])
@pytest.mark.parametrize("name", NEWER)
def test_vectorised_and_replayed_equal_the_loop(name, fleet, tmp_path, monkeypatch):
    fleet = fleets(tmp_path)[fleet]
    loop = run(NEWER[name], rounds=6, fleet=fleet, executor=fs.Loop())
    assert max(loop.completed) > 0
    assert_same(run(NEWER[name], rounds=6, fleet=fleet, executor=fs.Vectorised(compiled=False)), loop)
    replays = []
    for kind in (tapes.Tape, tapes.WalkTape):
        monkeypatch.setattr(
            kind, "__call__", lambda *given, play=kind.__call__: replays.append(given) or play(*given)
        )
    monkeypatch.setattr(tapes, "PATIENCE", 0)
    assert_same(run(NEWER[name], rounds=6, fleet=fleet, executor=fs.Vectorised()), loop)
    assert len(replays) >= 3
