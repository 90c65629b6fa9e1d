"""The command line.

    board       all algorithms on all tasks and fleets
    commands    what can be asked for
    doctor      what is wrong or slow here
    keys        who is the server, and who may join
    models      the commands that use what was trained
    new         the first files of something of one's own
    options     what commands may be told, each option once
    progress    how far a run is, and how long it will still take
    reproduce   the paper's figures and tables, run again
    tables      what it has come to
    watch       the report of a run that goes on

What a command does is in `app`. This module imports nothing that takes time, so that Ctrl-C is quiet from the
first moment on.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import warnings
from types import FrameType
from typing import Any

from fedsaddle.exits import BAD_INPUT, INTERRUPTED


def main() -> None:
    """Run the command line; what a person can put right ends in one line."""
    _mend_streams()
    usual = (signal.default_int_handler, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) in usual:  # else somebody wants it otherwise
        signal.signal(signal.SIGINT, _leave)

    import click

    from fedsaddle.cli.commands import app
    from fedsaddle.errors import BadInput

    _show_notices()
    words = sys.argv[1:]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        sys.exit(app(words, standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError:
        sys.exit(BAD_INPUT)  # the help has been shown
    except (BadInput, click.UsageError) as error:
        told = error.format_message() if isinstance(error, click.UsageError) else str(error)
        print(f"error: {BadInput(told)}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        runs = {"run", "sweep", "serve", "local", "reproduce", "board"} & set(sys.argv[1:])
        hint = "; a run that was saved can be resumed" if runs else ""
        print(f"error: {error.strerror or error}{where}{hint}", file=sys.stderr)
        sys.exit(1)
    except RuntimeError as error:
        from fedsaddle.mishaps import out_of_memory

        if not out_of_memory(error):
            raise
        print(
            "error: memory ran out: lower batch, K or the number of seeds, or use a machine with more; a run "
            "that was saved can be resumed",
            file=sys.stderr,
        )
        sys.exit(1)


def _show_notices() -> None:
    """Let what a person should hear be a line, not a line of the source."""
    from fedsaddle.errors import Notice

    otherwise = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        slow = re.match("There is a performance drop.* batching rule for ([^ ]+)[.] ", str(message))
        if slow:
            message = f"PyTorch computes {slow[1]} for one client after another, which is slower than for all"
        if slow or issubclass(category, Notice):
            print(f"note: {message}", file=sys.stderr, flush=True)
        else:
            otherwise(message, category, *rest)

    warnings.showwarning = show  # type: ignore[assignment]


def _leave(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. During an import nothing is under way yet, and what is raised there may be lost or misread."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _mend_streams() -> None:
    """Put something where a stream is closed: the next file that is opened would take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the first number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without the sign ± is no reason to fail
