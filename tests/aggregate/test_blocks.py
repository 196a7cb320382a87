"""Blocks with the same edges share their transpose, and each has its own weights in the transpose's order."""

import pytest
import torch

from weft import kernels
from weft.aggregate.blocks import Block
from weft.graph.csr import CSR


@pytest.fixture
def transpositions(monkeypatch):
    """How often edges were transposed."""
    calls, transpose = [], kernels.transpose_csr

    def counted(*edges):
        calls.append(edges)
        return transpose(*edges)

    monkeypatch.setattr(kernels, "transpose_csr", counted)
    return calls


def a_block(weighted=True):
    """0 <- 2, 0 <- 1, 1 <- 2, with weights 1, 2, 3."""
    weight = torch.tensor([1.0, 2.0, 3.0]) if weighted else None
    return Block(CSR(torch.tensor([0, 2, 3]), torch.tensor([2, 1, 2], dtype=torch.int32), 3, weight))


def by_source(block):
    indptr, indices = block.transposed
    assert indptr.tolist() == [0, 0, 1, 3] and indices.tolist() == [0, 0, 1]
    return None if block.transposed_weight is None else block.transposed_weight.tolist()


def test_the_transpose_is_made_once_with_the_weights(transpositions):
    block = a_block()
    assert by_source(block) == [2.0, 1.0, 3.0] and len(transpositions) == 1
    assert block.transposed_order.tolist() == [1, 0, 2]


@pytest.mark.parametrize("first", ["plain", "scaled"])
def test_blocks_with_other_coefficients_share_the_transpose(transpositions, first):
    """Whichever of them is asked first, and before or after the other was made of it."""
    plain = a_block(weighted=False)
    scaled = plain.scaled(torch.ones(2), None, None)
    one, other = (plain, scaled) if first == "plain" else (scaled, plain)
    assert by_source(one) is None and by_source(other) is None
    assert one.transposed[1] is other.transposed[1] and one.destinations is other.destinations
    assert by_source(scaled.cast(torch.float64)) is None
    assert len(transpositions) == 1


def test_weights_of_its_own_in_a_shared_transpose():
    plain = a_block()
    assert by_source(plain) == [2.0, 1.0, 3.0]
    other = plain.scaled(None, None, torch.tensor([5.0, 6.0, 7.0]))
    assert by_source(other) == [6.0, 5.0, 7.0] and by_source(plain) == [2.0, 1.0, 3.0]
    assert plain.transposed[1] is other.transposed[1]


def test_other_edges_have_a_transpose_of_their_own():
    block = a_block()
    assert by_source(block) == [2.0, 1.0, 3.0]
    assert block.first_rows(1).transposed[0].tolist() == [0, 0, 1, 2]
    assert block.padded(4).csr.num_rows == 4 and block.padded(4).destinations.tolist() == [0, 0, 1]
