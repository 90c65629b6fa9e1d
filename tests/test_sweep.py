"""Sweeps: what is tried, what is dropped, what is chosen; and that a kill changes none of it."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import chromium
from fedsaddle.border.build import load
from fedsaddle.border.files import SHIPPED
from fedsaddle.border.schema import Sweep
from fedsaddle.border.sweeps import load_sweep
from fedsaddle.cli import commands
from fedsaddle.engine.course import Row, Stop
from fedsaddle.engine.study import Lanes
from fedsaddle.errors import BadInput
from fedsaddle.metric import Metric
from fedsaddle.problems import AUC
from fedsaddle.report import read_runs
from fedsaddle.report.sweeps import families_of
from fedsaddle.sweep import Halving, Span, rungs, score, settings, to_toml
from test_report import browser  # noqa: F401
from test_runs import fedsaddle, result, true_after

TABLES = {
    "name": "tiny",
    "rounds": 12,
    "evaluate_every": 2,
    "seeds": [0, 1],
    "batch": 5,
    "K": 2,
    "problem": {"name": "quadratic", "clients": 20, "dim_x": 3, "dim_y": 3},
    "algorithms": {
        "cdma-one": {"eta": 0.01, "gamma": 0.01},
        "mine": {"algorithm": "codasca", "invite": 4, "eta_l": 0.01},
    },
    "sweep": {
        "by": "stationarity",
        "budget": 9,
        "grid": {
            "cdma-one": {"eta": [0.001, 0.05, 1e40], "gamma": [0.01, 0.1, 0.3]},
            "mine": {"eta_l": [0.003, 0.02], "K_0": [2, 8]},
        },
    },
}


def write(path: Path, tables=TABLES, **sweep) -> str:
    path.write_text(json.dumps(tables | {"sweep": tables["sweep"] | sweep}))
    return str(path)


@pytest.fixture
def tiny(tmp_path):
    return write(tmp_path / "tiny.json")


# --- what is tried ---------------------------------------------------------------------------------------


def test_a_grid_within_the_budget_is_tried_whole_and_in_order():
    choices = {"a": [1, 2], "b": [0.1, 0.2, 0.3]}
    expected = [{"a": a, "b": b} for a in (1, 2) for b in (0.1, 0.2, 0.3)]
    assert settings(choices, 6, 0) == expected
    assert settings(choices, 100, 7) == expected
    assert settings({}, 5, 0) == [{}]


def test_a_larger_grid_is_drawn_from_without_repetition():
    choices = {"a": list(range(30)), "b": list(range(40))}
    some = settings(choices, 100, 3)
    assert len({(one["a"], one["b"]) for one in some}) == len(some) == 100
    assert settings(choices, 100, 3) == some
    assert settings(choices, 100, 4) != some


def test_a_range_is_drawn_within_its_ends_and_a_follower_follows():
    choices = {"a": Span(0.001, 1.0, log=True), "b": "a", "c": [1, 2]}
    some = settings(choices, 200, 0)
    assert len(some) == 200
    assert all(0.001 <= one["a"] <= 1 and one["a"] == one["b"] for one in some)
    assert 70 < sum(one["a"] < 10**-1.5 for one in some) < 130  # half of the logarithm
    assert 70 < sum(one["c"] == 1 for one in some) < 130


def test_every_algorithm_has_the_budget_or_says_that_it_has_less(tiny):
    plan = load_sweep(tiny, budget=4)
    assert Counter(name.rpartition("-")[0] for name in plan.resolved["algorithms"]) == {
        "cdma-one": 4,
        "mine": 4,
    }
    assert plan.notes == ()
    (note,) = load_sweep(tiny, budget=9).notes
    assert note == "mine has 4 settings, fewer than the budget of 9"


def test_settings_with_other_counts_are_apart(tiny):
    plan = load_sweep(tiny)
    assert {key: len(study.seeds) for key, study in plan.studies.items()} == {
        "cdma-one (9 settings)": 18,
        "mine (2 settings, K_0 2)": 4,
        "mine (2 settings, K_0 8)": 4,
    }
    assert plan.studies["mine (2 settings, K_0 8)"].names == ("mine-001", "mine-001", "mine-003", "mine-003")


def test_what_the_memory_does_not_hold_together_comes_after_one_another(tiny):
    room = 3 * 2 * (4 * 8 * 3 * 3 * 2) / 2**30  # three settings of two seeds; z, z_old and u of six floats
    plan = load_sweep(tiny, algorithms=["cdma-one"], settings=[f"memory_gb={room}"])
    assert len(plan.studies) > 1
    names = [name for study in plan.studies.values() for name in study.names]
    assert list(dict.fromkeys(names)) == [f"cdma-one-{number:03d}" for number in range(9)]
    assert len(names) == 18


def test_the_papers_grids():
    tables = tomllib.loads((SHIPPED / "auc-mnist.toml").read_text())
    assert set(tables["sweep"]["grid"]) == set(tables["algorithms"])
    sizes = {name: len(settings(grid, 10_000, 0)) for name, grid in tables["sweep"]["grid"].items()}
    assert sizes == {
        **dict.fromkeys(["cdma-one", "cdma-nc", "parallel-sgda", "local-sgda-plus"], 42),
        "cdma-ada": 504,
        "extra-step": 9,
        "coda-plus": 30,
        "catalyst-scaffold-s": 30,
        "codasca": 90,
    }


def test_the_documented_sweep_can_be_made(tmp_path):
    text = (Path(__file__).parent.parent / "docs/sweep.md").read_text()
    (block,) = re.findall("```toml\n(.*?)```", text, flags=re.S)
    algorithms = {
        "cdma-ada": {"c_eta": 1.0, "c_gamma": 1.0},
        "catalyst-scaffold-s": {"eta_l": 1.0, "eta_g": 1.0},
    }
    problem = {"name": "auc", "clients": 50, "network": "logistic", "validation_share": 0.1}
    tables = TABLES | tomllib.loads(block) | {"algorithms": algorithms, "problem": problem}
    plan = load_sweep(write(tmp_path / "documented.json", tables))
    assert plan.by == "validation_auc"
    assert len(plan.resolved["algorithms"]) == 24 + 2
    keys = set(Sweep.model_fields) - {"settings", "by_test"}
    assert keys == set(tomllib.loads(block)["sweep"])


# --- at the border ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        ({"grid": {}}, "no grid; add a table such as [sweep.grid.cdma-one]"),
        ({"grid": {"cdma-on": {"eta": [1.0]}}}, "did you mean 'cdma-one'?"),
        ({"grid": {"cdma-one": {"etta": [1.0]}}}, "did you mean 'eta'?"),
        ({"grid": {"cdma-one": {"eta": []}}}, "sweep.grid.cdma-one.eta: should be a list of values"),
        ({"grid": {"cdma-one": {"eta": 0.1}}}, "sweep.grid.cdma-one.eta: should be a list of values"),
        ({"grid": {"cdma-one": {"eta": [0.1, 0.1]}}}, "different numbers"),
        ({"grid": {"cdma-one": {"eta": [[0.1]]}}}, "different numbers"),
        ({"grid": {"cdma-one": {"eta": [0.1, -1.0]}}}, "eta must be above 0, got -1"),
        ({"grid": {"cdma-one": {"eta": ["much"]}}}, "eta"),
        ({"grid": {"cdma-one": {"eta": "gamma"}}}, "'gamma' has no values of its own"),
        ({"grid": {"cdma-one": {"K": [2, 0]}}}, "K must be at least 1"),
        ({"grid": {"cdma-one": {"K": {"low": 1, "high": 9}}}}, "a count needs a list"),
        ({"grid": {"cdma-one": {"eta": {"low": 1}}}}, "low and high should be two numbers that go up"),
        ({"grid": {"cdma-one": {"eta": {"low": 2, "high": 1}}}}, "go up"),
        ({"grid": {"cdma-one": {"eta": {"low": 0, "high": 1, "log": True}}}}, "above 0 where log is true"),
        ({"grid": {"cdma-one": {"eta": {"low": 0.1, "hihg": 1}}}}, "did you mean 'high'?"),
        ({"grid": {"cdma-one": 3}}, "sweep.grid"),
        ({"budget": 0}, "sweep.budget must be at least 1"),
        ({"budget": 10**6}, "sweep.budget must be at most 100000"),
        ({"budget": 2.5}, "sweep.budget"),
        ({"halving": 1}, "sweep.halving (0 keeps every setting to the end) must be at least 2"),
        ({"seed": -1}, "sweep.seed must be at least 0"),
        ({"by": "stationary"}, "did you mean 'stationarity'?"),
        ({"bye": "phi"}, "did you mean 'by'?"),
        ({"settings": {"a": ["b"]}}, "unknown algorithm"),
        (
            {"budget": 60_000, "grid": {"cdma-one": {"eta": {"low": 0.1, "high": 1.0}}}},
            "120002 lanes (settings times seeds), at most 100000 are allowed: lower budget or seeds",
        ),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_in_one_line(tmp_path, monkeypatch, capsys, sweep, says):
    path = write(tmp_path / "bad.json", **sweep)
    assert fedsaddle("sweep", path, f"--out={tmp_path / 'new'}", monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert says in said
    assert not (tmp_path / "new").exists()


def test_a_run_does_not_look_at_the_sweep(tiny):
    plan = load(tiny)
    assert set(plan.studies) == {"cdma-one", "mine"}
    assert "sweep" not in plan.resolved


# --- by which metric -------------------------------------------------------------------------------------


HIGH, LOW = Metric("high", rows="test"), Metric("low", rows="train")

DIGITS = TABLES | {
    "problem": {"name": "auc", "dataset": "digits", "clients": 50, "network": "logistic"},
    "algorithms": {"cdma-nc": {"eta": 0.1, "gamma": 0.1}},
    "rounds": 2,
    "sweep": {"budget": 2, "grid": {"cdma-nc": {"eta": [0.1, 0.2]}}},
}


def test_a_test_metric_is_refused_unless_it_is_asked_for(tmp_path, monkeypatch, capsys):
    path = write(tmp_path / "digits.json", DIGITS, by="test_auc")
    with pytest.raises(
        BadInput, match=r"test_auc, which looks at test rows: choose one of train_auc.*--by test_auc"
    ):
        load_sweep(path)
    with pytest.raises(BadInput, match="looks at test rows"):
        load_sweep(path, settings=["sweep.by=test_precision"])
    plain = write(tmp_path / "plain.json", DIGITS)
    assert load_sweep(plain).by == "train_auc"  # the first that is not
    out = tmp_path / "run"
    words = ["sweep", path, "--by=test_auc", f"--out={out}", "--quiet"]
    assert fedsaddle(*words, monkeypatch=monkeypatch) == 0
    assert "CHOSEN BY test_auc, WHICH LOOKS AT TEST ROWS" in capsys.readouterr().err
    assert "CHOSEN BY test_auc" in (out / "best.toml").read_text()
    assert "CHOSEN BY test_auc" in (out / "report.html").read_text()
    fair = write(
        tmp_path / "fair.json", DIGITS | {"problem": {"name": "fair", "clients": 50}}, by="worst_loss"
    )
    with pytest.raises(BadInput, match="worst_loss, which looks at test rows"):
        load_sweep(fair)


def test_validation_rows_are_a_share_of_each_class_that_no_client_has():
    plain, kept = AUC(), AUC(validation_share=0.2)
    held, rows = kept._validation, torch.cat(kept.parts)
    assert not set(held.tolist()) & set(rows.tolist())
    labels = kept.data.labels
    for label in range(10):
        share = (labels[held] == label).sum() / (labels == label).sum()
        assert share == pytest.approx(0.2, abs=0.01)
    assert len(rows) >= len(labels) - len(held) - kept.clients
    z = kept.init(0)
    assert list(kept.evaluate(z))[:3] == ["test_auc", "validation_auc", "train_auc"]
    assert "validation_auc" not in plain.evaluate(z)
    other = AUC(validation_share=0.2, seed=1)._validation
    assert not torch.equal(held, other)
    with pytest.raises(BadInput, match="validation_share must be at least 0 and below 1"):
        AUC(validation_share=1.0)


def test_a_validation_split_is_chosen_by_if_there_is_one(tmp_path):
    path = write(tmp_path / "digits.json", DIGITS)
    assert load_sweep(path, settings=["problem.validation_share=0.1"]).by == "validation_auc"


# --- which is better -------------------------------------------------------------------------------------


def test_a_setting_that_loses_a_seed_comes_after_all_that_lose_none():
    scores = {
        "good": score(HIGH, [0.9, 0.8], 2),
        "fair": score(HIGH, [0.6, 0.6], 2),
        "flattered": score(HIGH, [0.99], 2),
        "early": score(HIGH, [0.95, 0.95], 2, dropped=True),
        "lost": score(HIGH, [], 2),
    }
    assert sorted(scores, key=scores.get) == ["good", "fair", "flattered", "lost", "early"]
    assert score(LOW, [1.0], 1) < score(LOW, [2.0], 1)
    chance = HIGH._replace(chance=0.6)  # who is lucky once and dead once is no better than who is so-so twice
    assert (
        score(chance, [0.7, 0.7], 2)
        < score(chance, [0.99, 0.5], 2)
        < score(chance, [0.99], 2)._replace(lost=2)
    )


def test_the_rungs_of_a_ladder():
    assert rungs(24, 3, 60, 5) == {10: 8, 20: 3}
    assert rungs(27, 3, 27, 1) == {1: 9, 3: 3, 9: 1}
    assert rungs(8, 2, 100, 10) == {20: 4, 30: 2, 50: 1}
    assert rungs(2, 3, 60, 5) == {}
    assert rungs(9, 3, 10, 10) == {}  # there is no evaluation on the way


def test_halving_by_hand():
    """Six settings of two seeds; e has lost a seed, f both, and the keep is three."""
    names = tuple(name for name in "abcdef" for _ in range(2))
    values = {"a": (3, 5), "b": (1, 1), "c": (9, 9), "d": (2, 2), "e": (0.1,)}
    rows = []
    for name, own in values.items():
        for seed, value in enumerate(own):
            rows.append(Row(names.index(name) + seed, seed, 4, 0, 0, 0.0, {"loss": value}))
    lanes = Lanes(None, None, [], [], [], [])
    halving = Halving("loss", LOW, names, {4: 3})
    dropped = halving(Stop(4, lanes, rows, []))
    assert [(names[event.lane], event.round, event.what) for event in dropped] == [
        *[("c", 3, "dropped")] * 2,
        ("e", 3, "dropped"),
    ]
    assert dropped[0].detail == "not among the best 3 of 6 settings by loss"
    assert halving(Stop(6, lanes, rows, [])) == []
    assert halving(Stop(4, lanes, rows[2:4], [])) == []  # no more are left than are kept


# --- whole sweeps ----------------------------------------------------------------------------------------


def words(path: str, out: Path, *more: str) -> list[str]:
    return ["sweep", path, f"--out={out}", "--checkpoint-seconds=0", *more]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    path = write(folder / "tiny.json")
    command = [sys.executable, "-m", "fedsaddle", *words(path, folder / "run")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return folder / "run", done.stdout


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_many_settings_at_once_are_each_what_they_are_alone(swept, tmp_path, monkeypatch):
    """`run` on the sweep's own experiment plays every setting by itself."""
    folder, _ = swept
    alone = tmp_path / "alone"
    one_by_one = ["run", str(folder / "experiment.json"), f"--out={alone}", "--quiet"]
    assert fedsaddle(*one_by_one, monkeypatch=monkeypatch) == 3  # 1e40 diverges with all its seeds
    key = lambda row: (row["algorithm"], row["seed"], int(row["round"]))  # noqa: E731
    together, apart = (sorted(table(run / "rounds.csv"), key=key) for run in (folder, alone))
    assert [key(row) for row in together] == [key(row) for row in apart]
    for one, other in zip(together, apart, strict=True):
        assert {name: float(one[name]) for name in list(one)[1:]} == pytest.approx(
            {name: float(other[name]) for name in list(one)[1:]}, rel=1e-10, abs=1e-10
        )
    for path in (folder / "final").iterdir():
        point, other = load_file(path), load_file(alone / "final" / path.name)
        if not path.stem.endswith(("006", "007", "008")):
            assert all(torch.allclose(point[name], other[name], rtol=1e-10, atol=1e-10) for name in point)


def test_the_best_setting_is_found_and_told(swept):
    folder, told = swept
    ends: dict[str, list[float]] = {}
    for row in table(folder / "rounds.csv"):
        if row["round"] == "12":
            ends.setdefault(row["algorithm"], []).append(float(row["stationarity"]))
    means = {name: sum(values) / 2 for name, values in ends.items()}
    best = {
        family: min((name for name in means if name.startswith(family)), key=means.get)
        for family in ("cdma-one", "mine")
    }
    (run,) = read_runs([folder])
    one, mine = families_of(run)
    assert (one.best.label, mine.best.label) == (best["cdma-one"], best["mine"])
    assert (len(one.tried), one.diverged, one.dropped) == (9, 3, 0)
    assert f"{means[best['cdma-one']]:.4g}" in told
    assert best["cdma-one"] in told
    assert "cdma-one (9 settings) round 12/12  best stationarity" in told
    assert run.unfinished == ""
    for name in ("heatmap-cdma-one.png", "heatmap-mine.png"):
        assert (folder / name).stat().st_size > 5_000


def test_the_winners_are_an_experiment(swept, tmp_path, monkeypatch):
    folder, _ = swept
    (run,) = read_runs([folder])
    plan = load(str(folder / "best.toml"))
    assert list(plan.studies) == ["cdma-one", "mine"]
    for family in families_of(run):
        table = plan.resolved["algorithms"][family.name]
        assert {"algorithm": family.name} | table == family.best.setting
    assert (
        fedsaddle(
            "run", str(folder / "best.toml"), f"--out={tmp_path / 'r'}", "--quiet", monkeypatch=monkeypatch
        )
        == 0
    )
    ends = [float(r["stationarity"]) for r in table_of(tmp_path / "r", "mine") if r["round"] == "12"]
    assert sum(ends) / 2 == pytest.approx(families_of(run)[1].value_of("stationarity"), rel=1e-10)


def table_of(folder: Path, name: str) -> list[dict[str, str]]:
    return [row for row in table(folder / "rounds.csv") if row["algorithm"] == name]


def test_a_resolved_sweep_can_be_swept_again(swept, tmp_path, monkeypatch):
    folder, _ = swept
    again = words(str(folder / "experiment.json"), tmp_path / "again", "--quiet")
    assert fedsaddle(*again, monkeypatch=monkeypatch) == 0
    assert result(tmp_path / "again") == result(folder)


def test_dropped_settings_stop_and_the_others_go_on(tiny, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    assert fedsaddle(*words(tiny, out, "--halving=3", "--algorithm=cdma-one"), monkeypatch=monkeypatch) == 0
    events = table(out / "events.csv")
    last = dict.fromkeys(json.loads((out / "experiment.json").read_text())["algorithms"], 0)
    for row in table(out / "rounds.csv"):
        last[row["algorithm"]] = int(row["round"])
    # Nine settings, of which three diverge at once: after 12 / 9 rounds three are kept, after 12 / 3 one.
    assert Counter(last.values()) == {0: 3, 2: 3, 4: 2, 12: 1}
    assert Counter(event["event"] for event in events) == {"diverged": 6, "dropped": 10}
    (run,) = read_runs([out])
    (family,) = families_of(run)
    assert (family.dropped, family.diverged, run.unfinished) == (5, 3, "")
    assert last[family.best.label] == 12
    assert "dropped" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--halving=2"]])
def test_killed_and_resumed_a_sweep_takes_the_same_decisions(tiny, tmp_path, monkeypatch, more):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert fedsaddle(*words(tiny, whole, "--quiet", *more), monkeypatch=monkeypatch) == 0
    for rows in (10, 60, 100):
        command = [sys.executable, "-m", "fedsaddle", *words(tiny, folder, "--quiet", "--resume", *more)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        path = folder / "rounds.csv"
        while (not path.exists() or path.read_bytes().count(b"\n") < rows) and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert fedsaddle(*words(tiny, folder, "--quiet", "--resume", *more), monkeypatch=monkeypatch) == 0
    assert result(folder) == result(whole)
    assert (folder / "best.toml").read_bytes() == (whole / "best.toml").read_bytes()


def test_stopped_around_each_rung_it_goes_on_as_if_nothing_had_happened(tiny, tmp_path, monkeypatch):
    more = ["--halving=3", "--algorithm=cdma-one", "--quiet"]
    whole = tmp_path / "whole"
    assert fedsaddle(*words(tiny, whole, *more), monkeypatch=monkeypatch) == 0
    for rounds in (1, 2, 3, 4, 5):
        folder = tmp_path / str(rounds)
        with monkeypatch.context() as patched:
            patched.setattr(commands, "until_asked", lambda after=rounds: true_after(after))
            assert fedsaddle(*words(tiny, folder, *more), monkeypatch=patched) == 130
        assert fedsaddle(*words(tiny, folder, *more, "--resume"), monkeypatch=monkeypatch) == 0
        assert result(folder) == result(whole)


def test_another_sweep_is_not_resumed(tiny, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    assert fedsaddle(*words(tiny, out, "--quiet", "--rounds=2"), monkeypatch=monkeypatch) == 0
    capsys.readouterr()
    other = words(tiny, out, "--quiet", "--rounds=2", "--halving=2", "--resume")
    assert fedsaddle(*other, monkeypatch=monkeypatch) == 2
    assert "sweep.halving was 0, is 2" in capsys.readouterr().err


def test_a_sweep_goes_on_to_more_rounds_unless_it_halves(tiny, tmp_path, monkeypatch, capsys):
    more, less = (words(tiny, tmp_path / "run", "--quiet", f"--rounds={rounds}") for rounds in (6, 3))
    whole = tmp_path / "whole"
    assert fedsaddle(*words(tiny, whole, "--quiet", "--rounds=6"), monkeypatch=monkeypatch) == 0
    assert fedsaddle(*less, monkeypatch=monkeypatch) == 0
    assert fedsaddle("sweep", "--resume", *more[2:], monkeypatch=monkeypatch) == 0
    assert result(tmp_path / "run") == result(whole)
    assert (tmp_path / "run" / "best.toml").read_bytes() == (whole / "best.toml").read_bytes()
    halves = tmp_path / "halves"
    given = [words(tiny, halves, "--quiet", "--halving=3", f"--rounds={rounds}") for rounds in (6, 9)]
    assert fedsaddle(*given[0], monkeypatch=monkeypatch) == 0
    capsys.readouterr()
    assert fedsaddle(*given[1], "--resume", monkeypatch=monkeypatch) == 2
    assert "has given up settings on the way to 6 rounds" in capsys.readouterr().err
    assert fedsaddle("run", "--resume", f"--out={halves}", monkeypatch=monkeypatch) == 2
    assert f"go on with fedsaddle sweep --resume --out {halves}" in capsys.readouterr().err


# --- the report ------------------------------------------------------------------------------------------


def test_the_page_shows_heat_maps_and_the_best_curves(swept, browser):  # noqa: F811
    folder, _ = swept
    browser.look()
    browser.open(folder / "report.html")
    assert browser.ask("document.querySelectorAll('#maps svg').length") == 2
    assert browser.ask("document.querySelectorAll('#chart path.mean').length") == 2
    assert browser.ask("document.querySelectorAll('#legend [aria-pressed=false]').length") == 11
    assert browser.ask("document.querySelectorAll('#table tbody tr').length") == 2
    first = "document.querySelector('#maps figure')"
    assert browser.ask(f"{first}.querySelectorAll('g').length") == 9
    assert browser.ask(f"{first}.querySelectorAll('.cross').length") == 3
    assert browser.ask(f"{first}.querySelectorAll('.winner').length") == 1
    assert "9 settings tried, 3 lost a seed" in browser.ask(f"{first}.textContent")
    for kind in ("mouse", "touch"):
        browser.point("#maps g:nth-of-type(2)", 0, kind)
        assert "eta 0.001, gamma 0.1: stationarity" in browser.ask(
            "document.querySelector('.told').textContent"
        )
    cells = browser.ask(f"[...{first}.querySelectorAll('details td')].map(cell => cell.textContent)")
    assert len(cells) == 9
    assert cells.count("diverged") == 3
    assert browser.ask("document.getElementById('sweep-warning').hidden")
    browser.look(width=360, height=740, dark=True)
    assert browser.ask("document.documentElement.scrollWidth") == 360
    assert browser.console() == []
    assert chromium.DRIVER


def test_toml_is_read_back_as_it_was():
    tables = {
        "name": 'a "b" \\ \n \x7f é 😀',
        "list": [1, 2.5, 1e-05, 1e22],
        "yes": True,
        "none": None,
        "empty": {},
        "deep": {"a.b": {"x": 1}, "plain-key": "v"},
    }
    expected = {key: value for key, value in tables.items() if key != "none"}
    assert tomllib.loads(to_toml(tables)) == expected
