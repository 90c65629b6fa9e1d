import torch

from fedsaddle.engine.compile.passes import constant_folding
from programs import X, assert_keeps, names, traced


def test_what_does_not_depend_on_the_inputs_is_a_constant():
    program = assert_keeps(constant_folding, lambda x: x + torch.arange(3) * 2, X)
    assert names(program) == ["add"]


def test_equal_constants_become_one():
    program = assert_keeps(constant_folding, lambda x: (x + torch.ones(3)) * (torch.zeros(3) + 1), X)
    (add, mul) = program.operations
    assert add.slots[1] == mul.slots[1]


def test_constants_that_differ_in_type_layout_or_the_sign_of_zero_stay_apart():
    for one, other in (
        (torch.ones(3), torch.ones(3, dtype=torch.float64)),
        (torch.ones(3), torch.ones(1).expand(3)),
        (torch.zeros(3), -torch.zeros(3)),
    ):
        program = assert_keeps(constant_folding, lambda x, one=one, other=other: (x + one, x / other), X)
        assert len(program.constants) == 2


def test_what_only_fills_is_known_whatever_it_is_given():
    program = assert_keeps(constant_folding, lambda x: torch.ones_like(x.exp()) * x, X)
    assert names(program) == ["exp", "mul"]  # that nobody needs exp is seen by another pass


def test_what_depends_on_an_input_is_not_folded():
    program = assert_keeps(constant_folding, lambda x: x * 0 + 1, X)
    assert names(program) == ["mul", "add"]


def test_what_is_written_in_place_is_not_folded():
    def work(x):
        buffer = torch.zeros(3)
        seen = buffer + 1
        buffer += x
        return buffer * seen

    assert names(assert_keeps(constant_folding, work, X)) == ["zeros", "add", "add_", "mul"]


def test_what_is_drawn_is_not_folded():
    program = constant_folding(traced(lambda x: x + torch.rand(3), X))
    assert names(program) == ["rand", "add"]


def test_what_is_large_is_not_kept():
    program = assert_keeps(constant_folding, lambda x: (torch.ones(1 << 19) * 2)[:3] + x, X)
    assert names(program) == ["ones", "mul", "slice", "add"]
