"""A GPU draws the same bits and computes the same rounds, eagerly or replayed. Runs where there is a GPU."""

import dataclasses
import gc
import subprocess
import sys

import pytest
import torch
from torch.utils._pytree import tree_map

import fedsaddle as fs
from fedsaddle import cli, draws, judges, scores
from fedsaddle.core import Pair
from fedsaddle.data import federated
from fedsaddle.data.datasets import DATASETS
from fedsaddle.engine.compile import cuda_graphs, cuts
from fedsaddle.engine.course import metrics_at
from fedsaddle.engine.executors.ray_worker import Job, Worker, arrays_of
from fedsaddle.engine.kept import kept_by
from fedsaddle.engine.phase import calls_of, send, visits_of
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points
from fedsaddle.problem import Batch, Federation
from test_golden import made_up
from zoo import ALGORITHMS, Pictures, quadratic

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """PyTorch lets convolutions round to TF32 by default; the command line does not."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def test_draws_are_the_same_bits():
    seeds, clients = torch.arange(20), torch.arange(0, 10**12, 10**11)
    cpu = draws.key(draws.BATCHES, seeds[:, None], 7, 1, clients)
    gpu = draws.key(draws.BATCHES, seeds[:, None].cuda(), 7, 1, clients.cuda())
    assert torch.equal(cpu, gpu.cpu())
    assert torch.equal(draws.words(cpu, 50), draws.words(gpu, 50).cpu())
    assert torch.equal(draws.uniform(cpu, 3, 5), draws.uniform(gpu, 3, 5).cpu())
    size = 1 + torch.arange(cpu.numel()).reshape(cpu.shape) % 13
    rows = draws.batches(cpu, size, 40, 13)
    assert torch.equal(rows, draws.batches(gpu, size.cuda(), 40, 13).cpu())


def test_normals_are_the_same_to_rounding():
    key = draws.key(draws.PROBLEM, torch.arange(20))
    torch.testing.assert_close(
        draws.normal(key, 100), draws.normal(key.cuda(), 100).cpu(), rtol=1e-13, atol=1e-13
    )


def run(problem, algorithm, rounds=6, captured=True, **settings):
    quorum = fs.Quorum(invite=6, enough=4, minimum=2, deadline=30.0, grace=10.0)
    study = fs.make_study(
        problem, algorithm, seeds=(0, 1, 2), quorum=quorum, fleet=fs.Latency(dropout=0.4), batch=2, **settings
    )
    if not captured:
        study = dataclasses.replace(study, executor=fs.Vectorised(compiled=False))
    lanes = begin(study)
    for round in range(rounds):
        lanes, _ = play(study, lanes, round)
    return study, lanes


def assert_same(one, other, tolerance):
    for z, w in zip(points(one.server), points(other.server), strict=True):
        torch.testing.assert_close(z.to("cpu"), w.to("cpu"), rtol=tolerance, atol=tolerance)
    if one.memory is not None:
        torch.testing.assert_close(
            one.memory.to("cpu"), other.memory.to("cpu"), rtol=tolerance, atol=tolerance
        )
    assert (one.completed, one.clock, one.posted) == (other.completed, other.clock, other.posted)


@pytest.fixture(params=[0, 99], ids=["by step", "whole"])
def by_step(request, monkeypatch):
    """A walk is recorded one step at a time, or as a whole."""
    monkeypatch.setattr(cuts, "ONE_BY_ONE", request.param)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_captured_equals_eager_equals_loop(name, by_step):
    problem, algorithm = quadratic(), ALGORITHMS[name]
    _, expected = run(problem, algorithm, executor=fs.Loop())
    assert 0 < min(expected.completed) < 6  # some rounds are abandoned
    for settings in ({"executor": fs.Loop()}, {"captured": False}, {}):
        study, lanes = run(problem, algorithm, device="cuda", **settings)
        assert_same(lanes, expected, 1e-10)
    assert study.executor.recorder(study)._recordings


@pytest.mark.parametrize("name", ALGORITHMS)
def test_captured_equals_loop_on_a_network(name, by_step):
    problem = fs.AUC(dataset="digits", clients=40, partition="dirichlet", network="mlp")
    _, expected = run(problem, ALGORITHMS[name], rounds=3, executor=fs.Loop())
    study, lanes = run(problem, ALGORITHMS[name], rounds=3, device="cuda")
    assert_same(lanes, expected, 1e-4)
    for z, w in zip(points(lanes.server), points(expected.server), strict=True):
        assert study.problem.evaluate(z) == pytest.approx(study.problem.evaluate(w), rel=1e-3)


@pytest.mark.parametrize("name", ["cdma-nc", "cdma-ada"])
def test_captured_equals_loop_with_convolutions(name, by_step):
    _, expected = run(Pictures(), ALGORITHMS[name], executor=fs.Loop())
    _, lanes = run(Pictures(), ALGORITHMS[name], device="cuda")
    assert_same(lanes, expected, 1e-9)


class Precise(fs.GAN):
    """In float64: batch normalisation over two rows makes much of an error in the last bit."""

    def init(self, seed):
        return fs.Pair(*(value.double() for value in super().init(seed)))


def test_captured_equals_loop_on_a_gan(by_step):
    problem = Precise(objective="non-saturating", clients=40, partition="dirichlet")
    _, expected = run(problem, ALGORITHMS["cdma-ada"], rounds=2, executor=fs.Loop())
    study, lanes = run(problem, ALGORITHMS["cdma-ada"], rounds=2, device="cuda")
    assert_same(lanes, expected, 1e-9)
    shown = [study.problem.pictures(points(end.server)[0])["samples"].cpu() for end in (lanes, expected)]
    assert (shown[0].float() - shown[1].float()).abs().max() <= 2


def test_what_clients_keep_may_lie_beside_the_gpu():
    _, expected = run(quadratic(), ALGORITHMS["codasca"], executor=fs.Loop())
    _, lanes = run(quadratic(), ALGORITHMS["codasca"], device="cuda", executor=fs.Vectorised(memory=1000))
    assert lanes.memory.x.device.type == "cpu"
    assert_same(lanes, expected, 1e-10)


def test_a_lane_that_diverges_on_a_gpu_stops_alone():
    wild = [fs.CODASCA(0.05, K=3), fs.CODASCA(1e60, K=3)]
    outcome = fs.simulate(quadratic(), wild, rounds=20, evaluate_every=2, device="cuda")
    assert outcome.alive == [True, False]
    assert all(torch.isfinite(torch.cat(z)).all() for z in outcome.z)


@pytest.mark.parametrize(
    "problem",
    [
        fs.AUC(dataset="digits", clients=40, validation_share=0.2),
        fs.Robust(dataset="digits", clients=40, hidden=20),
        fs.Robust(dataset="digits", clients=40, hidden=20, radius=1.0, norm="l2"),
        fs.Fair(dataset="digits", clients=40),
    ],
)
def test_replayed_metrics_are_the_same(problem):
    study, lanes = run(problem, ALGORITHMS["cdma-ada"], rounds=2, device="cuda")
    for _ in range(2):
        found = metrics_at(study, lanes, [2, 0])
        for lane, metrics in found.items():
            z = points(lanes.server)[lane].to("cpu")
            assert metrics == pytest.approx(problem.evaluate(z), rel=1e-3, abs=1e-5)
    assert "metrics" in study.executor.recorder(study)._recordings


# --- rows that the recorder does not keep: more than a megabyte, in training and in the test ---


@pytest.fixture
def megabytes(monkeypatch):
    """MNIST's shape: 4,000 training and 4,000 test rows of 784 bytes."""
    data = made_up((1, 28, 28), rows=8_000)
    monkeypatch.setitem(DATASETS, "mnist", lambda: data)

    def judge(dataset, size, data, device, epochs):
        mix = draws.normal(draws.key(draws.PROBLEM, 0, 2), 784, 12).float().to(device)
        return judges.Judge(
            "made up", lambda rows: rows.flatten(1) @ mix, lambda f: torch.softmax(f[:, :10], 1)
        )

    monkeypatch.setattr(judges, "classifier", judge)
    monkeypatch.setattr(
        judges, "real_moments", lambda judge, rows, at: scores.moments(judges.look(judge, rows, at))
    )


LARGE = {
    "auc": lambda: fs.AUC(dataset="mnist", clients=40, network="lenet5"),
    "auc, validated": lambda: fs.AUC(dataset="mnist", clients=40, network="lenet5", validation_share=0.2),
    "auc, release": lambda: fs.AUC(dataset="mnist", clients=40, network="lenet5", scoring="release"),
    "robust": lambda: fs.Robust(dataset="mnist", clients=40, hidden=20),
    "fair": lambda: fs.Fair(dataset="mnist", clients=40),
    "gan": lambda: fs.GAN(dataset="mnist", clients=40, network="mnist", samples=200),
}


@pytest.mark.parametrize("task", LARGE)
def test_megabytes_of_rows_are_judged_as_they_are_plainly(task, megabytes):
    """Evaluated first, as a run does, and again when all is recorded."""
    problem = LARGE[task]()
    assert max(rows.nbytes for rows in problem.federation.rows.values()) > 2 << 20
    study, lanes = run(problem, ALGORITHMS["cdma-ada"], rounds=0, device="cuda")
    for round in range(2):
        found = metrics_at(study, lanes, [2, 0])
        for lane, metrics in found.items():
            assert metrics == pytest.approx(problem.evaluate(points(lanes.server)[lane]), rel=1e-3, abs=1e-4)
        lanes, _ = play(study, lanes, round)


@pytest.mark.parametrize("name", ["cdma-ada", "codasca", "catalyst-scaffold-s"])
@pytest.mark.parametrize("task", ["auc", "robust", "fair"])
def test_megabytes_of_rows_are_played_as_they_are_plainly(task, name, megabytes):
    (_, lanes), (_, expected) = (
        run(LARGE[task](), ALGORITHMS[name], rounds=3, device="cuda", captured=captured)
        for captured in (True, False)
    )
    assert_same(lanes, expected, 1e-3)


@pytest.mark.parametrize("experiment", ["auc-mnist", "auc-mnist-small", "robust-mnist", "gan-mnist"])
def test_a_whole_command_on_megabytes_of_rows(experiment, megabytes, tmp_path, monkeypatch, capsys):
    """What a person types: all algorithms, evaluations, a report."""
    little = ["K=2", "batch=10", "problem.clients=40", "evaluate_every=2"]
    little += ["problem.samples=200"] if experiment.startswith("gan") else []
    words = ["fedsaddle", "run", experiment, "--device", "cuda", "--rounds", "4", "--seeds", "0-1"]
    words += [word for setting in little for word in ("--set", setting)]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code, capsys.readouterr().err
    assert (tmp_path / "run" / "report.html").exists()


@dataclasses.dataclass(frozen=True)
class Wide:
    """A loss whose intermediate values take the memory: half a gigabyte a visit."""

    width: int = 1 << 22

    metrics = {"x": fs.Metric("low", rows="none")}  # noqa: RUF012

    @property
    def federation(self) -> Federation:
        return Federation({"a": torch.linspace(0, 1, 12)}, torch.full((12,), 1))

    def init(self, seed: int) -> Pair:
        return Pair(torch.full((1,), 0.1 * (1 + seed)), torch.ones(1))

    def loss(self, z: Pair, xi: Batch) -> torch.Tensor:
        wide = torch.sin(xi.rows["a"][:, None] * z.x * torch.ones(self.width, device=z.x.device))
        return xi.mean(torch.cos(wide * z.y).mean(1))

    def evaluate(self, z: Pair) -> dict[str, float]:
        return {"x": float(z.x)}


def wide_run(captured: bool):
    study = fs.make_study(
        Wide(), fs.CDMANC(0.1, 0.1, K=2), seeds=(0, 1), quorum=fs.Quorum(invite=12), batch=4, device="cuda"
    )
    if not captured:
        study = dataclasses.replace(study, executor=fs.Vectorised(compiled=False))
    lanes, events = begin(study), []
    for round in range(3):
        lanes, new = play(study, lanes, round)
        events += new
    return study, lanes, events


@pytest.mark.parametrize("captured", [True, False])
def test_when_a_gpu_runs_out_of_memory_smaller_parts_are_computed(captured):
    _, expected, nothing = wide_run(captured)
    assert nothing == []
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (3 << 30)) / total)
    try:
        study, lanes, events = wide_run(captured)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert [event.what for event in events] == ["memory"]
    assert 1 <= study.executor._at_once <= 6
    assert study.executor.memory < 6 << 30
    assert_same(lanes, expected, 1e-6)
    if captured:
        assert study.executor.recorder(study)._recordings


def test_memory_that_runs_out_in_a_recording_is_no_end(monkeypatch):
    """Memory that was enough before a recording need not be enough in it."""
    problem, ask, recorded = quadratic(), fs.Vectorised(), cuda_graphs.recorded
    _, expected = run(problem, ALGORITHMS["codasca"], device="cuda")

    def cramped(work, inputs):
        tape = recorded(work._replace(walk=None), inputs)

        def play(places):
            answers = tape(places)
            if torch.cuda.is_current_stream_capturing() and ask._at_once > 3:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return answers

        play.why = tape.why
        return play

    monkeypatch.setattr(cuda_graphs, "recorded", cramped)
    _, lanes = run(problem, ALGORITHMS["codasca"], device="cuda", executor=ask)
    assert ask._at_once <= 3
    assert_same(lanes, expected, 1e-10)


def test_a_visit_that_does_not_fit_a_gpu_is_refused():
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (100 << 20)) / total)
    try:
        with pytest.raises(fs.BadInput, match="a single visit at a time"):
            wide_run(captured=True)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_ray_workers_gpu_gives_the_same_answers():
    """Without Ray: what an actor does, twice, so that the second is a replay."""
    study = fs.make_study(quadratic(), ALGORITHMS["codasca"], seeds=(0, 1), batch=2)
    lanes = begin(study)
    worker = Worker()
    threads = torch.get_num_threads()
    worker.begin(study.problem, "cuda", None, False, False)
    torch.set_num_threads(threads)
    for clients in ([[0, 3, 5], [1, 2]], [[4, 7, 8], [2, 9]]):
        calls, extent = calls_of(study, lanes.completed, 0, 0, clients)
        kept = kept_by(lanes.memory, calls)
        visits = visits_of(study, send(study, lanes.server, 0), calls, kept)
        expected = study.executor.answers(study.task(0), extent, visits)
        job = Job(study.algorithm, 0, 2, study.steady, False, extent)
        answers, news = worker.ask(job, arrays_of(visits.by_lane), arrays_of(visits.rest))
        assert news is None
        found = tree_map(torch.tensor, answers)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    ((_, recorded),) = worker.engines.values()
    assert recorded._recordings


# Deterministic, in a process of its own: cuBLAS must hear of it before it is first used.
TWICE = """
import hashlib
from dataclasses import dataclass
import torch
import fedsaddle as fs
from fedsaddle import cli, draws, judges, scores
from fedsaddle.core import Pair
from fedsaddle.data.datasets import DATASETS
from fedsaddle.engine import machine
from fedsaddle.networks import Network, cifar_cnn, lenet5
from fedsaddle.problem import Federation

machine.prepare(deterministic=True)

@dataclass(frozen=True)
class Images:
    "Noise to fit, by a network with convolutions and pooling."
    network: Network
    shape: tuple

    metrics = {"loss": fs.Metric("low", rows="none")}

    @property
    def federation(self):
        pixels = draws.uniform(draws.key(draws.PROBLEM, torch.arange(120)), *self.shape).float()
        return Federation({"input": pixels}, torch.full((12,), 10))

    def init(self, seed):
        return Pair(self.network.init(seed), torch.ones(1))

    def loss(self, z, xi):
        return xi.mean((self.network(z.x, xi.rows["input"])[:, 0] - z.y) ** 2) - z.y[0] ** 2

    def evaluate(self, z):
        return {"loss": float(self.network(z.x, self.federation.rows["input"].to(z.x.device)).mean())}

problems = (
    fs.Quadratic(clients=12),
    fs.AUC(dataset="digits", clients=40, partition="dirichlet", network="mlp"),
    fs.GAN(objective="non-saturating", clients=40, partition="dirichlet"),
    fs.Robust(dataset="digits", clients=40),
    fs.Fair(dataset="digits", clients=40),
    Images(Network(lenet5), (1, 28, 28)),
    Images(Network(cifar_cnn), (3, 32, 32)),
)
rule = fs.CDMAADA(c_eta=0.05, c_gamma=0.05, c_alpha=0.7, rho=0.3, K=3)
for problem in problems:
    quorum = fs.Quorum(invite=6)
    end = fs.simulate(problem, rule, rounds=4, seeds=(0, 1, 2), quorum=quorum, device="cuda")
    assert all(end.alive)
    values = torch.cat([torch.cat(z) for z in end.z]).cpu().numpy().tobytes()
    print(type(problem).__name__, hashlib.sha256(values).hexdigest(), end.rows[-1].metrics, flush=True)
"""


def test_deterministic_gives_the_same_bits_twice():
    one, other = (
        subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True) for _ in range(2)
    )
    assert one.returncode == 0, one.stdout + one.stderr
    assert one.stdout.count("\n") == 7
    assert one.stdout == other.stdout


GUARDED = {
    "trimmed": {"merge": fs.Merge(fs.TrimmedMean(0.3)), "faults": fs.Faults(hostile=0.2, corruption="sign")},
    "median, clipped": {"merge": fs.Merge(fs.Median(), clip=0.5), "faults": fs.Faults(corrupt=0.2)},
    "bounded": {
        "checks": fs.Checks(norm={"parameters": 5.0, "gradients": 50.0}, strikes=2),
        "faults": fs.Faults(hostile=0.2, corruption="scale", factor=1e4, duplicate=0.1),
    },
}


@pytest.mark.parametrize("guard", GUARDED)
@pytest.mark.parametrize("name", ["cdma-ada", "codasca", "parallel-sgda"])
def test_merges_faults_and_checks_can_be_recorded(name, guard):
    problem, algorithm, settings = quadratic(), ALGORITHMS[name], GUARDED[guard]
    _, expected = run(problem, algorithm, executor=fs.Loop(), **settings)
    for more in ({"captured": False}, {}):
        study, lanes = run(problem, algorithm, device="cuda", **settings, **more)
        assert_same(lanes, expected, 1e-10)
        assert lanes.strikes == expected.strikes
    assert study.executor.recorder(study)._recordings


def test_a_walk_of_any_length_has_few_recordings():
    problem, rule = quadratic(), ALGORITHMS["catalyst-scaffold-s"]
    study, lanes = run(problem, rule, rounds=20, device="cuda")
    recordings = study.executor.recorder(study)._recordings.values()
    assert sum(isinstance(one, cuda_graphs.CapturedWalk) for one in recordings) <= 4
    assert_same(lanes, run(problem, rule, rounds=20, executor=fs.Loop())[1], 1e-9)


def test_what_a_study_held_on_a_gpu_is_given_back():
    problem = fs.AUC(dataset="digits", clients=40, network="mlp")
    held = []
    for _ in range(3):
        study, lanes = run(problem, ALGORITHMS["cdma-ada"], device="cuda")
        metrics_at(study, lanes, [0, 1, 2])
        study.close()
        del study, lanes
        gc.collect()
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_reserved())
    assert max(held) <= 1.05 * held[0]


def test_an_evaluation_that_runs_out_of_memory_looks_at_fewer_rows(monkeypatch):
    problem = fs.AUC(dataset="digits", clients=40, network="mlp")
    study, lanes = run(problem, ALGORITHMS["cdma-ada"], rounds=1, device="cuda")
    expected, scores = metrics_at(study, lanes, [0, 1]), fs.AUC.scores

    def cramped(self, x, inputs):
        if len(inputs) > 200:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return scores(self, x, inputs)

    monkeypatch.setattr(fs.AUC, "scores", cramped)
    monkeypatch.setattr(federated, "CHUNK", {"cpu": 1000, "cuda": 1000})
    study.executor.release(study)
    with pytest.warns(fs.Notice, match="at most 125 rows"):
        found = metrics_at(study, lanes, [0, 1])
    for lane, metrics in expected.items():
        assert found[lane] == pytest.approx(metrics, rel=1e-4)


def test_what_cannot_be_captured_is_computed_plainly_and_said(monkeypatch):
    def measure(self, z):
        return {"test_auc": torch.tensor(float(z.x.norm()), device=z.x.device)}

    problem = fs.AUC(dataset="digits", clients=40, network="mlp")
    study, lanes = run(problem, ALGORITHMS["cdma-ada"], rounds=1, device="cuda")
    monkeypatch.setattr(fs.AUC, "measure", measure)
    with (
        pytest.warns(fs.Notice, match="the evaluation of AUC cannot be recorded"),
        pytest.warns(fs.Notice, match="the evaluation of AUC goes lane by lane"),
    ):
        found = metrics_at(study, lanes, [1])
    assert found[1]["test_auc"] == pytest.approx(float(points(lanes.server)[1].x.norm()))
    play(study, lanes, 1)  # the GPU is as well as before
