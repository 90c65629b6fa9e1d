"""The scores against hand computations, closed forms and torchmetrics."""

import math

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torchmetrics.image.fid import _compute_fid

from fedsaddle import scores
from fedsaddle.scores import Moments, auroc, average_precision, frechet_distance, inception_score, moments


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_ranking_against_scikit_learn_with_equal_scores():
    luck = torch.Generator().manual_seed(0)
    for levels in (2, 7, 10**6):
        levelled = torch.randint(levels, (300,), generator=luck) / levels
        positive = torch.rand(300, generator=luck) < 0.2
        assert float(auroc(levelled, positive)) == pytest.approx(roc_auc_score(positive, levelled), abs=1e-12)
        assert float(average_precision(levelled, positive)) == pytest.approx(
            average_precision_score(positive, levelled), abs=1e-12
        )
    assert math.isnan(auroc(torch.tensor([0.1, math.nan]), torch.tensor([True, False])))


def test_the_splits_cover_all_rows_once_and_the_releases_are_nested():
    for rows in (10, 95, 10_000):
        cut = scores.disjoint(rows, 10)
        assert [row for own in cut for row in range(rows)[own]] == list(range(rows))
    assert scores.disjoint(10_000, 10)[3] == slice(3000, 4000)
    assert scores.nested(10_000, 10)[0] == slice(0, 1000)
    assert scores.nested(10_000, 10)[9] == slice(9, 10_000)


def test_inception_score_by_hand():
    p = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [1.0, 0.0, 0.0]]

    def by_hand(rows):
        mean = [sum(row[k] for row in rows) / len(rows) for k in range(3)]
        divergence = sum(q * math.log(q / mean[k]) for row in rows for k, q in enumerate(row) if q > 0)
        return math.exp(divergence / len(rows))

    whole = inception_score(torch.tensor(p), [slice(0, 4)])
    assert whole == pytest.approx(by_hand(p), rel=1e-6)
    halves = inception_score(torch.tensor(p), scores.disjoint(4, 2))
    assert halves == pytest.approx((by_hand(p[:2]) + by_hand(p[2:])) / 2, rel=1e-6)
    nested = inception_score(torch.tensor(p), scores.nested(4, 2))
    assert nested == pytest.approx((by_hand(p[:2]) + by_hand(p[1:])) / 2, rel=1e-6)


def test_inception_score_goes_from_one_to_the_number_of_classes():
    certain = torch.eye(10).repeat(10, 1)
    assert inception_score(certain, scores.disjoint(100, 10)) == pytest.approx(10)
    assert inception_score(certain[:1].repeat(50, 1), scores.disjoint(50, 10)) == pytest.approx(1)
    assert inception_score(torch.full((50, 10), 0.1), scores.disjoint(50, 10)) == pytest.approx(1)


def test_moments_are_the_usual_ones():
    rows = normal(50, 4)
    mean, covariance = moments(rows.float())
    torch.testing.assert_close(mean, rows.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(covariance, torch.cov(rows.mT), rtol=1e-5, atol=1e-6)


def test_frechet_distance_has_its_closed_form_where_covariances_commute():
    a, b = torch.tensor([1.0, 4.0, 0.25]).double(), torch.tensor([9.0, 1.0, 0.0]).double()
    turn = torch.linalg.qr(normal(3, 3)).Q
    one = Moments(torch.zeros(3).double(), turn @ torch.diag(a) @ turn.mT)
    other = Moments(torch.tensor([1.0, 2.0, 2.0]).double(), turn @ torch.diag(b) @ turn.mT)
    expected = 9.0 + float((a.sqrt() - b.sqrt()).square().sum())
    assert frechet_distance(one, other) == pytest.approx(expected, rel=1e-7)
    assert frechet_distance(other, one) == pytest.approx(expected, rel=1e-7)


def test_frechet_distance_against_torchmetrics():
    one = moments(normal(400, 12) @ normal(12, 12, seed=1))
    other = moments(normal(300, 12, seed=2) @ normal(12, 12, seed=3) + 0.5)
    assert frechet_distance(one, other) == pytest.approx(float(_compute_fid(*one, *other)), rel=1e-8)


def test_frechet_distance_bears_singular_covariances_and_no_numbers():
    few = moments(normal(5, 30))  # rank 4
    assert frechet_distance(few, few) == pytest.approx(0, abs=1e-5)
    still = moments(torch.ones(5, 30))
    gap = float((few.mean - still.mean).square().sum() + few.covariance.trace())
    assert frechet_distance(few, still) == pytest.approx(gap)
    assert math.isnan(frechet_distance(few, moments(torch.full((5, 30), math.nan))))
