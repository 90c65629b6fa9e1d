"""The checkpoint before the last, to fall back to when a disk has damaged the last one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from fedsaddle.errors import BadInput
from fedsaddle.runs.checkpoints import read_checkpoint
from fedsaddle.runs.files import verify, write_atomically

CURRENT, BEFORE = "checkpoint.json", "checkpoint-before.json"
LARGEST_STATE = 2**27  # bytes of a state; a larger one is not kept twice


def put_aside(folder: Path, state: dict[str, Any] | None) -> None:
    """Keep the present checkpoint while the next one is made. Its state file stays where it is."""
    with contextlib.suppress(OSError):
        small = state is None or (folder / state["file"]).stat().st_size <= LARGEST_STATE
        (folder / BEFORE).unlink(missing_ok=True)
        if small:
            (folder / BEFORE).hardlink_to(folder / CURRENT)  # the next one replaces the name, not the file


def state_before(folder: Path) -> dict[str, Any] | None:
    """What the checkpoint before says of its state, if there is one."""
    try:
        state: dict[str, Any] | None = read_checkpoint(folder, BEFORE)["state"]
        return state
    except BadInput:
        return None


def recovered(folder: Path) -> bool:
    """Go back to the checkpoint before if the last one, or its state, is damaged; whether it was."""
    try:
        _check(folder, CURRENT)
        return False
    except BadInput as error:
        try:
            _check(folder, BEFORE)
        except BadInput:
            raise error from None
    write_atomically(folder / CURRENT, (folder / BEFORE).read_bytes())
    return True


def _check(folder: Path, name: str) -> None:
    state = read_checkpoint(folder, name)["state"]
    if state:
        verify(folder / state["file"], state["sha256"])
