"""Python gets what the command line gets: folders, reports, sweeps, outcomes."""

import csv
import dataclasses
import itertools
import json
import multiprocessing
import os
import pickle
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from functools import partial
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

import fedsaddle as fs
from fedsaddle.app import doctor
from fedsaddle.border.build import load
from fedsaddle.border.identity import identity_of
from fedsaddle.cli import main
from fedsaddle.problem import Modelled
from fedsaddle.report import read_runs, write_report

SMALL = {"rounds": 4, "evaluate_every": 2, "seeds": (0, 3)}


class Named(fs.Quadratic):
    """A problem that no experiment file names, with networks."""

    def models(self, z):
        assert z.x.device.type == "cpu"
        net = nn.Linear(z.x.numel(), 1, bias=False)
        net.weight = nn.Parameter(z.x[None].float())
        return {"net": net.eval(), "y": nn.Identity()}


@pytest.fixture(scope="module")
def outcome():
    return fs.simulate(Named(clients=10), fs.CDMANC(0.1, 0.1), **SMALL)


def test_an_outcome_knows_its_lanes(outcome):
    assert isinstance(outcome.problem, Named)
    assert (outcome.names, outcome.seeds) == (("CDMANC", "CDMANC"), (0, 3))
    assert outcome.lane(3) == outcome.lane(3, "CDMANC") == 1
    assert repr(outcome).startswith("Outcome(CDMANC: 2 seeds, 4 rounds, stationarity 1.")
    assert repr(outcome).count("diverged") == 0
    with pytest.raises(fs.BadInput, match="no seed 1 of CDMANC; its seeds are 0, 3"):
        outcome.lane(1)
    with pytest.raises(fs.BadInput, match="known: CDMANC"):
        outcome.lane(0, "CDMA")


def test_settings_have_names_of_their_own():
    both = [fs.CDMANC(eta=0.1, gamma=0.1), fs.CDMANC(eta=0.002, gamma=0.2)]
    found = fs.simulate(fs.Quadratic(clients=10), both, seeds=[4], rounds=2)
    assert found.names == ("CDMANC-0", "CDMANC-1")
    ends = found.last("stationarity")
    assert ends[0] != ends[1] == ends[found.lane(4, "CDMANC-1")]
    told = [f"CDMANC-{lane}: 1 seed, 2 rounds, stationarity {end:.4g}" for lane, end in enumerate(ends)]
    assert repr(found) == f"Outcome(2 settings, 1 seed; {told[0]}; {told[1]})"
    with pytest.raises(fs.BadInput, match="names must differ, got 'a', 'a'"):
        fs.simulate(fs.Quadratic(clients=10), both, names=["a", "a"], rounds=1)


def test_what_has_diverged_is_said_and_is_in_no_mean():
    def end(*seeds, **options):
        return fs.simulate(fs.Quadratic(clients=10), fs.CDMANC(40, 40), seeds=seeds, **options)

    with pytest.warns(fs.Notice, match="every lane diverged"):
        lost = end(0, 1, rounds=20, evaluate_every=5)
    assert lost.rows[-1].round == 5
    assert lost.rows[-1].metrics["stationarity"] > 1e50
    assert repr(lost) == "Outcome(CDMANC: 2 seeds, 9 rounds, 2 of 2 diverged)"
    one = dataclasses.replace(end(0, 1, rounds=1), alive=[True, False])
    assert repr(one) == (
        f"Outcome(CDMANC: 2 seeds, 1 round, stationarity {one.last('stationarity')[0]:.4g}, 1 of 2 diverged)"
    )


def short_simulation(seed):
    return fs.simulate(
        fs.AUC(dataset="digits", positive=3, clients=10), fs.CDMANC(0.1, 0.1), seeds=[seed], rounds=10
    )


def test_an_outcome_goes_from_one_process_to_another(tmp_path):
    here = short_simulation(1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (there,) = pool.map(short_simulation, [1])
    assert there.rows == here.rows
    assert torch.equal(there.z[0].x, here.z[0].x)
    assert (there.save(tmp_path / "run") / "rounds.csv").exists()
    again = pickle.loads(pickle.dumps(here)).made.study
    assert again.executor.recorder(again) is not here.made.study.executor.recorder(here.made.study)


@pytest.mark.parametrize(
    "problem",
    [fs.Robust(dataset="digits", clients=20, hidden=4), fs.DeepGMM(), fs.Fair(dataset="digits", clients=20)],
    ids=lambda problem: type(problem).__name__,
)
def test_a_problem_that_has_built_its_networks_can_be_pickled(problem):
    start = problem.init(0)
    again = pickle.loads(pickle.dumps(problem))
    assert all(map(torch.equal, again.init(0), start))


def test_seeds_of_numpy_become_numbers():
    outcome = fs.simulate(fs.Quadratic(clients=10), fs.CDMANC(0.1, 0.1), rounds=1, seeds=numpy.arange(2))
    assert [type(row.seed) for row in outcome.rows] == [int] * len(outcome.rows)


def test_an_outcome_gives_the_trained_network(outcome):
    assert isinstance(outcome.problem, Modelled)
    net = outcome.model(seed=3)
    assert torch.equal(net.weight[0], outcome.z[1].x.float())
    assert not net.training
    assert isinstance(outcome.model(player="y"), nn.Identity)
    with pytest.raises(fs.BadInput, match="known: net, y"):
        outcome.model(player="x")
    plain = fs.simulate(fs.Quadratic(clients=10), fs.CDMANC(0.1, 0.1), rounds=1)
    with pytest.raises(fs.BadInput, match="Quadratic has no network to give; outcome"):
        plain.model()


def test_an_outcome_becomes_a_table_of_pandas(outcome, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        with pytest.raises(fs.BadInput, match="pip install pandas"):
            outcome.to_pandas()
    stub = SimpleNamespace(
        DataFrame=lambda rows, columns: [dict(zip(columns, row, strict=True)) for row in rows]
    )
    monkeypatch.setitem(sys.modules, "pandas", stub)
    table = outcome.to_pandas()
    assert [(row["algorithm"], row["seed"], row["round"]) for row in table] == [
        ("CDMANC", seed, round) for round in (0, 2, 4) for seed in (0, 3)
    ]
    assert table[-1]["stationarity"] == outcome.last("stationarity")[1]
    assert table[-1]["floats_up"] > 0


def test_an_outcome_is_saved_as_a_folder_that_reports_are_made_of(outcome, tmp_path):
    folder = outcome.save(tmp_path / "run")
    with (folder / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["stationarity"]) for row in rows] == [
        row.metrics["stationarity"] for row in outcome.rows
    ]
    page = outcome.report(tmp_path / "page.html").read_text()
    assert "stationarity" in page
    assert "experiment.json" not in page  # its folder is gone
    assert "experiment.json" in write_report(read_runs([folder])).read_text()
    with pytest.raises(fs.BadInput, match="already holds a run"):
        outcome.save(folder)
    with pytest.raises(fs.BadInput, match="say where"):
        outcome.report()


def test_a_saved_outcome_of_what_ships_is_an_experiment(tmp_path):
    """Step sizes as they were given, though the problem computes in float32."""
    both = [fs.CODASCA(0.1, 0.2), fs.CODASCA(0.3, 0.2)]
    problem = fs.AUC(dataset="digits", positive=3, clients=10)
    found = fs.simulate(problem, both, names=["slow", "fast"], rounds=1)
    assert problem.init(0).x.dtype == torch.float32
    folder = found.save(tmp_path / "run")
    told = json.loads((folder / "experiment.json").read_text())
    assert load(str(folder / "experiment.json")).resolved == told
    assert [told["algorithms"][name]["eta_l"] for name in ("slow", "fast")] == [0.1, 0.3]


# --- fs.run ------------------------------------------------------------------------------------------------

# What depends on when, on what and how long.
DIARY = {".lock", "environment.json", "clock.jsonl", "report.html"}


def files(folder):
    """What a run leaves behind, but for its diary and TensorBoard's times."""
    return {
        name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (name := str(path.relative_to(folder))) not in DIARY
        if not name.startswith(("tensorboard/", "curves.png"))
    }


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line, in this process: to its code and what it has said."""

    def asked(*words):
        monkeypatch.setattr(sys, "argv", ["fedsaddle", *map(str, words)])
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        capsys.readouterr()
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), *capsys.readouterr()
        finally:
            signal.signal(signal.SIGINT, before[0])
            signal.signal(signal.SIGTERM, before[1])
        return 0, *capsys.readouterr()

    return asked


def test_run_leaves_the_folder_of_the_command(command, tmp_path):
    words = ["run", "quadratic", "--algorithm", "cdma-ada,codasca", "--rounds", "4", "--seeds", "0-1"]
    code, _, told = command(
        *words, "--history", "--set", "evaluate_every=2", "--out", str(tmp_path / "theirs")
    )
    assert code == 0, told
    threads = torch.get_num_threads()
    outcome = fs.run(
        "quadratic",
        ["cdma-ada", "codasca"],
        rounds=4,
        seeds=range(2),
        evaluate_every=2,
        history=True,
        out=tmp_path / "ours",
    )
    ours = files(outcome.folder)
    assert ours == files(tmp_path / "theirs")
    assert {"rounds.csv", "traffic.csv", "history.jsonl", "summary.csv", "final/codasca.safetensors"} <= set(
        ours
    )
    assert (outcome.folder / "report.html").exists()
    assert len(list(outcome.folder.glob("tensorboard/*/seed-*"))) == 4
    assert outcome.names == ("cdma-ada", "cdma-ada", "codasca", "codasca")
    assert outcome.alive == [True] * 4
    assert torch.get_num_threads() == threads


def test_run_comes_to_what_simulate_does(command, tmp_path):
    """And what ships is written so that the command line can go on with it, and replay it."""
    problem, rule = fs.Quadratic(clients=10), fs.CODASCA(0.05, 0.05)
    alone = fs.simulate(problem, rule, **SMALL)
    rules = {"first": fs.CDMANC(0.1, 0.1), "other": rule}
    both = fs.run(problem, rules, **SMALL, history=True, out=tmp_path / "run")
    assert [row.metrics for row in alone.rows] == [row.metrics for row in both.rows if row.lane >= 2]
    assert [row.traffic for row in alone.rows] == [row.traffic for row in both.rows if row.lane >= 2]
    assert all(torch.equal(a.x, b.x) for a, b in zip(alone.z, both.z[2:], strict=True))
    assert both.lane(3, "other") == 3
    code, told, _ = command("replay", both.folder, "--quiet")
    assert code == 0
    assert told.count("equal to the last bit") == 4
    code, _, error = command("run", "--resume", "--out", both.folder, "--rounds", "6", "--quiet")
    assert code == 0, error
    longer = fs.run(problem, rules, **SMALL | {"rounds": 6}, history=True, out=tmp_path / "long")
    assert files(both.folder)["rounds.csv"] == files(longer.folder)["rounds.csv"]
    copy = both.save(tmp_path / "copy")
    assert files(copy) == files(both.folder)


PROGRAM = """
import os, signal, sys
import fedsaddle as fs

class Mine(fs.Quadratic):
    seen = 0

    def evaluate(self, z):
        Mine.seen += 1
        if Mine.seen == int(os.environ.get("KILL", 0)):
            os.kill(os.getpid(), signal.SIGKILL)
        if Mine.seen == int(os.environ.get("INTERRUPT", 0)):
            os.kill(os.getpid(), signal.SIGINT)
        return super().evaluate(z)

rules = {"one": fs.CDMANC(0.1, 0.1), "sca": fs.CODASCA(0.05, 0.05)}
fs.run(Mine(clients=10), rules, rounds=6, evaluate_every=1, seeds=[0, 1], history=True, checkpoint_seconds=0,
       out=sys.argv[1], resume="resume" in sys.argv)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Ones own program: here, or in a process of its own, which may be killed."""
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)

    def started(*words, here=True, **env):
        if here:
            monkeypatch.setattr(sys, "argv", ["mine.py", *map(str, words)])
            with monkeypatch.context() as own:
                for name, value in env.items():
                    own.setenv(name, value)
                runpy.run_path(str(path), run_name="__main__")
            return 0
        words = [sys.executable, str(path), *map(str, words)]
        return subprocess.run(words, env=os.environ | env, capture_output=True).returncode

    return started


def test_a_run_of_ones_own_problem_goes_on_after_it_was_killed(program, command, tmp_path):
    cut = tmp_path / "cut"
    assert program(cut, here=False, KILL="21") == -signal.SIGKILL
    told = json.loads((cut / "checkpoint.json").read_text())
    assert (list(told["done"]), told["state"]["algorithm"]) == (["one"], "sca")
    program(cut, "resume")
    program(tmp_path / "whole")
    found, whole = files(cut), files(tmp_path / "whole")
    assert (
        json.loads(found.pop("checkpoint.json"))["done"] == json.loads(whole.pop("checkpoint.json"))["done"]
    )
    assert found == whole
    code, _, error = command("run", "--resume", "--out", cut)
    assert code == 2
    assert len(error.splitlines()) == 1
    assert "no experiment file can name its problem: go on there, with fs.run(" in error
    assert command("replay", cut)[0] == 2
    assert command("report", cut)[0] == 0


def test_ctrl_c_makes_a_checkpoint_and_says_how_to_go_on(program, tmp_path):
    place = tmp_path / "run"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a command before may have left its own
    with pytest.raises(KeyboardInterrupt) as stopped:
        program(place, INTERRUPT="5")
    assert str(stopped.value) == f"stopped; go on with: fs.run(..., out={str(place)!r}, resume=True)"
    assert json.loads((place / "checkpoint.json").read_text())["state"]["round"] == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_resume_with_something_else_is_refused_by_name(tmp_path):
    class Told(fs.Quadratic):
        identity = None

    def go(identity, rules=None, **options):
        problem = Told(clients=10)
        object.__setattr__(problem, "identity", identity)
        rules = rules or {"one": fs.CDMANC(0.1, 0.1)}
        return fs.run(problem, rules, out=tmp_path / "run", **SMALL | {"report": False} | options)

    go({"name": "told", "data": "aaaa"})
    assert json.loads((tmp_path / "run" / "experiment.json").read_text())["problem"]["data"] == "aaaa"
    for why, identity, options in (
        ('problem.data was "aaaa", is "bbbb"', "bbbb", {}),
        ("algorithms.one.eta was 0.1, is 0.2", "aaaa", {"rules": {"one": fs.CDMANC(0.2, 0.1)}}),
        ("seeds was", "aaaa", {"seeds": [0]}),
    ):
        with pytest.raises(fs.BadInput, match=re.escape(why)):
            go({"name": "told", "data": identity}, resume=True, **options)
    with pytest.raises(
        fs.BadInput, match=r"already holds a run: go on with resume=True, or choose another out$"
    ):
        go({"name": "told", "data": "aaaa"})
    assert go({"name": "told", "data": "aaaa"}, resume=True, rounds=6).rows[-1].round == 6
    with pytest.raises(fs.BadInput, match="identity must be a dict of JSON values"):
        go({"name": {1, 2}})


def test_a_resume_is_told_in_the_words_of_a_call(tmp_path):
    def go(*names, **options):
        return fs.run(
            "quadratic", list(names), seeds="0", out=tmp_path / "run", report=False, **{"rounds": 4} | options
        )

    go("cdma-ada", "cdma-nc")
    for why, names, options in (
        ("another experiment (the run has cdma-ada, cdma-nc; this asks for cdma-nc)", ["cdma-nc"], {}),
        ("experiment (K was 10, is 3; the run has cdma-ada, cdma-nc; ", ["cdma-nc"], {"settings": {"K": 3}}),
        ("was asked for 4 rounds; it may be given more, not fewer", ["cdma-ada", "cdma-nc"], {"rounds": 3}),
    ):
        with pytest.raises(fs.BadInput, match=re.escape(why)) as refused:
            go(*names, **{"resume": True} | options)
        assert str(refused.value).endswith(": resume it with the same values, or choose another out")


def test_other_data_or_code_without_an_identity_is_another_problem():
    class Mine(fs.Quadratic):
        pass

    first = identity_of(Mine(clients=10))
    assert first == identity_of(Mine(clients=10))
    other = Mine(clients=10)
    other.federation.rows[next(iter(other.federation.rows))][0] += 1
    assert identity_of(other)["data"] != first["data"]

    class Mine(fs.Quadratic):
        def loss(self, z, xi):
            return super().loss(z, xi) + 1

    assert identity_of(Mine(clients=10))["sha256"] != first["sha256"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: fs.run("quadratik"), "did you mean 'quadratic'"),
        (lambda: fs.run("quadratic", fs.CDMANC(0.1, 0.1)), "algorithms must be names of the experiment's"),
        (lambda: fs.run("quadratic", "cdma-xyz"), "unknown algorithm in this experiment 'cdma-xyz'"),
        (lambda: fs.run("quadratic", quorum=fs.Quorum()), "quorum is what the experiment says: change it by"),
        (lambda: fs.run("quadratic", settings={"quorum.invit": 3}), "unknown key in quorum 'invit'"),
        (lambda: fs.run(fs.Quadratic(), rounds=2), "a problem needs an algorithm"),
        (lambda: fs.run(fs.Quadratic(), fs.CDMANC(0.1, 0.1)), "rounds is missing"),
        (lambda: fs.run(fs.Quadratic(), "cdma-nc", rounds=2), "needs algorithms that were too"),
        (lambda: fs.run(fs.Quadratic(), {"a/b": fs.CDMANC(0.1, 0.1)}, rounds=2), "a name begins with"),
        (lambda: fs.run(fs.Quadratic(), {"a": fs.CDMANC}, rounds=2), "a: algorithm must be made first"),
        (lambda: fs.run(fs.Quadratic(), [fs.CDMANC(1, 1)] * 2, rounds=2), "a name for each"),
        (lambda: fs.run(fs.Quadratic(), fs.CDMANC(1, 1), rounds=2, resume=True), "say out="),
        (lambda: fs.run(fs.Quadratic(), fs.CDMANC(1, 1), rounds=2, seeds=3), "such as range\\(3\\)"),
        (lambda: fs.run(fs.Quadratic(), fs.CDMANC(1, 1), rounds=2, engine="lop"), "did you mean 'loop'"),
        (lambda: fs.run(42, fs.CDMANC(1, 1), rounds=2), "problem must be such as AUC"),
        (
            lambda: fs.run("quadratic", rounds=2, progress="x"),
            "progress must be True, False or None, got 'x'",
        ),
    ],
)
def test_what_run_cannot_use_is_refused_in_one_line(call, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fs.BadInput, match=why) as refused:
        call()
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_a_few_clients_are_all_invited_and_that_is_said(tmp_path):
    tables = [{"u": torch.arange(3.0) + client} for client in range(4)]
    task = fs.task(x=1, y=1, loss=lambda x, y, b: (x - b["u"]) ** 2 * (1 + y) - y**2, data=fs.clients(tables))
    told = r"all 4 clients are invited in every round; for fewer, say quorum=Quorum\(invite=...\)"
    with pytest.warns(fs.Notice, match=told) as heard:
        outcome = fs.simulate(task, fs.CDMANC(0.1, 0.1), rounds=1, progress=False)
    assert heard[0].filename == __file__
    with pytest.warns(fs.Notice, match=told):
        fs.run(task, fs.CDMANC(0.1, 0.1), rounds=1, out=tmp_path / "r", report=False, tensorboard=False)
    assert outcome.made.study.quorum == fs.Quorum(invite=4)
    with pytest.raises(fs.BadInput, match=r"invite must be at most the number of clients \(4\), got 8"):
        fs.simulate(task, fs.CDMANC(0.1, 0.1), rounds=1, quorum=fs.Quorum())


def test_a_run_without_a_place_is_below_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = fs.run(fs.Quadratic(clients=10), fs.CDMANC(0.1, 0.1), rounds=1, tensorboard=False, report=False)
    assert re.fullmatch(r"runs/quadratic-\d{8}-\d{6}", str(outcome.folder))
    assert outcome.names == ("cdma-nc",)
    assert not (outcome.folder / "tensorboard").exists()
    assert not (outcome.folder / "report.html").exists()
    assert outcome.report() == outcome.folder / "report.html"


# --- fs.sweep ----------------------------------------------------------------------------------------------


def test_a_sweep_finds_the_best_setting(command, tmp_path):
    grid = {"c_eta": [1e-6, 0.1], "rho": [0.1, 0.2]}
    problem = fs.Quadratic(clients=10)
    found = fs.sweep(problem, fs.CDMAADA, grid=grid, fixed={"c_gamma": 0.1}, **SMALL, out=tmp_path / "sweep")
    assert found.by == "stationarity"
    assert found.best["cdma-ada"].c_eta == 0.1
    assert [row["stationarity"] for row in found.table] == sorted(row["stationarity"] for row in found.table)
    tried = [(row["c_eta"], row["rho"]) for row in found.table]
    assert sorted(tried) == list(itertools.product(*grid.values()))
    assert (found.folder / "best.toml").exists()
    again = fs.simulate(problem, found.best["cdma-ada"], **SMALL)
    assert sum(again.last("stationarity")) / 2 == pytest.approx(found.table[0]["stationarity"], rel=1e-9)
    code, _, error = command("sweep", "--resume", "--out", found.folder, "--quiet")
    assert code == 0, error

    class Mine(fs.Quadratic):
        pass

    start = {"a": fs.CDMANC(0.1, 0.1), "b": fs.CDMAONE}
    grid = {"a": {"eta": [0.05, 0.1]}, "b": {"eta": {"low": 0.01, "high": 0.1}, "gamma": "eta"}}
    with pytest.warns(fs.Notice, match="a has 2 settings, fewer than the budget of 3"):
        found = fs.sweep(Mine(clients=10), start, grid=grid, budget=3, halving=2, **SMALL, out=tmp_path / "b")
    assert [row["algorithm"] for row in found.table] == ["a"] * 2 + ["b"] * 3
    assert set(found.best) == {"a", "b"}
    assert not (found.folder / "best.toml").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"grid": {"c_etta": [1]}}, "unknown hyperparameter in grid 'c_etta'"),
        ({"grid": {"c_eta": [1]}, "fixed": {"c_eta": 1}}, "c_eta is in the grid and fixed"),
        ({"grid": {"c_eta": [1]}, "fixed": {"eta": 1}}, "unknown hyperparameter of cdma-ada 'eta'"),
        ({"grid": {"c_eta": [1]}}, "cdma-ada: c_gamma is missing"),
        ({}, "grid is missing"),
        ({"grid": {"c_eta": [1]}, "fixed": {"c_gamma": 1}, "by": "test_auk"}, "did you mean 'test_auc'"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_in_one_line(options, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem = fs.AUC(dataset="digits", positive=3, clients=10)
    with pytest.raises(fs.BadInput, match=why):
        fs.sweep(problem, fs.CDMAADA, **{**SMALL, **options})


def test_a_sweep_chooses_by_test_rows_only_if_it_is_told(tmp_path):
    class Tested(fs.Quadratic):
        metrics = {"stationarity": fs.Metric("low", rows="test")}  # noqa: RUF012

        def evaluate(self, z):
            return {"stationarity": super().evaluate(z)["stationarity"]}

    sweep = partial(fs.sweep, Tested(clients=10), fs.CDMANC(0.1, 0.1), grid={"eta": [0.1, 0.2]}, **SMALL)
    with pytest.raises(fs.BadInput, match="every metric looks at test rows; if you mean it, say by='stat"):
        sweep(out=tmp_path / "no")
    with pytest.warns(fs.Notice, match="CHOSEN BY stationarity, WHICH LOOKS AT TEST ROWS"):
        assert sweep(by="stationarity", out=tmp_path / "yes").by == "stationarity"


# --- careful with people -----------------------------------------------------------------------------------


def test_the_doctor_says_what_is_wrong_and_what_to_do(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "data"))
    code, told, _ = command("doctor")
    assert code == 0, told
    assert {line.split()[0] for line in told.splitlines()} <= {"ok", "note"}
    for what in ("torch", "cores", "instructions", "player", "mnist", "runs, ", "free"):
        assert what in told
    (tmp_path / "data" / "satimage").mkdir(parents=True)
    (tmp_path / "data" / "satimage" / "sat.trn").write_text("spoilt")
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    monkeypatch.setattr(doctor, "_installed", lambda name: "0.1" if name == "numpy" else "99")
    monkeypatch.setattr(doctor, "record", lambda work, inputs: SimpleNamespace(why="it is deprecated"))
    code, told, _ = command("doctor")
    problems = [line for line in told.splitlines() if line.startswith("problem")]
    assert code == 1
    assert any("numpy 0.1, and >=2 is needed; pip install 'numpy>=2'" in line for line in problems)
    assert any("fedsaddle data satimage gets it anew" in line for line in problems)
    assert any("/proc cannot be written to" in line and "set TMPDIR" in line for line in problems)
    assert "torch.fx, which is slower than TorchScript: it is deprecated" in told


def test_the_doctor_sees_gpus_and_how_free_they_are(monkeypatch):
    """As PyTorch tells of them: here there may be none."""
    free = iter([(120 * 2**30, 139 * 2**30), (10 * 2**30, 139 * 2**30), RuntimeError("out of memory\nmore")])

    def told(number):
        found = next(free)
        if isinstance(found, RuntimeError):
            raise found
        return found

    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 3,
        "get_device_name": lambda number: "H200",
        "mem_get_info": told,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    whole, busy, broken = doctor._devices()
    assert (whole.kind, whole.told) == ("ok", "H200, 120 of 139 GiB free")
    assert (busy.kind, busy.todo) == ("note", "it is in use: choose another, or --set memory_gb=5.0")
    assert (broken.kind, broken.told) == ("problem", "H200 cannot be used: out of memory")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("fedsaddle run quadr", "quadratic"),
        ("fedsaddle run quadratic --algorithm cdma-ada,cdma-o", "cdma-ada,cdma-one"),
        ("fedsaddle sweep --engine vec", "vectorised"),
        ("fedsaddle doc", "doctor"),
    ],
)
def test_a_shell_completes_names_without_pytorch(words, found):
    program = "import sys; sys.modules['torch'] = None; from fedsaddle.cli import main; main()"
    env = {"_FEDSADDLE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    line = f"import sys; sys.argv = ['fedsaddle']; {program}"
    done = subprocess.run([sys.executable, "-c", line], env=os.environ | env, capture_output=True, text=True)
    assert done.stdout.split() == [found], done.stderr


def test_whole_numbers_of_numpy_are_pythons(tmp_path):
    table = {"a": numpy.arange(60.0), "label": numpy.arange(60) % 2}
    data = fs.clients(table, count=numpy.int64(3), seed=numpy.int64(1))
    assert len(data) == 3
    assert torch.equal(data.federation.rows["a"], fs.clients(table, count=3, seed=1).federation.rows["a"])
    assert len(fs.clients(away=numpy.int64(3), test=table)) == 3
    assert type(fs.Quorum(invite=numpy.int64(4)).invite) is int

    def of(out, whole, seeds):
        problem, quorum = fs.Quadratic(clients=whole(9)), fs.Quorum(invite=whole(4))
        some = {"rounds": whole(2), "batch": whole(2), "evaluate_every": whole(1), "progress": False}
        fs.run(problem, fs.CDMANC(0.1, 0.1), out=out / "own", seeds=seeds, quorum=quorum, **some)
        some["settings"] = {"problem.clients": whole(20)}
        return fs.run("quadratic", "cdma-nc", out=out / "named", seeds=seeds, **some)

    theirs, plain = of(tmp_path / "numpy", numpy.int64, numpy.arange(2)), of(tmp_path / "int", int, [0, 1])
    assert [type(seed) for seed in theirs.seeds] == [int, int]
    assert theirs.rows == plain.rows
    for run in ("own", "named"):
        for file in ("experiment.json", "rounds.csv"):
            assert (tmp_path / "numpy" / run / file).read_bytes() == (
                tmp_path / "int" / run / file
            ).read_bytes()
    some = {"rounds": 2, "quorum": fs.Quorum(invite=4)}
    ends = [
        fs.simulate(fs.Quadratic(clients=9), fs.CDMANC(0.1, 0.1), seeds=seeds, **some).rows[-1].metrics
        for seeds in (numpy.arange(2), range(2))
    ]
    assert ends[0] == ends[1]
    for wrong in (True, numpy.bool_(True), 2.0, numpy.float64(2)):
        with pytest.raises(fs.BadInput, match="rounds must be a whole number"):
            fs.run(fs.Quadratic(clients=9), fs.CDMANC(0.1, 0.1), rounds=wrong, out=tmp_path / "no")
