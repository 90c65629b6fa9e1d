"""Rows of one's own on devices: every task that says how a file becomes rows, judged by the simulator."""

import csv
import dataclasses
import re
from pathlib import Path

import numpy
import pytest
import torch

pytest.importorskip("flwr")

from torch import nn
from torch.nn.functional import cross_entropy

import fedsaddle as fs
from fedsaddle.data.datasets import DATASETS, Grouping, Scaling, digits
from fedsaddle.data.partition import by_column
from fedsaddle.data.reading import Reader
from fedsaddle.data.tables import load_table
from fedsaddle.errors import BadInput
from fedsaddle.fleet import Everybody
from fedsaddle.flower import wire
from fedsaddle.flower.client import Site, client_app, learn
from fedsaddle.problems import gan
from test_flower import Clients, assert_same_end, deployed, plan_of, quick, simulated  # noqa: F401
from test_groups import people

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
    "groups": "penalty = 0.1",
    "groups of clients": 'groups = "client"',
    "constrained": "limit = 0.2",
    "partial-auc": "fpr = 0.3",
}


def experiment(folder, name, more):
    path = folder / f"{name.split(':')[0]}.toml"
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


def beginning_as(away, problem):
    """A problem that begins where the server begins, which does not know yet what devices hold."""
    start = away.init(0)
    vars(problem)["init"] = lambda seed: start
    return problem


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
    path = experiment(tmp_path, name.split()[0], SHIPPED[name])
    plan = plan_of(path, devices=True)
    if name == "gan":  # whose judge would have to learn first
        monkeypatch.setattr(fs.GAN, "evaluate", lambda self, z: dict.fromkeys(self.metrics, 0.0))
        monkeypatch.setattr(fs.GAN, "real_scores", lambda self, device: {})
    assert "3 devices hold 87 rows" in on_devices(plan, files, tmp_path)

    # The simulator divides the same rows by itself.
    data, total = digits(), sum(SIZES)
    owners = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
    known = dataclasses.replace(data, inputs=data.inputs[:total], labels=data.labels[:total], owners=owners)
    away = plan.studies["cdma-one"].problem
    monkeypatch.setattr(type(away), "data", known)
    monkeypatch.setattr(gan, "GAN_PARTITIONS", ("column",))
    monkeypatch.setattr(gan, "divide", lambda *given: by_column(owners))
    here = beginning_as(away, dataclasses.replace(away, partition="column"))
    simulated(seen(plan, here), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("groups", 'groups = "kind"'),
        ("groups", 'groups = "kind"\nby_class = true'),
        ("constrained", 'rule = "equalised-odds"\ngroups = "kind"'),
    ],
)
def test_what_rows_are_told_apart_by_is_in_a_device_s_file(name, more, tmp_path, monkeypatch):
    as_it_is = Scaling(torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    data, files, start = dataclasses.replace(people(), scaling=as_it_is), [], 0
    monkeypatch.setitem(DATASETS, "town", lambda: data)
    kind, numbers = data.groups["kind"], data.inputs.double()
    for client, size in enumerate(SIZES):
        rows = slice(start, start + size)
        files.append(tmp_path / f"rows-{client}.npz")
        told = {"label": [data.classes[n] for n in data.labels[rows]]}
        told["kind"] = [kind.names[n] for n in kind.rows[rows]]
        numpy.savez(files[-1], features=numbers[rows].numpy(), **told)
        start += size
    plan = plan_of(experiment(tmp_path, name, f'dataset = "town"\n{more}'), devices=True)
    assert "3 devices hold 87 rows" in on_devices(plan, files, tmp_path)
    owners = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
    held = Grouping(kind.names, kind.rows[:start], kind.test_rows)
    known = dataclasses.replace(
        data, inputs=data.inputs[:start], labels=data.labels[:start], owners=owners, groups={"kind": held}
    )
    away = plan.studies["cdma-one"].problem
    monkeypatch.setattr(type(away), "data", known)
    here = beginning_as(away, dataclasses.replace(away, partition="column"))
    simulated(seen(plan, here), tmp_path / "sim")
    assert_same_end(tmp_path / "real", tmp_path / "sim")

    numpy.savez(tmp_path / "bad.npz", features=numbers[:2].numpy(), label=[data.classes[0]] * 2)
    with pytest.raises(BadInput, match=r"bad.npz: 'kind' is missing; the rows are told apart by it: "):
        away.holding(0, str(tmp_path / "bad.npz"))


# --- a task of one's own ----------------------------------------------------------------------------------


def ward(path, rows, seed, wards="abc"):
    """A table with numbers, a word and one of three classes."""
    lines = ["age,dose,ward,ill"]
    for one, two, three in torch.rand(rows, 3, generator=torch.Generator().manual_seed(seed)).tolist():
        ill = int(3 * (one + two) / 2.001)
        lines.append(f"{20 + 60 * one:.3f},{two:.4f},{wards[int(len(wards) * three)]},{ill}")
    path.write_text("\n".join(lines) + "\n")
    return path


def inputs_of(batch):
    numbers = torch.stack([batch["age"] / 50 - 1, batch["dose"]], dim=1)
    return torch.cat([numbers, nn.functional.one_hot(batch["ward"], 3)], dim=1)


def harm(x, y, batch):
    return 3 * y[batch["ill"]] * cross_entropy(x(inputs_of(batch)), batch["ill"], reduction="none")


def right(x, y, batch):
    return (x(inputs_of(batch)).argmax(1) == batch["ill"]).float()


def by_hand(path):
    """A person's own reader."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    kinds = {"age": float, "dose": float, "ward": str, "ill": int}
    return {name: [kind(row[name]) for row in rows] for name, kind in kinds.items()}


def task_of(data, **more):
    told = {"accuracy": fs.Metric("high", rows="test", of=right)}
    return fs.task(x=lambda: nn.Linear(5, 3), y=fs.Simplex(3), loss=harm, data=data, metrics=told, **more)


@pytest.fixture
def wards(tmp_path):
    reference = ward(tmp_path / "reference.csv", 40, 0)
    return reference, [ward(tmp_path / f"rows-{n}.csv", size, 1 + n) for n, size in enumerate(SIZES)]


def plan_with(problem, tmp_path):
    """An experiment whose problem is that."""
    return seen(plan_of(experiment(tmp_path, "fair", "hidden = 8"), devices=True), problem)


def test_an_own_task_on_devices_equals_the_simulator(wards, tmp_path):
    """Whatever reads the files: fs.clients itself, or a function that gives a table."""
    reference, files = wards
    simulated(
        plan_with(task_of(fs.clients([*files], test=reference)), tmp_path),
        tmp_path / "sim",
    )
    for number, reader in enumerate((None, by_hand)):
        place = tmp_path / str(number)
        place.mkdir()
        task = task_of(fs.clients(away=3, test=reference), reader=reader)
        assert "3 devices hold 87 rows" in on_devices(plan_with(task, tmp_path), files, place)
        assert_same_end(place / "real", tmp_path / "sim")
        columns = (place / "real" / "rounds.csv").read_text().splitlines()[0]
        assert columns.endswith("time_simulated,accuracy")


def test_a_reader_of_the_package_reads_for_an_own_task(wards, tmp_path):
    """A `Reader` is a value: a device that has it as JSON needs no reference."""
    reference, files = wards
    data = load_table(str(reference), str(reference), label="ill")
    reader = Reader.from_json(Reader.of(data, ".csv", "ill").to_json())
    test = {"input": data.test_inputs, "label": data.test_labels}

    def loss(x, y, batch):
        return y * cross_entropy(x(batch["input"]), batch["label"], reduction="none")

    known = fs.clients(away=3, test=test)
    task = fs.task(x=lambda: nn.Linear(5, 3), y=fs.Box(1, 1, 2), loss=loss, data=known, reader=reader)
    own = task.holding(1, str(files[1]))
    rows = load_table(str(reference), str(files[1]), label="ill")
    held = own.federation
    assert torch.equal(held.rows["input"][1:30], rows.test_inputs)
    assert torch.equal(held.rows["label"][1:30], rows.test_labels)
    assert held.sizes.tolist() == [1, 29, 1]
    assert own.counts(1) == {"rows": 29}


def test_the_task_of_the_document_is_deployed(tmp_path):
    """docs/deploy.md's tasks.py, by the experiment file that names it."""
    document = (Path(__file__).parent.parent / "docs/deploy.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    (tmp_path / "tasks.py").write_text(code)
    path = experiment(tmp_path, "tasks.py:wards", "")
    path.write_text(path.read_text().replace('partition = "devices"\n', ""))
    wide = [ward(tmp_path / f"wide-{n}.csv", size, n) for n, size in enumerate((40, *SIZES))]
    narrow = [tmp_path / name for name in ("reference.csv", "a.csv", "b.csv", "c.csv")]
    for one, other in zip(wide, narrow, strict=True):
        lines = [line.split(",") for line in one.read_text().splitlines()]
        other.write_text("".join(f"{age},{dose},{ill}\n" for age, dose, _, ill in lines))
    plan = plan_of(path, code=[tmp_path / "tasks.py"], devices=True)
    assert "3 devices hold 87 rows" in on_devices(plan, narrow[1:], tmp_path)
    with pytest.raises(BadInput, match="the rows of this task are on devices"):
        plan_of(path, code=[tmp_path / "tasks.py"])


def bad(path, text):
    path.write_text(text)
    return str(path)


def test_a_file_that_does_not_fit_is_refused_on_its_device(wards, tmp_path):
    reference, _ = wards
    task = task_of(fs.clients(away=3, test=reference))
    path = tmp_path / "bad.csv"
    for text, why in {
        "age,dose,ill\n1,2,0\n": "bad.csv lacks the column 'ward', which the test table has",
        "age,dose,ward,ill,name\n1,2,a,0,x\n": "has the column 'name', which the test table lacks",
        "age,dose,ward,ill\n1,2,7,0\n": "column 'ward': expected words as the test table has, got numbers",
        "age,dose,ward,ill\n1,2,z,0\n": "unknown word in 'ward' 'z'; known: a, b, c",
        "age,dose,ward,ill\n1,2,a,0.5\n": "column 'ill': expected int64 as the test table has, got float32",
        "age,dose,ward,ill\n1,2,a,7\n": "the loss fails on rows 0 to 0: failed in harm (test_devices.py",
        "age,dose,ward,ill\n1,nan,a,0\n": "column 'dose'",
        "age,dose,ward,ill\n": "has no rows",
    }.items():
        with pytest.raises(BadInput, match=re.escape(why)):
            task.holding(0, bad(path, text))
    with pytest.raises(BadInput, match="cannot read"):
        task.holding(0, str(tmp_path / "absent.csv"))

    def broken(path):
        raise KeyError(path)

    with pytest.raises(BadInput, match="the task's reader failed: KeyError"):
        task_of(fs.clients(away=3, test=reference), reader=broken).holding(0, str(path))
    with pytest.raises(BadInput, match="expected a dict of arrays"):
        task_of(fs.clients(away=3, test=reference), reader=len).holding(0, str(path))


def test_what_does_not_go_with_rows_on_devices_is_said(wards):
    reference, files = wards
    for given, why in (
        ({}, "needs a table for each client"),
        ({"away": 3}, "give test"),
        ({"away": 0, "test": reference}, "away must be at least 1, got 0"),
        ({"away": 3, "test": reference, "count": 3}, "no other rows"),
        ({"away": 3, "test": reference, "validation_share": 0.2}, "no other rows"),
    ):
        with pytest.raises(BadInput, match=why):
            fs.clients(**given)
    away, here = fs.clients(away=3, test=reference), fs.clients([*files], test=reference)
    with pytest.raises(BadInput, match="the rows of this task are on devices: run it with fedsaddle serve"):
        fs.simulate(task_of(away), fs.CDMAONE(eta=0.1, gamma=0.1), rounds=1)
    with pytest.raises(BadInput, match="reader makes a table of a device's file"):
        task_of(here, reader=by_hand)
    with pytest.raises(BadInput, match="not on devices"):
        task_of(here).holding(0, str(files[0]))
    look = fs.Metric("high", rows="train", of=right)
    with pytest.raises(BadInput, match=r"metrics\['a'\] looks at training rows, which are on devices"):
        fs.task(x=lambda: nn.Linear(5, 3), y=fs.Simplex(3), loss=harm, data=away, metrics={"a": look})

    def scalar(x, y, batch):
        return harm(x, y, batch).mean()

    with pytest.raises(BadInput, match="clients hold different numbers of rows"):
        fs.task(x=lambda: nn.Linear(5, 3), y=fs.Simplex(3), loss=scalar, data=away)
    told = fs.task(x=lambda: nn.Linear(5, 3), y=fs.Simplex(3), loss=harm, data=away)
    assert told.metrics["loss"].rows == "test"


def test_both_sides_must_know_the_same_rows(wards, tmp_path):
    """What a row looks like, where rows are on devices; the rows themselves, where all have all of them."""
    reference, files = wards
    other = ward(tmp_path / "other.csv", 40, 0, wards="abd")
    more = ward(tmp_path / "more.csv", 30, 9)

    def contract(data):
        return wire.agreement(plan_with(task_of(data), tmp_path), "cdma-one")

    away = contract(fs.clients(away=3, test=reference))
    assert away == contract(fs.clients(away=3, test=more))
    assert away != contract(fs.clients(away=3, test=other))
    held = task_of(fs.clients(away=3, test=reference)).holding(2, str(files[2]))
    assert away == wire.agreement(plan_with(held, tmp_path), "cdma-one")
    here = contract(fs.clients([*files], test=reference))
    assert here == contract(fs.clients([*files], test=reference))
    assert here != contract(fs.clients([files[0], files[1], files[1]], test=reference))


def test_fair_goes_by_what_all_devices_hold(wards, tmp_path):
    reference, files = wards
    fair = fs.Fair(dataset=str(reference), label="ill", partition="devices", clients=3, hidden=4)
    own = [fair.holding(n, str(file)) for n, file in enumerate(files)]
    counts = [one.counts(n) for n, one in enumerate(own)]
    facts = fair.facts(counts)
    totals = [sum(one[f"class {c}"] for one in counts) for c in range(3)]
    assert facts == {"devices": 3.0, **{f"class {c}": float(total) for c, total in enumerate(totals)}}
    own[1].learn(facts)
    held = own[1].federation
    worth, label = held.rows["worth"][1:30], held.rows["label"][1:30]
    assert torch.equal(worth, 29 * 3 / torch.tensor(totals)[label])
    for wrong in ({}, {"devices": 4.0}, {"class 0": -1.0}, {"class 1": 0.5}, {"class 2": float("nan")}):
        told = {f"fact.{key}": repr(value) for key, value in {**facts, **wrong}.items()}
        if not wrong:
            del told["fact.class 0"]
        with pytest.raises(wire.Refused, match="does not fit"):
            learn(own[0], told)
    late = {**facts, "class 0": 0.0}  # nobody had told of such rows
    own[0].learn(late)
    assert own[0].federation.rows["worth"].isfinite().all()
    with pytest.raises(BadInput, match="the class '9' was not learnt; known: 0, 1, 2"):
        fair.holding(0, bad(tmp_path / "bad.csv", "age,dose,ward,ill\n1,2,a,9\n"))


def test_fair_and_robust_read_files_in_the_simulator_too(wards, tmp_path):
    reference, _ = wards
    for name, more in (("fair", "hidden = 4"), ("robust", "hidden = 4\nascent_steps = 2")):
        path = experiment(tmp_path, name, f'{more}\nlabel = "ill"\ndataset = "{reference}"')
        path.write_text(path.read_text().replace('partition = "devices"', 'partition = "iid"'))
        plan = plan_of(path)
        assert plan.resolved["problem"]["sha256"]
        simulated(plan, tmp_path / name)
        with pytest.raises(BadInput, match="has changed"):
            plan_of(path, f"problem.sha256={'0' * 64}")
    with pytest.raises(BadInput, match=r"unknown dataset 'digit'.*or give the path of a \.csv"):
        fs.Fair(dataset="digit")
    with pytest.raises(BadInput, match=r"label and sha256 go with a \.csv or \.npz file, not with digits"):
        fs.Robust(label="ill")
