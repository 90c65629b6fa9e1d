"""Problems with known answers: the answers are right, and the algorithms find them."""

import math

import pytest
import torch

import fedsaddle as fs
from fedsaddle import draws
from fedsaddle.core import Pair
from fedsaddle.engine.visits import field_of
from fedsaddle.problem import Batch
from fedsaddle.problems import PROBLEMS
from zoo import quadratic

EXACT = {name: entry for name, entry in PROBLEMS.items() if ".exact." in entry.task.__module__}
ZOO = {name: entry.task(clients=7, samples=(3, 6), **entry.defaults) for name, entry in EXACT.items()}
ZOO["toy-wgan"] = fs.ToyWGAN(clients=7, samples=(3, 6), noise=0.0)
ZOO["quadratic-nonconvex"] = fs.Quadratic(clients=7, samples=(3, 6), nonconvex=0.3)
ZOO["quadratic-waves"] = fs.Quadratic(clients=7, samples=(3, 6), waves=0.7)
WITH_PHI = [name for name in ZOO if name != "bilinear"]


def whole(problem, client) -> Batch:
    """All rows of one client."""
    data = problem.federation
    at, size = int(data.offsets[client]), int(data.sizes[client])
    rows = {name: table[at : at + size] for name, table in data.rows.items()}
    own = {name: table[client] for name, table in data.own.items()}
    return Batch(rows, own, torch.full((size,), 1 / size, dtype=torch.float64), draws.key(9, client))


def global_loss(problem, z):
    clients = range(len(problem.federation))
    return sum(problem.loss(z, whole(problem, client)) for client in clients) / len(clients)


def difference(f, x, h=1e-6):
    """Central differences."""
    steps = h * torch.eye(len(x), dtype=x.dtype)
    return torch.stack([(f(x + e) - f(x - e)) / (2 * h) for e in steps])


def somewhere(problem, seed=3):
    return problem.init(seed)


@pytest.mark.parametrize("name", ZOO)
def test_f_is_the_mean_of_the_clients_losses(name):
    for seed in range(3):
        z = somewhere(ZOO[name], seed)
        torch.testing.assert_close(ZOO[name].value(z), global_loss(ZOO[name], z), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ZOO)
def test_gradients_against_finite_differences(name):
    problem, z, xi = ZOO[name], somewhere(ZOO[name]), whole(ZOO[name], 2)
    g = field_of(problem)(z, xi)
    torch.testing.assert_close(
        g.x, difference(lambda x: problem.loss(Pair(x, z.y), xi), z.x), rtol=1e-6, atol=1e-7
    )
    torch.testing.assert_close(
        g.y, difference(lambda y: problem.loss(Pair(z.x, y), xi), z.y), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("name", WITH_PHI)
def test_grad_phi_against_finite_differences(name):
    x = somewhere(ZOO[name]).x
    torch.testing.assert_close(ZOO[name].grad_phi(x), difference(ZOO[name].phi, x), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", WITH_PHI)
def test_phi_is_the_maximum_over_y(name):
    """Ascent in y from several starts comes up to Phi(x), and never above."""
    problem = ZOO[name]
    for seed in range(3):
        x = somewhere(problem, seed).x
        y = somewhere(problem, seed + 10).y.clone().requires_grad_()
        climber = torch.optim.LBFGS([y], max_iter=500, line_search_fn="strong_wolfe", tolerance_change=1e-14)

        def loss(y=y, x=x, climber=climber):
            climber.zero_grad()
            value = -problem.value(Pair(x, y))
            value.backward()
            return value

        climber.step(loss)
        assert float(problem.value(Pair(x, y)).detach()) == pytest.approx(
            float(problem.phi(x)), rel=1e-8, abs=1e-8
        )


@pytest.mark.parametrize("name", [name for name in ZOO if name != "quadratic-nonconvex"])
def test_the_solution_is_stationary_for_both_players(name):
    problem = ZOO[name]
    z = Pair(*(part.clone().requires_grad_() for part in problem.solution))
    gradients = torch.autograd.grad(problem.value(z), z)
    assert all(float(g.abs().max()) < 1e-9 for g in gradients)
    assert problem.evaluate(problem.solution)["stationarity"] < 1e-18


def test_quadratic_nonconvex_has_no_closed_form():
    assert ZOO["quadratic-nonconvex"].solution is None


def hessian(problem):
    z = somewhere(problem)
    n = len(z.x)
    return torch.autograd.functional.hessian(
        lambda v: problem.value(Pair(v[:n], v[n:])), torch.cat([z.x, z.y])
    )


@pytest.mark.parametrize("kappa", [2.0, 10.0, 100.0])
@pytest.mark.parametrize("flat", [0, 2])
@pytest.mark.parametrize("dims", [(5, 6), (3, 6), (8, 4)])
def test_the_quadratics_dials(kappa, flat, dims):
    x, y = dims
    problem = fs.Quadratic(
        clients=9, dim_x=x, dim_y=y, kappa=kappa, flat=flat, dissimilarity=0.7, heterogeneity=2.5
    )
    H = hessian(problem)
    concave = torch.linalg.eigvalsh(-H[x:, x:])
    assert int((concave.abs() < 1e-12).sum()) == flat
    mu = concave[concave > 1e-12].min()
    assert float(torch.linalg.matrix_norm(H, ord=2) / mu) == pytest.approx(kappa, rel=1e-9)
    assert torch.linalg.eigvalsh(H[:x, :x]).min() < 0  # nonconvex in x ...
    curve = torch.autograd.functional.hessian(problem.phi, torch.zeros(x, dtype=torch.float64))
    assert torch.linalg.eigvalsh(curve).min() > 0  # ... though Phi is convex

    own, f = problem.federation.own, problem.mean
    blocks = [
        torch.cat([torch.cat([A - f["A"], B - f["B"]], 1), torch.cat([(B - f["B"]).mT, f["C"] - C], 1)])
        for A, B, C in zip(own["A"], own["B"], own["C"], strict=True)
    ]
    assert max(float(torch.linalg.matrix_norm(b, ord=2)) for b in blocks) == pytest.approx(0.7)
    sizes = problem.federation.sizes
    means = torch.stack([rows.mean(0) for rows in problem.federation.rows["linear"].split(sizes.tolist())])
    spread = (means - means.mean(0)).square().sum(1).mean().sqrt()
    assert float(spread) == pytest.approx(2.5)


def test_without_dissimilarity_and_heterogeneity_all_clients_are_one():
    problem = quadratic(dissimilarity=0.0, heterogeneity=0.0, noise=0.0)
    z = somewhere(problem)
    values = [float(problem.loss(z, whole(problem, client))) for client in range(12)]
    assert max(values) - min(values) < 1e-12


def test_no_client_of_robust_least_squares_is_strongly_concave_alone():
    problem = ZOO["robust-least-squares"]
    z = somewhere(problem)
    for client in range(7):
        H = torch.autograd.functional.hessian(
            lambda y, client=client: problem.loss(Pair(z.x, y), whole(problem, client)), z.y
        )
        assert torch.linalg.eigvalsh(-H).min() == pytest.approx(0.0, abs=1e-12)
    n = len(z.x)
    assert torch.linalg.eigvalsh(-hessian(problem)[n:, n:]).min() > 0.01
    A, target = problem.federation.rows["A"], problem.federation.rows["target"]
    torch.testing.assert_close(problem.solution.x, torch.linalg.pinv(A) @ target)
    H = hessian(problem)
    mu = torch.linalg.eigvalsh(-H[n:, n:]).min()
    assert float(torch.linalg.matrix_norm(H, ord=2) / mu) == pytest.approx(problem.kappa)


def test_the_constants_of_the_two_sines_hold_on_a_grid():
    problem = ZOO["two-sines"]
    x, y = torch.meshgrid(
        torch.linspace(-3, 3, 301, dtype=torch.float64),
        torch.linspace(-3, 3, 300, dtype=torch.float64),
        indexing="ij",
    )
    slope = 3 * torch.sin(x) ** 2 * torch.sin(2 * y) - 8 * y - 10 * torch.sin(2 * y)
    f = x**2 + 3 * torch.sin(x) ** 2 * torch.sin(y) ** 2 - 4 * y**2 - 10 * torch.sin(y) ** 2
    pl = (slope**2 / (2 * (x**2 - f))).min()
    assert float(pl) == pytest.approx(1.26, abs=0.02)
    fxx = 2 + 6 * torch.cos(2 * x) * torch.sin(y) ** 2
    fyy = 6 * torch.sin(x) ** 2 * torch.cos(2 * y) - 8 - 20 * torch.cos(2 * y)
    fxy = 3 * torch.sin(2 * x) * torch.sin(2 * y)
    H = torch.stack([torch.stack([fxx, fxy], -1), torch.stack([fxy, fyy], -1)], -1)
    assert float(torch.linalg.matrix_norm(H, ord=2).max()) <= 28.5
    assert problem.kappa == pytest.approx(28.5 / 1.26)


def test_toy_wgan_kappa_is_that_of_the_hessian_at_the_solution():
    problem = ZOO["toy-wgan"]
    v = torch.cat(problem.solution)
    H = torch.autograd.functional.hessian(lambda v: problem.value(Pair(v[:2], v[2:])), v)
    mu = torch.linalg.eigvalsh(-H[2:, 2:]).min()
    assert float(torch.linalg.matrix_norm(H, ord=2) / mu) == pytest.approx(problem.kappa)


def test_bilinear_phi_is_finite_only_at_its_solution():
    problem = ZOO["bilinear"]
    assert math.isinf(float(problem.phi(somewhere(problem).x)))
    x = problem.solution.x
    assert float(problem.phi(x)) == pytest.approx(float(problem.value(problem.solution)))
    assert torch.isfinite(problem.grad_phi(x)).all()
    H = hessian(problem)[:5, 5:]
    values = torch.linalg.svdvals(H)
    assert float(values[0] / values[-1]) == pytest.approx(problem.kappa)


# --- the algorithms find the answers ----------------------------------------------------------------------

FULL = {"fleet": fs.Everybody(), "seeds": (0,)}


def final(problem, algorithm, rounds, **settings):
    outcome = fs.simulate(problem, algorithm, rounds=rounds, evaluate_every=rounds, **FULL | settings)
    return outcome.last("stationarity")[0]


def test_one_reaches_machine_precision_where_nc_stalls():
    """Full participation, full gradients (one sample a client), five local steps, clients that differ."""
    problem = fs.Quadratic(clients=6, dim_x=3, dim_y=5, samples=1, noise=0.0, dissimilarity=0.3, kappa=3.0)
    everyone = {"quorum": fs.Quorum(invite=6), "batch": 1}
    one = final(problem, fs.CDMAONE(0.1, 0.3, K=5), 400, **everyone)
    nc = final(problem, fs.CDMANC(0.1, 0.3, K=5), 150, **everyone)
    more = final(problem, fs.CDMANC(0.1, 0.3, K=5), 300, **everyone)
    assert one < 1e-25
    assert nc > 1e-6
    assert nc == pytest.approx(more, rel=1e-3)  # it has stalled, not run out of rounds


@pytest.mark.parametrize(
    ("name", "algorithm", "rounds"),
    [
        ("quadratic-pl", fs.CDMAONE(0.1, 0.3, K=5), 400),
        ("two-sines", fs.CDMAONE(0.02, 0.02, K=5), 200),
        ("toy-wgan", fs.CDMAONE(0.02, 0.1, K=5), 400),
        ("robust-least-squares", fs.CDMAONE(0.02, 1.0, K=3), 400),
        ("bilinear", fs.ExtraStep(0.5, K=3), 200),
    ],
)
def test_known_saddles_are_found(name, algorithm, rounds):
    easy = {"samples": 3, "heterogeneity": 0.3, "noise": 0.0}
    if name in ("quadratic-pl", "two-sines", "bilinear"):
        easy["dissimilarity"] = 0.0
    if name in ("quadratic-pl", "bilinear"):
        easy["kappa"] = 3.0 if name == "quadratic-pl" else 1.5
    if name == "robust-least-squares":
        easy["price"] = 3.0
    entry = PROBLEMS[name]
    problem = entry.task(clients=6, **entry.defaults | easy)
    settings = {"quorum": fs.Quorum(invite=6), "batch": 3}
    start = problem.evaluate(problem.init(0))["stationarity"]
    assert final(problem, algorithm, rounds, **settings) < 1e-12 * start


def test_plain_descent_ascent_spirals_out_of_the_bilinear_game():
    problem = fs.Bilinear(clients=6, noise=0.0, dissimilarity=0.0)
    start = problem.evaluate(problem.init(0))["stationarity"]
    settings = {"quorum": fs.Quorum(invite=6)}
    assert final(problem, fs.ParallelSGDA(0.3, 0.3), 100, **settings) > 10 * start
    assert final(problem, fs.ExtraStep(0.3, K=1), 200, **settings) < 0.1 * start
