"""Runs survive: killed at any moment, damaged, diverged; resumed, they write the same bytes."""

import csv
import errno
import hashlib
import json
import os
import random
import re
import signal
import sys
import time
import tomllib
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

import fedsaddle as fs
from fedsaddle.border.build import load
from fedsaddle.border.files import SHIPPED
from fedsaddle.cli import main
from fedsaddle.engine import machine
from fedsaddle.engine.executors.vectorised import Vectorised
from fedsaddle.engine.study import Lost
from fedsaddle.report import read_runs
from fedsaddle.runs import files
from started import Started

ARGUMENTS = [
    "run",
    "quadratic",
    "--algorithm=codasca,cdma-ada",
    "--seeds=0-1",
    "--rounds=12",
    "--checkpoint-seconds=0",
    "--set=evaluate_every=2",
    "--set=problem.clients=20",
    "--set=problem.dim_x=3",
    "--set=problem.dim_y=3",
    "--set=K=2",
    "--quiet",
]


def fedsaddle(*arguments: str, monkeypatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedsaddle", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def start(folder: Path, *more: str, prelude: str = "") -> Started:
    folder.parent.mkdir(exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    return Started(["fedsaddle", *ARGUMENTS, f"--out={folder}", *more], log, prelude)


def finish(process: Started) -> None:
    assert process.wait(120) == 0, process.log.read_text()


def result(folder: Path) -> dict[str, str]:
    """A hash of all that a run is judged by."""
    files = [*folder.glob("*.csv"), *sorted((folder / "final").iterdir())]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_strangers_file_is_not_cleared_away(half, monkeypatch):
    (half / "notes.part").write_text("mine")
    for name in ("checkpoint.json.part", ".tmpAbCd12"):  # the second is what safetensors begins to write
        (half / name).write_text("half a file")
    assert fedsaddle(*ARGUMENTS, f"--out={half}", "--resume", monkeypatch=monkeypatch) == 0
    assert (half / "notes.part").read_text() == "mine"
    assert not {".tmpAbCd12", "checkpoint.json.part"} & {path.name for path in half.iterdir()}


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(start(folder))
    return folder


def test_the_tables_have_their_columns(whole):
    folder = whole
    with (folder / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    first = ["algorithm", "seed", "round", "floats_up", "floats_down", "time_simulated", "stationarity"]
    assert list(rows[0])[:7] == first
    assert [row["round"] for row in rows if row["algorithm"] == "codasca" and row["seed"] == "1"] == [
        str(round) for round in range(0, 13, 2)
    ]
    assert {row["algorithm"] for row in rows} == {"cdma-ada", "codasca"}
    with (folder / "traffic.csv").open() as file:
        flows = [row for row in csv.DictReader(file) if row["algorithm"] == "cdma-ada" and row["seed"] == "0"]
    up, down = (
        sum(int(row["floats"]) for row in flows if row["round"] == "12" and row["direction"] == way)
        for way in ("up", "down")
    )
    end = next(r for r in rows if (r["algorithm"], r["seed"], r["round"]) == ("cdma-ada", "0", "12"))
    assert (int(end["floats_up"]), int(end["floats_down"])) == (up, down)
    points = load_file(folder / "final" / "codasca.safetensors")
    assert set(points) == {"0.x", "0.y", "1.x", "1.y"}
    assert points["0.x"].shape == (3,)
    assert (folder / "curves.png").stat().st_size > 10_000


def rows_in(folder: Path) -> int:
    path = folder / "rounds.csv"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_killed_at_random_moments_and_resumed_it_writes_the_same_bytes(whole, tmp_path):
    """Each time somewhere later in the run, at a moment that depends on the machine."""
    folder, luck, kills = tmp_path / "run", random.Random(), 0
    for least, most in ((2, 7), (8, 13), (15, 19), (20, 25)):  # of 29 rows
        target = luck.randint(least, most)
        process = start(folder, "--resume")
        while rows_in(folder) < target and process.poll() is None:
            time.sleep(0.001)
        time.sleep(luck.uniform(0, 0.02))
        process.kill()
        ended = process.wait(60)
        unfinished = len(json.loads((folder / "checkpoint.json").read_text())["done"]) < 2
        kills += ended == -signal.SIGKILL and unfinished
    assert kills >= 3  # the last may come too late on a machine that is busy elsewhere
    finish(start(folder, "--resume"))
    assert result(folder) == result(whole)


def test_tensors_are_written_as_a_file_that_is_whole_or_not_there(tmp_path, monkeypatch):
    tensors = {"b": torch.arange(5), "a": torch.ones(2, 3)}
    expected = hashlib.sha256(safetensors.torch.save(tensors)).hexdigest()
    (tmp_path / "other").touch()
    assert files.write_tensors(tmp_path / "one", tensors) == expected
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "other").stat().st_mode

    def full(*given):
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(OSError, match="No space left") as error:
        files.write_tensors(tmp_path / "one", {})
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path / "one"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
    files.verify(tmp_path / "one", expected)  # the old one


# Dies without a word at the n-th time that data are put on the disk: before it, in the middle of writing,
# or between the new file and its new name.
DIE = """
import os, signal, stat
from pathlib import Path
left = {left}
def perhaps():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
sync, replace, safe = os.fsync, Path.replace, {{}}
def fsync(file):
    info = os.fstat(file)
    if left == 1 and {torn} and stat.S_ISREG(info.st_mode):
        os.ftruncate(file, (safe.get(info.st_ino, 0) + info.st_size) // 2)  # half of what was not yet safe
    perhaps()
    safe[info.st_ino] = info.st_size
    sync(file)
def rename(self, target):
    perhaps()
    return replace(self, target)
os.fsync, Path.replace = fsync, rename
"""


@pytest.mark.parametrize(("moment", "torn"), [(2, 0), (8, 0), (10, 1), (15, 0), (28, 1), (70, 0)])
def test_killed_in_the_middle_of_writing_it_resumes_with_the_same_bytes(whole, tmp_path, moment, torn):
    folder = tmp_path / "run"
    process = start(folder, prelude=DIE.format(left=moment, torn=bool(torn)))
    assert process.wait(120) == -signal.SIGKILL
    finish(start(folder, "--resume"))
    assert result(folder) == result(whole)
    assert not list(folder.glob("*.part"))
    assert not list(folder.glob("state-*"))


def test_asked_to_stop_it_finishes_the_round_and_says_how_to_go_on(whole, tmp_path):
    folder = tmp_path / "run"
    process = start(folder)
    while not (folder / "rounds.csv").exists() or b"codasca" not in (folder / "rounds.csv").read_bytes():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, err = process.wait(60), process.log.read_text()
    assert code == 130, err
    assert "--resume" in err
    assert "Traceback" not in err
    finish(start(folder, "--resume"))
    assert result(folder) == result(whole)


def test_a_finished_run_can_be_resumed_and_stays(whole, monkeypatch):
    folder = whole
    before = result(folder)
    assert fedsaddle(*ARGUMENTS, f"--out={folder}", "--resume", monkeypatch=monkeypatch) == 0
    assert result(folder) == before


@pytest.fixture
def half(tmp_path, monkeypatch):
    """A run stopped in the middle of its second algorithm, with a state file."""
    monkeypatch.setattr("fedsaddle.cli.commands.until_asked", lambda: true_after(18))
    folder = tmp_path / "half"
    assert fedsaddle(*ARGUMENTS, f"--out={folder}", monkeypatch=monkeypatch) == 130
    monkeypatch.undo()
    return folder


def true_after(rounds):
    left = [rounds]

    def asked():
        left[0] -= 1
        return left[0] < 0

    return asked


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 4
    path.write_bytes(bytes(data))


def rewrite(change):
    """Change a checkpoint as a person would who does not know of its checksum."""

    def apply(folder: Path) -> None:
        saved = json.loads((folder / "checkpoint.json").read_text())
        change(saved)
        (folder / "checkpoint.json").write_text(json.dumps(saved))

    return apply


DAMAGE = {
    "checkpoint flipped": lambda f: flip(f / "checkpoint.json", 0.5),
    "checkpoint cut": lambda f: os.truncate(f / "checkpoint.json", 100),
    "checkpoint empty": lambda f: os.truncate(f / "checkpoint.json", 0),
    "checkpoint not ours": lambda f: (f / "checkpoint.json").write_text("[1, 2]"),
    "checkpoint edited": rewrite(lambda saved: saved["state"].update(round=3)),
    "state flipped": lambda f: flip(last_state(f), 0.9),
    "state cut": lambda f: os.truncate(last_state(f), 50),
    "state gone": lambda f: last_state(f).unlink(),
    "experiment cut": lambda f: os.truncate(f / "experiment.json", 60),
    "experiment gone": lambda f: (f / "experiment.json").unlink(),
    "checkpoint too deep": lambda f: (f / "checkpoint.json").write_text("[" * 100_000),
    "final flipped": lambda f: flip(f / "final" / "codasca.safetensors", 0.9),
    "final gone": lambda f: (f / "final" / "codasca.safetensors").unlink(),
    "rounds a folder": lambda f: ((f / "rounds.csv").unlink(), (f / "rounds.csv").mkdir()),
    "rounds flipped": lambda f: flip(f / "rounds.csv", 0.1),
    "rounds cut": lambda f: os.truncate(f / "rounds.csv", 90),
    "rounds gone": lambda f: (f / "rounds.csv").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_refused_and_left_alone(half, damage, monkeypatch, capsys):
    (half / "checkpoint-before.json").unlink()  # else there is one to fall back to
    DAMAGE[damage](half)
    before = everything(half)
    assert fedsaddle(*ARGUMENTS, f"--out={half}", "--resume", monkeypatch=monkeypatch) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "damaged" in message
    assert "another --out" in message
    assert everything(half) == before


def last_state(folder: Path) -> Path:
    saved = json.loads((folder / "checkpoint.json").read_text())
    return folder / saved["state"]["file"]


@pytest.mark.parametrize("damage", ["checkpoint flipped", "checkpoint cut", "state flipped", "state gone"])
def test_a_damaged_checkpoint_has_one_before_it(half, whole, damage, monkeypatch, capsys):
    """And the run comes to the same bytes from there."""
    assert len(list(half.glob("state-*"))) == 2
    DAMAGE[damage](half)
    assert fedsaddle(*ARGUMENTS, f"--out={half}", "--resume", monkeypatch=monkeypatch) == 0
    assert "goes on from the checkpoint before the last" in capsys.readouterr().err
    assert result(half) == result(whole)
    assert not list(half.glob("state-*"))
    assert not (half / "checkpoint-before.json").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "--rounds=6",
            "half was asked for 12 rounds, and cdma-ada has had 5; it may be given more, not fewer: ",
        ),
        (
            "--rounds=11",
            "half was asked for 12 rounds, and cdma-ada has had 5; it may be given more, not fewer: ",
        ),
        ("--set=problem.kappa=3.0", "by another experiment (problem.kappa was 10.0, is 3.0): "),
        ("--set=checks.norm=3", "(checks was not there, is {"),
        (
            "--algorithm=cdma-nc",
            "(the run has codasca, cdma-ada; this asks for codasca, cdma-ada, cdma-nc): ",
        ),
        (
            "--algorithm=cdma-nc,cdma-one,coda-plus",
            "(the run has codasca, cdma-ada; this asks for 5 algorithms): ",
        ),
        ("--deterministic", "deterministic was false, is true"),
    ],
)
def test_another_experiments_checkpoint_is_refused(half, change, told, monkeypatch, capsys):
    before = everything(half)
    assert fedsaddle(*ARGUMENTS, change, f"--out={half}", "--resume", monkeypatch=monkeypatch) == 2
    assert told in capsys.readouterr().err
    assert everything(half) == before


# --- more rounds -----------------------------------------------------------------------------------------


def rounds(number: int) -> list[str]:
    return [f"--rounds={number}" if word == "--rounds=12" else word for word in ARGUMENTS] + ["--history"]


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    """A run of 20 rounds from the start."""
    folder = tmp_path_factory.mktemp("twenty") / "run"
    finish(start(folder, "--rounds=20", "--history"))
    return folder


def same_run(folder: Path, other: Path) -> bool:
    names = ("history.jsonl", "experiment.json")
    assert not list(folder.glob("before-*"))
    assert not list(folder.glob("state-*"))
    assert len(list((folder / "kept").iterdir())) == 2
    return result(folder) == result(other) and all(
        (folder / name).read_bytes() == (other / name).read_bytes() for name in names
    )


@pytest.mark.parametrize(
    "fewer", [12, 11, 1]
)  # 11: its last evaluation is one that a run of 20 does not make
def test_a_finished_run_goes_on_to_more_rounds(twenty, tmp_path, fewer, monkeypatch, capsys):
    folder = tmp_path / "run"
    assert fedsaddle(*rounds(fewer), f"--out={folder}", monkeypatch=monkeypatch) == 0
    words = ["run", "--resume", f"--out={folder}", "--rounds=20", "--quiet"]
    assert fedsaddle(*words, monkeypatch=monkeypatch) == 0
    assert same_run(folder, twenty)
    assert "begins again" not in capsys.readouterr().err
    assert fedsaddle("replay", str(folder), "--quiet", monkeypatch=monkeypatch) == 0


def test_a_run_that_is_under_way_goes_on_to_more_rounds_and_more(twenty, tmp_path, monkeypatch):
    """Stopped in its second algorithm, sent on to 14, stopped in its first, sent on to 20."""
    folder = tmp_path / "run"
    for number, until in ((12, 18), (14, 1)):
        with monkeypatch.context() as patched:
            patched.setattr("fedsaddle.cli.commands.until_asked", lambda until=until: true_after(until))
            assert fedsaddle(*rounds(number), f"--out={folder}", "--resume", monkeypatch=patched) == 130
    assert fedsaddle(*rounds(20), f"--out={folder}", "--resume", monkeypatch=monkeypatch) == 0
    assert same_run(folder, twenty)


# While the tables are put aside, before and after experiment.json is written, and in the first algorithm.
@pytest.mark.parametrize("moment", [4, 16, 19, 22, 40])
def test_killed_on_the_way_to_more_rounds_it_resumes_with_the_same_bytes(
    twenty, tmp_path, moment, monkeypatch
):
    folder = tmp_path / "run"
    assert fedsaddle(*rounds(11), f"--out={folder}", monkeypatch=monkeypatch) == 0
    process = start(
        folder, "--rounds=20", "--history", "--resume", prelude=DIE.format(left=moment, torn=False)
    )
    assert process.wait(120) == -signal.SIGKILL
    assert fedsaddle(*rounds(20), f"--out={folder}", "--resume", monkeypatch=monkeypatch) == 0
    assert same_run(folder, twenty)


def test_what_was_not_kept_begins_again_and_comes_to_the_same(twenty, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("fedsaddle.runs.folder.KEEP", 500)  # too little for what CODASCA's clients remember
        assert fedsaddle(*rounds(12), f"--out={folder}", monkeypatch=patched) == 0
    assert len(list((folder / "kept").iterdir())) == 1
    assert fedsaddle(*rounds(20), f"--out={folder}", "--resume", monkeypatch=monkeypatch) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "begins again" in line]
    assert told == ["note: codasca begins again: its state after round 12 was not kept"]
    assert same_run(folder, twenty)


def test_a_damaged_state_is_not_gone_on_from(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    assert fedsaddle(*ARGUMENTS, f"--out={folder}", monkeypatch=monkeypatch) == 0
    flip(folder / "kept" / "1-12.safetensors", 0.9)
    before = everything(folder)
    assert fedsaddle(*ARGUMENTS, "--rounds=20", f"--out={folder}", "--resume", monkeypatch=monkeypatch) == 2
    assert "damaged" in capsys.readouterr().err
    assert everything(folder) == before


def test_a_lane_that_diverged_where_the_shorter_run_ended_is_judged_again(tmp_path, monkeypatch, capsys):
    """A run of more rounds does not evaluate there, so it would have found out later."""
    words = [word for word in ARGUMENTS if "evaluate_every" not in word]
    words += ["--algorithm=cdma-nc", "--seeds=0"]
    steps = ["--set=algorithms.cdma-nc.eta=30.0", "--set=algorithms.cdma-nc.gamma=30.0"]
    words += [*steps, "--set=evaluate_every=100"]
    for number in range(20, 80, 3):
        short = tmp_path / str(number)
        fedsaddle(*words, f"--rounds={number}", f"--out={short}", monkeypatch=monkeypatch)
        found = (short / "events.csv").read_text()
        if f",{number - 1},diverged" in found and "before this round" not in found:
            break
    else:
        pytest.fail("no evaluation found a lane diverged")
    long = tmp_path / "long"
    codes = [
        fedsaddle(*words, "--rounds=90", f"--out={folder}", "--resume", monkeypatch=monkeypatch)
        for folder in (short, long)
    ]
    assert codes[0] == codes[1]
    assert result(short) == result(long)
    assert "cdma-nc begins again" in capsys.readouterr().err


def test_a_folder_is_all_that_a_resume_needs(half, whole, monkeypatch, capsys):
    assert fedsaddle("run", "--resume", f"--out={half}", "--quiet", monkeypatch=monkeypatch) == 0
    assert result(half) == result(whole)
    before = everything(half)
    words = ["--resume", f"--out={half}", "--quiet"]
    assert fedsaddle("run", *words, "--seeds=0-3", monkeypatch=monkeypatch) == 2
    assert "seeds was [0, 1], is [0, 1, 2, 3]" in capsys.readouterr().err
    assert fedsaddle("run", *words, "--rounds=8", monkeypatch=monkeypatch) == 2
    told = f"{half} was asked for 12 rounds; it may be given more, not fewer: resume it with fedsaddle run"
    assert told in capsys.readouterr().err
    assert fedsaddle("sweep", *words, monkeypatch=monkeypatch) == 2
    assert f"holds a run: go on with fedsaddle run --resume --out {half}" in capsys.readouterr().err
    assert everything(half) == before
    assert fedsaddle("run", "--resume", f"--out={half.parent / 'none'}", monkeypatch=monkeypatch) == 2
    assert "holds no run to go on with" in capsys.readouterr().err


def test_a_run_is_not_overwritten(half, monkeypatch, capsys):
    before = everything(half)
    assert fedsaddle(*ARGUMENTS, f"--out={half}", monkeypatch=monkeypatch) == 2
    assert "--resume" in capsys.readouterr().err
    assert everything(half) == before


def test_two_processes_do_not_write_one_run(half, monkeypatch, capsys):
    from filelock import FileLock

    with FileLock(half / ".lock"):
        holder = start(half, "--resume")
        assert holder.wait(60) == 2
    assert "in use by another process" in holder.log.read_text()


def test_a_diverged_lane_is_told_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    wild = tmp_path / "wild.toml"
    wild.write_text(
        """
        name = "wild"
        rounds = 12
        evaluate_every = 2
        seeds = "0-1"
        [problem]
        name = "quadratic"
        clients = 20
        [algorithms.cdma-nc]
        eta = 1e40
        gamma = 1e40
        [algorithms.cdma-one]
        eta = 0.01
        gamma = 0.01
        """
    )
    assert fedsaddle("run", str(wild), f"--out={tmp_path / 'run'}", monkeypatch=monkeypatch) == 3
    printed = capsys.readouterr().out
    assert "cdma-nc seed 0 diverged in round" in printed
    with (tmp_path / "run" / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows if row["algorithm"] == "cdma-nc" and row["seed"] == "1"][:1] == ["0"]
    assert sum(row["algorithm"] == "cdma-one" for row in rows) == 14
    with (tmp_path / "run" / "events.csv").open() as file:
        events = list(csv.DictReader(file))
    assert [(e["algorithm"], e["seed"], e["event"]) for e in events] == [
        ("cdma-nc", "0", "diverged"),
        ("cdma-nc", "1", "diverged"),
    ]
    assert [event["round"] for event in events] == ["0", "0"]
    assert "before this round stationarity was" in events[0]["detail"]


def test_a_lack_of_memory_is_told_and_written_down(tmp_path, monkeypatch, capsys):
    ask = Vectorised._ask

    def cramped(self, task, extent, visits, stage=None):
        if len(visits) > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return ask(self, task, extent, visits, stage)

    monkeypatch.setattr(Vectorised, "_ask", cramped)
    words = [word for word in ARGUMENTS if word != "--quiet"]
    assert fedsaddle(*words, f"--out={tmp_path / 'run'}", monkeypatch=monkeypatch) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "memory ran out" in line]
    assert [line.split(" round ")[0] for line in told] == ["codasca", "cdma-ada"]  # once for each
    with (tmp_path / "run" / "events.csv").open() as file:
        events = [row for row in csv.DictReader(file) if row["event"] == "memory"]
    assert [(row["algorithm"], row["seed"]) for row in events] == [("codasca", "0"), ("cdma-ada", "0")]


def test_answers_that_are_lost_are_told_and_written_down(tmp_path, monkeypatch, capsys):
    """As over Ray, when a worker dies: the first two answers of the first round of each algorithm."""
    algorithms = set()

    class Lossy(Vectorised):
        def answers(self, task, extent, visits):
            if type(task.algorithm) in algorithms:
                return super().answers(task, extent, visits)
            algorithms.add(type(task.algorithm))
            return Lost(torch.arange(len(visits)) > 1)

    monkeypatch.setattr("fedsaddle.border.build.Vectorised", Lossy)
    words = [word for word in ARGUMENTS if word != "--quiet"]
    assert fedsaddle(*words, f"--out={tmp_path / 'run'}", monkeypatch=monkeypatch) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "lost with a worker" in line]
    assert len(told) == 2
    assert re.fullmatch(
        r"codasca round 0, seed 0: update: 2 of \d answers lost with a worker that died", told[0]
    )
    with (tmp_path / "run" / "events.csv").open() as file:
        events = list(csv.DictReader(file))
    assert [(row["algorithm"], row["seed"], row["event"]) for row in events] == [
        ("codasca", "0", "lost"),
        ("cdma-ada", "0", "lost"),
    ]
    (run,) = read_runs([tmp_path / "run"])
    assert [(series.abandoned, len(series.trouble)) for series in run.series] == [(0, 1), (0, 1)]


def test_deterministic_gives_the_same_bits_twice(tmp_path):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        words = ["run", "auc-digits", "--algorithm=cdma-ada", "--rounds=2", "--seeds=0-1", "--deterministic"]
        finish(Started(["fedsaddle", *words, "--device=cpu", "--quiet", f"--out={folder}"], tmp_path / "log"))
    assert result(folders[0]) == result(folders[1])
    assert json.loads((folders[0] / "experiment.json").read_text())["deterministic"] is True


def test_deterministic_is_said_before_a_gpu_computes(monkeypatch):
    """cuBLAS reads its workspace when it is first used, which may be while an experiment is loaded."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    load("quadratic", deterministic=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    load("quadratic")
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    try:
        machine.prepare(deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        machine.prepare()
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_resolved_experiment_runs_again_to_the_same_bytes(whole, tmp_path, monkeypatch):
    again = tmp_path / "again"
    words = ["run", str(whole / "experiment.json"), f"--out={again}", "--quiet"]
    assert fedsaddle(*words, monkeypatch=monkeypatch) == 0
    assert result(again) == result(whole)


def test_a_run_resumed_from_its_own_experiment_goes_on_with_the_right_algorithm(half, whole, monkeypatch):
    words = ["run", str(half / "experiment.json"), f"--out={half}", "--resume", "--quiet"]
    assert fedsaddle(*words, monkeypatch=monkeypatch) == 0
    assert result(half) == result(whole)


def test_a_run_of_an_older_version_that_wrote_no_defaults_is_resumed(half, whole, monkeypatch):
    """It held the keys that were given, and says so to the end."""
    saved = json.loads((half / "checkpoint.json").read_text())
    old = saved["experiment"]
    for key in ("merge", "checks", "faults", "history"):
        del old[key]
    old |= {"quorum": {}, "fleet": {"model": "paper"}}
    old["problem"] = {"name": "quadratic", "clients": 20, "kappa": 10.0, "dim_x": 3, "dim_y": 3}
    given = tomllib.loads((SHIPPED / "quadratic.toml").read_text())["algorithms"]
    old["algorithms"] = {label: given[label] for label in old["algorithms"]}
    del saved["checksum"]

    def as_json(value):
        return (json.dumps(value, indent=1) + "\n").encode()

    saved["checksum"] = hashlib.sha256(as_json(saved)).hexdigest()
    (half / "checkpoint.json").write_bytes(as_json(saved))
    (half / "experiment.json").write_bytes(as_json(old))
    assert fedsaddle(*ARGUMENTS, f"--out={half}", "--resume", monkeypatch=monkeypatch) == 0
    assert json.loads((half / "experiment.json").read_text()) == old
    assert result(half) == result(whole)
    other = [*ARGUMENTS, "--set=problem.kappa=11.0"]
    assert fedsaddle(*other, f"--out={half}", "--resume", monkeypatch=monkeypatch) == 2


def test_algorithms_in_another_order_are_another_experiment(half, monkeypatch, capsys):
    before = everything(half)
    other = [word.replace("codasca,cdma-ada", "cdma-ada,codasca") for word in ARGUMENTS]
    assert fedsaddle(*other, f"--out={half}", "--resume", monkeypatch=monkeypatch) == 2
    assert "the algorithms are in another order" in capsys.readouterr().err
    assert everything(half) == before


def test_a_resume_under_other_versions_says_so(half, monkeypatch, capsys):
    monkeypatch.setattr("fedsaddle.runs.folder.versions", lambda: {"fedsaddle": "0.1.0", "torch": "9.9"})
    assert fedsaddle(*ARGUMENTS, f"--out={half}", "--resume", monkeypatch=monkeypatch) == 0
    assert "this run was begun with" in capsys.readouterr().err


def test_a_foreign_experiment_is_not_overwritten(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "experiment.json").write_text("{}")
    assert fedsaddle(*ARGUMENTS, f"--out={folder}", "--resume", monkeypatch=monkeypatch) == 2
    assert everything(folder) == {"experiment.json": b"{}"}


def test_metrics_are_filed_under_their_names(tmp_path, monkeypatch, capsys):
    """In whatever order a problem gives them; others than at first are refused."""
    plain, given = fs.Quadratic.evaluate, []

    def turned(problem, z):
        given.append(plain(problem, z))
        return dict(reversed(given[-1].items())) if len(given) > 3 else given[-1]

    monkeypatch.setattr(fs.Quadratic, "evaluate", turned)
    once = [word for word in ARGUMENTS if "algorithm" not in word] + ["--algorithm=cdma-nc", "--seeds=0"]
    assert fedsaddle(*once, f"--out={tmp_path / 'turned'}", monkeypatch=monkeypatch) == 0
    with (tmp_path / "turned" / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    for row, metrics in zip(rows, given, strict=True):
        assert {name: float(row[name]) for name in metrics} == pytest.approx(metrics)

    def more(problem, z):
        given.append(plain(problem, z))
        return given[-1] | ({"more": 1.0} if len(given) > 10 else {})

    monkeypatch.setattr(fs.Quadratic, "evaluate", more)
    assert fedsaddle(*once, f"--out={tmp_path / 'more'}", monkeypatch=monkeypatch) == 2
    assert "Quadratic.evaluate gives 'more', which its metrics do not declare" in capsys.readouterr().err
    monkeypatch.setattr(fs.Quadratic, "metrics", fs.Quadratic.metrics | {"more": fs.Metric("low", "none")})
    assert fedsaddle(*once, f"--out={tmp_path / 'more'}", "--resume", monkeypatch=monkeypatch) == 2
    assert re.search(r"evaluate gave .*more after round \d+, and before that", capsys.readouterr().err)


def test_many_seeds_that_diverge_end_one_by_one(tmp_path, monkeypatch):
    """Their metrics come near the largest number there is, whose mean is no number."""
    steps = [
        "--set=algorithms.cdma-nc.eta=3.0",
        "--set=algorithms.cdma-nc.gamma=3.0",
        "--set=evaluate_every=1",
    ]
    words = [
        "run",
        "quadratic",
        "--algorithm=cdma-nc",
        "--seeds=0-19",
        "--rounds=500",
        "--set=problem.clients=20",
    ]
    words += [*steps, "--set=K=2", "--set=batch=5", "--quiet", f"--out={tmp_path / 'run'}"]
    assert fedsaddle(*words, monkeypatch=monkeypatch) == 3  # none is left
    with (tmp_path / "run" / "events.csv").open(newline="") as file:
        assert {row["event"] for row in csv.DictReader(file)} == {"diverged"}
