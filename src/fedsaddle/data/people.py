"""Tables about people: what is learnt, what they are told apart by, and who would hold their rows.

Sex, race and country of birth are groups and no features, nor is a survey's weight of a row: a classifier
does not see them, and is judged by them. (What goes with them, such as being a husband, it does see.)
Numbers are standardised, words one-hot. docs/data.md lists the columns.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy
import torch
from torch import Tensor

from fedsaddle.data import sources
from fedsaddle.data.datasets import Dataset, Grouping, Scaling
from fedsaddle.data.partition import held_out

TESTED = 1 / 3  # of each class, in tables that come without test rows
FEW = 30  # rows of a client below which it is joined with others like it
FEW_BORN = 200  # and of a country
YEAR = "YEAR_t"  # a column of health's
LINES = 1_000  # of the census, held as text at a time


def _table(name: str, file: str) -> dict[str, Tensor]:
    """A CSV file of numbers, by the names of its columns."""
    path = sources.fetch(name) / file
    with path.open(newline="", encoding="utf-8") as text:
        header = next(csv.reader(text))
    years: dict[int | str, Callable[[str], float]] = {
        place: _year for place, name in enumerate(header) if name == YEAR
    }
    read = numpy.loadtxt(path, delimiter=",", skiprows=1, dtype=numpy.float64, converters=years)
    values = torch.from_numpy(read)
    return dict(zip(header, values.T, strict=True))


def _year(cell: str) -> float:
    """Y1, Y2 or Y3."""
    return float(cell.removeprefix("Y"))


def _word(table: dict[str, Tensor], prefix: str) -> tuple[tuple[str, ...], Tensor]:
    """The words of a column that was spread over ones and zeros, and each row's."""
    columns = [name for name in table if name.startswith(prefix)]
    found = torch.stack([table[name] for name in columns], dim=1)
    return tuple(name.removeprefix(prefix) for name in columns), found.argmax(1)


def _joined(*columns: tuple[tuple[str, ...], Tensor]) -> tuple[tuple[str, ...], Tensor]:
    """Two columns as one: their words side by side, as far as there are rows."""
    (first, one), (second, other) = columns
    pairs = one * len(second) + other
    there, number = pairs.unique(return_inverse=True)
    return tuple(f"{first[n // len(second)]}, {second[n % len(second)]}" for n in there.tolist()), number


def _gathered(
    few: int, column: tuple[tuple[str, ...], Tensor], instead: Callable[[str], str]
) -> tuple[tuple[str, ...], Tensor]:
    """A column in which words with few rows are replaced."""
    words, number = column
    counts = torch.bincount(number, minlength=len(words)).tolist()
    renamed = [word if count >= few else instead(word) for word, count in zip(words, counts, strict=True)]
    kept = sorted(set(renamed))
    return tuple(kept), torch.tensor([kept.index(word) for word in renamed])[number]


def _divided(
    numbers: Tensor,
    flags: Tensor,
    labels: Tensor,
    classes: tuple[str, ...],
    groups: dict[str, tuple[tuple[str, ...], Tensor]],
    clients: str,
) -> Dataset:
    """A table without test rows: some are drawn, always the same."""
    out = held_out(labels, TESTED, 0, groups[clients][1])
    scaling = Scaling.of(numbers[~out])
    inputs, test_inputs = scaling(numbers[~out]), scaling(numbers[out])
    return Dataset(
        torch.cat([inputs, flags[~out].float()], dim=1),
        labels[~out],
        torch.cat([test_inputs, flags[out].float()], dim=1),
        labels[out],
        classes,
        groups[clients][1][~out],
        has_test=False,
        scaling=scaling,
        groups={what: Grouping(names, rows[~out], rows[out]) for what, (names, rows) in groups.items()},
    )


def _columns(table: dict[str, Tensor], *names: str) -> Tensor:
    return torch.stack([table[name] for name in names], dim=1)


def _flags(table: dict[str, Tensor], *prefixes: str) -> Tensor:
    return _columns(table, *(name for name in table if name.startswith(prefixes)))


def adult() -> Dataset:
    """Who earns over 50,000 dollars a year. A client: people of one occupation and schooling."""
    table = _table("adult", sources.ADULT)
    sex, race = _word(table, "sex_"), _word(table, "race_")
    work = _joined(_word(table, "occupation_"), _word(table, "education_"))
    return _divided(
        _columns(table, "age", "education-num", "capital-gain", "capital-loss", "hours-per-week"),
        _flags(table, "workclass_", "marital-status_", "occupation_", "relationship_"),
        table["salary_>50K"].long(),
        ("<=50K", ">50K"),
        {
            "sex": sex,
            "race": race,
            "race-sex": _joined(race, sex),
            "work": _gathered(FEW, work, lambda word: f"{word.split(', ')[0]}, other schooling"),
        },
        clients="work",
    )


def compas() -> Dataset:
    """Who is arrested again within two years. A client: people with one charge."""
    table = _table("compas", sources.COMPAS)
    sex = ("female", "male"), table["sex"].long()
    race = ("not white", "white"), table["race"].long()
    charge, degree = _word(table, "c-charge-desc_"), _word(table, "c-charge-degree_")
    lesser = dict(zip(charge[1].tolist(), degree[1].tolist(), strict=True))
    kinds = {word: ("felonies", "misdemeanours")[lesser.get(n, 0)] for n, word in enumerate(charge[0])}
    return _divided(
        _columns(table, "age-num", "juv-fel-count", "juv-misd-count", "juv-other-count", "priors-count"),
        _flags(table, "c-charge-degree_"),
        table["two-year-recid"].long(),
        ("no", "again"),
        {
            "sex": sex,
            "race": race,
            "race-sex": _joined(race, sex),
            "charge": _gathered(FEW, charge, lambda word: f"other {kinds[word]}"),
        },
        clients="charge",
    )


def card() -> Dataset:
    """Who will not pay the next bill of a credit card. A client: people of one age and sex."""
    table = _table("card", sources.CARD)
    owed = [f"BILL_AMT{n}" for n in range(1, 7)] + [f"PAY_AMT{n}" for n in range(1, 7)]
    late = ["PAY_0", *(f"PAY_{n}" for n in range(2, 7))]
    sex = ("male", "female"), table["SEX"].long()
    schooling = ("graduate school", "university", "high school", "other")
    education = _word(table, "EDUCATION_")[1]  # 0, 4, 5 and 6 are other or unknown
    age = table["AGE"].long()
    return _divided(
        _columns(table, "LIMIT_BAL", "AGE", *late, *owed),
        _flags(table, "EDUCATION_", "MARRIAGE_"),
        table["default-payment-next-month"].long(),
        ("pays", "defaults"),
        {
            "sex": sex,
            "education": (schooling, torch.where((education > 0) & (education < 4), education - 1, 3)),
            "age-sex": _gathered(
                FEW,
                _joined((tuple(map(str, range(100))), age), sex),
                lambda word: f"old, {word.split(', ')[1]}",
            ),
        },
        clients="age-sex",
    )


def law() -> Dataset:
    """Who passes the bar at once. A client: people of one race and sex."""
    table = _table("law", sources.LAW)
    sex = ("female", "male"), table["Sex_2"].long()
    race = _word(table, "Race_")
    return _divided(
        _columns(table, "LSAT", "UGPA", "ZFYA"),
        torch.zeros(len(sex[1]), 0),
        table["PF_1"].long(),
        ("fails", "passes"),
        {
            "sex": sex,
            "race": race,
            "race-sex": _gathered(FEW, _joined(race, sex), lambda word: f"other, {word.split(', ')[1]}"),
        },
        clients="race-sex",
    )


def health() -> Dataset:
    """Who has an illness that Charlson's index counts. A client: people of one age and sex."""
    table = _of_last_year(_table("health", sources.HEALTH))
    ages = [name for name in table if name.startswith("age_")]
    told = ("MemberID_t", YEAR, "trainset", "Charlson", "age_", "sex")
    numbers = [name for name in table if not name.startswith(told)]
    sex = ("male", "female"), table["sexFEMALE"].long()
    names, age = _word(table, "age_")
    age_of = tuple(f"about {int(name)}" for name in names), age
    return _divided(
        _columns(table, *numbers),
        _columns(table, *ages),
        table["Charlson>0"].long(),
        ("no", "ill"),
        {"sex": sex, "age": age_of, "age-sex": _joined(age_of, sex)},
        clients="age-sex",
    )


def _of_last_year(table: dict[str, Tensor]) -> dict[str, Tensor]:
    """One row of each member: nobody is learnt from in one year and tested in another.

    The table has those alone whose age and sex are known, and columns for the others.
    """
    for unknown in ("age_MISS", "sexMISS"):
        table.pop(unknown, None)
    order = (table["MemberID_t"] * 10 + table[YEAR]).argsort()
    member = table["MemberID_t"][order]
    last = torch.cat([member[1:] != member[:-1], torch.ones(1, dtype=torch.bool)])
    return {name: column[order[last]] for name, column in table.items()}


# --- the census ------------------------------------------------------------------------------------------

# Places of the columns in a line. Not taken: detailed codes of industry and occupation (2, 3), whose major
# ones are there; origins (10, 11, 12, 32-34); where people moved from (20, 21, 25-28), half of it missing;
# the detailed household (22); the survey's weight (24).
NUMBERS = (0, 5, 16, 17, 18, 30, 39)
WORDS = (1, 4, 6, 7, 8, 9, 13, 14, 15, 19, 23, 29, 31, 35, 36, 37, 38, 40)
RACE, SEX, BORN, EARNS = 10, 12, 34, 41
UNKNOWN = "?"


class _Words(dict[str, int]):
    """A column of words, numbered as they are met."""

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []

    def __missing__(self, word: str) -> int:
        self[word] = len(self)
        return self[word]

    def take(self, cells: Sequence[str]) -> None:
        number = numpy.fromiter(map(self.__getitem__, cells), numpy.int64, len(cells))
        self.blocks.append(torch.from_numpy(number))

    def all(self) -> tuple[tuple[str, ...], Tensor]:
        """In the order of the alphabet, whatever came first."""
        ordered = sorted(self)
        place = torch.tensor([ordered.index(word) for word in self])
        return tuple(word.strip() for word in ordered), place[torch.cat(self.blocks)]


def _survey(paths: Sequence[Path]) -> tuple[Tensor, dict[int, tuple[tuple[str, ...], Tensor]], int]:
    """Numbers (row, column) and words of all files' lines, and how many rows the first file has."""
    words = {place: _Words() for place in (*WORDS, RACE, SEX, BORN, EARNS)}
    numbers: list[Tensor] = []
    first = 0
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            while block := list(islice(lines, LINES)):
                cells = list(zip(*(line.rstrip("\n").split(", ") for line in block), strict=True))
                columns = [numpy.fromiter(map(float, cells[place]), numpy.float64) for place in NUMBERS]
                numbers.append(torch.from_numpy(numpy.stack(columns, axis=1)))
                for place, column in words.items():
                    column.take(cells[place])
        first = first or sum(map(len, numbers))
    return torch.cat(numbers), {place: column.all() for place, column in words.items()}, first


def census() -> Dataset:
    """Who earns over 50,000 dollars a year, of all people. A client: people born in one country."""
    folder = sources.fetch("census")
    numbers, words, first = _survey([folder / file for file in sources.CENSUS])
    scaling = Scaling.of(numbers[:first])
    inputs, test_inputs = scaling(numbers[:first]), scaling(numbers[first:])
    flags = torch.cat(
        [torch.nn.functional.one_hot(rows, len(names)).float() for names, rows in (words[n] for n in WORDS)],
        dim=1,
    )
    names, born = words[BORN]
    born_in = _gathered(FEW_BORN, (names, born), lambda word: "elsewhere")
    born_in = tuple("unknown" if name == UNKNOWN else name for name in born_in[0]), born_in[1]
    groups = {
        "sex": words[SEX],
        "race": words[RACE],
        "race-sex": _joined(words[RACE], words[SEX]),
        "country": born_in,
    }
    labels = words[EARNS][1]  # "- 50000." comes before "50000+."
    data = Dataset(
        torch.cat([inputs, flags[:first]], dim=1),
        labels[:first],
        torch.cat([test_inputs, flags[first:]], dim=1),
        labels[first:],
        ("<=50K", ">50K"),
        born_in[1][:first],
        scaling=scaling,
    )
    return replace(
        data,
        groups={what: Grouping(found, rows[:first], rows[first:]) for what, (found, rows) in groups.items()},
    )


READ = {"adult": adult, "compas": compas, "card": card, "law": law, "health": health, "census": census}
