"""On a GPU nothing of a phase or an evaluation is left on the CPU, copied there, or looked at.

This needs no GPU, and is skipped where there is one.
"""

import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves

import fedsaddle as fs
from fedsaddle.core import Pair
from fedsaddle.engine.round import play as play_round
from fedsaddle.engine.study import begin
from fedsaddle.errors import BadInput, Notice
from fedsaddle.problem import Measured
from fedsaddle.problems import PROBLEMS
from pretended_card import CARD, OnCard, card
from test_metric import MORE, SMALL
from zoo import ALGORITHMS, NEWER, quadratic

FIRST_FIVE = fs.Quorum(invite=8, enough=5, minimum=2, deadline=30.0)
SLOW = fs.Latency(dropout=0.2)
GUARDED = {
    "bounded steps": {"steady": fs.Steady(clip=0.05, warmup=10, reach=0.2)},
    "who answered": {"cohorts": "answered", "quorum": FIRST_FIVE},
    "unfinished walks": {"quorum": fs.Quorum(invite=8, deadline=12.0, partial_work=2), "fleet": SLOW},
    "weighted": {
        "merge": fs.Merge(weights="inverse_propensity", clip=0.5),
        "quorum": FIRST_FIVE,
        "fleet": SLOW,
    },
    "stratified": {
        "strata": [0, 1] * 6,
        "quorum": fs.Quorum(invite=8, enough=4, stratified=True),
        "fleet": SLOW,
    },
    "trimmed": {"merge": fs.Merge(fs.TrimmedMean(0.3)), "faults": fs.Faults(hostile=0.2, corruption="sign")},
    "checked": {
        "checks": fs.Checks(norm={"parameters": 5.0, "gradients": 50.0}, strikes=2),
        "faults": fs.Faults(corrupt=0.2),
    },
}


def play(rule, **settings):
    executor = OnCard()
    fs.simulate(quadratic(), rule, rounds=1, seeds=(0, 1), batch=2, executor=executor, **settings)
    assert executor.phases


@pytest.mark.parametrize("name", [*ALGORITHMS, *NEWER])
def test_a_phase_is_all_on_the_card(name):
    play((ALGORITHMS | NEWER)[name])


@pytest.mark.parametrize("guard", GUARDED)
@pytest.mark.parametrize("name", ["cdma-ada", "codasca", "catalyst-scaffold-s", "fed-norm-sgda-plus"])
def test_a_guarded_phase_is_all_on_the_card(name, guard):
    rule = (ALGORITHMS | NEWER)[name]
    if guard == "unfinished walks" and not rule.phases()[-1].partial:
        pytest.skip("it counts on all steps of a walk")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # not all guards have an effect on every rule
        play(rule, **GUARDED[guard])


@pytest.mark.parametrize("name", [*PROBLEMS, *MORE])
def test_a_problem_is_all_on_the_card(name):
    problem = MORE.get(name) or PROBLEMS[name].task(**PROBLEMS[name].defaults, **SMALL.get(name, {}))
    executor = OnCard()
    fs.simulate(problem, fs.CDMAADA(0.1, 0.1, 1.0, 0.2, K=2), rounds=1, batch=2, executor=executor)
    assert executor.phases == 2


@pytest.mark.parametrize("name", [*PROBLEMS, *MORE])
def test_an_evaluation_is_all_on_the_card(name):
    problem = MORE.get(name) or PROBLEMS[name].task(**PROBLEMS[name].defaults, **SMALL.get(name, {}))
    if not isinstance(problem, Measured):
        pytest.skip("it is not recorded")
    start = problem.init(0)
    problem.evaluate(start)  # what it makes once, such as rows to be tested on, it makes beside the card
    z = Pair(*(torch.stack([value] * 3) for value in start))
    with card() as there:
        found = torch.func.vmap(problem.measure)(there.onto(z))
        assert {leaf.device for leaf in tree_leaves(found)} == {CARD}
        assert not there.copies


class Careless(fs.Quadratic):
    """It does to a loss what must not be done."""

    def loss(self, z, xi):
        return super().loss(z, xi) * self.slip(z)


SLIPS = {
    "left on the CPU": lambda z: (torch.ones_like(z.x, device="cpu") * z.x).sum(),
    "copied there": lambda z: z.x.sum().cpu().to(z.x.device),
    "looked at": lambda z: 1.0 if float(z.x.detach().sum()) > 0 else 2.0,
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_found(slip, monkeypatch):
    problem, executor = Careless(clients=12, dim_x=3, dim_y=4, samples=2), OnCard()
    study = fs.make_study(problem, ALGORITHMS["cdma-nc"], batch=2, executor=executor)
    state = begin(study)
    monkeypatch.setattr(Careless, "slip", staticmethod(SLIPS[slip]), raising=False)
    with pytest.raises((AssertionError, RuntimeError, BadInput)):
        play_round(study, state, 0)
    monkeypatch.setattr(Careless, "slip", staticmethod(lambda z: 1.0))
    play_round(study, state, 0)
