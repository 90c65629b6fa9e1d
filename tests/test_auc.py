"""AUC maximisation: the objective against its definition, the metrics against scikit-learn, the networks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

import fedsaddle as fs
from fedsaddle import networks
from fedsaddle.core import Pair
from fedsaddle.data import partition
from fedsaddle.data.datasets import digits, scaled
from fedsaddle.engine.visits import field_of
from fedsaddle.networks import Network
from fedsaddle.problem import Batch
from fedsaddle.problems import AUC


def whole(problem: AUC) -> Batch:
    """All rows, by what they count, as one client would hold them."""
    weight = problem.weights(torch.device("cpu"))
    return Batch(problem.federation.rows, {"worth": torch.ones(())}, weight, torch.tensor(0))


def each(problem: AUC) -> list[Batch]:
    """All rows of one client after another."""
    held = problem.federation
    tables = {name: table.split(held.sizes.tolist()) for name, table in held.rows.items()}
    return [
        Batch(
            {name: parts[client] for name, parts in tables.items()},
            {name: values[client] for name, values in held.own.items()},
            torch.full((size,), 1 / size, dtype=torch.float64),
            torch.tensor(0),
        )
        for client, size in enumerate(held.sizes.tolist())
    ]


def uneven(mean: str, **dials) -> AUC:
    """Some clients of a few rows, some of hundreds; at 0.1 p is 0.099, and the mean of the p_i 0.118."""
    return AUC(partition="dirichlet", alpha=0.1, network="logistic", mean=mean, **dials)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["rows", "clients"]))
def test_for_fixed_scores_the_saddle_is_the_pairwise_squared_loss(seed, mean):
    """Of what is optimised: the mean over clients of their losses, whatever sizes they have."""
    problem = uneven(mean)
    held, n = problem.federation, len(problem.federation)
    positive, sizes, worth = held.rows["positive"], held.sizes, held.own.get("worth", torch.ones(n))
    s = torch.rand(len(positive), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # By definition: all rows count the same, or all clients do.
    w = (
        torch.full_like(s, 1 / len(s))
        if mean == "rows"
        else (1 / (n * sizes)).double()[torch.repeat_interleave(sizes)]
    )
    w = w / w.sum()
    one, zero = w[positive] / w[positive].sum(), w[~positive] / w[~positive].sum()
    pairs = one @ (1 - s[positive][:, None] + s[~positive][None, :]) ** 2 @ zero
    a, b = one @ s[positive], zero @ s[~positive]
    alpha, p = b - a, float(w[positive].sum())

    def f(a, b, alpha):
        F = problem.objective(s, positive, a, b, alpha).split(sizes.tolist())
        return sum(worth[i] * own.mean() for i, own in enumerate(F)) / n

    value = f(a, b, alpha)
    assert problem.p == pytest.approx(p)
    assert float(problem.best_alpha(s, positive, w)) == pytest.approx(float(alpha))
    assert float(value) == pytest.approx(p * (1 - p) * (float(pairs) - 1), abs=1e-9)
    for da, db, dalpha in [(0.1, 0, 0), (-0.1, 0, 0), (0, 0.1, 0), (0, -0.1, 0), (0, 0, 0.1), (0, 0, -0.1)]:
        moved = f(a + da, b + db, alpha + dalpha)
        assert (moved < value) if dalpha else (moved > value)


@pytest.mark.parametrize("mean", ["rows", "clients"])
def test_what_is_measured_is_what_clients_optimise(mean):
    """loss and grad_phi are those of the mean over clients, as a server with all of them would see them."""
    problem = uneven(mean, grad_phi=True)
    z = Pair(*(value.double() + 0.1 for value in problem.init(2)))
    batches = each(problem)
    found = problem.evaluate(z)
    f = torch.stack([problem.loss(z, xi) for xi in batches]).mean()
    assert found["loss"] == pytest.approx(float(f), rel=1e-6)
    whole_s = torch.cat([problem.scores(z.x, xi.rows["input"]) for xi in batches])
    positive = torch.cat([xi.rows["positive"] for xi in batches])
    alpha = problem.best_alpha(whole_s, positive, problem.weights(torch.device("cpu")))[None]
    slopes = [field_of(problem)(Pair(z.x, alpha), xi) for xi in batches]
    mean_of = Pair(*(torch.stack(values).mean(0) for values in zip(*slopes, strict=True)))
    assert abs(float(mean_of.y)) < 1e-6  # alpha is where what clients ascend is highest
    assert found["grad_phi"] == pytest.approx(float(mean_of.x.norm()), rel=1e-6)


def test_rows_or_clients_count_the_same():
    rows, clients = uneven("rows"), uneven("clients")
    assert rows.p == pytest.approx(0.0992, abs=1e-4)
    assert clients.p == pytest.approx(0.118, abs=1e-3)
    assert float(rows.federation.own["worth"].mean()) == pytest.approx(1)
    alike = [AUC(clients=103, network="logistic", mean=mean) for mean in ("rows", "clients")]  # 14 rows each
    assert alike[0].p == pytest.approx(alike[1].p)
    assert torch.equal(alike[0].federation.own["worth"], torch.ones(103, dtype=torch.float64))
    assert not alike[1].federation.own


def test_p_is_the_part_of_positives_among_all_clients():
    data = digits()
    for way in ("label", "iid", "dirichlet"):
        problem = AUC(partition=way, clients=29)
        rows = torch.cat(problem.parts)
        assert problem.p == pytest.approx(float((data.labels[rows] == 0).double().mean()))


@pytest.mark.parametrize("scoring", ["sigmoid", "softmax", "release"])
@pytest.mark.parametrize("network", ["logistic", "mlp"])
def test_gradients_against_finite_differences(network, scoring):
    problem = AUC(network=network, scoring=scoring)
    start = problem.init(3)
    z = Pair(start.x.double(), start.y.double() + 0.3)
    xi = whole(problem)
    xi = xi._replace(rows=xi.rows | {"input": scaled(xi.rows["input"]).double()})
    g = field_of(problem)(z, xi)
    luck = torch.Generator().manual_seed(1)
    for _ in range(3):
        d = torch.randn(len(z.x), generator=luck, dtype=torch.float64)
        d, h = d / d.norm(), 1e-6
        slope = (problem.loss(Pair(z.x + h * d, z.y), xi) - problem.loss(Pair(z.x - h * d, z.y), xi)) / (
            2 * h
        )
        assert float(g.x @ d) == pytest.approx(float(slope), rel=1e-4, abs=1e-8)
    rise = (problem.loss(Pair(z.x, z.y + h), xi) - problem.loss(Pair(z.x, z.y - h), xi)) / (2 * h)
    assert float(g.y) == pytest.approx(float(rise), rel=1e-5, abs=1e-9)


def test_metrics_against_scikit_learn():
    problem = AUC(network="mlp")
    z = problem.init(5)
    found = problem.evaluate(z)
    train, test = (
        problem.scores(z.x, inputs).numpy()
        for inputs in (problem.federation.rows["input"], problem.data.test_inputs)
    )
    truth = (problem.data.test_labels == 0).numpy()
    assert found["test_auc"] == pytest.approx(roc_auc_score(truth, test), abs=1e-6)
    assert found["train_auc"] == pytest.approx(
        roc_auc_score(problem.federation.rows["positive"], train), abs=1e-6
    )
    assert found["test_precision"] == pytest.approx(average_precision_score(truth, test), abs=1e-6)
    assert found["loss"] == pytest.approx(float(problem.loss(z, whole(problem))), abs=1e-6)


def test_grad_phi_is_the_slope_of_the_loss_at_the_best_alpha():
    problem = AUC(network="logistic", grad_phi=True)
    z = problem.init(2)
    xi = whole(problem)
    s, positive = problem.scores(z.x, xi.rows["input"]), xi.rows["positive"]
    best = Pair(z.x, problem.best_alpha(s, positive, xi.weight.to(s.dtype))[None])
    g = field_of(problem)(best, xi)
    assert abs(float(g.y)) < 1e-6
    assert problem.evaluate(z)["grad_phi"] == pytest.approx(float(g.x.norm()), rel=1e-4)


@pytest.mark.parametrize(
    ("build", "size", "shape"),
    [
        (lambda: networks.lenet5(10), 44_426, (1, 28, 28)),
        (lambda: networks.cifar_cnn(10), 122_570, (3, 32, 32)),
        (lambda: networks.logistic(64), 65, (1, 8, 8)),
        (lambda: networks.mlp(64), 64 * 64 + 64 + 64 * 64 + 64 + 65, (1, 8, 8)),
    ],
)
def test_a_network_is_its_flat_vector(build, size, shape):
    network = Network(build)
    assert network.size == size
    vector, inputs = network.init(3), torch.randn(4, *shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = build()
    torch.testing.assert_close(network(vector, inputs), module(inputs).detach())
    torch.testing.assert_close(vector, torch.nn.utils.parameters_to_vector(module.parameters()).detach())
    before = torch.get_rng_state()
    network.init(9)
    assert torch.equal(torch.get_rng_state(), before)
    several = torch.stack([network.init(seed) for seed in range(3)])
    mapped = torch.func.vmap(network, in_dims=(0, None))(several, inputs)
    torch.testing.assert_close(mapped[1], network(several[1], inputs), rtol=1e-4, atol=1e-5)


def test_the_releases_relu_can_die():
    """When all ten outputs of LeNet lie below zero, every score is a tenth and no gradient is left."""
    problem = AUC.__new__(AUC)
    object.__setattr__(problem, "network", "lenet5")
    object.__setattr__(problem, "scoring", "release")
    object.__setattr__(problem, "model", Network(lambda: networks.lenet5(10)))
    x = torch.cat([problem.model.init(0), torch.zeros(2)])
    x[-12:-2] = -100.0  # the last layer's biases
    inputs = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    slope = torch.func.grad(lambda x: problem.scores(x, inputs).sum())(x)
    assert torch.equal(problem.scores(x, inputs), torch.full((5,), 0.1))
    assert not slope.any()
    object.__setattr__(problem, "scoring", "softmax")  # the same without the ReLU
    assert len(set(problem.scores(x, inputs).tolist())) == 5
    assert torch.func.grad(lambda x: problem.scores(x, inputs).sum())(x).any()


# --- who holds what --------------------------------------------------------------------------------------


@st.composite
def labelled(draw):
    labels = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=1, max_size=80)))
    return labels, draw(st.integers(1, len(labels)))


@settings(max_examples=60, deadline=None)
@given(labelled(), st.floats(0.01, 100), st.integers(0, 99))
def test_every_row_has_one_owner_and_every_client_a_row(case, alpha, seed):
    labels, clients = case
    ways = {
        "label": partition.by_label(labels, clients),
        "iid": partition.iid(labels, clients, seed),
        "dirichlet": partition.dirichlet(labels, clients, alpha, seed),
        "zipf": partition.zipf(labels, clients, alpha, seed),
    }
    for parts in ways.values():
        assert len(parts) == clients
        assert min(len(part) for part in parts) >= 1
        assert sorted(torch.cat(parts).tolist()) == list(range(len(labels)))
    for way in ("iid", "label"):
        assert max(map(len, ways[way])) - min(map(len, ways[way])) <= 1
    in_order = labels[torch.cat(ways["label"])]
    assert torch.equal(in_order, in_order.sort().values)


def test_zipfs_sizes_fall_by_rank():
    labels = torch.arange(10).repeat(1000)
    parts = partition.zipf(labels, 20, 1.0, 3)
    sizes = sorted(map(len, parts), reverse=True)
    for k in (2, 4, 10, 20):
        assert sizes[k - 1] == pytest.approx(sizes[0] / k, rel=0.02)
    assert sizes != [len(part) for part in parts]  # the large ones are not all of the first class
    in_order = labels[torch.cat(parts)]
    assert torch.equal(in_order, in_order.sort().values)


def test_by_column_gives_every_value_its_rows():
    column = torch.tensor([7, 3, 7, 9, 3, 7])
    assert [part.tolist() for part in partition.by_column(column)] == [[1, 4], [0, 2, 5], [3]]


def test_a_small_alpha_makes_clients_unlike_and_a_large_one_alike():
    labels = torch.arange(10).repeat(200)

    def purity(alpha):
        parts = partition.dirichlet(labels, 20, alpha, 0)
        return sum(float(torch.bincount(labels[part]).max()) for part in parts) / len(labels)

    assert purity(0.05) > 0.5
    assert purity(100.0) < 0.2


def test_dirichlet_proportions_have_their_moments():
    alpha, count = 0.5, 10
    draws_ = torch.stack([partition._dirichlet(count, alpha, torch.tensor(key)) for key in range(3000)])
    assert torch.allclose(draws_.sum(1), torch.ones(3000, dtype=torch.float64))
    variance = (1 / count) * (1 - 1 / count) / (count * alpha + 1)
    assert torch.allclose(draws_.mean(0), torch.full((count,), 0.1, dtype=torch.float64), atol=0.01)
    assert float(draws_.var(0).mean()) == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"dataset": "digit"}, "did you mean 'digits'"),
        ({"network": "lenet"}, "did you mean 'lenet5'"),
        ({"mean": "client"}, "did you mean 'clients'"),
        ({"network": "lenet5"}, "takes images of"),
        ({"partition": "labels"}, "did you mean 'label'"),
        ({"clients": 5000}, "at most the number of rows"),
        ({"positive": 11}, "positive must be one"),
        ({"partition": "dirichlet", "alpha": 0.0}, "alpha must be a finite number above 0"),
    ],
)
def test_bad_dials_are_refused(dials, says):
    with pytest.raises(fs.BadInput, match=says):
        AUC(**dials)


def test_vectorised_equals_loop_on_images():
    """In float32, to its rounding; clients of unequal size."""
    ends = [
        fs.simulate(
            AUC(partition="dirichlet", clients=20),
            fs.CDMAADA(0.1, 0.1, K=3),
            rounds=2,
            seeds=(0, 1),
            executor=ask,
            batch=4,
        ).z
        for ask in (fs.Vectorised(), fs.Loop())
    ]
    for fast, slow in zip(*ends, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-5)


def test_auc_rises():
    outcome = fs.simulate(
        AUC(network="mlp", grad_phi=True),
        fs.CDMAONE(0.1, 0.1, K=5),
        rounds=30,
        quorum=fs.Quorum(invite=8),
        batch=5,
    )
    assert outcome.rows[0].metrics["test_auc"] < 0.9
    assert outcome.last("test_auc")[0] > 0.98
    assert math.isfinite(outcome.last("grad_phi")[0])
