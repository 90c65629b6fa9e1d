"""What is said where a folder is asked to go on with something else than it was begun with."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DIFFERENCES = 3  # differences that are named
ALGORITHMS_NAMED = 4  # algorithms
LONGEST_VALUE = 40  # characters of a value


def way_on(path: Path, was: Mapping[str, Any], command: str) -> str:
    """With what a folder goes on: a `command` that needs nothing beside, if there is one."""
    if "python" in was:
        return "the same values"
    if not command:
        return "the same options"
    but = " but --code" if "code" in was else ""
    return f"fedsaddle {command} --resume --out {shlex.quote(str(path))}, which needs no other options{but}"


def fewer_rounds(was: Mapping[str, Any], state: Mapping[str, Any] | None) -> str:
    """Of a run that has begun more rounds than it is asked for now."""
    had = f", and {state['algorithm']} has had {state['round']}" if state else ""
    return f"was asked for {was['rounds']} rounds{had}; it may be given more, not fewer"


def how_they_differ(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In what two experiments differ: whole keys first, and algorithms last, for they are many."""
    keys = sorted({*was, *now} - {"algorithms"}, key=lambda key: (key != "name", key))
    found = [_first(was.get(key), now.get(key), key) for key in keys if was.get(key) != now.get(key)]
    mine, theirs = list(was["algorithms"]), list(now["algorithms"])
    if mine != theirs and sorted(mine) == sorted(theirs):
        found.append("the algorithms are in another order")
    elif mine != theirs:
        found.append(f"the run has {_listed(mine)}; this asks for {_listed(theirs)}")
    elif was["algorithms"] != now["algorithms"]:
        found.append(_first(was["algorithms"], now["algorithms"], "algorithms"))
    more = f"; and {len(found) - DIFFERENCES} more" if len(found) > DIFFERENCES else ""
    return "; ".join(found[:DIFFERENCES]) + more


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= ALGORITHMS_NAMED else f"{len(names)} algorithms"


def _first(was: Any, now: Any, at: str) -> str:
    if isinstance(was, dict) and isinstance(now, dict):
        key = next(key for key in sorted({*was, *now}) if was.get(key) != now.get(key))
        return _first(was.get(key), now.get(key), f"{at}.{key}")
    return f"{at} was {_told(was)}, is {_told(now)}"


def _told(value: Any) -> str:
    text = "not there" if value is None else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} ..."
