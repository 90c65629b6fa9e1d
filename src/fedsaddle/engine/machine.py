"""What a whole process does to compute fast. Programs call it; importing the library changes nothing."""

from __future__ import annotations

import ctypes

import torch

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of glibc's mallopt


def prepare(threads: int = 1, tf32: bool = False) -> None:
    """Set the number of PyTorch's threads and how a GPU multiplies, and keep memory that was freed."""
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    _keep_memory()


def _keep_memory() -> None:
    """Let freed memory be used again instead of giving it back to the system.

    Every step of a walk makes and frees the same large tensors. By default each of them is new memory that
    the system must first fill with zeros: a third of the time of a small network.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_TOP_PAD, 64 << 20)
