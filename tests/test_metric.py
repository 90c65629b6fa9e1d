"""Metrics: what problems declare, and that all who judge go by that and not by a name."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedsaddle as fs
from fedsaddle import judges
from fedsaddle.border.sweeps import load_sweep
from fedsaddle.errors import BadInput
from fedsaddle.metric import NO_METRICS, Metric
from fedsaddle.problems import PROBLEMS, Entry
from fedsaddle.report import findings, read_runs
from fedsaddle.report.sweeps import families_of
from fedsaddle.runs import KEYS
from test_report import write_run
from test_runs import fedsaddle
from test_sweep import write
from zoo import quadratic

SMALL = {
    "auc": {"network": "logistic"},
    "robust": {"hidden": 8, "evaluate_rows": 20, "ascent_steps": 1, "steps": 1},
    "fair": {"hidden": 8},
    "gan": {"samples": 100},
}
MORE = {
    "auc validated": fs.AUC(network="logistic", validation_share=0.2, grad_phi=True),
}


@pytest.mark.parametrize("name", [*PROBLEMS, *MORE])
def test_what_is_declared_is_what_is_given(name):
    problem = MORE.get(name) or PROBLEMS[name].task(**PROBLEMS[name].defaults, **SMALL.get(name, {}))
    assert list(problem.metrics) == list(problem.evaluate(problem.init(0)))
    assert all(metric.valid for metric in problem.metrics.values())


def test_a_gan_that_inception_judges_declares_its_fid(monkeypatch):
    problem = fs.GAN(samples=100, judge="inception")
    monkeypatch.setattr(fs.GAN, "_judge", lambda *_: (SimpleNamespace(probabilities=None), {"": None}))
    monkeypatch.setattr(judges, "look", lambda judge, pictures, device: pictures.flatten(1))
    monkeypatch.setattr("fedsaddle.scores.moments", lambda features: None)
    monkeypatch.setattr("fedsaddle.scores.frechet_distance", lambda fake, real: 0.5)
    assert list(problem.metrics) == list(problem.evaluate(problem.init(0)))


def test_rows_on_devices_leave_the_server_the_test_metrics(tmp_path):
    path = tmp_path / "shared.csv"
    path.write_text("a,label\n" + "".join(f"{number},{number % 2}\n" for number in range(40)))
    problem = fs.AUC(dataset=str(path), partition="devices", clients=3, positive=1, network="logistic")
    assert list(problem.metrics) == list(problem.evaluate(problem.init(0))) == ["test_auc", "test_precision"]


# --- a problem of one's own ------------------------------------------------------------------------------


class Scored(fs.Quadratic):
    """The same number twice, under names that tell the wrong thing about what is better."""

    metrics = {  # noqa: RUF012
        "test_like": Metric("low", rows="train"),
        "f1": Metric("high", rows="validation"),
        "brier_score": Metric("low", rows="validation"),
        "exam": Metric("high", rows="test"),
    }

    def evaluate(self, z):
        return dict.fromkeys(self.metrics, super().evaluate(z)["stationarity"])


TABLES = {
    "name": "scored",
    "rounds": 4,
    "evaluate_every": 1,
    "seeds": [0, 1],
    "K": 2,
    "problem": {"name": "scored", "clients": 20, "dim_x": 3, "dim_y": 3},
    "algorithms": {"cdma-one": {"eta": 0.01, "gamma": 0.01}},
    "sweep": {"grid": {"cdma-one": {"eta": [0.001, 0.02, 0.1, 0.2]}}},
}


@pytest.fixture
def scored(tmp_path, monkeypatch):
    monkeypatch.setitem(PROBLEMS, "scored", Entry(Scored, "a quadratic with other metrics"))
    return write(tmp_path / "scored.json", TABLES)


def ends(folder: Path, metric: str, round: int = 4) -> dict[str, float]:
    """The mean of a metric over the seeds after a round."""
    with (folder / "rounds.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["round"]) == round]
    return {
        name: sum(float(row[metric]) for row in rows if row["algorithm"] == name) / 2
        for name in {row["algorithm"] for row in rows}
    }


@pytest.mark.parametrize(("by", "best", "worst"), [("f1", max, min), ("brier_score", min, max)])
def test_a_sweep_and_its_report_go_by_what_is_declared(
    scored, tmp_path, monkeypatch, capsys, by, best, worst
):
    out = tmp_path / "run"
    assert fedsaddle("sweep", scored, f"--by={by}", f"--out={out}", monkeypatch=monkeypatch) == 0
    means = ends(out, by)
    assert len(means) == 4
    winner, loser = best(means, key=means.get), worst(means, key=means.get)
    assert f"4/4  best {by} {means[winner]:.4g} ({winner})" in capsys.readouterr().out  # while it ran
    (run,) = read_runs([out])
    (family,) = families_of(run)
    assert family.best.label == winner
    assert (family.shades[winner], family.shades[loser]) == (1, 0)
    first, *_, last = findings(run.series, by)
    assert (first.label, last.label) == (winner, loser)
    for lane in family.best.lanes:
        assert first.best[lane.seed] == best(point.metrics[by] for point in lane.points)
    page = (out / "report.html").read_text()
    assert '"name":"f1","better":"high"' in page
    assert '"name":"brier_score","better":"low"' in page


@pytest.mark.parametrize(("by", "best"), [("f1", max), ("brier_score", min)])
def test_halving_keeps_what_is_declared_better(scored, tmp_path, monkeypatch, by, best):
    out = tmp_path / "run"
    words = ["sweep", scored, f"--by={by}", "--halving=4", f"--out={out}", "--quiet"]
    assert fedsaddle(*words, monkeypatch=monkeypatch) == 0
    (kept,) = ends(out, by)
    after_one = ends(out, by, round=1)
    assert len(after_one) == 4
    assert kept == best(after_one, key=after_one.get)


def test_which_rows_a_metric_looks_at_is_declared_too(scored):
    assert load_sweep(scored).by == "test_like"  # whatever it is called
    with pytest.raises(BadInput, match="exam, which looks at test rows: choose one of test_like, f1"):
        load_sweep(scored, settings=["sweep.by=exam"])


def undeclared(metrics):
    return type("MyProblem", (Scored,), {"metrics": metrics, "evaluate": lambda self, z: {"f1": 0.5}})


SUCH = 'Metric("high", rows="test")'
LINE = f"MyProblem.evaluate gives 'f1', which its metrics do not declare: metrics = {{\"f1\": {SUCH}}}"
HIGH = Metric("high", "test")
WRONG = {
    "none": ({}, LINE),
    "others": ({"loss": HIGH}, LINE),
    "more": (
        {"f1": HIGH, "recall": HIGH},
        "MyProblem.metrics declare 'recall', which evaluate does not give: leave it out",
    ),
    "up": (
        {"f1": Metric("up", "test")},
        f"MyProblem.metrics['f1'] must be such as {SUCH}, got "
        "Metric(better='up', rows='test', chance=None, of=None)",
    ),
    "all rows": (
        {"f1": Metric("high", "all")},
        f"MyProblem.metrics['f1'] must be such as {SUCH}, got "
        "Metric(better='high', rows='all', chance=None, of=None)",
    ),
    "no number": (
        {"f1": Metric("high", "test", float("nan"))},
        f"MyProblem.metrics['f1'] must be such as {SUCH}, got "
        "Metric(better='high', rows='test', chance=nan, of=None)",
    ),
    "a word": ({"f1": "high"}, f"MyProblem.metrics['f1'] must be such as {SUCH}, got 'high'"),
    "a list": (["f1"], f"MyProblem.metrics must be such as {{\"f1\": {SUCH}}}, got ['f1']"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("command", ["run", "sweep", "simulate"])
def test_what_is_not_declared_is_refused_before_the_first_round(
    wrong, command, scored, tmp_path, monkeypatch, capsys
):
    metrics, told = WRONG[wrong]
    task, seen = undeclared(metrics), []
    if command == "simulate":
        problem = task(clients=12, dim_x=3, dim_y=4)
        with pytest.raises(BadInput) as refused:
            fs.simulate(problem, fs.CDMANC(0.1, 0.1), rounds=2, watch=seen.append)
        assert (str(refused.value), seen) == (told, [])
        return
    monkeypatch.setitem(PROBLEMS, "scored", Entry(task, "a quadratic with other metrics"))
    assert fedsaddle(command, scored, f"--out={tmp_path / 'run'}", "--quiet", monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err == f"error: {told}\n"


def test_a_problem_without_metrics_is_told_the_same():
    class MyProblem:
        federation, init, loss = quadratic().federation, quadratic().init, quadratic().loss

        def evaluate(self, z):
            return {"f1": 0.5}

    with pytest.raises(BadInput) as refused:
        fs.simulate(MyProblem(), fs.CDMANC(0.1, 0.1), rounds=2)
    assert str(refused.value) == LINE


# --- collapsed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "collapsed", "alive"),
    [
        (Metric("high", "test", 0.5), (0.0, 0.4999, 0.5, 0.5 + 1e-8), (0.51, 1.0)),
        (Metric("low", "test", 0.25), (0.3, 0.25, 1e9), (0.24, -1.0)),
        (Metric("high", "test"), (), (-1e9, 0.0, 1e9)),
    ],
)
def test_no_better_than_guessing_is_collapsed(metric, collapsed, alive):
    assert [metric.collapsed(value) for value in (*collapsed, *alive)] == [True] * len(collapsed) + [
        False
    ] * len(alive)


def test_a_report_counts_by_the_chance_that_is_declared(tmp_path):
    rows = [("one", seed, at, at, value) for seed, value in enumerate((0.2, 0.55, 0.9)) for at in (0, 2)]
    folder = write_run(tmp_path / "run", rows)
    for better, chance, count in (("high", 0.6, 2), ("high", 0.3, 1), ("low", 0.6, 1), ("high", None, None)):
        told = {"test_auc": {"better": better, "rows": "test", "chance": chance}}
        (folder / "metrics.json").write_text(json.dumps(told))
        (found,) = findings(read_runs([folder])[0].series, "test_auc")
        assert found.collapsed == count


def test_guessing_the_largest_class_is_chance():
    data = fs.Fair().data
    shares = [float((data.test_labels == label).double().mean()) for label in range(10)]
    assert fs.Fair().metrics["test_accuracy"].chance == pytest.approx(max(shares))
    assert fs.Robust().metrics["test_accuracy"].chance == pytest.approx(max(shares))
    assert 0.1 <= max(shares) < 0.12


# --- in a run's folder -----------------------------------------------------------------------------------


def test_an_older_folder_gets_its_declarations_when_it_is_resumed(tmp_path, monkeypatch, capsys):
    words = ["run", "quadratic", "--algorithm=cdma-nc", "--rounds=2", "--seeds=0", "--quiet"]
    words += ["--set=problem.clients=20", f"--out={tmp_path / 'run'}"]
    assert fedsaddle(*words, monkeypatch=monkeypatch) == 0
    path = tmp_path / "run" / "metrics.json"
    told = path.read_text()
    assert json.loads(told)["phi"] == {"better": "low", "rows": "train", "chance": None}
    path.unlink()
    assert fedsaddle("report", str(tmp_path / "run"), monkeypatch=monkeypatch) == 2
    err = capsys.readouterr().err
    assert "--resume --out" in err
    assert err.count("\n") == 1
    assert fedsaddle("run", "--resume", f"--out={tmp_path / 'run'}", "--quiet", monkeypatch=monkeypatch) == 0
    assert path.read_text() == told
    assert fedsaddle("report", str(tmp_path / "run"), monkeypatch=monkeypatch) == 0


def test_a_metric_is_not_named_as_a_column_of_rounds(tmp_path):
    assert KEYS["rounds.csv"] == NO_METRICS

    class Named(fs.Quadratic):
        metrics = {"seed": Metric("low", rows="train")}  # noqa: RUF012

    with pytest.raises(BadInput, match=r"Named.metrics\['seed'\] is named as a column of rounds.csv"):
        fs.run(Named(clients=9), fs.CDMANC(0.1, 0.1), rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_somebody_elses_metrics_are_not_overwritten(tmp_path, monkeypatch, capsys):
    (tmp_path / "metrics.json").write_text("mine")
    words = ["run", "quadratic", "--rounds=2", "--quiet", f"--out={tmp_path}"]
    assert fedsaddle(*words, monkeypatch=monkeypatch) == 2
    assert "holds metrics.json but no checkpoint.json" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]
