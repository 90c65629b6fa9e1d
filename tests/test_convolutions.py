"""Many convolutions at once give what PyTorch's give one by one: values and gradients, in nested maps too."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import max_pool2d, unfold

from fedsaddle import convolutions, pooling

LAYERS = [
    (convolutions.Conv2d, nn.Conv2d, (1, 6, 5), 12),
    (convolutions.Conv2d, nn.Conv2d, (3, 4, 5, 1, 2), 9),
    (convolutions.Conv2d, nn.Conv2d, (3, 4, 4, 2, 1), 11),  # the last row and column are in no window
    (convolutions.Conv2d, nn.Conv2d, (2, 5, 4, 1, 0, 1, 1, False), 4),
    (convolutions.ConvTranspose2d, nn.ConvTranspose2d, (3, 4, 4, 2, 1), 7),
    (convolutions.ConvTranspose2d, nn.ConvTranspose2d, (3, 2, 4, 1, 0, 0, 1, False), 1),
]
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]


def normal(*shape, device):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize(("ours", "theirs", "sizes", "side"), LAYERS)
def test_they_equal_pytorchs(ours, theirs, sizes, side, windows, device, monkeypatch):
    monkeypatch.setattr(convolutions, "_pays", lambda *sizes: windows)
    layers = [layer(*sizes).to(device).double() for layer in (theirs, ours)]
    parameters = {
        name: normal(3, *value.shape, device=device) for name, value in layers[0].state_dict().items()
    }
    x = normal(3, 2, 5, sizes[0], side, side, device=device)  # (network, minibatch, row, channel, ...)

    def loss(layer, parameters, x):
        y = functional_call(layer, parameters, (x,))
        return (y**3).sum(), y

    def all_of(layer, over):
        slope = grad(lambda *args: loss(layer, *args), argnums=(0, 1), has_aux=True)
        return over(slope)(parameters, x)

    def networks(slope):  # one minibatch of each network
        return lambda parameters, x: vmap(slope)(parameters, x[:, 0])

    def both(slope):  # each network on each of its minibatches
        return vmap(vmap(slope, in_dims=(None, 0)))

    def turned(slope):  # the same with the maps the other way round
        return vmap(vmap(slope), in_dims=(None, 1))

    def shared(slope):  # all networks on the same minibatch
        return lambda parameters, x: vmap(slope, in_dims=(0, None))(parameters, x[0, 0])

    for over in (networks, both, turned, shared):
        expected, found = (all_of(layer, over) for layer in layers)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)

    def alone(slope):
        return lambda parameters, x: slope({name: value[0] for name, value in parameters.items()}, x[0, 0])

    expected, found = (all_of(layer, alone) for layer in layers)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_one_picture_for_many_networks():
    layer, x = convolutions.Conv2d(2, 3, 3).double(), normal(4, 2, 6, 6, device="cpu")
    weights = normal(5, 3, 2, 3, 3, device="cpu")

    def slope(weight):
        named = {"weight": weight, "bias": layer.bias.detach()}
        return functional_call(layer, named, (x,)).square().sum()

    each = torch.stack([grad(slope)(weight) for weight in weights])
    torch.testing.assert_close(vmap(grad(slope))(weights), each)


def test_the_gradient_of_data_is_not_computed(monkeypatch):
    layer, x = convolutions.Conv2d(2, 3, 3), torch.ones(4, 2, 6, 6)
    monkeypatch.setattr(convolutions._Spread, "apply", None)
    torch.func.grad(lambda w: functional_call(layer, {"weight": w}, (x,)).sum())(layer.weight.detach())
    weights = layer.weight.detach().expand(2, -1, -1, -1, -1)
    vmap(grad(lambda w: functional_call(layer, {"weight": w}, (x,)).sum()))(weights)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("side", "stride", "margin"), [(5, 1, 0), (4, 2, 1)])
def test_windows_of_any_layout(channels, side, stride, margin):
    pictures = normal(2 * 3 * channels * 9 * 8 + 1, device="cpu")
    grid = convolutions.Grid(side, stride, margin, 9, 8)
    first = pictures[:-1].view(2, 3, channels, 9, 8)
    last = pictures[1:].view(2, 3, 9, 8, channels).permute(0, 1, 4, 2, 3)  # begins at an odd place
    for x in (first, last, last.clone()):
        columns = unfold(
            x.flatten(0, 1), side, padding=margin, stride=stride
        )  # (picture, channel x place, window)
        expected = (
            columns.unflatten(1, (channels, -1)).permute(0, 3, 2, 1).reshape(2, -1, side * side * channels)
        )
        assert torch.equal(convolutions._windows(x, grid), expected)


def pooled_by_pytorch(x):
    return max_pool2d(x, 2)


def pooled_by_parts(x):
    return pooling._Pool.apply(x)[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ours", [pooling.MaxPool2d(2), pooled_by_parts])
@pytest.mark.parametrize("last", [False, True])  # the channels, in memory
def test_pooling_equals_pytorchs(ours, last, device):
    x = normal(4, 3, 5, 2, 6, 8, device=device).round(decimals=0)  # many are the same
    x = x.movedim(-3, -1).contiguous().movedim(-1, -3) if last else x
    g = normal(4, 3, 5, 2, 3, 4, device=device)

    def everything(pool, x):
        def slope(x, g):
            return grad(lambda x: (pool(x).sin() * g).sum())(x)

        def penalty(x, g):  # the gradient of a gradient
            return grad(lambda x: (pool(x).sin() * slope(x, g).sum(0).mean()).sum())(x)

        every = (
            vmap(vmap(slope)),
            vmap(vmap(penalty)),
            vmap(vmap(slope, in_dims=(0, None)), in_dims=(0, None)),
        )
        return pool(x[0, 0]), every[0](x, g), every[1](x, g), every[2](x, g[0, 0])

    for found, expected in zip(
        everything(ours, x), everything(pooled_by_pytorch, x.contiguous()), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
