"""Some rounds of every algorithm of every shipped experiment, at toy size, to eight digits.

A change here changes results: its commit says why. `python tests/test_golden.py` writes the numbers anew.
A dataset that would be downloaded is played by made-up rows of the same shape. GANs are played in little:
all of them make pictures of 8 x 8 for a judge that was never trained.

The numbers are computed in float64, so that they are those of the rule and not of a processor. Another
instruction set rounds otherwise, which moves a number of float32 by 1e-6 (near zero by 1e-5 of itself) until
a unit of a network comes to lie on the other side of its kink for some row; then by 4e-5 (AUC, robust
training) or 1e-3 (a GAN). That is as much as a step size does that is wrong by one part in a hundred. In
float64 the numbers of AVX-512, AVX2 and neither are within 1e-12, and no unit turns.
"""

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

from fedsaddle import AUC, GAN, DeepGMM, Fair, Groups, Limits, PartialAUC, Robust, draws, judges, scores
from fedsaddle.border.build import load
from fedsaddle.border.files import SHIPPED, shipped
from fedsaddle.core import Pair, StepSize
from fedsaddle.data import celeba
from fedsaddle.data.datasets import DATASETS, Dataset, Grouping, scaled
from fedsaddle.data.sources import CATALOGUE
from fedsaddle.engine.course import course
from fedsaddle.engine.study import Study

GOLDEN = Path(__file__).with_name("golden.json")
TOY = ["problem.clients=20"]
SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "satimage": (36,)}
# And how they are told apart.
PEOPLE = {
    "adult": "sex",
    "compas": "race",
    "card": "sex",
    "law": "race",
    "health": "age",
    "census": "country",
}


def made_up(shape: tuple[int, ...], classes: int = 10, rows: int = 300) -> Dataset:
    """A dataset in little, bytes for images and floats for tables; each class has its own bright places."""
    labels = torch.arange(rows) % classes
    bright = draws.uniform(draws.key(draws.PROBLEM, 0, 0), classes, *shape)[labels]
    inputs = (bright + draws.uniform(draws.key(draws.PROBLEM, 0, 1), rows, *shape)) / 2
    inputs = (255 * inputs).to(torch.uint8) if len(shape) == 3 else inputs.float()
    return Dataset(inputs[: rows // 2], labels[: rows // 2], inputs[rows // 2 :], labels[rows // 2 :])


def made_up_people(what: str) -> Dataset:
    """A table of two classes, three groups and forty clients, in each of which are all kinds of rows."""
    data = made_up((12,), classes=2)
    turn = torch.arange(150)
    groups = {what: Grouping(("a", "b", "c"), turn // 2 % 3, turn // 2 % 3)}
    return replace(data, classes=("no", "yes"), owners=turn // 3 % 40, groups=groups)


def made_up_judge(*_: object) -> judges.Judge:
    """Twelve numbers of a picture, and what they make of ten classes."""
    mix = draws.normal(draws.key(draws.PROBLEM, 0, 2), 64, 12)
    return judges.Judge(
        "made up", lambda rows: rows.flatten(1).double() @ mix, lambda f: torch.softmax(f[:, :10], 1)
    )


def play_in(patch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Let players, and with them all that is computed, be of this type.

    Where they start is drawn in float64, for the last bit of what PyTorch draws depends on the processor too.
    """

    def exactly(init: Callable[[object, int], Pair]) -> Callable[[object, int], Pair]:
        def start(self: object, seed: int) -> Pair:
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                return Pair(*(values.to(dtype) for values in init(self, seed)))
            finally:
                torch.set_default_dtype(before)

        return start

    for kind in (AUC, DeepGMM, Fair, GAN, Groups, Limits, PartialAUC, Robust):
        patch.setattr(kind, "init", exactly(kind.init))
    patch.setattr(judges, "scaled", lambda inputs: scaled(inputs, dtype))


def stand_in(patch: pytest.MonkeyPatch, experiment: str) -> None:
    """Let what is made up play what would be downloaded or trained."""
    gan = experiment.startswith("gan-")
    for name, what in PEOPLE.items():
        patch.setitem(DATASETS, name, lambda what=what: made_up_people(what))
    for name in (CATALOGUE.keys() & DATASETS.keys()) - PEOPLE.keys():
        patch.setitem(DATASETS, name, lambda shape=(1, 8, 8) if gan else SHAPES[name]: made_up(shape))
    patch.setattr(celeba, "celeba", lambda path: made_up((1, 8, 8)))
    patch.setattr(celeba, "folder_of", Path)
    patch.setattr(judges, "classifier", made_up_judge)
    patch.setattr(judges, "inception", lambda *_: replace(made_up_judge(), probabilities=None))
    patch.setattr(
        judges, "real_moments", lambda judge, rows, at: scores.moments(judges.look(judge, rows, at))
    )


def in_little(experiment: str) -> tuple[int, list[str]]:
    """Rounds and settings that leave an experiment its step sizes, and little work."""
    tables = tomllib.loads((SHIPPED / f"{experiment}.toml").read_text())
    if tables["problem"]["name"] == "gan":
        long = [f"algorithms.{name}.K=3" for name, own in tables["algorithms"].items() if own.get("K", 0) > 3]
        return 2, [*TOY, "problem.network=digits", "problem.samples=200", "batch=3", "K=3", *long]
    if tables["problem"]["name"] == "robust":
        return 10, [*TOY, "problem.hidden=16"]
    if tables["problem"]["name"] == "deep-gmm":
        return 3, [*TOY, "problem.rows=200", "problem.held_out=200", "problem.hidden=8", "batch=5", "K=3"]
    if tables["problem"].get("dataset") in PEOPLE:  # which have their clients
        return 4, []
    more = ["problem.grad_phi=true"] if tables["problem"]["name"] == "auc" else []
    if tables["problem"].get("network") in ("lenet5", "cifar-cnn"):
        return 3, [*TOY, *more, "K=2", "batch=2"]
    return 10, [*TOY, *more]


def some_rounds(
    experiment: str,
    change: Callable[[Study], Study] = lambda study: study,
    dtype: torch.dtype = torch.float64,
) -> dict[str, dict[str, float]]:
    """The numbers of each algorithm."""
    rounds, toy = in_little(experiment)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, experiment)
        play_in(patch, dtype)
        plan = load(experiment, rounds=rounds, seeds="7", settings=toy)
        for name, study in plan.studies.items():
            (last,) = list(course(change(study), rounds, rounds))[-1].rows
            found[name] = {"floats_up": last.floats_up, "time": last.time_simulated, **last.metrics}
    return found


def test_every_shipped_experiment_has_its_numbers():
    assert set(json.loads(GOLDEN.read_text())) == set(shipped())


def off(
    found: dict[str, dict[str, float]], experiment: str, near: Callable[[str, float], object]
) -> list[tuple[str, str]]:
    """The numbers that are not near those they should be: algorithm and metric."""
    expected = json.loads(GOLDEN.read_text())[experiment]
    assert {name: set(own) for name, own in found.items()} == {
        name: set(own) for name, own in expected.items()
    }
    return [
        (name, metric)
        for name, numbers in expected.items()
        for metric, number in numbers.items()
        if found[name][metric] != near(metric, number)
    ]


def in_double(metric: str, number: float) -> object:
    """What float64 promises: eight digits, and of what is near zero ten places."""
    return pytest.approx(number, rel=1e-8, abs=1e-10)


def in_single(metric: str, number: float) -> object:
    """What float32 promises: two digits of a GAN, nearly four of all else."""
    if metric in ("time", "floats_up"):
        return number
    # A last bit may turn round two rows that score nearly the same, or a row that is nearly right.
    digits = 1e-2 if metric in ("f", "generator_loss", "frechet", "inception_score") else 2e-4
    turned = any(word in metric for word in ("auc", "precision", "accuracy"))
    return pytest.approx(number, rel=digits, abs=1e-2 if turned else 1e-6)


@pytest.mark.parametrize("experiment", shipped())
def test_some_rounds_give_the_numbers_they_gave(experiment):
    assert not off(some_rounds(experiment), experiment, in_double)


def a_percent_more(study: Study) -> Study:
    """The study with all its step sizes a little wrong."""
    kinds = get_type_hints(type(study.algorithm), include_extras=True)
    steps = {name: 1.01 * values for name, values in study.hyper.items() if kinds[name] is StepSize}
    assert steps
    return replace(study, hyper={**study.hyper, **steps})


@pytest.mark.parametrize(
    "experiment",
    ["quadratic", "auc-digits", "gan-digits", "wgan-digits", "gmm-sine", "fair-fashion", "robust-fashion"],
)
def test_a_step_size_that_is_one_percent_off_is_found_in_every_algorithm(experiment):
    wrong = off(some_rounds(experiment, a_percent_more), experiment, in_double)
    assert {name for name, _ in wrong} == set(json.loads(GOLDEN.read_text())[experiment])


@pytest.mark.parametrize("experiment", ["auc-digits", "gan-digits", "fair-fashion", "robust-fashion"])
def test_float32_stays_near_on_every_processor(experiment):
    assert not off(some_rounds(experiment, dtype=torch.float32), experiment, in_single)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: some_rounds(name) for name in shipped()}, indent=1) + "\n")
