"""The board as one HTML file with filters, which needs no other and no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsaddle import __version__
from fedsaddle.board.costs import BUDGETS, TOLD_BUDGETS
from fedsaddle.board.page import Hung, fares_of, tally_of_tables
from fedsaddle.board.standings import Standing, Standings, verdict_on
from fedsaddle.board.tasks import FLEETS_TOLD
from fedsaddle.report.markdown import all_named, duration
from fedsaddle.report.page import as_block, filled
from fedsaddle.runs import write_atomically

SCRIPTS_OF_A_BOARD = ("base", "board")


def write_html(hung: Hung, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = filled(as_block(_shown(hung)), template="board.html", scripts=SCRIPTS_OF_A_BOARD)
    write_atomically(path, text.encode())


def _shown(hung: Hung) -> dict[str, Any]:
    """All that the page shows."""
    form, spent = hung.form, hung.spent
    names = dict.fromkeys(one.task for one in hung.tables)
    return {
        "version": __version__,
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "little": form.name != "whole",
        "command": hung.command,
        "told": tally_of_tables(hung),
        "commits": all_named(spent.commits),
        "devices": all_named(spent.devices),
        "spent": duration(spent.seconds),
        "settings": form.settings,
        "tuning": form.seeds_of_tuning,
        "seeds": form.seeds,
        "tasks": {name: form.tasks[name].title for name in names},
        "fleets": {one.fleet: FLEETS_TOLD[one.fleet] for one in hung.tables},
        "kinds": {kind: TOLD_BUDGETS[kind] for kind in BUDGETS},
        "tables": [_table(one) for one in hung.tables],
        "fares": [one._asdict() for one in fares_of(hung.tables)],
        "sources": {one.label: one.ranges.source for one in hung.entrants},
        "absent": sorted({f"{place.rpartition('/')[2]}: {why}" for place, why in hung.left_out.items()}),
    }


def _table(one: Standings) -> dict[str, Any]:
    return {
        **{
            key: getattr(one, key)
            for key in ("task", "fleet", "kind", "metric", "better", "ratios", "lost", "open")
        },
        "won": one.won,
        "leading": one.leading,
        "verdict": verdict_on(one).replace("**", ""),
        "rows": [_placed(row) for row in one.rows],
    }


def _placed(row: Standing) -> dict[str, Any]:
    told = row.behind
    return {
        **{key: getattr(row, key) for key in ("label", "low", "high", "failed", "seeds", "setting")},
        "value": _finite([row.value])[0],
        "interval": _finite(row.interval),
        "effect": told and _finite([told.effect, *told.interval]),
        "rival": told and (told.rival if told.one == row.label else told.one),
        "by": told and told.by,
        "p": row.p,
        "spent": {kind: _finite([value])[0] for kind, value in row.spent.items()},
    }


def _finite(values: Sequence[float]) -> list[float | None]:
    """Seven digits; what is not finite is not there."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values]
