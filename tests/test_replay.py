"""The history of a run, played again, comes to the same; one that was damaged is refused in one line."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedsaddle as fs
from fedsaddle.app.replay import replay_run
from fedsaddle.cli import main
from fedsaddle.engine.course import course
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin
from fedsaddle.fleet import Verdict
from fedsaddle.history import Gathering, History, Rules, Told, line, read_history
from fedsaddle.runs.files import as_json, sha256
from zoo import ALGORITHMS, quadratic

FLEETS = {
    "dropout": ["fleet.model=dropout", "fleet.rate=0.35", "quorum.minimum=3"],
    "latency": [
        "fleet.model=latency",
        "fleet.dropout=0.2",
        "quorum.enough=4",
        "quorum.minimum=3",
        "quorum.deadline=25",
        "quorum.grace=5",
    ],
}
SMALL = ["problem.clients=20", "problem.dim_x=3", "problem.dim_y=4", "K=2", "evaluate_every=4"]


def fedsaddle(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedsaddle", *map(str, arguments)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def run(monkeypatch, folder: Path, *more: str, rounds: int = 10) -> Path:
    given = [f"--set={key}" for key in SMALL]
    words = ["run", "quadratic", "--seeds=0-2", f"--rounds={rounds}", "--history", "--quiet", *given, *more]
    assert fedsaddle(monkeypatch, *words, f"--out={folder}") == 0
    return folder


@pytest.mark.parametrize("fleet", FLEETS)
def test_nine_algorithms_come_to_the_same_to_the_last_bit(fleet, tmp_path, monkeypatch, capsys):
    """The experiment's `invite` is 8 or 16; the same minimum abandons some rounds of the former."""
    few = [f"--set=algorithms.{name}.invite=6" for name in ALGORITHMS]
    folder = run(monkeypatch, tmp_path / "run", *few, *(f"--set={key}" for key in FLEETS[fleet]))
    told = (folder / "history.jsonl").read_text()
    assert '"abandon"' in told
    assert '"lost": []' in told
    found = list(replay_run(folder))
    assert {one.algorithm for one in found} == set(ALGORITHMS)
    assert len(found) == 3 * 9
    assert all(one.exact and one.agrees and one.rounds == 10 for one in found)
    assert any(one.abandoned for one in found if one.algorithm == "codasca")
    assert fedsaddle(monkeypatch, "replay", folder) == 0
    assert "codasca seed 2: 10 rounds" in capsys.readouterr().out


def test_a_replay_client_by_client_is_within_the_tolerance(tmp_path, monkeypatch, capsys):
    folder = run(monkeypatch, tmp_path / "run", "--algorithm=cdma-ada")
    assert fedsaddle(monkeypatch, "replay", folder, "--engine=loop") == 0
    out = capsys.readouterr().out
    assert "within 1e-09" in out or "last bit" in out


def test_a_replay_tells_how_far_it_is(recorded, monkeypatch, capsys):
    """Beside its findings, so that these can be read alone."""
    capsys.readouterr()
    assert fedsaddle(monkeypatch, "replay", recorded, "--quiet") == 0
    found, told = capsys.readouterr()
    assert told == ""
    assert fedsaddle(monkeypatch, "replay", recorded) == 0
    again, told = capsys.readouterr()
    assert again == found
    assert re.search(r"^cdma-one round 4/4  stationarity \S+ .* rounds/s$", told, flags=re.M)


def test_an_interrupted_run_is_compared_as_far_as_its_checkpoint(tmp_path, monkeypatch):
    """Killed by its own hand in round 8 of the second algorithm, having made a checkpoint before."""
    program = """
import os, sys
import fedsaddle.runs as runs
save = runs.RunFolder.save
def dying(self, algorithm, stop):
    save(self, algorithm, stop)
    if algorithm == "codasca" and stop is not None and stop.round == 8:
        os._exit(9)
runs.RunFolder.save = dying
from fedsaddle.cli import main
main()
"""
    folder = tmp_path / "run"
    words = ["run", "quadratic", "--algorithm=cdma-one,codasca", "--seeds=0-1", "--rounds=12", "--history"]
    words += [*(f"--set={key}" for key in SMALL), "--quiet", "--checkpoint-seconds=0", f"--out={folder}"]
    assert subprocess.run([sys.executable, "-c", program, *words], timeout=120).returncode == 9
    found = list(replay_run(folder))
    assert [(one.algorithm, one.rounds, one.exact) for one in found] == [
        *[("cdma-one", 12, True)] * 2,
        *[("codasca", 8, True)] * 2,
    ]
    assert all(one.agrees for one in found)
    before = (folder / "history.jsonl").read_bytes()
    assert fedsaddle(monkeypatch, *words, "--resume") == 0
    after = (folder / "history.jsonl").read_bytes()
    assert after.startswith(before)
    assert all(one.exact and one.agrees and one.rounds == 12 for one in replay_run(folder))
    whole = tmp_path / "whole"
    assert fedsaddle(monkeypatch, *words[:-1], f"--out={whole}") == 0
    assert (whole / "history.jsonl").read_bytes() == after


# --- histories that a hand or a disk has changed ---------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    with pytest.MonkeyPatch.context() as patch:
        more = ["--algorithm=cdma-one", "--set=fleet.model=dropout", "--set=quorum.enough=5"]
        return run(patch, folder, *more, "--set=quorum.minimum=4", rounds=4)


def sealed(folder: Path, lines: list[dict]) -> None:
    """Write another history, and make the checkpoint agree: a careful hand."""
    data = "".join(json.dumps(one) + "\n" for one in lines).encode()
    (folder / "history.jsonl").write_bytes(data)
    saved = json.loads((folder / "checkpoint.json").read_bytes())
    del saved["checksum"]
    saved["tables"]["history.jsonl"] = {"length": len(data), "sha256": sha256(data)}
    (folder / "checkpoint.json").write_bytes(as_json({**saved, "checksum": sha256(as_json(saved))}))


def go(lines: list[dict]) -> dict:
    return next(one for one in lines if one["verdict"] == "go" and one["late"])


def other_cohort(lines):
    one = go(lines)
    one["used"][0], one["late"][0] = one["late"][0], one["used"][0]


def other_time(lines):
    lines[0]["seconds"] += 1.0


def forgotten(lines):
    go(lines)["late"].pop()


QUARRELS = {
    other_cohort: "NOT within 1e-09",
    other_time: "clock after round 4",
    forgotten: "late floats: the run has",
}


@pytest.mark.parametrize("change", QUARRELS)
def test_another_history_does_not_agree(change, recorded, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(recorded, tmp_path / "run")
    lines = [json.loads(one) for one in (folder / "history.jsonl").read_text().splitlines()]
    change(lines)
    sealed(folder, lines)
    assert fedsaddle(monkeypatch, "replay", folder) == 1
    assert QUARRELS[change] in capsys.readouterr().out


def twice(lines):
    go(lines)["used"].append(go(lines)["used"][0])


def uninvited(lines):
    one = go(lines)
    one["used"][0] = next(client for client in range(20) if client not in one["invited"])


def stranger(lines):
    lines[0]["invited"][0] = 20


def too_many(lines):
    one = go(lines)
    one["used"] += one["late"] + one["lost"]
    one["late"], one["lost"] = [], []


def too_few(lines):
    one = go(lines)
    one["late"] += one["used"]
    one["used"] = []


def abandoned_with_answers(lines):
    go(lines)["verdict"] = "abandon"


def out_of_order(lines):
    lines[0], lines[-1] = lines[-1], lines[0]


def missing_phase(lines):
    del lines[-1]


def missing_round(lines):
    lines[:] = [one for one in lines if one["round"] < 3]


def another_seed(lines):
    lines[0]["seed"] = 9


def another_algorithm(lines):
    lines[0]["algorithm"] = "cdma-nc"


def a_word(lines):
    lines[0]["seconds"] = "long"


def a_flag(lines):
    lines[0]["invited"][0] = True


def unknown_key(lines):
    lines[0]["colour"] = "red"


def no_verdict(lines):
    del lines[0]["verdict"]


def wait(lines):
    lines[0]["verdict"] = "wait"


def no_client(lines):
    lines[0]["refused"] = {"x": "bad"}


def nested(lines):
    lines[0]["late"] = [[1]]


BROKEN = {
    twice: "twice in used, late, refused and lost together",
    uninvited: "was not invited",
    stranger: "20 is not one of the 20 clients",
    too_many: "goes on with 4 to 5 answers, not with",
    too_few: "goes on with 4 to 5 answers, not with 0",
    abandoned_with_answers: "an abandoned phase uses nothing",
    out_of_order: "expected round 0, phase 0",
    missing_phase: "is not whole",
    missing_round: "ends before round 3",
    another_seed: "no seed 9",
    another_algorithm: "no algorithm 'cdma-nc'",
    a_word: "'seconds' is not what it should be",
    a_flag: "True is not one of the 20 clients",
    unknown_key: "nobody knows 'colour'",
    no_verdict: "'verdict' is missing",
    wait: "neither go nor abandon",
    no_client: "is not a client",
    nested: "was not invited",
}


@pytest.mark.parametrize("change", BROKEN)
def test_a_history_that_breaks_the_rules_is_refused(change, recorded, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(recorded, tmp_path / "run")
    lines = [json.loads(one) for one in (folder / "history.jsonl").read_text().splitlines()]
    change(lines)
    sealed(folder, lines)
    assert fedsaddle(monkeypatch, "replay", folder, "--quiet") == 2
    err = capsys.readouterr().err
    assert BROKEN[change] in err
    assert err.count("\n") == 1


DAMAGE = {
    "truncated": ("history.jsonl", lambda data: data[:-40], "checksum"),
    "flipped": ("history.jsonl", lambda data: data.replace(b"0", b"1", 1), "checksum"),
    "gone": ("history.jsonl", None, "cannot read it"),
    "no checkpoint": ("checkpoint.json", None, "is not the folder of a run"),
    "half a checkpoint": ("checkpoint.json", lambda data: data[: len(data) // 2], "not a checkpoint"),
    "foreign experiment": (
        "experiment.json",
        lambda data: data.replace(b'"rounds": 4', b'"rounds": 5'),
        "is not the experiment of this run",
    ),
    "other parameters": ("final/cdma-one.safetensors", lambda data: data[:-1] + b"x", "checksum"),
    "no parameters": ("final/cdma-one.safetensors", None, "cannot read it"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_refused(name, recorded, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(recorded, tmp_path / "run")
    file, change, why = DAMAGE[name]
    if change is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(change((folder / file).read_bytes()))
    assert fedsaddle(monkeypatch, "replay", folder) == 2
    err = capsys.readouterr().err
    assert why in err
    assert err.count("\n") == 1


def test_a_run_without_a_history_is_refused(tmp_path, monkeypatch, capsys):
    words = ["run", "quadratic", "--algorithm=cdma-nc", "--seeds=0", "--rounds=1", "--quiet"]
    words += [f"--set={key}" for key in SMALL]
    assert fedsaddle(monkeypatch, *words, f"--out={tmp_path / 'run'}") == 0
    assert not (tmp_path / "run/history.jsonl").exists()
    assert json.loads((tmp_path / "run/experiment.json").read_bytes())["history"] is False
    assert fedsaddle(monkeypatch, "replay", tmp_path / "run") == 2
    assert "run the experiment with --history" in capsys.readouterr().err
    assert fedsaddle(monkeypatch, "replay", tmp_path / "nowhere") == 2
    assert "is not the folder of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff\n", "it is not text"),
        (b"{}", "its last line is cut off"),
        (b"[1]\n", "it is not an object"),
        (b"nonsense\n", "it is not JSON"),
        (b'{"seconds": NaN}\n', "it is not JSON"),
        (b'{"seed": 1, "seed": 2}\n', "it is not JSON"),
        (b"[" * 100_000 + b"\n", "it is not JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}\n", "it is not JSON"),
        (b"\n", "it is not JSON"),
    ],
)
def test_what_is_no_history_is_refused(data, why):
    rules = {"a": Rules([fs.Quorum(invite=4)], 5, 1, 3, (0,))}
    with pytest.raises(fs.BadInput, match=why):
        read_history(data, rules)


# --- histories that no simulation has made ---------------------------------------------------------------


def test_more_may_be_invited_than_the_quorum_says():
    """As a server does whose nodes fail: five places, eight invited, three refused, and a round goes on."""
    quorum = fs.Quorum(invite=5, enough=5, minimum=2)
    study = fs.make_study(quadratic(), ALGORITHMS["codasca"], quorum=quorum, names=["a"])
    grown = Gathering(
        [3, 9, 1, 0, 7, 5, 2, 8],
        [7, 1, 2, 8, 5],
        [],
        {9: "a value is not finite", 3: "late", 0: "raised"},
        [],
        12.0,
        Verdict.GO,
        [7],
    )
    small = Gathering([4, 6, 1, 0, 7], [1, 4], [6], {}, [0], 3.5, Verdict.GO, [])  # 7 still owes its answer
    given = Gathering([4, 6, 1, 0, 7], [], [6, 1], {}, [0, 4, 7], 3.0, Verdict.ABANDON, [])
    told = [Told("a", 0, round, 0, own) for round, own in enumerate((grown, given, small))]
    rules = {"a": Rules([quorum], 12, 1, 3, (0,))}
    history = read_history("".join(map(line, told)).encode(), rules)
    assert [one[0] for one in history.lanes["a", 0]] == [grown, given, small]

    from dataclasses import replace

    scripted = replace(study, history=history)
    *_, end = course(scripted, 3, 3)
    assert end.lanes.clock == [18.5]
    assert end.lanes.completed == [2]
    posted = {kind.direction: count for kind, count in end.lanes.posted[0].items()}
    assert posted == {"down": 18, "up": 7, "late": 3, "refused": 4}
    # The same clients, asked by a fleet and an invitation of exactly them, in another order.
    lanes = begin(study)
    for round, clients in ((0, [1, 2, 5, 7, 8]), (2, [4, 1])):
        own = Gathering(clients, clients, [], {}, [], 0.0, Verdict.GO, [])
        exact = replace(study, history=History({("a", 0): [[own]] * 3}))
        lanes, events = play(exact, lanes, round)
        assert not events
    for mine, theirs in zip(lanes.server, end.lanes.server, strict=True):
        assert torch.equal(mine.x, theirs.x)
        assert torch.equal(mine.y, theirs.y)
    assert torch.equal(lanes.memory.x, end.lanes.memory.x)
