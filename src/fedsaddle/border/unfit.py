"""Values of an experiment that cannot be what they stand for, answered before PyTorch is waited for.

A value is held against its field's type, as the sources say it, and the type's range; datasets and networks
against their names. What cannot be judged so is left to `schema`, which sees everything again and says the
same: nothing is refused here that would run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsaddle.border import files
from fedsaddle.border.fields import AsWritten, fields_written, tuples, value_written, wanted
from fedsaddle.border.slips import BESIDE_VARIANT, TABLES, VARIANTS, of_ones_own
from fedsaddle.errors import BadInput, check_count, check_device, meant, shown, unknown
from fedsaddle.ranges import check_value

# What would do, where a type alone does not say it well.
WOULD_DO = {
    "samples": "a whole number or [fewest, most]",
    "seeds": "such as '0-4', or a list of whole numbers",
    "sampling": "'uniform', 'size', a list of weights, or { strata = 'COLUMN' }",
    "rate": "a number, a list with one for each client, or such as { label = [one for each stratum] }",
    "slow": "a number, a list with one for each client, or such as { label = [one for each stratum] }",
    "positive": "one of the labels",
    "clip": "a number above 0, or a table with one for parameters, gradients or 'control variates'",
    "norm": "a number above 0, or a table with one for parameters, gradients or 'control variates'",
}
_HUGE = 1e300  # beyond it a whole number may be none that a float can be
Fields = Mapping[str, AsWritten]


def no_such_value(at: str, key: str, told: str, given: object) -> BadInput:
    """A value that is of another type than its key's; `told` is what pydantic says."""
    should = f"should be {WOULD_DO[key]}" if key in WOULD_DO else told.replace("Input should", "should")
    return BadInput(f"{at}: {should}, got {shown(given)[:200]}")


def check_fit(tables: Mapping[str, Any], only: Sequence[str] = (), swept: bool = False) -> None:
    """Refuse a value that cannot be; of the algorithms look at `only` some, of the sweep if it is `swept`."""
    _check_own_keys(tables)
    rules = {name: own for name, own in files.table_in(tables, "algorithms").items() if isinstance(own, dict)}
    rules = {name: own for name, own in rules.items() if not only or name in {meant(x, rules) for x in only}}
    sweep = files.table_in(tables, "sweep")
    for place, (file, part) in TABLES.items():
        if place != "sweep":
            table, known = files.table_in(tables, place), fields_written(file, part)
            _check_types(place, table, known)
            if place == "quorum" and all(own.get("invite") is not None for own in rules.values()):
                known = {key: field for key, field in known.items() if key != "invite"}  # nobody goes by it
            _check_ranges(f"{place}: ", table, known)
    for place in VARIANTS:
        _check_variant(place, files.table_in(tables, place))
    if swept:
        check_sweep(sweep)
    if not swept or not sweep.get("settings"):
        for label, own in rules.items():
            tried = files.table_in(files.table_in(sweep, "grid"), label) if swept else {}
            _check_rule(label, own, tried, tables.get("K"))


def check_sweep(sweep: Mapping[str, Any]) -> None:
    """Refuse a [sweep] with a value that cannot be."""
    known = fields_written(*TABLES["sweep"])
    _check_types("sweep", sweep, known)
    _check_ranges("sweep.", sweep, known)
    check_halving(sweep.get("halving", 0))


def check_halving(halving: int) -> None:
    if halving:
        check_count("sweep.halving (0 keeps every setting to the end)", halving, least=2)


def _check_own_keys(tables: Mapping[str, Any]) -> None:
    """The keys of an experiment itself."""
    formerly = value_written("fleet.py", "FORMERLY")
    judged = {
        key: value
        for key, value in tables.items()
        if key != "code" and not (key == "cohorts" and isinstance(value, str) and value in formerly)
    }
    known = fields_written("border/schema.py", "Experiment")
    _check_types("", judged, known, needed=True)
    _check_ranges("", judged, known)
    if isinstance(seeds := tables.get("seeds"), str):
        files.parse_seeds(seeds)
    check_device(tables.get("device", "cpu"))


def _check_variant(place: str, table: Mapping[str, Any]) -> None:
    key, file, registry, usual = VARIANTS[place]
    known, chosen = files.classes(file, registry), table.get(key, usual)
    if not isinstance(chosen, str) or chosen not in known:
        return
    fields = dict(fields_written(file, known[chosen]))
    if place in BESIDE_VARIANT:
        fields |= fields_written(*BESIDE_VARIANT[place])
        del fields[key]
    given = {name: value for name, value in table.items() if name != key}
    _check_types(place, given, fields, needed=True)
    if place == "problem":
        _check_data(known[chosen], given, fields)
    _check_ranges(f"{place}: ", given, fields)


def _check_data(task: str, given: Mapping[str, Any], fields: Fields) -> None:
    """The names of a problem's dataset and network; what has a column of labels takes a file too."""
    gan, file = task == "GAN", "label" in fields
    name = given.get("dataset", "digits")
    names: Collection[str] = value_written("problems/gan.py", "DATA") if gan else files.datasets()
    ours = not file or Path(name).suffix.lower() not in files.classes("data/readers.py", "READERS")
    if "dataset" in fields and name not in names and ours and not of_ones_own("datasets", name):
        hint = "; or give the path of a .csv or .npz file" if file else ""
        raise BadInput(f"problem: {unknown('dataset', name, names)}{hint}")
    if task in ("GAN", "AUC") and (name := given.get("network")) is not None:
        names = files.classes("problems/gan.py", "PLAYERS") if gan else files.networks()
        if name not in names and not of_ones_own("networks", name):
            raise BadInput(f"problem: {unknown('network', name, names)}")


def _check_rule(label: str, table: Mapping[str, Any], tried: Collection[str], K: object) -> None:
    """The hyperparameters of an algorithm, but for those of which a sweep tries several."""
    home, where, name = "algorithms/__init__.py", f"algorithms.{label}", table.get("algorithm", label)
    classes = files.classes(home, "ALGORITHMS")
    if not isinstance(name, str) or name not in classes:
        return
    if table.get("invite") is not None:
        check_count(f"{where}.invite", table["invite"])
    elsewhere = {*tried, *files.fixed(home, "ALGORITHMS", name)}
    every = {**fields_written(*TABLES["steady"]), **fields_written(home, classes[name])}
    fields = {key: field for key, field in every.items() if key not in elsewhere}
    given = table if K is None else {"K": K, **table}
    _check_types(where, given, fields, needed=True)
    _check_ranges(f"{where}: ", given, fields)


def _check_types(where: str, table: Mapping[str, Any], known: Fields, needed: bool = False) -> None:
    for key, field in known.items():
        at = f"{where}.{key}" if where else key
        if key in table:
            given = table[key] if where in ("", "sweep") else tuples(table[key])
            should = wanted(field.hint, given)
            if should is not None:
                raise no_such_value(at, key, f"should be {should}", given)
        elif needed and field.needed:
            raise BadInput(f"{at} is missing")


def _check_ranges(at: str, table: Mapping[str, Any], known: Fields) -> None:
    """Hold the numbers of a table against their ranges; `at` comes before their names."""
    for key, field in known.items():
        value = table.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _HUGE:
            check_value(at + key, value, field.hint)
