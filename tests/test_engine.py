"""One engine: every way to ask gives the same answer, lanes never touch, and memory is respected."""

import dataclasses
import inspect
import io
import math
import random
import re
import sys
from typing import NamedTuple

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import fedsaddle as fs
from fedsaddle import draws
from fedsaddle.border.build import load
from fedsaddle.core import Pair, Parameters, Phase, Reply
from fedsaddle.data import federated
from fedsaddle.engine.compile import tapes
from fedsaddle.engine.executors.vectorised import peak_bytes
from fedsaddle.engine.gather import gather
from fedsaddle.engine.phase import calls_of, send, visits_of
from fedsaddle.engine.round import play
from fedsaddle.engine.study import Lost, begin, points
from fedsaddle.engine.visits import answer
from fedsaddle.networks import Network
from fedsaddle.problem import Batch, Federation
from zoo import ALGORITHMS, fleets, quadratic

QUORUM = fs.Quorum(invite=6, enough=4, minimum=2, deadline=30.0, grace=10.0)


def run(algorithm, seeds=(0, 1), rounds=3, **settings):
    settings = {"problem": quadratic(), "quorum": QUORUM, "batch": 2} | settings
    study = fs.make_study(settings.pop("problem"), algorithm, seeds=seeds, **settings)
    lanes = begin(study)
    for round in range(rounds):
        lanes, _ = play(study, lanes, round)
    return lanes


def assert_same(one, other, tolerance=1e-10):
    for z, w in zip(points(one.server), points(other.server), strict=True):
        torch.testing.assert_close(z, w, rtol=tolerance, atol=tolerance)
    assert one.completed == other.completed
    assert one.clock == other.clock
    assert one.posted == other.posted
    if one.memory is not None:
        torch.testing.assert_close(one.memory, other.memory, rtol=tolerance, atol=tolerance)


FLEETS = ["paper", "everybody", "dropout", "latency", "trace"]
# Each algorithm with two of them in turn, where all pairs have already met in the first test.
PAIRS = [(name, FLEETS[place % 5]) for at, name in enumerate(ALGORITHMS) for place in (at, at + 2)]


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_vectorised_equals_loop(name, fleet, tmp_path):
    fleet = fleets(tmp_path)[fleet]
    loop = run(ALGORITHMS[name], fleet=fleet, executor=fs.Loop())
    assert max(loop.completed) > 0
    assert_same(run(ALGORITHMS[name], fleet=fleet, executor=fs.Vectorised()), loop)


@pytest.mark.parametrize(("name", "fleet"), PAIRS)
def test_vectorised_equals_loop_when_it_is_replayed_from_the_first_use(name, fleet, tmp_path, monkeypatch):
    """A tape is made at the first use, compared at the second, and alone from then on."""
    replays = []
    for kind in (tapes.Tape, tapes.WalkTape):
        monkeypatch.setattr(
            kind, "__call__", lambda *given, play=kind.__call__: replays.append(given) or play(*given)
        )
    monkeypatch.setattr(tapes, "PATIENCE", 0)
    fleet = fleets(tmp_path)[fleet]
    loop = run(ALGORITHMS[name], rounds=6, fleet=fleet, executor=fs.Loop())
    assert not replays
    assert_same(run(ALGORITHMS[name], rounds=6, fleet=fleet, executor=fs.Vectorised()), loop)
    assert len(replays) >= 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_chunk_size_does_not_matter(name):
    whole = run(ALGORITHMS[name], executor=fs.Vectorised())
    assert_same(run(ALGORITHMS[name], executor=fs.Vectorised(memory=1)), whole)


@pytest.mark.parametrize(("name", "fleet"), PAIRS)
def test_a_lane_equals_the_same_run_alone(name, fleet, tmp_path):
    algorithm, fleet = ALGORITHMS[name], fleets(tmp_path)[fleet]
    step = next(field.name for field in dataclasses.fields(algorithm) if "eta" in field.name)
    settings = [algorithm, dataclasses.replace(algorithm, **{step: 0.01})]
    together = run(settings, seeds=(3, 5), fleet=fleet)
    for lane, (setting, seed) in enumerate((s, seed) for s in settings for seed in (3, 5)):
        alone = run(setting, seeds=(seed,), fleet=fleet)
        torch.testing.assert_close(
            points(together.server)[lane], points(alone.server)[0], rtol=1e-12, atol=1e-12
        )
        assert together.clock[lane] == alone.clock[0]
        assert together.posted[lane] == alone.posted[0]
        if alone.memory is not None:
            torch.testing.assert_close(together.memory.x[lane], alone.memory.x[0], rtol=1e-12, atol=1e-12)


def test_lanes_differ_by_seed_and_by_setting():
    together = run([fs.CDMANC(0.05, 0.05, K=3), fs.CDMANC(0.01, 0.05, K=3)], seeds=(3, 5))
    ends = [tuple(z.x.tolist()) for z in points(together.server)]
    assert len(set(ends)) == 4


@pytest.mark.parametrize("weights", [None, list(range(1, 13))])
def test_the_same_run_twice_gives_the_same_bits(weights):
    one, other = (run(ALGORITHMS["codasca"], weights=weights) for _ in range(2))
    assert_same(one, other, tolerance=0.0)


def test_the_order_of_arrival_changes_nothing():
    class Backwards(fs.Latency):
        def delays(self, *args):
            return 1000 - super().delays(*args)

    problem, quorum = quadratic(), fs.Quorum(invite=12)
    for name in ALGORITHMS:
        one, other = (
            run(ALGORITHMS[name], problem=problem, quorum=quorum, fleet=fleet)
            for fleet in (fs.Latency(), Backwards())
        )
        torch.testing.assert_close(one.server.z, other.server.z, rtol=0.0, atol=0.0)


def test_a_lane_that_diverges_stops_alone_and_keeps_its_rows():
    wild = [fs.CDMANC(0.05, 0.05, K=3), fs.CDMANC(1e60, 1e60, K=3)]
    outcome = fs.simulate(quadratic(), wild, rounds=20, evaluate_every=2, seeds=(0,), quorum=QUORUM)
    alone = fs.simulate(quadratic(), wild[0], rounds=20, evaluate_every=2, seeds=(0,), quorum=QUORUM)
    assert outcome.alive == [True, False]
    assert [row.metrics for row in outcome.rows if row.lane == 0] == [row.metrics for row in alone.rows]
    (event,) = [event for event in outcome.events if event.what == "diverged"]
    assert event.lane == 1
    assert event.round <= 3
    assert "no longer finite" in event.detail
    assert next(row.round for row in outcome.rows if row.lane == 1) == 0
    assert all(math.isfinite(value) for row in outcome.rows for value in row.metrics.values())
    assert all(torch.isfinite(torch.cat(z)).all() for z in outcome.z)


def test_a_course_ends_when_every_lane_has_diverged():
    stops = []
    with pytest.warns(fs.Notice, match="every lane diverged"):
        fs.simulate(
            quadratic(),
            fs.CDMANC(1e200, 1e200),
            rounds=1000,
            quorum=QUORUM,
            watch=lambda stop: stops.append(stop),
        )
    assert stops[-1].round < 20
    assert not any(stops[-1].lanes.alive)


@dataclasses.dataclass(frozen=True)
class Wide:
    """A loss whose intermediate values, not its parameters, take the memory."""

    width: int = 2000

    metrics = {"x": fs.Metric("low", rows="none")}  # noqa: RUF012

    @property
    def federation(self) -> Federation:
        return Federation({"a": torch.linspace(0, 1, 12)}, torch.full((12,), 1))

    def init(self, seed: int) -> Pair:
        return Pair(torch.ones(1), torch.ones(1))

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        wide = torch.sin(xi.rows["a"][:, None] * z.x * torch.ones(self.width))
        return xi.mean(torch.cos(wide * z.y).sum(1))

    def evaluate(self, z: Pair) -> dict[str, float]:
        return {"x": float(z.x)}


@pytest.mark.parametrize(
    ("algorithm", "phase"), [(fs.CDMANC(0.01, 0.01, K=2), 0), (fs.CDMAONE(0.01, 0.01, K=12), 1)]
)
def test_memory_is_bounded(algorithm, phase):
    """The second computes the gradients of all its minibatches at once."""
    problem = Wide()
    study = fs.make_study(problem, algorithm, seeds=range(8), batch=20)

    def peak(ask) -> int:
        one = dataclasses.replace(study, executor=ask)
        lanes = begin(one)
        ask.answers(*first_visits(one, lanes, phase))  # the first call measures
        return peak_bytes(lambda: ask.answers(*first_visits(one, lanes, phase)))

    limit = 40 << 20  # a visit of the second needs 14
    free, bounded = peak(fs.Vectorised()), peak(fs.Vectorised(memory=limit))
    assert free > 2 * limit
    assert bounded < 1.25 * limit


def test_a_message_is_repeated_only_for_the_visits_that_are_computed():
    """Many clients of few lanes: each lane's message is held once, and counted in what a visit needs."""

    class Long(Wide):
        def init(self, seed: int) -> Pair:
            return Pair(torch.ones(100_000), torch.ones(1))

        def loss(self, z: Pair, xi: Batch) -> Tensor:
            return (xi.mean(xi.rows["a"]) * z.x).sum() * z.y.sum()

    study = fs.make_study(Long(), fs.CDMANC(0.01, 0.01, K=2), seeds=range(2))
    lanes = begin(study)
    message = lanes.server.z.x[0].nbytes
    assert peak_bytes(lambda: first_visits(study, lanes)) < 4 * message  # and there are 24 visits
    task, extent, visits = first_visits(study, lanes)
    assert study.executor._need(task, extent, lambda: visits) > 2 * message  # what comes and what goes


def first_visits(study, lanes, phase=0):
    """All clients, asked by every lane."""
    everyone = list(range(len(study.problem.federation)))
    calls, extent = calls_of(study, lanes.completed, 0, phase, [everyone for _ in study.seeds])
    down = send(study, lanes.server, phase)
    return study.task(phase), extent, visits_of(study, down, calls, None)


def test_noise_is_shared_by_gradients_on_the_same_minibatch():
    """At one point and minibatch, two gradients are one: a corrected walk starts along u, noise or not."""
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Twice(fs.CDMANC):
        def update(self, client, z):
            def move(w, xi):
                seen.append(
                    (client.grad(w, xi), client.grad(w, xi), client.grad(w, xi._replace(key=xi.key + 1)))
                )
                return w

            client.walk(move, z)
            return super().update(client, z)

    problem = fs.ToyWGAN(clients=6)
    run(Twice(0.01, 0.01, K=2), problem=problem, quorum=fs.Quorum(invite=2), executor=fs.Loop(), rounds=1)
    assert seen
    for first, second, fresh in seen:
        torch.testing.assert_close(first, second, rtol=0.0, atol=0.0)
        assert not torch.equal(first.x, fresh.x)


def test_answer_is_what_a_client_would_compute_from_its_own_rows():
    """The padded, masked full gradient of the shortest client equals its loss differentiated by hand."""
    problem = quadratic()
    study = fs.make_study(
        problem, fs.ParallelSGDA(0.1, 0.1), executor=fs.Vectorised(), quorum=fs.Quorum(invite=12)
    )
    lanes = begin(study)
    up = study.executor.answers(*first_visits(study, lanes)).up["g"]
    (z,) = points(lanes.server)
    data = problem.federation
    for client in range(12):
        at, size = int(data.offsets[client]), int(data.sizes[client])
        linear = data.rows["linear"][at : at + size].mean(0)
        A, B, C = (data.own[name][client] for name in "ABC")
        torch.testing.assert_close(up.x[client], A @ z.x + B @ z.y + linear[:3])
        torch.testing.assert_close(up.y[client], B.mT @ z.x - C @ z.y + linear[3:])


def test_the_loop_gives_every_client_memory_that_begins_alike(monkeypatch):
    """Where a row begins can decide in which order a matrix product adds, and so the last bits of an answer:
    a client among others must be given what it would be given alone, on a device of its own."""
    starts = []

    def watched(task, extent, rows, given):
        starts.append({leaf.data_ptr() % 64 for leaf in tree_leaves(given) if leaf.numel()})
        return answer(task, extent, rows, given)

    monkeypatch.setattr("fedsaddle.engine.executors.loop.answer", watched)
    run(ALGORITHMS["codasca"], problem=quadratic(dim_x=5), executor=fs.Loop(), rounds=2)
    assert len(starts) > 4
    assert all(own == {0} for own in starts)


@pytest.mark.parametrize(
    "problem", [fs.AUC("digits", clients=6, network="mlp"), fs.GAN("digits", clients=6)], ids=["auc", "gan"]
)
def test_a_client_among_others_answers_to_the_bit_what_it_answers_alone(problem):
    """In float32, where the parameters of a network begin at any multiple of four bytes."""
    loop, quorum = fs.Loop(), fs.Quorum(invite=6)
    study = fs.make_study(problem, ALGORITHMS["cdma-nc"], quorum=quorum, batch=2, executor=loop)
    task, extent, visits = first_visits(study, begin(study))
    together = loop.answers(task, extent, visits).up["z"]
    assert together.x.dtype == torch.float32
    for number in range(len(visits)):
        alone = loop.answers(task, extent, visits.part(number, number + 1)).up["z"]
        assert torch.equal(alone.x[0], together.x[number])
        assert torch.equal(alone.y[0], together.y[number])


def test_the_need_of_one_algorithm_is_not_taken_for_anothers(tmp_path):
    """Small minibatches first, then full gradients of 3,000 rows: each study measures its own visits."""
    plan = load(
        "quadratic",
        algorithms=["cdma-nc", "parallel-sgda"],
        seeds="0-7",
        settings=["problem.samples=3000", "problem.clients=16", "memory_gb=0.002"],
    )
    asks = [study.executor for study in plan.studies.values()]
    assert asks[0] is not asks[1]
    assert {ask.memory for ask in asks} == {int(0.002 * 2**30)}


def test_longer_walks_are_given_more_memory():
    problem = quadratic(samples=2)
    needs = []
    for K in (2, 2000):
        study = fs.make_study(problem, fs.CDMANC(0.01, 0.01, K=K), batch=10)
        task, extent, visits = first_visits(study, begin(study))
        needs.append(study.executor._need(task, extent, lambda visits=visits: visits))
    assert needs[1] - needs[0] > 8 * 1998 * 10


def test_the_noise_of_a_full_gradient_is_its_own():
    keys = []

    @dataclasses.dataclass(frozen=True)
    class Listening(fs.ToyWGAN):
        def loss(self, z, xi):
            keys.append(int(xi.key))
            return super().loss(z, xi)

    run(
        fs.CDMAONE(0.01, 0.01, K=3),
        problem=Listening(clients=6),
        quorum=fs.Quorum(invite=6),
        fleet=fs.Everybody(),
        executor=fs.Loop(),
        rounds=1,
        seeds=(0,),
    )
    assert (
        len(set(keys)) == 6 + 6 * 3
    )  # one for each full gradient, one for each minibatch and its two gradients


def test_clients_are_invited_by_size_when_asked():
    invited = {}
    for sampling in ("uniform", "size"):
        plan = load(
            "quadratic",
            algorithms=["cdma-nc"],
            seeds="0",
            settings=[
                "problem.samples=[1, 50]",
                "problem.clients=40",
                f"sampling={sampling}",
                "quorum.invite=8",
            ],
        )
        (study,) = plan.studies.values()
        sizes = study.problem.federation.sizes
        cohorts = [gather(study, round, 0, [0.0])[0].invited for round in range(60)]
        invited[sampling] = float(sum(sizes[cohort].double().mean() for cohort in cohorts)) / 60
    assert invited["size"] > 1.15 * invited["uniform"]


@dataclasses.dataclass(frozen=True)
class Hoarder(fs.CODASCA):
    """Keeps something in both phases of a round, and ends it with a point that is not finite."""

    def hoard(self, client, z: Parameters) -> Reply:
        return Reply({"z": z}, keep=client.kept + z)

    def ruin(self, server, turn, z: Parameters):
        return server._replace(z=z * math.nan)

    def passing(self, server, turn, z: Parameters):
        return server

    def send(self, server):
        return {"z": server.z}

    def phases(self):
        return (
            Phase("one", self.send, self.hoard, self.passing),
            Phase("two", self.send, self.hoard, self.ruin),
        )


def test_a_round_that_fails_takes_back_all_that_clients_kept():
    everyone = {"quorum": fs.Quorum(invite=12), "fleet": fs.Everybody()}
    lanes = run(Hoarder(0.1), rounds=1, **everyone)
    assert lanes.alive == [False, False]
    assert not lanes.memory.x.any()
    assert not lanes.memory.y.any()


class Cramped(fs.Vectorised):
    """A machine that holds three visits and not four."""

    most = 3

    def __init__(self):
        super().__init__()
        self.sizes = []

    def _ask(self, task, extent, visits, stage=None):
        self.sizes.append(len(visits))
        if len(visits) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
        return super()._ask(task, extent, visits, stage)


def test_when_memory_runs_out_smaller_parts_are_computed_and_it_is_said_once():
    ask = Cramped()
    settings = {"rounds": 4, "quorum": QUORUM, "batch": 2, "seeds": (0, 1), "evaluate_every": 2}
    whole = fs.simulate(quadratic(), ALGORITHMS["codasca"], **settings)
    cramped = fs.simulate(quadratic(), ALGORITHMS["codasca"], **settings, executor=ask)
    assert max(ask.sizes) > 3
    tried = [size for size in ask.sizes if size > 3]
    assert len(tried) == 1 or sorted(tried, reverse=True) == tried  # each half of the one before
    assert ask.sizes[-1] <= 3
    for one, other in zip(whole.z, cramped.z, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert [row.metrics.keys() for row in whole.rows] == [row.metrics.keys() for row in cramped.rows]
    (event,) = [event for event in cramped.events if event not in whole.events]
    assert event.what == "memory"
    assert "memory ran out" in event.detail
    assert "memory_gb" in event.detail


def test_a_visit_that_does_not_fit_alone_is_refused():
    ask = Cramped()
    ask.most = 0
    with pytest.raises(fs.BadInput, match="a single visit at a time: lower batch, K"):
        run(ALGORITHMS["cdma-one"], executor=ask)


def test_an_evaluation_without_memory_looks_at_fewer_rows_until_the_study_is_over():
    rows = []

    class Crowded(fs.Vectorised):
        def measure(self, study, z):
            rows.append(federated.CHUNK["cpu"])
            if len(rows) < 3:
                raise torch.OutOfMemoryError("out of memory")
            return super().measure(study, z)

    with pytest.warns(fs.Notice, match="at most 500 rows are looked at together"):
        fs.simulate(quadratic(), ALGORITHMS["cdma-nc"], rounds=2, quorum=QUORUM, executor=Crowded())
    assert rows == [1000, 1000, 500, 500]
    assert federated.CHUNK["cpu"] == 1000


def test_another_failure_is_not_taken_for_a_lack_of_memory():
    class Broken(Cramped):
        def _ask(self, task, extent, visits, stage=None):
            raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        run(ALGORITHMS["cdma-one"], executor=Broken())


def one_in_three(key):
    return key % 3 == 0


class Forgetful(fs.Vectorised):
    """Loses one answer in three."""

    def answers(self, task, extent, visits):
        heard = ~one_in_three(visits.key)
        return super().answers(task, extent, visits) if heard.all() else Lost(heard)


class Silent(fs.Everybody):
    """The clients whose answers the above would lose never answer."""

    def delays(self, seeds, round, phase, clients, now):
        key = draws.key(draws.BATCHES, seeds[:, None], round, phase, clients)
        return torch.where(one_in_three(key), math.inf, 1.0)


@pytest.mark.parametrize("minimum", [1, 4, 6])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_answer_that_is_lost_is_one_that_never_came(name, minimum):
    settings = {"quorum": fs.Quorum(invite=6, minimum=minimum), "seeds": (0, 1, 2), "rounds": 12}
    expected = run(ALGORITHMS[name], fleet=Silent(), **settings)
    lossy = run(ALGORITHMS[name], fleet=fs.Everybody(), executor=Forgetful(), **settings)
    assert sum(expected.completed) < 36 or minimum == 1
    assert_same(lossy, expected, tolerance=1e-12)
    assert lossy.alive == expected.alive == [True] * 3


def test_every_loss_is_an_event_of_its_lane():
    quorum = fs.Quorum(invite=6, minimum=4)
    settings = {"rounds": 12, "seeds": (0, 1), "quorum": quorum, "fleet": fs.Everybody(), "batch": 2}
    outcome = fs.simulate(quadratic(), ALGORITHMS["cdma-one"], **settings, executor=Forgetful())
    lost = [event for event in outcome.events if event.what == "lost"]
    abandoned = [event for event in outcome.events if event.what == "abandoned"]
    told = {(event.lane, event.round, event.detail) for event in lost}
    assert len(told) == len(lost)  # each once
    assert {(event.lane, event.round) for event in abandoned} < {(event.lane, event.round) for event in lost}
    assert any("of 6 answers lost with a worker that died" in event.detail for event in lost)
    assert all("answers, the minimum is 4" in event.detail for event in abandoned)
    # What is lost was not sent up; what is left of an abandoned round came in vain.
    calm = fs.simulate(quadratic(), ALGORITHMS["cdma-one"], **settings)
    assert 0 < outcome.rows[-1].floats_up < calm.rows[-1].floats_up


def test_a_lane_that_loses_too_many_answers_does_not_diverge_by_the_others():
    """Its point is no longer finite after the first phase, but the second loses the round."""

    @dataclasses.dataclass(frozen=True)
    class Fragile(Hoarder):
        def phases(self):
            return tuple(reversed(super().phases()))

    class Second(fs.Vectorised):
        def answers(self, task, extent, visits):
            if task.phase == 1:
                return Lost(torch.zeros(len(visits), dtype=torch.bool))
            return super().answers(task, extent, visits)

    everyone = {"quorum": fs.Quorum(invite=12), "fleet": fs.Everybody()}
    lanes = run(Fragile(0.1), rounds=1, executor=Second(), **everyone)
    assert lanes.alive == [True, True]
    assert lanes.completed == [0, 0]
    assert torch.isfinite(lanes.server.z.x).all()
    assert not lanes.memory.x.any()


# --- rules and problems that a person writes, and that would give wrong results in silence ----------------


@dataclasses.dataclass(frozen=True)
class Overwriting(fs.CDMAONE):
    """Changes in place the thing that `what` names."""

    what: fs.core.Count = 0

    def update(self, client, z: Parameters, u: fs.core.Gradients) -> Reply:
        def move(w, xi):
            g = client.grad(w, xi) + u - client.grad(z, xi)
            if self.what == 1:
                w.x.sub_(self.eta * g.x)
                return w
            return fs.core.step(w, g, self.eta, self.gamma)

        end = client.walk(move, z)
        if self.what == 2:
            u.y.zero_()
        return Reply({"z": end})

    def average(self, server, turn, z: Parameters):
        if self.what == 3:
            server.u.x.mul_(2)
        return server._replace(z=z)


@dataclasses.dataclass(frozen=True)
class Rescaling(fs.Quadratic):
    def loss(self, z, xi):
        rows = next(iter(xi.rows.values()))
        rows *= 0.9
        return super().loss(z, xi)


@pytest.mark.parametrize("ask", [fs.Loop, fs.Vectorised])
@pytest.mark.parametrize(
    ("who", "what"),
    [
        ("phase update of", 1),
        ("phase update of", 2),
        ("the merge of phase update of", 3),
        ("problem Resc", 4),
    ],
)
def test_what_is_given_may_not_be_changed_in_place(ask, who, what):
    problem = Rescaling(clients=12, dim_x=3, dim_y=4) if what == 4 else quadratic()
    rule = Overwriting(0.05, 0.08, K=3, what=what)
    with pytest.raises(fs.BadInput, match=f"{who}.* changes in place what it is given"):
        fs.simulate(problem, rule, rounds=3, executor=ask())
    fs.simulate(quadratic(), dataclasses.replace(rule, what=5), rounds=3, executor=ask())


class Counted(NamedTuple):
    z: Pair
    n: Tensor


@dataclasses.dataclass(frozen=True)
class Counting(fs.CDMANC):
    def init(self, z):
        return Counted(z, torch.zeros((), dtype=torch.float32))

    def average(self, server, turn, z: Parameters):
        return Counted(z, server.n + turn.share)


def test_a_server_stays_of_the_same_types():
    """One that does not could not be resumed."""
    with pytest.raises(fs.BadInput, match=r"n='float32\[\]'.*, not .*n='float64\[\]'"):
        fs.simulate(quadratic(), Counting(0.05, 0.08, K=3), rounds=1)


@dataclasses.dataclass(frozen=True)
class InTheMiddle(fs.CDMANC):
    def phases(self):
        (phase,) = super().phases()
        return (dataclasses.replace(phase, steps=lambda chance: 10 if 0.25 < chance < 0.75 else 1),)


def test_walks_of_any_random_lengths():
    def end(rule, executor=None):
        return fs.simulate(quadratic(), rule, rounds=12, executor=executor).z[0].x

    found = end(InTheMiddle(0.05, 0.08))
    torch.testing.assert_close(found, end(InTheMiddle(0.05, 0.08), fs.Loop()))
    assert not torch.allclose(found, end(fs.CDMANC(0.05, 0.08, K=1)))


@dataclasses.dataclass(frozen=True)
class Hesitant(fs.Quadratic):
    def loss(self, z, xi):
        value = super().loss(z, xi)
        return value if value > 0 else 2 * value


def test_looking_at_values_takes_a_loop():
    problem = Hesitant(clients=12, dim_x=3, dim_y=4)
    fs.simulate(problem, ALGORITHMS["cdma-ada"], rounds=2, executor=fs.Loop())
    with pytest.raises(fs.BadInput, match=r"Hesitant with CDMAADA .* looks at values .*--engine loop"):
        fs.simulate(problem, ALGORITHMS["cdma-ada"], rounds=2)


@dataclasses.dataclass(frozen=True)
class Judged(fs.Quadratic):
    verdict: str = "tensor"

    metrics = {"metric": fs.Metric("low", rows="none")}  # noqa: RUF012

    def evaluate(self, z):
        odd = {
            "tensor": torch.tensor(1.25),
            "flag": True,
            "huge": 1e200,
            "word": "good",
            "many": torch.ones(2),
        }
        return {} if self.verdict == "nothing" else {"metric": odd[self.verdict]}


def test_metrics_are_numbers():
    def ends(verdict):
        return fs.simulate(
            Judged(clients=12, dim_x=3, dim_y=4, verdict=verdict), ALGORITHMS["cdma-nc"], rounds=1
        )

    assert ends("tensor").last("metric") == [1.25]
    assert ends("flag").last("metric") == [1.0]
    with pytest.warns(fs.Notice, match="nothing was learnt: where it starts, a metric is not finite"):
        assert ends("huge").alive == [False]
    for verdict, told in [
        ("word", "a number for each"),
        ("many", "a number for each"),
        ("nothing", "at least one"),
    ]:
        with pytest.raises(fs.BadInput, match=told):
            ends(verdict)


class Square(fs.Quadratic):
    def init(self, seed):
        z = super().init(seed)
        return Pair(z.x[None], z.y)


def test_players_are_flat_vectors():
    with pytest.raises(fs.BadInput, match="x as one flat vector of floats"):
        fs.simulate(Square(clients=12, dim_x=3, dim_y=4), ALGORITHMS["cdma-nc"], rounds=1)


# --- randomness ------------------------------------------------------------------------------------------

DRAWS = {
    "rand": lambda x: torch.rand(()),
    "randn_like": lambda x: torch.randn_like(x).sum(),
    "dropout": lambda x: nn.Dropout(0.5)(x).sum(),
    "normal_": lambda x: torch.zeros(3).normal_().sum(),
    "numpy.random": lambda x: numpy.random.normal(),
    "random": lambda x: random.random(),
}


@dataclasses.dataclass(frozen=True)
class Lucky(fs.Quadratic):
    by: str = "rand"

    def loss(self, z, xi):
        return super().loss(z, xi) + DRAWS[self.by](z.x)


@pytest.mark.parametrize("ask", [fs.Loop, fs.Vectorised])
@pytest.mark.parametrize("by", DRAWS)
def test_random_numbers_come_from_the_key(by, ask):
    problem = Lucky(clients=12, dim_x=3, dim_y=4, by=by)
    with pytest.raises(fs.BadInput, match=rf"Lucky with CDMAADA draws random numbers by {by}, .*xi\.key"):
        fs.simulate(problem, ALGORITHMS["cdma-ada"], rounds=1, executor=ask())


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (lambda: nn.Dropout(0.1), r"Dropout \(1\) draws .*batch\.uniform"),
        (lambda: nn.RReLU(), r"RReLU \(1\) draws"),
        (lambda: nn.TransformerEncoderLayer(4, 2), r"MultiheadAttention \(1\.self_attn\) draws"),
        (lambda: nn.BatchNorm1d(4), r"BatchNorm1d \(1\) keeps running means, .* use GroupNorm"),
        (lambda: nn.InstanceNorm1d(4, track_running_stats=True), r"InstanceNorm1d \(1\) keeps"),
    ],
    ids=["dropout", "rrelu", "transformer", "batch norm", "instance norm"],
)
def test_a_network_has_no_modes(layer, says):
    with pytest.raises(fs.BadInput, match=says):
        Network(lambda: nn.Sequential(nn.Linear(4, 4), layer()))


def test_layers_without_modes_make_a_network():
    Network(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.GroupNorm(2, 4), nn.LayerNorm(4)))
    Network(lambda: nn.TransformerEncoderLayer(4, 2, dropout=0.0))


def test_making_a_network_leaves_the_generator_as_it_was():
    before = torch.random.get_rng_state()
    Network(lambda: nn.Linear(3, 3)).init(0)
    assert torch.equal(torch.random.get_rng_state(), before)


# --- the front door --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seeds": 3}, r"seeds must be a list of whole numbers, such as range\(3\), got 3"),
        ({"seeds": "0-4"}, r"such as range\(5\), got '0-4'"),
        ({"quorum": 8}, r"quorum must be such as Quorum\(invite=8\), got 8"),
        ({"fleet": "latency"}, r"fleet must be such as Latency\(\), got 'latency'"),
        ({"fleet": fs.Dropout}, r"fleet must be made first, Dropout\(\); got the class"),
        ({"algorithm": fs.CDMAADA}, r"made first, CDMAADA\(c_eta=\.\.\., c_gamma=\.\.\.\); got the class"),
        ({"algorithm": "cdma-ada"}, r"algorithm must be such as CDMAONE\(.*got 'cdma-ada'"),
        ({"problem": fs.AUC}, r"problem must be made first, AUC\(\); got the class"),
        ({"merge": fs.Median()}, r"merge must be such as Merge\(Median\(\)"),
        ({"executor": fs.Loop}, r"executor must be made first, Loop\(\)"),
        ({"faults": 0.1}, r"faults must be such as Faults\("),
        ({"checks": 3}, r"checks must be such as Checks\("),
        ({"weights": "size"}, "weights must be one number for each of the 12 clients, got 'size'"),
        ({"names": ["a", "b"]}, "names must be one for each of the 1 settings, got 2"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"progress": "x"}, "progress must be True, False or None, got 'x'"),
        (
            {"algorithm": {"a": fs.CDMANC(0.1, 0.1)}},
            "simulate plays one algorithm, .* fs.run compares several",
        ),
        ({"algorithm": fs.CDMANC(eta=0.1, gamma=1, K=2.5)}, "^K must be a whole number, got 2.5"),
    ],
    ids=str,
)
def test_what_is_no_part_of_a_simulation_is_refused_in_one_line(options, says):
    parts = {"problem": quadratic(), "algorithm": ALGORITHMS["cdma-nc"], "rounds": 1} | options
    with pytest.raises(fs.BadInput, match=says):
        fs.simulate(**parts)


@pytest.mark.parametrize(
    ("memory", "says"), [(0, "at least 1, got 0"), (-5, "got -5"), (2.5, "a whole number")]
)
def test_an_executor_needs_some_memory(memory, says):
    with pytest.raises(fs.BadInput, match=f"^memory must be .*{says}"):
        fs.Vectorised(memory=memory)


def test_simulate_takes_what_make_study_takes():
    known, more = (inspect.signature(function).parameters for function in (fs.make_study, fs.simulate))
    assert known.keys() < more.keys()
    assert all(more[name].default == known[name].default for name in known)
    with pytest.raises(TypeError, match="speed"):
        fs.simulate(quadratic(), ALGORITHMS["cdma-nc"], rounds=1, speed=2)


def test_threads_are_those_that_were_asked_for_and_then_those_of_before():
    before = torch.get_num_threads()
    seen = []
    torch.set_num_threads(3)
    try:
        rest = {"rounds": 1, "watch": lambda stop: seen.append(torch.get_num_threads())}
        fs.simulate(quadratic(), ALGORITHMS["cdma-nc"], **rest)
        fs.simulate(quadratic(), ALGORITHMS["cdma-nc"], **rest, threads=2)
        with pytest.raises(fs.BadInput):
            fs.simulate(Square(clients=12, dim_x=3, dim_y=4), ALGORITHMS["cdma-nc"], rounds=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1, 2, 2]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("file", "progress", "shown"),
    [
        (Terminal, None, "\r"),
        (Terminal, False, ""),
        (io.StringIO, None, ""),
        (io.StringIO, True, "\n"),
    ],
    ids=["terminal", "quiet", "pipe", "asked"],
)
def test_progress_is_told_where_somebody_looks(monkeypatch, file, progress, shown):
    monkeypatch.setattr(sys, "stderr", file())
    fs.simulate(quadratic(), ALGORITHMS["cdma-nc"], rounds=20, seeds=(0, 1), progress=progress)
    text = sys.stderr.getvalue()
    if not shown:
        assert text == ""
        return
    lines = text.strip().split(shown)
    assert len(lines) == (21 if shown == "\r" else 11)
    assert re.fullmatch(
        r"round 20/20  stationarity [\d.e-]+  2/2 alive  [\d.e+]+ rounds/s  \d+ s\s*", lines[-1]
    )


def test_what_has_no_effect_is_warned_of():
    with pytest.warns(UserWarning, match="cohorts = 'invited' has no effect"):
        fs.simulate(quadratic(), ALGORITHMS["cdma-nc"], rounds=1, cohorts="invited")
    with pytest.warns(UserWarning, match="faults: no fault is injected"):
        fs.simulate(quadratic(), ALGORITHMS["cdma-nc"], rounds=1, faults=fs.Faults())


def test_a_metric_that_there_is_not_is_refused_by_name():
    outcome = fs.simulate(quadratic(), ALGORITHMS["cdma-nc"], rounds=1)
    with pytest.raises(fs.BadInput, match="unknown metric 'stationary'; did you mean 'stationarity'"):
        outcome.last("stationary")
