import pytest
import torch

from fedsaddle.engine.compile.passes import loop_invariant_code_motion
from fedsaddle.engine.compile.trace import Tracer, Unrecordable
from programs import X, names, traced


def around_a_walk(first, further, last):
    """A program of three blocks: first(x), further(x, state), last(x, state)."""
    x, state, end = X.clone(), X.clone(), X.clone()
    tracer = Tracer([x])
    with torch.no_grad(), tracer:
        begun = first(x)
    tracer.begin_block([state])
    with torch.no_grad(), tracer:
        moved = further(x, state)
    tracer.begin_block([end])
    with torch.no_grad(), tracer:
        found = last(x, end)
    return tracer.program([[begun], [moved], [found]])


def test_what_no_step_changes_moves_to_the_first_block():
    program = around_a_walk(
        lambda x: x * 2,
        lambda x, state: state - x.exp() * 0.1,
        lambda x, end: end / x.sin(),
    )
    assert [names(program, block) for block in range(3)] == [["mul"], ["exp", "mul", "sub"], ["sin", "div"]]
    moved = loop_invariant_code_motion(program)
    assert [names(moved, block) for block in range(3)] == [["mul", "exp", "mul", "sin"], ["sub"], ["div"]]


def test_memory_that_a_step_writes_to_stays_in_it():
    def step(x, state):
        buffer = torch.zeros(3)
        buffer += x  # the same in every step, but what is written next is not
        buffer += state
        return buffer

    moved = loop_invariant_code_motion(around_a_walk(lambda x: x * 2, step, lambda x, end: end * x))
    assert names(moved, 0) == ["mul"]
    assert names(moved, 1) == ["zeros", "add_", "add_"]


def test_memory_that_no_step_changes_moves_as_a_whole():
    def step(x, state):
        buffer = torch.zeros(3)
        buffer += x
        return buffer.exp() + state

    moved = loop_invariant_code_motion(around_a_walk(lambda x: x * 2, step, lambda x, end: end * x))
    assert [names(moved, block) for block in range(3)] == [["mul", "zeros", "add_", "exp"], ["add"], ["mul"]]


def test_memory_that_two_blocks_write_to_is_refused():
    buffer = torch.zeros(3)
    program = around_a_walk(lambda x: x * 2, lambda x, s: buffer.add_(s) * 1, lambda x, end: buffer.add_(end))
    with pytest.raises(Unrecordable, match="write to the same memory"):
        loop_invariant_code_motion(program)


def test_draws_are_refused():
    program = around_a_walk(lambda x: x * 2, lambda x, s: s + torch.rand(3), lambda x, end: end * x)
    with pytest.raises(Unrecordable, match="draws random numbers"):
        loop_invariant_code_motion(program)


def test_one_block_stays_as_it_is():
    program = traced(lambda x: x + torch.rand(3), X)
    assert loop_invariant_code_motion(program) is program
