"""A person's own data as clients: fs.clients(...)."""

import csv
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import fedsaddle as fs
from fedsaddle import problem
from fedsaddle.border.identity import identity_of
from fedsaddle.core import Pair
from fedsaddle.data import arrow, columns
from fedsaddle.errors import BadInput, Notice

rng = numpy.random.default_rng(0)
X, Y = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
SITE = numpy.array(["north", "south", "harbour", "hill"])[rng.integers(0, 4, 40)]
TABLE = {"input": X, "label": Y}


def everything(clients):
    """All that is told of clients, in plain values."""
    federation = clients.federation
    rows = federation.at(torch.arange(int(federation.sizes.sum())))
    tables = {"train": rows, "own": federation.own, **clients.held}
    return (
        clients.names,
        clients.words,
        federation.sizes.tolist(),
        {
            what: {name: (str(column.dtype), column.tolist()) for name, column in sorted(table.items())}
            for what, table in tables.items()
        },
    )


class Items(Dataset):
    """Somebody's own Dataset, of dicts."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(next(iter(self.table.values())))

    def __getitem__(self, row):
        return {name: column[row] for name, column in self.table.items()}


def tried(source, **options):
    """The clients; None where no client can spare a row."""
    try:
        return fs.clients(source, **options)
    except BadInput as error:
        if "holds out none" not in str(error):
            raise
        return None


# --- the same rows, whatever way they are given ----------------------------------------------------------


@st.composite
def tables(draw):
    """Columns of all kinds, and who holds which row."""
    rows = draw(st.integers(1, 12))
    holder = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=rows, max_size=rows))
    floats = st.lists(st.floats(-1e6, 1e6, width=32), min_size=rows, max_size=rows)
    wholes = st.lists(st.integers(-(2**40), 2**40), min_size=rows, max_size=rows)
    words = st.lists(st.sampled_from(["fine", "fraud", "7"]), min_size=rows, max_size=rows)
    bytes_ = st.lists(st.integers(0, 255), min_size=rows, max_size=rows)
    return numpy.array(holder), {
        "f": numpy.array(draw(floats), dtype=numpy.float64),
        "i": numpy.array(draw(wholes), dtype=numpy.int64),
        "w": numpy.array(draw(words)),
        "p": numpy.array(draw(bytes_), dtype=numpy.uint8).repeat(4).reshape(rows, 2, 2),
        "b": numpy.array(draw(bytes_)) > 100,
    }


def ways(holder, table, folder):
    """Ways to give the same rows: what comes first, and the options."""
    names = sorted(set(holder))
    places = {name: numpy.flatnonzero(holder == name) for name in names}
    each = {name: {key: column[rows] for key, column in table.items()} for name, rows in places.items()}
    yield {**table, "holder": holder}, {"client": "holder"}
    lists = {key: column if key == "p" else column.tolist() for key, column in table.items()}
    yield {**lists, "holder": list(holder)}, {"client": "holder"}
    yield each, {}
    yield {name: Items(own) for name, own in each.items()}, {}
    yield table, {"indices": places}
    tensors = {key: column if key == "w" else torch.tensor(column) for key, column in table.items()}
    yield Items(tensors), {"indices": {name: torch.tensor(rows) for name, rows in places.items()}}
    structured = numpy.zeros(len(holder), [(k, c.dtype, c.shape[1:]) for k, c in table.items()])
    for key, column in table.items():
        structured[key] = column
    yield structured, {"indices": places}
    numpy.savez(folder / "all.npz", **table, holder=holder)
    yield str(folder / "all.npz"), {"client": "holder"}
    for key, column in table.items():
        if key != "w":
            numpy.save(folder / f"{key}.npy", column)
    mapped = {key: folder / f"{key}.npy" for key in "fipb"} | {"w": table["w"]}
    yield mapped, {"indices": places}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables(), st.sampled_from([0.0, 0.3]), st.integers(0, 3))
def test_whatever_way_the_same_rows_are_given_the_same_comes_out(drawn, share, seed):
    holder, table = drawn
    if share and round(share * len(holder)) == 0:
        share = 0.0
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for source, options in ways(holder, table, Path(folder)):
            own = {"n": sorted(set(holder))}
            made = tried(source, **options, test_share=share, seed=seed, own=own)
            found.append(everything(made) if made else None)
    assert len(found) == 9
    assert all(one == found[0] for one in found[1:])


def test_a_csv_file_gives_what_its_columns_as_arrays_give(tmp_path):
    path = tmp_path / "mine.csv"
    table = {"age": X[:, 0], "label": Y, "site": SITE, "room": Y * 5 + 7}
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(table)
        out.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
    assert everything(fs.clients(path, client="site")) == everything(fs.clients(table, client="site"))
    by_room = fs.clients(str(path), client="room")
    assert by_room.names == ("7", "12", "17")  # by their values, not as words
    assert by_room.words == {"site": ("harbour", "hill", "north", "south")}


def test_kinds_of_numbers():
    table = {
        "f64": numpy.ones(4),
        "f16": numpy.ones(4, numpy.float16),
        "i32": numpy.ones(4, numpy.int32),
        "u16": numpy.ones(4, numpy.uint16),
        "big": numpy.ones(4, ">f8"),
        "u8": numpy.ones(4, numpy.uint8),
        "bool": numpy.ones(4, bool),
    }
    kinds = {name: str(rows.dtype) for name, rows in fs.clients([table]).federation.rows.items()}
    told = ["float32", "float32", "int64", "int64", "float32", "uint8", "bool"]
    assert [kind.removeprefix("torch.") for kind in kinds.values()] == told
    double = fs.clients([table], dtype=torch.float64).federation.rows
    assert double["f16"].dtype == double["f64"].dtype == torch.float64
    assert double["i32"].dtype == torch.int64


def test_whole_numbers_of_one_client_become_floats_where_another_has_floats():
    made = fs.clients([{"a": [1, 2]}, {"a": [0.5]}], test={"a": [3]})
    assert made.federation.rows["a"].tolist() == [1.0, 2.0, 0.5]
    assert made.held["test"]["a"].dtype == torch.float32


def test_words_are_numbered_in_order_over_all_tables():
    made = fs.clients([{"w": ["b", "c"]}, {"w": ["a"]}], test={"w": ["d", "a"]})
    assert made.words == {"w": ("a", "b", "c", "d")}
    assert made.federation.rows["w"].tolist() == [1, 2, 0]
    assert made.held["test"]["w"].tolist() == [3, 0]


def test_items_of_datasets_are_named():
    pair = TensorDataset(torch.tensor(X), torch.tensor(Y))
    assert list(fs.clients([pair, Subset(pair, [3, 1])]).federation.rows) == ["0", "1"]
    named = fs.clients([pair, Subset(pair, [3, 1])], columns=("image", "label"), test=pair)
    assert named.federation.rows["label"].tolist() == [*Y, Y[3], Y[1]]
    assert list(named.held["test"]) == ["image", "label"]
    assert list(fs.clients([X, X], columns=("real",)).federation.rows) == ["real"]
    assert list(fs.clients([(X, Y)]).federation.rows) == ["0", "1"]
    assert list(fs.clients({**TABLE, "site": SITE}, client="site", columns=["label"]).federation.rows) == [
        "label"
    ]


# --- partitions, shares, own -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"partition": "label"}, {"partition": "dirichlet", "alpha": 0.5}])
def test_rows_are_divided_by_the_partitions_that_ship(options):
    made = fs.clients({**TABLE, "row": numpy.arange(40)}, count=5, **options)
    assert sorted(made.federation.rows["row"].tolist()) == list(range(40))
    assert len(made.federation) == len(made.names) == 5
    other = fs.clients({**TABLE, "class": Y, "row": numpy.arange(40)}, count=5, by="class", partition="label")
    assert other.federation.rows["class"].diff().min() >= 0


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
    st.floats(0.01, 0.5),
    st.floats(0, 0.49),
    st.integers(0, 9),
)
def test_shares_are_held_out_of_each_client_and_none_becomes_empty(sizes, share, second, seed):
    table = [{"row": list(range(100 * n, 100 * n + size))} for n, size in enumerate(sizes)]
    options = {"test_share": share, "validation_share": second, "seed": seed}
    made = tried(table, **options)
    if made is None:
        return
    parts = [made.federation.rows["row"], *(rows["row"] for rows in made.held.values())]
    assert sorted(torch.cat(parts).tolist()) == sorted(row for own in table for row in own["row"])
    test = torch.bincount(made.held["test"]["row"] // 100, minlength=len(sizes))
    wanted = share * torch.tensor(sizes)
    assert ((test - wanted).abs() <= 1).logical_or(test == torch.tensor(sizes) - 1).all()
    alone = fs.clients(table, test_share=share, seed=seed)
    assert alone.held["test"]["row"].tolist() == made.held["test"]["row"].tolist()
    assert int(made.federation.sizes.min()) >= 1


def test_another_seed_holds_out_other_rows():
    first, second = (fs.clients([{"row": range(100)}], test_share=0.3, seed=seed) for seed in (0, 1))
    assert first.held["test"]["row"].tolist() != second.held["test"]["row"].tolist()


def test_what_a_client_holds_once_comes_in_order_or_by_name():
    site = {**TABLE, "site": SITE}
    made = fs.clients(site, client="site", own={"beds": {"south": 1, "north": 2, "hill": 3, "harbour": 4}})
    assert made.names == ("harbour", "hill", "north", "south")
    assert made.federation.own["beds"].tolist() == [4, 3, 2, 1]
    assert fs.clients(site, client="site", own={"beds": [4, 3, 2, 1]}).federation.own["beds"].tolist() == [
        4,
        3,
        2,
        1,
    ]


def test_it_is_shown_in_a_line():
    made = fs.clients({**TABLE, "site": SITE}, client="site", test_share=0.25)
    assert repr(made).startswith("Clients(4 with ")
    assert repr(made).endswith("rows, 10 test: input float32, label int64)")


# --- what cannot be used ---------------------------------------------------------------------------------


class Endless(IterableDataset):
    def __iter__(self):
        yield 1


class Broken(Items):
    def __getitem__(self, row):
        raise OSError("the disk is gone")


BAD = {
    "unequal lengths": (lambda: fs.clients([{"a": [1, 2], "b": [1]}]), "client 0: column 'b' has 1 rows"),
    "a column is missing": (
        lambda: fs.clients([{"a": [1], "b": [1]}, {"a": [1]}]),
        "client 1 lacks the column 'b'",
    ),
    "a column too many": (
        lambda: fs.clients([{"a": [1]}, {"a": [1], "b": [1]}]),
        "client 1 has the column 'b'",
    ),
    "other shapes": (lambda: fs.clients([{"a": [[1, 2]]}, {"a": [1]}]), "expected rows of (2,) as client 0"),
    "other kinds": (
        lambda: fs.clients([{"a": [1]}, {"a": [True]}]),
        "expected int64 as client 0 has, got bool",
    ),
    "words and numbers": (lambda: fs.clients([{"a": [1]}, {"a": ["x"]}]), "expected numbers as client 0 has"),
    "an empty client": (lambda: fs.clients([{"a": [1]}, {"a": []}]), "client 1 is empty"),
    "an empty Dataset": (lambda: fs.clients([TensorDataset(torch.zeros(0))]), "client 0 is empty"),
    "empty indices": (lambda: fs.clients(TABLE, indices=[[1], []]), "client 1 is empty"),
    "claimed twice": (
        lambda: fs.clients(TABLE, indices=[[0, 5], [5]]),
        "row 5 is given to client 0 and to client 1",
    ),
    "twice in one": (lambda: fs.clients(TABLE, indices=[[5, 5]]), "client 0 has a row twice"),
    "out of range": (
        lambda: fs.clients(TABLE, indices=[[40]]),
        "client 0 has row 40, but the table has 40 rows",
    ),
    "negative": (lambda: fs.clients(TABLE, indices=[[-1]]), "client 0 has row -1"),
    "no numbers": (lambda: fs.clients(TABLE, indices=[[0.5]]), "must be numbers of rows"),
    "one number": (lambda: fs.clients(TABLE, indices=[3]), "expected an entry for each row"),
    "nan": (lambda: fs.clients([{"a": [1.0, float("nan")]}]), "client 0, column 'a', row 1: a number is nan"),
    "infinite": (lambda: fs.clients([{"a": [1e300]}]), "row 0: a number is inf"),
    "none": (lambda: fs.clients([{"a": ["x", None]}]), "row 1: the value is missing"),
    "an empty word": (lambda: fs.clients([{"a": ["x", ""]}]), "row 1: the value is missing"),
    "objects": (lambda: fs.clients([{"a": [{}, {}]}]), "expected numbers or words, got dict"),
    "times": (lambda: fs.clients([{"a": numpy.array(["2020-01-01"], "M8[D]")}]), "turn times into numbers"),
    "ragged": (lambda: fs.clients([{"a": [[1], [1, 2]]}]), "its rows must be alike"),
    "a single number": (lambda: fs.clients([{"a": 3}]), "expected an entry for each row"),
    "unknown client": (lambda: fs.clients(TABLE, client="sight"), "unknown column 'sight'"),
    "unknown column": (lambda: fs.clients(TABLE, columns=["inpt"], count=2), "did you mean 'input'?"),
    "unknown by": (lambda: fs.clients(TABLE, count=2, by="x", partition="label"), "unknown column 'x'"),
    "no way": (lambda: fs.clients(TABLE), "told who holds a row"),
    "two ways": (lambda: fs.clients(TABLE, count=2, client="label"), "got client and count"),
    "nobody": (lambda: fs.clients([]), "there are no clients"),
    "no __len__": (lambda: fs.clients([Endless()]), "Endless has no __len__"),
    "broken": (lambda: fs.clients([Broken(TABLE)]), "row 0 cannot be read: OSError: the disk is gone"),
    "test lacks": (lambda: fs.clients([TABLE], test={"input": X}), "test lacks the column 'label'"),
    "test shapes": (
        lambda: fs.clients([TABLE], test={"input": X[:, :2], "label": Y}),
        "expected rows of (3,)",
    ),
    "test empty": (lambda: fs.clients([{"a": [1]}], test={"a": []}), "test has no rows"),
    "test twice": (lambda: fs.clients([TABLE], test=TABLE, test_share=0.1), "test or test_share, not both"),
    "a large share": (lambda: fs.clients([TABLE], test_share=1.0), "from 0 to below 1"),
    "large shares": (lambda: fs.clients([TABLE], test_share=0.5, validation_share=0.5), "leave no rows"),
    "a small share": (lambda: fs.clients([{"a": [1, 2]}], test_share=0.1), "holds out none"),
    "partition": (lambda: fs.clients(TABLE, count=3, partition="labels"), "did you mean 'label'?"),
    "no count": (lambda: fs.clients(TABLE, partition="iid"), "needs count"),
    "idle alpha": (lambda: fs.clients(TABLE, count=3, partition="iid", alpha=1.0), "alpha is of partition"),
    "too many": (
        lambda: fs.clients(TABLE, count=41),
        "count must be at most the number of rows (40), got 41",
    ),
    "no rows": (lambda: fs.clients({"a": [], "b": []}, count=100), "the table has no rows"),
    "no objects": (
        lambda: fs.clients({"a": numpy.array([], dtype=object)}, indices=[[0]]),
        "the table has no rows",
    ),
    "a share of single rows": (
        lambda: fs.clients(TABLE, count=40, test_share=0.5),
        "every client has one row and keeps it; make fewer clients, or give test=",
    ),
    "true clients": (lambda: fs.clients(TABLE, count=True), "count must be a whole number, got True"),
    "real clients": (
        lambda: fs.clients({"a": [1], "c": [0.5]}, client="c"),
        "expected whole numbers or words",
    ),
    "own": (lambda: fs.clients([TABLE], own={"w": [1, 2]}), "2 entries for 1 clients"),
    "own by name": (lambda: fs.clients([TABLE], own={"w": {"1": 2}}), "no entry for client 0"),
    "own is a column": (lambda: fs.clients([TABLE], own={"label": [1]}), "name of a column"),
    "columns": (lambda: fs.clients([(X, Y)], columns=["a"]), "columns has 1 names for 2 columns"),
    "columns twice": (lambda: fs.clients([(X, Y)], columns=["a", "a"]), "different names"),
    "no file": (lambda: fs.clients(["nowhere.csv"]), "nowhere.csv"),
    "no npy": (lambda: fs.clients({"a": "nowhere.npy"}, count=2), "nowhere.npy"),
    "a file of what?": (lambda: fs.clients(["data.xlsx"]), "known are folders of .npy and .csv"),
    "what?": (lambda: fs.clients([3]), "got int"),
    "dtype": (lambda: fs.clients([TABLE], dtype=torch.int64), "dtype must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_refused_in_one_line(case):
    act, told = BAD[case]
    with pytest.raises(BadInput) as caught:
        act()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_of_no_client_are_spoken_of():
    with pytest.warns(Notice, match="37 of 40 rows are given to no client"):
        fs.clients(TABLE, indices=[[0, 5], [7]])


# --- columns that stay in files --------------------------------------------------------------------------


class Line:
    """Least squares on rows, for clients of whatever kind."""

    def __init__(self, clients):
        self.federation = clients.federation
        self.metrics = {"size": fs.Metric("low", "none")}

    def init(self, seed):
        width = self.federation.rows["input"].shape[1]
        return Pair(torch.full((width,), float(seed)), torch.zeros(1))

    def loss(self, z, xi):
        error = xi.rows["input"] @ z.x - xi.rows["label"].to(torch.float32)
        return xi.mean((1 + z.y) * error**2) - z.y.square().sum()

    def evaluate(self, z):
        return {"size": float(z.x.norm())}


def played(clients, executor=None, rule=None):
    rule = rule or fs.CDMAADA(c_eta=0.05, c_gamma=0.05, c_alpha=1.0, rho=0.2, K=3)
    options = {"rounds": 3, "seeds": range(2), "batch": 4, "quorum": fs.Quorum(invite=3), "threads": 1}
    outcome = fs.simulate(Line(clients), rule, executor=executor, progress=False, **options)
    return outcome.last("size")


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_table_in_files_gives_the_same_bits_as_in_memory(tmp_path, kind):
    table = {"input": X.astype(kind), "label": Y.astype(numpy.int32)}
    for name, column in table.items():
        numpy.save(tmp_path / f"{name}.npy", column)
    options = {"count": 4, "partition": "dirichlet", "test_share": 0.2}
    memory, files = fs.clients(table, **options), fs.clients(tmp_path, **options)
    assert not memory.federation.files
    assert memory.federation.order is None
    assert set(files.federation.files) == {"input", "label"}
    assert files.federation.order is not None
    assert everything(memory) == everything(files)
    assert played(memory) == played(files)
    assert played(memory, fs.Loop()) == played(files, fs.Loop())


def test_another_division_of_the_same_file_is_another_task(tmp_path):
    numpy.save(tmp_path / "input.npy", X)
    numpy.save(tmp_path / "label.npy", Y)

    def loss(x, y, batch):
        return batch["input"].float() @ x - y**2

    def told(**options):
        data = fs.clients(tmp_path, count=4, **options)
        task = fs.task(x=(3,), y=(1,), loss=loss, data=data)
        return task.identity["data"], identity_of(Line(data))["data"]

    assert told() == told()
    for other in ({"seed": 1}, {"dtype": torch.float64}):
        assert all(a != b for a, b in zip(told(), told(**other), strict=True))


def test_of_a_table_in_files_only_their_names_are_pickled(tmp_path):
    numpy.save(tmp_path / "input.npy", numpy.zeros((10_000, 100), numpy.float32))
    clients = fs.clients(tmp_path, count=10)
    parcel = pickle.dumps(clients)
    assert len(parcel) < 200_000  # the order of the rows
    again = pickle.loads(parcel).federation
    assert again.rows["input"].shape == (10_000, 100)
    assert torch.equal(again.order, clients.federation.order)


def test_a_mapped_array_is_the_part_of_its_file_that_it_is(tmp_path):
    numpy.save(tmp_path / "x.npy", X)
    mapped = numpy.load(tmp_path / "x.npy", mmap_mode="r")
    part = fs.clients({"input": mapped[10:30]}, count=2).federation
    assert set(part.files) == {"input"}
    plain = fs.clients({"input": X[10:30]}, count=2).federation
    assert torch.equal(part.at(torch.arange(20))["input"], plain.rows["input"])
    strided = fs.clients({"input": mapped[::2]}, count=2).federation  # with gaps: read
    assert not strided.files


def test_files_of_several_clients_are_joined_in_the_cache_if_they_are_large(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "cache"))
    for name, rows in {"a": slice(0, 15), "b": slice(15, 40)}.items():
        (tmp_path / name).mkdir()
        numpy.save(tmp_path / name / "input.npy", X[rows])
    source = {name: tmp_path / name for name in "ab"}
    small = fs.clients(source)
    assert not small.federation.files
    monkeypatch.setattr(columns, "IN_MEMORY", 100)
    with pytest.warns(Notice, match="is written to .*, once"):
        large = fs.clients(source)
    assert set(large.federation.files) == {"input"}
    assert large.federation.order is None
    assert everything(large) == everything(small)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fs.clients(source)  # which is there
    numpy.save(tmp_path / "b" / "input.npy", -X[15:40])
    with pytest.warns(Notice, match="is written to"):
        assert everything(fs.clients(source)) != everything(small)
    (tmp_path / "cache").rename(tmp_path / "old")
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(BadInput, match="name another folder in FEDSADDLE_DATA"):
        fs.clients(source)


def test_a_file_that_is_gone_or_unfit_is_spoken_of(tmp_path):
    numpy.save(tmp_path / "x.npy", X)
    parcel = pickle.dumps(fs.clients(tmp_path, count=2))
    (tmp_path / "x.npy").unlink()
    with pytest.raises(BadInput, match="has it been moved"):
        pickle.loads(parcel)
    for array, told in {
        "fortran": (numpy.asfortranarray(X), "Fortran"),
        "unsigned": (Y.astype(numpy.uint32), "cannot read <u4"),
        "foreign": (X.astype(">f8"), "cannot read >f8"),
        "empty": (X[:0], "holds no rows"),
        "text": (SITE, "expected numbers"),
    }.values():
        numpy.save(tmp_path / "x.npy", array)
        with pytest.raises(BadInput, match=told):
            fs.clients(tmp_path, count=2)


def test_a_device_holds_a_copy_of_what_is_in_files_if_it_can(tmp_path, monkeypatch):
    numpy.save(tmp_path / "input.npy", X)
    federation = fs.clients(tmp_path, count=2).federation
    copied = problem._copied(federation.files["input"], torch.device("cpu"))
    assert torch.equal(copied, torch.tensor(X, dtype=torch.float32))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10_000, 1_000_000))
    with pytest.warns(Notice, match="input .* is copied to cuda:0 as a whole"):
        problem._check_room(federation.files, torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    with pytest.raises(BadInput, match="free; run it on the cpu"):
        federation.to(torch.device("cuda", 0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_learns_the_same_from_files_as_from_memory(tmp_path):
    numpy.save(tmp_path / "input.npy", X)
    numpy.save(tmp_path / "label.npy", Y)
    rule, found = fs.CDMANC(eta=0.01, gamma=0.01, K=3), []
    for source in (TABLE, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            clients = fs.clients(source, count=4)
            options = {"rounds": 3, "batch": 4, "quorum": fs.Quorum(invite=3), "progress": False}
            outcome = fs.simulate(Line(clients), rule, device="cuda", **options)
        found.append(outcome.last("size"))
    assert found[0] == found[1]


VISIT = """
import sys, numpy
import fedsaddle as fs
sys.path.insert(0, sys.argv[2])
rule = fs.CDMANC(eta=0.01, gamma=0.01, K=3)
from test_clients import played

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

played(fs.clients({"input": numpy.zeros((40, 1000), "f4"), "label": numpy.arange(40)}, count=4), None, rule)
before = resident()
played(fs.clients(sys.argv[1], count=5000), None, rule)
print(resident() - before)
"""


def test_a_large_table_is_not_read_whole(tmp_path):
    """400 MB, of which some hundred rows are visited. The file is sparse, so nothing is written either."""
    shape = (100_000, 1_000)
    numpy.lib.format.open_memmap(tmp_path / "input.npy", "w+", numpy.float32, shape)
    numpy.save(tmp_path / "label.npy", numpy.arange(shape[0]) % 2)
    with open(tmp_path / "input.npy", "rb") as file:  # what is in the cache comes along in large pieces
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    words = [sys.executable, "-c", VISIT, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40e6


# --- Arrow and Parquet -----------------------------------------------------------------------------------


def test_without_pyarrow_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("rows.parquet", "rows.arrow"):
        with pytest.raises(BadInput, match="needs pyarrow: pip install"):
            fs.clients([tmp_path / name])


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The same table as arrays, and in files of all kinds."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow, the extra arrow, is not installed")
    from pyarrow import feather, ipc, parquet

    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "cache"))
    arrays = {"input": X, "label": Y, "site": SITE, "flag": Y > 1, "small": Y.astype(numpy.uint8)}
    lists = {"input": pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 3)}
    table = pa.table({name: lists.get(name, column) for name, column in arrays.items()})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    feather.write_feather(table, tmp_path / "packed.feather", compression="zstd")
    with ipc.new_file(tmp_path / "one.arrow", table.schema) as out:
        out.write_table(table)
    with ipc.new_file(tmp_path / "many.arrow", table.schema) as out:
        out.write_table(table, max_chunksize=7)
    with ipc.new_stream(tmp_path / "stream.arrow", table.schema) as out:
        out.write_table(table, max_chunksize=7)
    return tmp_path, arrays


FILES = ["rows.parquet", "packed.feather", "one.arrow", "many.arrow", "stream.arrow"]


@pytest.mark.parametrize("name", FILES)
def test_arrow_and_parquet_give_what_arrays_give(written, name, monkeypatch):
    folder, arrays = written
    options = {"client": "site", "test_share": 0.2}
    plain = everything(fs.clients(arrays, **options))
    made = fs.clients(folder / name, **options)
    assert everything(made) == plain
    assert bool(made.federation.files) == (name == "one.arrow")  # which lies together, and is mapped
    monkeypatch.setattr(arrow, "IN_MEMORY", 10)
    if name != "one.arrow":
        with pytest.warns(Notice, match="is written to .*, once"):
            fs.clients(folder / name, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        large = fs.clients(folder / name, **options)
    assert everything(large) == plain
    assert set(large.federation.files) >= {"input", "label", "small"}


def test_what_is_wrong_in_arrow_and_parquet_is_told(written):
    folder, _ = written
    import pyarrow as pa
    from pyarrow import parquet

    for column, told in {
        "null": ([1.0, None], "row 1: the value is missing"),
        "nan": ([1.0, float("nan")], "row 1: a number is missing or infinite"),
        "ragged": ([[1], [1, 2]], "its lists are 1 to 2 long"),
        "time": (pa.array([1, 2], pa.timestamp("s")), "turn it into numbers"),
    }.values():
        parquet.write_table(pa.table({"a": column}), folder / "bad.parquet")
        with pytest.raises(BadInput, match=told):
            fs.clients([folder / "bad.parquet"])
    for name in ("cut.parquet", "cut.arrow"):
        (folder / name).write_bytes(b"PAR1 nothing")
        with pytest.raises(BadInput, match="cannot read"):
            fs.clients([folder / name])
    with pytest.raises(BadInput, match="no such file"):
        fs.clients([folder / "nowhere.parquet"])
