"""What a person types, on every shipped experiment, in little: benchmarks/journeys.py goes the whole way."""

import csv

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
