"""What is in a person's CSV or .npz file: its rows, with their labels and clients.

Nothing is guessed or mended: what cannot be used is refused in one line that names the place. No file can
make Python run what is in it. `tables.py` makes a dataset of the rows.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
import zipfile
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy
from numpy.typing import NDArray

from fedsaddle.errors import BadInput, Notice, check_memory, unknown

Array = NDArray[Any]

MISSING = ("", "na", "n/a", "nan", "null", "?")  # what stands for nothing, in small letters
COMMAED = re.compile(r"-?[0-9]+(,[0-9]+)+(\.[0-9]*)?")
# A number with a currency or a percent; a category may look so too, such as 20% beside <20%.
MARKED = re.compile(r"(?=.*[$€£¥%])[+-]?[$€£¥]? ?[+-]?(\.[0-9]+|[0-9]+([.,][0-9]+)*\.?) ?[$€£¥%]?")
MANY_WORDS = 20  # of a column, more than every second row has: perhaps dates or names
MOST_WORDS = 100  # different words of a column of features: each becomes a feature
LARGEST = 1e100  # whose square is still a float
BRIGHTEST = 8.0  # of images in floats that begin at 0: beyond it they are levels of grey, not scaled
LINES_AT_ONCE = 1_000  # lines of a CSV file that are held as text at a time


@dataclass(frozen=True)
class Words:
    """A column of words, or of numbers that are only names."""

    number: Array  # (row,): which word
    words: tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """What is in a file."""

    inputs: Array  # (row, feature), or images: (row, channel, height, width)
    labels: Words  # of new rows, perhaps none
    owners: Words | None
    flags: Array  # (row, word): one where the row has the word, for features that are words
    columns: dict[str, tuple[str, ...]]  # of a CSV file: each feature's words, none if it holds numbers


NONE = Words(numpy.zeros(0, dtype=numpy.int64), ())


# --- CSV -------------------------------------------------------------------------------------------------


class Numbers:
    """A column of numbers, as it is read."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.blocks: list[Array] = []
        self.whole = True  # whether all are written without a point

    def take(self, cells: list[str], lines: list[int]) -> None:
        text = "".join(cells)
        self.whole = self.whole and not {".", "e", "E"} & set(text)
        try:
            # Python also reads 1_000 and the digits of other scripts, which nobody means here.
            plain = text.isascii() and "_" not in text
            block = numpy.fromiter(map(float, cells if plain else ["?"]), numpy.float64, len(cells))
        except ValueError:
            block = numpy.full(len(cells), numpy.nan)
        if not (abs(block) < LARGEST).all():
            raise self._complaint(cells, lines)
        self.blocks.append(block)

    def _complaint(self, cells: list[str], lines: list[int]) -> BadInput:
        for cell, line in zip(cells, lines, strict=True):
            where = f"{self.at}, line {line}"
            if cell.strip().lower() in MISSING:
                return BadInput(
                    f"{where}: the value is missing; fill it in, or leave out the row or the column"
                )
            if not _is_number(cell):
                return BadInput(f"{where}: expected a number as in the lines before, got '{cell[:80]}'")
            if not abs(float(cell)) < LARGEST:
                break
        return BadInput(f"{where}: expected a number below {LARGEST:g}, got '{cell[:80]}'")

    def all(self) -> Array:
        return numpy.concatenate(self.blocks)

    def numbers(self) -> Array:
        """The same, as whole numbers if all are written so."""
        values = self.all()
        exact = self.whole and bool((abs(values) < 2**53).all())
        return values.astype(numpy.int64) if exact else values


class Texts:
    """A column of words, as it is read."""

    def __init__(self, at: str, feature: bool, most: int | None) -> None:
        self.at, self.feature, self.most = at, feature, most
        self.words: dict[str, int] = {}
        self.number = array("q")

    def take(self, cells: list[str], lines: list[int]) -> None:
        for cell, line in zip(cells, lines, strict=True):
            word = cell.strip()
            number = self.words.get(word)
            if number is None:
                self._check(word, f"{self.at}, line {line}")
                number = self.words[word] = len(self.words)
            self.number.append(number)

    def _check(self, word: str, where: str) -> None:
        if word.lower() in MISSING:
            raise BadInput(f"{where}: the value is missing; fill it in, or leave out the row or the column")
        if self.feature and COMMAED.fullmatch(word):
            raise BadInput(
                f"{where}: '{word[:80]}' looks like a number with a decimal comma, or commas between "
                "thousands; write it with a point alone"
            )
        if self.feature and _is_number(word):
            raise BadInput(f"{where}: expected a word as in the lines before, got the number {word[:80]}")
        if self.feature and len(self.words) == self.most:
            raise BadInput(
                f"{where}: more than {self.most} different words, each of which would be a feature; group "
                "them, or leave out the column"
            )

    def all(self) -> Words:
        if self.feature and self.words and all(MARKED.fullmatch(word) for word in self.words):
            raise BadInput(
                f"{self.at}: '{next(iter(self.words))[:80]}' looks like a number with a sign of currency or "
                "percent; write the number alone"
            )
        return Words(numpy.array(self.number), tuple(self.words))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell


def _header(path: str, header: list[str]) -> list[str]:
    """The names of the columns."""
    names = [name.strip() for name in header]
    if not any(names):
        raise BadInput(f"{path}: the first line is empty; it must name the columns")
    for sign, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and sign in header[0]:
            raise BadInput(f"{path} is separated by {called}; save it with commas")
    if "" in names:
        column = names.index("") + 1
        raise BadInput(f"{path}: column {column} has no name; name it, or leave it out if it counts the rows")
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise BadInput(f"{path}: {times} columns are called '{name[:80]}'; rename them, or leave them out")
    return names


def _csv(
    path: str, data: bytes, label: str, client: str, like: Rows | None, labelled: bool = True
) -> tuple[Rows, None]:
    """A CSV file: a line of names, then rows. A column whose first value is no number is one of words.

    Of new rows, which need not be labelled, the label and the client are not even looked at.
    """

    def check(names: list[str]) -> None:
        if labelled and label not in names:
            raise BadInput(f"{path}: {unknown('column', label, names)}; say which one is the label")

    skip = () if labelled else (label, client)
    columns = _csv_columns(path, data, check, lambda name: name not in (label, client), skip)
    words = {name: column.all() for name, column in columns.items() if isinstance(column, Texts)}
    numbers = {name: column.all() for name, column in columns.items() if isinstance(column, Numbers)}
    labels, owners = words.pop(label, NONE), words.pop(client, None)
    for name, one in words.items():
        if like is None and MANY_WORDS <= len(one.words) > len(one.number) / 2:
            told = f"column '{name[:80]}' has {len(one.words)} words in {len(one.number)} rows"
            warnings.warn(f"{path}: {told}: each becomes a feature; leave it out?", Notice, stacklevel=2)
    return _rows(path, numbers, words, labels, owners, like), None


def csv_columns(path: str, data: bytes, text: str | None) -> dict[str, Array | Words]:
    """Every column of a CSV file by itself: numbers, or words if the first value is no number.

    `text` is a column that holds names, which may be written in figures.
    """
    read = _csv_columns(path, data, lambda names: None, lambda name: name != text, limit=False)
    return {
        name: column.all() if isinstance(column, Texts) else column.numbers() for name, column in read.items()
    }


def _csv_columns(
    path: str,
    data: bytes,
    check: Callable[[list[str]], None],
    feature: Callable[[str], bool],
    skip: tuple[str, ...] = (),
    limit: bool = True,
) -> dict[str, Numbers | Texts]:
    """The columns of a CSV file. Those that are no features are words, and of features there is a limit."""
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""), strict=True)
    numbered = ((lines.line_num, line) for line in lines)
    columns: dict[str, Numbers | Texts] = {}
    try:
        names = _header(path, next(lines, []))
        check(names)
        known = {name: at for at, name in enumerate(names) if name not in skip}
        while block := list(islice(numbered, LINES_AT_ONCE)):
            filled = [(number, line) for number, line in block if line]
            for number, line in filled:
                if len(line) != len(names):
                    raise BadInput(f"{path}, line {number}: {len(line)} values for {len(names)} columns")
                if not columns:
                    columns = {
                        name: _column(f"{path}, column '{name[:80]}'", line[at], feature(name), limit)
                        for name, at in known.items()
                    }
            where = [number for number, _ in filled]
            for name, column in columns.items():
                column.take([line[known[name]] for _, line in filled], where)
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a text file in UTF-8; save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise BadInput(f"{path}, line {lines.line_num}: {error}") from None
    if known and not columns:
        raise BadInput(f"{path} has no rows below its first line")
    return columns


def _column(at: str, first: str, feature: bool, limit: bool) -> Numbers | Texts:
    number = _is_number(first) or first.strip().lower() in MISSING
    return Numbers(at) if number and feature else Texts(at, feature, MOST_WORDS if limit else None)


def _rows(
    path: str,
    numbers: dict[str, Array],
    words: dict[str, Words],
    labels: Words,
    owners: Words | None,
    like: Rows | None,
) -> Rows:
    """The columns of a CSV file side by side, in the order of the rows to learn from."""
    columns = dict.fromkeys(numbers, ()) | {name: column.words for name, column in words.items()}
    if like is not None:
        for name in sorted(columns.keys() ^ like.columns.keys()):
            there = "lacks the" if name in like.columns else "has another"
            raise BadInput(f"{path} {there} column '{name[:80]}'; it needs those of the rows to learn from")
        for name, expected in like.columns.items():
            if bool(expected) != bool(columns[name]):
                kind = "words" if expected else "numbers"
                raise BadInput(f"{path}, column '{name[:80]}': expected {kind}, as in the rows to learn from")
        columns = like.columns  # so a word that is found here alone is no feature
    if not columns:
        raise BadInput(f"{path} has no features; every column but the label and the client is one")
    held = [*numbers.values(), *(column.number for column in words.values())]
    rows = len(held[0])
    check_memory(path, rows * sum(max(1, len(known)) for known in columns.values()))
    inputs = numpy.zeros((rows, len(numbers)))
    for place, name in enumerate(name for name, known in columns.items() if not known):
        inputs[:, place] = numbers.pop(name)
    flags = numpy.zeros((rows, sum(map(len, columns.values()))), dtype=bool)
    for place, (name, word) in enumerate((name, word) for name, known in columns.items() for word in known):
        if word in words[name].words:
            flags[:, place] = words[name].number == words[name].words.index(word)
    return Rows(inputs, labels, owners, flags, columns)


# --- npz -------------------------------------------------------------------------------------------------


def npz_arrays(path: str, data: bytes, wanted: tuple[str, ...] | None = None) -> dict[str, Array]:
    """The arrays of an .npz file: those that are wanted, or all."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {entry.filename.removesuffix(".npy"): entry.file_size for entry in archive.infolist()}
        names = files.keys() if wanted is None else [name for name in wanted if name in files]
        check_memory(path, sum(files[name] for name in names) // 4)  # as bytes, and as an array
        with numpy.load(io.BytesIO(data), allow_pickle=False) as arrays:
            read = {name: arrays[name] for name in names if name in arrays.files}
    except BadInput:
        raise
    except Exception as error:  # a damaged or hostile file may fail anywhere in zipfile and numpy
        raise BadInput(
            f"{path} cannot be read ({error}); save it with numpy.savez, without objects"
        ) from None
    return {name: array for name, array in read.items() if isinstance(array, numpy.ndarray)}


def _npz(
    path: str, data: bytes, label: str, client: str, like: Rows | None, labelled: bool = True
) -> tuple[Rows, Rows | None]:
    """An .npz file: the arrays features, label, and perhaps client, test_features, test_label.

    Rows that are new need not be labelled; of them, features is all that is read.
    """
    wanted = ("features", label, client, "test_features", f"test_{label}")
    found = npz_arrays(path, data, wanted if labelled else wanted[:1])

    def half(prefix: str, other: Array | None) -> Rows:
        for name in (f"{prefix}features", f"{prefix}{label}")[: 2 if labelled else 1]:
            if name not in found:
                needs = "features and a label" if labelled else "features"
                raise BadInput(f"{path}: the array '{name[:80]}' is missing; a row needs {needs}")
        features = _features(f"{path}, {prefix}features", found[f"{prefix}features"])
        if other is not None and (features.shape[1:], features.dtype) != (other.shape[1:], other.dtype):
            raise BadInput(
                f"{path}, {prefix}features: expected rows of {other.shape[1:]} in {other.dtype} as those to "
                f"learn from, got {features.shape[1:]} in {features.dtype}"
            )
        labels, owners = NONE, None
        if labelled:
            labels = _names(f"{path}, {prefix}{label}", found[f"{prefix}{label}"], len(features))
        if not prefix and client in found:
            owners = _names(f"{path}, {client}", found[client], len(features))
        return Rows(features, labels, owners, numpy.zeros((len(features), 0), dtype=bool), {})

    train = half("", None if like is None else like.inputs)
    held = "test_features" in found or f"test_{label}" in found
    return train, half("test_", train.inputs) if held else None


def _features(at: str, features: Array) -> Array:
    """Numbers of a table in float64; images as bytes or float32, with their channels."""
    if features.ndim and not len(features):
        raise BadInput(f"{at}: there are no rows")
    if features.ndim not in (2, 3, 4) or not features.size:
        raise BadInput(
            f"{at}: expected (row, feature), (row, height, width) or (row, channel, height, width), got "
            f"{features.shape}"
        )
    images = features.ndim > 2
    fits = features.dtype == numpy.uint8 if images else features.dtype.kind in "biu"
    if not (fits or features.dtype.kind == "f"):
        raise BadInput(f"{at}: expected {'uint8 or floats' if images else 'numbers'}, got {features.dtype}")
    if features.ndim == 3:
        features = features[:, None]
    if images and features.dtype == numpy.uint8:
        return features
    check_memory(at, 2 * features.size)
    kind, features = features.dtype, features.astype(numpy.float64)
    bad = ~(abs(features) < LARGEST).reshape(len(features), -1).all(axis=1)
    if bad.any():
        raise BadInput(
            f"{at}, row {bad.argmax()}: a number is missing or beyond {LARGEST:g}; leave out the row"
        )
    if not images:
        return features
    if features.min() >= 0 and features.max() > BRIGHTEST:
        raise BadInput(
            f"{at}: images in {kind} are taken as they are, and these go up to {features.max():g}: save them "
            "as uint8, if they are bytes, or bring them to about -1 to 1 (features / 127.5 - 1)"
        )
    return features.astype(numpy.float32)


def _names(at: str, names: Array, rows: int) -> Words:
    """Labels or clients, which may be numbers or text."""
    if names.shape != (rows,):
        raise BadInput(f"{at}: expected one for each of the {rows} rows, got {names.shape}")
    if names.dtype.kind == "b":
        names = names.astype(numpy.int64)
    if names.dtype.kind == "f" and (abs(names) < 2**53).all() and (names == names.round()).all():
        names = names.astype(numpy.int64)
    if names.dtype.kind not in "iuU":
        raise BadInput(f"{at}: expected whole numbers or text, got {names.dtype}")
    words, number = numpy.unique(names, return_inverse=True)
    missing = [word for word in words.tolist() if str(word).strip().lower() in MISSING]
    if missing:
        row = int((names == missing[0]).argmax())
        raise BadInput(f"{at}, row {row}: the value is missing; fill it in, or leave out the row")
    return Words(number, tuple(str(word) for word in words.tolist()))


READERS = {".csv": _csv, ".npz": _npz}
