"""Sums, maxima, gather and scatter-add on graphs of every odd kind, whole rows and rows in pieces."""

import pytest
import torch

from tests.kernels.graphs import randn, random_block, tolerance
from tests.kernels.triton.sides import DEVICE, both, close
from weft import kernels
from weft.kernels.cuts import cut_into

GRAPHS = {
    "small": (6, 5, 32),
    "no edges": (3, 3, 0),
    "one hub": (1, 4, 23),
    "empty rows": (9, 3, 8),
    "no rows": (0, 3, 0),
}


def scalar_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    ("graph", "dtype", "width", "scaled", "cut"),
    [
        ("small", torch.float64, 5, True, True),
        ("small", torch.float32, 1, False, True),
        ("small", torch.bfloat16, 257, True, True),
        ("one hub", torch.float64, 257, True, False),
        ("no edges", torch.float32, 7, True, True),
        ("empty rows", torch.bfloat16, 3, True, False),
        ("no rows", torch.float32, 3, False, True),
    ],
)
def test_spmm(graph, dtype, width, scaled, cut, accumulate):
    scalar = scalar_of(dtype)

    def run(side, block):
        x = randn(block.num_cols, width, dtype=dtype)
        sizes = (block.num_edges, block.num_rows, block.num_cols)
        coefficients = [randn(n, dtype=scalar, seed=n) if scaled else None for n in sizes]
        into = randn(block.num_rows, width, dtype=scalar, seed=4)
        first = side.spmm(block.indptr, block.indices, x, *coefficients, out=into, accumulate=accumulate)
        return first, side.spmm(block.indptr, block.indices, x)

    (first, second), theirs = both(run, lambda: random_block(*GRAPHS[graph]), cut)
    assert second.dtype == dtype
    close((first,), theirs[:1], **tolerance(scalar))
    close((second,), theirs[1:], **tolerance(dtype))


def test_sums_by_relation():
    """A row for every (vertex, relation): most of them are empty."""
    ours, theirs = both(
        lambda side, block: (side.spmm(block.indptr, block.indices, randn(4, 6, dtype=torch.float64)),),
        lambda: random_block(5 * 7, 4, 20),
        cut=True,
    )
    close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("graph", "dtype", "width", "weighted", "cut"),
    [
        ("small", torch.float64, 5, True, True),
        ("small", torch.bfloat16, 257, False, True),
        ("one hub", torch.float32, 1, True, True),
        ("one hub", torch.float32, 9, False, False),
        ("empty rows", torch.float32, 3, True, True),
        ("no edges", torch.float32, 3, True, True),
    ],
)
def test_max_with_ties_of_two_blocks_and_back(graph, dtype, width, weighted, cut):
    scalar = scalar_of(dtype)

    def run(side, block):
        x = (randn(block.num_cols, width) * 2).round().to(dtype)  # few values: many ties
        weight = (randn(block.num_edges, dtype=scalar, seed=1) * 2).round() / 2 if weighted else None
        out = torch.full((block.num_rows, width), -torch.inf, dtype=scalar)
        count = torch.zeros(block.num_rows, width, dtype=torch.int32)
        for _ in range(2):
            side.max_absorb(block.indptr, block.indices, x, weight, out, count)
        side.max_finish(out, count)
        share, dx = randn(*out.shape, dtype=scalar, seed=2), randn(*x.shape, dtype=scalar, seed=3)
        weight_t = None if weight is None else weight[block.order_t]
        side.max_backward(block.indptr_t, block.indices_t, x, weight_t, out, share, dx)
        return out, count, dx

    ours, theirs = both(run, lambda: random_block(*GRAPHS[graph]), cut)
    assert torch.equal(ours[0].cpu(), theirs[0]) and torch.equal(ours[1].cpu(), theirs[1])
    close(ours[2:], theirs[2:], **tolerance(scalar))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_gather(dtype):
    for index in (torch.tensor([3, 0, 3, 2], device=DEVICE), torch.tensor([1], dtype=torch.int32, device=DEVICE)):
        x = (randn(4, 257) * 5).to(DEVICE, dtype)
        assert torch.equal(kernels.gather(x, index), x[index.long()])
        assert torch.equal(kernels.gather(x[:, 0].contiguous(), index), x[index.long(), 0])
    assert kernels.gather(x, index[:0]).shape == (0, 257)


@pytest.mark.parametrize(
    ("rows_dtype", "dtype"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_scatter_add_adds_in_the_order_of_rows(rows_dtype, dtype):
    index = torch.randint(5, (40,), generator=torch.Generator().manual_seed(0))
    rows, out = randn(40, 3, dtype=rows_dtype), randn(7, 3, dtype=dtype, seed=1)
    expected = out.double().index_add(0, index, rows.double()).to(dtype)
    for chosen in (index, index.int()):
        found = kernels.scatter_add(out.to(DEVICE, copy=True), chosen.to(DEVICE), rows.to(DEVICE))
        torch.testing.assert_close(found.cpu(), expected, **tolerance(dtype))
        assert torch.equal(found[5:].cpu(), out[5:])  # no row went there


def test_a_cut_lists_every_edge_of_long_rows_once():
    indptr = torch.tensor([0, 3, 3, 14, 24, 25], device=DEVICE)
    cut = cut_into(indptr, 5)
    assert cut.long_rows.tolist() == [2, 3] and cut.first_piece.tolist() == [0, 3, 5]
    assert cut.piece_row.tolist() == [2, 2, 2, 3, 3] and cut.piece_begin.tolist() == [3, 8, 13, 14, 19]
    assert not cut_into(indptr, 11).long_rows.numel()
