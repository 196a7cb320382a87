"""CSR building and transposing against sorting by hand, and the checks at the border of every kernel."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.graphs import random_block
from weft import kernels
from weft.kernels import checks, reference

pytestmark = pytest.mark.usefixtures("backend")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 60), st.integers(0, 99), st.booleans())
def test_build_sorts_by_destination_then_source_and_keeps_ties_in_order(num_src, num_dst, edges, seed, wide):
    edges = edges if num_src and num_dst else 0
    g = torch.Generator().manual_seed(seed)
    dtype = torch.int64 if wide else torch.int32
    src = torch.randint(max(num_src, 1), (edges,), generator=g).to(dtype)
    dst = torch.randint(max(num_dst, 1), (edges,), generator=g).to(dtype)
    indptr, indices, order = kernels.build_csr(src, dst, num_src, num_dst)
    triples = sorted(zip(dst.tolist(), src.tolist(), range(edges), strict=True))
    assert order.tolist() == [k for _, _, k in triples]
    assert indices.tolist() == [s for _, s, _ in triples]
    assert indptr.tolist() == [sum(d < row for d, _, _ in triples) for row in range(num_dst + 1)]
    assert (indptr.dtype, indices.dtype, order.dtype) == (torch.int64, torch.int32, torch.int64)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_csr_equals_the_reference_on_any_number_of_threads(threads, with_threads):
    g = torch.Generator().manual_seed(1)
    src, dst = (torch.randint(500, (40_000,), generator=g) for _ in range(2))
    with with_threads(threads):
        ours = kernels.build_csr(src, dst, 500, 500)
        ours_t = kernels.transpose_csr(ours[0], ours[1], 500)
    theirs = reference.build_csr(src, dst, 500, 500)
    theirs_t = reference.transpose_csr(theirs[0], theirs[1], 500)
    for a, b in zip((*ours, *ours_t), (*theirs, *theirs_t), strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype


def test_transposing_twice_gives_the_block_back():
    block = random_block(7, 5, 40, seed=3)
    indptr, indices, order = kernels.transpose_csr(block.indptr_t, block.indices_t, 7)
    assert torch.equal(indptr, block.indptr) and torch.equal(indices, block.indices)
    assert torch.equal(block.order_t[order], torch.arange(40))


def test_edges_that_point_outside_are_named():
    with pytest.raises(ValueError, match="src holds 3, but there are only 3"):
        kernels.build_csr(torch.tensor([0, 3]), torch.tensor([0, 1]), 3, 3)
    with pytest.raises(ValueError, match="dst holds -1, which is below 0"):
        kernels.build_csr(torch.tensor([0, 2]), torch.tensor([0, -1]), 3, 3)
    with pytest.raises(ValueError, match="2 edges, but dst has 1"):
        kernels.build_csr(torch.tensor([0, 2]), torch.tensor([0]), 3, 3)


def test_a_malformed_indptr_is_refused():
    indices = torch.tensor([0, 1], dtype=torch.int32)
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="must run from 0 to the number of edges 2, but runs from 0 to 3"):
        kernels.spmm(torch.tensor([0, 3]), indices, x)
    with pytest.raises(ValueError, match="must not decrease"):
        kernels.spmm(torch.tensor([0, 2, 1, 2]), indices, x)
    with pytest.raises(ValueError, match="indptr must be int64"):
        kernels.spmm(torch.tensor([0, 2], dtype=torch.int32), indices, x)


def test_indices_are_checked_again_after_they_changed():
    indptr, indices = torch.tensor([0, 2]), torch.tensor([0, 1], dtype=torch.int32)
    x = torch.ones(2, 3)
    assert kernels.spmm(indptr, indices, x)[0, 0] == 2
    indices[1] = 2
    with pytest.raises(ValueError, match="indices holds 2, but there are only 2 rows"):
        kernels.spmm(indptr, indices, x)


def test_the_same_indices_are_checked_against_every_number_of_rows():
    indptr, indices = torch.tensor([0, 2]), torch.tensor([0, 4], dtype=torch.int32)
    kernels.spmm(indptr, indices, torch.ones(5, 3))
    with pytest.raises(ValueError, match="indices holds 4"):
        kernels.spmm(indptr, indices, torch.ones(4, 3))


def test_what_was_checked_is_kept_beside_the_tensor_and_goes_with_it():
    indptr, indices = torch.tensor([0, 2]), torch.tensor([0, 1], dtype=torch.int32)
    kernels.spmm(indptr, indices, torch.ones(2, 3))
    assert not indices.__dict__ and not indptr.__dict__
    kept = checks.Findings()
    kept.set(indices, 1)
    assert kept.get(indices) == 1 and kept.get(indices.clone()) is None
    indices[0] = 1
    assert kept.get(indices) is None
    del indices
    assert len(kept) == 0


def test_a_checked_index_is_no_checked_indptr():
    index = torch.tensor([0, 2, 1])
    kernels.gather(torch.ones(3, 1), index)  # its largest entry is 2
    with pytest.raises(ValueError, match="must run from 0 to the number of edges 2"):
        kernels.spmm(index, torch.tensor([0, 0], dtype=torch.int32), torch.ones(1, 3))
