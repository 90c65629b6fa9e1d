"""Python gets what the command line gets: folders, reports, sweeps, outcomes."""

import csv
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fedsaddle as fs
from fedsaddle.border.build import load
from fedsaddle.problem import Modelled

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
    with pytest.raises(fs.BadInput, match="no seed 1 of CDMANC; its seeds are 0, 3"):
        outcome.lane(1)
    with pytest.raises(fs.BadInput, match="known: CDMANC"):
        outcome.lane(0, "CDMA")


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
    assert outcome.report(tmp_path / "page.html").read_text().count("stationarity")
    with pytest.raises(fs.BadInput, match="already holds a run"):
        outcome.save(folder)
    with pytest.raises(fs.BadInput, match="say where"):
        outcome.report()


def test_a_saved_outcome_of_what_ships_is_an_experiment(tmp_path):
    """Step sizes as they were given, though the problem computes in float32."""
    both = [fs.CODASCA(0.1, 0.2), fs.CODASCA(0.3, 0.2)]
    problem = fs.Robust(dataset="digits", clients=8)
    found = fs.simulate(problem, both, names=["slow", "fast"], rounds=1)
    assert problem.init(0).x.dtype == torch.float32
    folder = found.save(tmp_path / "run")
    told = json.loads((folder / "experiment.json").read_text())
    assert load(str(folder / "experiment.json")).resolved == told
    assert [told["algorithms"][name]["eta_l"] for name in ("slow", "fast")] == [0.1, 0.3]
    with pytest.raises(fs.BadInput, match="several settings are called CODASCA"):
        fs.simulate(fs.Quadratic(clients=10), both, rounds=1).save(tmp_path / "other")
