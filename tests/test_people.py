"""Tables about people: labels, groups and clients are the files', and nobody's origin is a feature."""

import pytest
import torch

from fedsaddle.data import people, sources
from fedsaddle.data.datasets import DATASETS
from fedsaddle.data.partition import in_pieces

ROWS = 240


def spread(prefix: str, words: list[str], chosen: list[int]) -> dict[str, list[int]]:
    """A column of words as ones and zeros."""
    return {f"{prefix}{word}": [int(n == place) for n in chosen] for place, word in enumerate(words)}


def write(path, table: dict[str, list]) -> None:
    lines = [
        ",".join(f'"{name}"' for name in table),
        *(",".join(map(str, row)) for row in zip(*table.values(), strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "fetch", lambda name: tmp_path)
    return tmp_path


def test_adult(folder):
    n = range(ROWS)
    table = {name: [k % 7 for k in n] for name in ("age", "education-num", "capital-gain", "capital-loss")}
    table |= {"hours-per-week": [40] * ROWS, "fnlwgt": [k * 1000 for k in n]}
    table |= spread("workclass_", ["Private"], [0] * ROWS) | spread(
        "marital-status_", ["Divorced"], [0] * ROWS
    )
    table |= spread("education_", ["HS", "11th"], [int(k < 10) for k in n])
    table |= spread("occupation_", ["Sales", "Clerk"], [k % 2 for k in n]) | spread(
        "relationship_", ["Wife"], [0] * ROWS
    )
    table |= spread("race_", ["Black", "White"], [int(k % 3 > 0) for k in n])
    table |= spread("sex_", ["Female", "Male"], [int(k % 4 > 0) for k in n])
    table |= spread("salary_", ["<=50K", ">50K"], [int(k % 5 == 0) for k in n])
    write(folder / sources.ADULT, table)
    data = people.adult()
    assert len(data.labels) + len(data.test_labels) == ROWS
    assert len(data.test_labels) == ROWS / 3
    assert int(data.labels.sum() + data.test_labels.sum()) == 48
    assert data.inputs.shape[1] == 5 + 1 + 1 + 2 + 1  # no race, sex, schooling in words, weight
    assert data.groups["race-sex"].names == ("Black, Female", "Black, Male", "White, Female", "White, Male")
    # Five of each occupation have the rarer schooling: too few for clients of their own.
    assert data.groups["work"].names == (
        "Clerk, HS",
        "Clerk, other schooling",
        "Sales, HS",
        "Sales, other schooling",
    )
    assert torch.equal(data.owners, data.groups["work"].rows)
    both = torch.bincount(torch.cat([data.groups["sex"].rows, data.groups["sex"].test_rows]))
    assert both.tolist() == [60, 180]
    assert data.inputs[:, 0].mean().abs() < 1e-6
    assert not data.inputs[:, 4].any()  # everybody works 40 hours


def test_compas(folder):
    n = range(ROWS)
    names = ("age-num", "juv-fel-count", "juv-misd-count", "juv-other-count", "priors-count", "decile-score")
    table = {name: [k % 11 for k in n] for name in names}
    table |= {
        "sex": [k % 2 for k in n],
        "race": [int(k % 3 == 0) for k in n],
        "two-year-recid": [int(k % 4 == 0) for k in n],
    }
    table |= spread("c-charge-degree_", ["F", "M"], [int(k < 3) for k in n])
    table |= spread("c-charge-desc_", ["Abuse, Great", "Theft", "Rare"], [2 if k < 3 else k % 2 for k in n])
    write(folder / sources.COMPAS, table)
    data = people.compas()
    assert data.inputs.shape[1] == 7  # not the score that was given
    assert data.groups["charge"].names == ("Abuse, Great", "Theft", "other misdemeanours")
    assert int(data.groups["sex"].rows.sum() + data.groups["sex"].test_rows.sum()) == ROWS / 2
    assert data.classes == ("no", "again")


def test_card(folder):
    n = range(ROWS)
    names = (
        [f"BILL_AMT{k}" for k in range(1, 7)]
        + [f"PAY_AMT{k}" for k in range(1, 7)]
        + [f"PAY_{k}" for k in (0, 2, 3, 4, 5, 6)]
    )
    table = {name: [k % 13 for k in n] for name in ("ID", "LIMIT_BAL", *names)}
    table |= {"SEX": [k % 2 for k in n], "AGE": [79 if k < 4 else 30 for k in n]}
    table |= {"default-payment-next-month": [int(k % 4 == 0) for k in n]}
    table |= spread("EDUCATION_", list("0123456"), [k % 7 for k in n]) | spread(
        "MARRIAGE_", list("0123"), [1] * ROWS
    )
    write(folder / sources.CARD, table)
    data = people.card()
    assert data.inputs.shape[1] == 2 + 18 + 7 + 4
    assert data.groups["age-sex"].names == ("30, female", "30, male", "old, female", "old, male")
    schooling = data.groups["education"]
    counts = torch.bincount(torch.cat([schooling.rows, schooling.test_rows])).tolist()
    # 240 people in turn: 0 to 1 are 35 each, 2 to 6 are 34. The unknown and the other are one.
    assert dict(zip(schooling.names, counts, strict=True)) == {
        "graduate school": 35,
        "university": 34,
        "high school": 34,
        "other": 35 + 34 * 3,
    }


def test_law(folder):
    n = range(ROWS)
    table = {name: [k % 7 for k in n] for name in ("LSAT", "UGPA", "ZFYA")}
    table |= spread("Race_", ["Black", "White"], [int(k % 3 > 0) for k in n])
    table |= spread("Sex_", ["1", "2"], [int(k >= 8) for k in n])
    table |= spread("PF_", ["0", "1"], [int(k % 5 > 0) for k in n])
    write(folder / sources.LAW, table)
    data = people.law()
    assert data.inputs.shape[1] == 3
    assert data.classes == ("fails", "passes")
    assert int(data.labels.sum() + data.test_labels.sum()) == ROWS * 4 // 5
    assert data.groups["race"].names == ("Black", "White")
    # Eight women are too few for clients by race.
    assert data.groups["race-sex"].names == ("Black, male", "White, male", "other, female")


def test_health(folder):
    n = range(ROWS)
    table = {
        "MemberID_t": [k // 2 for k in n],
        "YEAR_t": [f"Y{1 + k % 2}" for k in n],
        "trainset": [1] * ROWS,
    }
    table |= {"no_Claims": [k % 9 for k in n], "CharlsonIndexI_max": [k % 4 for k in n]}
    table |= spread("age_", ["05", "85", "MISS"], [k // 2 % 2 for k in n])
    table |= spread("sex", ["MALE", "FEMALE", "MISS"], [k // 4 % 2 for k in n])
    table |= {"Charlson>0": [int(k % 4 > 1) for k in n]}
    write(folder / sources.HEALTH, table)
    data = people.health()
    assert len(data.labels) + len(data.test_labels) == ROWS / 2  # one year of each member: the last
    claims = torch.cat([data.inputs[:, 0], data.test_inputs[:, 0]])
    assert len(claims.unique()) == 9
    assert data.inputs.shape[1] == 1 + 2  # and nothing of the index
    assert data.groups["age-sex"].names == (
        "about 5, male",
        "about 5, female",
        "about 85, male",
        "about 85, female",
    )
    assert int(data.labels.sum() + data.test_labels.sum()) == ROWS / 4


def line(k: int) -> str:
    cells = ["Not in universe"] * 42
    for place in people.NUMBERS:
        cells[place] = str(k % 9)
    cells[people.SEX], cells[people.RACE] = ("Male", "Female")[k % 2], ("White", "Black")[k % 3 > 0]
    cells[people.BORN] = "?" if k == 0 else "Panama" if k < 5 else "United-States"
    cells[1], cells[24] = ("Private", "Local")[k % 2], str(1000.5 * k)
    cells[people.EARNS] = "50000+." if k % 10 == 0 else "- 50000."
    return ", ".join(cells)


def test_census(folder, monkeypatch):
    monkeypatch.setattr(people, "LINES", 100)  # so that there are several blocks
    monkeypatch.setattr(people, "FEW_BORN", 1)
    for file, rows in zip(sources.CENSUS, (range(ROWS), range(1, 61)), strict=True):
        (folder / file).write_text("".join(line(k) + "\n" for k in rows))
    data = people.census()
    assert (len(data.labels), len(data.test_labels)) == (ROWS, 60)
    assert data.labels.tolist() == [int(k % 10 == 0) for k in range(ROWS)]
    assert data.groups["sex"].names == ("Female", "Male")
    assert data.groups["sex"].test_rows.tolist() == [int(k % 2 == 0) for k in range(1, 61)]
    assert data.groups["country"].names == ("unknown", "Panama", "United-States")
    assert data.owners.tolist()[:6] == [0, 1, 1, 1, 1, 2]
    assert data.inputs.shape[1] == len(people.NUMBERS) + len(people.WORDS) + 1  # one has two words
    monkeypatch.setattr(people, "FEW_BORN", 50)
    assert people.census().groups["country"].names == ("United-States", "elsewhere")


@pytest.mark.parametrize(
    ("name", "rows", "tested", "positives", "clients"),
    [
        ("adult", 30148, 15074, 11208, 134),
        ("compas", 4112, 2055, 2809, 39),
        ("card", 20000, 10000, 6636, 81),
        ("law", 14528, 7263, 19360, 16),
        ("health", 61780, 30891, 27593, 18),
        ("census", 199523, 99762, 12382 + 6186, 32),
    ],
)
def test_what_is_in_the_real_ones(name, rows, tested, positives, clients):
    if not sources.is_there(name):
        pytest.skip(f"{name} is not in {sources.cache()}; get it with: fedsaddle data {name}")
    data = DATASETS[name]()
    assert (len(data.labels), len(data.test_labels)) == (rows, tested)
    assert int(data.labels.sum() + data.test_labels.sum()) == positives
    assert len(data.owners.unique()) == clients
    assert torch.isfinite(data.inputs).all()
    for found in data.groups.values():
        assert int(found.rows.max()) < len(found.names)
        assert len(found.test_rows) == tested


def test_large_clients_are_cut_into_pieces():
    parts = [torch.arange(0, 5), torch.arange(5, 28), torch.arange(28, 38)]
    pieces = in_pieces(parts, 10, seed=3)
    assert [len(piece) for piece in pieces] == [5, 8, 8, 7, 10]
    assert torch.cat(pieces[1:4]).sort().values.tolist() == list(range(5, 28))
    assert torch.cat(pieces[1:4]).tolist() != list(range(5, 28))
    assert all(map(torch.equal, pieces, in_pieces(parts, 10, seed=3)))
