"""The border: what cannot be used is refused, in one line, before anything is written.

Every refusal goes through the real command line and must keep one promise: exit code 2, nothing on stdout,
one printable line on stderr that begins with 'error: ' and names what was wrong, what was given and what
would do, and no file made or changed. The lists below are the mistakes people make. The property tests throw
random tables, texts and bytes at `load`: it returns a Plan or raises BadInput, never anything else.
"""

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsaddle import cli, exits, runs
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.app import run as app_run
from fedsaddle.app.results import of_run
from fedsaddle.border import files, slips
from fedsaddle.border.build import load
from fedsaddle.border.schema import Experiment, Sweep
from fedsaddle.checks import Checks
from fedsaddle.data.datasets import DATASETS
from fedsaddle.errors import BadInput
from fedsaddle.faults import Faults
from fedsaddle.fleet import FLEETS, Quorum
from fedsaddle.merges import MERGES
from fedsaddle.networks import NETWORKS
from fedsaddle.problems import PROBLEMS, Quadratic
from fedsaddle.runs import Plan
from fedsaddle.steady import Steady

VALID = {
    "name": "small",
    "rounds": 2,
    "seeds": [0],
    "evaluate_every": 1,
    "batch": 5,
    "K": 2,
    "problem": {"name": "quadratic", "clients": 20, "kappa": 10.0},
    "fleet": {"model": "paper", "least": 0.5},
    "quorum": {"invite": 8, "minimum": 1},
    "algorithms": {
        "cdma-one": {"eta": 0.01, "gamma": 0.01},
        "mine": {"algorithm": "codasca", "invite": 4, "eta_l": 0.01},
    },
}
TRACE = {"fleet": {"model": "trace", "path": "trace.csv"}}


# --- the promise -----------------------------------------------------------------------------------------


def contents(folder):
    """Every file and folder below a folder, with what is in it."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def write(path, tables):
    path.write_text(json.dumps(tables), encoding="utf-8")
    return str(path)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder of its own: the exit code, stdout and stderr."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "valid.json", VALID)

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


@pytest.fixture
def refused(call, tmp_path, monkeypatch):
    """Run the command line, check that it keeps the promise, and return its one line."""

    def refused(*words):
        before = contents(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(runs, "execute", lambda *_: pytest.fail("it was accepted"))
            code, stdout, stderr = call(*words)
        assert (code, stdout) == (2, ""), stderr[-2000:]
        assert stderr.startswith("error: ")
        assert stderr.endswith("\n")
        assert stderr[:-1].isprintable(), "more than one line, or control characters"
        assert contents(tmp_path) == before
        return stderr[:-1]

    return refused


def set_(*assignments):
    """The command line that changes some keys of the valid experiment."""
    return ["run", "valid.json", "--out", "new", *(word for one in assignments for word in ("--set", one))]


def test_the_valid_experiment_is_accepted(call, tmp_path):
    code, stdout, stderr = call("run", "valid.json", "--out", "new")
    assert code == 0
    assert re.fullmatch(r"engine: [^\n]+\n", stderr)
    assert "cdma-one" in stdout
    assert (tmp_path / "new" / "rounds.csv").stat().st_size > 0


def test_it_can_be_called_from_a_program(tmp_path, capsys):
    """What the command does, without a terminal: nothing is printed."""
    experiment = write(tmp_path / "valid.json", VALID)
    ran = app_run.run(experiment, app_run.Way(tmp_path / "new"), rounds=1)
    assert ran == (tmp_path / "new", 0)
    results = of_run(ran.folder)
    assert {one.label for one in results.found} == {"cdma-one", "mine"}
    assert (results.code, results.page) == (0, tmp_path / "new" / "report.html")
    assert capsys.readouterr() == ("", "")


# --- names -----------------------------------------------------------------------------------------------

FIELDS = {
    "top": ["K", "batch", "cohorts", "engine", "evaluate_every", "rounds", "sampling", "seeds", "algorithms"],
    "problem": ["clients", "kappa", "heterogeneity", "samples", "dim_x"],
    "fleet": ["least"],
    "quorum": ["invite", "enough", "minimum", "deadline", "grace"],
    "cdma-one": ["eta", "gamma", "K"],
}


@pytest.mark.parametrize(
    ("words", "given_", "meant", "known"),
    [
        (["run", "quadratik"], "quadratik", "quadratic", files.shipped()),
        (["run", "valid.json", "--algorithm", "cdma-two"], "cdma-two", "cdma-one", VALID["algorithms"]),
        (set_("algorithms.mine.algorithm=codaska"), "codaska", "codasca", ALGORITHMS),
        (set_("algorithms.cdma-noe={eta=0.1,gamma=0.1}"), "cdma-noe", "cdma-one", ALGORITHMS),
        (set_("problem.name=quadrtic"), "quadrtic", "quadratic", PROBLEMS),
        (set_("fleet.model=papr"), "papr", "paper", FLEETS),
        (set_("evaluate_evry=3"), "evaluate_evry", "evaluate_every", FIELDS["top"]),
        (set_("problem.kapa=20"), "kapa", "kappa", FIELDS["problem"]),
        (set_("fleet.leest=0.5"), "leest", "least", FIELDS["fleet"]),
        (set_("quorum.invte=4"), "invte", "invite", FIELDS["quorum"]),
        (set_("algorithms.cdma-one.etta=0.1"), "etta", "eta", FIELDS["cdma-one"]),
    ],
)
def test_an_unknown_name_is_met_with_the_nearest_and_all_of_them(refused, words, given_, meant, known):
    line = refused(*words)
    assert f"'{given_}'" in line
    assert f"did you mean '{meant}'?" in line
    listed = re.split("[,;] ", line.partition("known: ")[2])
    assert {*known} <= {*listed}


def test_a_name_like_no_other_is_met_with_all_of_them(refused):
    line = refused(*set_("problem.name=xyz"))
    assert "did you mean" not in line
    assert all(name in line for name in PROBLEMS)


def test_the_shipped_experiments_come_before_the_way_to_bring_ones_own(refused):
    line = refused("run", "xyz")
    assert line.index("quadratic") < line.index("TOML")


@pytest.mark.parametrize("engine", ["cuda", "Loops", ""])
def test_an_unknown_engine(refused, engine):
    line = refused("run", "valid.json", "--engine", engine)
    assert f"'{engine}'" in line
    assert all(name in line for name in ("auto", "vectorised", "loop"))


@pytest.mark.parametrize("label", ["../x", "a/b", "a\\b", "..", ".hidden", "", "a b", "a\nb", "cdma-one\n"])
def test_a_label_that_is_no_file_name(refused, tmp_path, label):
    write(tmp_path / "bad.json", VALID | {"algorithms": {label: {"algorithm": "codasca", "eta_l": 0.1}}})
    assert "letters, digits" in refused("run", "bad.json", "--out", "new")


def test_a_label_too_long_for_a_file_name(refused, tmp_path):
    write(tmp_path / "bad.json", VALID | {"algorithms": {"x" * 250: {"algorithm": "codasca", "eta_l": 0.1}}})
    assert "algorithms" in refused("run", "bad.json", "--out", "new")


def test_what_makes_a_variant_cannot_be_set(refused):
    line = refused(*set_("algorithms.codasca-release={eta_l=0.1,beta=1.0}"))
    assert "beta is 0.0 in 'codasca-release'" in line
    load("quadratic", settings=["algorithms.codasca-release={eta_l=0.1,beta=0.0}"])


# --- what has no effect ----------------------------------------------------------------------------------


def notes(*settings, experiment="quadratic", **options):
    return list(load(experiment, settings=settings, **{"rounds": 2, "seeds": "0", **options}).notes)


NO_EFFECT = [
    (["workers=2"], "workers = 2 has no effect: it is of engine ray"),
    (["memory_gb=2.0", "engine=loop"], "memory_gb = 2.0 has no effect: engine loop"),
    (["tf32=true"], "tf32 = true has no effect: it is of a GPU"),
    (["deterministic=true"], "deterministic = true has no effect: a CPU gives the same bits"),
    (["cohorts=invited"], "cohorts = 'invited' has no effect"),
    (["batch=3"], "batch = 3 has no effect: no minibatch"),
    (["K=3"], "K = 3 has no effect: no algorithm here goes by it"),
    (["sweep.budget=3"], "sweep is what fedsaddle sweep goes by"),
    (["algorithms.cdma-one.eta=0.1"], "--set algorithms.cdma-one has no effect"),
    (["quorum.invite=12"], "quorum.invite = 12 does not count for parallel-sgda: their own number does"),
    (["merge.rule=trimmed_mean", "merge.trim=0.05"], "merge.trim = 0.05 has no effect: of 16 answers"),
    (["merge.clip={parameters=1.0}"], "merge.clip of parameters has no effect"),
    (["checks.norm={parameters=1.0}"], "checks.norm of parameters has no effect"),
    (["faults.drop=0.0"], "faults: no fault is injected"),
    (["faults.drop=0.1", "faults.seconds=3.0"], "faults: seconds = 3.0 has no effect: delay is 0"),
    (["faults.drop=0.1", "faults.corruption='inf'"], "faults: corruption = 'inf' has no effect"),
    (["faults.corrupt=0.1", "faults.factor=3.0"], "faults: factor = 3.0 has no effect: it is of sign"),
    (["fleet={model='latency',slow=0.0,slowdown=2.0}"], "fleet: slowdown = 2.0 has no effect: slow is 0"),
    (["fleet={model='latency',slow=0.5,slowdown=1.0}"], "fleet: slow = 0.5 has no effect: slowdown is 1"),
]


@pytest.mark.parametrize(("settings", "says"), NO_EFFECT, ids=lambda value: str(value)[:60])
def test_an_option_without_effect_is_noted(settings, says):
    (note,) = notes(*settings, algorithms=["parallel-sgda"], device="cpu")
    assert note.startswith(says)


def test_an_option_with_an_effect_is_not_noted():
    assert notes() == []
    assert notes("K=3", "batch=2", "cohorts=invited", "quorum.minimum=2", "memory_gb=1.0") == []
    assert notes("merge.rule=trimmed_mean", "merge.trim=0.2", "merge.clip={gradients=1.0}") == []
    assert notes("faults.corrupt=0.1", "faults.corruption=sign", "faults.factor=2.0") == []


def test_a_number_that_some_algorithms_have_of_their_own_is_noted_if_it_was_set(tmp_path):
    path = write(tmp_path / "some.json", VALID)
    assert notes(experiment=path) == []
    (note,) = notes("quorum.invite=6", experiment=path)
    assert note == "quorum.invite = 6 does not count for mine: their own number does"
    (note,) = notes("K=3", "algorithms.mine.K=4", experiment=path)
    assert note == "K = 3 does not count for mine: their own number does"
    own = {label: table | {"invite": 3, "K": 4} for label, table in VALID["algorithms"].items()}
    path = write(tmp_path / "all.json", VALID | {"algorithms": own, "quorum": {"invite": 6}})
    assert notes(experiment=path) == [
        "K = 2 has no effect: no algorithm here goes by it",
        "quorum.invite = 6 has no effect: no algorithm here goes by it",
    ]


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (
            {"name": "fair", "alpha": 0.3},
            "alpha = 0.3 has no effect: it is of partition dirichlet or zipf, not of label",
        ),
        ({"name": "fair", "seed": 3}, "seed = 3 has no effect: partition label draws nothing"),
        ({"name": "robust", "seed": 3, "restarts": 0}, "seed = 3 has no effect"),
        ({"name": "gan", "path": "/faces"}, "path = '/faces' has no effect: it is of celeba"),
        (
            {"name": "gan", "inception": "/i.pt"},
            "inception = '/i.pt' has no effect: it is of judge inception",
        ),
        ({"name": "auc", "partition": "iid", "alpha": 0.3}, "alpha = 0.3 has no effect"),
    ],
    ids=str,
)
def test_a_dial_without_effect_is_noted(tmp_path, problem, says):
    path = write(tmp_path / "mine.json", VALID | {"problem": problem})
    (note,) = notes(experiment=path)
    assert note.startswith(f"problem: {says}")


@pytest.mark.parametrize(
    ("dial", "value"), [("test_share", 0.3), ("label", "'class'"), ("client", "'shop'"), ("sha256", "'00'")]
)
def test_a_dial_of_files_is_refused_beside_a_named_dataset(refused, dial, value):
    line = refused(*set_("problem={name='auc'}", f"problem.{dial}={value}"))
    assert f"{dial} = {value} has no effect: it goes with a .csv or .npz file, not with digits" in line


def test_a_note_is_printed(call):
    code, _, stderr = call(*set_("tf32=true", "device=cpu"))
    assert code == 0
    assert "note: tf32 = true has no effect" in stderr


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--rounds", "3", "--set", "rounds=4"], "rounds"),
        (["--seeds", "0", "--set", "seeds=1"], "seeds"),
        (["--set", "K=3", "--set", "K=4"], "K"),
    ],
)
def test_what_is_given_twice_is_refused(refused, words, key):
    assert f"{key} is said twice, as " in refused("run", "valid.json", "--out", "new", *words)


def test_clients_are_said_once_or_twice_the_same():
    with pytest.raises(BadInput, match=r"problem\.clients is said twice, as 4 and as 9"):
        load("quadratic", settings=["problem.clients=9"], clients=4)
    load("quadratic", settings=["problem.clients=4"], clients=4)


def test_a_fleet_that_is_set_for_real_devices_is_noted():
    (note,) = load("quadratic", settings=["fleet.least=0.3"], devices=True).notes
    assert note.startswith("fleet has no effect")


# --- everything that was decided -------------------------------------------------------------------------


def test_the_resolved_experiment_says_every_key(tmp_path):
    found = load(write(tmp_path / "valid.json", VALID)).resolved
    assert found.keys() == Experiment.model_fields.keys() - {
        "sweep",
        "code",
    }  # of code that ships nothing is said
    assert found["problem"] == {"name": "quadratic"} | dataclasses.asdict(Quadratic(clients=20, kappa=10.0))
    assert found["fleet"] == {"model": "paper", "least": 0.5}
    assert found["quorum"] == {
        "invite": 8,
        "enough": None,
        "minimum": 1,
        "deadline": None,
        "grace": 0.0,
        "collect": None,
        "partial_work": None,
        "stratified": False,
        "replacement": False,
    }
    assert found["merge"] == {"rule": "mean", "clip": None, "weights": "equal", "most_weight": 10.0}
    assert (found["checks"], found["faults"], found["history"]) == (None, None, False)
    assert found["algorithms"]["cdma-one"] == {"algorithm": "cdma-one", "eta": 0.01, "gamma": 0.01, "K": 2}
    mine = {"algorithm": "codasca", "invite": 4, "eta_l": 0.01, "eta_g": 1.0, "theta": 0.0, "beta": 1.0}
    assert found["algorithms"]["mine"] == mine | {"K_0": 4000, "decay": 3.0, "K": 2}


def test_a_table_that_is_there_is_stored_whole():
    found = load("quadratic", settings=["checks.strikes=3", "faults.drop=0.1"]).resolved
    assert found["checks"] == {"norm": None, "strikes": 3}
    assert found["faults"] == dataclasses.asdict(Faults(drop=0.1))


@pytest.mark.parametrize("name", [name for name in files.shipped() if "digits" in name or "quad" in name])
def test_the_resolved_experiment_resolves_to_itself_without_a_note(tmp_path, name):
    plan = load(name)
    again = load(write(tmp_path / "again.json", plan.resolved))
    assert again.resolved == plan.resolved
    assert again.notes == plan.notes == ()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "Quadratic", "--rounds", "1", "--seeds", "0", "--algorithm", "CDMA-One"],
        ["run", "valid.json", "--engine", "Loop", "--device", "CPU", "--algorithm", "Mine"],
    ],
)
def test_capitals_do_not_matter(call, tmp_path, words):
    assert call(*words, "--out", "new", "--quiet") == (0, "", "")
    experiment = json.loads((tmp_path / "new" / "experiment.json").read_text())
    assert list(experiment["algorithms"]) in (["cdma-one"], ["mine"])
    assert experiment["device"] == "cpu"


def test_capitals_do_not_hide_what_was_meant(refused):
    assert "did you mean 'quadratic'?" in refused(*set_("problem.name=QUADRATIC"))
    assert "did you mean 'K'?" in refused(*set_("algorithms.cdma-one.k=3"))


def test_where_nothing_is_known_nothing_is_listed(refused):
    line = refused(*set_("fleet={model='everybody',rate=0.5}"))
    assert "unknown key in fleet 'rate'" in line
    assert "known:" not in line


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (
            "fleet.rate=0.5",
            "'rate'; it goes with model 'dropout', and model is 'paper'; model may be dropout, e",
        ),
        (
            "merge.trim=0.1",
            "'trim'; it goes with rule 'trimmed_mean', and rule is 'mean'; rule may be mean, me",
        ),
        (
            "problem.network=mlp",
            "'network'; it goes with name 'auc' or 'groups' or",
        ),
    ],
)
def test_a_key_of_another_variant_is_told_whose_it_is(refused, setting, says):
    assert says in refused(*set_(setting))


def test_help_is_help(call):
    assert call("help") == call("--help")
    assert call("help", "run") == call("run", "--help")


def test_a_resume_that_does_not_fit_says_how_to_go_on(call, refused):
    call("run", "valid.json", "--out", "new", "--quiet")
    line = refused("run", "valid.json", "--seeds", "3", "--resume", "--out", "new")
    assert "seeds was [0], is [3]" in line
    assert "fedsaddle run --resume --out new," in line


def test_help_shows_what_is_in_brackets(call):
    assert "[sweep]" in call("sweep", "--help")[1]
    assert "[sweep]" in call("--help")[1]


def test_what_is_no_experiment_is_called_what_it_is(refused, tmp_path):
    assert "payments.csv is a table: an experiment, a TOML file, names it as" in refused(
        "run", "payments.csv"
    )
    assert refused("run", "MY.TOML") == "error: cannot read MY.TOML: No such file or directory"
    assert refused("run", ".").startswith("error: . is a folder: name a TOML file; or, to go on with a run")
    (tmp_path / "quadratic").mkdir()
    assert files.read_tables("quadratic")[1] is None  # the shipped one


def test_a_folder_of_runs_is_told_what_it_holds(refused, call):
    call("run", "valid.json", "--out", "runs/b", "--quiet")
    call("run", "valid.json", "--out", "runs/a", "--quiet")
    assert refused("report", "runs").endswith("it has no experiment.json; it holds the runs runs/a, runs/b")


def test_a_seed_that_is_said_twice_is_told_as_one(refused):
    for seeds in ("0,0,1", "0-4,3"):
        line = refused("run", "valid.json", "--seeds", seeds)
        assert line == f"error: seeds: seed {seeds[-1] if '-' in seeds else 0} is given twice"


@pytest.mark.parametrize("name", ["page.pdf", "figure.png", "Page.PDF"])
def test_a_report_is_a_page(call, refused, name):
    call("run", "valid.json", "--out", "new", "--quiet")
    line = refused("report", "new", "--out", name)
    assert f"--out {Path(name).stem}.html" in line
    assert call("report", "new", "--out", "version-1.2")[0] == 0


# --- values ----------------------------------------------------------------------------------------------

COUNTS = [
    "rounds",
    "evaluate_every",
    "batch",
    "threads",
    "workers",
    "K",
    "problem.clients",
    "problem.dim_x",
    "problem.samples",
    "quorum.invite",
    "quorum.minimum",
    "quorum.enough",
    "algorithms.cdma-one.K",
    "algorithms.cdma-one.invite",
    "algorithms.mine.K_0",
]
NUMBERS = [
    "memory_gb",
    "problem.kappa",
    "problem.noise",
    "fleet.least",
    "quorum.deadline",
    "algorithms.cdma-one.eta",
    "algorithms.mine.theta",
]


@pytest.mark.parametrize("value", ["0", "-3", "2.5", "2.0", "true", '"four"', "[3]", "nan", "{}"])
@pytest.mark.parametrize("key", COUNTS)
def test_a_count_that_is_none(refused, key, value):
    line = refused(*set_(f"{key}={value}"))
    assert key.rpartition(".")[2] in line
    assert re.search("at least 1|integer|whole number", line)
    assert {"true": "True", '"four"': "'four'", "[3]": "3"}.get(value, value) in line


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "true", '"much"', "[1.5]", "{}"])
@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_that_is_none(refused, key, value):
    line = refused(*set_(f"{key}={value}"))
    assert key.rpartition(".")[2] in line
    assert re.search("number|above|at least|between", line)
    assert {"true": "True", '"much"': "'much'", "[1.5]": "1.5"}.get(value, value) in line


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("algorithms.cdma-one.eta=0", "above 0"),
        ("algorithms.cdma-one.eta=-0.1", "above 0"),
        ("algorithms.cdma-one.gamma=0.0", "above 0"),
        ("algorithms.cdma-one.eta=1e400", "finite"),
        ("algorithms.mine.eta_g=0", "above 0"),
        ("algorithms.mine.theta=-1", "at least 0"),
        ('algorithms.ada={algorithm="cdma-ada",c_eta=0.1,c_gamma=0.1,rho=1.5}', "at most 1"),
        ('algorithms.ada={algorithm="cdma-ada",c_eta=0.1,c_gamma=0.1,c_alpha=0}', "above 0"),
        ("algorithms.cdma-one.invite=21", "at most the number of clients (20)"),
        ("quorum.invite=21", "at most the number of clients (20)"),
        ("problem.clients=7", "at most the number of clients (7)"),
        ("quorum.minimum=9", "at most invite (8)"),
        ("quorum.enough=9", "at most invite (8)"),
        ("quorum={invite=8,enough=4,minimum=5}", "at most enough (4)"),
        ("quorum.deadline=0", "above 0"),
        ("quorum={invite=8,grace=5}", "deadline"),
        ("quorum={invite=8,deadline=5,grace=-1}", "between 0 and"),
        ("fleet.least=1.5", "between 0 and 1"),
        ("problem.kappa=1.5", "at least 2"),
        ("problem.flat=9", "two of the 10"),
        ("problem.seed=-1", "at least 0"),
        ("problem.samples=0", "at least 1"),
        ("problem.samples=[0, 5]", "at least 1"),
        ("problem.samples=[5, 2]", "[fewest, most]"),
        ("problem.samples=[1, 2, 3]", "[fewest, most]"),
        ('problem.samples="few"', "[fewest, most]"),
        ("problem={name='robust-least-squares',clients=20,features=101}", "100 rows"),
        ("cohorts=other", "'independent', 'invited' or 'answered'"),
        ("cohorts=3", "'independent', 'invited' or 'answered'"),
        ("sampling=[1.0, 2.0]", "20 clients"),
        ("sampling=[]", "20 clients"),
        (f"sampling={[0.0] * 20}", "above 0"),
        (f"sampling={[1.0] * 3 + [0.0] * 17}", "above 0 (3)"),
        (f"sampling={[-1.0] + [1.0] * 19}", "-1"),
        (f"sampling=[{'nan,' * 20}]", "nan"),
        ("sampling=biggest", "list"),
        ("memory_gb=0", "above 0"),
        ("seeds=[]", "one seed"),
        ("seeds=[0, 0]", "twice"),
        ("seeds=[0, -1]", "at least 0, got -1"),
        ("seeds=[1.5]", "0-4"),
        ("seeds=true", "0-4"),
        ("fleet={model='dropout',rate=1.5}", "between 0 and 1"),
        ("fleet={model='dropout',rate=[0.5, 0.5]}", "20 clients"),
        ("fleet={model='latency',median=0}", "above 0"),
        ("fleet={model='trace'}", "path is missing"),
        ("problem={clients=20}", "quadratic, quadratic-pl"),
        ("algorithms={}", "[algorithms."),
        ("algorithms.cdma-one=3", "algorithms.cdma-one"),
        ("algorithms.cdma-one={gamma=0.1}", "algorithms.cdma-one.eta is missing"),
        ("problem=3", "problem"),
        ("name=3", "string"),
    ],
)
def test_a_value_that_does_not_fit(refused, setting, says):
    line = refused(*set_(setting))
    assert says in line
    given_ = setting.partition("=")[2]
    if re.fullmatch(r"-?[0-9.]+", given_):
        assert f"{float(given_):g}" in line


@pytest.mark.parametrize(
    "setting", ["algorithms.cdma-one.invite=21", "algorithms.cdma-one.K=0", "algorithms.cdma-one.eta=0"]
)
def test_the_table_that_is_wrong_is_named(refused, setting):
    assert "algorithms.cdma-one" in refused(*set_(setting))


@pytest.mark.parametrize(
    "setting",
    [
        f"seeds=[{2**64}]",
        f"problem.seed={2**64}",
        f"problem.clients={2**64}",
        f"problem.dim_y={2**64}",
        f"problem.samples={2**64}",
        f"threads={2**64}",
        "threads=1000000",
        f"batch={2**64}",
        f"K={2**64}",
        f"algorithms.mine.K_0={10**30}",
        f"algorithms.cdma-one.eta=0x{'f' * 5000}",
        f"algorithms.cdma-one.invite=0x{'f' * 5000}",
        "memory_gb=1e300",
    ],
    ids=lambda setting: setting[:40],
)
def test_a_number_no_machine_can_hold(refused, setting):
    key = setting.partition("=")[0].rpartition(".")[2]
    assert key.removesuffix("s") in refused(*set_(setting))


def test_a_problem_that_is_never_finite(call):
    """Nothing can be drawn of such a run: it is refused, or it ends as one that diverged."""
    code, _, _ = call(*set_("problem.kappa=1e300"))
    assert code in (exits.BAD_INPUT, exits.ALL_DIVERGED)


TOO_BIG = [
    f"{key}={value}"
    for key, value in [
        ("problem.clients", 10**9),
        ("problem.clients", 10**12),
        ("problem.samples", 10**12),
        ("problem.dim_y", 10**5),
        ("problem.dim_x", 10**12),
        ("batch", 10**12),
        ("K", 10**12),
    ]
]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process cannot be held to a limit")
def test_a_request_that_would_exhaust_the_memory(tmp_path):
    """In a process of its own with 8 GiB, where the plans are loaded but not run."""
    experiment = write(tmp_path / "valid.json", VALID)
    script = f"""
import resource
from fedsaddle.border.build import load
from fedsaddle.errors import BadInput
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for setting in {TOO_BIG}:
    try:
        load({experiment!r}, settings=[setting])
        print(setting, "accepted")
    except BadInput:
        print(setting, "refused")
    except Exception as error:
        print(setting, type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{setting} refused" for setting in TOO_BIG]


# --- the command's own words -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "assignment",
    ["nonsense", "", "=3", ".=3", "a..b=3", "problem.=3", "name.x=3", "problem.kappa.x=3", "a\nb=3", "a\nb"],
)
def test_set_nonsense(refused, assignment):
    refused(*set_(assignment))


def test_set_takes_one_value(refused):
    """What follows a line's end would be dropped without a word."""
    refused(*set_("batch=3\nK=4"))


def test_set_a_value_nested_too_deep(refused):
    refused(*set_("K=" + "[" * 20_000))


@pytest.mark.parametrize(
    "seeds", ["a", "5-2", "", "0,0", "0-3,2", "-1", "0-", "1.5", "0,,1", "0;1", "0-100000", "0\n1"]
)
def test_seeds_nonsense(refused, seeds):
    line = refused("run", "valid.json", "--out", "new", "--seeds", seeds)
    assert "seed" in line
    assert len(line) < 300


def test_a_seed_twice_among_many_is_named_alone(refused):
    line = refused("run", "valid.json", "--out", "new", "--seeds", "0-9999,77")
    assert "77" in line
    assert len(line) < 300


@pytest.mark.parametrize("rounds", ["0", "-5"])
def test_no_rounds(refused, rounds):
    line = refused("run", "valid.json", "--out", "new", "--rounds", rounds)
    assert f"rounds must be at least 1, got {rounds}" in line


@pytest.mark.parametrize("seconds", ["nan", "-1"])
def test_checkpoint_seconds(refused, seconds):
    assert seconds in refused("run", "valid.json", "--out", "new", "--checkpoint-seconds", seconds)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rum"], "run"),
        (["run"], "experiment"),
        (["run", "valid.json", "twice"], "twice"),
        (["run", "valid.json", "--bogus"], "--bogus"),
        (["run", "valid.json", "--rounds"], "--rounds"),
        (["run", "valid.json", "--rounds", "many"], "many"),
        (["run", "valid.json", "--rounds", "1.5"], "1.5"),
    ],
)
def test_words_the_command_does_not_know(refused, words, says):
    assert says.lower() in refused(*words).lower()


def test_no_words_at_all_show_the_help_and_no_error(call):
    _, stdout, stderr = call()
    assert "Usage" in stdout
    assert stderr == ""


def test_resume_without_a_folder(refused):
    assert "--out" in refused("run", "valid.json", "--resume")


def script():
    return Path(sysconfig.get_path("scripts")) / "fedsaddle"


@pytest.mark.parametrize("words", [["run", "valid.json", "--set", "K=0"], ["run", "bad.toml"]])
def test_the_installed_command(tmp_path, words):
    write(tmp_path / "valid.json", VALID)
    (tmp_path / "bad.toml").write_text("name = 'x'\nrounds = = 3\n")
    before = contents(tmp_path)
    done = subprocess.run([script(), *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch("error: [^\n]+\n", done.stderr)
    assert contents(tmp_path) == before


# --- at once ---------------------------------------------------------------------------------------------

# What is answered without the seconds that PyTorch and Matplotlib take to be imported.
QUICK = [
    ["--help"],
    ["help"],
    ["help", "run"],
    ["--version"],
    ["list"],
    *(
        [command, "--help"]
        for command in ("run", "sweep", "report", "replay", "data", "keys", "serve", "join")
    ),
    ["local", "--help"],
    ["data"],
    ["rum"],
    ["run"],
    ["run", "quadratik"],
    ["run", "nowhere.toml"],
    ["run", "broken.toml"],
    ["run", "quadratic", "--bogus"],
    ["run", "quadratic", "--rounds", "0"],
    ["run", "quadratic", "--engine", "lop"],
    ["run", "quadratic", "--algorithm", "cdma-two"],
    ["run", "quadratic", "--seeds", "x"],
    ["run", "quadratic", "--device", "gpu"],
    *(
        ["run", "quadratic", "--set", slip]
        for slip in (
            "kind=1",
            "fleet.modle=3",
            "fleet.model=dropuot",
            "fleet.colour=3",
            "problem.kapa=3",
            "problem.kappa=high",
            "problem.noise=-1",
            "problem.name=quadratik",
            "merge.rule=mode",
            "quorum.invit=3",
            "algorithms.cdma-ada.etta=3",
            "algorithms.cdma-two.eta=3",
        )
    ),
    ["run", "--resume", "--out", "nowhere"],
    ["sweep", "quadratik"],
    ["serve", "quadratik", "--keys", "keys"],
    ["join", "quadratik", "--server", "here:1", "--key", "keys"],
    ["local", "quadratik"],
    ["join", "quadratic", "--server", "here", "--key", "keys"],
    ["serve", "quadratic", "--keys", "keys", "--listen", "9092"],
    ["local", "quadratic", "--nodes", "0"],
    ["reproduce", "figure-1", "--device", "gpu"],
    ["reproduce", "--minutes", "0"],
    ["board", "--page", "page.html"],
    ["data", "mnits"],
    ["report", "nowhere"],
    ["report", "nowhere", "--out", "page.pdf"],
    ["replay", "nowhere"],
    ["replay", "run"],
    ["reproduce", "nope"],
    ["sweep", "no-grid.toml"],
    ["predict", "nowhere", "rows.csv"],
    ["export", "nowhere", "--to", "model.pt2"],
    ["export", "nowhere", "--to", "model.pkl"],
    ["sample", "nowhere"],
]


def test_help_and_typos_wait_for_no_import(tmp_path):
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    (tmp_path / "no-grid.toml").write_text('name = "a"\nproblem.name = "quadratic"')
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.json").write_text('{"experiment": {}, "tables": {}}')
    script = f"""
import contextlib, io, sys
from fedsaddle.cli import main
for words in {QUICK}:
    sys.argv = ["fedsaddle", *words]
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            main()
    except SystemExit as end:
        typo = not ("--help" in words or "help" in words or words in (["--version"], ["list"], ["data"]))
        assert end.code in ((2,) if typo else (0, None)), (words, end.code)
    assert told.getvalue(), words
    heavy = {{"torch", "matplotlib", "numpy", "flwr", "pydantic", "scipy"}} & sys.modules.keys()
    assert not heavy, (words, heavy)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_run_does_not_wait_for_pytorchs_compiler():
    script = """
import sys
from fedsaddle.engine import machine
machine.prepare()
assert "torch._dynamo" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_listed_is_what_there_is():
    assert files.algorithms() == {name: entry.summary for name, entry in ALGORITHMS.items()}
    assert files.problems() == {name: entry.summary for name, entry in PROBLEMS.items()}
    assert files.fleets() == {name: model.__doc__.splitlines()[0] for name, model in FLEETS.items()}
    assert files.networks() == {name: build.__doc__.splitlines()[0] for name, build in NETWORKS.items()}
    assert files.datasets().keys() == DATASETS.keys()
    assert all(files.datasets().values())


def test_the_fields_that_are_read_off_the_sources_are_those_of_the_classes():
    problems, fleets, merges = (
        {name: getattr(one, "task", one) for name, one in registry.items()}
        for registry in (PROBLEMS, FLEETS, MERGES)
    )
    rules = {name: entry.rule for name, entry in ALGORITHMS.items()}
    places = [*(own[1:3] for own in slips.VARIANTS.values()), ("algorithms/__init__.py", "ALGORITHMS")]
    for (file, registry), own in zip(places, (problems, fleets, merges, rules), strict=True):
        called = files.classes(file, registry)
        assert called == {name: cls.__name__ for name, cls in own.items()}
        for name, cls in own.items():
            fields = {one.name for one in dataclasses.fields(cls) if one.init}
            assert slips.keys_of(file, called[name]) == fields
    for part in (Quorum, Checks, Faults, Steady):
        file = slips.TABLES[part.__name__.lower()][0]
        assert slips.keys_of(file, part.__name__) == {one.name for one in dataclasses.fields(part)}
    for model in (Experiment, Sweep):
        assert slips.keys_of("border/schema.py", model.__name__) == set(model.model_fields)


def test_an_interrupt_before_main_is_there_is_quiet(tmp_path):
    script = """
import os, runpy, signal, sys
class Finder:
    def find_spec(name, path, target=None):
        if name == "fedsaddle.exits":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("fedsaddle", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("module", ["typer", "torch", "fedsaddle.engine.round"])
def test_an_interrupt_while_it_starts_is_quiet(tmp_path, module):
    """At the moment that a module is imported."""
    script = f"""
import os, signal, sys
class Finder:
    def find_spec(name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may have been ignored
from fedsaddle.cli import main
sys.argv = ["fedsaddle", "run", "quadratic", "--out", "new"]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not contents(tmp_path)


# --- closed, full, empty ---------------------------------------------------------------------------------


def test_nobody_need_listen(tmp_path):
    """With its output closed, the first file that a run opens must not take its place."""
    write(tmp_path / "valid.json", VALID)
    command = [sys.executable, "-m", "fedsaddle", "run", "valid.json", "--out"]
    for folder, closed in (("open", ""), ("closed", ">&- 2>&- <&-")):
        words = ["sh", "-c", f'"$@" {closed}', "sh", *command, folder]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
    for name in ("rounds.csv", "traffic.csv", "events.csv", "final/mine.safetensors"):
        assert (tmp_path / "open" / name).read_bytes() == (tmp_path / "closed" / name).read_bytes()


def test_a_reader_may_go_away():
    """As in `fedsaddle list | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "fedsaddle", "list"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_when_the_report_is_written(call, tmp_path, monkeypatch, error):
    """No other input would do: it is the machine that failed. With room, a resume writes the report."""

    def full(path, data):
        raise OSError(error, os.strerror(error), str(path))

    with monkeypatch.context() as patched:
        patched.setattr("fedsaddle.report.write_atomically", full)
        code, _, stderr = call("run", "valid.json", "--out", "new", "--quiet")
    assert code == 1
    assert stderr == f"error: {os.strerror(error)} (new/report.html); a run that was saved can be resumed\n"
    assert call("run", "--out", "new", "--resume", "--quiet") == (0, "", "")
    assert (tmp_path / "new" / "report.html").is_file()


def test_a_run_in_which_nothing_was_learnt_says_so(call):
    """One algorithm asks for more answers than ever come; the other for fewer."""
    words = ["--set", "fleet={model='dropout',rate=1.0}", "--out"]
    code, stdout, stderr = call("run", "valid.json", *words, "none")
    assert code == exits.NOTHING_LEARNT == 4
    assert "nothing was learnt by cdma-one, mine: every round was abandoned" in stderr
    assert re.search(r"cdma-one .* 2 *\n", stdout)  # abandoned rounds, as the table has them
    code, _, stderr = call("run", "valid.json", "--set", "quorum.minimum=1", "--out", "some", "--quiet")
    assert (code, stderr) == (0, "")


def test_a_run_of_which_one_algorithm_has_learnt_nothing(call, tmp_path):
    (tmp_path / "trace.csv").write_text("client,start,end\n" + "".join(f"{i},0,9e9\n" for i in range(5)))
    few = {"quorum": {"invite": 20, "minimum": 6}, "algorithms": deepcopy(VALID["algorithms"])}
    few["algorithms"]["mine"]["invite"] = 5
    write(tmp_path / "few.json", VALID | TRACE | few | {"quorum": {"invite": 20, "minimum": 1}})
    code, _, stderr = call("run", "few.json", "--out", "new", "--quiet")
    assert (code, stderr) == (0, "")
    write(tmp_path / "few.json", VALID | TRACE | {"quorum": {"invite": 20, "minimum": 6}})
    code, _, stderr = call("run", "few.json", "--algorithm", "cdma-one", "--out", "newer", "--quiet")
    assert code == exits.NOTHING_LEARNT
    assert "nothing was learnt by cdma-one: " in stderr


def test_the_table_says_whose_seconds_they_are(call, tmp_path):
    fleet = "fleet={model='latency',median=10.0}"
    code, stdout, _ = call("run", "valid.json", "--set", fleet, "--out", "new")
    assert code == 0
    assert re.search(r"floats +seconds +seconds *\n +algorithm .* up +simulated +spent +abandoned", stdout)
    row = [line.split() for line in stdout.splitlines() if line.strip().startswith("cdma-one ")][-1]
    (entry,) = json.loads((tmp_path / "new" / "environment.json").read_text())
    assert float(row[-2]) == pytest.approx(entry["seconds"]["cdma-one"], rel=0.01)
    assert float(row[-3]) > 10  # two rounds of two phases
    spent = sum(entry["seconds"].values())
    assert f"spent    {spent:.3g} s on this machine's clock" in stdout


# --- folders ---------------------------------------------------------------------------------------------


def test_a_folder_that_holds_a_run(call, refused):
    assert call("run", "valid.json", "--out", "new", "--quiet") == (0, "", "")
    line = refused("run", "valid.json", "--out", "new")
    assert "new" in line
    assert "--resume" in line


def test_a_copy_of_a_run_folder(call, refused, tmp_path):
    """A lock is not copied with it, and a refusal makes none."""
    call("run", "valid.json", "--out", "new", "--quiet")
    shutil.copytree("new", "copy", ignore=shutil.ignore_patterns(".lock"))
    assert "--resume" in refused("run", "valid.json", "--out", "copy")


@pytest.mark.parametrize("file", ["rounds.csv", "traffic.csv", "events.csv"])
def test_a_folder_that_holds_somebody_elses_table(refused, tmp_path, file):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / file).write_text("mine")
    assert file in refused("run", "valid.json", "--out", "new")


@pytest.mark.parametrize("out", ["file", "file/new"])
def test_a_folder_that_is_a_file(refused, tmp_path, out):
    (tmp_path / "file").write_text("mine")
    line = refused("run", "valid.json", "--out", out)
    assert out in line
    assert "--out" in line


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(refused, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "closed" in refused("run", "valid.json", "--out", "closed/new")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_a_folder_that_even_root_cannot_write(refused):
    assert "/proc/new" in refused("run", "valid.json", "--out", "/proc/new")


# --- experiment files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("bad.toml", b"name = 'x'\nrounds = = 3\n", "line 2"),
        ("bad.toml", b"name = 'x'\n[problem]\n[problem]\n", "line 3"),
        ("bad.toml", b"\xff\xfe", "bad.toml"),
        ("bad.toml", b"", "missing"),
        ("bad.toml", b"a = " + b"[" * 100_000, "bad.toml"),
        ("bad.json", b"", "line 1"),
        ("bad.json", b'{"name": "x",\n}', "line 2"),
        ("bad.json", b"[1, 2]", "list"),
        ("bad.json", b"[" * 100_000, "bad.json"),
        ("bad.json", b'{"rounds": ' + b"1" * 5000 + b"}", "bad.json"),
    ],
    ids=lambda value: str(value[:30]),
)
def test_a_file_that_is_no_experiment(refused, tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    assert says in refused("run", name, "--out", "new")


@pytest.mark.parametrize(
    ("key", "typo"), [("evaluate_every", "evaluate_evry"), ("rounds", "ruonds"), ("eta", "etta")]
)
def test_a_slip_in_a_toml_file(refused, tmp_path, key, typo):
    """Also where the right key must be there: what was typed tells more than what is missing."""
    text = """
name = "small"
rounds = 2
evaluate_every = 1
problem = {name = "quadratic", clients = 20}
algorithms.cdma-one = {invite = 4, eta = 0.01, gamma = 0.01}
"""
    (tmp_path / "good.toml").write_text(text)
    assert accepted("good.toml")
    (tmp_path / "bad.toml").write_text(text.replace(f"{key} =", f"{typo} ="))
    assert f"'{typo}'; did you mean '{key}'?" in refused("run", "bad.toml", "--out", "new")


@pytest.mark.parametrize("name", ["nowhere.toml", "folder.toml", "no\nwhere.toml", "x" * 300, "x\n"])
def test_a_file_that_cannot_be_read(refused, tmp_path, name):
    (tmp_path / "folder.toml").mkdir()
    assert name.split("\n")[0][:40] in refused("run", name, "--out", "new")


@pytest.mark.parametrize(
    "change",
    [
        {"problem": {"name": "a\nb"}},
        {"fleet": {"model": "\x1b[31mred"}},
        {"algorithms": {"mine": {"algorithm": "a\u2028b"}}},
        {"a\nb": 3},
    ],
    ids=ascii,
)
def test_names_from_a_file_do_not_break_the_line(refused, tmp_path, change):
    write(tmp_path / "bad.json", VALID | change)
    assert "known: " in refused("run", "bad.json", "--out", "new")


# --- traces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "cannot read"),
        (b"", "client,start,end"),
        (b"client,begin,end\n0,0,1\n", "client,start,end"),
        (b"0,0,1\n", "client,start,end"),
        (b"client,start,end\n", "no client"),
        (b"client,start,end\n0,0,5\nx,0,1\n", "line 3"),
        (b"client,start,end\n0.5,0,1\n", "line 2"),
        (b"client,start,end\n0,zero,1\n", "zero"),
        (b"client,start,end\n0,5,1\n", "start < end"),
        (b"client,start,end\n0,1,1\n", "start < end"),
        (b"client,start,end\n0,-1,1\n", "0 <= start"),
        (b"client,start,end\n0,0,inf\n", "inf"),
        (b"client,start,end\n0,nan,1\n", "nan"),
        (b"client,start,end\n0,1\n", "line 2"),
        (b"client,start,end\n0,0,1,2\n", "line 2"),
        (b"client,start,end\n-1,0,1\n", "-1"),
        (b"client,start,end\n20,0,1\n", "not among the 20 clients"),
        (b"client,start,end\n" + b"9" * 4000 + b",0,1\n", "not among the 20 clients"),
        (b"client,start,end\n0,\xff,1\n", "text"),
        (b'client,start,end\n"0\n1",0,1\n', "line 2"),
        ("client,start,end\n0,\u2028,1\n".encode(), "line 2"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_malformed_trace(refused, tmp_path, data, says):
    if data is not None:
        (tmp_path / "trace.csv").write_bytes(data)
    write(tmp_path / "bad.json", VALID | TRACE)
    line = refused("run", "bad.json", "--out", "new")
    assert "trace.csv" in line
    assert says in line


@pytest.mark.parametrize("path", ["", "a\0b", "a\ud800b", "a\nb", "x" * 300], ids=ascii)
def test_a_trace_at_an_impossible_place(refused, tmp_path, path):
    write(tmp_path / "bad.json", VALID | {"fleet": {"model": "trace", "path": path}})
    assert "trace" in refused("run", "bad.json", "--out", "new")


# --- a run's own experiment.json -------------------------------------------------------------------------


def test_the_experiment_of_a_run_can_be_run_again(call, tmp_path, monkeypatch):
    """From another folder, and although its trace was named by where the first experiment lay."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "trace.csv").write_text("client,start,end\n" + "".join(f"{i},{i},50\n" for i in range(20)))
    write(home / "first.json", VALID | TRACE | {"seeds": "3,5", "cohorts": "invited", "sampling": "size"})
    assert call("run", "home/first.json", "--out", "home/first", "--quiet", "--rounds", "3") == (0, "", "")
    monkeypatch.chdir(home)
    assert call("run", "first/experiment.json", "--out", "second", "--quiet") == (0, "", "")
    for name in ("rounds.csv", "traffic.csv", "events.csv", "experiment.json", "final/mine.safetensors"):
        assert (home / "first" / name).read_bytes() == (home / "second" / name).read_bytes()
    assert len((home / "first" / "rounds.csv").read_text().splitlines()) == 1 + 2 * 2 * 4


# --- anything at all -------------------------------------------------------------------------------------

COMMON = settings(deadline=None, max_examples=100, derandomize=True, database=None)
# No count between these: it would be accepted, and then fill the memory.
INTEGERS = st.integers(-3, 30) | st.sampled_from([2**63, 2**64, -(2**64), 10**400])
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from([*VALID, "model", "name", "path", "cdma-one", "algorithm", "eta"]) | st.text(
    max_size=5
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("border")


def accepted(experiment, **options):
    """Whether an experiment is accepted. All a refusal may be is BadInput with one printable line."""
    try:
        plan = load(str(experiment), **options)
    except BadInput as error:
        line = str(error)
    else:
        assert isinstance(plan, Plan)
        return True
    assert line
    assert line.isprintable()
    return False


@COMMON
@given(tables=JSON | st.dictionaries(KEYS, JSON) | st.fixed_dictionaries(dict.fromkeys(VALID, JSON)))
def test_garbage_for_an_experiment(folder, tables):
    accepted(write(folder / "garbage.json", tables))


def places(tables, at=()):
    for key, value in tables.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from places(value, (*at, key))


@COMMON
@given(data=st.data())
def test_a_valid_experiment_with_something_changed(folder, data):
    tables = deepcopy(VALID)
    for _ in range(data.draw(st.integers(1, 3), label="how many changes")):
        *path, key = data.draw(st.sampled_from(list(places(tables)) or [("K",)]), label="where")
        table = tables
        for part in path:
            table = table[part]
        change = data.draw(st.sampled_from(["delete", "rename", "replace"]), label="what")
        value = table.pop(key, None)
        if change == "rename":
            table[key + data.draw(st.sampled_from(["s", "_", "\n"]))] = value
        elif change == "replace":
            table[key] = data.draw(JSON, label="by")
    accepted(write(folder / "changed.json", tables))


@COMMON
@given(text=st.text() | st.text(alphabet="[]{}=.,\"'#\n\\ abK019-_:\r\t", max_size=40))
def test_any_text_as_toml(folder, text):
    (folder / "text.toml").write_text(text, encoding="utf-8", newline="")
    assert not accepted(folder / "text.toml")


@COMMON
@given(
    key=st.sampled_from([".".join(path) for path in places(VALID)]) | st.text(max_size=8),
    value=st.text(alphabet="[]{}=.,\"'# \n\\tfnieaK01-", max_size=8) | st.text(max_size=8),
    sign=st.sampled_from(["=", "=", "=", ""]),
)
def test_any_text_for_set(folder, key, value, sign):
    value = re.sub(r"(\d{2})\d+", r"\1", value)  # as above: small, or huge
    accepted(write(folder / "set.json", VALID), settings=[key + sign + value])


@COMMON
@given(text=st.text() | st.text(alphabet="0123456789-, a", max_size=9))
def test_any_text_for_seeds(folder, text):
    taken = accepted(write(folder / "seeds.json", VALID), seeds=text)
    assert taken <= bool(re.search(r"\d", text))


@COMMON
@given(text=st.text(max_size=20))
def test_any_text_for_names(folder, text):
    assert not accepted(text)
    experiment = write(folder / "names.json", VALID)
    assert not accepted(experiment, engine=text)
    assert not accepted(experiment, algorithms=[text])


HEADER = b"client,start,end\n"
CELLS = st.sampled_from(["0", "1", "19", "20", "-1", "2.5", "nan", "inf", "1e308", "", " 3", '"', "x", "\0"])


@COMMON
@given(
    data=st.binary()
    | st.binary().map(lambda tail: HEADER + tail)
    | st.lists(st.lists(CELLS, max_size=4).map(",".join)).map(
        lambda lines: HEADER + "\n".join(lines).encode()
    )
)
def test_any_bytes_for_a_trace(folder, data):
    (folder / "trace.csv").write_bytes(data)
    assert accepted(write(folder / "traced.json", VALID | TRACE)) <= data.startswith(HEADER)
