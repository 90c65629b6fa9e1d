"""Every player gives the same bits; torch.fx plays, and says why, what TorchScript cannot."""

import sys

import pytest
import torch

import fedsaddle as fs
from fedsaddle.engine.compile import tapes
from fedsaddle.engine.compile.passes import shortened
from fedsaddle.engine.compile.players import player
from fedsaddle.engine.compile.players.fx import FX
from fedsaddle.engine.compile.players.torchscript import TorchScript
from fedsaddle.engine.compile.record import Tape, WalkTape
from fedsaddle.engine.compile.work import Work
from fedsaddle.engine.executors import vectorised
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points
from programs import X, some_program, traced
from zoo import ALGORITHMS, quadratic


def parts(program):
    return [*program.inputs[0], *program.constants], program.operations, program.wanted[0]


@pytest.fixture
def deprecated(monkeypatch):
    """TorchScript is gone."""

    def gone(*given):
        raise RuntimeError("no interpreter any more\nsince a while")

    monkeypatch.setattr(TorchScript, "__init__", gone)


@pytest.mark.parametrize("passes", [lambda program: program, shortened], ids=["traced", "shortened"])
@pytest.mark.parametrize("seed", range(60))
def test_players_give_the_same_bits(seed, passes):
    x, other = torch.randn(2, 4, 2, 3, generator=torch.Generator().manual_seed(seed))
    program = passes(traced(some_program(seed), x))
    expected = some_program(seed)(other)
    for one in (TorchScript, FX):
        with torch.inference_mode():
            found = one(*parts(program))(other, *(value.clone() for value in program.constants.values()))
        torch.testing.assert_close(list(found), expected, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: (1 - x, 2 / x, x.long() // 2, 7 // x.long(), (x > 0) * 2, (x > 0) * 2.5, x.long() * 0.5),
        lambda x: (*x.split([1, 2]), torch.stack([x, x + 1]), x[torch.tensor([2, 0])], x.to(torch.int32)),
        lambda x: (x * torch.inf, x.clone(memory_format=torch.contiguous_format), *x.sort()),
        lambda x: (torch.zeros(3, dtype=torch.float64) + x, torch.full_like(x, torch.nan), x.sum((0,), True)),
        lambda x: (torch.where(x > 0, 1.0, x.double()), torch.zeros(3).add_(x), torch.cat([x[:1], x[1:]])),
    ],
)
def test_players_take_the_same_arguments(work):
    program = traced(work, X)
    for one in (TorchScript, FX):
        with torch.inference_mode():
            found = one(*parts(program))(-X, *program.constants.values())
        torch.testing.assert_close(list(found), list(work(-X)), rtol=0.0, atol=0.0, equal_nan=True)


def test_torchscript_plays_if_it_can():
    plays = player(*parts(traced(torch.exp, X)))
    assert type(plays) is TorchScript
    assert plays.why is None


def test_torch_fx_plays_what_torchscript_cannot(deprecated):
    plays = player(*parts(traced(torch.exp, X)))
    assert type(plays) is FX
    assert plays.why == "no interpreter any more"
    assert torch.equal(plays(X)[0], X.exp())


def test_torch_fx_plays_when_torchscript_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, TorchScript.__module__, None)
    plays = player(*parts(traced(torch.exp, X)))
    assert type(plays) is FX
    assert "torchscript" in plays.why


def test_a_lack_of_memory_is_no_reason(monkeypatch):
    def full(*given):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(TorchScript, "__init__", full)
    with pytest.raises(torch.OutOfMemoryError):
        player(*parts(traced(torch.exp, X)))


def test_it_is_said_once_with_the_reason(deprecated, monkeypatch):
    monkeypatch.setattr(tapes, "PATIENCE", 0)
    replays, it = tapes.Tapes(), Work("it", lambda inputs: inputs[0] * 2)
    with pytest.warns(fs.Notice, match=r"it is replayed by torch\.fx.*: no interpreter any more$"):
        replays("it", it, [X])
    for number in range(4):
        assert torch.equal(replays(("it", number), it, [X + number]), 2 * (X + number))


@pytest.mark.parametrize("small", [0, 1 << 30], ids=["pieces", "whole"])
@pytest.mark.parametrize("name", ["cdma-ada", "codasca", "catalyst-scaffold-s"])
def test_a_run_without_torchscript_keeps_its_bits(name, small, deprecated, monkeypatch):
    monkeypatch.setattr(vectorised, "SMALL", small)
    monkeypatch.setattr(vectorised, "PIECE", 1 << 14)

    def end(patience):
        monkeypatch.setattr(tapes, "PATIENCE", patience)
        study = fs.make_study(
            quadratic(), ALGORITHMS[name], seeds=(0, 1), quorum=fs.Quorum(invite=6), batch=2
        )
        lanes = begin(study)
        for round in range(5):
            lanes, _ = play(study, lanes, round)
        return study, lanes

    _, plain = end(1 << 30)
    with pytest.warns(fs.Notice, match="replayed by torch.fx"):
        study, taped = end(0)
    played = [
        tape for tape in study.executor.recorder(study)._tapes.values() if isinstance(tape, Tape | WalkTape)
    ]
    assert played
    assert all(tape.why == "no interpreter any more" for tape in played)
    for z, w in zip(points(taped.server), points(plain.server), strict=True):
        torch.testing.assert_close(z, w, rtol=0.0, atol=0.0)
