"""PyTorch's own layers in a person's network, computed for many networks at once as the shipped ones are.

Convolutions and pooling are what PyTorch maps badly (`convolutions.py`, `pooling.py`). While `Mapped` is on,
`torch.nn.Conv2d`, `functional.conv2d` and the like go there, where windows are squares and steps equal; all
else is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedsaddle.convolutions import convolution, transposed
from fedsaddle.pooling import halved

One = int | list[int] | tuple[int, ...]


def _even(size: One) -> int | None:
    """A size that is the same both ways."""
    both = {size} if isinstance(size, int) else set(size)
    return both.pop() if len(both) == 1 else None


def _square(x: Tensor, w: Tensor) -> bool:
    return x.dim() == 4 and w.shape[-1] == w.shape[-2] and x.dtype == w.dtype


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: One = 1,
    padding: One | str = 0,
    dilation: One = 1,
    groups: int = 1,
) -> Tensor | None:
    margin = {"valid": 0}.get(padding) if isinstance(padding, str) else _even(padding)
    step = _even(stride)
    if groups != 1 or _even(dilation) != 1 or step is None or margin is None or not _square(input, weight):
        return None
    return convolution(input, weight, bias, step, margin)


def _conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: One = 1,
    padding: One = 0,
    output_padding: One = 0,
    groups: int = 1,
    dilation: One = 1,
) -> Tensor | None:
    step, margin = _even(stride), _even(padding)
    plain = groups == 1 and _even(dilation) == 1 and _even(output_padding) == 0
    if not plain or step is None or margin is None or not _square(input, weight):
        return None
    return transposed(input, weight, bias, step, margin)


def _max_pool2d(
    input: Tensor,
    kernel_size: One,
    stride: One | None = None,
    padding: One = 0,
    dilation: One = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    sizes = (_even(kernel_size), _even(stride or kernel_size), _even(padding), _even(dilation))
    halves = sizes == (2, 2, 0, 1) and input.dim() == 4 and not ceil_mode and not return_indices
    return halved(input) if halves else None


BATCHED: dict[Any, Callable[..., Tensor | None]] = {
    torch.conv2d: _conv2d,
    torch.conv_transpose2d: _conv_transpose2d,
    torch.max_pool2d: _max_pool2d,
    torch.nn.functional.max_pool2d: _max_pool2d,  # also what nn.MaxPool2d calls: no mode sees what is within
}


class Mapped(TorchFunctionMode):
    """What `BATCHED` can do goes there; it gives None for what it cannot."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = BATCHED.get(func)
        found = None if ours is None else ours(*args, **kwargs)
        return func(*args, **kwargs) if found is None else found
