"""A person's own data: what a CSV or .npz file becomes, and how what cannot be used is refused."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsaddle as fs
from fedsaddle.border import build
from fedsaddle.data import partition
from fedsaddle.data.readers import LARGEST, MOST_WORDS
from fedsaddle.data.tables import load_table
from fedsaddle.errors import BadInput, Notice
from fedsaddle.problems import AUC
from fedsaddle.runs import RunFolder

ROWS = 60


def lines(rows=ROWS, shops=6):
    """Amounts, words, shops that hold the rows, and a label that the amount tells."""
    yield "amount,hour,kind,shop,outcome"
    for n in range(rows):
        fraud = n % 6 == 5
        amount, kind = n % 7 + 100 * fraud, ("card", "cash")[n % 2]
        yield f"{amount},{n % 24}.5,{kind},s{n % shops},{'fraud' if fraud else 'fine'}"


def table(tmp_path, text=None, name="mine.csv"):
    path = tmp_path / name
    path.write_text("\n".join(lines()) + "\n" if text is None else text, encoding="utf-8", newline="")
    return str(path)


MINE = {"label": "outcome", "client": "shop"}
DIALS = {"positive": "fraud", "partition": "column", "network": "logistic", **MINE}


def npz(tmp_path, name="mine.npz", **arrays):
    numpy.savez(tmp_path / name, **arrays)
    return str(tmp_path / name)


# --- what a file becomes ---------------------------------------------------------------------------------


def test_a_csv_file_becomes_a_dataset(tmp_path):
    data = load_table(table(tmp_path), **MINE)
    assert data.classes == ("fine", "fraud")
    assert (len(data.labels), len(data.test_labels)) == (48, 12)
    assert int((data.test_labels == 1).sum()) == 2  # a fifth of each class
    assert data.inputs.shape == (48, 4)  # two numbers, two words
    torch.testing.assert_close(data.inputs[:, :2].mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(data.inputs[:, :2].std(0, correction=0), torch.ones(2), atol=1e-6, rtol=0)
    assert {tuple(row) for row in data.inputs[:, 2:].tolist()} == {(0.0, 1.0), (1.0, 0.0)}
    assert data.owners.unique().tolist() == list(range(6))


def test_the_shops_are_the_clients(tmp_path):
    problem = AUC(dataset=table(tmp_path), **DIALS)
    assert len(problem.federation) == 6
    assert int(problem.federation.sizes.sum()) == 48
    assert problem.p == pytest.approx(8 / 48)


def test_another_partition_leaves_the_shops_aside(tmp_path):
    problem = AUC(dataset=table(tmp_path), **DIALS | {"partition": "iid", "clients": 4})
    assert len(problem.federation) == 4
    assert problem.data.inputs.shape == (48, 4)


def test_the_same_seed_draws_the_same_test_rows(tmp_path):
    path = table(tmp_path)
    first, again, other = (load_table(path, **MINE, seed=seed).test_inputs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("amount", '"amount"').replace("card", '"card"'),
        lambda text: text.replace(",", " , "),
        lambda text: text.rstrip("\n"),
    ],
    ids=["byte order mark", "CRLF", "blank lines", "quotes", "spaces", "no last newline"],
)
def test_dialects_that_mean_the_same(tmp_path, change):
    text = "\n".join(lines()) + "\n"
    plain, other = (
        load_table(table(tmp_path, text), **MINE),
        load_table(table(tmp_path, change(text), "o.csv"), **MINE),
    )
    assert torch.equal(plain.inputs, other.inputs)
    assert plain.classes == other.classes
    assert plain.sha256 != other.sha256 or change(text) == text


@pytest.mark.parametrize(
    ("words", "classes"),
    [
        ("1 0 10 9", ("0", "1", "9", "10")),
        ("1.0 0.0 1 0", ("0", "1")),
        ("007 7 8 9", ("007", "7", "8", "9")),
        ("yes no yes no", ("no", "yes")),
        ("-1 1 -1 1", ("-1", "1")),
    ],
)
def test_classes_are_numbers_where_all_are(tmp_path, words, classes):
    text = "x,label\n" + "".join(f"{n},{word}\n" for n, word in enumerate(words.split() * 5))
    assert load_table(table(tmp_path, text)).classes == classes


def test_a_column_that_does_not_vary_is_zero(tmp_path):
    text = "a,b,label\n" + "".join(f"3.3,{n}e8,{n % 2}\n" for n in range(20))
    data = load_table(table(tmp_path, text))
    assert not data.inputs[:, 0].any()
    assert torch.isfinite(data.inputs).all()


def test_test_rows_may_come_from_a_second_file(tmp_path):
    """Its columns may be in another order, and a word that is only there is no feature."""
    train = "a,kind,label\n" + "".join(f"{n},{'xy'[n % 2]},{n % 2}\n" for n in range(10))
    test = "label,kind,a\n0,x,4.5\n1,z,9\n"
    data = load_table(table(tmp_path, train), table(tmp_path, test, "test.csv"))
    assert len(data.labels) == 10
    assert data.test_labels.tolist() == [0, 1]
    assert data.test_inputs[:, 1:].tolist() == [[1, 0], [0, 0]]
    assert float(data.test_inputs[0, 0]) == pytest.approx(0)
    assert len(data.sha256) == 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=60),
    st.floats(0.05, 0.95),
    st.integers(0, 99),
)
def test_held_out_rows_are_a_share_of_each_class_and_no_clients_last(rows, share, seed):
    labels, owners = torch.tensor(rows).T
    owners = owners.unique(return_inverse=True)[1]
    plain = partition.held_out(labels, share, seed)
    for label in labels.unique():
        held, count = int(plain[labels == label].sum()), int((labels == label).sum())
        assert held == min(max(1, round(share * count)), count - 1)
    out = partition.held_out(labels, share, seed, owners)
    assert set(owners[~out].tolist()) == set(owners.tolist())
    assert out.sum() <= plain.sum()


def test_an_experiment_over_a_table_learns(tmp_path):
    problem = AUC(dataset=table(tmp_path), **DIALS)
    outcome = fs.simulate(problem, fs.CDMAONE(0.5, 0.5, K=5), rounds=20, quorum=fs.Quorum(invite=4))
    assert outcome.last("test_auc")[0] > 0.95


def test_a_test_file_that_is_the_training_file_is_refused(tmp_path):
    path = table(tmp_path)
    for test in (path, table(tmp_path, name="copy.csv")):
        with pytest.raises(BadInput, match="the test rows are the training rows"):
            AUC(dataset=path, test=test, **DIALS)
    AUC(dataset=path, test=table(tmp_path, "\n".join(lines(rows=54)), "test.csv"), **DIALS)


def test_a_column_that_is_left_aside_is_noted(tmp_path):
    path = table(tmp_path)
    assert AUC(dataset=path, **DIALS).notes == []
    (note,) = AUC(dataset=path, **DIALS | {"partition": "iid", "clients": 5}).notes
    assert note.startswith(f"the column 'shop' of {path} says who holds a row, and is left aside")
    problem = AUC(dataset=path, **DIALS | {"partition": "iid", "clients": 8})
    with pytest.warns(UserWarning, match="problem: the column 'shop'"):
        fs.simulate(problem, fs.CDMANC(0.1, 0.1, K=1), rounds=1)


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"clients": 7}, "clients = 7 has no effect: of partition column there are as many"),
        ({"test": "test.csv", "test_share": 0.3}, "test_share = 0.3 has no effect: the test rows are given"),
        ({"test": "test.csv", "seed": 3}, "seed = 3 has no effect"),
    ],
    ids=str,
)
def test_a_dial_that_the_table_makes_idle_is_noted(tmp_path, dials, says):
    test = table(tmp_path, "\n".join(lines(rows=54)), "test.csv")
    dials = dials | ({"test": test} if "test" in dials else {})
    (note,) = AUC(dataset=table(tmp_path), **DIALS | dials).notes
    assert note.startswith(says)


# --- npz -------------------------------------------------------------------------------------------------


def test_an_npz_file_of_a_table(tmp_path):
    features = numpy.arange(60.0).reshape(20, 3)
    label, client = numpy.array(["a", "b"] * 10), numpy.arange(20) % 4
    problem = AUC(
        dataset=npz(tmp_path, features=features, label=label, client=client),
        positive="b",
        partition="column",
    )
    assert len(problem.federation) == 4
    assert problem.data.inputs.dtype == torch.float32
    assert problem.data.inputs.shape == (16, 3)


@pytest.mark.parametrize("shape", [(1, 28, 28), (28, 28)])
def test_an_npz_file_of_images(tmp_path, shape):
    """Bytes stay bytes, and LeNet takes them."""
    images = numpy.random.default_rng(0).integers(0, 256, (20, *shape), dtype=numpy.uint8)
    label = numpy.arange(20) % 2 == 1
    path = npz(tmp_path, features=images, label=label, test_features=images[:4], test_label=label[:4])
    problem = AUC(dataset=path, positive=1, clients=4, network="lenet5")
    assert problem.data.inputs.dtype == torch.uint8
    assert problem.data.inputs.shape == (20, 1, 28, 28)
    assert problem.data.test_inputs.numpy().tobytes() == images[:4].tobytes()
    assert 0 <= problem.evaluate(problem.init(0))["test_auc"] <= 1


def test_images_in_floats_that_nobody_has_scaled_are_refused(tmp_path):
    pixels = numpy.random.default_rng(0).integers(0, 256, (20, 4, 4)).astype(numpy.float32)
    label = numpy.arange(20) % 2
    with pytest.raises(BadInput, match=r"these go up to 255: save them as uint8, .*features / 127\.5 - 1"):
        AUC(dataset=npz(tmp_path, features=pixels, label=label), positive=1, clients=4)
    AUC(dataset=npz(tmp_path, features=pixels / 127.5 - 1, label=label), positive=1, clients=4)
    AUC(dataset=npz(tmp_path, features=pixels.astype(numpy.uint8), label=label), positive=1, clients=4)


def good():
    return {"features": numpy.arange(20.0).reshape(10, 2), "label": numpy.arange(10) % 2}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"features": numpy.array([{}] * 10)}, "without objects"),
        ({"label": numpy.array([None] * 10)}, "without objects"),
        ({"features": numpy.zeros(10)}, r"expected \(row, feature\)"),
        ({"features": numpy.zeros((10, 0))}, r"expected \(row, feature\)"),
        ({"features": numpy.zeros((10, 2), complex)}, "expected numbers"),
        ({"features": numpy.array([["a", "b"]] * 10)}, "expected numbers"),
        ({"features": numpy.zeros((10, 4, 4), int)}, "expected uint8 or floats"),
        ({"features": numpy.array([[1, 2]] * 9 + [[1, numpy.nan]])}, "row 9"),
        ({"features": numpy.array([[1, 2]] * 9 + [[1, numpy.inf]])}, "row 9"),
        ({"label": numpy.arange(9)}, "each of the 10 rows"),
        ({"label": numpy.arange(10) / 3}, "whole numbers or text"),
        ({"label": numpy.array(["a"] * 9 + [""])}, "row 9"),
        ({"label": None}, "'label' is missing"),
        ({"features": None}, "'features' is missing"),
        ({"test_features": numpy.zeros((3, 2))}, "'test_label' is missing"),
        ({"test_features": numpy.zeros((3, 3)), "test_label": numpy.arange(3)}, r"rows of \(2,\)"),
        (
            {
                "features": numpy.zeros((10, 4, 4), numpy.uint8),
                "test_features": numpy.zeros((3, 4, 4)),
                "test_label": numpy.arange(3),
            },
            "in uint8 as those to learn from",
        ),
        ({"client": numpy.zeros((10, 2), int)}, "each of the 10 rows"),
    ],
    ids=str,
)
def test_a_bad_npz_file_is_refused(tmp_path, change, says):
    arrays = {name: array for name, array in (good() | change).items() if array is not None}
    with pytest.raises(BadInput, match=says) as refused:
        AUC(dataset=npz(tmp_path, **arrays), positive=1, clients=2)
    assert "mine.npz" in str(refused.value)


def test_nothing_in_an_npz_file_is_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = npz(tmp_path, **good() | {"label": numpy.array([Trap()] * 10)})
    with pytest.raises(BadInput, match="without objects"):
        load_table(path)
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(BadInput, match="cannot be read"):
        load_table(str(tmp_path / "raw.npz"))
    assert not (tmp_path / "sprung").exists()


def test_an_npz_file_that_would_not_fit_is_refused_unread(tmp_path):
    """A header may promise anything; and a thousand zeros are one byte in a zip file."""
    header = io.BytesIO()
    numpy.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (10**15, 2)}
    )
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("features.npy", header.getvalue())
    with pytest.raises(BadInput, match="cannot be read"):
        load_table(str(tmp_path / "lie.npz"))
    plain = (tmp_path / "lie.npz").read_bytes()
    size = len(header.getvalue()).to_bytes(4, "little")
    (tmp_path / "huge.npz").write_bytes(plain.replace(size, (0xFFFFFFF0).to_bytes(4, "little")))
    with pytest.raises(BadInput):
        load_table(str(tmp_path / "huge.npz"))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_to_an_npz_file_ends_in_one_line(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    damaged = bytearray(Path(npz(folder, "whole.npz", **good())).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (folder / "damaged.npz").write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    one_line(folder / "damaged.npz")


# --- what is refused -------------------------------------------------------------------------------------


def one_line(path, **dials):
    """A table is taken or refused, and all a refusal may be is BadInput with one printable line."""
    try:
        AUC(dataset=str(path), positive=1, clients=2, **dials)
    except BadInput as error:
        line = str(error)
    else:
        return
    assert line.isprintable()


BAD = {
    "empty": ("", "is empty"),
    "only blank lines": ("\n\n", "is empty"),
    "header only": ("a,label\n", "no rows"),
    "one class": ("a,label\n1,1\n2,1\n3,1\n", "other classes"),
    "one positive": ("a,label\n1,1\n2,0\n3,0\n", "the test rows must hold '1'"),
    "no such class": (
        "a,label\n1,2\n2,0\n3,0\n",
        "positive must be one of the classes, got '1'; known: 0, 2",
    ),
    "duplicate columns": ("a,a,label\n1,2,0\n", "2 columns are called 'a'"),
    "nameless column": (",a,label\n0,1,0\n", "column 1 has no name"),
    "no label": ("a,lable\n1,0\n", "did you mean 'lable'"),
    "no features": ("label,client\n1,0\n0,0\n", "has no features"),
    "semicolons": ("a;b;label\n1;2;0\n", "separated by semicolons"),
    "tabs": ("a\tb\tlabel\n1\t2\t0\n", "separated by tabs"),
    "ragged": ("a,label\n1,0\n2\n", "line 3: 1 values for 2 columns"),
    "missing": ("a,label\n1,0\n,1\n", "column 'a', line 3: the value is missing"),
    "missing first": ("a,label\n?,0\n1,1\n", "column 'a', line 2: the value is missing"),
    "NaN": ("a,label\n1,0\nNaN,1\n", "line 3: the value is missing"),
    "missing word": ("a,label\nx,0\nN/A,1\n", "line 3: the value is missing"),
    "missing label": ("a,label\n1,0\n2,\n", "column 'label', line 3: the value is missing"),
    "infinite": ("a,label\n1,0\n-inf,1\n", "line 3: expected a number below"),
    "too large": ("a,label\n1,0\n1e300,1\n", "line 3: expected a number below"),
    "a word among numbers": ("a,label\n1,0\n\n2x,1\n", "line 4: expected a number as in the lines before"),
    "a number among words": ("a,label\nx,0\n2,1\n", "line 3: expected a word"),
    "quote left open": ('a,label\n1,0\n"2,1\n', "line"),
    "quote in the middle": ('a,label\n"1"2,0\n', "line 2"),
    "words without end": ("a,label\n" + "".join(f"w{n},{n % 2}\n" for n in range(200)), "100 different"),
    "a huge field": ("a,label\n1,0\n" + "9" * 200_000 + ",1\n", "line 3"),
    "a measurement for a label": ("a,label\n" + "".join(f"1,{n}\n" for n in range(1500)), "names a class"),
    "fewer rows than clients": ("a,label\n1,0\n1,1\n1,0\n1,1\n", "clients must be at most"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_csv_file_is_refused_with_what_to_do(tmp_path, case):
    text, says = BAD[case]
    path = table(tmp_path, text)
    with pytest.raises(BadInput) as refused:
        AUC(dataset=path, positive=1, clients=10)
    line = str(refused.value)
    assert says in line
    assert line.isprintable()
    assert "mine.csv" in line or case in ("no such class", "fewer rows than clients")


@pytest.mark.parametrize("data", [b"a,label\n\xff,0\n", b"\xff\xfea\0,\0", b"\x89PNG\r\n\x1a\n" + bytes(50)])
def test_what_is_no_text_is_refused(tmp_path, data):
    (tmp_path / "mine.csv").write_bytes(data)
    with pytest.raises(BadInput, match=r"mine\.csv"):
        load_table(str(tmp_path / "mine.csv"))


@pytest.mark.parametrize(
    "path", ["nowhere.csv", ".csv/x.csv", "a\0b.csv", "a\ud800b.npz", "x" * 300 + ".csv"]
)
def test_a_path_without_a_file_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="cannot read the table"):
        load_table(path)


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"client": "chop"}, "no column 'chop'"),
        ({"client": "outcome"}, "two columns"),
        ({"positive": None}, "positive is missing, .* known: fine, fraud"),
        ({"positive": "Fraud"}, "got 'Fraud'; known: fine, fraud"),
        ({"network": "lenet5"}, "try mlp or logistic"),
        ({"test_share": 0.0}, "test_share"),
        ({"test": "test.npz"}, r"must be a \.csv file"),
        ({"test": "test.csv"}, "cannot read"),
        ({"sha256": "0" * 64}, "has changed"),
        ({"dataset": "digits"}, "label = 'outcome' has no effect: it goes with a .csv or .npz file"),
        ({"dataset": "digits", "label": "label", "client": "client"}, "digits has no column"),
        ({"partition": "label", "client": "chop"}, "no column 'chop'"),
        ({"test_sha256": "0" * 64}, "give test too"),
        ({"dataset": "mine.parquet"}, "or give the path of a .csv or .npz file"),
    ],
    ids=str,
)
def test_dials_that_do_not_fit_the_table_are_refused(tmp_path, dials, says):
    dials = {"dataset": table(tmp_path), **DIALS} | dials
    if dials["dataset"] == "digits":
        dials["positive"] = 0
    with pytest.raises(BadInput, match=says):
        AUC(**dials)


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("a,label\n1,0\n", "lacks the column 'kind'"),
        ("a,kind,b,label\n1,x,1,0\n", "has another column 'b'"),
        ("a,kind,label\nx,x,0\n", "'a': expected numbers"),
        ("a,kind,label\n1,1,0\n", "'kind': expected words"),
        ("a,kind,label\n1,x,0\n", "the test rows must hold '1'"),
    ],
)
def test_a_second_file_with_other_columns_is_refused(tmp_path, test, says):
    train = table(tmp_path, "a,kind,label\n" + "".join(f"{n},{'xy'[n % 2]},{n % 2}\n" for n in range(10)))
    with pytest.raises(BadInput, match=says):
        AUC(dataset=train, test=table(tmp_path, test, "test.csv"), positive=1, clients=2)


CELLS = st.sampled_from(
    ["0", "1", "2.5", "-3", "x", "y", "", "nan", "inf", "1e999", str(LARGEST), '"', '"x"', "\0", " ", "é"]
)


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=60)
    | st.binary(max_size=60).map(lambda tail: b"a,b,label\n" + tail)
    | st.lists(st.lists(CELLS, min_size=2, max_size=4).map(",".join), max_size=12).map(
        lambda rows: ("a,b,label\n" + "\n".join(rows)).encode()
    )
)
def test_any_bytes_for_a_csv_file(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(data)
    one_line(path, network="logistic")


def test_as_many_words_as_may_be(tmp_path):
    text = "a,label\n" + "".join(f"w{n % MOST_WORDS},{n % 2}\n" for n in range(2 * MOST_WORDS))
    assert load_table(table(tmp_path, text)).inputs.shape[1] == MOST_WORDS


# --- in an experiment ------------------------------------------------------------------------------------


def experiment(tmp_path, **problem):
    tables = {
        "name": "mine",
        "rounds": 2,
        "seeds": [0],
        "problem": {"name": "auc", "dataset": "mine.csv", **DIALS, **problem},
        "algorithms": {"cdma-one": {"invite": 2, "eta": 0.1, "gamma": 0.1}},
    }
    (tmp_path / "mine.json").write_text(json.dumps(tables))
    return str(tmp_path / "mine.json")


def test_a_table_is_seen_from_its_experiment(tmp_path):
    path = table(tmp_path)
    plan = build.load(experiment(tmp_path))
    assert plan.resolved["problem"]["dataset"] == path
    assert len(plan.resolved["problem"]["sha256"]) == 64
    assert plan.resolved["problem"]["test"] == plan.resolved["problem"]["test_sha256"] == ""


def test_a_table_that_is_set_is_seen_from_here(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    path = table(here, name="other.csv")
    plan = build.load(experiment(tmp_path), settings=["problem.dataset=other.csv"])
    assert plan.resolved["problem"]["dataset"] == path


@pytest.mark.parametrize("value", ["1.5", "[1]", "{}"])
def test_a_positive_that_is_no_label(tmp_path, value):
    table(tmp_path)
    with pytest.raises(BadInput, match=r"problem\.positive: should be one of the labels, got"):
        build.load(experiment(tmp_path), settings=[f"problem.positive={value}"])


@pytest.mark.parametrize(("words", "found"), [(("true", "false"), 1), (("FALSE", "TRUE"), 1), ((0, 1), 1)])
def test_a_label_that_is_true_or_false(tmp_path, words, found):
    rows = "\n".join(f"{number},{words[number % 2]}" for number in range(40))
    (tmp_path / "flags.csv").write_text(f"a,label\n{rows}\n")
    problem = fs.AUC(dataset=str(tmp_path / "flags.csv"), clients=4, partition="iid", positive=True)
    assert problem.target == found


@pytest.mark.parametrize("cell", ["1_000", "\u0661"])
def test_what_only_python_takes_for_a_number_is_refused(tmp_path, cell):
    (tmp_path / "odd.csv").write_text(f"a,label\n1,0\n2,1\n{cell},0\n")
    with pytest.raises(BadInput, match="line 4: expected a number"):
        fs.AUC(dataset=str(tmp_path / "odd.csv"), positive=1)


@pytest.mark.parametrize(
    "cell",
    ["1,5", "-1,234.50", "1,234,567", "$12.50", "-$1,200", "€ 3", "1.234,56 €", "$.99", "12%", "-0.5 %"],
)
def test_a_comma_or_a_sign_in_a_number_is_suspected(tmp_path, cell):
    (tmp_path / "comma.csv").write_text(f'a,label\n"{cell}",0\n"{cell}",1\n', encoding="utf-8")
    with pytest.raises(
        BadInput, match=r"looks like a number with a (decimal comma|sign of currency or percent)"
    ):
        fs.AUC(dataset=str(tmp_path / "comma.csv"), positive=1)


@pytest.mark.parametrize("cell", ["1.2.3", "5%", "5-10%", "a,b", "2020-01-02", "$", "%", "12:30"])
def test_other_words_are_words(tmp_path, cell):
    assert columns_of(tmp_path, [cell, "x"] * 20) == {"a": (cell, "x")}


def columns_of(tmp_path, cells):
    rows = "".join(f'"{cell}",{number % 2}\n' for number, cell in enumerate(cells))
    (tmp_path / "words.csv").write_text(f"a,label\n{rows}")
    return load_table(str(tmp_path / "words.csv")).columns


def test_a_column_with_a_word_for_nearly_every_row_is_told_of(tmp_path):
    dates = [f"2020-{1 + n // 28:02}-{1 + n % 28:02}" for n in range(58)]
    with pytest.warns(Notice, match=r"column 'a' has 58 words in 60 rows: each becomes a feature; leave it"):
        columns_of(tmp_path, [*dates, *dates[:2]])
    columns_of(tmp_path, dates[:30] * 2)  # a notice would be an error
    columns_of(tmp_path, dates[:19])


def test_classes_that_differ_in_capitals_alone_are_told_of(tmp_path):
    rows = "".join(f"{n},{('yes', 'no', 'Yes')[n % 3]}\n" for n in range(60))
    path = table(tmp_path, f"a,label\n{rows}")
    with pytest.warns(Notice, match="'label' has both 'yes' and 'Yes', which are two classes"):
        assert load_table(path).classes == ("Yes", "no", "yes")


def test_no_rows_are_said_to_be_none(tmp_path):
    path = npz(tmp_path, features=numpy.zeros((0, 3)), label=numpy.zeros(0))
    with pytest.raises(BadInput, match=r"mine\.npz, features: there are no rows"):
        load_table(path)


def test_a_table_must_be_a_plain_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(BadInput, match="not a plain file"):
        fs.AUC(dataset=str(tmp_path / "pipe.csv"), positive=1)


def test_the_resolved_experiment_means_the_same_files(tmp_path):
    table(tmp_path)
    table(tmp_path, "\n".join(lines(rows=54)), "test.csv")
    plan = build.load(experiment(tmp_path, test="test.csv"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "again.json").write_text(json.dumps(plan.resolved))
    assert build.load(str(tmp_path / "elsewhere" / "again.json")).resolved == plan.resolved
    table(tmp_path, "\n".join(lines(rows=66)), "test.csv")
    with pytest.raises(BadInput, match=r"test\.csv has changed"):
        build.load(str(tmp_path / "elsewhere" / "again.json"))


def test_a_run_is_not_resumed_with_another_table(tmp_path):
    table(tmp_path)
    path = experiment(tmp_path)
    RunFolder(tmp_path / "run", build.load(path), resume=False).close()
    RunFolder(tmp_path / "run", build.load(path), resume=True).close()
    table(tmp_path, "\n".join(lines(rows=66)))
    with pytest.raises(BadInput, match="another experiment"):
        RunFolder(tmp_path / "run", build.load(path), resume=True)
