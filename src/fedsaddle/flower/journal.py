"""What is said, with the time; and a log of who asked and answered what, for who must account for it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedsaddle.errors import printable

LONGEST_LOG = 1 << 24  # bytes; then it is put aside, and the one that was put aside before is removed


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def say(line: str) -> None:
    """Tell whoever watches this process."""
    print(f"{now()} {printable(line)}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Journal:
    """An audit log: a line of JSON for each thing that happened, which only its user can read."""

    path: Path

    def note(self, event: str, **facts: object) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size > LONGEST_LOG:
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        line = json.dumps({"time": now(), "event": event, **facts}) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line.encode())  # whole: other processes write to the same file
        finally:
            os.close(file)

    def note_if_it_can(self, event: str, **facts: object) -> None:
        """The same where nothing may end for want of a log: that it cannot be written is said."""
        try:
            self.note(event, **facts)
        except OSError as error:
            say(f"{self.path} cannot be written: {error.strerror}")

    def say(self, line: str) -> None:
        """Say a line, and write it down."""
        say(line)
        self.note_if_it_can("said", line=line)
