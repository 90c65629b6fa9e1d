"""The problems, by the names an experiment calls them."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedsaddle.problems.auc import AUC
from fedsaddle.problems.exact import Bilinear, Quadratic, RobustLeastSquares, ToyWGAN, TwoSines
from fedsaddle.problems.fair import Fair
from fedsaddle.problems.gan import GAN
from fedsaddle.problems.gmm import DeepGMM
from fedsaddle.problems.groups import Groups
from fedsaddle.problems.limits import Limits
from fedsaddle.problems.partial_auc import PartialAUC
from fedsaddle.problems.robust import Robust

__all__ = [
    "AUC",
    "GAN",
    "PROBLEMS",
    "Bilinear",
    "DeepGMM",
    "Entry",
    "Fair",
    "Groups",
    "Limits",
    "PartialAUC",
    "Quadratic",
    "Robust",
    "RobustLeastSquares",
    "ToyWGAN",
    "TwoSines",
]


class Entry(NamedTuple):
    """A name in an experiment file: a class of problems and what its defaults become under this name."""

    task: type[Any]
    summary: str
    defaults: dict[str, Any] = {}  # noqa: RUF012


PROBLEMS = {
    "quadratic": Entry(Quadratic, "heterogeneous quadratic, nonconvex in x, strongly concave in y"),
    "quadratic-pl": Entry(Quadratic, "its sibling with flat directions in y: PL only", {"flat": 3}),
    "two-sines": Entry(TwoSines, "x^2 + 3 sin^2 x sin^2 y - 4 y^2 - 10 sin^2 y: PL in both"),
    "toy-wgan": Entry(ToyWGAN, "a Gaussian generator against a quadratic critic"),
    "robust-least-squares": Entry(
        RobustLeastSquares, "least squares with adversarial targets, split by rows"
    ),
    "bilinear": Entry(Bilinear, "a bilinear game"),
    "auc": Entry(AUC, "AUC maximisation: find one class of a dataset among the others"),
    "robust": Entry(Robust, "robust training: a network against one perturbation of all its inputs"),
    "fair": Entry(Fair, "fair classification: a network against weights on the classes"),
    "groups": Entry(Groups, "worst-group or worst-client classification: weights on groups or clients"),
    "constrained": Entry(Limits, "limits on error rates (Neyman-Pearson, equalised odds), by multipliers"),
    "partial-auc": Entry(PartialAUC, "partial AUC: positives above the negatives that score highest (CVaR)"),
    "gan": Entry(GAN, "a generator against a discriminator, on pictures"),
    "deep-gmm": Entry(DeepGMM, "instrumental variables: a response against a critic of its moments"),
}
