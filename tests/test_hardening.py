"""A deployment that one device, one file, one full disk or one forgotten date cannot stop."""

import contextlib
import errno
import gzip
import json
import math
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

import httpx

from fedsaddle import report, scratch
from fedsaddle.app import deploy as app
from fedsaddle.app.replay import replay_run
from fedsaddle.border import files
from fedsaddle.core import Pair
from fedsaddle.data import downloads
from fedsaddle.errors import BadInput
from fedsaddle.flower import (
    client,
    deploy,
    journal,
    keys,
    metrics,
    policy,
    roll,
    server,
    store,
    supervise,
    usual,
    waiting,
    wire,
)
from fedsaddle.flower.client import Memory, Site, client_app, visit
from fedsaddle.flower.policy import Logbook, Policy
from test_flower import (  # noqa: F401  (fixtures)
    FEDSADDLE,
    NINE,
    OWN,
    ROOT,
    Clients,
    Fleet,
    assert_replays,
    assert_same_end,
    deployed,
    experiment,
    nine,
    only,
    own,
    plan_of,
    quick,
    simulated,
    told,
    wait_for,
)


def call(site, algorithm="cdma-nc", **changed):
    """A message as the server sends it."""
    header = {
        "run": "0" * 32,
        "contract": wire.contract(site.plan.resolved, algorithm),
        "seed": 3,
        "round": 0,
    }
    header |= {"algorithm": algorithm, "phase": 0, "t": 0, "client": site.client, "kept": -1, **changed}
    return wire.pack(header, site.lane(algorithm, 3).down[0])


FOUR = "quorum={invite=4, deadline=5.0}"


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64).numpy().tobytes()


def liar(size, since=2, who=1, phase=0, name=None):
    """Answers in which one client, from a round on, sends the same huge number for every value."""

    def answers(header, reply):
        if header.get("client") == who and header.get("round", -1) >= since and header["phase"] == phase:
            floats = reply.content["floats"]
            for key in [key for key in floats if not key.endswith(" is")]:
                if name is None or key.startswith(name):
                    floats[key] = doubles(*[size] * (len(floats[key]) // 8))
        return [(0.0, reply)]

    return answers


# --- one answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("since", [0, 2])
@pytest.mark.parametrize("size", [1e6, 1.7e308])
def test_an_answer_far_larger_than_the_others_is_refused(nine, tmp_path, size, since):  # noqa: F811
    plan = plan_of(nine, FOUR, algorithms=["cdma-nc"], rounds=6)
    said = []
    deployed(plan, Clients(plan, tmp_path / "nodes", liar(size, since)), tmp_path / "real", said)
    lines = told(tmp_path / "real")
    for line in lines[since : since + 3]:
        assert "times the median" in line["refused"]["1"]
        assert sorted(line["used"]) == [0, 2, 3]
    assert all(1 not in line["invited"] for line in lines[since + 3 :])
    assert "client 1 is no longer invited, after 3 refused answers" in said
    assert (tmp_path / "real" / "events.csv").read_text().count("\n") == 1  # its header
    assert_replays(tmp_path / "real")


def test_every_algorithm_bears_a_liar_in_every_phase(nine, tmp_path):  # noqa: F811
    for phase in (0, 1):
        plan = plan_of(nine, FOUR)
        place = tmp_path / str(phase)
        deployed(plan, Clients(plan, place / "nodes", liar(1e300, since=1, phase=phase)), place / "real")
        assert "diverged" not in (place / "real" / "events.csv").read_text()
        assert any("1" in line["refused"] for line in told(place / "real"))
        assert_replays(place / "real")


@pytest.mark.parametrize(
    ("size", "why"), [(1.7e308, "is not finite, or its square would not be"), (1e153, "4 answers makes ")]
)
def test_a_spoilt_merge_is_an_abandoned_round(nine, tmp_path, monkeypatch, size, why):  # noqa: F811
    """If nobody looks at answers one by one, what comes of them shows it, and the largest is struck."""
    monkeypatch.setattr(waiting.Wait, "sift", lambda self: False)
    plan = plan_of(nine, FOUR, algorithms=["cdma-nc"], rounds=6)
    deployed(plan, Clients(plan, tmp_path / "nodes", liar(size)), tmp_path / "real")
    lines = told(tmp_path / "real")
    assert [line["verdict"] for line in lines[:6]] == ["go", "go", "abandon", "abandon", "abandon", "go"]
    assert all("times the median" in line["refused"]["1"] for line in lines[2:5])
    assert sorted(lines[2]["late"]) == [0, 2, 3]
    events = (tmp_path / "real" / "events.csv").read_text()
    assert events.count("abandoned") == 3
    assert why in events
    assert "diverged" not in events
    assert_replays(tmp_path / "real")
    assert [one.abandoned for one in replay_run(tmp_path / "real")] == [3]


@pytest.mark.parametrize("quorum", [FOUR, "quorum={invite=4, enough=2, deadline=5.0}"])
def test_what_all_answers_have_in_common_is_nobodys_lie(nine, tmp_path, quorum):  # noqa: F811
    """Steps change and stages end. A run of CODASCA used to bar everybody when its second stage began."""

    def answers(header, reply):
        return liar(1e6, who=header.get("client"))(header, reply)

    plan = plan_of(nine, quorum, algorithms=["cdma-nc"], rounds=4)
    one = deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real")
    assert [line["verdict"] for line in told(tmp_path / "real")] == ["go"] * 4
    assert not any(one.roll.refusals.values())


@pytest.mark.parametrize("far", ["1e60", "1e200"])  # in some rounds, and within a walk
def test_a_run_that_diverges_by_itself_still_does(nine, tmp_path, far):  # noqa: F811
    settings = [f"algorithms.cdma-nc.eta={far}", f"algorithms.cdma-nc.gamma={far}"]
    plan = plan_of(nine, FOUR, *settings, algorithms=["cdma-nc"], rounds=6)
    one = deployed(plan, Clients(plan, tmp_path / "nodes"), tmp_path / "real")
    assert "diverged" in (tmp_path / "real" / "events.csv").read_text()
    assert not one.roll.refusals
    assert_replays(tmp_path / "real")


def test_answers_that_are_not_finite_are_refused_where_one_is(nine, tmp_path):  # noqa: F811
    def answers(header, reply):
        if header.get("client") != 3 and header.get("round") == 1:
            return liar(math.nan, since=1, who=header["client"])(header, reply)
        return [(0.0, reply)]

    plan = plan_of(nine, FOUR, algorithms=["cdma-nc"], rounds=4)
    one = deployed(plan, Clients(plan, tmp_path / "nodes", answers), tmp_path / "real")
    (line,) = (line for line in told(tmp_path / "real") if line["round"] == 1)
    assert (line["verdict"], line["used"], len(line["refused"])) == ("go", [3], 3)
    assert one.roll.refusals == {0: 1, 1: 1, 2: 1}
    assert_replays(tmp_path / "real")


def test_replay_says_what_events_csv_says(nine, tmp_path, monkeypatch):  # noqa: F811
    """Somebody strikes out an event and makes all hashes fit: that is seen too."""
    from fedsaddle.runs.files import as_json, sha256

    monkeypatch.setattr(waiting.Wait, "sift", lambda self: False)
    plan = plan_of(nine, FOUR, algorithms=["cdma-nc"], rounds=6)
    deployed(plan, Clients(plan, tmp_path / "nodes", liar(1e200)), tmp_path / "real")
    events, saved = tmp_path / "real" / "events.csv", tmp_path / "real" / "checkpoint.json"
    rows = events.read_text().splitlines(keepends=True)
    events.write_text("".join(rows[:1] + rows[2:]))
    says = json.loads(saved.read_text())
    del says["checksum"]
    data = events.read_bytes()
    says["tables"]["events.csv"] = {"length": len(data), "sha256": sha256(data)}
    saved.write_bytes(as_json({**says, "checksum": sha256(as_json(says))}))
    (one,) = replay_run(tmp_path / "real")
    assert one.quarrels == ("the replay abandoned in round 2, the run did not",)


def test_how_large_updates_are_outlives_the_server(nine, tmp_path):  # noqa: F811
    path = tmp_path / "usual.json"
    seen = usual.Usual(path)
    assert seen.recall()
    down = {"z": Pair(torch.zeros(3), torch.zeros(2))}
    measure = usual.Measure(seen, "cdma-nc 0 0", down, lambda client: False)
    measure.learn({n: {"z": Pair(torch.ones(3), torch.ones(2) * n)} for n in range(4)})
    seen.save()
    again = usual.Usual(path)
    assert again.recall()
    assert again.sizes == seen.sizes != {}
    large = {9: {"z": Pair(torch.full((3,), 50.0), torch.zeros(2))}}
    alone = usual.Measure(again, "cdma-nc 0 0", down, lambda client: False)
    assert "times the median" in alone.too_large(large, {})[9]
    assert alone.too_large(large, {"z": 1e9}) == {}  # the experiment has a bound of its own
    assert usual.Measure(again, "other 0 0", down, lambda client: False).too_large(large, {}) == {}
    path.write_bytes(path.read_bytes().replace(b"[1", b"[7"))
    assert not usual.Usual(path).recall()


def test_strikes_are_taken_back_by_good_answers():
    one = roll.Roll(None, {}, lambda: False, [].append)
    for _ in range(10_000 // roll.FORGIVEN):  # once in twenty answers: never barred
        one.strike(3, "its disk was full", 3)
        for _ in range(roll.FORGIVEN):
            one.judged((), [3])
        assert one.barred(3) == set()
    for _ in range(3):
        one.strike(3, "it lies", 3)
        for _ in range(roll.FORGIVEN - 1):
            one.judged((), [3])
    assert one.barred(3) == {3}


# --- rows on devices ---------------------------------------------------------------------------------------


def test_any_algorithm_of_many_is_served_with_rows_on_devices(own, tmp_path):  # noqa: F811
    """The server runs one of them; the devices, whose command has no such option, have all."""
    path, files = own
    rules = NINE.split("[algorithms]\n")[1]
    path.write_text(OWN.split("[algorithms]\n")[0] + "[algorithms]\n" + rules)
    everything = plan_of(path, devices=True)
    sites = [Site.holding(everything, n, tmp_path / str(n), str(files[n])) for n in range(3)]
    for name in everything.studies:
        plan = plan_of(path, devices=True, algorithms=[name], rounds=1)
        grid = Clients(plan, tmp_path / "nodes")
        grid.apps = {site.client: client_app(site) for site in sites}
        said = []
        deployed(plan, grid, tmp_path / name, said)
        assert "3 devices hold 87 rows" in said, said
        assert [line["verdict"] for line in told(tmp_path / name)][-1] == "go"


# --- what nobody may touch unseen --------------------------------------------------------------------------


def test_one_flipped_byte_of_what_a_device_kept_is_seen(nine, tmp_path):  # noqa: F811
    site = Site(plan_of(nine, algorithms=["codasca"]), 1, tmp_path)
    visit(site, call(site, algorithm="codasca"))
    (path,) = tmp_path.glob("memory/**/*.safetensors")
    data = bytearray(path.read_bytes())
    data[-80] ^= 1
    path.write_bytes(data)
    with pytest.raises(wire.Refused, match="kept in round 0 is gone or damaged"):
        visit(site, call(site, algorithm="codasca", round=1, t=1, kept=0))


@pytest.mark.parametrize("spoil", [lambda data: data.replace(b"0.", b"0.97", 1), lambda data: data[:5]])
def test_facts_that_somebody_changed_are_refused_in_one_line(own, tmp_path, spoil):  # noqa: F811
    path, files = own
    plan = plan_of(path, devices=True)
    grid = Clients(plan, tmp_path / "nodes")
    sites = [Site.holding(plan_of(path, devices=True), n, tmp_path / str(n), str(files[n])) for n in range(3)]
    grid.apps = {site.client: client_app(site) for site in sites}
    nodes = roll.Roll(grid, {n: 100 + n for n in grid.apps}, lambda: False, [].append)
    study = plan.studies["cdma-one"]
    server.Deployment(nodes, plan, "0" * 32, folder=tmp_path)._enrol(study)
    facts = tmp_path / "facts.json"
    again = server.Deployment(nodes, plan, "0" * 32, folder=tmp_path)
    again._enrol(study)
    assert 0 < again.facts["p"] < 1
    facts.write_bytes(spoil(facts.read_bytes()))
    with pytest.raises(BadInput, match=r"facts.json is damaged: its checksum does not match"):
        server.Deployment(nodes, plan, "0" * 32, folder=tmp_path)._enrol(study)


def test_a_device_remembers_a_few_runs_only(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "RUNS", 2)
    for number in range(5):
        Memory(tmp_path, f"{number:032x}", "codasca", 0).keep(0, Pair(torch.ones(1), torch.ones(1)))
    assert sorted(path.name[-1] for path in (tmp_path / "memory").iterdir()) == ["3", "4"]


def test_a_server_cannot_fill_a_device(tmp_path, monkeypatch):
    """By seeds that there are not, nor by rounds of which none is ever used."""
    monkeypatch.setattr(client, "LANES", 3)
    blank = Pair(torch.zeros(1), torch.zeros(1))
    for seed in range(9):
        Memory(tmp_path, "0" * 32, "codasca", seed).keep(0, blank)
    assert len(list((tmp_path / "memory" / ("0" * 32)).iterdir())) == 3
    one = Memory(tmp_path, "1" * 32, "codasca", 0)
    for number in range(50):
        assert one.recall(5 if number > 5 else -1, blank) == blank
        one.keep(number, blank)
    rounds = sorted(int(path.stem) for path in one.folder.iterdir())
    assert rounds == [*range(5 - policy.BACK, 6), *range(49 - client.UNUSED, 50)]


def test_who_remembers_goes_on_from_the_checkpoint_before(nine, tmp_path):  # noqa: F811
    """The next round had begun when the last checkpoint was damaged: what counted before is still there."""

    class Killed(BaseException):
        pass

    def answers(header, reply):
        if [one["round"] for one in grid.asked].count(3) == 4:
            raise Killed
        return [(0.0, reply)]

    plan = plan_of(nine, FOUR, algorithms=["codasca"], rounds=5)
    grid = Clients(plan, tmp_path / "nodes", answers)
    with pytest.raises(Killed):
        deployed(plan, grid, tmp_path / "real")
    flip(tmp_path / "real" / "checkpoint.json")
    plan = plan_of(nine, FOUR, algorithms=["codasca"], rounds=5)
    deployed(plan, Clients(plan, tmp_path / "nodes"), tmp_path / "real")
    simulated(plan_of(nine, FOUR, algorithms=["codasca"], rounds=5), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")
    assert_replays(tmp_path / "real")


# --- what a device lets a server ask -----------------------------------------------------------------------


def test_rounds_rise_within_a_run(nine, tmp_path):  # noqa: F811
    site = Site(plan_of(nine), 1, tmp_path)
    visit(site, call(site, round=9, t=0))
    visit(site, call(site, round=9, t=0))  # a server that died asks again
    visit(site, call(site, round=9 - policy.BACK, t=0))  # or has lost a checkpoint
    with pytest.raises(wire.Refused, match="policy: rounds must rise: round 6 was asked for after round 9"):
        visit(site, call(site, round=6, t=0))
    visit(site, call(site, round=6, t=0, seed=5))  # another lane
    for _ in range(policy.ASKED_AGAIN):
        visit(site, call(site, round=12, t=0))
    with pytest.raises(wire.Refused, match="more than 8 times"):
        visit(site, call(site, round=12, t=0))
    visit(site, call(site, round=13, t=0))


def test_a_device_answers_as_often_as_it_may_over_all_runs(nine, tmp_path):  # noqa: F811
    site = Site(plan_of(nine), 1, tmp_path, Policy(visits=3))
    for number in range(3):
        visit(site, call(site, run=f"{number:032x}"))
    with pytest.raises(wire.Refused, match="has answered 3 visits, and may no more"):
        visit(site, call(site, run="f" * 32))
    assert Logbook.at(tmp_path / "visits.json").count == 3  # kept over restarts
    (tmp_path / "visits.json").write_text("{}")
    with pytest.raises(BadInput, match="restore it from a copy, or remove it to count visits from 0"):
        _ = site.logbook


def test_few_rows_are_not_asked_about(nine, tmp_path):  # noqa: F811
    plan = plan_of(nine)
    rows = int(plan.studies["cdma-nc"].problem.federation.sizes[1])
    asked = {
        (name, number): policy.asked_for(study, number, Site(plan, 1, tmp_path).lane(name, 3).down[number])
        for name, study in plan.studies.items()
        for number in range(len(study.algorithm.phases()))
    }
    assert asked["cdma-nc", 0] == {"minibatches"}
    assert asked["cdma-one", 0] == asked["cdma-ada", 0] == asked["parallel-sgda", 0] == {"full gradient"}
    assert asked["extra-step", 0] == asked["codasca", 0] == asked["cdma-one", 1] == {"minibatches"}
    site = Site(plan, 1, tmp_path, Policy(batch=3))
    with pytest.raises(wire.Refused, match="a minibatch has 2 rows, this device wants at least 3"):
        visit(site, call(site))
    site = Site(plan, 1, tmp_path, Policy(rows=rows + 1))
    visit(site, call(site))
    with pytest.raises(wire.Refused, match=f"a full gradient has {rows} rows"):
        visit(site, call(site, algorithm="cdma-one"))


def test_what_a_policy_refuses_is_said_on_both_sides(nine, tmp_path):  # noqa: F811
    plan = plan_of(nine, FOUR, algorithms=["cdma-nc"], rounds=6)
    grid = Clients(plan, tmp_path / "nodes")
    grid.apps[2] = client_app(Site(plan, 2, tmp_path / "nodes" / "2", Policy(visits=2)))
    said = []
    deployed(plan, grid, tmp_path / "real", said)
    assert any(
        "client 2 is refused" in line and "policy: this device has answered 2" in line for line in said
    )
    assert_replays(tmp_path / "real")


# --- keys --------------------------------------------------------------------------------------------------


def aged(folder, days):
    """Keys whose certificates end in so many days."""
    keys.make(folder, 2)
    root = keys.serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    keys._serving(root, folder / "server", [keys._name("fl.example.org")], days)


def test_a_certificate_that_ends_soon_is_spoken_of_and_one_that_has_is_refused(tmp_path):
    aged(tmp_path / "keys", 400)
    assert keys.ending(tmp_path / "keys" / "server") == []
    aged(tmp_path / "soon", 12)
    (told,) = keys.ending(tmp_path / "soon" / "server")
    assert f"in 11 days: fedsaddle keys renew {tmp_path / 'soon'}" in told
    aged(tmp_path / "over", 0)
    assert any(line.startswith("server.crt  ended ") for line in keys.held(tmp_path / "over"))
    with pytest.raises(BadInput, match=r"server.crt ended on .* fedsaddle keys renew"):
        keys.ending(tmp_path / "over" / "server")
    assert not keys.renew(tmp_path / "over")
    assert keys.ending(tmp_path / "over" / "server") == []
    assert "hosts  fl.example.org" in keys.held(tmp_path / "over")  # the names it had


def test_devices_know_a_renewed_server_by_the_ca_they_have(tmp_path):
    keys.make(tmp_path / "keys", 1)
    before = (tmp_path / "keys" / "node-0" / "ca.crt").read_bytes()
    assert not keys.renew(tmp_path / "keys", ["fl.example.org"])
    assert (tmp_path / "keys" / "node-0" / "ca.crt").read_bytes() == before
    ca = keys.certificate_at(tmp_path / "keys" / "node-0" / "ca.crt")
    keys.certificate_at(tmp_path / "keys" / "server" / "server.crt").verify_directly_issued_by(ca)
    assert keys.renew(tmp_path / "keys", days=keys.DAYS)  # longer than the CA's: that is renewed too
    assert (tmp_path / "keys" / "node-0" / "ca.crt").read_bytes() != before
    (tmp_path / "keys" / "ca.key").unlink()
    with pytest.raises(BadInput, match="renew where it is kept"):
        keys.renew(tmp_path / "keys")


def test_who_is_revoked_may_not_join_and_gets_another_key(tmp_path):
    keys.make(tmp_path / "keys", 2)
    before = keys.node_keys(tmp_path / "keys" / "server")
    keys.revoke(tmp_path / "keys", 1)
    assert list(keys.node_keys(tmp_path / "keys" / "server")) == [0]
    assert not (tmp_path / "keys" / "node-1").exists()
    keys.make(tmp_path / "keys", 2)
    after = keys.node_keys(tmp_path / "keys" / "server")
    assert after[0] == before[0]
    assert after[1] != before[1]
    with pytest.raises(BadInput, match="no such client"):
        keys.revoke(tmp_path / "keys" / "server", 7)


def test_a_key_of_another_certificate_is_refused_in_one_line(tmp_path):
    """As after a renewal of which only a part was copied."""
    keys.make(tmp_path / "keys", 1)
    path = tmp_path / "keys" / "server" / "server.key"
    before = path.read_bytes()
    keys.renew(tmp_path / "keys")
    assert not list(tmp_path.rglob("*.part"))
    path.write_bytes(before)
    with pytest.raises(BadInput, match="they do not belong together; where"):
        keys.server_files(path.parent)


def test_a_key_is_of_one_client(tmp_path):
    """Else one device would have two seats, and refuse the messages for one of them."""
    keys.make(tmp_path / "keys", 2)
    one, other = (tmp_path / "keys" / "server" / "nodes" / f"node-{n}.pub" for n in (0, 1))
    other.write_bytes(one.read_bytes())
    with pytest.raises(BadInput, match=r"node-1.pub is the key of another client too"):
        keys.node_keys(tmp_path / "keys" / "server")


def test_private_keys_that_others_can_read_are_refused(tmp_path):
    keys.make(tmp_path / "keys", 1)
    for path, read in (
        (tmp_path / "keys" / "server" / "server.key", keys.server_files),
        (tmp_path / "keys" / "node-0" / "key", keys.node_key),
    ):
        read(path.parent)
        path.chmod(0o644)
        with pytest.raises(BadInput, match=f"chmod 600 {path}"):
            read(path.parent)


# --- what comes from strangers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 50_000) + " = 1",
        "[" + " . ".join(["'a b'"] * 500) + "]",
        'x = {"a"' + '."a"' * 100 + " = 1}",
        "# " + "x" * files.LARGEST_FILE,
    ],
)
def test_a_large_or_deep_toml_is_refused_before_it_is_read(tmp_path, text, monkeypatch):
    monkeypatch.setattr(files.tomllib, "loads", lambda text: pytest.fail("it was read"))
    path = tmp_path / "deep.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match="more than"):
        files.read_tables(str(path))


def test_a_toml_of_ordinary_keys_is_read(tmp_path):
    path = tmp_path / "fine.toml"
    path.write_text('a.b."c.d" = [0.1, 0.2, 0.3]\n[x.y]\nz = "' + "1.2." * 20 + '"\n' + "# " + "w" * 10**6)
    assert files.read_tables(str(path))[0]["a"]["b"]["c.d"] == [0.1, 0.2, 0.3]


def test_downloads_are_bounded_as_they_come_and_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "LARGEST_DOWNLOAD", 1000)
    (tmp_path / "much").write_bytes(b"0" * 1001)
    with pytest.raises(downloads.Unfit, match="more than 1000 bytes"):
        downloads.download((tmp_path / "much").as_uri(), tmp_path / "here", lambda *_: None)
    assert not list(tmp_path.glob("here*"))
    packed = gzip.compress(b"0" * 1001)
    assert len(packed) < 100
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        downloads._plain(packed, "rows.gz")
    assert downloads._plain(gzip.compress(b"0" * 1000), "rows.gz") == b"0" * 1000


def test_no_cell_of_a_report_is_a_formula():
    rows = report._csv([["=HYPERLINK(1)", "@x", "+1", -1.5, "cdma-ada", ""]])
    assert rows == b"'=HYPERLINK(1),'@x,'+1,-1.5,cdma-ada,\n"


# --- what a process leaves ---------------------------------------------------------------------------------


def test_temporary_folders_of_a_killed_process_are_removed_by_the_next(tmp_path):
    program = (
        "import os, signal, sys\nfrom fedsaddle import scratch\n"
        "print(scratch.begin_folder('fs-', sys.argv[1]), flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT.parent / "src")}
    one = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    left = Path(one.stdout.readline().strip())
    stranger = tmp_path / "fs-strangers"
    stranger.mkdir()
    mine = scratch.begin_folder("fs-", str(tmp_path))
    assert left.exists()  # its process lives
    one.kill()
    one.communicate()
    scratch.end_folder(mine)
    again = scratch.begin_folder("fs-", str(tmp_path))
    assert sorted(tmp_path.iterdir()) == sorted([again, stranger])
    scratch.end_folder(again)


def test_a_damaged_database_is_put_aside(tmp_path):
    said, path = [], tmp_path / "link.db"
    store.check_database(path, said.append)
    with sqlite3.connect(path) as database:
        database.execute("create table a (b)")
    store.check_database(path, said.append)
    assert said == []
    path.write_bytes(b"garbage" * 1000)
    store.check_database(path, said.append)
    assert "is damaged" in said[0]
    assert not path.exists()
    assert path.with_name("link.db.damaged").exists()


def test_a_journal_is_private_dated_and_bounded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(journal, "LONGEST_LOG", 200)
    log = journal.Journal(tmp_path / "audit.jsonl")
    for number in range(20):
        log.say(f"line {number}")
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert log.path.stat().st_size + log.path.with_name("audit.jsonl.1").stat().st_size < 1000
    assert json.loads(log.path.read_text().splitlines()[-1])["line"] == "line 19"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ line 19", capsys.readouterr().err.splitlines()[-1])


def test_a_log_that_cannot_be_written_ends_nothing_but_is_spoken_of(tmp_path, capsys):
    (tmp_path / "audit.jsonl").mkdir()
    log = journal.Journal(tmp_path / "audit.jsonl")
    log.say("a line")
    with pytest.raises(OSError, match="Is a directory"):
        log.note("phase")
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith(" a line")
    assert said[1].endswith("audit.jsonl cannot be written: Is a directory")


def test_a_device_writes_down_what_it_was_asked(nine, tmp_path):  # noqa: F811
    plan = plan_of(nine, FOUR, algorithms=["cdma-nc"], rounds=3)
    grid = Clients(plan, tmp_path / "nodes")
    grid.apps[2] = client_app(Site(plan, 2, tmp_path / "nodes" / "2", Policy(visits=2)))
    deployed(plan, grid, tmp_path / "real")
    lines = [json.loads(one) for one in (tmp_path / "nodes" / "2" / "audit.jsonl").read_text().splitlines()]
    assert [(line["event"], line["round"]) for line in lines] == [
        ("answered", "0"),
        ("answered", "1"),
        ("refused", "2"),
    ]
    assert "may no more" in lines[2]["why"]


# --- real processes ----------------------------------------------------------------------------------------


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_liar_garbage_in_the_database_and_monitoring(tmp_path):
    """One deployment: a finite answer of 1e300, a server killed, its database and its checkpoint spoilt, a
    device that cannot note its session; then all is well.
    """
    (tmp_path / "client-3" / "node").mkdir(parents=True)
    path = experiment(tmp_path, only(NINE, "cdma-nc"), rounds=32, invite="3\nminimum = 2", deadline="20.0")
    with Fleet(tmp_path, path) as fleet:
        fleet.join(0, {f"{n}.0": "far" for n in range(32)})
        fleet.join(1, {f"{n}.0": "mark:3" for n in range(3, 9)})
        fleet.join(2, {f"{n}.0": "raise" for n in (7, 8, 30)})
        fleet.join(3)
        wait_for(fleet.mark(1).exists, 300, [fleet.serve])
        fleet.serve.kill()
        below = fleet.serve.wait(20)
        assert below == -9
        database = fleet.run / "deployment" / "link.db"
        time.sleep(1.0)
        for path in database.parent.glob(f"{database.name}*"):  # its log too, which would mend it
            path.write_bytes(b"garbage" * 1000)
        port = deploy.free_port()
        flip(fleet.run / "checkpoint.json")
        fleet.begin("--resume", "--metrics-port", str(port))
        seen = {}

        def look():
            try:
                seen["page"] = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=2).text
                seen["health"] = httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code
                seen["else"] = httpx.get(f"http://127.0.0.1:{port}/other", timeout=2).status_code
            except httpx.HTTPError:
                return False
            return "fedsaddle_answers_total" in seen["page"]

        wait_for(look, 200, [fleet.serve])
        assert "fedsaddle_up 1" in seen["page"]
        assert "fedsaddle_nodes_registered 4" in seen["page"]
        assert 'fedsaddle_certificate_ends_seconds{file="server.crt"}' in seen["page"]
        assert (seen["health"], seen["else"]) == (200, 404)
        fleet.wait(300)
        lines = told(fleet.run)
        # Of three first answers none is known to be too large: the merge is not finite, and abandoned.
        assert lines[0]["verdict"] == "abandon"
        assert "times the median" in lines[0]["refused"]["0"]
        assert "the merge of 3 answers is not finite" in (fleet.run / "events.csv").read_text()
        assert all(0 not in line["used"] for line in lines)
        assert "client 0 is no longer invited, after 3 refused answers" in fleet.log("server")
        assert sum("boom" in line["refused"].get("2", "") for line in lines) == 3
        assert 2 in lines[31]["used"]  # one of its strikes was taken back
        assert "link.db is damaged" in fleet.log("server")
        assert "was damaged; the run goes on from the checkpoint before the last" in fleet.log("server")
        assert "client-3/node cannot be written: Is a directory" in fleet.log("client-3")
        assert any(3 in line["used"] for line in lines)
        assert not any("Traceback" in fleet.log(name) for name in ("server", "client-1", "client-3"))
        audit = (fleet.run / "deployment" / "audit.jsonl").read_text()
        assert {json.loads(line)["event"] for line in audit.splitlines()} >= {
            "started",
            "said",
            "phase",
            "ended",
        }
        assert_replays(fleet.run)


def test_monitoring_bears_whoever_asks(tmp_path, monkeypatch):
    """Half-sent requests without end, a certificate that is just being replaced, its own death."""
    monkeypatch.setattr(supervise, "REVIVE", 0.0)
    keys.make(tmp_path / "keys", 1)
    status, port = metrics.Status(tmp_path / "status.json"), deploy.free_port()
    status.write(nodes_registered=4)
    listener = metrics.endpoint(port, status.path, tmp_path / "keys" / "server")

    def ask(path):
        return httpx.get(f"http://127.0.0.1:{port}/{path}", timeout=20)

    with listener.socket, contextlib.ExitStack() as opened:
        family = supervise.Processes()
        opened.callback(family.end)
        tend = family.keep("metrics", listener.serve_forever, tmp_path / "metrics.log")
        (child,) = family.children
        ask("health")
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (64, 64))
        for _ in range(3 * metrics.CALLERS):
            line = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            line.sendall(b"GET /")
            assert ask("health").status_code == 200
        tasks = len(list(Path(f"/proc/{child.pid}/task").iterdir()))
        assert tasks <= metrics.CALLERS + 4
        (tmp_path / "keys" / "server" / "server.crt").unlink()
        assert ask("metrics").text.startswith("# HELP fedsaddle_up")
        child.send(signal.SIGKILL)
        wait_for(lambda: not child.alive(), 20)
        tend()
        assert ask("health").status_code == 200
    assert (tmp_path / "metrics.log").stat().st_size == 0


def test_a_full_disk_is_one_line_and_a_pause(nine, tmp_path, monkeypatch, capsys):  # noqa: F811
    """The server says so, waits, and is started again; nothing is counted against it."""
    monkeypatch.setattr(app, "DISK_FULL", 0.2)
    plan = plan_of(nine)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "run/checkpoint.json")

    monkeypatch.setattr(app, "carry_out", full)
    asked = app._server(plan, tmp_path, tmp_path, ("127.0.0.1", 1), app.PLAINLY)
    nodes = roll.Roll(None, {}, lambda: False, [].append)
    began = time.monotonic()
    assert asked.work(server.Deployment(nodes, plan, "0" * 32), True) == deploy.WAITED
    assert time.monotonic() - began >= 0.2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "No space left on device (run/checkpoint.json); trying again in 0.2 s, from the last checkpoint"
    )


def test_what_may_not_be_written_is_one_line(nine, tmp_path, monkeypatch, capsys):  # noqa: F811
    """As after somebody was root for once; it may be put right while the server tries again."""

    def foreign(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "run/audit.jsonl")

    monkeypatch.setattr(app, "carry_out", foreign)
    asked = app._server(plan_of(nine), tmp_path, tmp_path, ("127.0.0.1", 1), app.PLAINLY)
    nodes = roll.Roll(None, {}, lambda: False, [].append)
    assert asked.work(server.Deployment(nodes, plan_of(nine), "0" * 32), True) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("Z error: Permission denied (run/audit.jsonl)")


STRICT = """
mount --make-rprivate /
mount --bind {state} {state}
mount -o remount,bind,ro /
! touch {tmp}/anything 2>/dev/null
cd {state}
{join} --key {keys}/node-0 & none=$!
{join} --key {keys}/node-0 --folder {state}/node-0 & one=$!
{join} --key {keys}/node-1 --folder {state}/node-1 & two=$!
trap 'kill $one $two; wait' EXIT
{serve} --keys {keys}/server --out runs/study --resume
wait $none || test $? = 2
"""


namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="no mount namespaces for this user",
)


@namespaces
def test_disks_that_are_full_for_a_while(tmp_path):
    program = "import sys, test_hardening; test_hardening.fill_disks(test_hardening.Path(sys.argv[1]))"
    path = os.pathsep.join([str(ROOT.parent / "src"), str(ROOT)])
    command = ["unshare", "-rm", sys.executable, "-c", program, tmp_path]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]


def fill_disks(tmp_path):
    """The server's, then a device's: a line each, and all goes on where there is room again."""
    text = only(NINE, "cdma-nc") + "[checks]\nstrikes = 1000\n"
    path = experiment(tmp_path, text, rounds=60, evaluate_every=60, invite="2\nminimum = 1")
    places = {name: tmp_path / name for name in ("run", "client-1")}
    for place in places.values():
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], check=True)
    prelude = "from fedsaddle.app import deploy; deploy.DISK_FULL = 1.0"
    with Fleet(tmp_path, path, nodes=2, prelude=prelude) as fleet:
        fleet.join(0)
        fleet.join(1)
        history = fleet.run / "history.jsonl"
        wait_for(lambda: history.exists() and len(told(fleet.run)) > 2, 100, [fleet.serve])
        for log, place in (("server", fleet.run), ("client-1", places["client-1"])):
            with contextlib.suppress(OSError), (place / "much").open("wb", buffering=0) as file:
                while True:
                    file.write(b"0" * 4096)
            wait_for(lambda: "No space left on device" in fleet.log(log), 60, [fleet.serve])  # noqa: B023
            (place / "much").unlink()
        fleet.wait(300)
        said = r"Z No space left on device \(.*\); trying again in 1 s, from the last checkpoint"
        assert re.search(said, fleet.log("server"))
        lines = told(fleet.run)
        assert any("No space left" in line["refused"].get("1", "") for line in lines)
        assert 1 in lines[-1]["used"]
        assert not any("Traceback" in fleet.log(name) for name in ("server", "client-0", "client-1"))
        assert_replays(fleet.run)


@namespaces
def test_the_units_folders_are_all_that_must_be_writable():
    """As under ProtectSystem=strict: all is read-only but one folder."""
    with tempfile.TemporaryDirectory(prefix="units-") as place:  # short: names of sockets are
        as_a_unit(Path(place))


def as_a_unit(tmp_path):
    state, port = tmp_path / "state", deploy.free_port()
    (state / "tmp").mkdir(parents=True)
    keys.make(tmp_path / "keys", 2)
    text = only(NINE, "cdma-nc")
    path = experiment(tmp_path, text, rounds=1, clients=2, invite=2)
    program = f"{sys.executable} -m fedsaddle"
    script = STRICT.format(
        state=state,
        tmp=tmp_path,
        keys=tmp_path / "keys",
        join=f"{program} join {path} --server 127.0.0.1:{port}",
        serve=f"{program} serve {path} --listen 127.0.0.1:{port}",
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT.parent / "src"), "TMPDIR": str(state / "tmp")}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(state / "tmp"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-ec", script], capture_output=True, text=True, timeout=300, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Read-only file system; choose another place with --folder" in done.stderr
    assert (state / "runs" / "study" / "report.html").exists()
    assert not (state / "tmp" / "fedsaddle").exists()


def test_the_units_of_the_document_fit_each_other(tmp_path):
    """What a unit writes is below the folder that it may write to."""
    text = (ROOT.parent / "docs" / "deploy.md").read_text()
    units = re.findall(r"```ini\n(.*?)```", text, re.S)
    assert len(units) == 2
    for unit in units:
        values = dict(re.findall(r"^(\w+)=(.*)$", unit, re.M))
        assert (values["ProtectSystem"], values["StateDirectory"]) == ("strict", "fedsaddle")
        assert values["SuccessExitStatus"] == "130"
        words = values["ExecStart"].split()
        written = words[words.index("--out" if "serve" in words else "--folder") + 1]
        assert (Path(values["WorkingDirectory"]) / written).is_relative_to("/var/lib/fedsaddle")
        assert "2" in values["RestartPreventExitStatus"].split()
