"""Programs for the tests of the compiler: small ones made by hand, and random ones."""

import random

import torch

from fedsaddle.engine.compile.players import player
from fedsaddle.engine.compile.program import Program
from fedsaddle.engine.compile.trace import Tracer

X = torch.tensor([1.0, -2.0, 3.0])


def traced(work, *inputs) -> Program:
    """What work(*inputs) does, as it is."""
    tracer = Tracer(list(inputs))
    with torch.no_grad(), tracer:
        found = work(*inputs)
    return tracer.program([list(found) if isinstance(found, tuple | list) else [found]])


def names(program: Program, block: int = 0) -> list[str]:
    """Its operations, in their order."""
    operations = [operation for operation in program.operations if operation.block == block]
    return [operation.target._schema.name.removeprefix("aten::") for operation in operations]


def assert_keeps(passed, work, *inputs) -> Program:
    """What the pass makes of a program, which gives the same bits as the program on any inputs."""
    program = traced(work, *inputs)
    before = list(program.operations)
    found = passed(program)
    assert program.operations == before  # it made another one
    plays = player([*found.inputs[0], *found.constants], found.operations, found.wanted[0])
    for factor in (1, -1, 7):
        given = [value * factor for value in inputs]
        expected = work(*given)
        expected = list(expected) if isinstance(expected, tuple | list) else [expected]
        with torch.inference_mode():
            answers = list(plays(*given, *found.constants.values()))
        torch.testing.assert_close(answers, expected, rtol=0.0, atol=0.0, check_stride=True)
    return found


# What a random program does to a tensor (4, ...), another one and a place: views, copies, parts, writes.
MOVES = (
    lambda t, other, place: t.mT,
    lambda t, other, place: t.mT.mT * other.reshape(t.shape),
    lambda t, other, place: t.reshape(4, -1).reshape(4, *((2, 3), (3, 2), (6, 1), (1, 6))[place]),
    lambda t, other, place: (t * 1, t**1.0, torch.where(t > 0, t, t), torch.cat([t]))[place],
    lambda t, other, place: torch.stack([t[number] * 2 - 0.5 for number in range(4)]),
    lambda t, other, place: torch.stack([t.select(-1, n) * 3 for n in range(t.shape[-1])], dim=-1),
    lambda t, other, place: torch.stack([(t[number] + 1).sum() * t[number] for number in range(4)]),
    lambda t, other, place: torch.stack([less(t[n], other[n]).view(-1) for n in range(4)]).reshape(t.shape),
    lambda t, other, place: torch.stack([(-part).reshape(-1) for part in t]).reshape(t.shape),
    lambda t, other, place: torch.cat([*((part + 1)[None] for part in t), t[1:] * 2])[3:7].reshape(t.shape),
    lambda t, other, place: t.index_fill(0, torch.tensor([place]), 0.25),
    lambda t, other, place: torch.stack([part.clone().add_(place).reshape(t[0].shape) for part in t]),
    lambda t, other, place: t.clone().unsqueeze_(1).mul_(t[:, None]).squeeze_(1),
    lambda t, other, place: (torch.ones_like(t) + torch.zeros_like(t.mT).mT) * t,
    lambda t, other, place: torch.func.grad(lambda w: (w * w.detach().mT.mT).sin().sum())(t),
    lambda t, other, place: torch.func.vmap(lambda part: part * 3 - part.sum())(t),
    lambda t, other, place: written_to(t, place),
)


def some_program(seed):
    def work(x):
        luck, pool = random.Random(seed), [x, x.mT, torch.linspace(-1, 1, 24).reshape(4, 2, 3)]
        for _ in range(14):
            move, t, other = luck.choice(MOVES), luck.choice(pool), luck.choice(pool)
            pool.append(move(t, other, luck.randrange(4)))
        return pool[-6:]

    return work


def less(t, other):
    return t.contiguous() - other.reshape(t.shape)


def written_to(t, place):
    """One part is overwritten after it was copied and looked at."""
    parts = [t[number] * 2 for number in range(4)]
    seen = parts[place] + 1
    parts[place][0] = 7
    return torch.stack(parts) + seen
