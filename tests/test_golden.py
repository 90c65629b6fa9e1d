"""Some rounds of every algorithm of every shipped experiment, at toy size, to six digits.

A change here changes results: its commit says why. `python tests/test_golden.py` writes the numbers anew.
A dataset that would be downloaded is played by made-up rows of the same shape. GANs are played in little:
all of them make pictures of 8 x 8 for a judge that was never trained.
"""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from fedsaddle import draws, judges, scores
from fedsaddle.catalogue import SHIPPED, shipped
from fedsaddle.data import celeba
from fedsaddle.data.datasets import DATASETS, Dataset
from fedsaddle.data.sources import CATALOGUE
from fedsaddle.engine.course import course
from fedsaddle.spec import load

GOLDEN = Path(__file__).with_name("golden.json")
TOY = ["problem.clients=20"]
SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "satimage": (36,)}


def made_up(shape: tuple[int, ...], classes: int = 10, rows: int = 300) -> Dataset:
    """A dataset in little, bytes for images and floats for tables; each class has its own bright places."""
    labels = torch.arange(rows) % classes
    bright = draws.uniform(draws.key(draws.PROBLEM, 0, 0), classes, *shape)[labels]
    inputs = (bright + draws.uniform(draws.key(draws.PROBLEM, 0, 1), rows, *shape)) / 2
    inputs = (255 * inputs).to(torch.uint8) if len(shape) == 3 else inputs.float()
    return Dataset(inputs[: rows // 2], labels[: rows // 2], inputs[rows // 2 :], labels[rows // 2 :])


def made_up_judge(*_: object) -> judges.Judge:
    """Twelve numbers of a picture, and what they make of ten classes."""
    mix = draws.normal(draws.key(draws.PROBLEM, 0, 2), 64, 12).float()
    return judges.Judge("made up", lambda rows: rows.flatten(1) @ mix, lambda f: torch.softmax(f[:, :10], 1))


def stand_in(patch: pytest.MonkeyPatch, experiment: str) -> None:
    """Let what is made up play what would be downloaded or trained."""
    gan = experiment.startswith("gan-")
    for name in CATALOGUE.keys() & DATASETS.keys():
        patch.setitem(DATASETS, name, lambda shape=(1, 8, 8) if gan else SHAPES[name]: made_up(shape))
    patch.setattr(celeba, "celeba", lambda path: made_up((1, 8, 8)))
    patch.setattr(celeba, "folder_of", Path)
    patch.setattr(judges, "classifier", made_up_judge)
    patch.setattr(judges, "inception", made_up_judge)
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
    more = ["problem.grad_phi=true"] if tables["problem"]["name"] == "auc" else []
    if tables["problem"].get("network") in ("lenet5", "cifar-cnn"):
        return 3, [*TOY, *more, "K=2", "batch=2"]
    return 10, [*TOY, *more]


def some_rounds(experiment: str) -> dict[str, dict[str, float]]:
    rounds, toy = in_little(experiment)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, experiment)
        plan = load(experiment, rounds=rounds, seeds="7", settings=toy)
        for name, study in plan.studies.items():
            (last,) = list(course(study, rounds, rounds))[-1].rows
            found[name] = {"floats_up": last.floats_up, "time": last.time_simulated, **last.metrics}
    return found


def test_every_shipped_experiment_has_its_numbers():
    assert set(json.loads(GOLDEN.read_text())) == set(shipped())


@pytest.mark.parametrize("experiment", shipped())
def test_some_rounds_give_the_numbers_they_gave(experiment):
    expected, found = json.loads(GOLDEN.read_text())[experiment], some_rounds(experiment)
    assert set(found) == set(expected)
    # A GAN is in float32, and its distances are small differences of large numbers.
    digits = 1e-3 if experiment.startswith("gan-") else 1e-6
    for name, numbers in expected.items():
        # A last bit may turn round two rows that score nearly the same: that moves an AUC by one pair.
        ranks = {metric for metric in numbers if "auc" in metric or "precision" in metric}
        for metric, number in numbers.items():
            # Near zero a loss in float32 is a small difference too.
            near = pytest.approx(number, rel=1e-3 if metric in ranks else digits, abs=1e-8)
            assert found[name].pop(metric) == near, (name, metric)
        assert not found[name]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: some_rounds(name) for name in shipped()}, indent=1) + "\n")
