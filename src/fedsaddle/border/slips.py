"""Slips in an experiment's names, answered before PyTorch is waited for.

The schema is the dataclasses themselves, and importing those takes seconds. So what they and their fields are
called is read off the sources. Values are `unfit`'s affair; and `schema` sees everything again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedsaddle.border import files, plugins
from fedsaddle.border.fields import fields_written
from fedsaddle.errors import BadInput, meant, unknown

# Tables one of whose keys says what else they may hold: which one, where its values are, and the usual one.
VARIANTS = {
    "problem": ("name", "problems/__init__.py", "PROBLEMS", None),
    "fleet": ("model", "fleet.py", "FLEETS", None),
    "merge": ("rule", "merges.py", "MERGES", "mean"),
}
TABLES = {
    "quorum": ("fleet.py", "Quorum"),
    "checks": ("checks.py", "Checks"),
    "faults": ("faults.py", "Faults"),
    "steady": ("steady.py", "Steady"),
    "sweep": ("border/schema.py", "Sweep"),
}
BESIDE_VARIANT = {"merge": ("merges.py", "Merge")}  # where keys are that do not depend on the variant


def check_names(tables: Mapping[str, Any], only: Sequence[str] = ()) -> None:
    """Refuse an experiment with a key or a name that is not known; of the algorithms, look at `only` some."""
    for key in tables:
        if key not in (known := keys_of("border/schema.py", "Experiment")):
            raise unknown_key(key, tables, known)
    for place, (file, part) in TABLES.items():
        _known_in(f"key in {place}", tables.get(place), keys_of(file, part))
    for place in VARIANTS:
        if isinstance(tables.get(place), dict):
            _look_at_variant(place, tables[place])
    given, bounds = tables.get("algorithms"), keys_of("steady.py", "Steady")
    rules = given if isinstance(given, dict) else {}
    home, classes = "algorithms/__init__.py", files.classes("algorithms/__init__.py", "ALGORITHMS")
    for label, own in rules.items():
        name = own.get("algorithm", label) if isinstance(own, dict) else None
        if isinstance(name, str) and (not only or label in {meant(one, rules) for one in only}):
            if name in classes:
                hyper = keys_of(home, classes[name])
                _known_in(f"key in algorithms.{label}", own, hyper, ("algorithm", "invite", *bounds))
            elif not of_ones_own("algorithms", name):
                raise unknown("algorithm", name, classes)


def _look_at_variant(place: str, table: dict[str, Any]) -> None:
    key, file, registry, usual = VARIANTS[place]
    chosen, classes = table.get(key, usual), files.classes(file, registry)
    if not isinstance(chosen, str) or chosen not in classes:
        if isinstance(chosen, str) and not of_ones_own(f"{place}s", chosen):
            raise unknown(place, chosen, classes)
        return
    beside = keys_of(*BESIDE_VARIANT[place]) if place in BESIDE_VARIANT else frozenset()
    known = {name: keys_of(file, part) | beside for name, part in classes.items()}
    for own in table:
        if own != key and own not in known[chosen]:
            raise no_such_key(place, own, key, chosen, known)


def unknown_key(key: str, tables: Mapping[str, Any], known: Collection[str]) -> BadInput:
    """A key of an experiment that there is none of; an algorithm's name stands for its table."""
    rules = tables.get("algorithms")
    if isinstance(rules, dict) and (label := meant(key, rules)) in rules:
        return BadInput(
            f"unknown key '{key}'; did you mean 'algorithms.{label}'? known: {', '.join(sorted(known))}"
        )
    return unknown("key", key, known)


def no_such_key(
    where: str, given: str, key: str, chosen: str, known: Mapping[str, Collection[str]]
) -> BadInput:
    """A key that does not go with the `chosen` variant, of all that are known with their keys."""
    having = [f"'{name}'" for name, keys in known.items() if given in keys]
    if not having:
        return unknown(f"key in {where}", given, {key, *known[chosen]})
    return BadInput(
        f"unknown key in {where} '{given}'; it goes with {key} {' or '.join(having)}, and {key} is "
        f"'{chosen}'; {key} may be {', '.join(sorted(known))}"
    )


def _known_in(what: str, table: object, known: Collection[str], beside: Sequence[str] = ()) -> None:
    for key in table if isinstance(table, dict) else ():
        if key not in known and key not in beside:
            raise unknown(what, str(key), known)


def of_ones_own(group: str, name: str) -> bool:
    """Whether a name is of code that is not shipped."""
    if plugins.reference_in(name) is not None:
        return True
    return any(point[:2] == (group, name) for point in plugins.entry_points(group))


def keys_of(file: str, name: str) -> frozenset[str]:
    """What a class of a file, or one that the file imports, is given when it is made."""
    return frozenset(fields_written(file, name))


EVERYTHING = "all"


def exhibits_named(names: Sequence[str]) -> list[str]:
    """The exhibits of the paper that are meant; `all` is every one."""
    known = [
        *files.first_words("paper/exhibits.py", "Exhibit"),
        *files.first_words("paper/trials.py", "Panel"),
    ]
    if not names:
        raise BadInput(f"say what: {EVERYTHING}, or some of {', '.join(known)}")
    found = list(dict.fromkeys(meant(name, [EVERYTHING, *known]) for name in names))
    for name in found:
        if name not in known and name != EVERYTHING:
            raise unknown("exhibit", name, [EVERYTHING, *known])
    return known if EVERYTHING in found else found


def check_has_grid(sweep: object) -> None:
    """Refuse a [sweep] that says nothing of what is tried."""
    if not isinstance(sweep, dict) or not (sweep.get("grid") or sweep.get("settings")):
        raise BadInput("the experiment has no grid; add a table such as [sweep.grid.cdma-one]")
