"""Slips in an experiment are answered from the sources alone, as the classes themselves would answer them."""

import contextlib
import dataclasses
import datetime
import io
import itertools
import json
import math
import subprocess
import sys
import typing

import pytest

from fedsaddle import cli, problems
from fedsaddle.algorithms import ALGORITHMS
from fedsaddle.border import files, schema, slips, unfit
from fedsaddle.border.build import load
from fedsaddle.border.fields import fields_written, value_written
from fedsaddle.checks import Checks
from fedsaddle.core import Scalar
from fedsaddle.data.datasets import DATASETS
from fedsaddle.data.readers import READERS
from fedsaddle.errors import BadInput
from fedsaddle.faults import Faults
from fedsaddle.fleet import FLEETS, FORMERLY, Quorum
from fedsaddle.merges import MERGES
from fedsaddle.networks import NETWORKS
from fedsaddle.problems.gan import DATA, PLAYERS
from fedsaddle.steady import Steady
from fedsaddle.sweep import Span, check_grid

# What somebody may write for any key.
VALUES = [
    *("abc", "", "0", True, False, 0, 1, -1, 3, 10**6, 10**10, 2**63, 10**400, -(10**400)),
    *(0.5, -0.5, 1.0, 2.5, 1e10, -1e300, math.inf, math.nan, [], [1, 2], ["a"], {}, {"a": 1}),
    *(None, datetime.date(2020, 1, 1)),
]
# Everything that a table of an experiment may become.
CLASSES = {
    **{("problem", name): entry.task for name, entry in problems.PROBLEMS.items()},
    **{("fleet", name): fleet for name, fleet in FLEETS.items()},
    **{("merge", name): rule for name, rule in MERGES.items()},
    **{("algorithm", name): entry.rule for name, entry in ALGORITHMS.items()},
    **{("part", one.__name__.lower()): one for one in (Quorum, Checks, Faults, Steady)},
}


def read_off(place, name):
    """The fields of such a class, as the sources have them."""
    if place == "part":
        return fields_written(*slips.TABLES[name])
    of_rules = (None, "algorithms/__init__.py", "ALGORITHMS", None)
    _, file, registry, _ = slips.VARIANTS.get(place, of_rules)
    return fields_written(file, files.classes(file, registry)[name])


def type_of(hint):
    """What an experiment file may hold of a type: no tensors."""
    if hint == Scalar:
        return float
    if typing.get_origin(hint) is typing.Annotated:
        first, *notes = typing.get_args(hint)
        return typing.Annotated[type_of(first), *notes]
    return hint


@pytest.mark.parametrize("which", CLASSES, ids=" ".join)
def test_types_that_are_read_off_the_sources_are_those_of_the_classes(which):
    real = typing.get_type_hints(CLASSES[which], include_extras=True)
    known = read_off(*which)
    assert known.keys() == {one.name for one in dataclasses.fields(CLASSES[which]) if one.init}
    for field in dataclasses.fields(CLASSES[which]):
        if field.init:
            default = (field.default, field.default_factory)
            assert known[field.name].needed == (default == (dataclasses.MISSING,) * 2)
            found = str(known[field.name].hint).replace("fedsaddle.border.fields.Foreign", "torch.Tensor")
            assert found == str(real[field.name]).replace("torch._tensor.Tensor", "torch.Tensor")


def test_types_of_keys_that_are_read_off_the_sources_are_those_of_the_models():
    for model in (schema.Experiment, schema.Sweep):
        real = typing.get_type_hints(model, include_extras=True)
        known = fields_written("border/schema.py", model.__name__)
        assert {key: field.hint for key, field in known.items()} == {key: real[key] for key in known}
        assert [key for key in known if known[key].needed] == [
            key for key, field in model.model_fields.items() if field.is_required()
        ]


def test_names_that_are_read_off_the_sources_are_those_that_there_are():
    assert set(files.networks()) == set(NETWORKS)
    assert set(files.classes("problems/gan.py", "PLAYERS")) == set(PLAYERS)
    assert value_written("problems/gan.py", "DATA") == DATA
    assert set(files.datasets()) == set(DATASETS)
    assert set(files.classes("data/readers.py", "READERS")) == set(READERS)
    assert value_written("fleet.py", "FORMERLY") == FORMERLY
    for name, entry in ALGORITHMS.items():
        assert files.fixed("algorithms/__init__.py", "ALGORITHMS", name) == entry.fixed


# --- the same answer, sooner --------------------------------------------------------------------------------


def answer(check, *given):
    try:
        check(*given)
    except BadInput as error:
        return str(error)
    return None


def small(place, name):
    """The tables of an experiment in which some class is made, and where its own table is."""
    tables = {
        "name": "small",
        "rounds": 2,
        "seeds": [0],
        "problem": {"name": "quadratic", "clients": 20},
        "algorithms": {"cdma-nc": {"eta": 0.1, "gamma": 0.1}},
    }
    if place == "algorithm":
        needed = [key for key, field in read_off(place, name).items() if field.needed]
        tables["algorithms"] = {name: dict.fromkeys(needed, 0.1)}
        return tables, tables["algorithms"][name]
    table = tables[name if place == "part" else place] = {}
    if place != "part":
        table[slips.VARIANTS[place][0]] = name
    return tables, table


def slowly(place, name, tables, table):
    """How a table is checked where the classes are known."""
    checked = schema.experiment_of(tables)
    if place == "algorithm":
        schema.algorithm_of(name, table, checked.K, {})
    elif place == "part":
        schema.build(CLASSES[place, name], table, name)
    elif place == "merge":
        schema.merge_of(table)
    else:
        schema.variant(place, table).build()


@pytest.fixture(scope="module")
def no_data():
    """Rows are not read: a value that is fit may need many, and what is read is not looked at here."""
    with pytest.MonkeyPatch.context() as patch:
        for one in {entry.task for entry in problems.PROBLEMS.values()}:
            made = getattr(one, "__post_init__", None)
            if made and "dataset" not in {field.name for field in dataclasses.fields(one)}:
                patch.setattr(one, "__post_init__", lambda self: schema.check(self))
        yield


@pytest.mark.parametrize("which", CLASSES, ids=" ".join)
def test_a_value_is_refused_as_its_class_refuses_it(which, no_data):
    judged = 0
    extra = {"invite": None} if which[0] == "algorithm" else {}
    bounds = fields_written(*slips.TABLES["steady"]) if which[0] == "algorithm" else {}
    for key, value in itertools.product({**read_off(*which), **bounds, **extra}, VALUES):
        tables, table = small(*which)
        table[key] = value
        soon = answer(unfit.check_fit, tables)
        if soon is not None:
            judged += 1
            assert soon == answer(slowly, *which, tables, table), (key, value)
    assert judged > 0 or not read_off(*which)


SLIPS = [
    *(
        ["run", "quadratic", "--set", slip]
        for slip in (
            "problem.kappa=abc",
            "problem.kappa=1.5",
            "problem.noise=-1",
            "problem.clients=2.5",
            "problem.samples=few",
            "rounds=0",
            "rounds=ten",
            "seeds=x",
            "batch=0",
            "cohorts=sme",
            "engine=lop",
            "sampling=sise",
            "threads=0",
            "fleet.least=2",
            "merge.most_weight=0",
            "merge.rule=trimmed-mean",
            "checks.strikes=0",
            "checks.norm=-1",
            "faults.drop=2",
            "faults.corruption=sgn",
            "steady.clip=0",
            "steady.warmup=soon",
            "algorithms.cdma-nc.eta=-1",
            "algorithms.CDMA-NC.eta=big",
            "algorithms.cdma-nc.K=0",
            "algorithms.cdma-nc.invite=0",
            "algorithms.cdma-nc.clip=0",
            "algorithms.proxskip-vip.p=0.1",
            "problem=3",
            "cdma-ada.c_et=3",
        )
    ),
    *(
        ["run", "auc-digits", "--set", slip]
        for slip in (
            "problem.dataset=mnst",
            "problem.network=mlpp",
            "problem.scoring=softmx",
            "problem.validation_share=1",
            "quorum.invite=x",
            "device=cud",
            "device=GPU",
        )
    ),
    ["run", "auc-digits", "--set", "fleet.model=dropout", "--set", "fleet.rate=3"],
    ["run", "auc-digits", "--set", "fleet.model=dropout", "--set", "fleet.rate=often"],
    ["run", "gan-digits", "--set", "problem.dataset=digit"],
    ["run", "gan-digits", "--set", "problem.network=dcgn"],
    ["run", "fair-fashion", "--set", "problem.dataset=fashion"],
    ["run", "groups-adult", "--set", "problem.dataset=adlt"],
    ["run", "groups-adult", "--set", "problem.network=mlpp"],
    ["run", "quadratic", "--rounds", "3", "--set", "rounds=4"],
    ["sweep", "auc-digits", "--halving", "1"],
    ["sweep", "auc-digits", "--budget", "0"],
    ["sweep", "auc-digits", "--set", "sweep.seed=x"],
    ["local", "quadratic", "--set", "problem.kappa=abc"],
]


def told(words):
    """What a command says."""
    said = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(said),
    ):
        patch.setattr(sys, "argv", ["fedsaddle", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
    return end.value.code, said.getvalue()


def test_a_slip_is_answered_before_the_imports_as_it_is_after_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = f"""
import contextlib, io, json, sys
from fedsaddle.cli import main
found = []
for words in {SLIPS}:
    sys.argv, said = ["fedsaddle", *words], io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        found.append((end.code, said.getvalue()))
    heavy = {{"torch", "matplotlib", "numpy", "flwr", "pydantic", "scipy"}} & sys.modules.keys()
    assert not heavy, (words, heavy)
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for words, soon in zip(SLIPS, json.loads(done.stdout), strict=True):
        assert soon[0] == 2, words
        assert tuple(soon) == told(words), words


# --- nothing is refused that would run ----------------------------------------------------------------------


def tried(experiment):
    """The tables of an experiment with every value of its sweep, each in its place."""
    tables = files.read_tables(experiment)[0]
    yield tables, False
    yield tables, True
    for name, grid in tables.get("sweep", {}).get("grid", {}).items():
        for key, choices in check_grid(name, grid, _Any()).items():
            ends = choices[:2] if isinstance(choices, Span) else choices
            for value in ends if not isinstance(choices, str) else ():
                own = {**tables["algorithms"][name], key: value}
                yield {**tables, "algorithms": {**tables["algorithms"], name: own}}, False


class _Any(dict):
    """All that a grid may name, as numbers."""

    def __contains__(self, key):
        return True

    def __getitem__(self, key):
        return dataclasses.make_dataclass("Known", ["static"])(False)


@pytest.mark.parametrize("experiment", files.names())
def test_what_ships_has_no_slips(experiment):
    for tables, swept in tried(experiment):
        slips.check_names(tables)
        unfit.check_fit(tables, swept=swept)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (["rounds=0"], {"rounds": None}),
        (["device=CPU", "engine=LOOP"], {}),
        (["cohorts=same"], {}),
        (["algorithms.CDMA-NC.eta=0.01"], {"algorithms": ["cdma-nc"]}),
        (["algorithms.cdma-one.eta=-1"], {"algorithms": ["cdma-nc"]}),
        (["quorum.invite=0", *(f"algorithms.{name}.invite=4" for name in files.algorithms())], {}),
    ],
)
def test_what_is_not_looked_at_may_be_anything(settings, wanted):
    if settings == ["rounds=0"]:  # which an option replaces
        tables = {**files.read_tables("quadratic")[0], "rounds": 0}
        files.as_asked(tables, {"rounds": 3})
        unfit.check_fit(tables)
        return
    known = files.read_tables("quadratic")[0]["algorithms"]
    settings = [
        one for one in settings if one.split(".")[0] != "algorithms" or one.split(".")[1].lower() in known
    ]
    with pytest.warns() if "cohorts=same" in settings else contextlib.nullcontext():
        plan = load("quadratic", rounds=2, settings=settings, **wanted)
    assert "CDMA-NC" not in plan.resolved["algorithms"]
    tables = files.read_tables("quadratic")[0]
    files.as_asked(tables, {"settings": settings})
    unfit.check_fit(tables, wanted.get("algorithms", ()))
