"""Rows of 2, 4, 8 and mixed bits: the bytes of the CPU, and the values that come back, to the bit."""

import pytest
import torch

from tests.kernels.triton.sides import DEVICE
from weft import kernels
from weft.kernels import reference


@pytest.mark.parametrize("width", [1, 7, 9, 33, 64, 100, 136, 257])
@pytest.mark.parametrize("indexed", [False, True])
def test_the_bytes_of_the_cpu(width, indexed):
    draw = torch.Generator().manual_seed(width)
    x = torch.randn(9, width, generator=draw) * 10.0 ** torch.randint(-6, 6, (9, 1), generator=draw)
    x[4] = 1.5  # a constant row has no step
    index = torch.randperm(9, generator=draw)[:6] if indexed else None
    rows = 6 if indexed else 9
    bits = torch.tensor([2, 4, 8] * 3, dtype=torch.uint8)[:rows]
    ids = torch.randint(1 << 40, (rows,), generator=draw)
    offsets, size = kernels.packed_offsets(width, bits)
    into = torch.randn(x.shape, generator=draw)

    def run(side, device):
        x_, bits_, offsets_, ids_, into_ = (t.to(device, copy=True) for t in (x, bits, offsets, ids, into))
        index_ = None if index is None else index.to(device)
        message = torch.zeros(size, dtype=torch.uint8, device=device)
        spans = torch.zeros(rows, device=device)
        assert side.pack(x_, index_, bits_, offsets_, ids_, -9, message, spans) == -1
        back = [side.unpack(message, bits_, offsets_, into_.clone(), index_, add) for add in (False, True)]
        return message, spans, *back

    for a, b in zip(run(kernels, DEVICE), run(reference, "cpu"), strict=True):
        assert torch.equal(a.cpu(), b)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_row_that_is_not_finite_is_named(bad):
    x = torch.randn(5, 20, device=DEVICE)
    x[3, 17] = x[4, 0] = bad
    bits = torch.full((5,), 4, dtype=torch.uint8, device=DEVICE)
    offsets, size = kernels.packed_offsets(20, bits)
    message = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
    assert kernels.pack(x, None, bits, offsets, torch.arange(5, device=DEVICE), 1, message) == 3


def test_a_range_that_overflows_is_named():
    x = torch.tensor([[-3e38, 3e38]], device=DEVICE)
    bits = torch.full((1,), 8, dtype=torch.uint8, device=DEVICE)
    offsets, size = kernels.packed_offsets(2, bits)
    message = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
    assert kernels.pack(x, None, bits, offsets, torch.arange(1, device=DEVICE), 1, message) == 0
