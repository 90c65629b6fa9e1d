import torch

from fedsaddle.engine.compile.passes import common_subexpression_elimination as cse
from programs import X, assert_keeps, names, traced

SQUARE = torch.arange(6.0).reshape(2, 3)


def test_what_is_done_twice_is_done_once():
    program = assert_keeps(cse, lambda x: x.exp() * 2 + x.exp() * 2, X)
    assert names(program) == ["exp", "mul", "add"]
    assert program.operations[-1].slots[0] == program.operations[-1].slots[1]


def test_a_view_that_leads_back_is_what_it_shows():
    program = assert_keeps(cse, lambda x: x.mT.mT + x.reshape(6).reshape(2, 3), SQUARE)
    assert "transpose" in names(program)
    assert program.operations[-1].slots == [program.inputs[0][0]] * 2


def test_one_of_many_results_can_be_the_same():
    program = assert_keeps(cse, lambda x: [*x.split([1, 2]), x.split([1, 2])[1] + 1], X)
    assert names(program) == ["split_with_sizes", "add"]


def test_numbers_that_are_equal_but_of_other_types_stay_apart():
    program = assert_keeps(cse, lambda x: (x.long() * 2, x.long() * 2.0, x * 0.0001, x * 0.000149), X)
    assert names(program) == ["_to_copy", "mul", "mul", "mul", "mul"]


def test_what_is_written_in_between_is_not_joined():
    def work(x):
        buffer = x.clone()
        before = buffer * 2
        buffer += 1
        return before + buffer * 2

    assert names(assert_keeps(cse, work, X)).count("mul") == 2


def test_two_draws_are_two():
    program = cse(traced(lambda x: (x + torch.rand(3), x + torch.rand(3)), X))
    assert names(program).count("rand") == 2
