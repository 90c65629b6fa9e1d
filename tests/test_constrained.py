"""Limits on error rates: the clients' mean is the Lagrangian, and its saddle is the constrained minimum."""

import numpy
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import recall_score
from torch.nn.functional import binary_cross_entropy_with_logits

import fedsaddle as fs
from fedsaddle.core import Pair
from fedsaddle.data.datasets import DATASETS, Dataset, Grouping
from fedsaddle.engine.visits import field_of
from fedsaddle.problems import Limits
from test_groups import doubled, mean_of_clients, of_client, people

ODDS = {"rule": "equalised-odds", "groups": "kind"}


@pytest.fixture(autouse=True)
def town(monkeypatch):
    data = people()
    monkeypatch.setitem(DATASETS, "town", lambda: data)


def soft_rates(problem: Limits, x: torch.Tensor) -> dict[tuple[int, int], torch.Tensor]:
    """By group and class, from the data as they are; group -1 is everybody."""
    data = problem.data
    soft = torch.sigmoid(problem.sharpness * problem.model(x, data.inputs.double()).squeeze(1))
    kind = data.groups["kind"].rows
    of = {(g, c): soft[(kind == g) & (data.labels == c)].mean() for g in (0, 1) for c in (0, 1)}
    return of | {(-1, c): soft[data.labels == c].mean() for c in (0, 1)}


def violations(problem: Limits, x: torch.Tensor) -> torch.Tensor:
    r = soft_rates(problem, x)
    if problem.rule == "neyman-pearson":
        return torch.stack([(1 - r[-1, 1]) - problem.limit])
    apart = torch.stack([r[g, c] - r[-1, c] for g in (0, 1) for c in (0, 1)])
    return torch.cat([apart, -apart]) - problem.limit


def by_hand(problem: Limits, z: Pair) -> torch.Tensor:
    data = problem.data
    outputs = problem.model(z.x, data.inputs.double()).squeeze(1)
    loss = binary_cross_entropy_with_logits(outputs, data.labels.double())
    return loss + z.y @ violations(problem, z.x) - problem.penalty / 2 * z.y.square().sum()


@pytest.mark.parametrize("rule", [{}, ODDS], ids=["neyman-pearson", "equalised-odds"])
@pytest.mark.parametrize("partition", ["column", "iid", "dirichlet"])
def test_the_mean_over_clients_is_the_lagrangian(rule, partition):
    problem = Limits("town", partition, clients=7, limit=0.2, penalty=0.3, sharpness=2.0, **rule)
    start = doubled(problem.init(1))
    z = Pair(start.x, torch.linspace(0.1, 2, len(start.y), dtype=torch.float64))
    expected = float(by_hand(problem, z))
    assert mean_of_clients(problem, z) == pytest.approx(expected, rel=1e-6)
    assert problem.evaluate(z)["loss"] == pytest.approx(expected, rel=1e-6)
    worst = float(violations(problem, z.x).max().clamp(min=0))
    assert problem.evaluate(z)["soft_violation"] == pytest.approx(worst)


@pytest.mark.parametrize("penalty", [0.0, 0.4])
def test_phi_is_the_largest_that_y_can_make_of_the_lagrangian(penalty):
    problem = Limits("town", limit=0.05, penalty=penalty, most=3.0, **ODDS)
    x = doubled(problem.init(2)).x
    phi = problem.evaluate(Pair(x, torch.zeros(8, dtype=torch.float64)))["phi"]
    luck = torch.Generator().manual_seed(0)
    tried = 3 * torch.rand(500, 8, generator=luck, dtype=torch.float64)
    assert max(float(by_hand(problem, Pair(x, y))) for y in tried) <= phi + 1e-9
    v = violations(problem, x)
    best = (v / penalty).clamp(0, 3) if penalty else 3.0 * (v > 0)
    assert phi == pytest.approx(float(by_hand(problem, Pair(x, best.double()))), rel=1e-6)


def test_counted_rates_are_scikit_learns():
    problem = Limits("town", limit=0.01, **ODDS)
    z = doubled(problem.init(3))
    data, found = problem.data, problem.evaluate(z)
    guess = (problem.model(z.x, data.test_inputs.double()).squeeze(1) > 0).long()
    kind, labels = data.groups["kind"].test_rows, data.test_labels

    def rate(c: int, own: torch.Tensor) -> float:  # of class c, taken for positive
        recall = recall_score(labels[own], guess[own], pos_label=c)
        return recall if c else 1 - recall

    everybody = kind >= 0
    apart = [abs(rate(c, kind == g) - rate(c, everybody)) for g in (0, 1) for c in (0, 1)]
    assert found["violation"] == pytest.approx(max(0, max(apart) - 0.01))
    gaps = [abs(rate(c, kind == 0) - rate(c, kind == 1)) for c in (0, 1)]
    assert found["odds_gap"] == pytest.approx(max(gaps))
    assert found["test_error"] == pytest.approx(float((guess != labels).double().mean()))

    found = Limits("town", limit=0.01).evaluate(Pair(z.x, z.y[:1]))
    assert found["missed"] == pytest.approx(1 - rate(1, everybody))
    assert found["alarms"] == pytest.approx(rate(0, everybody))
    assert found["violation"] == pytest.approx(max(0, found["missed"] - 0.01))


@pytest.mark.parametrize("rule", [{}, ODDS], ids=["neyman-pearson", "equalised-odds"])
def test_gradients_against_finite_differences(rule):
    problem = Limits("town", network="mlp", hidden=5, penalty=0.2, **rule)
    xi, start, h = of_client(problem, 1), doubled(problem.init(3)), 1e-6
    z = Pair(start.x, start.y + torch.linspace(0.5, 1, len(start.y), dtype=torch.float64))
    g = field_of(problem)(z, xi)
    luck = torch.Generator().manual_seed(1)
    for _ in range(3):
        d, e = (torch.randn(len(v), generator=luck, dtype=torch.float64) for v in z)
        ends = [problem.loss(Pair(z.x + s * h * d, z.y + s * h * e), xi) for s in (1, -1)]
        assert float(g.x @ d + g.y @ e) == pytest.approx(float(ends[0] - ends[1]) / (2 * h), rel=1e-4)


def constrained_minimum(problem: Limits) -> tuple[float, numpy.ndarray]:
    """The least mean loss under the limits, by a solver that knows nothing of multipliers of ours."""

    def call(function, x):
        point = torch.tensor(x, requires_grad=True)
        value = function(point)
        (slope,) = torch.autograd.grad(value, point)
        return float(value.detach()), slope.numpy()

    def loss(x):
        return by_hand(problem, Pair(x, torch.zeros(len(problem.init(0).y), dtype=torch.float64)))

    def room(x, k):
        return -violations(problem, x)[k]

    limits = [
        {"type": "ineq", "fun": lambda x, k=k: call(lambda p: room(p, k), x)[0],
         "jac": lambda x, k=k: call(lambda p: room(p, k), x)[1]}
        for k in range(len(problem.init(0).y))
    ]  # fmt: skip
    start = problem.init(0).x.double().numpy()
    found = minimize(lambda x: call(loss, x), start, jac=True, constraints=limits, method="SLSQP")
    assert found.success
    return float(found.fun), found.x


@pytest.mark.parametrize(("rule", "limit"), [({}, 0.15), (ODDS, 0.1)], ids=["np", "odds"])
def test_the_saddle_is_the_constrained_minimum(rule, limit):
    problem = Limits("town", clients=4, limit=limit, **rule)
    least, _ = constrained_minimum(problem)
    free, _ = constrained_minimum(Limits("town", clients=4, limit=1.0, **rule))
    assert least > free + 0.005  # the limits do bind
    outcome = fs.simulate(
        problem,
        fs.ParallelSGDA(eta=1.0, gamma=0.3),
        rounds=1500,
        evaluate_every=1500,
        quorum=fs.Quorum(invite=4),
        fleet=fs.Everybody(),
        batch=75,
    )
    (z,) = outcome.z
    z = doubled(z)
    found = outcome.rows[-1].metrics
    assert found["soft_violation"] < 2e-3
    assert 0 < found["largest_multiplier"] < problem.most
    loss = float(by_hand(problem, Pair(z.x, 0 * z.y)))
    assert loss == pytest.approx(least, abs=3e-3)


def test_a_kind_that_only_the_test_rows_lack_is_not_apart():
    problem = Limits("town", **ODDS)
    rows = {name: table[problem.test.rows["kind"] != 3] for name, table in problem.test.rows.items()}
    found = problem.rates(doubled(problem.init(1)).x, rows)
    assert float(found.sizes[3]) == 0
    assert float(found.hard[3]) == pytest.approx(float(found.hard[1]))


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"rule": "neyman"}, "unknown rule 'neyman'; did you mean 'neyman-pearson'"),
        ({"rule": "equalised-odds"}, "equalised-odds needs groups, one of: kind, town"),
        ({**ODDS, "groups": "kinds"}, "did you mean 'kind'"),
        ({"limit": 1.5}, "limit must be"),
        ({"most": 0.0}, "most must be above 0"),
        ({**ODDS, "groups": "nobody"}, "1 kinds have no training rows"),
    ],
)
def test_bad_dials_are_refused(dials, says, monkeypatch):
    data = people()
    none = torch.zeros_like(data.labels)
    nobody = Grouping(("all", "none"), data.labels.clone(), none[: len(data.test_labels)])
    groups = {"kind": data.groups["kind"], "town": data.groups["town"]}
    if dials.get("groups") == "nobody":  # group 1 has no negatives, group 0 no positives
        nobody.rows[0] = 1 - nobody.rows[0]
        groups["nobody"] = nobody
    given = Dataset(data.inputs, data.labels, data.test_inputs, data.test_labels, data.classes, groups=groups)
    monkeypatch.setitem(DATASETS, "town", lambda: given)
    with pytest.raises(fs.BadInput, match=says):
        Limits("town", **dials)


def test_groups_without_effect_are_noted():
    assert "groups = 'kind' has no effect" in Limits("town", groups="kind").notes[0]


@pytest.mark.parametrize("rule", [{}, ODDS], ids=["neyman-pearson", "equalised-odds"])
def test_a_report_is_told_the_rates_and_the_clients(rule):
    problem = Limits("town", partition="iid", clients=4, **rule)
    z, found = problem.init(3), problem.details(problem.init(3))
    assert all(detail.valid and detail.better == "low" for detail in found.values())
    taken = problem.output(z.x, problem.data.test_inputs).squeeze(1) > 0
    positive, kind = problem.data.test_labels == 1, problem.data.groups["kind"].test_rows
    rates = found["Rates on test rows"].columns
    assert rates["group"] == (list(problem.data.groups["kind"].names) if rule else ["all rows"])
    for number in range(len(rates["group"])):
        own = kind == number if rule else torch.ones_like(positive)
        assert rates["false alarms"][number] == pytest.approx(float(taken[own & ~positive].double().mean()))
        assert rates["missed"][number] == pytest.approx(1 - float(taken[own & positive].double().mean()))
    wrong = (problem.output(z.x, problem.data.inputs).squeeze(1) > 0) != (problem.data.labels == 1)
    first = float(wrong[problem.parts[0]].double().mean())
    assert found["Clients"].columns["training error"][0] == pytest.approx(first)
