"""Deployment over Flower: the parts by themselves, then real processes on loopback, judged by replay."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import count, cycle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from fedsaddle import cli
from fedsaddle.app.replay import replay_run
from fedsaddle.border import files
from fedsaddle.border.build import load
from fedsaddle.core import Pair
from fedsaddle.errors import BadInput
from fedsaddle.fleet import Everybody
from fedsaddle.flower import client, deploy, keys, roll, server, waiting, wire
from fedsaddle.flower.client import Memory, Site, client_app, learn, visit
from fedsaddle.flower.post import ANSWER, FETCH, HERE, LEAVE
from fedsaddle.flower.signing import Signature
from fedsaddle.flower.supervise import Processes
from fedsaddle.problem import Federation
from fedsaddle.runs import RunFolder, execute
from started import Started
from test_plugins import RULES

ROOT = Path(__file__).parent
FEDSADDLE = [sys.executable, "-m", "fedsaddle"]

NINE = """
name = "nine"
rounds = 3
evaluate_every = 1
seeds = "3"
batch = 2
K = 3
[problem]
name = "quadratic"
clients = 4
dim_x = 3
dim_y = 4
samples = [2, 7]
[fleet]
model = "everybody"
[quorum]
invite = 3
deadline = 60.0
[algorithms]
cdma-nc = { eta = 0.05, gamma = 0.08 }
cdma-one = { eta = 0.05, gamma = 0.08 }
cdma-ada = { c_eta = 0.05, c_gamma = 0.08, c_alpha = 0.7, rho = 0.3 }
parallel-sgda = { eta = 0.2, gamma = 0.3 }
local-sgda-plus = { eta = 0.05, gamma = 0.08, s = 2 }
extra-step = { eta_l = 0.05 }
coda-plus = { eta_l = 0.05, theta = 0.3, K_0 = 6 }
codasca = { eta_l = 0.05, eta_g = 1.1, theta = 0.3, K_0 = 6 }
catalyst-scaffold-s = { eta_l = 0.05, eta_g = 0.06, theta = 0.3, K_0 = 6 }
"""


TWO_PHASES = ["cdma-one", "cdma-ada", "catalyst-scaffold-s"]


class Quiet:
    def begin(self, study, start): ...
    def stop(self, study, stop): ...


@pytest.fixture
def nine(tmp_path):
    path = tmp_path / "nine.toml"
    path.write_text(NINE)
    return path


def plan_of(path, *settings, **options):
    return load(str(path), engine="loop", history=True, settings=settings, **options)


def ends(folder):
    """The final parameters of a run, by algorithm, seed and player."""
    return {
        (path.stem, name): value
        for path in sorted((folder / "final").glob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def assert_same_end(one, other):
    mine, theirs = ends(one), ends(other)
    assert mine.keys() == theirs.keys()
    assert mine
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


def assert_replays(folder):
    found = list(replay_run(folder))
    assert found
    for one in found:
        assert one.agrees, one
        assert one.exact, one


def told(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


# --- the wire ---------------------------------------------------------------------------------------------


def message(**changed):
    return {"z": Pair(torch.tensor([1.0, 2.0]), torch.tensor([3.0], dtype=torch.float32))} | changed


def test_what_is_packed_is_unpacked_bit_for_bit():
    odd = torch.tensor([0.1, -0.0, 1e-40, 3.4e38], dtype=torch.float32)
    sent = {"z": Pair(odd, torch.empty(0)), "u": Pair(odd.double() / 3, torch.tensor([1 / 3]))}
    back = wire.unpack(wire.pack({"round": 1}, sent), sent)
    for name, pair in sent.items():
        for mine, theirs in zip(pair, back[name], strict=True):
            assert mine.dtype == theirs.dtype
            assert mine.numpy().tobytes() == theirs.numpy().tobytes()


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"g": message()["z"]},
        message(g=message()["z"]),
        {"z": Pair(torch.ones(3), torch.ones(1))},
        {"z": Pair(torch.ones(2, dtype=torch.float64), torch.ones(1))},
        {"z": Pair(torch.ones(2), torch.ones(0))},
    ],
)
def test_other_names_types_and_sizes_are_refused(sent):
    with pytest.raises(wire.Refused, match="expected"):
        wire.unpack(wire.pack({}, sent), message())


@pytest.mark.parametrize("floats", [{"z.x": b"1234"}, {"z.x": 5}, {"z.x is": "float32[1]"}, {"z.x is": 1}])
def test_bytes_that_are_not_what_they_say_are_refused(floats):
    records = wire.pack({}, message())
    records["floats"].update(floats)
    with pytest.raises(wire.Refused, match=r"z\.x"):
        wire.unpack(records, message())
    with pytest.raises(wire.Refused, match="got nothing"):
        wire.unpack(RecordDict({"header": ConfigRecord({})}), message())


def test_a_header_must_say_what_is_expected():
    records = wire.pack({"round": 3, "algorithm": "cdma-nc"}, message())
    assert wire.header_of(records, {"round": 3})["algorithm"] == "cdma-nc"
    for expected in ({"round": 4}, {"round": "3"}, {"round": True}, {"phase": 0}):
        with pytest.raises(wire.Refused, match="expected"):
            wire.header_of(records, expected)
    with pytest.raises(wire.Refused, match="header is missing"):
        wire.header_of(RecordDict(), {})


def test_both_sides_agree_on_the_task_and_not_on_places(nine, tmp_path):
    plain = plan_of(nine).resolved
    assert wire.contract(plain, "cdma-nc") == wire.contract(
        plan_of(nine, "quorum.invite=2", rounds=9, seeds="0-3").resolved, "cdma-nc"
    )
    for change in ("batch=3", "K=4", "problem.dim_x=5", "algorithms.cdma-nc.eta=0.06"):
        assert wire.contract(plain, "cdma-nc") != wire.contract(plan_of(nine, change).resolved, "cdma-nc")

    def having(place, what):
        return {**plain, "problem": {"name": "auc", "dataset": f"/{place}/a.csv", "sha256": what}}

    here, there, other = (having(*file) for file in ("ax", "bx", "by"))
    assert wire.contract(here, "cdma-nc") == wire.contract(there, "cdma-nc")
    assert wire.contract(here, "cdma-nc") != wire.contract(other, "cdma-nc")  # not the same rows


# --- code of one's own ------------------------------------------------------------------------------------


def mine(folder, more=""):
    """The experiment of somebody with a rule of their own, and that of somebody else."""
    folder.mkdir()
    (folder / "my_rules.py").write_text(RULES + more)
    (folder / "mine.toml").write_text(
        f'{NINE.split("[algorithms]")[0]}[algorithms]\nmine = {{ algorithm = "my_rules.py:Mine", '
        "eta = 0.05, gamma = 0.08 }\ncdma-nc = { eta = 0.05, gamma = 0.08 }\n"
    )
    return plan_of(folder / "mine.toml", code=[folder / "my_rules.py"])


def test_both_sides_agree_on_code_and_not_on_where_it_lies(tmp_path):
    here, there, other = (mine(tmp_path / n, more).resolved for n, more in (("a", ""), ("b", ""), ("c", "#")))
    assert here["code"] != there["code"]  # by their places
    assert wire.contract(here, "mine") == wire.contract(there, "mine")
    assert wire.contract(here, "mine") != wire.contract(other, "mine")
    assert wire.contract(here, "cdma-nc") == wire.contract(other, "cdma-nc")  # which needs none of it


def test_a_rule_of_ones_own_is_deployed(tmp_path):
    plan = mine(tmp_path / "here")
    deployed(plan, Clients(mine(tmp_path / "there"), tmp_path), tmp_path / "run")
    simulated(mine(tmp_path / "again"), tmp_path / "simulated")
    assert_same_end(tmp_path / "run", tmp_path / "simulated")
    ours = ends(tmp_path / "run")
    assert torch.equal(ours["mine", "3.x"], ours["cdma-nc", "3.x"])


def test_a_deployment_does_not_begin_with_other_code(tmp_path):
    """Nor does a device that comes later, with other code, answer."""
    plan, others = mine(tmp_path / "here"), mine(tmp_path / "there", "# changed\n")
    with pytest.raises(
        BadInput, match=r"client \d has other code: of my_rules.py:Mine the server has \w{12}"
    ):
        deployed(plan, Clients(others, tmp_path), tmp_path / "run")
    assert not (tmp_path / "run" / "final").exists()
    site = Site(others, 2, tmp_path)
    told = {"contract": wire.contract(plan.resolved, "mine"), "algorithm": "mine", "client": 2}
    with pytest.raises(wire.Refused, match="contract is"):
        visit(site, wire.pack(told, {}))


@pytest.mark.parametrize("code", ["[]", "{", '{"algorithms": 3}', "[" * 100_000])
def test_what_a_server_says_of_its_code_is_only_read(tmp_path, code):
    with pytest.raises(wire.Refused, match="cannot be read"):
        wire.check_code_of({"code": code}, mine(tmp_path / "here").resolved)


# --- a client ---------------------------------------------------------------------------------------------


def call(site, **changed):
    """A message as the server sends it."""
    algorithm = "codasca"
    lane = site.lane(algorithm, 3)
    header = {
        "run": "0" * 32,
        "contract": wire.contract(site.plan.resolved, algorithm),
        "algorithm": algorithm,
        "seed": 3,
        "round": 2,
        "phase": 0,
        "t": 2,
        "client": site.client,
        "kept": -1,
    }
    return wire.pack(header | changed, lane.down[0])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"client": 1}, "client is 1, expected 2"),
        ({"contract": "0" * 64}, "contract is"),
        ({"algorithm": "cdma-nc"}, "contract is"),
        ({"algorithm": "sgd"}, "no algorithm 'sgd'"),
        ({"algorithm": 7}, "no algorithm '7'"),
        ({"phase": 1}, "phase must be a whole number from 0 to 0"),
        ({"round": -1}, "round must be"),
        ({"round": "2"}, "round must be"),
        ({"t": 3}, "t must be"),
        ({"kept": 2}, "kept must be"),
        ({"seed": -1}, "seed must be"),
        ({"run": "../../etc"}, "32 hexadecimal digits"),
    ],
)
def test_a_device_answers_only_what_fits_its_experiment(nine, tmp_path, changed, why):
    site = Site(plan_of(nine), 2, tmp_path)
    with pytest.raises(wire.Refused, match=re.escape(why)):
        visit(site, call(site, **changed))
    assert not list(tmp_path.glob("memory/**/*.safetensors"))


def test_what_a_client_keeps_counts_once_its_round_has(nine, tmp_path):
    """Answers may be late or in vain, and the client is not told; the next message says what counts."""
    site = Site(plan_of(nine), 2, tmp_path)
    blank = site.lane("codasca", 3).blank(2)
    visit(site, call(site, round=0, t=0))
    visit(site, call(site, round=1, t=0))  # round 0 was abandoned: c_i is still the first
    memory = Memory(tmp_path, "0" * 32, "codasca", 3)
    kept = memory.recall(1, blank)
    assert not torch.equal(kept.x, blank.x)
    assert sorted(int(path.stem) for path in memory.folder.iterdir()) == [0, 1]
    _, other = visit(site, call(site, round=2, t=1, kept=1))
    _, fresh = visit(site, call(site, round=2, t=1))
    assert not torch.equal(other["z"].x, fresh["z"].x)
    for number in (3, 4):
        visit(site, call(site, round=number, t=number - 1, kept=number - 1))
    with pytest.raises(wire.Refused, match="kept in round 0 is gone or damaged"):
        visit(site, call(site, round=4, t=1, kept=0))
    with pytest.raises(wire.Refused, match="kept in round 8 is gone"):
        visit(site, call(site, round=9, t=1, kept=8))
    assert torch.equal(memory.recall(1, blank).x, kept.x)  # what cannot be found removes nothing


# --- the server, with clients in this process ---------------------------------------------------------------


class Clients:
    """A Grid whose nodes are in this process. `answers` says what becomes of each message."""

    def __init__(self, plan, folder, answers=lambda header, reply: [(0.0, reply)]):
        self.apps = {
            client: client_app(Site(plan, client, folder / str(client))) for client in range(count_of(plan))
        }
        self.answers, self.online = answers, set(self.apps)
        self.mail, self.asked, self.numbers = [], [], count()

    def get_node_ids(self):
        return [100 + client for client in self.online]

    def push_messages(self, messages):
        ids = []
        for one in messages:
            header = dict(one.content["header"])
            ids.append(f"m{next(self.numbers)}")
            present = one.metadata.message_type == "query.here"
            if not present:
                self.asked.append(header)
            one.metadata.__dict__["_message_id"] = ids[-1]
            try:
                reply = self.apps[header["client"]](one, None)
            except Exception as error:
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=one)
            for seconds, own in [(0.0, reply)] if present else self.answers(header, reply):
                own.metadata.__dict__["_reply_to_message_id"] = ids[-1]
                own.metadata.__dict__["_src_node_id"] = 100 + header["client"]
                self.mail.append((time.monotonic() + seconds, own))
        return ids

    def pull_messages(self, ids):
        now = time.monotonic()
        ready = [(at, own) for at, own in self.mail if at <= now and own.metadata.reply_to_message_id in ids]
        self.mail = [one for one in self.mail if one not in ready]
        return [own for _, own in sorted(ready, key=lambda one: one[0])]


def count_of(plan):
    return len(next(iter(plan.studies.values())).problem.federation)


def deployed(plan, grid, folder, said=None, pardoned=0):
    """A run with the clients of this process."""
    nodes = roll.Roll(
        grid,
        {client: 100 + client for client in grid.apps},
        lambda: False,
        [].append if said is None else said.append,
    )
    one = server.Deployment(nodes, plan, "0" * 32)
    run = RunFolder(folder, plan, resume=(folder / "checkpoint.json").exists())
    one.recall(folder, pardoned)
    try:
        execute(run, Quiet(), checkpoint_seconds=0, play=one.play)
    finally:
        run.close()
    return one


def simulated(plan, folder):
    run = RunFolder(folder, plan, resume=False)
    execute(run, Quiet(), checkpoint_seconds=0)
    run.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for module in (roll, server, waiting):
        monkeypatch.setattr(module, "POLL", 0.002)
    for module in (roll, server):
        monkeypatch.setattr(module, "ROLL_CALL", 0.0)
    monkeypatch.setattr(waiting, "SLACK", 0.3)
    monkeypatch.setattr(server, "NODE_PATIENCE", 0.5)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower's runner does


def test_all_nine_equal_the_simulator_bit_for_bit(nine, tmp_path):
    plan = plan_of(nine, seeds="3,8")
    deployed(plan, Clients(plan, tmp_path / "nodes"), tmp_path / "real")
    simulated(plan_of(nine, seeds="3,8"), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")
    assert_replays(tmp_path / "real")
    for table in ("traffic.csv", "events.csv"):
        assert (tmp_path / "real" / table).read_bytes() == (tmp_path / "sim" / table).read_bytes()


def test_newer_rules_equal_the_simulator_bit_for_bit(nine, tmp_path):
    """Those that ask most of a deployment: four phases, a memory of two vectors, two minibatches a step, one
    that is found again in another phase."""
    settings = [
        "algorithms.fednest={eta=0.05, gamma=0.08}",
        "algorithms.proxskip-vip={eta_l=0.05}",
        "algorithms.fedualex={eta_l=0.05}",
        "algorithms.sagda-minibatch={eta=0.05, gamma=0.08}",
    ]
    options = {"algorithms": ["fednest", "proxskip-vip", "fedualex", "sagda-minibatch"], "rounds": 3}
    plan = plan_of(nine, *settings, **options)
    deployed(plan, Clients(plan, tmp_path / "nodes"), tmp_path / "real")
    simulated(plan_of(nine, *settings, **options), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")
    assert_replays(tmp_path / "real")


def stopped_after(monkeypatch, *steps):
    """Devices whose time is over after so many steps, in turn."""
    lengths = cycle(steps)

    @dataclasses.dataclass
    class Stopped(client.Stopwatch):
        most: int = dataclasses.field(default_factory=lambda: next(lengths))

        def __call__(self, made):
            assert 0 < self.seconds <= 60
            super().__call__(made)
            return made >= self.most

    monkeypatch.setattr(client, "Stopwatch", Stopped)


RULES_CUT = ["cdma-one", "codasca", "fed-norm-sgda"]


def test_unfinished_walks_are_told_and_replayed(nine, tmp_path, monkeypatch):
    """Devices stop at their time and send what they have, which the history says and a replay does."""
    stopped_after(monkeypatch, 1, 3, 2, 9)
    given = ("quorum.partial_work=50.0", "algorithms.fed-norm-sgda={eta=0.05, gamma=0.08}")
    plan = plan_of(nine, *given, algorithms=RULES_CUT)
    deployed(plan, Clients(plan, tmp_path / "nodes"), tmp_path / "real")
    lines = [line for line in told(tmp_path / "real") if "steps" in line]
    assert {line["algorithm"] for line in lines} == set(RULES_CUT)
    assert {1, 2} <= {steps for line in lines for steps in line["steps"].values()}
    assert_replays(tmp_path / "real")
    simulated(plan_of(nine, *given, algorithms=RULES_CUT), tmp_path / "sim")  # where nobody is slow
    assert not torch.equal(*(ends(tmp_path / run)["cdma-one", "3.x"] for run in ("real", "sim")))


def test_a_real_walk_ends_when_its_time_is_over(nine, tmp_path):
    site = Site(plan_of(nine), 2, tmp_path)
    header, _ = visit(site, call(site, seconds="0.0"))
    assert header["steps"] == 1
    header, up = visit(site, call(site, round=3, seconds="60.0"))
    assert header["steps"] == 3
    _, whole = visit(site, call(site, round=3))
    assert torch.equal(up["z"].x, whole["z"].x)


@pytest.mark.parametrize("seconds", ["nan", "-1.0", "soon"])
def test_a_time_that_cannot_be_is_refused(nine, tmp_path, seconds):
    site = Site(plan_of(nine), 2, tmp_path)
    with pytest.raises(wire.Refused, match="seconds must be a number from 0"):
        visit(site, call(site, seconds=seconds))


@pytest.mark.parametrize("steps", [0, 4, "2"])
def test_steps_that_nobody_can_have_made_are_refused(nine, tmp_path, steps):
    def answers(header, reply):
        if header["client"] == 1:
            reply.content = spoilt(reply, header={"steps": steps})
        return [(0.0, reply)]

    given = ("quorum={invite=4, partial_work=30.0, deadline=30.0}",)
    plan = plan_of(nine, *given, algorithms=["cdma-nc"], rounds=1)
    deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real")
    assert told(tmp_path / "real")[0]["refused"] == {
        "1": f"steps must be a whole number from 1 to 3, got {steps}"
    }


@pytest.mark.parametrize("cohorts", ["invited", "answered"])
def test_other_cohorts_equal_the_simulator(nine, tmp_path, cohorts):
    given = (f"cohorts={cohorts}", "quorum.enough=2")
    plan = plan_of(nine, *given, algorithms=TWO_PHASES)
    deployed(plan, Clients(plan, tmp_path / "nodes"), tmp_path / "real")
    simulated(plan_of(nine, *given, algorithms=TWO_PHASES), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")
    assert_replays(tmp_path / "real")
    for real, drawn in zip(told(tmp_path / "real"), told(tmp_path / "sim"), strict=True):
        assert real["invited"] == drawn["invited"]
        assert len(real["invited"]) == (2 if cohorts == "answered" and real["phase"] else 3)


def test_nobody_stands_in_for_those_who_answered(nine, tmp_path):
    """Whoever fails the second phase is not made up for, and too few abandon the round at once."""

    def answers(header, reply):
        gone = header["phase"] == 1 and (header["client"] == 3 or header["round"] == 1)
        error = Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=reply)
        return [(0.0, error if gone else reply)]

    plan = plan_of(nine, "cohorts=answered", "quorum.minimum=2", algorithms=["cdma-one"])
    began = time.monotonic()
    deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real")
    assert time.monotonic() - began < 30  # the deadline is at 60
    assert_replays(tmp_path / "real")
    entries = told(tmp_path / "real")
    first = {one["round"]: one for one in entries if one["phase"] == 0}
    second = {one["round"]: one for one in entries if one["phase"] == 1}
    assert sorted(first) == sorted(second) == [0, 1, 2]
    for round, one in second.items():
        assert set(one["invited"]) == set(first[round]["used"])
        lost = set(one["invited"]) if round == 1 else set(one["invited"]) & {3}
        assert set(one["lost"]) == lost
        assert one["verdict"] == ("abandon" if round == 1 else "go")
    assert any(one["lost"] for round, one in second.items() if round != 1)


def test_bounded_steps_are_the_simulators(nine, tmp_path):
    bounds = (
        "steady.clip=0.02",
        "steady.warmup=3",
        "steady.reach=0.03",
        "quorum.collect=4",
        "sampling={strata=[0,1,0,1]}",
    )
    deployed(plan_of(nine, *bounds), Clients(plan_of(nine, *bounds), tmp_path / "nodes"), tmp_path / "real")
    simulated(plan_of(nine, *bounds), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")
    simulated(plan_of(nine), tmp_path / "plain")
    plain, bounded = ends(tmp_path / "plain"), ends(tmp_path / "sim")
    assert not any(torch.equal(value, bounded[key]) for key, value in plain.items())


WEIGHED = ("merge.weights=inverse_propensity", "sampling={strata=[0,1,0,1]}", "quorum.stratified=true")


def test_weights_and_strata_are_the_simulators(nine, tmp_path):
    plan = plan_of(nine, *WEIGHED, "quorum.enough=2")
    deployed(plan, Clients(plan, tmp_path / "nodes"), tmp_path / "real")
    simulated(plan_of(nine, *WEIGHED, "quorum.enough=2"), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")
    assert_replays(tmp_path / "real")


def test_who_is_away_weighs_more_when_it_is_back(nine, tmp_path):
    """Clients 0 and 1 are hardly ever online: it is known whose turn it was, and a replay weighs alike."""
    plan = plan_of(nine, *WEIGHED[:1], "quorum.invite=2", algorithms=["cdma-one"], rounds=8)
    grid = Clients(plan, tmp_path / "nodes")

    def answers(header, reply):
        grid.online = {2, 3} if header["round"] % 4 else {0, 1, 2, 3}
        return [(0.0, reply)]

    grid.answers = answers
    deployed(plan, grid, tmp_path / "real")
    assert_replays(tmp_path / "real")
    away = [client for line in told(tmp_path / "real") for client in line.get("away", ())]
    assert set(away) == {0, 1}
    plain = plan_of(nine, "quorum.invite=2", algorithms=["cdma-one"], rounds=8)
    grid = Clients(plain, tmp_path / "others")
    grid.answers = answers
    deployed(plain, grid, tmp_path / "plain")
    assert not any("away" in line for line in told(tmp_path / "plain"))  # nobody needs to know


def test_those_who_fail_are_made_up_for_by_their_own_stratum(nine, tmp_path):
    def answers(header, reply):
        error = Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=reply)
        return [(0.0, error if header["client"] == 0 else reply)]

    settings = (WEIGHED[1], WEIGHED[2], "quorum.invite=2", "quorum.enough=2")
    plan = plan_of(nine, *settings, algorithms=["cdma-nc"], rounds=8)
    deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real")
    assert_replays(tmp_path / "real")
    lines = told(tmp_path / "real")
    assert all(sorted(client % 2 for client in line["used"]) == [0, 1] for line in lines)
    short = [line for line in lines if 0 in line["lost"]]
    assert short
    assert all(2 in line["used"] for line in short)  # the other one of stratum 0


@pytest.mark.parametrize("task", ["auc", "robust", "fair", "gan"])
def test_tasks_with_data_equal_the_simulator(nine, tmp_path, task):
    """In float32 too: a device computes what the loop over single clients does."""
    dials = {
        "gan": ["problem.samples=100"],
        "robust": ["problem.hidden=8", "problem.evaluate_rows=10", "problem.ascent_steps=1"],
    }
    settings = [
        f'problem={{name="{task}", dataset="digits", clients=4}}',
        *dials.get(task, []),
        "quorum.invite=2",
    ]
    options = {"algorithms": ["cdma-ada", "codasca"], "rounds": 2}
    plan = plan_of(nine, *settings, **options)
    deployed(plan, Clients(plan, tmp_path / "nodes"), tmp_path / "real")
    simulated(plan_of(nine, *settings, **options), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")


def test_the_first_enough_answers_are_used_and_the_others_are_late(nine, tmp_path):
    """S^ = 4, S_t = 2: clients 1 and 3 are fast. The late answers are counted, and nobody is asked twice."""

    def answers(header, reply):
        return [(0.0 if header["client"] in (1, 3) else 4.0, reply)]

    settings = ["quorum={invite=4, enough=2, deadline=30.0}"]
    plan = plan_of(nine, *settings, algorithms=["cdma-one"], rounds=2)
    grid = Clients(plan, tmp_path / "nodes", answers)
    deployed(plan, grid, tmp_path / "real")
    lines = told(tmp_path / "real")
    assert all(sorted(line["used"]) == [1, 3] for line in lines[:2])
    assert sorted(lines[0]["invited"]) == [0, 1, 2, 3]
    assert sorted(lines[1]["invited"]) == [1, 3]  # the others still owe an answer
    assert_replays(tmp_path / "real")


def test_an_answer_that_comes_rounds_later_is_counted_and_dropped(nine, tmp_path):
    def answers(header, reply):
        slow = header["client"] == 0 and header["round"] == 0
        return [(0.4 if slow else 0.05, reply)]

    plan = plan_of(nine, "quorum={invite=4, enough=3, deadline=5.0}", algorithms=["cdma-nc"], rounds=12)
    deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real")
    overdue = [line for line in told(tmp_path / "real") if line.get("overdue")]
    assert any(0 in line["overdue"] and line["round"] > 0 for line in overdue)
    assert_replays(tmp_path / "real")
    assert ",late," in (tmp_path / "real" / "traffic.csv").read_text()


def spoilt(reply, **changed):
    """The answer with another header, or other floats."""
    header, floats = dict(reply.content["header"]), reply.content["floats"]
    return RecordDict(
        {
            "header": ConfigRecord({**header, **changed.pop("header", {})}),
            "floats": ConfigRecord({**floats, **changed}),
        }
    )


BAD = {
    "nan": (lambda reply: spoilt(reply, **{"z.x": b"\xff" * len(reply.content["floats"]["z.x"])}), "finite"),
    "short": (lambda reply: spoilt(reply, **{"z.x": b"1234"}), "z.x is"),
    "name": (lambda reply: spoilt(reply, more=b""), "expected z.x"),
    "round": (lambda reply: spoilt(reply, header={"round": 77}), "round is 77"),
    "phase": (lambda reply: spoilt(reply, header={"phase": 1}), "phase is 1"),
    "run": (lambda reply: spoilt(reply, header={"run": "1" * 32}), "run is"),
    "contract": (lambda reply: spoilt(reply, header={"contract": "x"}), "contract is"),
    "client": (lambda reply: spoilt(reply, header={"client": 3}), "client is 3"),
    "empty": (lambda reply: RecordDict(), "header is missing"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_answers_are_refused_and_then_their_client(nine, tmp_path, kind):
    spoil, why = BAD[kind]

    def answers(header, reply):
        if header["client"] == 2 and header["round"] > 0:
            reply.__dict__["_content"] = spoil(reply)
        return [(0.0, reply)]

    plan = plan_of(nine, "quorum={invite=4, deadline=5.0}", algorithms=["cdma-nc"], rounds=6)
    said = []
    grid = Clients(plan, tmp_path / "nodes", answers)
    deployed(plan, grid, tmp_path / "real", said)
    lines = told(tmp_path / "real")
    for line in lines[1:4]:
        assert why in line["refused"]["2"]
        assert sorted(line["used"]) == [0, 1, 3]
    assert all(2 not in line["invited"] for line in lines[4:])  # three strikes
    assert said[-1] == "client 2 is no longer invited, after 3 refused answers"
    assert_replays(tmp_path / "real")


def test_who_was_put_right_is_invited_again_after_a_resume(nine, tmp_path):
    settings = ["quorum={invite=4, minimum=3, deadline=5.0}"]
    options = {"algorithms": ["cdma-nc"], "rounds": 8}
    wrong = {0, 1, 2}

    def answers(header, reply):
        if header["client"] in wrong and header["round"] > 0:
            reply.__dict__["_content"] = BAD["nan"][0](reply)
        return [(0.0, reply)]

    plan = plan_of(nine, *settings, **options)
    with pytest.raises(BadInput, match="put those right that were refused, and resume"):
        deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real")
    before = len(told(tmp_path / "real"))
    wrong.clear()
    wrong.add(2)  # this one is not put right, and has one more try
    with pytest.raises(BadInput, match="put those right"):  # a server that was only started again
        deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real")
    one = deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real", pardoned=before)
    lines = told(tmp_path / "real")[before:]
    assert sorted(lines[0]["used"]) == [0, 1, 3]
    assert list(lines[0]["refused"]) == ["2"]
    assert all(2 not in line["invited"] for line in lines[1:])
    again = server.Deployment(dataclasses.replace(one.roll, refusals=Counter()), plan, "0" * 32)
    again.recall(tmp_path / "real", before)
    assert again.roll.refusals == one.roll.refusals


def test_what_a_device_says_is_no_command_to_a_terminal(nine, tmp_path):
    def answers(header, reply):
        if header["client"] == 2:
            reply.__dict__["_content"] = spoilt(reply, header={"run": "\x1b[2J\nerror: all is lost"})
        return [(0.0, reply)]

    plan = plan_of(nine, "quorum={invite=4, deadline=5.0}", algorithms=["cdma-nc"], rounds=1)
    said = []
    deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real", said)
    assert any("all is lost" in line for line in said)
    assert all(line.isprintable() for line in said)


def test_the_norm_bound_of_an_experiment_holds_for_real_answers(nine, tmp_path):
    def answers(header, reply):
        floats = reply.content["floats"]
        if header["client"] == 1:
            far = 1e3 * torch.ones(len(floats["z.x"]) // 8, dtype=torch.float64)
            reply.content["floats"]["z.x"] = far.numpy().tobytes()
        return [(0.0, reply)]

    settings = ["quorum={invite=4, deadline=5.0}", "checks={norm=100.0, strikes=1}"]
    plan = plan_of(nine, *settings, algorithms=["cdma-nc"])
    deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real")
    lines = told(tmp_path / "real")
    assert "norm bound" in lines[0]["refused"]["1"]
    assert all(1 not in line["invited"] for line in lines[1:])
    assert_replays(tmp_path / "real")


def test_robust_merges_are_the_simulators(nine, tmp_path):
    settings = ["quorum.invite=4", 'merge={rule="median", clip=0.05}']
    plan = plan_of(nine, *settings, algorithms=["cdma-one", "codasca"])
    deployed(plan, Clients(plan, tmp_path / "nodes"), tmp_path / "real")
    simulated(plan_of(nine, *settings, algorithms=["cdma-one", "codasca"]), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")


def test_more_are_invited_when_errors_make_enough_unreachable(nine, tmp_path):
    def answers(header, reply):
        if header["client"] == grid.asked[0]["client"]:
            failed = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "boom"), reply_to=reply)
            return [(0.0, failed)]
        return [(0.0, reply)]

    plan = plan_of(nine, "quorum={invite=2, deadline=5.0}", algorithms=["cdma-nc"], rounds=2)
    grid = Clients(plan, tmp_path / "nodes", answers)
    deployed(plan, grid, tmp_path / "real")
    first = told(tmp_path / "real")[0]
    assert len(first["invited"]) == 3
    assert len(first["used"]) == 2
    assert "boom" in next(iter(first["refused"].values()))
    assert_replays(tmp_path / "real")


def test_a_phase_below_its_minimum_is_abandoned_and_changes_nothing(nine, tmp_path):
    def answers(header, reply):
        silent = header["round"] == 1 and header["phase"] == 1 and header["client"] != 0
        return [] if silent else [(0.0, reply)]

    settings = ["quorum={invite=4, minimum=2, deadline=0.3, grace=0.2}"]
    plan = plan_of(nine, *settings, algorithms=["cdma-one", "codasca"], rounds=4)
    deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real")
    lines = [line for line in told(tmp_path / "real") if line["algorithm"] == "cdma-one"]
    assert [line["verdict"] for line in lines[2:4]] == ["go", "abandon"]
    assert 0.5 <= lines[3]["seconds"] < 5
    events = (tmp_path / "real" / "events.csv").read_text()
    assert 'cdma-one,3,1,abandoned,"update: 1 answers, the minimum is 2"' in events
    assert_replays(tmp_path / "real")


def test_nobody_is_invited_who_is_away_or_owes_an_answer(nine, tmp_path):
    def answers(header, reply):
        return [] if header["client"] == 3 and header["round"] < 2 else [(0.0, reply)]

    settings = ["quorum={invite=3, enough=2, deadline=0.2}"]
    plan = plan_of(nine, *settings, algorithms=["cdma-nc"], rounds=8)
    grid = Clients(plan, tmp_path / "nodes", answers)
    grid.online.discard(1)
    deployed(plan, grid, tmp_path / "real")
    asked = Counter(header["client"] for header in grid.asked)
    assert 1 not in asked
    assert set(asked) == {0, 2, 3}
    owed = [header["round"] for header in grid.asked if header["client"] == 3]
    assert owed[0] < 2
    assert len(owed) == len(set(owed))
    assert_replays(tmp_path / "real")


def test_a_killed_server_goes_on_from_its_checkpoint_to_the_same_bits(nine, tmp_path):
    """Also CODASCA, whose clients must come back to what counted when the checkpoint was made."""

    class Killed(BaseException):  # nothing on the way tells it as somebody's mistake
        pass

    plan = plan_of(nine, algorithms=["cdma-one", "codasca"], rounds=5)
    deaths = iter([2, 5, 6, 11, 12])
    death = next(deaths)
    made = 0

    def answers(header, reply):
        nonlocal made, death
        made += 1
        if made >= 3 * death:
            death = next(deaths, 10**9)
            raise Killed
        return [(0.0, reply)]

    for _ in range(7):
        grid = Clients(plan, tmp_path / "nodes", answers)
        try:
            deployed(plan, grid, tmp_path / "real")
            break
        except Killed:
            plan = plan_of(nine, algorithms=["cdma-one", "codasca"], rounds=5)
    assert death == 10**9
    simulated(plan_of(nine, algorithms=["cdma-one", "codasca"], rounds=5), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")
    assert_replays(tmp_path / "real")


# --- devices with rows of their own -------------------------------------------------------------------------

OWN = """
name = "own"
rounds = 3
evaluate_every = 1
seeds = "0"
batch = 4
K = 2
[problem]
name = "auc"
dataset = "reference.csv"
partition = "devices"
clients = 3
network = "logistic"
positive = "sick"
[quorum]
invite = 3
deadline = 20.0
[algorithms]
cdma-one = { eta = 0.1, gamma = 0.1 }
"""


def table(path, rows, seed):
    """Two numbers, a word and a label that depends on them."""
    lines = ["age,dose,ward,label"]
    for luck in torch.rand(rows, 4, generator=torch.Generator().manual_seed(seed)).tolist():
        sick = luck[0] + luck[1] + 0.3 * luck[3] > 1.3
        lines.append(
            f"{20 + 60 * luck[0]:.3f},{luck[1]:.4f},{'abc'[int(3 * luck[2])]},{'sick' if sick else 'well'}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def own(tmp_path):
    """An experiment whose rows are on three devices: the experiment, and their files."""
    table(tmp_path / "reference.csv", 60, 0)
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path, [table(tmp_path / f"rows-{client}.csv", 20 + 9 * client, 1 + client) for client in range(3)]


def test_devices_train_on_rows_that_the_server_never_sees(own, tmp_path):
    """The same as a simulator that could see them all, bit for bit; two counts of each device make up p."""
    path, files = own
    plan = plan_of(path, devices=True)
    grid = Clients(plan, tmp_path / "nodes")
    sites = [Site.holding(plan_of(path, devices=True), n, tmp_path / str(n), str(files[n])) for n in range(3)]
    grid.apps = {site.client: client_app(site) for site in sites}
    said = []
    deployed(plan, grid, tmp_path / "real", said)
    assert "3 devices hold 87 rows" in said
    asked = [header for header in grid.asked if "round" not in header]
    assert len(asked) == 3

    seen = plan_of(path, devices=True)
    problem = seen.studies["cdma-one"].problem
    parts = [site.plan.studies["cdma-one"].problem.federation for site in sites]
    held = [
        {name: rows[part.offsets[n] : part.offsets[n] + part.sizes[n]] for name, rows in part.rows.items()}
        for n, part in enumerate(parts)
    ]
    rows = {name: torch.cat([one[name] for one in held]) for name in held[0]}
    worth = torch.zeros(3, dtype=torch.float64)
    problem.__dict__["federation"] = Federation(rows, torch.tensor([20, 29, 38]), {"worth": worth})
    problem.learn({"p": float(rows["positive"].double().mean()), "rows": 29.0})
    problem_of = {name: dataclasses.replace(study, problem=problem) for name, study in seen.studies.items()}
    seen = dataclasses.replace(seen, studies=problem_of)
    quick = dataclasses.replace(seen.studies["cdma-one"], fleet=Everybody())
    simulated(dataclasses.replace(seen, studies={"cdma-one": quick}), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")
    with pytest.raises(BadInput, match="replay --data"):
        list(replay_run(tmp_path / "real"))
    with pytest.raises(BadInput, match="has 3 clients, each with a file; got 2"):
        list(replay_run(tmp_path / "real", rows=files[:2]))
    (one,) = replay_run(tmp_path / "real", engine="loop", rows=files)  # who has them all can
    assert one.exact
    assert one.agrees
    last = (tmp_path / "real" / "rounds.csv").read_text().splitlines()
    assert last[0].endswith("time_simulated,test_auc,test_precision")


def test_counts_are_waited_for_and_looked_at(own, tmp_path):
    """Nobody is there at first, and the one device that tells nonsense neither ends nor skews the run."""
    path, files = own
    plan = plan_of(path, "quorum={invite=2, minimum=2, deadline=5.0}", devices=True)

    def answers(header, reply):
        if "round" not in header and header["client"] == 2:
            reply.__dict__["_content"] = spoilt(reply, header={"count.rows": 1, "count.positives": 10**9})
        return [(0.0, reply)]

    grid = Clients(plan, tmp_path / "nodes", answers)
    sites = [Site.holding(plan_of(path, devices=True), n, tmp_path / str(n), str(files[n])) for n in range(3)]
    grid.apps = {site.client: client_app(site) for site in sites}
    grid.online = set()
    threading.Timer(1.5, grid.online.update, [range(3)]).start()  # after everybody's patience
    said = []
    one = deployed(plan, grid, tmp_path / "real", said)
    assert "2 devices hold 49 rows" in said
    assert 0 < one.facts["p"] < 1
    assert any(line.startswith("client 2 is refused: count.positives must be") for line in said)


def test_a_device_that_says_to_hold_most_rows_is_named(own, tmp_path):
    """It may be true; if it is not, what all go by is this device's word."""
    path, files = own
    plan = plan_of(path, devices=True)

    def answers(header, reply):
        if "round" not in header and header["client"] == 2:
            reply.__dict__["_content"] = spoilt(reply, header={"count.rows": 10**6, "count.positives": 1})
        return [(0.0, reply)]

    grid = Clients(plan, tmp_path / "nodes", answers)
    sites = [Site.holding(plan_of(path, devices=True), n, tmp_path / str(n), str(files[n])) for n in range(3)]
    grid.apps = {site.client: client_app(site) for site in sites}
    said = []
    deployed(plan, grid, tmp_path / "real", said)
    (line,) = (line for line in said if "holds" in line)
    assert line.startswith(
        "client 2 says that it alone holds 1000000 of them; if that is wrong, revoke its key"
    )


def test_what_does_not_fit_rows_on_devices_is_refused(own, nine, tmp_path):
    path, files = own
    with pytest.raises(BadInput, match="on devices"):
        plan_of(path)
    with pytest.raises(BadInput, match="leave out test"):
        plan_of(path, "problem.test=reference.csv", devices=True)
    with pytest.raises(BadInput, match="partition = 'devices'"):
        Site.holding(plan_of(nine), 0, tmp_path, str(files[0]))
    plan = plan_of(path, devices=True)
    other = table(tmp_path / "other.csv", 60, 99)
    changed = plan_of(path, f"problem.dataset={other}", devices=True)
    assert wire.contract(plan.resolved, "cdma-one") != wire.contract(changed.resolved, "cdma-one")
    site = Site.holding(plan, 1, tmp_path, str(files[1]))
    for facts in ({}, {"fact.p": "nan"}, {"fact.p": "2.0"}, {"fact.p": "much"}):
        with pytest.raises(wire.Refused, match="does not fit"):
            learn(site.plan.studies["cdma-one"].problem, facts)
    files[0].write_text("age,dose,label\n1,2,sick\n")
    with pytest.raises(BadInput, match="lacks the column 'ward'"):
        Site.holding(plan, 0, tmp_path, str(files[0]))


# --- keys and the outer door --------------------------------------------------------------------------------


def test_keys_are_private_and_can_be_added_to(tmp_path):
    place = tmp_path / "keys"
    keys.make(place, 2, ["fl.example.org", "192.0.2.7"])
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    keys.make(place, 3)
    assert all(path.read_bytes() == data for path, data in before.items())
    assert sorted(keys.node_keys(place / "server")) == [0, 1, 2]
    for path in place.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert len({(place / f"node-{n}" / "key").read_bytes() for n in range(3)}) == 3
    context = ssl.create_default_context(cafile=str(place / "node-2" / "ca.crt"))
    assert context.get_ca_certs()
    for bad in (["a b"], ["-x"], [""]):
        with pytest.raises(BadInput, match="--host"):
            keys.make(tmp_path / "other", 1, bad)
    with pytest.raises(BadInput, match="something else"):
        keys.make(tmp_path, 1)


@pytest.mark.parametrize("text", ["nowhere", ":9092", "host:", "host:0", "host:99999", "host:port", "host:²"])
def test_addresses_are_checked(text):
    with pytest.raises(BadInput, match="HOST:PORT"):
        files.parse_address(text, "--server")
    assert files.parse_address("[::1]:9092", "--server") == ("::1", 9092)


# --- the commands -------------------------------------------------------------------------------------------

SERVE, JOIN = ["serve", "nine.toml", "--keys"], ["join", "nine.toml", "--server", "localhost:1", "--key"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([*SERVE, "nowhere"], "server.crt is missing"),
        ([*SERVE, "keys"], "server.crt is missing"),
        ([*SERVE, "keys/server", "--listen", "everywhere"], "--listen takes HOST:PORT"),
        ([*SERVE, "keys/server", "--set", "faults={drop=0.1}"], "leave [faults] out"),
        ([*SERVE, "keys/server", "--clients", "1"], "the experiment has 1 clients"),
        ([*SERVE, "keys/server", "--set", "quorum.invite=4"], "waits for 4 answers, but only 2 nodes"),
        ([*SERVE, "keys/server", "--algorithm", "sgd"], "unknown algorithm"),
        ([*SERVE, "keys/server", "--clients", "0"], "clients must be at least 1"),
        ([*JOIN, "nowhere/node-0"], "cannot read nowhere/node-0/key"),
        ([*JOIN, "keys/server"], "which client is this?"),
        ([*JOIN, "keys/server", "--client", "0"], "cannot read keys/server/key"),
        ([*JOIN, "keys/node-0", "--client", "4"], "from 0 to 3"),
        ([*JOIN, "keys/node-0", "--data", "rows.csv"], "partition = 'devices'"),
        (["local", "nine.toml", "--nodes", "0"], "--nodes must be at least 1"),
        (["keys", "keys", "--nodes", "0"], "nodes must be at least 1"),
        (["keys", ".", "--nodes", "1"], "something else"),
        (["keys", "keys", "--host", "other.example.org"], "keys renew keys --host"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(nine, tmp_path, monkeypatch, capsys, words, why):
    monkeypatch.chdir(tmp_path)
    keys.make(Path("keys"), 2)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(sys, "argv", ["fedsaddle", *words])
    monkeypatch.setattr(Processes, "start", lambda *_: pytest.fail("it was accepted"))
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, told = capsys.readouterr()
    assert (end.value.code, out) == (2, ""), told
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert why in told
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# --- real processes -----------------------------------------------------------------------------------------


def descendants(pid):
    """All processes below one."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(child)]
    return found


def gone(pids, seconds=60):
    """Whether these processes all end in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(Path(f"/proc/{pid}").exists() and state(pid) != "Z" for pid in pids):
            return True
        time.sleep(0.1)
    return False


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def wait_for(what, seconds, processes=()):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it took too long"
        for one in processes:
            assert one.poll() is None, one.args
        time.sleep(0.05)


class Fleet:
    """A server and nodes as a person starts them, each a process of its own."""

    def __init__(self, folder, experiment, nodes=4, more=(), prelude=""):
        self.prelude = prelude  # what every process runs before anything else
        self.folder, self.experiment, self.port = folder, experiment, deploy.free_port()
        self.keys, self.run, self.processes = folder / "keys", folder / "run", []
        keys.make(self.keys, nodes)
        self.begin(*more)

    def begin(self, *more):
        """Start the server, perhaps again."""
        self.serve = self.start("server", self.command(self.port, *more))

    def command(self, port, *more):
        place = ["--keys", self.keys / "server", "--listen", f"127.0.0.1:{port}", "--out", self.run]
        return ["fedsaddle", "serve", self.experiment, *place, *more]

    def start(self, name, command):
        process = Started(command, self.folder / f"{name}.log", self.prelude)
        self.processes.append(process)
        return process

    def join(self, client, plan=None, ahead=0.0):
        told = {
            "ahead": ahead,
            "experiment": str(self.experiment),
            "client": client,
            "folder": str(self.folder / f"client-{client}"),
            "key": str(self.keys / f"node-{client}"),
            "server": f"127.0.0.1:{self.port}",
            "plan": plan or {},
        }
        return self.start(f"client-{client}", [ROOT / "faulty.py", json.dumps(told)])

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def mark(self, client):
        return self.folder / f"client-{client}" / "mark"

    def wait(self, seconds):
        try:
            code = self.serve.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it took too long: {self.log('server')[-2000:]}")
        assert code == 0, self.log("server")[-3000:]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        below = [pid for one in self.processes if one.poll() is None for pid in descendants(one.pid)]
        for one in self.processes:
            one.terminate()
        for one in self.processes:
            try:
                one.wait(120)
            except subprocess.TimeoutExpired:
                one.kill()
                raise
        assert gone(below)


def experiment(folder, text=NINE, **changed):
    """An experiment file with some lines changed."""
    for key, value in changed.items():
        text, times = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.M)
        assert times == 1, key
    path = folder / "experiment.toml"
    path.write_text(text)
    return path


def only(text, *names):
    """The same experiment with some of its algorithms."""
    head, tables = text.split("[algorithms]\n")
    kept = [line for line in tables.splitlines() if line.split(" = ")[0] in names]
    return head + "[algorithms]\n" + "\n".join(kept) + "\n"


def test_local_runs_all_nine_as_the_simulator_does(tmp_path):
    """Keys, TLS, a SuperLink, four nodes, nine algorithms: one command, and the simulator's bits."""
    path = experiment(tmp_path, rounds=2)
    command = [*FEDSADDLE, "local", path, "--nodes", "4", "--out", tmp_path / "real"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "report" in done.stdout
    simulated(plan_of(path), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")
    assert_replays(tmp_path / "real")


FAULTS = {
    0: {"1.0": "raise", "3.0": "huge", "5.0": "die"},
    1: {"1.1": "nan", "3.1": "twice", "5.1": "garbage", "6.1": "die"},
    2: {"2.0": "shape", "4.0": "sleep:8", "5.1": "kind", "7.0": "sleep:14"},
    3: {"2.1": "stale", "4.1": "half", "6.0": "pieces", "7.1": "header"},
}


def test_every_fault_of_a_node_is_borne(tmp_path):
    """One deployment, a fault a round; what becomes of each is in the history, and replay agrees."""
    text = only(NINE, "cdma-one") + "[checks]\nstrikes = 5\n"
    path = experiment(tmp_path, text, rounds=8, invite="4\nminimum = 2", deadline="6.0")
    with Fleet(tmp_path, path) as fleet:
        for client, plan in FAULTS.items():
            fleet.join(client, plan)
        wait_for((fleet.run / "deployment" / "link.db").exists, 300, [fleet.serve])
        check_strangers(fleet)
        fleet.wait(400)
        lines = {(line["round"], line["phase"]): line for line in told(fleet.run)}
        assert sorted(lines[0, 0]["used"]) == sorted(lines[0, 1]["used"]) == [0, 1, 2, 3]
        assert "boom" in lines[1, 0]["refused"]["0"]
        assert "not finite" in lines[1, 1]["refused"]["1"]
        assert "float64[2]" in lines[2, 0]["refused"]["2"]
        assert "round is 1, expected 2" in lines[2, 1]["refused"]["3"]
        assert "what came is no message" in lines[5, 1]["refused"]["1"]
        assert "z.x is float32[3] in 12 bytes, expected float64[3]" in lines[5, 1]["refused"]["2"]
        assert "it has 10" in lines[6, 0]["refused"]["3"]
        assert f"run is {'x' * 80}, expected" in lines[7, 1]["refused"]["3"]
        for at, client in {(3, 0): 0, (4, 0): 2, (4, 1): 3, (5, 0): 0, (6, 1): 1, (7, 0): 2}.items():
            assert client not in lines[at]["used"], at  # it never came, or too late
            assert lines[at]["verdict"] == "go"
        assert 1 in lines[3, 1]["used"]
        assert "the second copy was" in fleet.log("client-1")
        overdue = [client for line in lines.values() for client in line.get("overdue", [])]
        assert 2 in overdue
        assert_replays(fleet.run)


def check_strangers(fleet):
    """Who has no key, a wrong one or one in use stays outside, and so do all of Flower's other APIs."""
    base, ca = f"https://127.0.0.1:{fleet.port}", fleet.keys / "node-0" / "ca.crt"
    context = ssl.create_default_context(cafile=str(ca))

    stranger = ec.generate_private_key(keys.CURVE)
    own, _ = keys.node_key(fleet.keys / "node-1")
    forged = Signature(stranger)
    forged.public = Signature(own).public
    wait_for(lambda: "online" in fleet.log("client-1"), 300, [fleet.serve])
    with httpx.Client(verify=context) as client:
        for signature, status in ((Signature(stranger), 401), (forged, 401), (Signature(own), 409)):
            path = f"{HERE}{'0' * 32}"
            response = client.post(base + path, content=b"", headers=signature.headers(path))
            assert response.status_code == status, response.text
    with httpx.Client(verify=context) as client:
        closed = (
            "push-messages",
            "pull-messages",
            "push-object",
            "pull-object",
            "activate-node",
            "register-node",
        )
        inner = ("control/start-run", "control/list-runs", "runtime/acquire-task")
        for path in (*inner, *(f"fleet/{call}" for call in closed)):
            assert client.post(f"{base}/v1/{path}", content=b"").status_code == 403
        for path in ("docs", "v1/fleet/%2e%2e/control/list-runs", "health", "post/send", "post/members"):
            assert client.get(f"{base}/{path}").status_code == 403
            assert client.post(f"{base}/{path}", content=b"").status_code == 403
        for path in (f"{call}{'0' * 32}" for call in (HERE, LEAVE, FETCH, ANSWER)):
            assert client.post(f"{base}{path}", content=b"0" * 5_000_000).status_code == 401
            headers = Signature(own).headers(path)
            assert client.post(f"{base}{path}", content=b"0" * 5_000_000, headers=headers).status_code == 413
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{fleet.port}{FETCH}", timeout=5)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{base}{FETCH}", content=b"")  # a CA nobody else knows
    log = (fleet.run / "deployment" / "superlink.log").read_text()
    assert "refused: no registered key" in log
    assert re.search(r"refused: client 1, node \d+: not signed by its key", log)


def test_a_server_that_is_killed_comes_back_to_the_same_bits(tmp_path):
    """The ServerApp between two phases, then the SuperLink; the nodes come back by themselves."""
    text = only(NINE, "cdma-one", "codasca")
    path = experiment(tmp_path, text, rounds=4, clients=3)
    with Fleet(tmp_path, path, nodes=3) as fleet:
        fleet.join(0, {"1.1": "mark:2"})
        fleet.join(1, {"3.0": "mark:2"})
        fleet.join(2)
        wait_for(fleet.mark(0).exists, 300, [fleet.serve])
        _, app = descendants(fleet.serve.pid)
        os.kill(app, signal.SIGKILL)
        wait_for(fleet.mark(1).exists, 300, [fleet.serve])
        hub = descendants(fleet.serve.pid)[0]
        os.kill(hub, signal.SIGKILL)
        fleet.wait(400)
        said = fleet.log("server")
        assert "the ServerApp has ended (signal 9)" in said
        assert "the SuperLink has ended; starting it again" in said
        stamped = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ the server at \S+ "
        for what in ("is away: .*; trying again, every 120 s at last$", "is there again$"):
            assert re.search(stamped + what, fleet.log("client-2"), re.M), what
        simulated(plan_of(path), tmp_path / "sim")
        assert_same_end(fleet.run, tmp_path / "sim")
        assert_replays(fleet.run)


def test_all_is_killed_at_once_where_walks_are_cut_short(tmp_path):
    """Strata, weights and unfinished walks; every process of every machine dies, and is started again."""
    quorum = "4\nenough = 2\nstratified = true\npartial_work = 0.01"
    text = only(NINE, "cdma-one", "codasca").replace("0.05", "0.001")
    more = '[merge]\nweights = "inverse_propensity"\n[sampling]\nstrata = [0, 1, 0, 1]\n[algorithms]'
    text = text.replace("[algorithms]", more)
    path = experiment(tmp_path, text, rounds=5, K=100, invite=quorum)
    with Fleet(tmp_path, path) as fleet:
        nodes, history = [fleet.join(client) for client in range(4)], fleet.run / "history.jsonl"
        wait_for(lambda: history.exists() and len(told(fleet.run)) > 4, 300, [fleet.serve])
        every = [one.pid for one in (fleet.serve, *nodes)]
        every += [pid for one in every for pid in descendants(one)]
        for pid in every:
            with contextlib.suppress(ProcessLookupError):  # its parent was first
                os.kill(pid, signal.SIGKILL)
        assert gone(every)
        fleet.begin("--resume")
        for client in range(4):
            fleet.join(client)
        fleet.wait(400)
        lines = told(fleet.run)
        assert {line["verdict"] for line in lines} == {"go"}
        assert {line["algorithm"] for line in lines if line.get("steps")} == {"cdma-one", "codasca"}
        used = [sorted(client % 2 for client in line["used"]) for line in lines]
        # When devices come back one by one, a stratum may be away for a phase.
        assert used.count([0, 1]) >= len(used) - 2
        assert {len(own) for own in used} <= {1, 2}
        assert_replays(fleet.run)


def test_devices_join_with_their_own_files(own, tmp_path):
    """The commands as a person types them, for the last of two algorithms, and Ctrl-C on a node."""
    path, files = own
    path.write_text(OWN + "cdma-ada = { c_eta = 0.05, c_gamma = 0.08, c_alpha = 0.7, rho = 0.3 }\n")
    with Fleet(tmp_path, path, nodes=3, more=("--algorithm", "cdma-ada")) as fleet:
        nodes = []
        for client, file in enumerate(files):
            place = ["--server", f"localhost:{fleet.port}", "--key", fleet.keys / f"node-{client}"]
            command = ["fedsaddle", "join", path, *place, "--data", file]
            command += ["--most-visits", 4] if client == 2 else []
            nodes.append(fleet.start(f"client-{client}", command))
        fleet.wait(400)
        assert "3 devices hold 87 rows" in fleet.log("server")
        assert [line["verdict"] for line in told(fleet.run)] == ["go"] * 6
        assert ["2" in line["refused"] for line in told(fleet.run)] == [False] * 4 + [True] * 2
        why = "policy: this device has answered 4 visits, and may no more"
        assert f"not answered: Refused: {why}" in fleet.log("client-2")
        assert f"client 2 is refused: it failed: Refused: {why}" in fleet.log("server")
        # Who waited at its door was let go of when it ended.
        assert "Traceback" not in (fleet.run / "deployment" / "superlink.log").read_text()
        below = descendants(nodes[0].pid)
        nodes[0].send_signal(signal.SIGINT)
        assert nodes[0].wait(20) == 0
        assert gone(below)


def test_ctrl_c_leaves_nothing_behind_and_can_be_resumed(tmp_path):
    path = experiment(tmp_path, only(NINE, "cdma-ada"), rounds=4)
    command = ["fedsaddle", "local", path, "--nodes", "2", "--out", tmp_path / "real"]
    rounds, log = tmp_path / "real" / "history.jsonl", tmp_path / "log"

    for number, expected in ((signal.SIGTERM, 130), (signal.SIGKILL, -9)):
        size = rounds.stat().st_size if rounds.exists() else 0
        process = Started([*command, *(["--resume"] if size else [])], log)
        try:
            wait_for(lambda: rounds.exists() and rounds.stat().st_size > size, 300, [process])  # noqa: B023
            below = descendants(process.pid)
            assert len(below) == 4
            process.send_signal(number)
            process.wait(60)
        finally:
            process.kill()
        assert process.poll() == expected, log.read_text()
        assert gone(below)
        if number != signal.SIGKILL:
            assert "--resume" in log.read_text()
    assert Started([*command, "--resume"], log).wait(600) == 0, log.read_text()[-2000:]
    assert_replays(tmp_path / "real")
