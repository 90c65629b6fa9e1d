"""What a GPU's recordings do, without a GPU: what would be captured is run again in every replay."""

import contextlib
import dataclasses
import itertools
from typing import NamedTuple

import numpy
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

import fedsaddle as fs
from fedsaddle.core import Count, Pair, Parameters, Phase, Reply, StepSize, step, zeros_like
from fedsaddle.engine import course
from fedsaddle.engine.compile import cuda_graphs, cuts, tapes
from fedsaddle.engine.compile.players.torchscript import TorchScript
from fedsaddle.engine.compile.work import Work
from fedsaddle.engine.executors import vectorised
from fedsaddle.engine.round import play
from fedsaddle.engine.study import PhaseInputs, PhaseResult, begin, points
from fedsaddle.problem import Measured
from zoo import ALGORITHMS, quadratic


class Stream:
    def wait_stream(self, other):
        pass


class Again:
    """A graph: it writes to the same places in every replay."""

    def __init__(self, work):
        self.work, self.outputs = work, work()

    def replay(self):
        with torch.inference_mode():
            for place, value in zip(self.outputs or (), self.work() or (), strict=True):
                place.copy_(value)


class Pretended(cuda_graphs.Graphs):
    """The recordings of a GPU on a CPU."""

    def _capture(self, work):
        found = work()
        if found is None:
            return Again(work), None
        again = Again(lambda: tree_leaves(work()))
        return again, tree_unflatten(again.outputs, tree_structure(found))


class OnGPU(fs.Vectorised):
    """What a GPU does, on a CPU."""

    def run(self, study, number, extent, inputs):
        return self._captured(study, number, extent, inputs, self.recorder(study))

    def _new_recorder(self, device):
        return Pretended()


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "_aside", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(cuts, "BLOCK", 2)  # as on a GPU, all but the shortest walks are recorded by the step


def end(rule, rounds=5, recorded=True, **settings):
    study = fs.make_study(
        quadratic(),
        rule,
        seeds=(0, 1, 2),
        quorum=fs.Quorum(invite=6),
        fleet=fs.Dropout(0.3),
        batch=2,
        **settings,
    )
    study = dataclasses.replace(study, executor=OnGPU()) if recorded else study
    lanes = begin(study)
    for round in range(rounds):
        lanes, _ = play(study, lanes, round)
    return study, lanes


def assert_same(one, other, tolerance=1e-10):
    for z, w in zip(points(one.server), points(other.server), strict=True):
        torch.testing.assert_close(z, w, rtol=tolerance, atol=tolerance)
    if one.memory is not None:
        torch.testing.assert_close(one.memory, other.memory, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_replayed_equals_loop(name):
    study, lanes = end(ALGORITHMS[name])
    assert_same(lanes, end(ALGORITHMS[name], recorded=False, executor=fs.Loop())[1])
    recordings = study.executor.recorder(study)._recordings.values()
    walks = [one for one in recordings if isinstance(one, cuda_graphs.CapturedWalk)]
    assert bool(walks) == (name != "parallel-sgda")


def test_without_torchscript_a_graph_holds_the_same(monkeypatch):
    def gone(*given):
        raise RuntimeError("no interpreter any more")

    monkeypatch.setattr(TorchScript, "__init__", gone)
    with pytest.warns(fs.Notice, match=r"replayed by torch\.fx.*: no interpreter any more"):
        _, lanes = end(ALGORITHMS["cdma-ada"])
    assert_same(lanes, end(ALGORITHMS["cdma-ada"], recorded=False, executor=fs.Loop())[1])


def test_what_no_tape_can_tell_is_captured_as_it_is_and_said_to_be():
    held = Pretended()
    it = Work("it", lambda inputs: {"y": (inputs["x"].half() * 2).float()})
    with pytest.warns(fs.Notice, match="it is captured as it is, .*plain tensors") as told:
        found = [held("it", it, {"x": torch.full((3,), float(number))}) for number in range(3)]
    assert [one["y"].tolist() for one in found] == [[2.0 * number] * 3 for number in range(3)]
    assert len(told) == 1


# --- moves that do more than move -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Base:
    eta: StepSize = 0.002
    K: Count = 20

    def init(self, z):
        return fs.CDMANC(0.1, 0.1).init(z)

    def send(self, server):
        return {"z": server.z}

    def average(self, server, turn, z: Parameters):
        return server._replace(z=z)

    def phases(self):
        return (Phase("update", self.send, self.update, self.average, steps=self.steps),)

    @property
    def steps(self):
        return self.K


class Summed(Base):
    """The mean of all points of a walk, added up beside it."""

    def update(self, client, z: Parameters):
        total = zeros_like(z)

        def move(w, xi):
            nonlocal total
            w = step(w, client.grad(w, xi), self.eta, self.eta)
            total = total + w
            return w

        client.walk(move, z)
        return Reply({"z": total * (1 / self.K)})


class Counted(Base):
    """Shorter steps, counted beside the walk."""

    def update(self, client, z: Parameters):
        number = itertools.count(1)
        return Reply(
            {
                "z": client.walk(
                    lambda w, xi: step(w, client.grad(w, xi), self.eta / next(number), self.eta), z
                )
            }
        )


class Listed(Base):
    def update(self, client, z: Parameters):
        seen = []

        def move(w, xi):
            seen.append(step(w, client.grad(w, xi), self.eta, self.eta))
            return seen[-1]

        client.walk(move, z)
        return Reply({"z": Pair(*(torch.stack(values).mean(0) for values in zip(*seen, strict=True)))})


class Numbered(NamedTuple):
    z: Pair
    number: int


class Plain(Base):
    """A walk that carries a plain number."""

    def update(self, client, z: Parameters):
        def move(at, xi):
            eta = self.eta / (1 + at.number)
            return Numbered(step(at.z, client.grad(at.z, xi), eta, self.eta), at.number + 1)

        return Reply({"z": client.walk(move, Numbered(z, 0)).z})


ODD = [dataclasses.dataclass(frozen=True)(rule) for rule in (Summed, Counted, Listed, Plain)]


@pytest.mark.parametrize("rule", ODD, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "cpu"])
def test_what_a_step_leaves_beside_its_walk_is_not_lost(rule, gpu, monkeypatch):
    """Such a phase is recorded as a whole."""
    monkeypatch.setattr(tapes, "PATIENCE", 0)
    expected = end(rule(), recorded=False, executor=fs.Loop())[1]
    if gpu:
        study, lanes = end(rule())
        kinds = {type(one) for one in study.executor.recorder(study)._recordings.values()}
        assert kinds == {cuda_graphs.Whole}
    else:
        study = fs.make_study(
            quadratic(), rule(), seeds=(0, 1, 2), quorum=fs.Quorum(invite=6), fleet=fs.Dropout(0.3), batch=2
        )
        lanes = begin(study)
        for round in range(5):
            lanes, _ = play(study, lanes, round)
        assert {type(one).__name__ for one in study.executor.recorder(study)._tapes.values()} <= {"Tape"}
    assert_same(lanes, expected)


def some_rounds(study):
    lanes = begin(study)
    for round in range(12):
        lanes, _ = play(study, lanes, round)
    return lanes


@dataclasses.dataclass(frozen=True)
class Sometimes(Counted):
    @property
    def steps(self):
        return lambda chance: 1 if chance < 0.7 else 4


@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "cpu"])
def test_a_walk_of_one_step_proves_nothing(gpu, monkeypatch):
    monkeypatch.setattr(tapes, "PATIENCE", 0)
    rule = Sometimes()
    for seed in range(3):
        study = fs.make_study(quadratic(), rule, seeds=(seed,), quorum=fs.Quorum(invite=6), batch=2)
        study = dataclasses.replace(study, executor=OnGPU()) if gpu else study
        with pytest.warns(fs.Notice, match="beside the walk|other values"):
            lanes = some_rounds(study)
        plain = dataclasses.replace(study, executor=fs.Vectorised(compiled=False))
        assert_same(lanes, some_rounds(plain))


def test_what_is_given_back_for_want_of_memory_is_not_given_back_again(monkeypatch):
    reserved = itertools.count(0, 60)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: next(reserved))
    made, held = [], cuda_graphs.Graphs(lambda: 100.0)
    monkeypatch.setattr(held, "_captured", lambda work, inputs: made.append(work.name))
    for _ in range(20):
        for shape in ("one", "other"):
            held(shape, Work(shape, lambda inputs: None), ())
    assert len(made) <= 4


def test_near_looks_at_every_lane():
    start, there = PhaseInputs(torch.zeros(3, 2), None), PhaseResult(torch.ones(3, 2))
    assert cuda_graphs.near(PhaseResult(torch.ones(3, 2) * 1.01), there, start)
    assert not cuda_graphs.near(PhaseResult(torch.ones(3, 2) * 1.5), there, start)
    assert not cuda_graphs.near(PhaseResult(torch.full((3, 2), torch.nan)), there, start)
    one_off = torch.ones(3, 2)
    one_off[0] = torch.inf
    assert cuda_graphs.near(PhaseResult(one_off), there, start)  # rounding may drive one lane apart


# --- evaluations ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Judged(Measured):
    """A quadratic that is judged by tensors; `looks`: at their values."""

    looks: bool = False

    metrics = dict.fromkeys(("norm", "sum"), fs.Metric("low", rows="none"))

    @property
    def federation(self):
        return quadratic().federation

    def init(self, seed):
        return quadratic().init(seed)

    def field(self, z, xi):
        return quadratic().field(z, xi)

    def measure(self, z):
        norm = z.x.norm()
        return {"norm": torch.tensor(float(norm)) if self.looks else norm, "sum": z.y.sum()}


@pytest.mark.parametrize("together", [1, 2, 8])
def test_lanes_are_judged_together(together, monkeypatch):
    monkeypatch.setattr(vectorised, "TOGETHER", together)
    study = fs.make_study(Judged(), fs.CDMANC(0.1, 0.1), seeds=range(5), quorum=fs.Quorum(invite=4))
    study = dataclasses.replace(study, executor=OnGPU())
    lanes = begin(study)
    for some in ([0, 1, 2, 3, 4], [4, 1, 2], [3]):
        found = course.metrics_at(study, lanes, some)
        assert list(found) == some
        for lane, metrics in found.items():
            assert metrics == pytest.approx(study.problem.evaluate(points(lanes.server)[lane]))
    assert list(study.executor.recorder(study)._recordings) == ["metrics"]


def test_what_cannot_be_mapped_is_judged_lane_by_lane_and_said_once(recwarn):
    study = fs.make_study(Judged(looks=True), fs.CDMANC(0.1, 0.1), seeds=range(3), quorum=fs.Quorum(invite=4))
    study = dataclasses.replace(study, executor=OnGPU())
    lanes = begin(study)
    for _ in range(2):
        found = course.metrics_at(study, lanes, [2, 0])
    (told,) = recwarn
    assert "the evaluation of Judged goes lane by lane, which is slower: vmap" in str(told.message)
    for lane, metrics in found.items():
        assert metrics == pytest.approx(study.problem.evaluate(points(lanes.server)[lane]))


def of_ones_own(metric, rows="test"):
    tables = [{"u": torch.arange(float(size))[:, None]} for size in (5, 7, 6, 9)]
    return fs.task(
        x=lambda: torch.nn.Linear(1, 1),
        y=1,
        loss=lambda x, y, batch: (x(batch["u"])[:, 0] - y) ** 2 - y**2,
        data=fs.clients(tables, test={"u": torch.ones(40, 1)}, own={"shift": torch.arange(4.0)}),
        metrics={"far": fs.Metric("low", rows=rows, of=metric)},
        name="mine",
    )


METRICS = {
    "a row": lambda x, y, batch: x(batch["u"])[:, 0].abs(),
    "all rows": lambda x, y, batch: x(batch["u"]).abs().amax() + y.sum(),
    "NumPy": lambda x, y, batch: numpy.abs(x(batch["u"]).numpy()).max(),
    "a value": lambda x, y, batch: max(0.0, x(batch["u"]).mean().item()),
}


@pytest.mark.parametrize("rows", ["test", "train"])
@pytest.mark.parametrize("kind", METRICS)
def test_lanes_of_a_task_of_ones_own_are_judged_together(kind, rows, recwarn):
    task = of_ones_own(METRICS[kind], rows)
    study = fs.make_study(task, fs.CDMANC(0.1, 0.1), seeds=range(5), quorum=fs.Quorum(invite=4))
    study = dataclasses.replace(study, executor=OnGPU())
    lanes = begin(study)
    for _ in range(2):
        found = course.metrics_at(study, lanes, [3, 0, 1])
        for lane, metrics in found.items():
            assert metrics == pytest.approx(task.evaluate(points(lanes.server)[lane]))
    mapped = kind in ("a row", "all rows")
    assert list(study.executor.recorder(study)._recordings) == (["metrics"] if mapped else [])
    assert [str(one.message).split(":")[0] for one in recwarn] == (
        [] if mapped else ["the evaluation of mine goes lane by lane, which is slower"]
    )
