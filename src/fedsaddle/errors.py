"""What is said to a person whose input cannot be used: one line, what was wrong and what would do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class BadInput(ValueError):
    """Input that cannot be used. The message is complete in one line."""


def unknown(what: str, given: str, known: Iterable[str]) -> BadInput:
    """An unknown name: the nearest right one, and all of them."""
    known = sorted(known)
    near = get_close_matches(given, known, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return BadInput(f"unknown {what} '{given}'; {hint}known: {', '.join(known)}")


def check_count(name: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise BadInput(f"{name} must be at least {least}, got {value}")
