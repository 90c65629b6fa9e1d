"""What goes wrong in a person's own code, in a line: what it is, and where in their file."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import Tensor, nn

from fedsaddle.errors import BadInput

# What PyTorch says under maps and gradients, and what it means. (What it says of values is the engine's.)
IN_PLACE = "changes in place what it is given, or what its module keeps; let it make new values"
MEANT = {
    "in-place operation": IN_PLACE,
    "modified inplace": IN_PLACE,
    "have storage": "computes outside PyTorch, as NumPy does, where no gradient can follow: write it in "
    "PyTorch",
    "not require grad": "asks autograd, which has nothing to go by here: take gradients by torch.func.grad",
    "Batching rule not implemented": "has an operation that PyTorch cannot compute for many clients at once: "
    "leave it out, or use --engine loop, executor=Loop()",
}
NOT_THEIRS = {"fedsaddle", "torch", "ray", "flwr", *sys.stdlib_module_names} - {"__main__"}
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def out_of_memory(error: BaseException | None) -> bool:
    """Whether this, or what led to it, is a lack of memory: a GPU's, its libraries' or the machine's."""
    words = ("can't allocate memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words):
            return True
        error = error.__context__
    return False


def is_engines(error: Exception) -> bool:
    """Whether the engine knows what to do: with values in a map, with a recording, or without memory."""
    text = str(error)
    known = text.startswith("vmap:") or "CUDA" in text or "captur" in text
    return isinstance(error, RuntimeError) and (known or out_of_memory(error))


def place_of(error: BaseException) -> str:
    """Where an error comes from: the innermost line that is a person's own, and whose it is."""
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in NOT_THEIRS
    ]
    own = [one for one in frames if not any(part in one[0].f_code.co_filename for part in INSTALLED)]
    if not frames:
        return ""
    frame, line = (own or frames)[-1]
    module = _argument(frame, 0)
    who = type(module).__name__ if isinstance(module, nn.Module) else frame.f_code.co_name
    return f" in {who} ({os.path.basename(frame.f_code.co_filename)}, line {line})"


def _layer_of(error: BaseException) -> str:
    """The innermost of PyTorch's layers in which it failed, and the shape of what that was given."""
    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        layer, given = _argument(frame, 0), _argument(frame, 1)
        if type(layer).__module__.startswith("torch.nn.modules") and isinstance(given, Tensor):
            found = f"; {layer} was given {tuple(given.shape)}"
    return found if "\n" not in found else ""


def _argument(frame: FrameType, place: int) -> object:
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return frame.f_locals.get(names[place]) if place < len(names) else None


def in_words(error: BaseException) -> str:
    """What it is, in a line."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}{_layer_of(error)}"


@contextmanager
def told_in_a_line(who: str, about: Callable[[], str] = str) -> Iterator[None]:
    """Somebody's mistake as bad input, with what there is to say about what it was given.

    What the engine understands, such as memory that ran out, goes on.
    """
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if is_engines(error):
            raise
        meant = next((means for said, means in MEANT.items() if said in str(error)), None)
        if meant is not None:
            raise BadInput(f"{who}{place_of(error)} {meant}") from error
        raise BadInput(f"{who} failed{place_of(error)}{about()}: {in_words(error)}") from error


@contextmanager
def told_if_theirs(who: str) -> Iterator[None]:
    """The same where this package calls a person's code: what is wrong in the package goes on as it is."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and place_of(error):
            with told_in_a_line(who):
                raise
        raise
