"""What the documents promise about the project itself."""

import ast
import dataclasses
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedsaddle as fs
from fedsaddle.algorithms import ALGORITHMS, Entry
from fedsaddle.border.build import load
from fedsaddle.border.schema import Experiment
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin
from fedsaddle.problems import AUC
from zoo import quadratic

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fedsaddle"

# Lower rooms know nothing of higher ones.
FLOORS = [
    {"errors", "exits", "core", "draws", "metric", "projections", "ranges", "rates", "scratch", "traces"},
    {
        "problem",
        "fleet",
        "checks",
        "convolutions",
        "pooling",
        "layers",
        "networks",
        "data",
        "blueprint",
        "scores",
        "judges",
        "pictures",
        "mishaps",
        "steady",
        "strata",
        "traces",
    },
    {"faults", "merges", "history"},
    {"algorithms", "problems"},
    {"engine"},
    {"simulate", "outcome", "progress"},
    {"runs", "environment", "sweep"},
    {"border", "report", "tensorboard"},
    {"flower", "paper", "board"},
    {"app"},
    {"cli"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def rooms_imported(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fedsaddle":
            rooms |= {alias.name for alias in node.names if alias.name in FLOOR}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsaddle."):
            rooms.add(node.module.split(".")[1])
    return rooms


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room.startswith("__"):
            continue
        for other in rooms_imported(path):
            assert other == room or FLOOR[other] <= FLOOR[room], f"{path} imports {other}"
            assert not (room == "algorithms" and other in {"fleet", "problem", "problems"}), path


def test_an_algorithm_file_holds_mathematics_only():
    for path in (SOURCE / "algorithms").glob("[a-z]*.py"):
        text = path.read_text()
        for word in ("device", "logging", "print(", ".shape", "open(", "random"):
            body = re.sub(r'""".*?"""', "", text, flags=re.S)
            assert word not in body, f"{path.name} speaks of {word}"


def test_the_core_needs_no_border():
    """On a machine without them, everything up to `simulate` works."""
    program = """
import sys
border = "pydantic typer rich matplotlib tensorboard scipy flwr ray safetensors sklearn"
for name in border.split():
    sys.modules[name] = None
import fedsaddle as fs
print(fs.simulate(fs.Quadratic(clients=10), fs.CDMANC(0.1, 0.1), rounds=1).last("stationarity"))
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_every_name_of_the_package_is_there_when_it_is_asked_for():
    """One `if` for people who check types, one table for those who run: they must agree."""
    (block,) = (
        node for node in ast.parse((SOURCE / "__init__.py").read_text()).body if isinstance(node, ast.If)
    )
    homes = {alias.name: node.module for node in block.body for alias in node.names}
    assert homes == fs._HOMES
    assert sorted(homes) == sorted(fs.__all__)
    assert set(fs.__all__) <= set(dir(fs))
    program = """
import sys
import fedsaddle as fs
assert "torch" not in sys.modules
import fedsaddle.border.build  # which imports the module fedsaddle.simulate
for name in fs.__all__:
    value = getattr(fs, name)
    called = name if hasattr(value, "__metadata__") else getattr(value, "__name__", name)  # Pair, annotated
    assert called in (name, "dict"), (name, value)  # a Message is a dict
assert callable(fs.simulate)
from fedsaddle.simulate import simulate
assert simulate is fs.simulate
try:
    fs.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def blocks(document: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), flags=re.S)


def test_the_documented_experiment_can_be_run(tmp_path):
    (text,) = blocks("docs/experiments.md", "toml")
    (tmp_path / "mine.toml").write_text(text)
    plan = load(str(tmp_path / "mine.toml"))
    assert set(plan.studies) == {"cdma-one", "slower"}
    assert plan.studies["slower"].quorum.invite == 16
    named = set(tomllib.loads(text))
    assert named == set(Experiment.model_fields)  # every key there is, is explained


def test_the_documented_table_becomes_a_report(tmp_path):
    """As docs/data.md says: two files, one command."""
    document = (ROOT / "docs/data.md").read_text()
    (tmp_path / "payments.csv").write_text(blocks("docs/data.md", "csv")[0])
    (tmp_path / "payments.toml").write_text(blocks("docs/data.md", "toml")[0])
    (command,) = re.findall("^    fedsaddle (run .*)$", document, flags=re.M)
    words = [sys.executable, "-m", "fedsaddle", *command.split()]
    done = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "test_auc at the end" in done.stdout
    assert (tmp_path / "runs/payments/curves.png").exists()
    for field in dataclasses.fields(AUC):
        if field.name in ("label", "client", "positive", "test", "test_share", "sha256", "test_sha256"):
            assert f"`{field.name}`" in document


def test_the_documented_arrays_can_be_learnt_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(blocks("docs/data.md")[0], {})
    problem = AUC(dataset="mine.npz", positive=1, partition="column")
    assert len(problem.federation) == 20


def test_the_documented_problem_is_the_shipped_one():
    """docs/add-a-problem.md shows all of fair.py, in pieces: methods by themselves are not indented."""

    def lines(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if line.strip()]

    document = "docs/add-a-problem.md"
    assert lines("".join(blocks(document))) == lines((SOURCE / "problems/fair.py").read_text())
    assert '"fair": Entry(Fair, "fair classification' in (ROOT / document).read_text()
    assert '"fair": Entry(Fair, "fair classification' in (SOURCE / "problems/__init__.py").read_text()


@pytest.fixture
def momentum(tmp_path, monkeypatch):
    """The worked example of CONTRIBUTING.md, added as it says."""
    (code,) = blocks("CONTRIBUTING.md")
    path = tmp_path / "server_momentum.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("server_momentum", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "server_momentum", module)
    spec.loader.exec_module(module)
    assert '"server-momentum": Entry(ServerMomentum, "local steps' in (ROOT / "CONTRIBUTING.md").read_text()
    monkeypatch.setitem(ALGORITHMS, "server-momentum", Entry(module.ServerMomentum, "local steps"))
    return module.ServerMomentum


def test_the_worked_example_is_short(momentum):
    (code,) = blocks("CONTRIBUTING.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 40


def test_the_worked_example_runs_every_way(momentum):
    def end(algorithm, ask):
        study = fs.make_study(quadratic(), algorithm, seeds=(0, 1), executor=ask, batch=2)
        lanes = begin(study)
        for round in range(3):
            lanes, _ = play(study, lanes, round)
        return lanes.server.z.x

    fast, slow = (end(momentum(0.05, 0.08, K=3), ask) for ask in (fs.Vectorised(), fs.Loop()))
    assert fast.sub(slow).abs().max() < 1e-12
    assert (
        end(momentum(0.05, 0.08, beta=0.0, K=3), fs.Loop())
        .sub(end(fs.CDMANC(0.05, 0.08, K=3), fs.Loop()))
        .abs()
        .max()
        < 1e-12
    )
    assert fast.sub(end(fs.CDMANC(0.05, 0.08, K=3), fs.Vectorised())).abs().max() > 1e-3


def test_the_worked_example_runs_from_an_experiment_file(momentum, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nrounds = 2\n[problem]\nname = "quadratic"\nclients = 10\n'
        "[algorithms.server-momentum]\neta = 0.1\ngamma = 0.1\nbeta = 0.9\n"
    )
    (study,) = load(str(path)).studies.values()
    assert type(study.algorithm) is momentum


def test_the_readmes_examples_are_short():
    examples = blocks("README.md")  # tests/test_documents.py runs them
    assert len(examples) == 2
    for code in examples:
        assert len([line for line in code.splitlines() if line.strip()]) <= 15


def test_the_documents_name_every_algorithm():
    for document in ("README.md", "docs/algorithms.md"):
        text = (ROOT / document).read_text()
        for name in ALGORITHMS:
            assert name in text or (name.endswith("-release") and document == "README.md"), (
                f"{document}: {name}"
            )


def test_nobody_is_told_to_install_what_no_index_has():
    documents = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *SOURCE.rglob("*.py")]
    for path in documents:
        assert not re.search(r"pip install[^\n]*['\" ]fedsaddle\[", path.read_text()), path


def test_the_installed_advice_is_the_extras():
    """A person without Flower, Ray or ONNX is told the versions that the project declares."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, path in (
        ("flower", "flower/__init__.py"),
        ("ray", "engine/executors/ray.py"),
        ("onnx", "app/models.py"),
    ):
        (needed,) = extras[extra]
        assert f"pip install '{needed}'" in (SOURCE / path).read_text()


def test_torch_is_bounded_above():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (torch,) = [needed for needed in project["dependencies"] if needed.startswith("torch>")]
    assert re.fullmatch(r"torch>=\d+\.\d+,<\d+\.\d+", torch)


def test_the_versions_agree():
    assert f'version = "{fs.__version__}"' in (ROOT / "pyproject.toml").read_text()
