"""How much there is to read stays little: benchmarks/house.py counts it."""

from benchmarks import house

# Why a file or a function is longer than it should be.
EXCUSED = {
    "simulate.py:simulate": "its options are spelt out: they are the documentation",
    "simulate.py:make_study": "its options are spelt out: they are the documentation",
}


def test_one_algorithm_is_followed_through_six_short_files():
    assert len(house.PATH) == 6
    assert sum(house.lines(house.SOURCE / name) for name in house.PATH) <= 1200


def test_no_file_and_no_function_is_long_without_a_reason():
    found = house.long_files() | house.long_functions()
    assert found.keys() == EXCUSED.keys()


def test_no_files_import_each_other_in_a_circle():
    assert len(house.imports()["engine/round.py"]) >= 5  # it does look
    assert house.circles() == []


def test_a_circle_would_be_found(monkeypatch):
    monkeypatch.setattr(house, "imports", lambda: {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})
    assert [circle[0] for circle in house.circles()] == ["a", "b", "c"]


# Names that stand in several files for the same thing.
SHARED = {
    "Entry": "a name of an experiment file: of algorithms, and of problems",
    "T": "a type of no matter what",
    "load": "what is in a file, made ready: an experiment's, and as fs.load a trained model's",
    **dict.fromkeys(
        ("board", "export", "predict", "reproduce", "rescore", "sample"), "a command, and what it does"
    ),
    **dict.fromkeys(
        ("join", "local", "run", "serve", "sweep"), "a command, what it does, and what Flower does for it"
    ),
}


def test_one_name_means_one_thing():
    assert {name: found for name, found in house.names().items() if len(found) > 1}.keys() == SHARED.keys()
