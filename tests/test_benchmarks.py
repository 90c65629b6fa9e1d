"""What is timed against the engine does the same work, and what is measured can be measured again."""

import json
import sys

import pytest
import torch
from benchmarks import collapse, dropout, gan_gap, own_task, steady, turns, unfinished
from benchmarks.plain import Plain
from benchmarks.work import Order
from benchmarks.workloads import Workload, write

import fedsaddle as fs
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points
from fedsaddle.problems import AUC, Robust
from fedsaddle.report.spent import NOTHING_SPENT

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


def test_unfinished_walks_are_measured_in_little(tmp_path, monkeypatch, capsys):
    task = unfinished.TASKS["quadratic"]._replace(goal=2.0, horizon=3_000.0, eta=(0.02,), gamma=(0.12,))
    monkeypatch.setitem(unfinished.TASKS, "quadratic", task)
    monkeypatch.setattr(unfinished, "DEADLINES", (10.0,))
    monkeypatch.setattr(unfinished, "FRESH", range(2))
    unfinished.main(["quadratic", "--rule", "fed-norm-sgda", f"--out={tmp_path}"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in lines[4:]] == ["wait", "first", "drop", "send"]
    assert all("| 2 of 2 |" in line for line in lines[4:])
    assert len((tmp_path / "unfinished-quadratic.csv").read_text().splitlines()) == 1 + 4 * 2


def test_a_look_at_all_test_rows_alone_is_the_metric():
    plan = unfinished.load("auc-digits", algorithms=["cdma-nc"], seeds="0-1", device="cpu")
    (study,) = plan.studies.values()
    (stop,) = unfinished.course(study, 0, 1)
    task = unfinished.TASKS["mnist"]._replace(rows=len(study.problem.test_rows.rows["positive"]))
    found = unfinished.looked_at(task, study.problem, stop)
    assert found == pytest.approx({row.lane: row.metrics["test_auc"] for row in stop.rows})
    study.close()


# --- the study of collapse --------------------------------------------------------------------------------


def seen(fallen, seeds=20, rounds=400, scorings=tuple(collapse.SCORINGS)):
    """What a study has seen in which so many seeds froze, by the place."""
    return [
        collapse.Line(cohorts, scoring, name, seed, rounds, 0.99, 0.99, 0.0 if frozen else 0.9, 0, True)
        for scoring in scorings
        for cohorts in collapse.COHORTS
        for name in collapse.STEPS
        for seed in range(seeds)
        for frozen in [seed < fallen.get((cohorts, scoring), 0)]
    ]


def test_intervals_and_flips_of_signs_are_the_textbooks():
    assert collapse.wilson(0, 20) == pytest.approx((0.0, 0.16113), abs=1e-5)
    assert collapse.wilson(5, 20) == pytest.approx((0.11186, 0.46870), abs=1e-5)
    assert collapse.wilson(20, 20) == pytest.approx((0.83887, 1.0), abs=1e-5)
    assert collapse.sign_flips([1, 1, 1]) == 2 / 8
    assert collapse.sign_flips([2, -1, 0]) == 1.0
    assert collapse.sign_flips([-2, -2, -1]) == 2 / 8
    assert collapse.sign_flips([]) == 1.0


def test_a_slip_of_the_study_of_collapse_leaves_its_page_alone(tmp_path, capsys):
    (tmp_path / "collapse.md").write_text("a whole run")
    for slip in (["--experiment", "quadratic"], ["--experiment", "auc-digits", "--rounds", "0"]):
        with pytest.raises(SystemExit) as ended:
            collapse.main(
                [*slip, "--commit", "abc1234", "--out", str(tmp_path), "--runs", str(tmp_path / "runs")]
            )
        assert ended.value.code == 2
        assert " must be " in capsys.readouterr().err
    assert (tmp_path / "collapse.md").read_text() == "a whole run"


def test_a_seed_has_collapsed_in_any_of_three_ways():
    fine = seen({}, seeds=1)[0]
    assert not fine.collapsed
    for change in ({"test_auc": 0.59}, {"spread": 9e-6}, {"finite": False}):
        assert fine._replace(**change).collapsed


def test_answers_follow_from_the_counts():
    lines = seen({("independent", "sigmoid"): 12, ("invited", "sigmoid"): 11})
    told = collapse.answers(lines)
    assert len(told) == 9
    (answered,) = (line for line in told if line.startswith("| `answered`") and "sigmoid" in line)
    assert "0 for 24" in answered
    assert "**fewer collapse**" in answered
    assert sum("not told apart" in line for line in told) == 8
    more = collapse.answers(seen({("answered", "softmax"): 12}))
    assert sum("**more collapse**" in line for line in more) == 2  # than independent, and than with the ReLU
    some = collapse.answers(seen({}, scorings=("softmax", "sigmoid")))
    assert len(some) == 4  # nobody asks about places that there are not


@pytest.mark.parametrize(
    ("fallen", "told"),
    [
        ({}, "nothing to explain"),
        ({("independent", "release"): 1, ("invited", "sigmoid"): 1}, "**Cohorts explain it**"),
        ({("independent", "release"): 1, ("answered", "release"): 1}, "**The ReLU explains it**"),
        ({("independent", "softmax"): 1, ("answered", "release"): 1}, "explain it together"),
        ({("answered", "softmax"): 1}, "too long"),
    ],
)
def test_the_reading_follows_from_where_seeds_fell(fallen, told):
    assert told in collapse.reading(seen(fallen))
    assert "all nine places" in collapse.reading(seen(fallen, scorings=("softmax", "sigmoid")))


def test_too_few_seeds_or_rounds_are_not_judged():
    assert collapse.is_whole(seen({}))
    assert not collapse.is_whole(seen({}, seeds=19))
    assert not collapse.is_whole(seen({}, rounds=399))
    assert not collapse.is_whole([])
    ended = seen({})
    ended[0] = ended[0]._replace(rounds=30, finite=False)
    assert collapse.is_whole(ended)


def test_a_copy_that_git_does_not_know_has_to_be_told_its_commit(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.provenance.here", lambda: {"fedsaddle": "1"})
    for study in (collapse, steady):
        with pytest.raises(SystemExit):
            study.main([f"--out={tmp_path}"])
        assert "say which, with --commit" in capsys.readouterr().err
    monkeypatch.setattr(collapse, "measure", lambda given, *place: seen({}, 2, scorings=place[1:]))
    monkeypatch.setattr("benchmarks.provenance.spent_in", lambda folders: NOTHING_SPENT)
    collapse.main([f"--out={tmp_path}", "--commit=abc1234"])
    assert "Measured at commit abc1234 by:" in (tmp_path / "collapse.md").read_text()


def test_collapse_is_measured_in_little_and_goes_on(tmp_path, monkeypatch, capsys):
    words = ["--experiment=auc-digits", "--rounds=2", "--seeds=0-1", f"--runs={tmp_path / 'runs'}"]
    measure, stopped = collapse.measure, []

    def until_the_third(given, cohorts, scoring):
        if len(stopped) == 2:
            raise KeyboardInterrupt
        stopped.append((cohorts, scoring))
        return measure(given, cohorts, scoring)

    monkeypatch.setattr(collapse, "measure", until_the_third)
    with pytest.raises(SystemExit):
        collapse.main([*words, f"--out={tmp_path}"])
    assert len((tmp_path / "collapse.csv").read_text().splitlines()) == 1 + 2 * 4
    monkeypatch.setattr(collapse, "measure", measure)
    collapse.main([*words, f"--out={tmp_path}"])
    assert "| cdma-ada | sigmoid | answered |" in capsys.readouterr().out
    table = (tmp_path / "collapse.csv").read_text().splitlines()
    assert len(table) == 1 + 6 * 4
    page = (tmp_path / "collapse.md").read_text()
    assert "**Nothing is judged**" in page
    assert "2 seeds, 2 rounds" in page
    (began,) = json.loads(
        (tmp_path / "runs" / "auc-digits-answered-sigmoid" / "environment.json").read_text()
    )
    assert f"Measured at commit {began.get('commit', 'unknown')[:7]}" in page  # of the runs, not of today


def test_remedies_are_measured_in_little_and_once(tmp_path, monkeypatch, capsys):
    tried = {"none": {"": []}, "clipped steps": {"0.1": ["steady.clip=0.1"], "1e-06": ["steady.clip=1e-6"]}}
    monkeypatch.setattr(steady, "REMEDIES", tried)
    monkeypatch.setattr(steady, "ALGORITHMS", ("cdma-one",))
    words = ["--experiment=auc-digits", "--rounds=4", "--seeds=0-1", "--device=cpu", f"--out={tmp_path}"]
    words += [f"--runs={tmp_path / 'runs'}", "--name=little"]
    steady.main(words)
    first = capsys.readouterr().out
    assert "| clipped steps | 0.1 (2) | 0 of 2 (0% to 66%) |" in first  # steps of 1e-6 lead nowhere
    kept = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*.csv")}
    steady.main(words)  # goes on with what is there
    assert capsys.readouterr().out == first == (tmp_path / "little.md").read_text() + "\n"
    assert kept == {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*.csv")}
    assert len((tmp_path / "little.csv").read_text().splitlines()) == 1 + 3 * 2


def test_intervals_of_a_part_are_wilsons():
    assert steady.interval(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-3)
    assert steady.interval(2, 5) == pytest.approx((0.1176, 0.7693), abs=1e-3)


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
    assert len(lines) == 2 + 9
    assert "| as shipped | trained |" in lines[2]
    assert "| a judge of 33 epochs | rescored |" in first
    assert "| full gradients in chunks of 20 | trained |" in first
    # Nothing is computed twice.
    monkeypatch.setattr(gan_gap, "rescore", None)
    monkeypatch.setattr("fedsaddle.runs.execution.course", None)
    gan_gap.main(words)
    assert capsys.readouterr().out == first
    assert len((tmp_path / "gan-gap.csv").read_text().splitlines()) == 1 + 2 * 9


def test_two_checkouts_take_turns(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(turns.WORKLOADS, "logistic-digits cdma-nc", 2)
    monkeypatch.setattr(
        sys, "argv", ["turns", str(turns.HERE), "--turns", "1", "--workload", "logistic-digits cdma-nc"]
    )
    turns.main()
    cells = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert cells[0] == "logistic-digits cdma-nc"
    assert all(float(cell) > 0 for cell in cells[1:])
    monkeypatch.setattr(sys, "argv", ["turns", str(tmp_path)])
    with pytest.raises(SystemExit):
        turns.main()
    assert "is no checkout; make one: git worktree add" in capsys.readouterr().err
