"""A deployment that one device, one file, one full disk or one forgotten date cannot stop."""

import json

import pytest
import torch

pytest.importorskip("flwr")

from fedsaddle.app.replay import replay_run
from fedsaddle.core import Pair
from fedsaddle.errors import BadInput
from fedsaddle.flower import client, policy, roll, server, usual, waiting, wire
from fedsaddle.flower.client import Memory, Site, client_app, visit
from fedsaddle.flower.policy import Logbook, Policy
from test_flower import (  # noqa: F401  (fixtures)
    NINE,
    OWN,
    Clients,
    assert_replays,
    deployed,
    nine,
    own,
    plan_of,
    quick,
    told,
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
    monkeypatch.setattr(waiting.Wait, "sift", lambda self: None)
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


def test_a_run_that_diverges_by_itself_still_does(nine, tmp_path):  # noqa: F811
    settings = ["algorithms.cdma-nc.eta=1e60", "algorithms.cdma-nc.gamma=1e60"]
    plan = plan_of(nine, FOUR, *settings, algorithms=["cdma-nc"], rounds=6)
    one = deployed(plan, Clients(plan, tmp_path / "nodes"), tmp_path / "real")
    assert "diverged" in (tmp_path / "real" / "events.csv").read_text()
    assert not one.roll.refusals
    assert_replays(tmp_path / "real")


def test_replay_says_what_events_csv_says(nine, tmp_path, monkeypatch):  # noqa: F811
    """Somebody strikes out an event and makes all hashes fit: that is seen too."""
    from fedsaddle.runs.files import as_json, sha256

    monkeypatch.setattr(waiting.Wait, "sift", lambda self: None)
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


# --- what a device lets a server ask -----------------------------------------------------------------------


def test_rounds_rise_within_a_run(nine, tmp_path):  # noqa: F811
    site = Site(plan_of(nine), 1, tmp_path)
    visit(site, call(site, round=9, t=0))
    visit(site, call(site, round=9, t=0))  # a server that died asks again
    visit(site, call(site, round=9 - policy.BACK, t=0))  # or has lost a checkpoint
    with pytest.raises(wire.Refused, match="policy: rounds must rise: round 6 was asked for after round 9"):
        visit(site, call(site, round=6, t=0))
    visit(site, call(site, round=6, t=0, seed=5))  # another lane
    for _ in range(policy.AGAIN):
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
