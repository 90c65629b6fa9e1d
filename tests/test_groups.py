"""Worst group and worst client: the clients' mean is the weighted sum of losses, and y ends on the worst."""

import pytest
import torch
from sklearn.metrics import accuracy_score
from torch.nn.functional import cross_entropy

import fedsaddle as fs
from fedsaddle.core import Pair
from fedsaddle.data.datasets import DATASETS, Dataset, Grouping, scaled
from fedsaddle.engine.visits import field_of
from fedsaddle.problem import Batch
from fedsaddle.problems import Fair, Groups


def people(rows: int = 300, seed: int = 1) -> Dataset:
    """Two kinds of people and five towns; the few of the second kind have the other sign."""
    luck = torch.Generator().manual_seed(seed)

    def half(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        inputs = torch.randn(count, 4, generator=luck)
        kind = (torch.rand(count, generator=luck) < 0.15).long()
        noise = torch.randn(count, generator=luck)
        labels = ((1 - 2 * kind) * inputs[:, 0] + inputs[:, 1] + 0.3 * noise > 0.4).long()
        return inputs, labels, kind, torch.randint(5, (count,), generator=luck)

    (train, labels, kind, town), (test, test_labels, test_kind, test_town) = half(rows), half(rows // 2)
    groups = {
        "kind": Grouping(("many", "few"), kind, test_kind),
        "town": Grouping(tuple("abcde"), town, test_town),
    }
    return Dataset(train, labels, test, test_labels, ("no", "yes"), town, groups=groups)


@pytest.fixture(autouse=True)
def town(monkeypatch):
    data = people()
    monkeypatch.setitem(DATASETS, "town", lambda: data)


def of_client(problem, client: int) -> Batch:
    data = problem.federation
    at, size = int(data.offsets[client]), int(data.sizes[client])
    rows = {name: table[at : at + size] for name, table in data.rows.items()}
    rows["input"] = scaled(rows["input"], torch.float64)
    return Batch(rows, {}, torch.full((size,), 1 / size, dtype=torch.float64), torch.tensor(0))


def doubled(z: Pair) -> Pair:
    return Pair(z.x.double(), z.y.double())


def mean_of_clients(problem, z: Pair) -> float:
    each = [problem.loss(z, of_client(problem, client)) for client in range(len(problem.federation))]
    return float(torch.stack(each).mean())


def by_hand(problem: Groups, x: torch.Tensor, member: torch.Tensor, groups: int) -> torch.Tensor:
    """The mean loss of each group of the training rows, in the order of the data."""
    outputs = problem.model(x, problem.data.inputs.double())
    labels = problem.data.labels
    return torch.stack([cross_entropy(outputs[member == g], labels[member == g]) for g in range(groups)])


@pytest.mark.parametrize(
    "dials",
    [{}, {"partition": "column"}, {"partition": "column", "most_rows": 20}, {"partition": "dirichlet"}],
    ids=["iid", "column", "pieces", "dirichlet"],
)
@pytest.mark.parametrize("by_class", [False, True])
def test_the_mean_over_clients_is_the_weighted_sum_of_the_groups_losses(dials, by_class):
    problem = Groups("town", clients=7, groups="kind", by_class=by_class, penalty=0.3, **dials)
    kind, labels = problem.data.groups["kind"].rows, problem.data.labels
    member, groups = (kind * 2 + labels, 4) if by_class else (kind, 2)
    y = torch.linspace(1, 3, groups, dtype=torch.float64)
    z = Pair(doubled(problem.init(1)).x, y / y.sum())
    part = torch.bincount(member) / len(member)
    f = z.y @ by_hand(problem, z.x, member, groups) - 0.15 * (z.y - part).square().sum()
    assert mean_of_clients(problem, z) == pytest.approx(float(f), rel=1e-6)
    assert problem.evaluate(z)["loss"] == pytest.approx(float(f), rel=1e-6)


def test_with_y_on_the_clients_each_has_its_own_loss_times_its_weight():
    """AFL's and DRFA's problem: f_i = N y_i L_i."""
    problem = Groups("town", partition="column", groups="client")
    y = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0], dtype=torch.float64)
    z = Pair(doubled(problem.init(2)).x, y)
    losses = by_hand(problem, z.x, problem.data.owners, 5)
    for client in range(5):
        found = float(problem.loss(z, of_client(problem, client)))
        assert found == pytest.approx(float(5 * y[client] * losses[client]), rel=1e-6)
    assert {"worst_accuracy", "gap"} <= problem.metrics.keys()  # the test rows say their town


def test_clients_that_the_test_rows_do_not_know_are_judged_in_training():
    problem = Groups("town", clients=6, groups="client")
    found = problem.evaluate(problem.init(0))
    assert found.keys() == problem.metrics.keys()
    assert "worst_accuracy" not in found
    assert "train_worst_loss" in found


def test_weights_on_the_classes_are_the_fair_problem():
    fair, groups = Fair(partition="iid", hidden=16, penalty=0.0), Groups(network="mlp", hidden=16)
    y = torch.linspace(1, 4, 10, dtype=torch.float64)
    z = Pair(doubled(fair.init(3)).x, y / y.sum())
    for client in (0, 7):
        assert float(groups.loss(z, of_client(groups, client))) == pytest.approx(
            float(fair.loss(z, of_client(fair, client))), rel=1e-6
        )


@pytest.mark.parametrize("penalty", [0.0, 0.5, 1e6])
def test_phi_is_the_largest_that_y_can_make_of_f(penalty):
    problem = Groups("town", groups="town", penalty=penalty)
    x = doubled(problem.init(4)).x
    found = problem.evaluate(Pair(x, problem.part))
    losses = by_hand(problem, x, problem.data.groups["town"].rows, 5)
    luck = torch.distributions.Dirichlet(torch.full((5,), 0.3, dtype=torch.float64))
    torch.manual_seed(0)
    tried = [*luck.sample((2000,)), *torch.eye(5, dtype=torch.float64), problem.part]
    values = [float(y @ losses - penalty / 2 * (y - problem.part).square().sum()) for y in tried]
    assert max(values) <= found["phi"] + 1e-9
    if penalty == 0:
        assert found["phi"] == pytest.approx(float(losses.max()))
    if penalty == 1e6:  # then f is the mean over all rows
        outputs = problem.model(x, problem.data.inputs.double())
        mean = float(cross_entropy(outputs, problem.data.labels))
        assert found["phi"] == pytest.approx(mean, rel=1e-5)


def test_metrics_by_hand():
    problem = Groups("town", groups="kind")
    z = doubled(problem.init(5))
    found = problem.evaluate(z)
    data, kind = problem.data, problem.data.groups["kind"].test_rows
    guess = problem.model(z.x, data.test_inputs.double()).argmax(1)
    each = [accuracy_score(data.test_labels[kind == g], guess[kind == g]) for g in (0, 1)]
    assert found["worst_accuracy"] == pytest.approx(min(each))
    assert found["gap"] == pytest.approx(max(each) - min(each))
    assert found["test_accuracy"] == pytest.approx(accuracy_score(data.test_labels, guess))
    assert found["largest_weight"] == pytest.approx(float(problem.part.max()))


def test_gradients_against_finite_differences():
    problem = Groups("town", groups="kind", by_class=True, penalty=0.2, network="mlp", hidden=5)
    xi, z, h = of_client(problem, 1), doubled(problem.init(3)), 1e-6
    g = field_of(problem)(z, xi)
    luck = torch.Generator().manual_seed(1)
    for _ in range(3):
        d, e = (torch.randn(len(v), generator=luck, dtype=torch.float64) for v in z)
        ends = [problem.loss(Pair(z.x + s * h * d, z.y + s * h * e), xi) for s in (1, -1)]
        assert float(g.x @ d + g.y @ e) == pytest.approx(float(ends[0] - ends[1]) / (2 * h), rel=1e-4)


def test_the_worst_group_gains_what_the_mean_does_not_see():
    problem = Groups("town", groups="kind", clients=10)

    def end(gamma: float) -> dict[str, float]:
        rule = fs.CDMAONE(eta=0.3, gamma=gamma, K=3)
        everybody = {"quorum": fs.Quorum(invite=10), "fleet": fs.Everybody()}
        outcome = fs.simulate(problem, rule, rounds=40, batch=10, **everybody)
        assert float(outcome.z[0].y.sum()) == pytest.approx(1, abs=1e-5)
        return outcome.rows[-1].metrics

    minimax, mean = end(0.02), end(1e-9)
    assert minimax["train_worst_loss"] < 0.9 * mean["train_worst_loss"]
    assert minimax["worst_accuracy"] > mean["worst_accuracy"]
    assert minimax["test_accuracy"] < mean["test_accuracy"]  # which has its price


def test_the_trained_network_is_given_back():
    problem = Groups("town", groups="kind", network="mlp", hidden=6)
    z = problem.init(1)
    net = problem.models(z)["classifier"]
    rows = problem.data.test_inputs
    torch.testing.assert_close(net(rows), torch.softmax(problem.model(z.x, rows), 1))
    assert not net.training


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"dataset": "twon"}, "did you mean 'town'"),
        ({"groups": "kinds"}, "did you mean 'kind'. known: class, client, kind, town"),
        ({"groups": "client", "by_class": True}, "by_class needs groups"),
        ({"by_class": True}, "by_class has no meaning"),
        ({"network": "lenet5"}, "unknown network 'lenet5'; .*known: logistic, mlp"),
        ({"penalty": -1.0}, "penalty must be at least 0"),
        ({"dataset": "digits", "partition": "column"}, "does not say who holds a row"),
    ],
)
def test_bad_dials_are_refused(dials, says):
    with pytest.raises(fs.BadInput, match=says):
        Groups(**{"dataset": "town", **dials})


def test_what_has_no_effect_is_noted():
    found = " ".join(Groups("town", partition="column", clients=9, hidden=7, seed=3).notes)
    assert "clients = 9 has no effect" in found
    assert "hidden = 7" in found
    assert "seed = 3" in found
    assert Groups("town", partition="column", most_rows=9, seed=3).notes == []
