"""What a whole process does to compute fast. Programs call it; importing the library changes nothing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedsaddle.errors import BadInput, check_device

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of glibc's mallopt


def device_named(name: str) -> torch.device:
    """cpu, cuda (or cuda:1), or auto: a GPU if there is one."""
    there = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if there else "cpu")
    check_device(name)
    device = torch.device(name)
    if device.type == "cuda" and (not there or (device.index or 0) >= torch.cuda.device_count()):
        raise BadInput(f"device {name}: this PyTorch finds {torch.cuda.device_count()} GPUs; use device cpu")
    return device


def prepare(threads: int = 1, tf32: bool = False, deterministic: bool = False) -> None:
    """Set the number of PyTorch's threads and how a GPU computes, and keep memory that was freed.

    `deterministic` makes a GPU add in the same order every time: the same bits, for some time.
    """
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    if deterministic:
        fix_workspace()
        torch.backends.cudnn.benchmark = False  # which takes what is fastest at the moment
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # to say it imports PyTorch's compiler
        torch.use_deterministic_algorithms(deterministic)
    _keep_memory()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads of PyTorch, and memory that is kept, for as long as this lasts.

    A GPU's convolutions are as exact as its products: by default PyTorch rounds the former to TF32 only.
    """
    before, rounds = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(count)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32
    _keep_memory()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cudnn.allow_tf32 = rounds


@contextmanager
def restored() -> Iterator[None]:
    """Whatever `prepare` sets meanwhile, PyTorch is as before afterwards."""
    backends, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    flags = backends.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        if torch.are_deterministic_algorithms_enabled() != before[1]:
            torch.use_deterministic_algorithms(before[1])
        backends.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = flags


def fix_workspace() -> None:
    """Let cuBLAS always compute in the same place.

    A deterministic GPU needs it. cuBLAS reads this when it is first used, so it must be said before that.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


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
