"""A line for when this process is ended from within, and Python has no say: by Ray, if its cluster dies."""

from __future__ import annotations

import contextlib
import subprocess
import sys

# Reads until this process has closed its end of the pipe, as any end of it does.
WATCH = "import sys; sys.stdin.read() or print(sys.argv[1], file=sys.stderr, flush=True)"


class Witness:
    """A small process beside this one that says a line on stderr, unless it is dismissed before."""

    def __init__(self, line: str) -> None:
        # In a session of its own: Ctrl-C is not for it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WATCH, line],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        with contextlib.suppress(OSError):  # it is gone
            self._process.communicate(b"dismissed")
