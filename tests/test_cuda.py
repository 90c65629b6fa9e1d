"""The same keys, words, uniforms and rows on a CPU and on a GPU. Runs where there is a GPU."""

import pytest
import torch

from fedsaddle import draws

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_draws_are_the_same_bits():
    seeds, clients = torch.arange(20), torch.arange(0, 10**12, 10**11)
    cpu = draws.key(draws.BATCHES, seeds[:, None], 7, 1, clients)
    gpu = draws.key(draws.BATCHES, seeds[:, None].cuda(), 7, 1, clients.cuda())
    assert torch.equal(cpu, gpu.cpu())
    assert torch.equal(draws.words(cpu, 50), draws.words(gpu, 50).cpu())
    assert torch.equal(draws.uniform(cpu, 3, 5), draws.uniform(gpu, 3, 5).cpu())
    size = 1 + torch.arange(cpu.numel()).reshape(cpu.shape) % 13
    rows = draws.batches(cpu, size, 40, 13)
    assert torch.equal(rows, draws.batches(gpu, size.cuda(), 40, 13).cpu())


def test_normals_are_the_same_to_rounding():
    key = draws.key(draws.PROBLEM, torch.arange(20))
    torch.testing.assert_close(
        draws.normal(key, 100), draws.normal(key.cuda(), 100).cpu(), rtol=1e-13, atol=1e-13
    )
