"""What problems tell beside their metrics: true, kept, and no danger to a run. And the wall's clock."""

import json

import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

import fedsaddle as fs
from fedsaddle.errors import BadInput
from fedsaddle.problem import Detail, Federation, client_means
from fedsaddle.problems.details import roc_columns, score_columns
from fedsaddle.report import read_runs
from fedsaddle.runs import read_clock
from fedsaddle.scores import auroc, rightly_ranked, roc
from test_report import ROWS, change, write_run
from test_runs import ARGUMENTS, fedsaddle, result, true_after


@pytest.fixture
def ranked():
    drawn = torch.Generator().manual_seed(0)
    scores = (torch.rand(400, generator=drawn) * 20).round() / 20  # with many alike
    return scores, torch.rand(400, generator=drawn) < 0.2 + 0.5 * scores


def test_a_roc_curve_is_that_of_scikit_learn(ranked):
    scores, positive = ranked
    false, true = roc(scores, positive)
    expected = roc_curve(positive, scores, drop_intermediate=False)
    assert false.tolist() == pytest.approx(expected[0].tolist())
    assert true.tolist() == pytest.approx(expected[1].tolist())
    xs, ys = map(torch.tensor, roc_columns(scores, positive).values())
    assert float(torch.trapezoid(ys, xs)) == pytest.approx(roc_auc_score(positive, scores), abs=1e-4)


def test_a_long_roc_curve_is_shortened_and_a_perfect_one_has_its_corner():
    scores = torch.linspace(0, 1, 3000)
    alternating = torch.arange(3000) % 2 == 0
    assert len(roc_columns(scores, alternating)["false positive rate"]) <= 120
    assert roc_columns(scores, scores > 0.5) == {
        "false positive rate": [0, 0, 1],
        "true positive rate": [0, 1, 1],
    }


def test_rows_ranked_rightly_average_to_the_auc(ranked):
    scores, positive = ranked
    part, auc = rightly_ranked(scores, positive), float(auroc(scores, positive))
    assert float(part[positive].mean()) == pytest.approx(auc)
    assert float(part[~positive].mean()) == pytest.approx(auc)
    one = int(positive.nonzero()[3])
    below = (scores[~positive] < scores[one]).double() + (scores[~positive] == scores[one]).double() / 2
    assert float(part[one]) == pytest.approx(float(below.mean()))


def test_scores_are_counted_once(ranked):
    scores, positive = ranked
    table = score_columns(scores, positive)
    assert sum(table["positive"]) == int(positive.sum())
    assert sum(table["others"]) == int((~positive).sum())
    assert (table["from"][0], table["to"][-1]) == (0, 1)
    assert score_columns(5 * scores, positive)["to"][-1] == pytest.approx(5 * float(scores.max()))


def test_clients_have_the_mean_of_their_own_rows():
    held = Federation({"a": torch.arange(6)}, torch.tensor([1, 3, 2]))
    found = client_means(held, torch.tensor([5.0, 1, 2, 3, 4, 8]), "mean")
    assert found == {"client": [0, 1, 2], "mean": [5, 2, 6]}


@pytest.mark.parametrize(
    "detail",
    [
        Detail("pie", {"a": [1], "b": [1]}),
        Detail("line", {"a": [1]}),
        Detail("line", {"a": [1], "b": [1, 2]}),
        Detail("line", {"a": ["x"], "b": [1]}),
        Detail("bars", {"a": ["x"], "b": [float("nan")]}),
        Detail("bars", {"a": ["x"], "b": [True]}),
        Detail("bars", {"a": [["x"]], "b": [1]}),
        Detail("clients", {"a": [0], "b": [1]}, better="up"),
    ],
)
def test_what_cannot_be_drawn_is_known(detail):
    assert not detail.valid


@pytest.mark.parametrize("problem", [fs.AUC(clients=10), fs.Fair(clients=10), fs.Robust(clients=10)])
def test_tasks_tell_what_can_be_drawn(problem):
    found = problem.details(problem.init(0))
    assert all(detail.valid for detail in found.values())
    (title,) = (title for title, detail in found.items() if detail.kind == "clients")
    assert found[title].length == 10


SMALL = ["run", "auc-digits", "--rounds=2", "--seeds=0-1", "--algorithm=cdma-nc", "--quiet"]
SMALL += ["--set=evaluate_every=1", "--set=problem.clients=20", "--set=problem.network=logistic"]


def test_a_run_keeps_details_and_a_report_reads_them(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    assert fedsaddle(*SMALL, f"--out={folder}", monkeypatch=monkeypatch) == 0
    (run,) = read_runs([folder])
    for lane in run.series[0].lanes:
        assert set(lane.details) == {"ROC on test rows", "Scores of test rows", "Clients"}
        xs, ys = map(torch.tensor, lane.details["ROC on test rows"].columns.values())
        assert float(torch.trapezoid(ys, xs)) == pytest.approx(lane.points[-1].metrics["test_auc"], abs=1e-4)
    text = (folder / "report.html").read_text()
    assert '"title":"ROC on test rows"' in text
    path = folder / "details" / "cdma-nc.json"
    for spoilt in ("[", "[1]", '{"0": {"a": {"kind": "pie"}}}', '{"x": {}}', '{"0": {"a": 3}}', '{"0": NaN}'):
        path.write_text(spoilt)
        with pytest.raises(BadInput, match="is damaged"):
            read_runs([folder])


@pytest.mark.filterwarnings("always::fedsaddle.errors.Notice")
def test_details_that_fail_cost_no_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fs.AUC, "details", lambda self, z: {"odd": Detail("line", {"x": [1]})})
    assert fedsaddle(*SMALL, f"--out={tmp_path / 'run'}", monkeypatch=monkeypatch) == 0
    told = (
        "note: the report will lack details of cdma-nc (AUC.details: 'odd' is not a Detail that can be drawn)"
    )
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run" / "details").exists()
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_clock_goes_on_where_a_run_was_interrupted(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("fedsaddle.cli.commands.until_asked", lambda: true_after(18))
        assert fedsaddle(*ARGUMENTS, f"--out={folder}", monkeypatch=patched) == 130
    before = read_clock(folder)
    with (folder / "clock.jsonl").open("a") as file:
        file.write('{"algorithm": "cdma-ada", "round": 999, "seconds": 5}\nnonsense\n{"algorithm": "cdma')
    assert fedsaddle(*ARGUMENTS, f"--out={folder}", "--resume", monkeypatch=monkeypatch) == 0
    after = read_clock(folder)
    assert after["codasca"] == before["codasca"]
    assert list(after["cdma-ada"]) == list(range(0, 13, 2))  # and not 999
    for seconds in after.values():
        assert sorted(seconds.values()) == list(seconds.values())
    assert max(before["cdma-ada"].values()) in after["cdma-ada"].values()
    assert not any("clock" in name for name in result(folder))  # no two runs write the same
    (run,) = read_runs([folder])
    assert all(point.spent is not None for one in run.series for lane in one.lanes for point in lane.points)


def test_a_report_does_without_a_clock(tmp_path):
    folder = write_run(tmp_path / "run", ROWS)
    (folder / "clock.jsonl").write_bytes(b"\xff\xfe")
    (run,) = read_runs([folder])
    assert run.series[0].lanes[0].points[0].spent is None


def test_settings_are_not_chosen_by_a_value_of_the_game(tmp_path, monkeypatch, capsys):
    words = ["sweep", "auc-digits", "--by=loss", f"--out={tmp_path / 'run'}"]
    assert fedsaddle(*words, monkeypatch=monkeypatch) == 2
    assert "loss, a value of the game that is better neither high nor low" in capsys.readouterr().err


def test_a_metric_may_be_better_neither_way(tmp_path):
    folder = write_run(tmp_path / "run", ROWS)
    change("metrics.json", "high", "neither")(folder)
    (run,) = read_runs([folder])
    assert not run.metrics["test_auc"].ranks
    assert json.loads((folder / "metrics.json").read_text())["test_auc"]["better"] == "neither"
