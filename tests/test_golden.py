"""Ten rounds of every algorithm of every shipped experiment, at toy size, to six digits.

A change here changes results: its commit says why. `python tests/test_golden.py` writes the numbers anew.
"""

import json
from pathlib import Path

import pytest

from fedsaddle.engine.course import course
from fedsaddle.spec import load, shipped

GOLDEN = Path(__file__).with_name("golden.json")
TOY = ["problem.clients=20", "evaluate_every=5"]


def ten_rounds(experiment: str) -> dict[str, dict[str, float]]:
    plan = load(experiment, rounds=10, seeds="7", settings=TOY)
    found = {}
    for name, study in plan.studies.items():
        (last,) = list(course(study, 10, 5))[-1].rows
        found[name] = {"floats_up": last.floats_up, "time": last.time_simulated, **last.metrics}
    return found


def test_every_shipped_experiment_has_its_numbers():
    assert set(json.loads(GOLDEN.read_text())) == set(shipped())


@pytest.mark.parametrize("experiment", shipped())
def test_ten_rounds_give_the_numbers_they_gave(experiment):
    expected, found = json.loads(GOLDEN.read_text())[experiment], ten_rounds(experiment)
    assert set(found) == set(expected)
    for name, numbers in expected.items():
        assert found[name] == pytest.approx(numbers, rel=1e-6), name


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: ten_rounds(name) for name in shipped()}, indent=1) + "\n")
