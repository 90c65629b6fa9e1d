"""What is said to a person whose input cannot be used: one line, what was wrong and what would do."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

LONGEST = 600  # characters of a message; what was given may be of any length
MOST = 10**9  # a count beyond this is a slip, not a wish


class BadInput(ValueError):
    """Input that cannot be used. The message is complete in one line, whatever was given."""

    def __init__(self, message: str) -> None:
        line = printable(message)
        super().__init__(line if len(line) <= LONGEST else line[: LONGEST - 4] + " ...")


class Notice(UserWarning):
    """What a person should hear though the run goes on: something is slower, or less than was asked for."""


def printable(text: str) -> str:
    """In one line, and without what a terminal would take for a command."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def meant(given: str, known: Iterable[str]) -> str:
    """The name that was given; if it is not known, the one that differs from it in capitals alone."""
    known = list(known)
    same = [name for name in known if name.lower() == given.lower()]
    return same[0] if given not in known and len(same) == 1 else given


def unknown(what: str, given: str, known: Iterable[str]) -> BadInput:
    """An unknown name: the nearest right one, and all of them."""
    known = sorted(known)
    if not known:
        return BadInput(f"unknown {what} '{given[:80]}'; there is none to be set or chosen here")
    small = {name.lower(): name for name in known}
    near = get_close_matches(given.lower(), small, n=1)
    hint = f"did you mean '{small[near[0]]}'? " if near else ""
    return BadInput(f"unknown {what} '{given[:80]}'; {hint}known: {', '.join(known)}")


def another_experiment(
    folder: Path, change: str, kind: str, has_code: bool = False, in_python: bool = False
) -> BadInput:
    """A folder holds another experiment than is to go on there; of a `kind`, the folder alone goes on."""
    needs = "options but --code" if has_code else "options"
    alone = f"fedsaddle {kind} --resume --out {shlex.quote(str(folder))}, which needs no other {needs}"
    how = "the same values" if in_python else alone if kind else f"the same {needs}"
    told = f"{folder} was made by another experiment ({change})"
    return BadInput(f"{told}: resume it with {how}, or choose another --out")


def is_machines(error: OSError) -> bool:
    """Whether it is this machine that failed, such as a full disk, and no other input would do."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def shown(value: object) -> str:
    """What was given, as far as it can be shown."""
    try:
        return repr(value)
    except ValueError:  # Python does not print numbers of thousands of digits
        return "a number of thousands of digits"


def check_count(name: str, value: object, least: int = 1, most: int = MOST) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} must be a whole number, got {shown(value)}")
    if value < least:
        raise BadInput(f"{name} must be at least {least}, got {shown(value)}")
    if value > most:
        raise BadInput(f"{name} must be at most {most}, got {shown(value)}")


def check_seed(name: str, value: object) -> None:
    check_count(name, value, least=0, most=2**63 - 1)


def check_device(name: str) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name):
        raise BadInput(f"device must be auto, cpu or cuda, got '{name}'")


def without_effect(one: Any, why: Mapping[str, str]) -> list[str]:
    """Of the fields of a dataclass that have no effect, and `why`, those that somebody has set.

    That is: to something else than the default, which an experiment.json holds and nobody has asked for.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(one)}
    return [
        f"{name} = {shown(getattr(one, name))} has no effect: {reason}"
        for name, reason in why.items()
        if getattr(one, name) != defaults[name]
    ]


def check_memory(what: str, floats: int) -> None:
    """Refuse what this machine cannot hold, before it is tried."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 8 * floats > there / 2:
        raise BadInput(
            f"{what} would take {8 * floats / 2**30:.3g} GiB; this machine has {there / 2**30:.3g}"
        )
