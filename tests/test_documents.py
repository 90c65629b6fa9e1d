"""Every command and block of code in the documents runs as it is printed, or is listed with a reason.

The commands of a document run one after another in one folder, as somebody would who reads it. What is
listed is not run; that its options exist is still checked.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main
from packaging.requirements import Requirement

import fedsaddle
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.border.build import load
from fedsaddle.border.files import SHIPPED, shipped
from fedsaddle.border.schema import Sweep
from fedsaddle.cli.commands import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
)
PROGRAMS = ("fedsaddle", "python", "make", "pip", "docker")

# What is not run, by a beginning of the command, and why.
GPU, LONG, MAKE = "needs a GPU", "takes minutes", "prepares an environment; CI runs it"
NODES, NETWORK = "several processes or machines: tests/test_flower.py plays deployments", "needs a network"
LISTED = {
    "make demo": MAKE,
    "make test": MAKE,
    "make check": MAKE,
    "make setup": MAKE,
    "make test-portable": MAKE,
    "make docs": MAKE,
    "pip install": NETWORK,
    "docker run": NODES,
    "fedsaddle data mnist": NETWORK,
    "fedsaddle --install-completion": "changes the settings of a person's shell",
    "fedsaddle data adult": NETWORK,
    "fedsaddle run groups-adult": NETWORK,
    "fedsaddle run odds-adult": NETWORK,
    "fedsaddle run np-card": NETWORK,
    "fedsaddle run clients-census": NETWORK,
    "fedsaddle run pauc-census": NETWORK,
    "fedsaddle sweep pauc-census": NETWORK,
    "fedsaddle local": NODES,
    "fedsaddle serve": NODES,
    "fedsaddle join": NODES,
    "fedsaddle report runs/deployed": NODES,
    "fedsaddle watch": "serves until Ctrl-C: tests/test_watch.py",
    "fedsaddle replay runs/deployed": NODES,
    "fedsaddle replay runs/study --data": "of a run on devices: tests/test_flower.py",
    "fedsaddle run auc-mnist --device cuda": GPU,
    "fedsaddle run auc-mnist-steady --device cuda": GPU,
    "fedsaddle run auc-cifar10 --device cuda": GPU,
    "fedsaddle run auc-mnist --engine ray --device cuda": GPU,
    "fedsaddle run auc-mnist --engine ray --address": "needs a cluster: tests/test_ray.py starts one",
    "fedsaddle run auc-mnist --engine ray": LONG,
    "fedsaddle run gan-digits": LONG,
    "fedsaddle run wgan-digits": LONG,
    "fedsaddle run gmm-sine": LONG,
    "fedsaddle sweep gmm-sine": LONG,
    "python examples/deepgmm.py": "tests/test_gmm.py runs it in little",
    "fedsaddle run gan-mnist": GPU,
    "fedsaddle run robust-mnist --device cuda": GPU,
    "fedsaddle run robust-fashion --device cuda": GPU,
    "fedsaddle report runs/gan-*": GPU,
    "fedsaddle export runs/payments --seed 0 --to model.onnx": "needs an extra: tests/test_models.py",
    "fedsaddle sample": "of a run of minutes: tests/test_models.py",
    "fedsaddle rescore": "of a run of minutes: tests/test_gan.py",
    "fedsaddle data celeba": "a person's pictures: tests/test_gan.py",
    "fedsaddle sweep auc-mnist": GPU,
    "fedsaddle board --list": "shows folders that are not there: tests/test_board.py",
    "fedsaddle board": "takes long: tests/test_board.py plays one in little",
    "fedsaddle reproduce all": "takes long: tests/test_paper.py does it in little",
    "fedsaddle reproduce figure-1": GPU,
    "python -m benchmarks": LONG,
    "python -m benchmarks.attacks": NODES,
    "python -m benchmarks.availability": "takes minutes: tests/test_availability.py does it in little",
    "python -m benchmarks.collapse": LONG,
    "python -m benchmarks.deployment": LONG,
    "python -m benchmarks.dropout": LONG,
    "python -m benchmarks.gan_gap": LONG,
    "python -m benchmarks.house": "tests/test_house.py",
    "python -m benchmarks.journeys": LONG,
    "python -m benchmarks.own_task": LONG,
    "python -m benchmarks.quadratic": LONG,
    "python -m benchmarks.rates": "takes minutes: tests/test_rates.py does it in little",
    "python -m benchmarks.scale": NODES,
    "python -m benchmarks.soak": NODES,
    "python -m benchmarks.steady": LONG,
    "python -m benchmarks.turns": "takes minutes and another checkout: tests/test_benchmarks.py",
    "python -m benchmarks.unfinished": "takes minutes: tests/test_partial.py does it in little",
    "python -m pytest": GPU,
}
# What a reader has by then, by the document: files, and what they hold.
MINE = 'name = "mine"\nrounds = 10\nseeds = "0-1"\n[problem]\nname = "quadratic"\nclients = 20\n'
MINE += "[algorithms.cdma-ada]\nc_eta = 0.1\nc_gamma = 0.1\nc_alpha = 1.0\nrho = 0.2\n"
MINE += "[sweep.grid.cdma-ada]\nc_eta = { low = 0.01, high = 0.3, log = true }\n"
READERS = {
    "README.md": {"my-experiment.toml": MINE},
    "docs/sweep.md": {"mine.toml": MINE},
    "docs/data.md": {"payments.csv": ("csv", 0), "payments.toml": ("toml", 0)},
    "docs/models.md": {
        "payments.csv": ("csv", 0, "docs/data.md"),
        "payments.toml": ("toml", 0, "docs/data.md"),
        "new.csv": ("csv", 0),
    },
    "docs/plugins.md": {"moons.py": ("python", 0), "moons.toml": ("toml", 0)},
}
# Runs that a document speaks of, and how somebody has come by them.
RUNS = {"docs/report.md": ["runs/first", "runs/second"]}


def blocks(document: str) -> list[tuple[str, str]]:
    """The fenced blocks: language and text."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / document).read_text(), flags=re.S | re.M)


def commands(document: str) -> list[str]:
    """The commands that are printed on lines of their own, whole if they go over several."""
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.S | re.M)
    lines = re.findall(r"^    (\S(?:.*\\\n)*.*)$", text, flags=re.M)
    return [line for line in lines if Path(program(line)).name in PROGRAMS]


def program(line: str) -> str:
    """The first word that is no setting of a variable."""
    return next((word for word in line.split() if not re.match(r"\w+=", word)), "")


def plain(line: str) -> str:
    """A command without where its program is, without settings and comments."""
    words = shlex.split(line.replace("\\\n", " "), comments=True)
    while re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return shlex.join([Path(words[0]).name, *words[1:]])


def reason(line: str) -> str:
    """Why a command is not run; nothing, if it is."""
    told = plain(line).replace("'", "")
    return next((why for start, why in LISTED.items() if told == start or told.startswith(f"{start} ")), "")


ALL = {document: commands(document) for document in DOCUMENTS}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which both fedsaddle and .venv/bin/fedsaddle are this one."""
    place = tmp_path / ".venv" / "bin"
    place.mkdir(parents=True)
    for name, words in {"fedsaddle": "-m fedsaddle", "python": ""}.items():
        (place / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def prepare(folder: Path, document: str) -> None:
    """What a reader of the document has before its first command."""
    for name, held in READERS.get(document, {}).items():
        if isinstance(held, tuple):
            where = held[2] if len(held) > 2 else document  # which may be a page that comes before
            held = [text for language, text in blocks(where) if language == held[0]][held[1]]
        (folder / name).write_text(held)
    for name in RUNS.get(document, []):
        words = ["run", "quadratic", "--algorithm", "cdma-nc", "--rounds", "2", "--out", name]
        subprocess.run(
            [sys.executable, "-m", "fedsaddle", *words], cwd=folder, check=True, capture_output=True
        )


@pytest.mark.parametrize("document", [name for name, own in ALL.items() if not all(map(reason, own))])
def test_commands_run_as_they_are_printed(document, folder):
    prepare(folder, document)
    for line in ALL[document]:
        if not reason(line):
            done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("line", dict.fromkeys(line for own in ALL.values() for line in own if reason(line)))
def test_what_is_not_run_has_options_that_exist(line):
    words = shlex.split(plain(line))
    if words[0] == "docker":
        words = words[words.index("fedsaddle") :]
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), flags=re.M)
    elif words[:2] == ["python", "-m"] and words[2] != "pytest":
        path = ROOT / (words[2].replace(".", "/"))
        source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        for word in words[3:]:
            assert not word.startswith("--") or f'"{word}"' in source, word
    elif words[0] == "fedsaddle":
        group = typer.main.get_command(app)
        if words[1].startswith("--"):
            assert any(words[1] in own.opts for own in group.params), words[1]
            return
        group.commands[words[1]].make_context(words[1], words[2:])  # refuses what it does not know
        if words[1] in ("run", "sweep"):
            assert words[2] in shipped()


def test_the_list_holds_nothing_that_nobody_prints():
    printed = [plain(line).replace("'", "") for own in ALL.values() for line in own]
    for start in LISTED:
        assert any(told == start or told.startswith(f"{start} ") for told in printed), start


# --- blocks of code ---------------------------------------------------------------------------------------


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def runs(text: str, folder: Path, document: str) -> None:
    prepare(folder, document)
    done = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def runs_after_the_first_command(text: str, folder: Path, document: str) -> None:
    prepare(folder, document)
    words = shlex.split(plain(ALL[document][0]))
    subprocess.run([sys.executable, "-m", *words], cwd=folder, check=True, capture_output=True)
    runs(text, folder, document)


def is_given_to_a_command(text: str, folder: Path, document: str) -> None:
    """The commands of the document read it: see READERS."""
    assert any(held[0] == "csv" for held in READERS[document].values())


def is_an_experiment(text: str, folder: Path, document: str) -> None:
    (folder / "mine.toml").write_text(text)
    assert load(str(folder / "mine.toml")).studies


def is_of_the_source(text: str, folder: Path, document: str) -> None:
    """Every line is one of the algorithms', but for the types of a function's arguments."""

    def bare(line: str) -> str:
        return re.sub(r"^def (\w+)\(.*", r"def \1", line)

    source = {bare(line) for path in (ROOT / "src").rglob("*.py") for line in lines(path.read_text())}
    for line in lines(text):
        assert line == "..." or bare(line) in source, line


def completes_an_experiment(text: str, folder: Path, document: str) -> None:
    """A part of an experiment file, with the rest that it needs."""
    tables = tomllib.loads(text)
    if "sweep" in tables:
        Sweep.model_validate(tables["sweep"])
        assert set(tables["sweep"]["grid"]) <= set(ALGORITHMS)
        return
    rows = "".join(f"{n},{n % 3},{'sick' if n % 4 else 'well'}\n" for n in range(40))
    (folder / "reference.csv").write_text(f"age,dose,label\n{rows}")
    rest = 'name = "study"\nrounds = 2\n[algorithms.cdma-nc]\neta = 0.1\ngamma = 0.1\ninvite = 2\n'
    (folder / "study.toml").write_text(rest.replace("[alg", f"{text}\n[alg"))
    assert load(str(folder / "study.toml"), devices=True, engine="loop").studies


def is_run_on_devices(text: str, folder: Path, document: str) -> None:
    assert document in (ROOT / "tests/test_devices.py").read_text()


def is_of_an_example(text: str, folder: Path, document: str) -> None:
    assert any(text in path.read_text() for path in (ROOT / "examples").glob("*.py"))


def is_tested_elsewhere(text: str, folder: Path, document: str) -> None:
    """tests/test_project.py puts this document's blocks together and runs them."""
    assert f'"{document}"' in (ROOT / "tests/test_project.py").read_text()


def is_run_by_a_command(text: str, folder: Path, document: str) -> None:
    """A reader has it as a file, and a command of the document runs it."""
    prepare(folder, document)
    (name,) = (path.name for path in folder.iterdir() if path.read_text() == text)
    assert any(name in line for line in ALL[document] if not reason(line))


def is_entered(text: str, folder: Path, document: str) -> None:
    """tests/test_board.py plays the algorithm of this document."""
    assert f'"{document}"' in (ROOT / "tests/test_board.py").read_text()


BLOCKS = {
    ("README.md", "python"): runs,
    ("CONTRIBUTING.md", "python"): is_tested_elsewhere,
    ("docs/add-a-problem.md", "python"): is_tested_elsewhere,
    ("docs/algorithms.md", "python"): is_of_the_source,
    ("docs/board.md", "python"): is_entered,
    ("docs/data.md", "csv"): is_tested_elsewhere,
    ("docs/data.md", "python"): runs,
    ("docs/data.md", "toml"): is_tested_elsewhere,
    ("docs/deploy.md", "python"): is_run_on_devices,
    ("docs/deep-gmm.md", "python"): is_of_an_example,
    ("docs/deploy.md", "toml"): completes_an_experiment,
    ("docs/experiments.md", "toml"): is_an_experiment,
    ("docs/own-task.md", "python"): runs,
    ("docs/models.md", "csv"): is_given_to_a_command,
    ("docs/models.md", "python"): runs_after_the_first_command,
    ("docs/plugins.md", "python"): is_run_by_a_command,
    ("docs/plugins.md", "toml"): is_run_by_a_command,
    ("docs/python.md", "python"): runs,
    ("docs/sweep.md", "toml"): completes_an_experiment,
    ("docs/theory.md", "python"): runs,
}
ELSEWHERE = {"nginx", "ini", "dockerfile"}  # for programs that are not here


@pytest.mark.parametrize("document", DOCUMENTS)
def test_blocks_of_code_do_what_they_say(document, tmp_path):
    for language, text in blocks(document):
        if language not in ELSEWHERE:
            BLOCKS[document, language](text, tmp_path, document)  # a new one wants an entry


# --- the site: make docs builds it, and checks the links of what was built ----------------------------------


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_of_the_repository(document):
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\((?!\w+:)([^)#]+)", text):
        assert (ROOT / document).parent.joinpath(target).is_file(), target


def test_every_page_has_its_place_on_the_site():
    places = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert pages
    assert [page for page in pages if page not in places] == []


def test_the_reference_has_every_public_name():
    named = re.findall(r"^::: fedsaddle\.(?:\w+\.)?(\w+)$", (ROOT / "docs/python.md").read_text(), flags=re.M)
    assert sorted(named) == sorted(fedsaddle.__all__)


def test_the_lock_of_the_site_holds_what_its_extra_allows():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lock = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "requirements-docs.lock").read_text(), flags=re.M)
    for needed in map(Requirement, extras["docs"]):
        assert dict(lock)[needed.name] in needed.specifier, needed


def test_shipped_experiments_are_found_where_the_readme_says():
    assert (SHIPPED / "quadratic.toml").is_file()
    assert "src/fedsaddle/experiments/quadratic.toml" in (ROOT / "README.md").read_text()


# --- claims -----------------------------------------------------------------------------------------------

MEASURED = re.compile(r"^Measured at commit ([0-9a-f]{7,40}) by:\n\n    \S", flags=re.M)


def git(*words: str) -> subprocess.CompletedProcess[str] | None:
    """What git says; None if there is no history, or not all of it."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return None

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)

    whole = ask("rev-parse", "--is-shallow-repository").stdout.strip() == "false"
    return ask(*words) if whole else None


def known_commit(commit: str) -> bool | None:
    """Whether the history has it; None if that cannot be known."""
    said = git("merge-base", "--is-ancestor", commit, "HEAD")
    return None if said is None else said.returncode == 0


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs/results").glob("*.md")))
def test_a_page_of_results_names_the_commit_and_the_command(page):
    found = MEASURED.findall((ROOT / "docs/results" / page).read_text())
    assert found, "say 'Measured at commit abc1234 by:', an empty line, and the indented command"
    for commit in found:
        assert known_commit(commit) is not False, f"{commit} is not in the history"


MOVED = re.compile(r"golden|\d\S* (->|for|instead of)\s+\S*\d", flags=re.I)


def test_golden_numbers_move_only_in_a_commit_that_says_why():
    """CONTRIBUTING.md's rule: its body speaks of golden.json, or says a number before and after."""
    said = git("log", "-1", "--no-merges", "--format=%h %B", "--", "tests/golden.json")
    changed = git("status", "--porcelain", "--", "tests/golden.json")
    if said is None or changed is None or not said.stdout:
        pytest.skip("there is no history here, or not all of it: who moved golden.json cannot be known")
    assert not changed.stdout, "tests/golden.json has changed: commit it, and say why in the body"
    subject, _, body = said.stdout.partition("\n")
    assert MOVED.search(body), f"'{subject}' moved tests/golden.json, and its body does not say why"


def test_what_the_readme_says_was_measured_has_a_page():
    text = (ROOT / "README.md").read_text()
    (part,) = re.findall(r"^## What was measured\n(.*?)^## ", text, flags=re.S | re.M)
    claims = re.findall(r"^- (.*?)(?=^- |\Z)", part, flags=re.S | re.M)
    assert len(claims) >= 5
    for claim in claims:
        pages = re.findall(r"\]\((docs/results/[\w-]+\.md)\)", claim)
        assert pages or "tests say so." in claim, claim
        assert all((ROOT / page).is_file() for page in pages)


def test_every_page_of_results_is_among_the_results():
    text = (ROOT / "docs/results.md").read_text()
    assert set(re.findall(r"\]\((results/[\w-]+\.md)\)", text)) == {
        f"results/{page.name}" for page in (ROOT / "docs/results").glob("*.md")
    }
