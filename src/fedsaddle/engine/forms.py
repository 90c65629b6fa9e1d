"""Convolutions and pooling as matrix products and comparisons, which is how a CPU does them fastest here.

Under vmap a convolution of many clients' images by their own weights becomes one with as many groups, and
PyTorch's libraries are slow at that: small groups do not fill their vectors. One copy that lays out what every
output looks at, and one batched matrix product, take a fraction of the time. Pooling compares four slices
instead of walking through windows. What is not of the usual kind is left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Forms(TorchDispatchMode):
    """While it is on, the operations below are done in these forms."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = FORMS.get(func)
        result = NotImplemented if form is None else form(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


def columns(
    inputs: Tensor, groups: int, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]
) -> Tensor:
    """What each output looks at: (group, channel and place in the kernel, image and place in it)."""
    inputs = torch.constant_pad_nd(inputs, [pad[1], pad[1], pad[0], pad[0]]) if any(pad) else inputs
    images, channels, *size = inputs.shape
    (high, wide), own = kernel, channels // groups
    out = [(whole - part) // by + 1 for whole, part, by in zip(size, kernel, stride, strict=True)]
    image, channel, row, column = inputs.stride()
    seen = inputs.as_strided(
        (groups, own, high, wide, images, *out),
        (own * channel, channel, row, column, image, row * stride[0], column * stride[1]),
    )
    return seen.reshape(groups, own * high * wide, -1)


def _usual(inputs: Tensor, dilation: Sequence[int], transposed: bool) -> bool:
    return inputs.dim() == 4 and not transposed and all(by == 1 for by in dilation)


def convolution(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    out_pad: Sequence[int],
    groups: int,
) -> Any:
    if not _usual(inputs, dilation, transposed):
        return NotImplemented
    kernel = weight.shape[2:]
    out = [(inputs.shape[2 + d] + 2 * pad[d] - kernel[d]) // stride[d] + 1 for d in (0, 1)]
    own, seen = weight.reshape(groups, len(weight) // groups, -1), columns(inputs, groups, kernel, stride, pad)
    flat = torch.bmm(own, seen) if bias is None else torch.baddbmm(bias.reshape(groups, -1, 1), own, seen)
    return flat.view(len(weight), len(inputs), *out).transpose(0, 1)


def convolution_backward(
    grad: Tensor,
    inputs: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    out_pad: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    if not _usual(inputs, dilation, transposed):
        return NotImplemented
    channels, (high, wide), (rows, places) = weight.shape[1], weight.shape[2:], grad.shape[2:]
    flat = grad.transpose(0, 1).reshape(groups, len(weight) // groups, -1)
    to_inputs = to_weight = to_bias = None
    if wanted[0]:
        own = weight.reshape(groups, len(weight) // groups, -1)
        seen = torch.bmm(own.transpose(1, 2), flat)
        seen = seen.view(groups * channels, high, wide, len(inputs), rows, places)
        # The columns are added up where they came from, along each row and then along each column.
        tall, broad = inputs.shape[2] + 2 * pad[0], inputs.shape[3] + 2 * pad[1]
        along = seen.new_zeros(groups * channels, high, len(inputs), rows, broad)
        for at in range(wide):
            along[..., at : at + (places - 1) * stride[1] + 1 : stride[1]].add_(seen[:, :, at])
        whole = seen.new_zeros(groups * channels, len(inputs), tall, broad)
        for at in range(high):
            whole[:, :, at : at + (rows - 1) * stride[0] + 1 : stride[0]].add_(along[:, at])
        inner = whole[:, :, pad[0] : tall - pad[0], pad[1] : broad - pad[1]]
        to_inputs = inner.transpose(0, 1)
    if wanted[1]:
        seen = columns(inputs, groups, (high, wide), stride, pad)
        to_weight = torch.bmm(flat, seen.transpose(1, 2)).view(weight.shape)
    if wanted[2]:
        to_bias = flat.sum(2).view(-1)
    return to_inputs, to_weight, to_bias


def max_pool(
    inputs: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    pad: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> Any:
    """The largest of each 2 x 2 window, and where it is: the first one, if it is there more than once."""
    high, wide = inputs.shape[-2:]
    halves = {*kernel, *(stride or kernel)} == {2} and not any(pad) and {*dilation} == {1}
    if not halves or high % 2 or wide % 2:
        return NotImplemented
    (a, b), (c, d) = ([inputs[..., row::2, column::2] for column in (0, 1)] for row in (0, 1))
    top, bottom = torch.maximum(a, b), torch.maximum(c, d)
    below = bottom > top
    right = torch.where(below, d > c, b > a)
    corner = torch.arange(0, high, 2)[:, None] * wide + torch.arange(0, wide, 2)
    return torch.maximum(top, bottom), corner + right + below * wide


FORMS: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices.default: max_pool,
}
