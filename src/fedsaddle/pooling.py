"""Pooling of many networks at once: PyTorch's own is slow on a CPU, and its map copies on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedsaddle.convolutions import spelt_out


def _corners(x: Tensor) -> list[Tensor]:
    return [x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]]


class _Halve(torch.autograd.Function):
    """The largest of each 2 x 2 window."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        a, b, c, d = _corners(x)
        return torch.maximum(torch.maximum(a, b), torch.maximum(c, d))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _Unhalve.apply(g, *ctx.saved_tensors)


class _Unhalve(torch.autograd.Function):
    """Its gradient, which goes to the first of the largest, as PyTorch's does."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, x: Tensor) -> Tensor:
        a, b, c, d = _corners(x)
        where_positive = torch.ops.aten.threshold_backward  # its first, where its second is positive, or zero
        below = where_positive(g, torch.maximum(c, d) - torch.maximum(a, b), 0)
        above = g - below
        right, low_right = where_positive(above, b - a, 0), where_positive(below, d - c, 0)
        back = torch.empty_like(x)
        parts = (above - right, right, below - low_right, low_right)
        for place, part in zip(_corners(back), parts, strict=True):
            place.copy_(part)
        return back

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, back: Tensor) -> Any:
        (a, b, c, d), (to_a, to_b, to_c, to_d) = _corners(ctx.saved_tensors[0]), _corners(back)
        above, below = torch.where(b > a, to_b, to_a), torch.where(d > c, to_d, to_c)
        return torch.where(torch.maximum(c, d) > torch.maximum(a, b), below, above), None


class _Pool(torch.autograd.Function):
    """PyTorch's own on a GPU. Mapped, it has more rows; PyTorch's rule would copy where the largest were."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = torch.ops.aten.max_pool2d_with_indices(x, [2, 2])
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        return _Unpool.apply(g, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor) -> Any:
        x = x.movedim(dims[0], 0)
        if x.stride(0) < x.stride(1):  # each row holds them all: as more channels, nothing is copied
            found = _Pool.apply(x.transpose(0, 1).flatten(1, 2))
            return tuple(rows.unflatten(1, (info.batch_size, -1)) for rows in found), (1, 1)
        found = _Pool.apply(x.flatten(0, 1))
        return tuple(rows.unflatten(0, (info.batch_size, -1)) for rows in found), (0, 0)


class _Unpool(torch.autograd.Function):
    """Its gradient."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, largest: Tensor) -> Tensor:
        back: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, largest
        )
        return back

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, back: Tensor) -> Any:
        (largest,) = ctx.saved_tensors
        return back.flatten(2).gather(2, largest.flatten(2)).view(largest.shape), None, None

    @staticmethod
    def vmap(info: Any, dims: Any, *tensors: Tensor) -> Any:
        there = (spelt_out(info.batch_size, dim, tensor) for dim, tensor in zip(dims, tensors, strict=True))
        return _Unpool.apply(*there).unflatten(0, (info.batch_size, -1)), 0


def halved(x: Tensor) -> Tensor | None:
    """The largest of each 2 x 2 window; None if a row or column is left over on a CPU."""
    if not x.is_cuda and (x.shape[-1] % 2 or x.shape[-2] % 2):
        return None
    found: Tensor = _Pool.apply(x)[0] if x.is_cuda else _Halve.apply(x)
    return found


class MaxPool2d(nn.MaxPool2d):
    """PyTorch's, by comparing four slices on a CPU, where walking through windows is slow."""

    def forward(self, x: Tensor) -> Tensor:
        halves = (self.kernel_size, self.stride, self.padding, self.dilation) == (2, 2, 0, 1)
        found = halved(x) if halves else None
        return super().forward(x) if found is None else found
