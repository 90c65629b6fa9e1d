"""What is timed against the engine does the same work, and what is measured can be measured again."""

import json

import pytest
import torch
from benchmarks import dropout, gan_gap, own_task
from benchmarks.plain import Plain
from benchmarks.work import Order
from benchmarks.workloads import Workload, write

import fedsaddle as fs
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points
from fedsaddle.problems import AUC, Robust

PROBLEMS = {
    "logistic": lambda: AUC(clients=20, network="logistic", mean="clients"),
    "mlp": lambda: AUC(clients=20, network="mlp", mean="clients"),
    "robust": lambda: Robust(clients=20, hidden=16),
}
RULES = {"cdma-nc": fs.CDMANC(0.1, 0.2, K=4), "cdma-ada": fs.CDMAADA(0.1, 0.2, 0.6, 0.2, K=4)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_plain_loop_goes_where_the_engine_goes(tmp_path, problem, rule):
    workload = Workload("little", PROBLEMS[problem], RULES[rule], visits=5, batch=6)
    write(workload, tmp_path, rounds=3)
    plain, study = Plain(Order(tmp_path)), workload.study()
    lanes = begin(study)
    for round in range(3):
        lanes, _ = play(study, lanes, round)
        plain.play(round)
    for ours, theirs in zip(points(lanes.server)[0], plain.point(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_dropout_is_measured_in_little(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dropout, "DROPOUTS", (0.3, 1.0))
    monkeypatch.setattr(dropout, "OVER", (1.3,))
    words = ["--experiment=auc-digits", "--rounds=2", "--seeds=0-1", "--device=cpu", f"--out={tmp_path}"]
    dropout.main(words)
    out = capsys.readouterr().out
    assert "| 30% | 1.3 |" in out
    assert "| 0 | 0.03 | never | 0.0 M | 0.0 M (0%)" in out  # nobody answers: two minutes of waiting
    assert (tmp_path / "dropout.png").exists()
    assert len((tmp_path / "dropout.csv").read_text().splitlines()) == 5


def test_those_who_hold_positives_can_be_the_slow_ones():
    chances = json.loads(dropout.holders("auc-digits", "cdma-ada"))
    assert chances == [1.0] * 5 + [0.0] * 45  # clients are sorted by class, and zeros are to be found


def test_a_task_of_ones_own_is_timed_on_the_shipped_tasks_walk(monkeypatch, capsys):
    made = own_task.stand_in(rows=600)
    monkeypatch.setitem(own_task.DATASETS, "mnist", lambda: made)
    monkeypatch.setattr(own_task, "stand_in", lambda: made)
    monkeypatch.setattr(own_task, "WARM", 1)
    monkeypatch.setattr(own_task, "ALGORITHMS", {"cdma-nc": (fs.CDMANC(0.1, 0.1, K=2), 2)})
    monkeypatch.setattr(own_task.sources, "is_there", lambda name: False)
    assert own_task.main(["--rounds=1", "--repeats=1", "--clients=10"]) > 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("cdma-nc"))
    assert float(line.split()[-1]) < 1e-5  # apart


def test_the_gap_of_a_gan_is_separated_in_little_and_gone_on_with(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "data"))
    words = ["--experiment=gan-digits", "--judge=small", "--epochs=33", "--rounds=2", "--seeds=0-1"]
    words += ["--set=problem.samples=200", "--set=K=2", f"--folder={tmp_path / 'gap'}", f"--out={tmp_path}"]
    gan_gap.main(words)
    first = capsys.readouterr().out
    lines = first.splitlines()
    assert len(lines) == 2 + 8
    assert "| as shipped | trained |" in lines[2]
    assert "| a judge of 33 epochs | rescored |" in first
    assert "| full gradients in chunks of 20 | trained |" in first
    # Nothing is computed twice.
    monkeypatch.setattr(gan_gap, "rescore", None)
    monkeypatch.setattr("fedsaddle.runs.execution.course", None)
    gan_gap.main(words)
    assert capsys.readouterr().out == first
    assert len((tmp_path / "gan-gap.csv").read_text().splitlines()) == 1 + 2 * 8
