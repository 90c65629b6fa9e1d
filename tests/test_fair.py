"""Fair classification: the clients' mean is the fair objective, and y ends on the classes that are hard."""

import pytest
import torch

import fedsaddle as fs
from fedsaddle.core import Pair
from fedsaddle.data.datasets import scaled
from fedsaddle.engine.visits import field_of
from fedsaddle.problem import Batch
from fedsaddle.problems import Fair


def of_client(problem: Fair, client: int) -> Batch:
    data = problem.federation
    at, size = int(data.offsets[client]), int(data.sizes[client])
    rows = {name: table[at : at + size] for name, table in data.rows.items()}
    return Batch(rows, {}, torch.full((size,), 1 / size, dtype=torch.float64), torch.tensor(0))


@pytest.mark.parametrize("partition", ["label", "iid", "dirichlet"])
def test_the_mean_over_clients_is_the_weighted_sum_of_the_classes_losses(partition):
    """Whoever holds which class, and however much of it."""
    problem = Fair(partition=partition, clients=23, penalty=0.3)
    y = torch.linspace(1, 4, 10)
    z = Pair(problem.init(1).x, y / y.sum())
    mean = torch.stack([problem.loss(z, of_client(problem, client)) for client in range(23)]).mean()

    rows = problem.federation.rows
    outputs = problem.model(z.x, scaled(rows["input"]))
    by_hand = -0.15 * (z.y - 0.1).square().sum()
    for c in range(10):
        own = rows["label"] == c
        by_hand += z.y[c] * torch.nn.functional.cross_entropy(outputs[own], rows["label"][own])
    assert float(mean) == pytest.approx(float(by_hand), rel=1e-5)
    assert problem.evaluate(z)["loss"] == pytest.approx(float(by_hand), rel=1e-5)


def test_gradients_against_finite_differences():
    problem = Fair(hidden=8)
    start, xi = problem.init(3), of_client(problem, 4)
    xi = xi._replace(rows=xi.rows | {"input": scaled(xi.rows["input"]).double()})
    z, h = Pair(start.x.double(), start.y.double()), 1e-6
    g = field_of(problem)(z, xi)
    luck = torch.Generator().manual_seed(1)
    for _ in range(3):
        d, e = (torch.randn(len(v), generator=luck, dtype=torch.float64) for v in z)
        ends = [problem.loss(Pair(z.x + s * h * d, z.y + s * h * e), xi) for s in (1, -1)]
        assert float(g.x @ d + g.y @ e) == pytest.approx(float(ends[0] - ends[1]) / (2 * h), rel=1e-4)


def test_metrics_by_hand():
    problem = Fair()
    z = problem.init(5)
    found = problem.evaluate(z)
    right = problem.model(z.x, scaled(problem.data.test_inputs)).argmax(1) == problem.data.test_labels
    by_class = [float(right[problem.data.test_labels == c].float().mean()) for c in range(10)]
    assert found["worst_accuracy"] == pytest.approx(min(by_class), abs=1e-6)
    assert found["test_accuracy"] == pytest.approx(float(right.float().mean()), abs=1e-6)
    assert found["largest_weight"] == pytest.approx(0.1)


def test_y_stays_on_the_simplex_and_the_worst_class_is_learnt():
    outcome = fs.simulate(
        Fair(clients=30),
        fs.CDMAONE(eta=0.05, gamma=0.001, K=5),
        rounds=40,
        quorum=fs.Quorum(invite=30),
        fleet=fs.Everybody(),
        batch=5,
    )
    (z,) = outcome.z
    assert float(z.y.sum()) == pytest.approx(1, abs=1e-5)
    assert float(z.y.min()) >= 0
    assert outcome.rows[0].metrics["worst_accuracy"] < 0.3
    assert outcome.last("worst_accuracy")[0] > 0.6
    assert outcome.last("largest_weight")[0] > 0.1


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"dataset": "digit"}, "did you mean 'digits'"),
        ({"partition": "labels"}, "did you mean 'label'"),
        ({"partition": "column"}, "does not say who holds a row"),
        ({"clients": 5000}, "at most the number of rows"),
        ({"penalty": -1.0}, "penalty must be at least 0"),
        ({"hidden": 0}, "hidden must be at least 1"),
    ],
)
def test_bad_dials_are_refused(dials, says):
    with pytest.raises(fs.BadInput, match=says):
        Fair(**dials)
