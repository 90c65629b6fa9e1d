"""Robust training: the loss, the search for the worst perturbation, and PGD, against what is known."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import fedsaddle as fs
from fedsaddle.core import Pair
from fedsaddle.data.datasets import DATASETS, Dataset, scaled
from fedsaddle.engine.study import begin
from fedsaddle.engine.visits import field_of
from fedsaddle.problem import Batch
from fedsaddle.problems import Robust
from test_golden import made_up


def whole(rows) -> Batch:
    n = len(rows["label"])
    return Batch(rows, {}, torch.full((n,), 1 / n, dtype=torch.float64), torch.tensor(0))


@pytest.fixture
def play_dataset(monkeypatch):
    """Make a dataset of given rows known by a name; the same rows are trained and tested on."""

    def known(inputs, labels, name="own"):
        monkeypatch.setitem(DATASETS, name, lambda: Dataset(inputs, labels, inputs, labels))
        return name

    return known


def test_the_papers_sizes(monkeypatch):
    monkeypatch.setitem(DATASETS, "mnist", lambda: made_up((1, 28, 28)))
    z = Robust(dataset="mnist", clients=20).init(0)
    assert (len(z.x), len(z.y)) == (199_210, 784)
    assert not z.y.any()


def test_gradients_against_finite_differences():
    problem = Robust(hidden=8, penalty=0.4)
    start, rows = problem.init(3), problem.federation.rows
    xi = whole(rows | {"input": scaled(rows["input"]).double()})
    luck, h = torch.Generator().manual_seed(1), 1e-6
    z = Pair(start.x.double(), torch.randn(64, generator=luck, dtype=torch.float64) / 8)
    g = field_of(problem)(z, xi)
    for _ in range(3):
        d, e = (torch.randn(len(v), generator=luck, dtype=torch.float64) for v in z)
        ends = [problem.loss(Pair(z.x + s * h * d, z.y + s * h * e), xi) for s in (1, -1)]
        assert float(g.x @ d + g.y @ e) == pytest.approx(float(ends[0] - ends[1]) / (2 * h), rel=1e-4)


def test_the_penalty_is_half_of_the_releases():
    problem = Robust(hidden=8)
    z = Pair(problem.init(0).x, torch.full((64,), 0.5))
    rows = problem.federation.rows
    outputs = problem.model(z.x, scaled(rows["input"]).flatten(1) + z.y)
    release = cross_entropy(outputs, rows["label"]) - 1e-3 * z.y.square().sum()
    assert float(problem.loss(z, whole(rows))) == pytest.approx(float(release), rel=1e-5)


# --- the worst perturbation ------------------------------------------------------------------------------


def test_the_loss_of_the_worst_perturbation_is_the_loss_there():
    """It is found by a short cut past the first layer; the whole network says the same."""
    problem = Robust(hidden=16, clients=20)
    z = Pair(problem.init(1).x * 3, torch.linspace(-0.1, 0.1, 64))
    rows = problem.federation.rows
    found = problem.worst(z, rows)
    assert float(found.loss) == pytest.approx(float(problem.loss(Pair(z.x, found.y), whole(rows))), rel=1e-5)
    right = problem.model(z.x, scaled(rows["input"]).flatten(1) + found.y).argmax(1) == rows["label"]
    assert float(found.accuracy) == pytest.approx(float(right.float().mean()))
    assert float(found.loss) > float(problem.loss(z, whole(rows)))


def harm(problem: Robust, x: torch.Tensor, tried: torch.Tensor) -> torch.Tensor:
    """The loss over all training rows for each of many perturbations."""
    rows = whole(problem.federation.rows)
    return torch.func.vmap(lambda y: problem.loss(Pair(x, y), rows), chunk_size=5000)(tried)


@pytest.mark.parametrize("dials", [{"radius": 0.8, "penalty": 0.0}, {"penalty": 0.9}])
@pytest.mark.parametrize("seed", range(3))
def test_the_ascent_finds_the_best_of_all_perturbations(play_dataset, dials, seed):
    """Two features, so that every perturbation can be tried."""
    inputs = torch.randn(30, 2, generator=torch.Generator().manual_seed(seed))
    name = play_dataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())
    problem = Robust(name, 3, "iid", hidden=12, ascent_steps=150, ascent_size=0.2, restarts=4, **dials)
    z = Pair(problem.init(seed).x * 3, torch.zeros(2))
    rows = problem.federation.rows
    line = torch.linspace(-1, 1, 161) * (problem.radius or 8)
    tried = torch.cartesian_prod(line, line)
    if problem.radius is not None:
        tried = tried[tried.norm(dim=1) <= problem.radius]
    best = harm(problem, z.x, tried).max()
    found = problem.worst(z, rows).loss
    assert best - 1e-3 < found < best + 0.02


def two_hills(play_dataset, **dials) -> tuple[Robust, Pair]:
    """One feature, one row at 0, label 0: the loss rises twice as fast to the left as to the right."""
    name = play_dataset(torch.zeros(1, 1), torch.zeros(1).long())
    problem = Robust(name, 1, "iid", hidden=2, penalty=0.2, **dials)
    last = torch.zeros(10, 2)
    last[0] = torch.tensor([-1.0, -2.0])
    pieces = [torch.tensor([1.0, -1.0]), torch.zeros(2), torch.eye(2).flatten(), torch.zeros(2)]
    x = torch.cat([*pieces, last.flatten(), torch.zeros(10)])
    return problem, Pair(x, torch.tensor([0.5]))


def test_restarts_find_what_one_climb_misses(play_dataset):
    near, z = two_hills(play_dataset, restarts=0, ascent_steps=200, ascent_size=0.5)
    many, _ = two_hills(play_dataset, restarts=6, ascent_steps=200, ascent_size=0.5)
    rows = near.federation.rows
    one, other = near.worst(z, rows), many.worst(z, rows)
    assert float(one.y) > 0 > float(other.y)
    best = float(harm(many, z.x, torch.linspace(-20, 20, 4001)[:, None]).max())
    assert float(other.loss) == pytest.approx(best, abs=1e-3)
    assert float(one.loss) < best - 1


def test_the_ascent_stays_in_the_ball(play_dataset):
    problem, z = two_hills(play_dataset, radius=0.7)
    assert float(problem.worst(z, problem.federation.rows).y.norm()) == pytest.approx(0.7)


# --- PGD -------------------------------------------------------------------------------------------------


def linear(play_dataset, inputs, labels, **dials) -> tuple[Robust, torch.Tensor, torch.Tensor]:
    """A network that is linear between its inputs and two live classes, and what separates them."""
    name = play_dataset(inputs, labels)
    features = inputs[0].numel()
    problem = Robust(name, 1, "iid", hidden=features, **dials)
    weights = torch.randn(2, features, generator=torch.Generator().manual_seed(4))
    last, bias = torch.zeros(10, features), torch.full((10,), -1e4)
    last[:2], bias[:2] = weights, -20 * weights.sum(1)  # takes back what keeps the ReLUs open
    eye, zero = torch.eye(features).flatten(), torch.zeros(features)
    x = torch.cat([eye, zero + 20, eye, zero, last.flatten(), bias])
    torch.testing.assert_close(
        problem.model(x, scaled(inputs).flatten(1))[:, :2],
        scaled(inputs).flatten(1) @ weights.T,
        rtol=1e-3,
        atol=1e-4,
    )
    return problem, x, weights[0] - weights[1]


def agree(problem, x, inputs, labels, margin):
    """Apart from those at the very edge, where rounding decides."""
    found, clear = problem.bears(x, inputs, labels), margin.abs() > 1e-3
    assert clear.float().mean() > 0.95
    assert torch.equal(found[clear], (margin > 0)[clear])
    assert 0.1 < found.float().mean() < 0.9


@pytest.mark.parametrize(("norm", "dual", "epsilon"), [("linf", 1, 0.2), ("l2", 2, 0.4)])
def test_pgd_on_a_linear_model_is_exact(play_dataset, norm, dual, epsilon):
    """The worst that can be done to w'v with |d| <= epsilon is epsilon times the dual norm of w."""
    luck = torch.Generator().manual_seed(7)
    inputs, labels = torch.randn(300, 5, generator=luck), torch.zeros(300).long()
    problem, x, w = linear(play_dataset, inputs, labels, epsilon=epsilon, norm=norm)
    agree(problem, x, inputs, labels, inputs @ w - epsilon * torch.linalg.vector_norm(w, dual))


def test_pgd_leaves_an_image_an_image(play_dataset):
    luck = torch.Generator().manual_seed(8)
    inputs = torch.randint(0, 256, (300, 1, 2, 3), generator=luck, dtype=torch.uint8)
    labels = torch.zeros(300).long()
    problem, x, w = linear(play_dataset, inputs, labels, epsilon=0.4)
    attacked = (scaled(inputs).flatten(1) - 0.4 * w.sign()).clamp(-1, 1)
    agree(problem, x, inputs, labels, attacked @ w)


def test_without_an_epsilon_pgd_does_nothing():
    problem = Robust(hidden=16, epsilon=0.0)
    found = problem.evaluate(problem.init(2))
    assert found["pgd_accuracy"] == found["test_accuracy"]


# --- as a task -------------------------------------------------------------------------------------------


def test_some_rows_are_of_all_clients():
    problem = Robust(clients=30, hidden=8, evaluate_rows=60)
    train, test = problem._judged
    assert (len(train.rows["label"]), len(test.rows["label"])) == (60, 60)
    assert len(train.rows["label"].unique()) == len(test.rows["label"].unique()) == 10
    every = Robust(clients=30, hidden=8)
    assert len(every._judged[0].rows["label"]) == int(every.federation.sizes.sum())


def test_metrics_by_hand():
    problem = Robust(hidden=8, evaluate_rows=10**6)
    z = Pair(problem.init(5).x, torch.full((64,), 0.02))
    found = problem.evaluate(z)
    assert next(iter(found)) == "robust_loss"
    right = problem.model(z.x, scaled(problem.data.test_inputs)).argmax(1) == problem.data.test_labels
    assert found["test_accuracy"] == pytest.approx(float(right.float().mean()))
    assert found["loss"] == pytest.approx(float(problem.loss(z, whole(problem.federation.rows))), abs=1e-6)
    assert found["train_robust_loss"] >= found["loss"]
    assert found["y_norm"] == pytest.approx(0.16)


def test_the_robust_loss_falls_and_y_stays_in_its_ball():
    problem = Robust(hidden=32, radius=0.5, penalty=0.0, restarts=0)
    outcome = fs.simulate(
        problem,
        fs.CDMAONE(0.05, 0.5, K=5),
        rounds=40,
        evaluate_every=20,
        quorum=fs.Quorum(invite=12),
        batch=5,
    )
    first, *_, last = [row.metrics for row in outcome.rows]
    assert last["robust_loss"] < first["robust_loss"] - 0.5
    assert last["robust_accuracy"] > 0.4
    assert 0.2 < last["y_norm"] < 0.5 + 1e-6  # a mean of points of the ball
    assert last["test_accuracy"] >= last["robust_accuracy"]


def test_vectorised_equals_loop():
    """In float32, to its rounding; clients of unequal size, y held in a ball."""
    problem = Robust(hidden=16, radius=0.01, partition="dirichlet", clients=20, restarts=0)
    ends = [
        fs.simulate(problem, fs.CDMAADA(0.05, 0.5, K=3), rounds=2, seeds=(0, 1), executor=ask, batch=4).z
        for ask in (fs.Vectorised(), fs.Loop())
    ]
    for fast, slow in zip(*ends, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-5)


def test_a_start_outside_the_ball_is_brought_in(monkeypatch):
    monkeypatch.setattr(Robust, "init", lambda self, seed: Pair(self.model.init(seed), torch.ones(64)))
    study = fs.make_study(Robust(hidden=8, radius=2.0), fs.CDMANC(0.1, 0.1))
    assert float(begin(study).server.z.y.norm()) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"dataset": "digit"}, "did you mean 'digits'"),
        ({"partition": "labels"}, "did you mean 'label'"),
        ({"clients": 5000}, "at most the number of rows"),
        ({"penalty": 0.0}, "a penalty above 0 or a radius"),
        ({"penalty": -1.0}, "penalty must be at least 0"),
        ({"radius": 0.0}, "radius must be above 0"),
        ({"epsilon": float("nan")}, "epsilon must be at least 0"),
        ({"norm": "l1"}, "norm must be"),
        ({"restarts": -1}, "restarts must be at least 0"),
        ({"steps": 0}, "steps must be at least 1"),
    ],
)
def test_bad_dials_are_refused(dials, says):
    with pytest.raises(fs.BadInput, match=says):
        Robust(**dials)


def test_rows_to_choose_settings_by_are_nobodys():
    problem = Robust(hidden=8, validation_share=0.2, restarts=0, ascent_steps=2)
    whole_set, held = problem.data.inputs.flatten(1), problem._validated.rows["input"].flatten(1)
    dealt = problem.federation.rows["input"].flatten(1)
    assert len(dealt) + len(held) == len(whole_set)
    assert len(held) == pytest.approx(0.2 * len(whole_set), rel=0.02)
    joined = torch.cat([dealt, held])
    assert torch.equal(joined.double().sum(0), whole_set.double().sum(0))
    z = problem.init(0)
    found = problem.evaluate(z)
    assert list(found)[:3] == ["robust_loss", "validation_robust_loss", "train_robust_loss"]
    assert found["validation_robust_loss"] == pytest.approx(
        float(problem.worst(z, problem._validated.rows).loss), rel=1e-6
    )
    assert problem.metrics["validation_robust_loss"].rows == "validation"
    assert "validation_robust_loss" not in Robust(hidden=8).metrics


def test_a_network_that_guesses_has_collapsed():
    metric = Robust(hidden=8).metrics["robust_loss"]
    assert metric.collapsed(2.4)
    assert not metric.collapsed(2.2)
