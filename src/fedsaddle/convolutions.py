"""Convolutions of many networks at once.

Under vmap, PyTorch makes one grouped convolution of many, and its libraries compute that group by group.
Here, on a GPU, the windows of all groups become one batch of matrices (im2col), multiplied in one call.
Channels come last in memory, as the products leave them, so that no layer copies them. A CPU does the same if
channels are too few to fill its vectors; there the places of a window come first: long rows are copied.

Three operations are the derivatives of one another. Each takes tensors whose first dimension is the group;
vmap makes that one longer, so any nesting of maps is one call.

    convolve    x, w -> y       a convolution
    spread      y, w -> x       its transpose, a transposed convolution
    correlate   x, y -> w       the gradient of its weights
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, pad
from torch.nn.grad import conv2d_weight


class Grid(NamedTuple):
    """Where the windows lie: squares of `side`, `stride` apart, on a picture that has a margin of zeros."""

    side: int
    stride: int
    margin: int
    height: int  # of the picture, without its margin
    width: int


def _windows(x: Tensor, grid: Grid) -> Tensor:
    """im2col: (group, row, channel, height, width) -> (group, window, side x side x channel)."""
    side, stride, margin = grid[:3]
    x = x.permute(0, 1, 3, 4, 2)
    x = _paired((pad(x, (0, 0, *(margin,) * 4)) if margin else x).contiguous())
    seen = x.unfold(2, side, stride).unfold(3, side, stride)  # the sides come last
    return _single(seen.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(x), -1, side * side * x.shape[4]))


def _paired(x: Tensor) -> Tensor:
    """Two channels at a time, as one complex number, if there are pairs: half as many for a GPU to move."""
    pairs = x.shape[-1] % 2 == 0 and x.storage_offset() % 2 == 0
    return torch.view_as_complex(x.unflatten(-1, (-1, 2))) if pairs else x


def _single(x: Tensor) -> Tensor:
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x


def _flat(w: Tensor) -> Tensor:
    """(group, out, channel, side, side) -> (group, out, side x side x channel)."""
    return w.permute(0, 1, 3, 4, 2).flatten(2)


def _listed(y: Tensor) -> Tensor:
    """(group, row, channel, down, across) -> (group, window, channel)."""
    return y.permute(0, 1, 3, 4, 2).reshape(len(y), -1, y.shape[2])


def _columns(x: Tensor, grid: Grid) -> Tensor:
    """im2col: (group, row, channel, height, width) -> (group, channel x side x side, window)."""
    side, stride, margin = grid[:3]
    x = pad(x, (margin,) * 4) if margin else x
    seen = x.unfold(3, side, stride).unfold(4, side, stride).permute(0, 2, 5, 6, 1, 3, 4)
    return seen.reshape(len(x), x.shape[2] * side * side, -1)


def _added_up(columns: Tensor, grid: Grid, windows: tuple[int, int, int]) -> Tensor:
    """col2im: the columns where they came from, added up where windows overlap: along rows, then columns."""
    side, stride, margin, height, width = grid
    (rows, down, across), groups = windows, len(columns)
    parts = columns.view(groups, -1, side, side, rows, down, across)
    channels, wide, high = parts.shape[1], width + 2 * margin, height + 2 * margin
    bands = columns.new_zeros(groups, channels, side, rows, down, wide)
    for at in range(side):
        bands[..., at : at + (across - 1) * stride + 1 : stride].add_(parts[:, :, :, at])
    whole = columns.new_zeros(groups, channels, rows, high, wide)
    for at in range(side):
        whole[..., at : at + (down - 1) * stride + 1 : stride, :].add_(bands[:, :, at])
    return whole[..., margin : margin + height, margin : margin + width].transpose(1, 2)


def _joined(y: Tensor) -> Tensor:
    """(group, row, channel, down, across) -> (group, channel, window)."""
    return y.transpose(1, 2).flatten(2)


def _pays(on_gpu: bool, groups: int, rows: int, channels: int, grid: Grid) -> bool:
    """Whether windows are worth their memory, for so many pictures in each group.

    On an H200 they take at most 0.9 of cuDNN's time for 8 groups of LeNet5, 0.65 for 64, a sixth for 512.
    On a CPU they pay if the channels of a picture would not fill a vector and a group's windows stay near.
    """
    if on_gpu:
        return groups >= 8
    side, stride, margin = grid[:3]
    windows = math.prod((size + 2 * margin - side) // stride + 1 for size in (grid.height, grid.width))
    return channels < 16 and rows * windows * channels * side * side <= 1 << 22


def _shares(groups: int, rows: int, shape: tuple[int, int, int, int]) -> int:
    """In how many parts a group's rows are correlated, so that a GPU has enough to do at the same time.

    A product of few weights and many windows is one long sum, which one of its processors would add up alone.
    """
    tiles = -(-shape[0] // 32) * -(-math.prod(shape[1:]) // 32)
    enough = 2048 // (groups * tiles)
    return next(
        parts for parts in range(1, rows + 1) if parts == rows or (parts >= enough and not rows % parts)
    )


def _beside(x: Tensor) -> Tensor:
    """(group, row, channel, ...) -> (row, group x channel, ...), as PyTorch wants grouped convolutions."""
    return x.transpose(0, 1).flatten(1, 2)


def _apart(x: Tensor, groups: int) -> Tensor:
    cut: Tensor = x.unflatten(1, (groups, -1))
    return cut.transpose(0, 1)


def spelt_out(count: int, dim: int | None, tensor: Tensor) -> Tensor:
    """What a map gives each of its many, as more groups or rows."""
    there = tensor[None].expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return there.flatten(0, 1)


class _Bilinear(torch.autograd.Function):
    """What the three have in common: under vmap each is itself, with more groups."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        *saved, ctx.grid = inputs
        ctx.save_for_backward(*saved)

    @classmethod
    def mapped(cls, count: int, dims: tuple[int | None, ...], one: Tensor, two: Tensor, grid: Grid) -> Any:
        found = cls.apply(spelt_out(count, dims[0], one), spelt_out(count, dims[1], two), grid)
        return found.unflatten(0, (count, -1)), 0

    @classmethod
    def mapped_rows(cls, count: int, dim: int, rows: Tensor, weight: Tensor, grid: Grid) -> Any:
        """With the same weights for all, a map only brings more rows."""
        found = cls.apply(rows.movedim(dim, 1).flatten(1, 2), weight, grid)
        return found.unflatten(1, (count, -1)), 1


class _Convolve(_Bilinear):
    @staticmethod
    def forward(x: Tensor, w: Tensor, grid: Grid) -> Tensor:
        groups = len(w)
        if not _pays(x.is_cuda, groups, x.shape[1], x.shape[2], grid):
            joined = conv2d(_beside(x), w.flatten(0, 1), None, grid.stride, grid.margin, groups=groups)
            return _apart(joined, groups)
        down = (grid.height + 2 * grid.margin - grid.side) // grid.stride + 1
        y: Tensor
        if not w.is_cuda:
            y = torch.bmm(w.flatten(2), _columns(x, grid)).unflatten(2, (x.shape[1], down, -1))
            return y.transpose(1, 2)
        y = (_windows(x, grid) @ _flat(w).mT).unflatten(1, (x.shape[1], down, -1))
        return y.permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        by_x, by_w = ctx.needs_input_grad[:2]
        return (
            _Spread.apply(g, w, ctx.grid) if by_x else None,
            _Correlate.apply(x, g, ctx.grid) if by_w else None,
            None,
        )

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, w: Tensor, grid: Grid) -> Any:
        if dims[1] is None:
            return _Convolve.mapped_rows(info.batch_size, dims[0], x, w, grid)
        if dims[0] is None:  # the same pictures for all: a map only brings more channels out
            y = _Convolve.apply(x, w.movedim(dims[1], 1).flatten(1, 2), grid)
            return y.unflatten(2, (info.batch_size, -1)), 2
        return _Convolve.mapped(info.batch_size, dims, x, w, grid)


class _Spread(_Bilinear):
    @staticmethod
    def forward(y: Tensor, w: Tensor, grid: Grid) -> Tensor:
        side, stride, margin, height, width = grid
        groups, rows, _, down, across = y.shape
        if not _pays(y.is_cuda, groups, rows, w.shape[2], grid):
            # Rows and columns at the end that no window reached.
            over = [(size + 2 * margin - side) % stride for size in (height, width)]
            joined = conv_transpose2d(_beside(y), w.flatten(0, 1), None, stride, margin, over, groups)
            return _apart(joined, groups)
        if not w.is_cuda:
            return _added_up(torch.bmm(w.flatten(2).mT, _joined(y)), grid, (rows, down, across))
        high, wide = height + 2 * margin, width + 2 * margin
        parts = _paired((_listed(y) @ _flat(w)).reshape(groups, rows, down, across, side, side, -1))
        channels = parts.shape[6]
        # Added up across, then down. What is added up comes last, but channels stay last in memory.
        add_up = torch.ops.aten.unfold_backward
        bands = add_up(parts.transpose(5, 6), [groups, rows, down, wide, side, channels], 3, side, stride)
        whole = add_up(bands.transpose(4, 5), [groups, rows, high, wide, channels], 2, side, stride)
        x = _single(whole)[:, :, margin : margin + height, margin : margin + width]
        return x.permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        y, w = ctx.saved_tensors
        by_y, by_w = ctx.needs_input_grad[:2]
        return (
            _Convolve.apply(g, w, ctx.grid) if by_y else None,
            _Correlate.apply(g, y, ctx.grid) if by_w else None,
            None,
        )

    @staticmethod
    def vmap(info: Any, dims: Any, y: Tensor, w: Tensor, grid: Grid) -> Any:
        if dims[1] is None:
            return _Spread.mapped_rows(info.batch_size, dims[0], y, w, grid)
        return _Spread.mapped(info.batch_size, dims, y, w, grid)


class _Correlate(_Bilinear):
    @staticmethod
    def forward(x: Tensor, y: Tensor, grid: Grid) -> Tensor:
        groups = len(x)
        shape = (y.shape[2], x.shape[2], grid.side, grid.side)
        if not _pays(x.is_cuda, groups, x.shape[1], x.shape[2], grid):
            whole = (groups * shape[0], *shape[1:])
            joined: Tensor = conv2d_weight(
                _beside(x), whole, _beside(y), grid.stride, grid.margin, groups=groups
            )
            return joined.reshape(groups, *shape)
        if not x.is_cuda:
            return torch.bmm(_joined(y), _columns(x, grid).mT).reshape(groups, *shape)
        parts = _shares(groups, x.shape[1], shape)
        above, below = (
            rows.reshape(groups * parts, -1, rows.shape[2]) for rows in (_listed(y), _windows(x, grid))
        )
        w: Tensor = (above.mT @ below).unflatten(0, (groups, parts)).sum(1)
        w = w.reshape(groups, shape[0], *shape[2:], shape[1])
        return w.permute(0, 1, 4, 2, 3).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, _, ctx.grid = inputs  # it has no gradient, and holds nothing for one

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, y: Tensor, grid: Grid) -> Any:
        return _Correlate.mapped(info.batch_size, dims, x, y, grid)


def convolution(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, margin: int) -> Tensor:
    """A convolution of pictures (row, channel, height, width) with squares for windows."""
    grid = Grid(w.shape[-1], stride, margin, *x.shape[2:])
    # Not [0]: its gradient would be a new tensor of zeros, and that of `squeeze` is a view.
    y: Tensor = _Convolve.apply(x[None], w[None], grid).squeeze(0)
    return y if bias is None else y + bias[:, None, None]


def transposed(y: Tensor, w: Tensor, bias: Tensor | None, stride: int, margin: int) -> Tensor:
    """A transposed convolution, likewise."""
    height, width = ((size - 1) * stride + w.shape[-1] - 2 * margin for size in y.shape[2:])
    x: Tensor = _Spread.apply(y[None], w[None], Grid(w.shape[-1], stride, margin, height, width)).squeeze(0)
    return x if bias is None else x + bias[:, None, None]


class Conv2d(nn.Conv2d):
    """PyTorch's, with squares for windows."""

    def forward(self, x: Tensor) -> Tensor:
        return convolution(x, self.weight, self.bias, self.stride[0], int(self.padding[0]))


class ConvTranspose2d(nn.ConvTranspose2d):
    """PyTorch's, with squares for windows."""

    def forward(self, y: Tensor, output_size: list[int] | None = None) -> Tensor:
        return transposed(y, self.weight, self.bias, self.stride[0], int(self.padding[0]))
