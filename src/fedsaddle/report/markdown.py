"""Pages of Markdown: tables, and numbers as a person says them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """A table of Markdown."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |"
    yield ""


def number(value: float) -> str:
    return f"{value:.4g}"


def all_named(words: Sequence[str]) -> str:
    return " and ".join(words) or "unknown"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.1f} minutes"
