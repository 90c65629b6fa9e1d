"""Rows of one's own on devices: every task that says how a file becomes rows, judged by the simulator."""

import dataclasses
import re

import numpy
import pytest
import torch

pytest.importorskip("flwr")

from torch import nn
from torch.nn.functional import cross_entropy

import fedsaddle as fs
from fedsaddle.data.datasets import digits
from fedsaddle.data.partition import by_column
from fedsaddle.data.reading import Reader
from fedsaddle.errors import BadInput
from fedsaddle.fleet import Everybody
from fedsaddle.flower import wire
from fedsaddle.flower.client import Site, client_app, learn
from fedsaddle.problems import gan
from test_flower import Clients, assert_same_end, deployed, plan_of, quick, simulated  # noqa: F401

TASK = """
name = "own"
rounds = 2
evaluate_every = 1
seeds = "0"
batch = 4
K = 2
[problem]
name = "{name}"
clients = 3
partition = "devices"
{more}
[fleet]
model = "everybody"
[quorum]
invite = 3
deadline = 20.0
[algorithms]
cdma-one = {{ eta = 0.1, gamma = 0.1 }}
"""
SIZES = (20, 29, 38)
SHIPPED = {
    "auc": 'network = "logistic"',
    "fair": "hidden = 8",
    "robust": "hidden = 8\nevaluate_rows = 50\nascent_steps = 2\nsteps = 2",
    "gan": "samples = 100",
}


def experiment(folder, name, more):
    path = folder / f"{name}.toml"
    path.write_text(TASK.format(name=name, more=more))
    return path


def pictures(folder):
    """Three files of digits, and their rows."""
    data, start, files = digits(), 0, []
    for client, size in enumerate(SIZES):
        rows = slice(start, start + size)
        files.append(folder / f"rows-{client}.npz")
        numpy.savez(files[-1], features=data.inputs[rows].numpy(), label=data.labels[rows].numpy())
        start += size
    return files


def on_devices(plan, files, folder):
    """A run whose rows are on three devices, and what was said."""
    sites = [Site.holding(plan, n, folder / str(n), str(file)) for n, file in enumerate(files)]
    grid, said = Clients(plan, folder / "nodes"), []
    grid.apps = {site.client: client_app(site) for site in sites}
    deployed(plan, grid, folder / "real", said)
    return said


def seen(plan, problem):
    """The plan with a problem whose rows are all here."""
    studies = {
        name: dataclasses.replace(study, problem=problem, fleet=Everybody())
        for name, study in plan.studies.items()
    }
    return dataclasses.replace(plan, studies=studies)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_task_on_devices_equals_the_simulator(name, tmp_path, monkeypatch):
    files = pictures(tmp_path)
    path = experiment(tmp_path, name, SHIPPED[name])
    plan = plan_of(path, devices=True)
    if name == "gan":  # whose judge would have to learn first
        monkeypatch.setattr(fs.GAN, "evaluate", lambda self, z: dict.fromkeys(self.metrics, 0.0))
    assert "3 devices hold 87 rows" in on_devices(plan, files, tmp_path)

    # The simulator divides the same rows by itself.
    data, total = digits(), sum(SIZES)
    owners = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
    known = dataclasses.replace(data, inputs=data.inputs[:total], labels=data.labels[:total], owners=owners)
    away = plan.studies["cdma-one"].problem
    monkeypatch.setattr(type(away), "data", known)
    monkeypatch.setattr(gan, "GAN_PARTITIONS", ("column",))
    monkeypatch.setattr(gan, "divide", lambda *given: by_column(owners))
    simulated(seen(plan, dataclasses.replace(away, partition="column")), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")
