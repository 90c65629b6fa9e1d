import pytest
import torch

from fedsaddle.engine.compile.passes import copy_elision
from programs import X, assert_keeps, names, traced

SQUARE = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("copy", "needed"),
    [
        (lambda x: x**1.0, []),
        (lambda x: torch.ops.aten.mul.Scalar(x, 1), []),
        (lambda x: torch.cat([x]), []),
        (lambda x: torch.where(x > 0, x, x), ["gt"]),
    ],
)
def test_a_copy_is_its_original(copy, needed):
    program = assert_keeps(copy_elision, lambda x: copy(x) + 1, X)
    assert names(program) == [*needed, "add"]


def test_a_copy_of_a_copy_is_the_original():
    program = assert_keeps(copy_elision, lambda x: torch.cat([torch.cat([x])]) + 1, X)
    assert program.operations[0].slots == program.inputs[0]


def test_what_is_laid_out_anew_is_no_mere_copy():
    program = assert_keeps(copy_elision, lambda x: torch.cat([x.mT]).reshape(6), SQUARE)
    assert "cat" in names(program)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x**2.0,
        lambda x: x * 1.5,
        lambda x: torch.where(x > 0, x, -x),
        lambda x: torch.cat([x, x]),
        lambda x: x.long() * 1.0,
    ],
)
def test_what_computes_is_no_copy(work):
    assert names(assert_keeps(copy_elision, work, X)) == names(traced(work, X))


def test_a_copy_that_is_written_to_stays():
    def work(x):
        copy = torch.cat([x])
        copy += 1
        return copy - x

    assert names(assert_keeps(copy_elision, work, X)) == ["cat", "add_", "sub"]
