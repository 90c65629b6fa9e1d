"""What a person types, on every shipped experiment, in little: benchmarks/journeys.py goes the whole way."""

import csv
import json
import sys

import pytest
from benchmarks import journeys

from fedsaddle.border.files import shipped


@pytest.mark.parametrize("experiment", shipped())
def test_every_journey_of_an_experiment_arrives(experiment, tmp_path):
    form = journeys.form_of(experiment, "cpu", small=True, rounds=None, seeds=None)
    trip = journeys.travel(experiment, form, tmp_path)
    if trip.skipped:
        pytest.skip(trip.skipped)
    assert trip.failures == []
    names = list(journeys.tables(experiment)["algorithms"])
    assert [line.algorithm for line in trip.lines] == names
    for line in trip.lines:
        assert 0 < line.seconds_to_first_round <= line.seconds_to_speed
        assert line.memory_held_after_gb > 0
    expected = {"run", "plain", "resume", "dropout", "latency"}
    assert set(trip.seconds) == expected | ({"sweep"} if "sweep" in journeys.tables(experiment) else set())


def test_what_goes_wrong_is_told_and_the_next_is_tried(tmp_path):
    form = journeys.form_of("quadratic", "cpu", small=True, rounds=2, seeds="0")
    form.settings.append("algorithms.codasca.eta_l=1e200")  # diverges at once
    trip = journeys.travel("quadratic", form, tmp_path)
    assert len(trip.lines) == 9
    assert trip.failures[0].startswith("run: ")
    assert "codasca" in (tmp_path / "run.log").read_text()
    assert {"dropout", "latency"} <= set(trip.seconds)


def test_a_process_that_dies_is_one_failure(tmp_path, monkeypatch):
    def die(*_):
        raise SystemExit(7)

    monkeypatch.setattr(journeys, "travel", die)
    form = journeys.form_of("quadratic", "cpu", small=True, rounds=2, seeds="0")
    trip = journeys.Apart("quadratic", form, tmp_path / "it", "").end(late=False)
    assert trip.failures == ["its process ended with 7"]


def test_the_tables_columns():
    told = "experiment,algorithm,seconds_to_first_round,seconds_to_speed,seconds_per_round"
    told += ",seconds_per_evaluation,peak_memory_gb,memory_held_after_gb,commit"
    assert list(journeys.Line._fields) == next(csv.reader([told]))


def test_what_rounding_drives_apart_is_computed_in_float64(tmp_path, monkeypatch):
    monkeypatch.setattr(journeys.Traveller, "tolerance", -1.0)  # nothing is near enough in float32
    form = journeys.form_of("auc-table", "cpu", small=True, rounds=2, seeds="0")
    traveller = journeys.Traveller("auc-table", form, tmp_path, "")
    traveller.plain()
    real = journeys.played

    def wrongly(study, rounds):
        found = real(study, rounds)
        return found if study.executor.compiled else [z * 1.001 for z in found]

    monkeypatch.setattr(journeys, "played", wrongly)
    with pytest.raises(journeys.Wrong, match=r"recorded is not plain: .* in float64"):
        traveller.plain()


def trip_of(experiment, commit, failures=()):
    line = journeys.Line(experiment, "cdma-ada", 1.0, 1.0, 0.1, 0.1, 0.3, 0.3, commit)
    return journeys.Trip(experiment, [line], list(failures), {"run": 1.0})


def about(commit, trips):
    seconds = {trip.experiment: trip.seconds for trip in trips}
    failures = {trip.experiment: trip.failures for trip in trips if trip.failures}
    return {"commit": commit, "skipped": {}, "failures": failures, "seconds_of_journeys": seconds}


def commits(folder):
    with (folder / "journeys-cpu.csv").open(newline="") as file:
        return {row["experiment"]: row["commit"] for row in csv.DictReader(file)}


def test_what_was_measured_of_other_experiments_stays(tmp_path):
    whole = [trip_of(name, "old") for name in ("one", "two", "gone")]
    journeys.Results(tmp_path, "cpu").keep(whole, about("old", whole), everything=False)
    some = [
        trip_of("two", "new"),
        trip_of("one", "new", ["run: it broke"]),
        trip_of("three", "new", ["run: x"]),
    ]
    results = journeys.Results(tmp_path, "cpu")
    for upto in (1, 2, 3):
        results.keep(some[:upto], about("new", some[:upto]), everything=False)
        assert commits(tmp_path)["two"] == "new"
    assert commits(tmp_path) == {"one": "old", "two": "new", "gone": "old", "three": "new"}
    page = json.loads((tmp_path / "journeys-cpu.json").read_text())
    assert page["commit"] == "old"
    assert page["later"] == [{"commit": "new", "experiments": ["two", "one", "three"]}]
    assert page["failures"] == {"one": ["run: it broke"], "three": ["run: x"]}
    assert page["seconds_of_journeys"].keys() == {"one", "two", "gone", "three"}
    every = [trip_of(name, "newest") for name in ("one", "two")]
    journeys.Results(tmp_path, "cpu").keep(every, about("newest", every), everything=True)
    assert commits(tmp_path) == {"one": "newest", "two": "newest"}
    assert json.loads((tmp_path / "journeys-cpu.json").read_text()) == about("newest", every)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device", "cuda"], "finds no GPU"),
        (["--small"], "give another place"),
        (["--experiment", "quadratik"], "no such experiment"),
    ],
)
def test_a_slip_leaves_the_results_as_they_are(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(journeys.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["journeys", *words])
    with pytest.raises(SystemExit) as end:
        journeys.main()
    assert end.value.code == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
