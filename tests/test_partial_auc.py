"""Partial AUC: its saddle is the pairwise surrogate over the highest negatives, its metric scikit-learn's."""

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.func import grad

import fedsaddle as fs
from fedsaddle.core import Pair
from fedsaddle.data.datasets import DATASETS
from fedsaddle.engine.visits import field_of
from fedsaddle.problems import PartialAUC
from fedsaddle.scores import auroc, partial_auroc
from test_groups import doubled, mean_of_clients, of_client, people


@pytest.fixture(autouse=True)
def town(monkeypatch):
    data = people()
    monkeypatch.setitem(DATASETS, "town", lambda: data)


def scikit_learns(scores: torch.Tensor, positive: torch.Tensor, most: float) -> float:
    """Its partial area, which it standardises (McClish), as the mean rate of positives found."""
    standardised = roc_auc_score(positive, scores, max_fpr=most)
    least = most**2 / 2
    return (least + (2 * standardised - 1) * (most - least)) / most


@pytest.mark.parametrize("levels", [0, 12, 3, 1], ids=["apart", "some ties", "many ties", "all the same"])
@pytest.mark.parametrize("most", [0.01, 0.05, 0.3, 0.999])
def test_the_partial_auc_is_scikit_learns(levels, most):
    luck = torch.Generator().manual_seed(levels)
    for rows in (20, 333):
        positive = torch.arange(rows) % 5 == 0
        scores = torch.rand(rows, generator=luck) + 0.3 * positive
        scores = (scores * levels).floor() if levels else scores
        found = float(partial_auroc(scores, positive, most))
        assert found == pytest.approx(scikit_learns(scores, positive, most), abs=1e-9)
    assert float(partial_auroc(scores, positive, 1.0)) == pytest.approx(float(auroc(scores, positive)))
    assert torch.isnan(partial_auroc(torch.where(positive, torch.nan, scores), positive, most))


def pairwise(s: torch.Tensor, positive: torch.Tensor, beta: float) -> float:
    """The mean over positives and the highest part beta of negatives of (1 - s_i + s_j)^2, pair by pair."""
    up, down = s[positive], s[~positive].sort(descending=True).values
    left, total = beta * len(down), 0.0
    for score in down:
        weight = min(1.0, max(0.0, left))
        total += weight * float(((1 - up + score) ** 2).mean())
        left -= 1
    return total / (beta * len(down))


def f_of(
    problem: PartialAUC, s: torch.Tensor, positive: torch.Tensor, rest: torch.Tensor, alpha: torch.Tensor
):
    """F for fixed scores."""
    part = problem.row(s, positive, *rest, alpha)
    return 1 + part[positive].mean() + part[~positive].mean()


def some_scores(seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    luck = torch.Generator().manual_seed(seed)
    positive = torch.arange(60) % 3 == 0
    return torch.sigmoid(torch.randn(60, generator=luck, dtype=torch.float64) + 1.0 * positive), positive


@pytest.mark.parametrize("fpr", [0.1, 0.25, 0.33, 1.0])
def test_for_fixed_scores_the_saddle_is_the_pairwise_surrogate(fpr):
    """At (m+, m_q, the threshold; m_q - m+), where nobody can do better alone."""
    problem, (s, positive) = PartialAUC("town", fpr=fpr), some_scores()
    expected = pairwise(s, positive, fpr)
    assert float(problem.surrogate(s, positive)) == pytest.approx(expected)
    down = s[~positive].sort(descending=True).values
    n = fpr * len(down)
    q = (n - torch.arange(len(down)).double()).clamp(0, 1) / n
    t = down[min(int(n), len(down) - 1)] if fpr < 1 else torch.tensor(0.0, dtype=torch.float64)
    rest = torch.stack([s[positive].mean(), down @ q, t])
    alpha = down @ q - s[positive].mean()
    at = f_of(problem, s, positive, rest, alpha)
    assert float(at) == pytest.approx(expected)

    def slope(which: int):
        return grad(lambda r, al: f_of(problem, s, positive, r, al), which)(rest, alpha)

    assert float(slope(1)) == pytest.approx(0, abs=1e-12)
    assert slope(0)[:2].abs().max() < 1e-12
    for other in torch.linspace(0, 1, 101, dtype=torch.float64):
        for place in range(3):  # x alone, one number at a time
            moved = rest.clone()
            moved[place] = other
            if alpha > moved[1] - 1 - moved[2]:  # where the threshold is what it is meant to be
                assert f_of(problem, s, positive, moved, alpha) >= at - 1e-12
        assert f_of(problem, s, positive, rest, 2 * other - 1) <= at + 1e-12


def test_descent_and_ascent_find_the_saddle_for_fixed_scores():
    fpr = 0.1
    problem, (s, positive) = PartialAUC("town", fpr=fpr), some_scores(4)
    rest, alpha = torch.ones(3, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for step in range(600):
        eta = 0.1 / (1 + step / 20)
        d, e = grad(lambda r, al: f_of(problem, s, positive, r, al), (0, 1))(rest, alpha)
        rest, alpha = (rest - eta * d).clamp(0, 1), (alpha + eta * e).clamp(-1, 1)
    assert float(f_of(problem, s, positive, rest, alpha)) == pytest.approx(
        pairwise(s, positive, fpr), abs=2e-3
    )


def test_t_comes_back_from_where_it_means_nothing():
    """From (b, t, alpha) = (1, 0, -1), a corner where F as written would reward all false alarms."""
    problem, (s, positive) = PartialAUC("town", fpr=0.1), some_scores(5)
    corner, alpha = torch.tensor([0.5, 1.0, 0.0]).double(), torch.tensor(-1.0).double()
    slope = grad(lambda r: f_of(problem, s, positive, r, alpha))(corner)
    assert slope[2] < 0  # so t rises
    assert slope[1] > 0  # and b falls


@pytest.mark.parametrize("partition", ["column", "iid", "dirichlet"])
def test_the_mean_over_clients_is_that_over_all_rows(partition):
    problem = PartialAUC("town", partition, clients=7, fpr=0.2)
    start = doubled(problem.init(1))
    extra = torch.tensor([0.7, 0.4, 0.45], dtype=torch.float64)
    z = Pair(torch.cat([start.x[:-3], extra]), torch.tensor([-0.2], dtype=torch.float64))
    data = problem.data
    s = problem.scores(z.x[:-3], data.inputs.double())
    expected = float(f_of(problem, s, data.labels == 1, extra, z.y[0]))
    assert mean_of_clients(problem, z) == pytest.approx(expected, rel=1e-6)
    found = problem.evaluate(z)
    assert found["loss"] == pytest.approx(expected, rel=1e-6)
    assert found["surrogate"] == pytest.approx(pairwise(s, data.labels == 1, 0.2))
    assert found["train_pauc"] == pytest.approx(scikit_learns(s, data.labels == 1, 0.2))
    assert found["alarm_rate"] == pytest.approx(float((s[data.labels == 0] > 0.45).double().mean()))


def test_gradients_against_finite_differences():
    problem = PartialAUC("town", network="mlp", hidden=5, fpr=0.3)
    xi, start, h = of_client(problem, 1), doubled(problem.init(3)), 1e-6
    extra = torch.tensor([0.6, 0.5, 0.4], dtype=torch.float64)
    z = Pair(torch.cat([start.x[:-3], extra]), torch.tensor([-0.3], dtype=torch.float64))
    g = field_of(problem)(z, xi)
    luck = torch.Generator().manual_seed(1)
    for _ in range(3):
        d, e = (torch.randn(len(v), generator=luck, dtype=torch.float64) for v in z)
        ends = [problem.loss(Pair(z.x + s * h * d, z.y + s * h * e), xi) for s in (1, -1)]
        assert float(g.x @ d + g.y @ e) == pytest.approx(float(ends[0] - ends[1]) / (2 * h), rel=1e-4)


def test_the_highest_negatives_are_learnt_from():
    """The threshold ends where the asked part of negatives exceeds it, and few alarms find more."""

    def end(**dials) -> dict[str, float]:
        outcome = fs.simulate(
            PartialAUC("town", clients=5, fpr=0.1, **dials),
            fs.ParallelSGDA(eta=0.2, gamma=0.2),
            rounds=600,
            evaluate_every=600,
            quorum=fs.Quorum(invite=5),
            fleet=fs.Everybody(),
            batch=60,
        )
        return outcome.rows[-1].metrics

    few, everybody = end(), end(weights="all")
    assert few["alarm_rate"] == pytest.approx(0.1, abs=0.04)
    assert few["loss"] == pytest.approx(few["surrogate"], abs=0.02)
    assert few["train_pauc"] > everybody["train_pauc"]


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"fpr": 0.0}, "fpr must be above 0"),
        ({"weights": "dro"}, "unknown weights 'dro'; known: all, cvar, kl"),
        ({"weights": "kl", "temperature": 0.0}, "temperature must be above 0"),
        ({"partition": "rows"}, "unknown partition"),
    ],
)
def test_bad_dials_are_refused(dials, says):
    with pytest.raises(fs.BadInput, match=says):
        PartialAUC("town", **dials)


# --- KL weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_for_fixed_scores_the_saddle_of_kl_weights_is_their_definition(temperature):
    problem, (s, positive) = PartialAUC("town", weights="kl", temperature=temperature), some_scores()
    up, down = s[positive], s[~positive]
    squares = ((1 - up[:, None] + down) ** 2).mean(0)
    q = torch.softmax(squares / temperature, 0)
    cost = temperature * (q * (q * len(q)).log()).sum()
    expected = float(q @ squares - cost)
    assert float(problem.surrogate(s, positive)) == pytest.approx(expected)
    luck = torch.Generator().manual_seed(1)
    for _ in range(50):  # other weights do not make more of it
        other = torch.softmax(torch.randn(len(q), generator=luck, dtype=torch.float64), 0)
        assert other @ squares - temperature * (other * (other * len(q)).log()).sum() < expected

    mean, high = up.mean(), down @ q
    alpha = high - mean
    u = (down - high) ** 2 + 2 * (1 + alpha) * (down - high)
    t = temperature * (u / temperature).exp().mean().log()
    rest = torch.stack([mean, high, t])
    at = f_of(problem, s, positive, rest, alpha)
    assert float(at) == pytest.approx(expected)
    slopes = grad(lambda r, al: f_of(problem, s, positive, r, al), (0, 1))(rest, alpha)
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-12
    for other in torch.linspace(-1, 1, 101, dtype=torch.float64):
        for place in range(3):
            moved = rest.clone()
            moved[place] = other
            assert f_of(problem, s, positive, moved, alpha) >= at - 1e-12
        if temperature >= 0.5:
            assert f_of(problem, s, positive, rest, other) <= at + 1e-12


def test_descent_and_ascent_find_the_saddle_of_kl_weights():
    outcome = fs.simulate(
        PartialAUC("town", clients=5, weights="kl"),
        fs.ParallelSGDA(eta=0.1, gamma=0.1),
        rounds=300,
        evaluate_every=300,
        quorum=fs.Quorum(invite=5),
        fleet=fs.Everybody(),
        batch=60,
    )
    first, last = (row.metrics for row in outcome.rows)
    assert abs(first["loss"] - first["surrogate"]) > 0.1
    assert last["loss"] == pytest.approx(last["surrogate"], abs=0.01)
    assert last["surrogate"] < 0.6 * first["surrogate"]
    assert "alarm_rate" not in last  # t is no threshold


def test_a_temperature_without_effect_is_noted():
    assert PartialAUC("town", weights="kl", temperature=0.2).notes == []
    assert "it is of weights kl" in PartialAUC("town", temperature=0.2).notes[0]
