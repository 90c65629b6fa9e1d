"""What goes wrong in a person's own code, in a line: what it is, and where in their file."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from fedsaddle.errors import BadInput

MISTAKES = (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError)
# What PyTorch says under maps and gradients, and what it means. (What it says of values is the engine's.)
MEANT = {
    "in-place operation": "changes in place what it is given, or what its module keeps; let it make new "
    "values",
    "have storage": "computes outside PyTorch, as NumPy does, which many clients at once cannot: write it in "
    "PyTorch, or use --engine loop, executor=Loop()",
    "Batching rule not implemented": "has an operation that PyTorch cannot compute for many clients at once: "
    "leave it out, or use --engine loop, executor=Loop()",
}


def place_of(error: BaseException) -> str:
    """Where an error comes from: the innermost line that is neither PyTorch's nor ours, and whose it is."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        home = frame.f_globals.get("__name__", "").partition(".")[0]
        if home not in ("torch", "fedsaddle"):
            module = frame.f_locals.get("self")
            own = isinstance(module, nn.Module)
            who = type(module).__name__ if own else frame.f_code.co_name
            found = f" in {who} ({os.path.basename(frame.f_code.co_filename)}, line {line})"
    return found


@contextmanager
def told_in_a_line(who: str) -> Iterator[None]:
    """Somebody's mistake as bad input. What the engine understands, such as memory that ran out, goes on."""
    try:
        yield
    except BadInput:
        raise
    except MISTAKES as error:
        why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise BadInput(f"{who} failed{place_of(error)}: {why}") from error
    except RuntimeError as error:
        meant = next((means for said, means in MEANT.items() if said in str(error)), None)
        if meant is None or str(error).startswith("vmap:"):
            raise
        raise BadInput(f"{who} {meant}{place_of(error)}") from error
