"""All passes together: what is played of a round does not grow."""

from pathlib import Path

import pytest
import torch

import fedsaddle as fs
from fedsaddle.engine.compile import passes, record, tapes
from fedsaddle.engine.executors import vectorised
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin
from fedsaddle.networks import Network, lenet5
from fedsaddle.problems import AUC
from zoo import Pictures

ADA = fs.CDMAADA(c_eta=0.2, c_gamma=0.2, c_alpha=5.0, rho=0.2, K=5)


class Digits(Pictures):
    """LeNet's shapes, without its data."""

    def __init__(self):
        luck = torch.Generator().manual_seed(0)
        rows = {
            "input": torch.randn(40, 1, 28, 28, generator=luck),
            "b": torch.randn(40, generator=luck),
        }
        self.network = Network(lambda: lenet5(1))
        self.federation = fs.problem.Federation(rows, torch.full((10,), 4))

    def init(self, seed):
        return fs.Pair(self.network.init(seed), torch.zeros(1))


def lengths(problem, monkeypatch):
    """Operations of one round of CDMA-ADA as it is traced, and as it is played."""
    found = []

    def counted(program):
        after = shortened(program)
        found.append((len(program.operations), len(after.operations)))
        return after

    shortened = record.shortened
    monkeypatch.setattr(record, "shortened", counted)
    monkeypatch.setattr(tapes, "PATIENCE", 0)
    monkeypatch.setattr(vectorised, "SMALL", 1 << 40)  # in one piece
    study = fs.make_study(problem, ADA, seeds=(0,), quorum=fs.Quorum(invite=4), batch=5)
    play(study, begin(study), 0)
    return tuple(map(sum, zip(*found, strict=True)))


@pytest.mark.parametrize(
    ("problem", "traced", "played"),
    [
        (lambda: AUC(dataset="digits", clients=50, network="logistic", mean="clients"), 1261, 611),
        (lambda: AUC(dataset="digits", clients=50, network="mlp", mean="clients"), 1827, 843),
        (Digits, 3479, 1988),
    ],
    ids=["logistic", "mlp", "lenet"],
)
def test_a_round_does_not_grow(problem, traced, played, monkeypatch):
    before, after = lengths(problem(), monkeypatch)
    assert before <= traced
    assert after <= played


def test_every_pass_is_in_the_list():
    """And each has a test file of its own."""
    files = {path.stem for path in Path(passes.__file__).parent.glob("[a-z]*.py")}
    assert {one.__name__ for one in passes.PASSES} == files
    tests = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    assert {f"test_{name}" for name in files} <= tests
