import pytest
import torch

from fedsaddle.engine.compile.passes import dead_code_elimination, slice_batching
from programs import assert_keeps, names, traced

ROWS = torch.arange(12.0).reshape(4, 3) / 7


def both(program):
    """The pass, and then without the slices that nobody takes any more."""
    return dead_code_elimination(slice_batching(program))


def test_what_is_done_to_every_slice_is_done_once():
    program = assert_keeps(both, lambda x: [x[n] * 2 - 0.5 for n in range(4)], ROWS)
    assert names(program) == ["permute", "clone", "mul", "sub", "select", "select", "select", "select"]


def test_slices_along_any_dimension_of_several_tensors():
    work = lambda x, y: [x[:, n] + y[n] for n in range(3)]  # noqa: E731
    program = assert_keeps(both, work, ROWS, ROWS.mT.contiguous())
    assert names(program).count("add") == 1


@pytest.mark.parametrize(
    "work",
    [
        lambda x: [x[n] * 2 for n in range(3)],  # one slice is not wanted
        lambda x: [x[n].exp() for n in range(4)],  # a vector's rounding may depend on its length
        lambda x: [x[n].sum() for n in range(4)],
        lambda x: [x[n] + x[3 - n] for n in range(4)],  # slices of other places
        lambda x: [x[n] * x[n][:1] for n in range(4)],  # of other shapes
        lambda x: [torch.view_as_complex(x[:, :2].reshape(4, 1, 2).contiguous())[n] * 2j for n in range(4)],
    ],
    ids=["few", "exp", "sum", "crossed", "broadcast", "complex"],
)
def test_what_could_round_otherwise_is_left_alone(work):
    assert names(assert_keeps(slice_batching, work, ROWS)) == names(traced(work, ROWS))


def test_slices_that_are_written_to_are_left_alone():
    def work(x):
        whole = x.clone()
        found = [whole[n] * 2 for n in range(4)]
        whole += 1
        return [*found, whole]

    assert names(assert_keeps(slice_batching, work, ROWS)) == names(traced(work, ROWS))


def test_what_is_large_is_left_alone():
    rows = torch.ones(4, 1 << 17)
    work = lambda x: [x[n] * 2 for n in range(4)]  # noqa: E731
    assert names(slice_batching(traced(work, rows))) == names(traced(work, rows))


def test_new_values_do_not_reach_the_program_that_was_given():
    program = traced(lambda x: [x[n] * 2 for n in range(4)], ROWS)
    count = len(program.looks)
    assert len(slice_batching(program).looks) == count + 3
    assert len(program.looks) == len(program.memory) == count
