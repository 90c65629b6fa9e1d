"""Over Ray: the same answers, a death costs visits, an error stays an error, and nothing is left running."""

import csv
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import fedsaddle as fs
from fedsaddle.border.build import load
from fedsaddle.core import Pair
from fedsaddle.engine.executors.ray import _check_reachable, _kill
from fedsaddle.engine.executors.ray_worker import Job, Worker, arrays_of, replayed
from fedsaddle.engine.phase import calls_of, send, visits_of
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points
from fedsaddle.problem import Federation
from test_runs import fedsaddle
from zoo import ALGORITHMS, NEWER, quadratic

# Looked for, not imported: the engine does that itself, to keep Ray on this machine.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")

QUORUM = fs.Quorum(invite=6, enough=4, minimum=2, deadline=30.0, grace=10.0)


@pytest.fixture(autouse=True)
def bounded():
    """Nothing here may wait for ever."""

    def ring(number, frame):
        raise TimeoutError("this test takes too long")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(400)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def ray_of_two():
    with fs.Ray(workers=2) as ask:
        yield ask


def run(ask, algorithm, rounds=3, problem=None, **settings):
    settings = {"quorum": QUORUM, "fleet": fs.Latency(dropout=0.2), "batch": 2, "seeds": (0, 1)} | settings
    study = fs.make_study(problem or quadratic(), algorithm, executor=ask, **settings)
    lanes, events = begin(study), []
    for round in range(rounds):
        lanes, new = play(study, lanes, round)
        events += new
    return lanes, events


@pytest.fixture(scope="module")
def problem():
    return quadratic()  # one for all tests: it goes to the actors once


@pytest.mark.parametrize("name", ALGORITHMS)
def test_ray_equals_vectorised(name, ray_of_two, problem):
    one, nothing = run(ray_of_two, ALGORITHMS[name], problem=problem)
    other, _ = run(fs.Vectorised(), ALGORITHMS[name], problem=problem)
    assert not [event for event in nothing if event.what == "lost"]
    for z, w in zip(points(one.server), points(other.server), strict=True):
        torch.testing.assert_close(z, w, rtol=1e-13, atol=1e-13)
    if one.memory is not None:
        torch.testing.assert_close(one.memory, other.memory, rtol=1e-13, atol=1e-13)
    assert (one.completed, one.clock, one.posted) == (other.completed, other.clock, other.posted)


def test_those_who_answered_are_asked_by_ray_too(ray_of_two, problem):
    one, _ = run(ray_of_two, ALGORITHMS["cdma-one"], problem=problem, cohorts="answered")
    other, _ = run(fs.Vectorised(), ALGORITHMS["cdma-one"], problem=problem, cohorts="answered")
    for z, w in zip(points(one.server), points(other.server), strict=True):
        torch.testing.assert_close(z, w, rtol=1e-13, atol=1e-13)
    assert (one.completed, one.clock, one.posted) == (other.completed, other.clock, other.posted)


@pytest.mark.parametrize("name", ["codasca", "fed-norm-sgda", "sagda-minibatch", "drfa"])
def test_unfinished_walks_and_common_chances_are_those_of_vectorised(name, ray_of_two, problem):
    cut = {} if name == "drfa" else {"quorum": fs.Quorum(invite=6, minimum=2, partial_work=12.0)}
    one, other = (
        run(ask, (ALGORITHMS | NEWER)[name], problem=problem, **cut)[0]
        for ask in (ray_of_two, fs.Vectorised())
    )
    torch.testing.assert_close(one.server.z, other.server.z, rtol=1e-13, atol=1e-13)
    assert (one.completed, one.clock, one.posted) == (other.completed, other.clock, other.posted)


@pytest.mark.parametrize("name", ["cdma-ada", "codasca"])
def test_weights_and_strata_are_those_of_vectorised(name, ray_of_two, problem):
    """Inverse propensity weights and a stratified quorum, where every other client is slow."""
    slow = [0, 1] * (len(problem.federation) // 2)
    usual = {
        "problem": problem,
        "rounds": 5,
        "fleet": fs.Latency(slow=tuple(map(float, slow)), slowdown=20.0, dropout=0.2),
    }
    special = {
        "merge": fs.Merge(weights="inverse_propensity"),
        "strata": slow,
        "quorum": dataclasses.replace(QUORUM, stratified=True),
    }
    one, other, plain = (
        run(ask, ALGORITHMS[name], **usual, **own)[0]
        for ask, own in ((ray_of_two, special), (fs.Vectorised(), special), (ray_of_two, {}))
    )
    torch.testing.assert_close(one.server.z, other.server.z, rtol=1e-13, atol=1e-13)
    assert torch.equal(one.attendance.used, other.attendance.used)
    assert (one.completed, one.clock, one.posted) == (other.completed, other.clock, other.posted)
    assert not torch.allclose(one.server.z.x, plain.server.z.x)


def test_bounded_steps_are_those_of_vectorised(ray_of_two, problem):
    bounds = fs.Steady(clip=0.02, warmup=3, reach=0.03)
    one, other, plain = (
        run(ask, ALGORITHMS["cdma-one"], problem=problem, **own)[0].server.z
        for ask, own in (
            (ray_of_two, {"steady": bounds}),
            (fs.Vectorised(), {"steady": bounds}),
            (ray_of_two, {}),
        )
    )
    torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
    assert not torch.allclose(one.x, plain.x)


def test_the_problem_travels_once(ray_of_two, problem):
    run(ray_of_two, ALGORITHMS["cdma-nc"], problem=problem)
    processes, shared = [hand.process for hand in ray_of_two._hands], ray_of_two._shared
    run(ray_of_two, ALGORITHMS["codasca"], problem=problem)
    assert [hand.process for hand in ray_of_two._hands] == processes
    assert ray_of_two._shared is shared


def test_an_actor_that_is_killed_costs_its_visits_and_not_the_run(ray_of_two, problem):
    settings = {"fleet": fs.Everybody(), "quorum": fs.Quorum(invite=6, minimum=2), "batch": 2}
    study = fs.make_study(problem, ALGORITHMS["codasca"], executor=ray_of_two, seeds=(0, 1, 2), **settings)
    lanes, events = begin(study), []
    for round in range(6):
        if round == 2:
            victim = ray_of_two._hands[0].process  # it has the first half of 18 visits: lanes 0 and half of 1
            os.kill(victim, signal.SIGKILL)
        lanes, new = play(study, lanes, round)
        events += new
    ray_of_two._await(all_of_them=True)
    assert victim not in [hand.process for hand in ray_of_two._hands]
    lost = [event for event in events if event.what == "lost"]
    assert [(event.lane, event.round) for event in lost] == [(0, 2), (1, 2)]
    assert "update: 6 of 6 answers lost with a worker that died" in lost[0].detail
    assert "3 of 6" in lost[1].detail
    assert [event[:2] for event in events if event.what == "abandoned"] == [(0, 2)]
    assert lanes.completed == [5, 6, 6]
    assert lanes.alive == [True] * 3
    ups = [sum(count for kind, count in lane.items() if kind.direction == "up") for lane in lanes.posted]
    assert ups == [30, 33, 36]
    # c is still the mean of all c_i.
    torch.testing.assert_close(lanes.server.c.x, lanes.memory.x.mean(1), rtol=1e-10, atol=1e-10)


@dataclasses.dataclass(frozen=True)
class Slow(fs.Quadratic):
    """In an actor it takes a while, and says when it has begun."""

    here: int = 0
    begun: str = ""

    def loss(self, z, xi):
        if os.getpid() != self.here:
            Path(self.begun).touch()
            time.sleep(0.05)
        return super().loss(z, xi)


def test_killed_in_the_middle_of_their_work_both_are_replaced(ray_of_two, tmp_path):
    begun = tmp_path / "begun"
    problem = Slow(clients=12, dim_x=3, dim_y=4, here=os.getpid(), begun=str(begun))
    victims = []

    def kill():
        while not begun.exists():
            time.sleep(0.01)
        victims.extend(hand.process for hand in ray_of_two._hands)
        for victim in victims:
            os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    lanes, events = run(
        ray_of_two, fs.CDMANC(0.01, 0.01, K=20), problem=problem, fleet=fs.Everybody(), rounds=2
    )
    killer.join()
    assert {event.what for event in events} == {"lost"}  # those who were late answer in their place
    assert {event.round for event in events} == {0}
    assert lanes.completed == [2, 2]
    assert len(victims) == 2
    assert not {hand.process for hand in ray_of_two._hands} & set(victims)


@dataclasses.dataclass(frozen=True)
class Wrong(fs.Quadratic):
    here: int = 0

    def loss(self, z, xi):
        if os.getpid() != self.here:
            raise ZeroDivisionError("a mistake in the loss")
        return super().loss(z, xi)


def test_a_mistake_in_the_work_is_no_death(ray_of_two):
    problem = Wrong(clients=12, dim_x=3, dim_y=4, here=os.getpid())
    with pytest.raises(fs.BadInput, match="ZeroDivisionError: a mistake in the loss"):
        run(ray_of_two, fs.CDMANC(0.01, 0.01, K=2), problem=problem)


def test_workers_that_always_die_end_the_run(ray_of_two, monkeypatch):
    monkeypatch.setattr("fedsaddle.engine.executors.ray.DEATHS", 0)

    @dataclasses.dataclass(frozen=True)
    class Deadly(Wrong):
        def loss(self, z, xi):
            if os.getpid() != self.here:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().loss(z, xi)

    problem = Deadly(clients=12, dim_x=3, dim_y=4, here=os.getpid())
    with pytest.raises(ChildProcessError, match="die again and again"):
        run(ray_of_two, fs.CDMANC(0.01, 0.01, K=2), problem=problem, rounds=100)


def listening(session: int) -> set[str]:
    """The addresses, in hexadecimal, on which the processes of a session listen."""
    sockets = set()
    for process in of_session(session):
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                sockets.add(os.readlink(link))
            except OSError:
                continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in sockets:
                found.add(cells[1].split(":")[0])
    return found


def of_session(session: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, *numbers = (path / "stat").read_text().rpartition(")")[2].split()
            if int(numbers[2]) == session and state != "Z":
                found.append(int(path.name))
        except OSError:
            continue
    return found


def test_a_local_cluster_listens_to_this_machine_alone(ray_of_two, problem):
    run(ray_of_two, ALGORITHMS["cdma-nc"], rounds=1, problem=problem)
    addresses = listening(os.getsid(0))
    assert addresses
    # 127.0.0.1, ::1, and 127.0.0.1 written as an address of version 6
    assert addresses <= {"0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F"}
    folder = Path(ray_of_two._end.peek()[2][2])
    assert folder.stat().st_mode & 0o077 == 0  # nobody else gets to Ray's files


ARGUMENTS = [
    *["run", "quadratic", "--algorithm=codasca,cdma-ada", "--seeds=0-1", "--set=evaluate_every=2"],
    *["--set=K=2", "--set=problem.clients=20", "--set=problem.dim_x=3", "--set=problem.dim_y=3"],
]


def test_the_command_joins_a_cluster_and_leaves_it_running(ray_of_two, problem, tmp_path, monkeypatch):
    import ray

    run(ray_of_two, ALGORITHMS["cdma-nc"], rounds=1, problem=problem)
    address = ray.get_runtime_context().gcs_address
    _kill(ray_of_two._hands)  # which makes room
    words = [*ARGUMENTS, "--rounds=6", "--quiet"]
    joined = [*words, "--engine=ray", f"--address={address}", "--set=workers=2", f"--out={tmp_path / 'ray'}"]
    command = [sys.executable, "-m", "fedsaddle", *joined]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(
        "fedsaddle.cli.commands.until_asked", lambda: lambda: False
    )  # signals stay as they are
    assert fedsaddle(*words, f"--out={tmp_path / 'plain'}", monkeypatch=monkeypatch) == 0
    one, other = (read(tmp_path / name / "rounds.csv") for name in ("ray", "plain"))
    assert [list(row)[:5] for row in one] == [list(row)[:5] for row in other]
    for row, same in zip(one, other, strict=True):
        assert float(row["stationarity"]) == pytest.approx(float(same["stationarity"]), rel=1e-9)
    lanes, _ = run(ray_of_two, ALGORITHMS["cdma-nc"], problem=problem)  # the cluster is still there
    assert max(lanes.completed) > 1


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_stopped_by_the_keyboard_it_can_be_resumed_and_leaves_nothing_running(tmp_path):
    words = [*ARGUMENTS, "--rounds=100000", "--engine=ray", "--set=workers=1", f"--out={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "fedsaddle", *words]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    table = tmp_path / "run" / "rounds.csv"
    while not table.exists() or "codasca,0,2," not in table.read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    assert len(of_session(process.pid)) > 3
    os.killpg(process.pid, signal.SIGINT)  # everything that the terminal reaches, as Ctrl-C does
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "--resume" in err
    assert "Traceback" not in err
    until = time.monotonic() + 20
    while of_session(process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert of_session(process.pid) == []


def test_a_cluster_that_dies_ends_the_run_with_a_line(tmp_path):
    """Ray then ends this process, and neither Python nor we are asked."""
    words = [*ARGUMENTS, "--rounds=100000", "--engine=ray", "--set=workers=1", f"--out={tmp_path / 'run'}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsaddle", *words], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    table = tmp_path / "run" / "rounds.csv"
    while not table.exists() or "codasca,0,2," not in table.read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    (raylet,) = (pid for pid in of_session(process.pid) if name_of(pid) == "raylet")
    os.kill(raylet, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode not in (0, 130)
    assert "as it does when its Ray cluster dies; the run goes on from its checkpoint with --resume" in err
    assert "Traceback" not in err


def name_of(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


# --- without a cluster -----------------------------------------------------------------------------------


def test_a_worker_answers_and_tells_when_its_memory_runs_out(monkeypatch):
    problem, ask = quadratic(), fs.Vectorised._ask
    study = fs.make_study(problem, ALGORITHMS["codasca"], seeds=(0, 1), batch=2)
    lanes = begin(study)
    calls, extent = calls_of(study, lanes.completed, 0, 0, [[0, 3, 5], [1, 2]])
    kept = Pair(lanes.memory.x[calls.lane, calls.client], lanes.memory.y[calls.lane, calls.client])
    visits = visits_of(study, send(study, lanes.server, 0), calls, kept)
    expected = study.executor.answers(study.task(0), extent, visits)

    def cramped(self, task, extent, visits, stage=None):
        if len(visits) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return ask(self, task, extent, visits, stage)

    monkeypatch.setattr(fs.Vectorised, "_ask", cramped)
    threads = torch.get_num_threads()
    worker = Worker()
    assert worker.begin(problem, "cpu", None, False, False) == os.getpid()
    torch.set_num_threads(threads)
    job = Job(study.algorithm, 0, 2, study.steady, False, extent)
    answers, news = worker.ask(job, arrays_of(visits.by_lane), arrays_of(visits.rest))
    assert "memory ran out" in news
    for name in expected.up:
        torch.testing.assert_close(torch.tensor(answers.up[name].x), expected.up[name].x)
    torch.testing.assert_close(torch.tensor(answers.keep.y), expected.keep.y)
    assert worker.ask(job, arrays_of(visits.by_lane), arrays_of(visits.rest))[1] is None  # once

    # As on a GPU, with the visits padded, but without a recording.
    padded = replayed(
        fs.Vectorised(2), lambda shape, work, inputs: work.whole(inputs), study.task(0), job, visits
    )
    torch.testing.assert_close(padded, expected, rtol=1e-13, atol=1e-13)


def test_copies_on_other_devices_do_not_travel():
    import pickle

    one = Federation({"a": torch.arange(3)}, torch.tensor([1, 2]))
    one._copies[torch.device("cuda")] = one
    other = pickle.loads(pickle.dumps(one))
    assert other._copies == {}
    assert torch.equal(other.offsets, one.offsets)


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(fs.BadInput, match=r"pip install 'ray>="):
        load("quadratic", engine="ray")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"engine": "ray", "settings": ["workers=0"]}, "workers must be at least 1"),
        ({"engine": "ray", "address": "somewhere"}, "address must be auto or host:port"),
        ({"engine": "ray", "address": "ray://127.0.0.1:10001"}, "address must be auto or host:port"),
        ({"address": "auto"}, "add --engine ray"),
    ],
)
def test_settings_that_cannot_be(settings, says):
    with pytest.raises(fs.BadInput, match=says):
        load("quadratic", **settings)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto"])
def test_a_cluster_that_is_not_there(address, monkeypatch):
    """Ray itself would try for minutes."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(fs.BadInput, match=r"no Ray cluster answers at 127.0.0.1:1 .*'ray start --head'"):
        _check_reachable(address)
