"""Some rounds of every algorithm of every shipped experiment, at toy size, to six digits.

A change here changes results: its commit says why. `python tests/test_golden.py` writes the numbers anew.
A dataset that would be downloaded is played by made-up rows of the same shape.
"""

import json
from pathlib import Path

import pytest
import torch

from fedsaddle import draws
from fedsaddle.data.datasets import DATASETS, Dataset
from fedsaddle.data.sources import CATALOGUE
from fedsaddle.engine.course import course
from fedsaddle.spec import load, shipped

GOLDEN = Path(__file__).with_name("golden.json")
TOY = ["problem.clients=20"]
SLOW = ["lenet5", "cifar-cnn"]  # networks that do with shorter walks and fewer rounds
SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "satimage": (36,)}


def made_up(shape: tuple[int, ...], classes: int = 10, rows: int = 300) -> Dataset:
    """A dataset in little, bytes for images and floats for tables; each class has its own bright places."""
    labels = torch.arange(rows) % classes
    bright = draws.uniform(draws.key(draws.PROBLEM, 0, 0), classes, *shape)[labels]
    inputs = (bright + draws.uniform(draws.key(draws.PROBLEM, 0, 1), rows, *shape)) / 2
    inputs = (255 * inputs).to(torch.uint8) if len(shape) == 3 else inputs.float()
    return Dataset(inputs[: rows // 2], labels[: rows // 2], inputs[rows // 2 :], labels[rows // 2 :])


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch):
    for name in CATALOGUE.keys() & DATASETS.keys():
        monkeypatch.setitem(DATASETS, name, lambda shape=SHAPES[name]: made_up(shape))


def some_rounds(experiment: str) -> dict[str, dict[str, float]]:
    smaller = ["problem.hidden=16"] if experiment.startswith("robust") else []
    plan = load(experiment, rounds=10, seeds="7", settings=TOY + smaller)
    rounds = 10
    if plan.resolved["problem"].get("network") in SLOW:
        rounds, plan = 3, load(experiment, rounds=3, seeds="7", settings=[*TOY, "K=2", "batch=2"])
    found = {}
    for name, study in plan.studies.items():
        (last,) = list(course(study, rounds, rounds))[-1].rows
        found[name] = {"floats_up": last.floats_up, "time": last.time_simulated, **last.metrics}
    return found


def test_every_shipped_experiment_has_its_numbers():
    assert set(json.loads(GOLDEN.read_text())) == set(shipped())


@pytest.mark.parametrize("experiment", shipped())
def test_rounds_give_the_numbers_they_gave(experiment):
    expected, found = json.loads(GOLDEN.read_text())[experiment], some_rounds(experiment)
    assert set(found) == set(expected)
    for name, numbers in expected.items():
        assert found[name] == pytest.approx(numbers, rel=1e-6), name


if __name__ == "__main__":
    DATASETS |= {
        name: lambda shape=SHAPES[name]: made_up(shape) for name in CATALOGUE.keys() & DATASETS.keys()
    }
    GOLDEN.write_text(json.dumps({name: some_rounds(name) for name in shipped()}, indent=1) + "\n")
