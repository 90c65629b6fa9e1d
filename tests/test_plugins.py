"""A person's own code: found, run only if a person says so, held to its hash, and told of in one line."""

import json
import shlex
import signal
import subprocess
import sys
from importlib.resources import files as resources
from pathlib import Path

import numpy
import pytest
import torch

import fedsaddle as fs
from fedsaddle import cli
from fedsaddle.app.new import SKELETONS
from fedsaddle.app.replay import replay_run
from fedsaddle.app.run import Way, run, sweep
from fedsaddle.border import plugins
from fedsaddle.border.build import load
from fedsaddle.border.plugged import PLUGGED
from fedsaddle.data.datasets import DATASETS
from fedsaddle.errors import BadInput
from fedsaddle.networks import NETWORKS

RULES = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import NamedTuple
from fedsaddle import core

class State(NamedTuple):
    z: core.Pair

@dataclass(frozen=True)
class Mine:
    """as CDMA-NC"""
    eta: core.StepSize
    gamma: core.StepSize
    K: core.Count = 10

    def init(self, z: core.Pair) -> State:
        return State(z)

    def send(self, server: State) -> core.Message:
        return {"z": server.z}

    def work(self, client: core.Client, z: core.Parameters) -> core.Reply:
        def move(w: core.Pair, xi: object) -> core.Pair:
            return core.step(w, client.grad(w, xi), self.eta, self.gamma)
        return core.Reply({"z": client.walk(move, z)})

    def merge(self, server: State, turn: core.Turn, z: core.Parameters) -> State:
        return State(z)

    def phases(self) -> tuple[core.Phase, ...]:
        return (core.Phase("update", self.send, self.work, self.merge, steps=self.K),)
'''
TASKS = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated, ClassVar
import fedsaddle as fs
from fedsaddle.core import Count, Range

Slope = Annotated[float, Range(least=1)]

def task(clients: Count = 12, kappa: Slope = 5.0, *, sizes: tuple[int, ...] = (2, 7)):
    """a quadratic of one's own"""
    return fs.Quadratic(clients=clients, kappa=kappa, samples=sizes)

def nothing(clients: int = 3):
    return object()

def failing(clients: int = 3):
    return 1 / 0

def untyped(clients):
    return fs.Quadratic(clients=clients)

@dataclass(frozen=True)
class Half:
    clients: int = 3
    metrics: ClassVar = {}
    def init(self, seed): ...
    def evaluate(self, z): ...
    def loss(self, z, xi): ...

@dataclass(frozen=True)
class Whole(Half):
    @property
    def federation(self):
        raise OSError("no such file")

def open_ended(**dials):
    return fs.Quadratic(**dials)
'''
EXPERIMENT = """
name = "mine"
rounds = 3
evaluate_every = 1
seeds = "0-1"
batch = 2
K = 3
[problem]
name = "{problem}"
clients = 12
[quorum]
invite = 4
[algorithms.mine]
algorithm = "{rule}"
eta = 0.05
gamma = 0.08
[algorithms.cdma-nc]
eta = 0.05
gamma = 0.08
"""


@pytest.fixture(autouse=True)
def forgotten():
    """What a test adds, no other test knows of."""
    registries = (NETWORKS, DATASETS, *PLUGGED.values())
    before = [dict(known) for known in registries]
    yield
    for known, was in zip(registries, before, strict=True):
        known.clear()
        known.update(was)


def marked(marker):
    """Code that shows that it was run."""
    return RULES.replace("import annotations\n", f"import annotations\nopen({str(marker)!r}, 'w').close()\n")


def write(folder, rule="my_rules.py:Mine", problem="quadratic", source=RULES, name="mine.toml"):
    """An experiment beside its code."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "my_rules.py").write_text(source)
    (folder / name).write_text(EXPERIMENT.format(rule=rule, problem=problem))
    return str(folder / name)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder of its own: the exit code, stdout and stderr."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedsaddle", *words])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


def rows_of(folder, algorithm):
    """An algorithm's rows of rounds.csv, without its name."""
    lines = (folder / "rounds.csv").read_text().splitlines()
    return [line.partition(",")[2] for line in lines if line.startswith(f"{algorithm},")]


# --- files ------------------------------------------------------------------------------------------------


def test_a_rule_of_a_file_runs_as_one_that_ships(tmp_path, monkeypatch):
    """A file is seen from the experiment that names it, wherever somebody is; --code from where they are."""
    experiment = write(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    ran = run(experiment, Way(tmp_path / "run"), code=["there/my_rules.py"])
    assert ran.code == 0
    assert rows_of(tmp_path / "run", "mine") == rows_of(tmp_path / "run", "cdma-nc")
    assert len(rows_of(tmp_path / "run", "mine")) == 8
    kept = json.loads((tmp_path / "run/experiment.json").read_text())
    called = f"{tmp_path / 'there/my_rules.py'}:Mine"
    assert kept["algorithms"]["mine"]["algorithm"] == called
    digest = plugins.sha256_of(tmp_path / "there/my_rules.py")
    assert kept["code"] == {"algorithms": {called: {"sha256": digest}}}


def test_what_one_experiment_brings_is_not_anothers(tmp_path):
    """In one process, as in a notebook."""
    load(write(tmp_path), code=[tmp_path / "my_rules.py"])
    with pytest.raises(BadInput, match="--code"):
        load(write(tmp_path))
    with pytest.raises(BadInput, match="unknown algorithm 'cdma-nx'") as refused:
        load(write(tmp_path, rule="cdma-nx"))
    assert "my_rules.py" not in str(refused.value)


def test_code_that_nobody_has_named_is_not_run(call, tmp_path):
    marker = tmp_path / "marker"
    experiment = write(tmp_path, source=marked(marker))
    (tmp_path / "other.py").write_text("")
    for words in ((), ("--code", "other.py"), ("--set", "rounds=2")):
        code, _, stderr = call("run", experiment, *words, "--out", "new")
        assert code == 2
        assert f"{tmp_path / 'my_rules.py'} is code" in stderr
        assert f"add --code {tmp_path / 'my_rules.py'}" in stderr
        assert len(stderr.splitlines()) == 1
    for refused in (lambda: load(experiment), lambda: load(experiment, code=[tmp_path / "other.py"])):
        with pytest.raises(BadInput, match=r"algorithms\.mine\.algorithm: .*--code"):
            refused()
    assert not marker.exists()
    assert not (tmp_path / "new").exists()
    load(experiment, code=[tmp_path / "my_rules.py"])
    assert marker.exists()  # it would have shown


def test_what_is_not_used_is_neither_needed_nor_run(call, tmp_path):
    experiment = write(tmp_path, source="raise SystemExit(7)")
    code, _, stderr = call("run", experiment, "--algorithm", "cdma-nc", "--rounds", "1", "--out", "new")
    assert code == 0, stderr
    assert "code" not in json.loads((tmp_path / "new/experiment.json").read_text())
    plan = load(experiment, algorithms=["cdma-nc"], code=[tmp_path / "my_rules.py"])
    assert plan.notes == (f"--code {tmp_path / 'my_rules.py'} has no effect: nothing of it is used",)


@pytest.mark.parametrize("words", [("--code", "nowhere.py"), ("--code", "."), ("--code", "mine.toml")])
def test_what_is_no_file_of_code_is_refused(call, tmp_path, words):
    write(tmp_path)
    code, _, stderr = call("run", "mine.toml", *words)
    assert code == 2
    assert words[1] in stderr


BROKEN = {
    "import numpie": "ModuleNotFoundError: No module named 'numpie' (my_rules.py, line 1)",
    "x = (\n1": "my_rules.py cannot be imported: SyntaxError: '(' was never closed (my_rules.py, line 1)",
    "x = 1\n1 / 0": "cannot be imported: ZeroDivisionError: division by zero (my_rules.py, line 2)",
    "raise SystemExit": "my_rules.py cannot be imported: SystemExit",
    RULES.replace("Mine", "Minn"): "unknown name in ",
    RULES.replace("@dataclass(frozen=True)", ""): "is no algorithm: it must be a frozen dataclass",
    RULES.replace("(frozen=True)", ""): "a dataclass that can be changed",
    RULES.replace("def phases", "def phase"): "it has no method phases",
    RULES.replace("K: core.Count", "mode: str = 'a'\n    K: core.Count"): "the field 'mode' must be a number",
    RULES.replace("eta: core.StepSize\n", "eta: Nothing\n", 1): "its types cannot be read: NameError",
    "import neighbour": "ModuleNotFoundError: No module named 'neighbour' (my_rules.py, line 1)",
    "Mine = 3": "is no algorithm: it must be a frozen dataclass",
}  # fmt: skip


@pytest.mark.parametrize("source", BROKEN, ids=range(len(BROKEN)))
def test_broken_code_is_told_in_one_line(tmp_path, monkeypatch, source):
    experiment = write(tmp_path, source=source)
    (tmp_path / "neighbour.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)  # as python -m does with the folder one is in
    with pytest.raises(BadInput, match=r"algorithms\.mine\.algorithm: ") as refused:
        load(experiment, code=[tmp_path / "my_rules.py"])
    assert BROKEN[source] in str(refused.value)
    assert "my_rules.py" in str(refused.value)
    load(experiment, algorithms=["cdma-nc"])  # a run that does not use it


def test_a_file_without_a_name_is_asked_for_one(tmp_path):
    with pytest.raises(BadInput, match=r"as .*my_rules\.py:NAME"):
        load(write(tmp_path, rule="my_rules.py"), code=[tmp_path / "my_rules.py"])


def test_a_minibatch_beside_walks_counts_as_one(tmp_path):
    """No phase walks, and the batch has its effect: client.sample() draws it."""
    sampling = RULES.replace(
        "client.walk(move, z)", "core.step(z, client.grad(z, client.sample()), self.eta, self.gamma)"
    ).replace(", steps=self.K", "")
    experiment, code = write(tmp_path, source=sampling), [tmp_path / "my_rules.py"]
    assert not load(experiment, algorithms=["mine"], code=code).notes
    both = [
        run(experiment, Way(tmp_path / str(b)), algorithms=["mine"], settings=[f"batch={b}"], code=code)
        for b in (1, 2)
    ]
    assert [one.code for one in both] == [0, 0]
    assert rows_of(tmp_path / "1", "mine") != rows_of(tmp_path / "2", "mine")


# --- problems, networks, fleets, datasets -----------------------------------------------------------------


def tasks(folder, name, *settings):
    experiment = write(folder, rule="cdma-nc", problem=f"tasks.py:{name}")
    (folder / "tasks.py").write_text(TASKS)
    return load(experiment, code=[folder / "tasks.py"], settings=settings)


def test_the_signature_of_a_function_is_a_schema(tmp_path):
    plan = tasks(tmp_path, "task", "problem.sizes=[3, 4]")
    problem = plan.studies["mine"].problem
    assert (len(problem.federation), problem.kappa, problem.samples) == (12, 5.0, (3, 4))
    assert plan.resolved["problem"]["kappa"] == 5.0
    for setting, why in {
        "problem.clients=0": "clients must be at least 1, got 0",
        "problem.kappa=0.5": "kappa must be at least 1, got 0.5",
        "problem.kappa=much": "problem.kappa: should be a valid number",
        "problem.kapa=2.0": "did you mean 'kappa'? known: clients, kappa, name, sizes",
    }.items():
        with pytest.raises(BadInput) as refused:
            tasks(tmp_path, "task", setting)
        assert why in str(refused.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing", "nothing must return a problem; what it returned has no federation, metrics"),
        ("failing", r"failing cannot be made: ZeroDivisionError: division by zero \(tasks.py, line \d+\)"),
        ("untyped", "say the type of 'clients'"),
        ("open_ended", "each parameter must have a name of its own"),
        ("tasc", "did you mean 'task'"),
        ("Half", "Half is no problem: it has no federation"),
        ("Whole", r"Whole cannot be made: OSError: no such file \(tasks.py, line \d+\)"),
    ],
)
def test_a_function_that_makes_no_problem_is_refused(tmp_path, name, why):
    with pytest.raises(BadInput, match=why):
        tasks(tmp_path, name)


PARTS = '''
from dataclasses import dataclass
import torch
from torch import nn
from fedsaddle.data.datasets import Dataset, digits

@dataclass(frozen=True)
class Half:
    seconds: float = 2.0
    def check(self, clients: int) -> None: ...
    def delays(self, seeds, round, phase, clients, now):
        return torch.where(clients % 2 == 0, self.seconds, torch.inf).to(torch.float64)

def net(features: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 7), nn.GELU(), nn.Linear(7, outputs))

class Whole(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.layer = nn.Linear(shape[-1], outputs)
    def forward(self, rows):
        return self.layer(rows[:, 0, 0])

def wide(outputs):
    return nn.Flatten(), outputs

def unfit(outputs):
    return nn.Linear(3, outputs)

def strange(depth):
    return nn.Flatten()

def few() -> Dataset:
    own = digits()
    return Dataset(own.inputs[:300], own.labels[:300], own.test_inputs, own.test_labels)

def none_at_all():
    return 3
'''  # fmt: skip
AUC = """
name = "parts"
rounds = 2
seeds = "0"
[problem]
name = "auc"
clients = 10
network = "parts.py:net"
dataset = "parts.py:few"
[fleet]
model = "parts.py:Half"
[quorum]
invite = 6
[algorithms.cdma-nc]
eta = 0.05
gamma = 0.08
"""


def parts(folder, **changed):
    text = AUC
    for old, new in changed.items():
        text = text.replace(f"parts.py:{old}", f"parts.py:{new}")
    (folder / "parts.py").write_text(PARTS)
    (folder / "parts.toml").write_text(text)
    return load(str(folder / "parts.toml"), code=[folder / "parts.py"])


def test_networks_datasets_and_fleets_of_a_file(tmp_path):
    plan = parts(tmp_path)
    study = plan.studies["cdma-nc"]
    assert int(study.problem.federation.sizes.sum()) == 300
    assert study.problem.model.size == 64 * 7 + 7 + 7 + 1
    assert study.fleet.seconds == 2.0
    assert set(plan.resolved["code"]) == {"networks", "datasets", "fleets"}
    assert run(str(tmp_path / "parts.toml"), Way(tmp_path / "run"), code=[tmp_path / "parts.py"]).code == 0
    assert parts(tmp_path, net="Whole").studies["cdma-nc"].problem.model.size == 8 + 1  # a class will do


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"net": "wide"}, "must return an nn.Module, it returned tuple"),
        ({"net": "unfit"}, r"does not take inputs of \(1, 8, 8\)"),
        ({"net": "strange"}, "can be told features, outputs, shape, and asks for 'depth'"),
        ({"few": "none_at_all"}, "must return a fedsaddle.data.datasets.Dataset, it returned int"),
        ({"Half": "net"}, "is no fleet"),
    ],
)
def test_what_is_no_network_dataset_or_fleet_is_refused(tmp_path, changed, why):
    with pytest.raises(BadInput, match=why):
        parts(tmp_path, **changed)


def test_a_model_of_ones_own_network_is_used_with_its_code(call, tmp_path):
    parts(tmp_path)
    code = [str(tmp_path / "parts.py")]
    run("parts.toml", Way(tmp_path / "run"), code=code)
    numpy.savez("new.npz", features=torch.zeros(3, 1, 8, 8, dtype=torch.uint8).numpy())
    for words in (("predict", "run", "new.npz"), ("export", "run", "--to", "model.safetensors")):
        status, _, stderr = call(*words)
        assert status == 2
        assert "is code" in stderr
        status, stdout, stderr = call(*words, "--code", "parts.py")
        assert status == 0, stderr
        assert stdout
    assert sum(one.numel() for one in fs.load("run", code=code).parameters()) == 463
    with pytest.raises(BadInput, match=r"in Python, code=\['.*parts.py'\]"):
        fs.load("run")


# --- packages ---------------------------------------------------------------------------------------------


def install(site, name="my-package", version="1.0", source=RULES, points="", needs="fedsaddle"):
    """What pip would leave behind, of a package with one module."""
    package = name.replace("-", "_")
    held = {
        f"{package}/__init__.py": "",
        f"{package}/rules.py": source,
        f"{package}-{version}.dist-info/METADATA": f"Name: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{package}-{version}.dist-info/entry_points.txt": points,
    }
    held[f"{package}-{version}.dist-info/RECORD"] = "".join(f"{path},,\n" for path in held)
    for path, text in held.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder in which packages are installed, for this test alone."""
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.syspath_prepend(place)
    before = set(sys.modules)
    yield place
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("my_package", "loose"):
            del sys.modules[name]


POINTS = "[fedsaddle.algorithms]\nspecial = my_package.rules:Mine\n"


@pytest.mark.parametrize("rule", ["my_package.rules:Mine", "special"])
def test_an_installed_package_needs_no_word(site, tmp_path, rule):
    install(site, points=POINTS)
    plan = load(write(tmp_path, rule=rule))
    assert type(plan.studies["mine"].algorithm).__module__ == "my_package.rules"
    record = plan.resolved["code"]["algorithms"][rule]
    assert record["package"] == "my-package"
    assert record["version"] == "1.0"
    assert record["module"] == "my_package.rules:Mine"
    (tmp_path / "kept.json").write_text(json.dumps(plan.resolved))
    load(str(tmp_path / "kept.json"))
    (site / "my_package/__init__.py").write_text("# another file of the package\n")
    with pytest.raises(BadInput, match=r"the code of my-package \(.*\) has changed: its sha256"):
        load(str(tmp_path / "kept.json"))


def test_a_package_in_a_checkout_that_is_installed(site, tmp_path):
    """pip install -e leaves a pointer to the folder."""
    install(tmp_path / "checkout")
    (tmp_path / "checkout/my_package-1.0.dist-info").rename(site / "my_package-1.0.dist-info")
    (site / "my_package-1.0.dist-info/RECORD").write_text("")
    sys.path.insert(0, str(tmp_path / "checkout"))  # as a .pth file does; the fixture takes it back
    told = {"url": f"file://{tmp_path / 'checkout'}", "dir_info": {"editable": True}}
    with pytest.raises(BadInput, match="belongs to no installed package"):
        load(write(tmp_path, rule="my_package.rules:Mine"))
    (site / "my_package-1.0.dist-info/direct_url.json").write_text(json.dumps(told))
    assert load(write(tmp_path, rule="my_package.rules:Mine")).resolved["code"]


def test_other_modules_are_not_imported(site, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    source = marked(marker)
    install(site, source=source, needs="")
    (site / "loose.py").write_text(source)
    for rule, why in {
        "my_package.rules:Mine": "the package my-package does not say that it is for FedSaddle",
        "loose:Mine": "belongs to no installed package",
        "nowhere.rules:Mine": "there is no installed module 'nowhere.rules'",
        "my_package.nowhere:Mine": "there is no installed module",
        "subprocess:run": "belongs to no installed package",
        "torch.hub:load": "the package torch does not say that it is for FedSaddle",
        "fedsaddle.app.run:run": "comes with FedSaddle",
    }.items():
        with pytest.raises(BadInput, match=rf"algorithms\.mine\.algorithm: .*{why}"):
            load(write(tmp_path, rule=rule))
    install(site, source=source)
    monkeypatch.chdir(site)  # a folder that somebody is in by accident
    with pytest.raises(BadInput, match="belongs to no installed package"):
        load(write(tmp_path, rule="my_package.rules:Mine"))
    assert not marker.exists()


def test_a_name_that_two_packages_give_is_refused(site, tmp_path):
    install(site, points=POINTS)
    install(site, "other-package", points=POINTS.replace("my_package", "other_package"))
    with pytest.raises(
        BadInput, match=r"my-package 1.0 and other-package 1.0 give; say my_package.rules:Mine"
    ):
        load(write(tmp_path, rule="special"))
    with pytest.raises(BadInput, match="did you mean 'special'"):
        load(write(tmp_path, rule="specal"))


def test_all_is_listed_and_nothing_is_run(tmp_path):
    """Also beside packages that cannot be imported, or take a name that is taken."""
    marker = tmp_path / "marker"
    points = (
        POINTS
        + "cdma-nc = my_package.rules:Mine\n[fedsaddle.problems]\npricing = my_package.nowhere:Pricing\n"
    )
    install(tmp_path / "site", source=f"open({str(marker)!r}, 'w')\n1 / 0\n", points=points)
    write(tmp_path, source=marked(marker))
    (tmp_path / "tasks.py").write_text(f"open({str(marker)!r}, 'w')\n{ROWS}")
    script = """
import sys
from fedsaddle.cli import main
sys.argv = ["fedsaddle", "list", "my_rules.py", "tasks.py"]
try:
    main()
except SystemExit as end:
    assert not end.code
assert not {"torch", "numpy", "pydantic", "my_package", "my_rules"} & sys.modules.keys()
"""
    path = f"{tmp_path / 'site'}:{Path(plugins.__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "cdma-nc shipped CDMA without correction" in lines
    assert "special my-package 1.0 my_package.rules:Mine" in lines
    assert "pricing my-package 1.0 my_package.nowhere:Pricing" in lines
    assert "my_rules.py:Mine file as CDMA-NC" in lines
    assert "cdma-nc my-package 1.0 refused: what ships has this name; say my_package.rules:Mine" in lines
    assert "digits" in done.stdout
    assert "tasks.py:rows file" in lines
    assert not marker.exists()


def test_what_ships_keeps_its_name(site, tmp_path):
    install(site, source="1 / 0", points="[fedsaddle.algorithms]\ncdma-nc = my_package.rules:Mine\n")
    (study,) = load(write(tmp_path), algorithms=["cdma-nc"]).studies.values()
    assert type(study.algorithm).__name__ == "CDMANC"
    with pytest.raises(BadInput, match=r"special.*known: .*cdma-ada"):
        load(write(tmp_path, rule="special"))
    with pytest.raises(BadInput, match=r"my_package.rules:Mine of my-package 1.0 cannot be imported: Zero"):
        load(write(tmp_path, rule="my_package.rules:Mine"))


# --- the same code again ----------------------------------------------------------------------------------


def test_a_run_goes_on_and_replays_with_the_same_code_only(call, tmp_path):
    write(tmp_path)
    ours = ("--code", "my_rules.py")
    assert call("run", "mine.toml", *ours, "--history", "--out", "run", "--quiet")[0] == 0
    for words in (("run", "--resume", "--out", "run"), ("replay", "run")):
        code, _, stderr = call(*words)
        assert code == 2  # the folder may be somebody else's: its word is not enough
        assert "my_rules.py is code" in stderr
        assert call(*words, *ours)[0] == 0
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "my_rules.py").rename(tmp_path / "elsewhere/my_rules.py")  # where it lies does not matter
    moved = ("--code", "elsewhere/my_rules.py")
    assert call("replay", "run", *moved)[0] == 0
    assert call("run", "--resume", "--out", "run", "--rounds", "4", *moved)[0] == 0
    (tmp_path / "my_rules.py").write_text(RULES + "# changed\n")
    for words in (
        ("run", "--resume", "--out", "run"),
        ("replay", "run"),
        ("run", "mine.toml", "--resume", "--out", "run", "--rounds", "4", "--history"),
    ):
        code, _, stderr = call(*words, *ours)
        assert code == 2
        assert "my_rules.py" in stderr
        assert "sha256" in stderr


def test_a_replay_in_python_names_the_code_too(tmp_path):
    experiment, code = write(tmp_path), [tmp_path / "my_rules.py"]
    run(experiment, Way(tmp_path / "run"), algorithms=["mine"], history=True, code=code)
    assert all(one.exact for one in replay_run(tmp_path / "run", code=code))
    with pytest.raises(BadInput, match="--code"):
        next(replay_run(tmp_path / "run"))


def test_an_experiment_may_say_the_hash(tmp_path):
    experiment = Path(write(tmp_path))
    held = experiment.read_text()
    for name, digest, why in (
        ("my_rules.py:Mine", plugins.sha256_of(tmp_path / "my_rules.py"), None),
        ("my_rules.py:Mine", "0" * 64, "has changed"),
        ("my_rules.py:Other", "0" * 64, "nothing in the experiment is called that"),
    ):
        experiment.write_text(f'{held}\n[code.algorithms."{name}"]\nsha256 = "{digest}"\n')
        if why is None:
            load(str(experiment), code=[tmp_path / "my_rules.py"])
        else:
            with pytest.raises(BadInput, match=why):
                load(str(experiment), code=[tmp_path / "my_rules.py"])


ROWS = """
import fedsaddle as fs
import torch
from pathlib import Path

def rows(clients: int = 12):
    values = torch.tensor([float(n) for n in Path(__file__).with_name("rows.txt").read_text().split()])
    tables = [{"b": values + n} for n in range(clients)]
    loss = lambda x, y, batch: (x - batch["b"] + y).square() - 2 * y.square()
    return fs.task(x=1, y=1, loss=loss, data=fs.clients(tables))
"""


def test_a_task_of_ones_own_is_held_to_its_rows(tmp_path):
    (tmp_path / "rows.txt").write_text("1 2 3")
    (tmp_path / "tasks.py").write_text(ROWS)
    experiment, code = write(tmp_path, rule="cdma-nc", problem="tasks.py:rows"), [tmp_path / "tasks.py"]
    run(experiment, Way(tmp_path / "run"), history=True, code=code)
    assert all(one.exact for one in replay_run(tmp_path / "run", code=code))
    (tmp_path / "rows.txt").write_text("1 2 4")
    with pytest.raises(BadInput, match=r"the rows of .*tasks\.py:rows are others"):
        next(replay_run(tmp_path / "run", code=code))
    with pytest.raises(BadInput, match=r"another experiment \(code\.problems.*data was"):
        run(experiment, Way(tmp_path / "run", resume=True), history=True, code=code)


@pytest.mark.parametrize("said", ["code=3", "code.algorithms=[1]", "code.rules={}", "code.fleets={a=1}"])
def test_hashes_that_are_none_are_refused(tmp_path, said):
    with pytest.raises(BadInput, match="code"):
        load(write(tmp_path, rule="cdma-nc"), settings=[said])


def test_a_sweep_of_ones_own_rule_ends_in_an_experiment_that_runs(tmp_path):
    experiment, code = Path(write(tmp_path)), [tmp_path / "my_rules.py"]
    experiment.write_text(experiment.read_text() + "[sweep.grid.mine]\neta = [0.01, 0.05]\n")
    ran = sweep(str(experiment), Way(tmp_path / "sweep"), algorithms=["mine"], seeds="0", rounds=2, code=code)
    assert ran.code == 0
    from fedsaddle.app.results import of_sweep

    best = of_sweep(tmp_path / "sweep").best
    assert type(load(str(best), code=code).studies["mine"].algorithm).__name__ == "Mine"
    with pytest.raises(BadInput, match="--code"):
        load(str(best))


# --- skeletons --------------------------------------------------------------------------------------------


def test_what_new_writes_runs_passes_its_tests_and_is_clean(call, tmp_path):
    told = [call("new", kind, f"my_{kind}", "--out", "own folder") for kind in SKELETONS]
    assert [code for code, *_ in told] == [0, 0, 0]
    for _, stdout, _ in told:
        (line,) = (line for line in stdout.splitlines() if line.startswith("run it"))
        words = shlex.split(line.removeprefix("run it"))
        assert words[0] == "fedsaddle"
        code, _, stderr = call(*words[1:], "--rounds", "2", "--seeds", "0", "--quiet")
        assert code == 0, stderr
    for words in (["ruff", "check"], ["ruff", "format", "--check"], ["pytest", "-q", "-n", "0"]):
        done = subprocess.run(
            [sys.executable, "-m", *words, "."], cwd=tmp_path / "own folder", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_one_s_own_takes_few_lines():
    for kind, most in (("algorithm", 40), ("problem", 30)):
        text = (resources("fedsaddle.app") / f"skeletons/{kind}.py.txt").read_text()
        assert len([line for line in text.splitlines() if line.strip()]) <= most


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("thing", "mine"), "unknown kind of skeleton 'thing'; known: algorithm, experiment, problem"),
        (("algorithm", "my-rule"), "such as my_rule; got 'my-rule'"),
        (("algorithm", "../mine"), "got '../mine'"),
        (("algorithm", "class"), "a word of Python's"),
        (("algorithm", "cdma_nc"), "'cdma-nc' is the name of another algorithm"),
        (("problem", "gan"), "'gan' is the name of another problem"),
        (("experiment", "quadratic"), "'quadratic' is the name of another experiment"),
        (("problem", "random"), "'random' means something else already"),
        (("algorithm", "state"), "'state' means something else already"),
        (("algorithm", "torch"), "a module 'torch' is installed"),
        (("algorithm", "there"), "there.toml is there already"),
        (("algorithm", "mine", "--out", "there.toml"), "cannot write to there.toml"),
    ],
)
def test_nothing_is_overwritten_and_names_are_checked(call, tmp_path, words, why):
    (tmp_path / "there.toml").write_text("mine")
    code, _, stderr = call("new", *words)
    assert code == 2
    assert why in stderr
    assert len(stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there.toml"]
    assert (tmp_path / "there.toml").read_text() == "mine"
