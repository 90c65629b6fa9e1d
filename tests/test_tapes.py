"""A tape replays what was recorded to the last bit, and what depends on values is not recorded."""

import dataclasses
import math
import random
import threading

import pytest
import torch

import fedsaddle as fs
from fedsaddle.engine.compile import notices, passes, referred, tapes, trace
from fedsaddle.engine.compile import record as recording
from fedsaddle.engine.compile.work import Walkable, Work
from fedsaddle.engine.course import course
from fedsaddle.engine.executors import vectorised
from fedsaddle.engine.round import play
from fedsaddle.engine.study import PhaseInputs, begin, points
from fedsaddle.problems import AUC
from programs import some_program
from zoo import ALGORITHMS, Pictures, quadratic

STEPS = {
    name: [field.name for field in dataclasses.fields(rule) if field.name.startswith(("eta", "c_eta"))]
    for name, rule in ALGORITHMS.items()
}  # what makes a lane diverge
QUORUM = fs.Quorum(invite=6, enough=4, minimum=2, deadline=30.0, grace=10.0)


def run(problem, algorithm, rounds=3, **settings):
    study = fs.make_study(
        problem, algorithm, seeds=(0, 1), quorum=QUORUM, fleet=fs.Latency(dropout=0.4), batch=2, **settings
    )
    lanes = begin(study)
    for round in range(rounds):
        lanes, _ = play(study, lanes, round)
    return study, lanes


@pytest.fixture
def at_once(monkeypatch):
    """Record a computation when it is first needed."""
    monkeypatch.setattr(tapes, "PATIENCE", 0)


def assert_taped(study):
    found = study.executor.recorder(study)._tapes.values()
    assert found
    assert all(isinstance(tape, tapes.Tape | tapes.WalkTape) for tape in found)


def assert_same(one, other, tolerance=0.0):
    for z, w in zip(points(one.server), points(other.server), strict=True):
        torch.testing.assert_close(z, w, rtol=tolerance, atol=tolerance)
    assert one.completed == other.completed
    if one.memory is not None:
        torch.testing.assert_close(one.memory, other.memory, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_replay_gives_the_bits_of_the_computation(name, monkeypatch):
    _, plain = run(quadratic(), ALGORITHMS[name])
    monkeypatch.setattr(tapes, "PATIENCE", 0)
    study, taped = run(quadratic(), ALGORITHMS[name])
    assert_taped(study)
    assert_same(taped, plain)


@pytest.mark.parametrize("pieces", [1, 1 << 14])
@pytest.mark.parametrize("name", ["cdma-ada", "codasca", "catalyst-scaffold-s"])
def test_the_number_of_threads_does_not_move_a_bit(name, pieces, monkeypatch, at_once):
    monkeypatch.setattr(vectorised, "SMALL", 0)
    monkeypatch.setattr(vectorised, "PIECE", pieces)  # one visit at a time, and two
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(tapes, "cores", lambda cores=cores: cores * torch.get_num_threads())
        study, lanes = run(quadratic(), ALGORITHMS[name])
        assert study.executor.beside(study.device) == cores
        found.append(lanes)
    assert_same(*found)
    assert_same(found[0], run(quadratic(), ALGORITHMS[name], executor=fs.Loop())[1], 1e-10)


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_a_network_with_convolutions(small, monkeypatch, at_once):
    """As LeNet, in float64, where rounding does not choose another maximum."""
    problem, rule = Pictures(), ALGORITHMS["cdma-ada"]
    monkeypatch.setattr(vectorised, "SMALL", small)
    study, taped = run(problem, rule)
    assert_taped(study)
    assert_same(taped, run(problem, rule, executor=fs.Loop())[1], 1e-9)


def record(work, *inputs):
    return recording.record(lambda inputs: work(*inputs), inputs)


def refused(work, *inputs):
    """Why it cannot be recorded."""
    with pytest.raises(trace.Unrecordable) as why:
        record(work, *inputs)
    return str(why.value)


X = torch.tensor([1.0, -2.0, 3.0])


def test_what_depends_on_values_is_not_recorded():
    record(lambda x: x * 2, X)
    assert "depends on values" in refused(lambda x: x[x > 0].sum(), X)
    assert "depends on values" in refused(lambda x: x * 2 if x.sum() > 0 else x, X)
    fixed = torch.tensor([True, False, True])
    record(lambda x: x * (2 if fixed.any() else 1), X)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: torch.fft.fft(x).conj().real,
        lambda x: torch.view_as_complex(torch.stack([x, x], -1)).conj().imag * 2,
        lambda x: (x.half() * 0.1).float(),
        lambda x: x + torch.ones(3, dtype=torch.bfloat16),
        lambda x: x + (torch.ones(3, dtype=torch.uint8) + 300),
        lambda x: x.clone()[None].transpose_(0, 1),
        lambda x: torch._foreach_add([x], [x])[0] + torch._foreach_add_([x.clone()], [x])[0],
        lambda x: x + torch.eye(3).to_sparse().to_dense(),
        lambda x: x * 2 if torch.zeros(3).index_put_((torch.tensor([0]),), x.sum()[None]).sum() > 9 else x,
    ],
)
def test_what_is_odd_is_computed_all_the_same(work):
    """It is recorded rightly or not at all, and never stops a run."""
    try:
        tape = record(work, X)
    except trace.Unrecordable:
        return
    for x in (X, -X, 7 * X):
        assert torch.equal(tape([x]), work(x))


def test_numbers_that_print_alike_stay_apart():
    def work(x):
        return x * 0.0001 + x * 0.000149 - x * 0.00012

    assert torch.equal(record(work, X)([X]), work(X))


def test_what_is_written_by_out_is_seen():
    def work(x):
        buffer = torch.empty(3)
        torch.mul(x, 2, out=buffer)
        return buffer + 1

    assert torch.equal(record(work, X)([X]), work(X))


def test_what_is_computed_elsewhere_is_not_replayed(at_once):
    """NumPy's work is not seen: its result would be the same for ever."""
    replays = tapes.Tapes()

    def work(inputs):
        return inputs[0] + torch.from_numpy(inputs[0].numpy() * 2)

    it = Work("it", work)
    assert torch.equal(replays("it", it, [X]), work([X]))
    with pytest.warns(fs.Notice, match="it gives other values .* outside PyTorch"):
        assert torch.equal(replays("it", it, [X + 1]), work([X + 1]))
    assert torch.equal(replays("it", it, [X + 2]), work([X + 2]))


def test_what_changes_after_it_was_recorded_is_noticed(at_once, monkeypatch):
    monkeypatch.setattr(notices, "RECHECK", 4)
    replays, factor = tapes.Tapes(), [2.0]
    it = Work("it", lambda inputs: inputs[0] * factor[0])
    for _ in range(3):
        replays("it", it, [X])
    factor[0] = 3.0
    with pytest.warns(fs.Notice, match="change a value"):
        found = [replays("it", it, [X + number]) for number in range(6)]
    assert torch.equal(found[-1], 3 * (X + 5))


TABLE = {"factor": 2.0}


def times(x, y, batch):
    return y[0] * (x(batch["input"]).squeeze(-1) - batch["label"]).square() * TABLE["factor"]


def own_task():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(60, 4, generator=generator)
    return fs.task(
        x=lambda: torch.nn.Linear(4, 1),
        y=fs.Box(1, 0.5, 1.0),
        loss=times,
        data=fs.clients({"input": inputs, "label": inputs.sum(1)}, count=6),
    )


@pytest.mark.parametrize("rule", [fs.CDMANC(0.001, 0.001, K=5), fs.CDMAONE(0.001, 0.001, K=5)], ids=str)
def test_a_number_that_changes_between_two_comparisons_is_noticed_soon(rule, monkeypatch):
    """After 80 rounds, when a replay was compared and the next will be long after; in every phase."""

    def play(executor):
        monkeypatch.setitem(TABLE, "factor", 2.0)

        def watch(stop):
            if stop.round == 80:
                TABLE["factor"] = 3.0

        quorum, out = fs.Quorum(invite=4), {"evaluate_every": 100, "progress": False, "watch": watch}
        found = fs.simulate(own_task(), rule, rounds=120, quorum=quorum, executor=executor, **out)
        return found.model(seed=0).weight

    with pytest.warns(fs.Notice, match="gives other values when it is replayed"):
        replayed = play(fs.Vectorised())
    plain = play(fs.Vectorised(compiled=False))
    monkeypatch.setattr(notices, "LOOK", 10**9)
    late = play(fs.Vectorised())
    assert (replayed - plain).norm() < 0.2 * (late - plain).norm()


def test_what_a_problem_refers_to_is_seen_and_what_is_ours_is_not():
    weights = [1.0, [2.0]]

    class Mine:
        scale = 1.0

        def __init__(self):
            self.own, self.seen = 1.0, torch.zeros(2)

        def loss(self, z, xi, factor=weights):
            return times

    def changed(problem, change):
        look = referred.Referred(problem)
        assert not look.changed()
        change(problem)
        return look.changed() and not look.changed()

    assert changed(Mine(), lambda problem: weights[1].append(3.0))
    assert changed(Mine(), lambda problem: setattr(problem, "own", 2.0))
    assert changed(Mine(), lambda problem: problem.seen.add_(1))
    assert changed(own_task(), lambda problem: TABLE.update(factor=math.nan))
    TABLE["factor"] = 2.0
    assert not referred.Referred(fs.Quadratic(clients=3))._functions


class Odd:
    """What a person's objects may do when somebody looks at them."""

    @property
    def __dict__(self):
        raise RuntimeError

    @property
    def __module__(self):
        raise OSError


class OddList(list):
    def __len__(self):
        raise OSError


HUGE, ODD, COUNT = 3**20000, [Odd(), OddList([1])], [0]


def test_what_cannot_be_looked_at_ends_no_run_and_what_counts_is_no_change():
    def loss(x, y, batch):
        return (HUGE, ODD, COUNT, TABLE) and times(x, y, batch)

    look = referred.Referred(dataclasses.replace(own_task(), rule=loss))
    assert not look.changed()
    for number in range(20):
        COUNT[0] += 1
        assert look.changed() == (number < referred.MOST_CHANGES)
    TABLE["factor"] = 5.0
    assert look.changed()  # another value is followed all the same
    TABLE["factor"] = 2.0


def test_what_is_not_recorded_is_said_once(at_once):
    replays = tapes.Tapes()
    it = Work("it", lambda inputs: inputs[0] * (2 if inputs[0].sum() > 0 else 1))
    with pytest.warns(fs.Notice, match="it cannot be recorded .* depends on values"):
        replays("it", it, [X])
    for number in range(4):
        replays(("it", number), it, [X])  # another warning would be an error


def test_a_tape_may_hold_what_is_no_number(at_once):
    replays = tapes.Tapes()
    for number in range(3):
        replays("it", Work("it", lambda inputs: inputs[0] / inputs[0]), [X * 0 + number])
    assert isinstance(replays._tapes["it"], tapes.Tape)


def test_what_is_too_long_is_not_recorded(monkeypatch):
    monkeypatch.setattr(trace, "MOST_OPERATIONS", 3)
    record(lambda x: x + 1 + 1 + 1, X)
    assert "more than 3 operations" in refused(lambda x: x + 1 + 1 + 1 + 1, X)


def written(x):
    found = torch.zeros(3)
    view = found[1:]
    view += x[1:]
    again = torch.zeros(3)
    again[:1] = 7
    return found, again, found[None].squeeze_(0) * 2


@pytest.mark.parametrize(
    "work",
    [
        written,
        lambda x: (x, x),
        lambda x: torch.ones(2),
        lambda x: (1 - x, 2 / x, x.long() // 2, 7 // x.long(), (x > 0) * 2, (x > 0) * 2.5, x.long() * 0.5),
        lambda x: torch.where(x > 0, 1.0, x.double()),
        lambda x: (torch.stack([x, x + 1, x + 1]), x.split([1, 2]), x[[2, 0]], x.sum(()), x.to(torch.int32)),
        lambda x: torch.func.grad(lambda w: (torch.cat([w[:1], w[1:]]) ** 2).sum())(x),
    ],
)
def test_a_replay_computes_anew(work):
    tape = record(work, X)
    for other in (X, torch.tensor([-4.0, 5.0, 1.5]), X):
        torch.testing.assert_close(tape((other,)), work(other), rtol=0.0, atol=0.0, check_dtype=True)


@pytest.mark.parametrize("seed", range(300))
def test_random_programs_keep_their_bits(seed):
    luck = torch.Generator().manual_seed(seed)
    work = some_program(seed)
    tape = record(work, torch.randn(4, 2, 3, generator=luck))
    for _ in range(2):
        x = torch.randn(4, 2, 3, generator=luck)
        torch.testing.assert_close(tape((x,)), work(x), rtol=0.0, atol=0.0, equal_nan=True)


def test_an_input_may_come_twice():
    tape = recording.record(lambda pair: pair[0] - 2 * pair[1], (X, X))
    assert torch.equal(tape((X, X + 1)), X - 2 * (X + 1))


def test_a_tape_is_short():
    """Nothing is done twice, or without need, or that is known beforehand."""
    tracer = trace.Tracer([X])
    with tracer:
        known = torch.arange(3) * 2
        unused = (X * 5).exp()  # noqa: F841
        result = (X * 3 + known) + (X * 3 + known)
    program = passes.shortened(tracer.program([[result]]))
    names = [operation.target._schema.name for operation in program.operations]
    assert names == ["aten::mul", "aten::add", "aten::add"]
    assert len(program.constants) == 1


def test_a_gradient_needs_no_loss():
    """Nor are minibatches scaled one by one."""
    rows = torch.arange(24, dtype=torch.uint8).reshape(4, 6)

    def work(x):
        own = rows + x[0].to(torch.uint8)
        for number in range(4):
            mean = (own[number].float() - 2).mean()
            x = x - torch.func.grad(lambda w, mean=mean: (w * mean) @ w)(x)
        return x

    tracer = trace.Tracer([X])
    with torch.no_grad(), tracer:
        result = work(X)
    operations = passes.shortened(tracer.program([[result]])).operations
    names = [operation.target._schema.name.removeprefix("aten::") for operation in operations]
    assert names.count("_to_copy") == 2  # of x[0], and of all rows at once
    assert not {"dot", "mv", "ones_like"} & set(names)


def test_shipped_networks_are_recorded(at_once):
    problem = AUC(clients=20, network="mlp")
    study, _ = run(problem, dataclasses.replace(ALGORITHMS["cdma-ada"], K=2), rounds=3)
    assert_taped(study)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("seed", range(2))
def test_answers_may_shrink_and_grow(name, seed, monkeypatch, at_once):
    """Visits are played as one tape or in pieces, as many as there are: never by the wrong one.

    Lanes drop out and diverge, and cohorts are of any size.
    """
    luck = random.Random(f"{name}{seed}")
    monkeypatch.setattr(vectorised, "SMALL", luck.choice([0, 1 << 30]))
    monkeypatch.setattr(vectorised, "PIECE", luck.choice([1, 1 << 11, 1 << 13]))
    fleet, quorum = fs.Dropout(luck.choice([0.2, 0.8])), fs.Quorum(invite=10)
    wild = dataclasses.replace(ALGORITHMS[name], **{luck.choice(STEPS[name]): 1e200})
    found = []
    for ask in (fs.Vectorised(), fs.Loop()):
        study = fs.make_study(
            quadratic(),
            [ALGORITHMS[name], wild],
            seeds=(0, 1),
            quorum=quorum,
            fleet=fleet,
            batch=2,
            executor=ask,
        )
        stops = list(course(study, 9, 3))
        found.append((stops[-1].lanes, [event.what for stop in stops for event in stop.events]))
    (taped, told), (plain, expected) = found
    assert_same(taped, plain, 1e-10)
    assert told == expected
    assert "diverged" in told


# --- walks, step by step -----------------------------------------------------------------------------------


def test_a_walk_of_any_length_has_one_tape(at_once):
    """Catalyst's are of random length."""
    study, lanes = run(quadratic(), ALGORITHMS["catalyst-scaffold-s"], rounds=12)
    kinds = [type(tape).__name__ for tape in study.executor.recorder(study)._tapes.values()]
    assert kinds.count("WalkTape") <= 2  # one, and one more where the largest client is smaller
    assert_same(
        lanes, run(quadratic(), ALGORITHMS["catalyst-scaffold-s"], rounds=12, executor=fs.Loop())[1], 1e-10
    )


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_a_ragged_walk_is_replayed_with_the_bits_of_the_computation(small, monkeypatch):
    """Catalyst's: in one replay every lane has a number of steps of its own, and is held when it is there."""
    monkeypatch.setattr(vectorised, "SMALL", small)
    rule, replays, ragged = ALGORITHMS["catalyst-scaffold-s"], [], []
    monkeypatch.setattr(tapes, "PATIENCE", 1 << 30)
    _, plain = run(quadratic(), rule, rounds=12)
    monkeypatch.setattr(tapes, "PATIENCE", 0)
    replay = recording.WalkTape.__call__

    def watched(tape, inputs, steps):
        lengths = inputs.calls.steps if isinstance(inputs, PhaseInputs) else inputs[0]["planned"]
        assert max(lengths) == steps
        replays.append(steps)
        ragged.append(bool(min(lengths) < steps))
        return replay(tape, inputs, steps)

    monkeypatch.setattr(recording.WalkTape, "__call__", watched)
    study, taped = run(quadratic(), rule, rounds=12)
    held = study.executor.recorder(study)._tapes.values()
    assert None not in held  # none was found to differ, or could not be recorded
    assert len(replays) >= 6
    assert len(set(replays)) >= 3
    assert sum(ragged) >= 4
    assert_same(taped, plain)


@pytest.mark.parametrize(
    ("name", "small"),
    [
        *((name, 0) for name in sorted(set(ALGORITHMS) - {"parallel-sgda"})),
        *((name, 1 << 30) for name in ("cdma-ada", "codasca", "catalyst-scaffold-s")),
    ],
)
def test_a_long_walk_is_recorded_step_by_step(name, small, monkeypatch):
    """With the bits of the computation, as all of it and in pieces; and no recording grows with K."""
    monkeypatch.setattr(vectorised, "SMALL", small)
    lengths = set()
    for K in (20, 40):
        rule = dataclasses.replace(ALGORITHMS[name], K=K)
        with monkeypatch.context() as patch:
            patch.setattr(tapes, "PATIENCE", 0)
            count, player = [0], recording.player
            patch.setattr(
                recording,
                "player",
                lambda inputs, operations, wanted, count=count, player=player: (
                    count.__setitem__(0, max(count[0], len(operations))) or player(inputs, operations, wanted)
                ),
            )
            study, taped = run(quadratic(), rule)
        assert "WalkTape" in {type(tape).__name__ for tape in study.executor.recorder(study)._tapes.values()}
        lengths.add(count[0])
        if K == 20:
            assert_same(taped, run(quadratic(), rule)[1])
            assert_same(taped, run(quadratic(), rule, executor=fs.Loop())[1], 1e-9)
    assert max(lengths) < 400
    assert len(lengths) == 1


def test_what_a_step_does_not_change_is_computed_once():
    """Loop-invariant code motion."""

    def slow(inputs):
        return (inputs[0] * 3).exp()

    walk = Walkable(
        lambda inputs: [inputs[0] + slow(inputs)],
        lambda inputs, state, at: [state[0] * 0.5 + slow(inputs) * at],
        lambda inputs, state: (state[0] - inputs[0], slow(inputs)),
    )

    def plain(x, steps):
        z = x + slow([x])
        for number in range(1, steps):
            z = z * 0.5 + slow([x]) * number
        return z - x, slow([x])

    tape = recording.record_walk(walk, [X])
    for x, steps in ((X, 1), (X / 2, 2), (-X, 7)):
        torch.testing.assert_close(tape([x], steps), plain(x, steps), rtol=0.0, atol=0.0)
    assert "exp" not in str(tape.next.player.function.graph)
    assert "exp" in str(tape.first.player.function.graph)


def test_memory_that_a_step_writes_to_is_its_own():
    def step(inputs, state, at):
        buffer = torch.zeros(3)
        buffer[1:] += inputs[0][1:]
        buffer[:1] = state[0][:1]
        return [state[0] + buffer]

    walk = Walkable(lambda inputs: [inputs[0] * 2], step, lambda inputs, state: state[0])
    tape = recording.record_walk(walk, [X])
    for steps in (1, 2, 5):
        z = X * 2
        for number in range(1, steps):
            (z,) = step([X], [z], number)
        assert torch.equal(tape([X], steps), z)


@pytest.mark.parametrize("steps", [3, 20])
def test_a_phase_that_walks_twice_is_recorded_as_a_whole(steps, at_once):
    class Twice(fs.CDMANC):
        def update(self, client, z):
            w = client.walk(lambda w, xi: fs.core.step(w, client.grad(w, xi), self.eta, self.gamma), z)
            w = client.walk(lambda w, xi: fs.core.step(w, client.grad(w, xi), self.eta, self.gamma), w)
            return fs.core.Reply({"z": w})

    study, lanes = run(quadratic(), Twice(0.01, 0.01, K=steps))
    held = study.executor.recorder(study)._tapes.values()
    assert {type(tape).__name__ for tape in held} == {"Tape"}
    assert_same(lanes, run(quadratic(), Twice(0.01, 0.01, K=steps), executor=fs.Loop())[1], 1e-10)


def test_a_study_gives_back_what_it_has_opened(at_once, monkeypatch):
    monkeypatch.setattr(vectorised, "SMALL", 0)
    threads = threading.active_count()
    study, lanes = run(quadratic(), ALGORITHMS["cdma-ada"])
    assert study.executor.recorder(study)._tapes
    study.close()
    assert not study.executor.recorder(study)._tapes
    assert threading.active_count() == threads
    play(study, lanes, 3)  # and can be used again


def test_another_study_does_not_play_this_ones_tapes(at_once):
    """Hyperparameters are in a recording."""
    study, lanes = run(quadratic(), ALGORITHMS["cdma-nc"])
    other = dataclasses.replace(study, hyper={name: 2 * value for name, value in study.hyper.items()})
    for one in (study, other):
        plain = dataclasses.replace(one, executor=fs.Vectorised(compiled=False))
        ends = [play(same, lanes, 3)[0] for same in (one, plain)]
        assert_same(*ends, 1e-12)
