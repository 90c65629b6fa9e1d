import torch

from fedsaddle.engine.compile.passes import dead_code_elimination
from programs import X, assert_keeps, names


def test_what_nobody_uses_is_left_out():
    def work(x):
        (x.exp() + 1).sum()
        return x * 2

    assert names(assert_keeps(dead_code_elimination, work, X)) == ["mul"]


def test_constants_that_nobody_uses_are_given_back():
    one, other = torch.ones(3), torch.full((3,), 2.0)

    def work(x):
        x + one
        return x * other

    program = assert_keeps(dead_code_elimination, work, X)
    assert [value.tolist() for value in program.constants.values()] == [[2.0, 2.0, 2.0]]


def test_an_operation_is_needed_for_any_of_its_results():
    program = assert_keeps(dead_code_elimination, lambda x: x.split([1, 2])[1], X)
    assert names(program) == ["split_with_sizes"]


def test_what_writes_in_place_is_not_left_out():
    """Nobody takes its result, but what it writes to."""

    def work(x):
        buffer = torch.zeros(3)
        buffer[1:].add_(x[1:])
        return buffer * 2

    assert "add_" in names(assert_keeps(dead_code_elimination, work, X))
