"""Sampling: every backend draws what the reference draws, and what it draws is distributed as it should be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.graphs import Block, blocks, random_block
from weft.kernels import reference
from weft.kernels.sampling import (
    METHODS,
    InEdges,
    find_slots,
    forget,
    gather_places,
    merge_sides,
    number_known,
    number_new,
    sample,
    split_columns,
    with_loops,
)

pytestmark = pytest.mark.usefixtures("backend")


def in_edges(block: Block, seed: int = 0) -> InEdges:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(block.num_edges, generator=generator)
    weight = weight**4 if seed % 2 else (4 * weight).floor()  # some that are always drawn, or many that are equal
    weight[::7] = 0.0  # such an edge is never drawn by weight
    row_ids = torch.randperm(1000, generator=generator)[: block.num_rows]
    return InEdges(block.indptr, block.indices, weight, row_ids, torch.arange(block.num_cols) * 3 + 1)


def request(block: Block, batches: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of several minibatches, some of them more than once."""
    generator = torch.Generator().manual_seed(seed)
    count = 3 * batches if block.num_rows else 0
    rows = torch.randint(0, max(block.num_rows, 1), (count,), generator=generator).int()
    bounds = torch.linspace(0, count, batches + 1).long()
    return rows, bounds, torch.randint(-(2**62), 2**62, (batches,), generator=generator)


@settings(max_examples=60, deadline=None)
@given(blocks(), st.sampled_from(METHODS), st.integers(-1, 9), st.integers(1, 4), st.integers(0, 2**16))
def test_draws_are_those_of_the_reference(block, method, fanout, batches, seed):
    edges, asked = in_edges(block, seed), request(block, batches, seed)
    found = sample(edges, *asked, fanout, method, positions=True)
    wanted = reference.sample(edges, *asked, fanout, method, True)
    assert (found.intervals is None) == (wanted.intervals is None) == (method != "weighted")
    for one, other in zip(found, wanted, strict=True):
        assert one is other or torch.equal(one, other)
    assert torch.equal(found.degrees, block.indptr.diff()[asked[0].long()].int())


@pytest.mark.parametrize("fanout", [3, 70])  # by Floyd's draws, and by one walk
def test_every_vertex_gets_distinct_neighbours_and_each_as_often(fanout):
    degree, draws = 100, 4000
    edges = InEdges(
        torch.tensor([0, degree]), torch.arange(degree).int(), None, torch.zeros(1, dtype=torch.int64),
        torch.arange(degree),
    )  # fmt: skip
    rows = torch.zeros(draws, dtype=torch.int32)
    found = sample(edges, rows, torch.arange(draws + 1), torch.arange(draws) * 7919, fanout)
    assert found.indptr.diff().eq(fanout).all()
    taken = found.columns.view(draws, fanout)
    assert (taken.sort(1).values.diff(dim=1) > 0).all()  # distinct
    # chi-squared on inclusion: draws without replacement vary less than independent ones, by (1 - k/d) d/(d-1)
    counts, expected = torch.bincount(found.columns.long()).double(), draws * fanout / degree
    variance = expected * (1 - fanout / degree)
    chi = float(((counts - expected) ** 2 / variance).sum()) * (degree - 1) / degree
    assert abs(chi - (degree - 1)) < 4 * (2 * (degree - 1)) ** 0.5
    # and pairs: neighbours that lie together are not drawn together more often than others
    both = sum(int(((taken == 10).any(1) & (taken == near).any(1)).sum()) for near in (9, 11, 50))
    chance = draws * 3 * fanout * (fanout - 1) / (degree * (degree - 1))
    assert abs(both - chance) < 5 * chance**0.5 + 5


def test_weighted_draws_follow_the_weights():
    weight = torch.tensor([1.0, 2.0, 4.0, 0.0, 1.0])
    edges = InEdges(
        torch.tensor([0, 5]), torch.arange(5).int(), weight, torch.zeros(1, dtype=torch.int64), torch.arange(5)
    )
    draws = 8000
    rows = torch.zeros(draws, dtype=torch.int32)
    found = sample(edges, rows, torch.arange(draws + 1), torch.arange(draws) * 7919, 1, "weighted")
    share = torch.bincount(found.columns.long(), minlength=5).double() / draws
    wanted = weight.double() / weight.sum()
    assert ((share - wanted).abs() <= 4 * (wanted * (1 - wanted) / draws).sqrt()).all()


def test_labor_rows_choose_alike_and_as_many_as_asked_for():
    degree, rows, draws, fanout = 40, 2, 3000, 10
    indices = torch.arange(degree).repeat(rows).int()
    edges = InEdges(torch.arange(rows + 1) * degree, indices, None, torch.arange(rows), torch.arange(degree))
    found = sample(
        edges, torch.arange(rows).repeat(draws).int(), torch.arange(draws + 1) * rows, torch.arange(draws) * 7919,
        fanout, "labor",
    )  # fmt: skip
    counts = found.indptr.diff().view(draws, rows)
    assert torch.equal(counts[:, 0], counts[:, 1])  # the same sources: they share every draw
    mean, spread = float(counts[:, 0].double().mean()), (degree * 0.25 * 0.75 / draws) ** 0.5
    assert abs(mean - fanout) < 4 * spread


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 10))
def test_vertices_are_numbered_in_the_order_in_which_they_appear(ends, known):
    table = torch.full((31,), -1, dtype=torch.int32)
    nodes = torch.empty(known + len(ends) + 1, dtype=torch.int32)
    nodes[:known] = torch.randperm(31, generator=torch.Generator().manual_seed(known))[:known]
    other = nodes.clone()
    number_known(table, nodes[:known])
    wanted = reference.number_new(table.clone(), other, known, torch.tensor(ends, dtype=torch.int32))
    count, columns = number_new(table, nodes, known, torch.tensor(ends, dtype=torch.int32))
    assert table[nodes[:count].long()].tolist() == list(range(count))
    forget(table, nodes[:count])
    assert (count, columns.tolist()) == (wanted[0], wanted[1].tolist())
    assert nodes[:count].tolist() == other[:count].tolist()
    assert nodes[columns.long()].tolist() == ends
    assert table.eq(-1).all()


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 31), st.integers(0, 31), st.integers(0, 5))
def test_rows_are_found_where_they_lie(nodes, one, other, hot):
    own = range(min(one, other), max(one, other))
    values = torch.randn(31, 3)
    outside = [node for node in range(31) if node not in own][:hot]
    table = torch.full((31,), -1, dtype=torch.int32)
    table[outside] = torch.arange(len(outside), dtype=torch.int32)
    fetched = torch.empty(len(nodes), dtype=torch.int32)
    wanted = reference.find_slots(
        table.clone(), torch.tensor(nodes, dtype=torch.int32), own, len(outside), -2, fetched.clone()
    )
    where, new, stamped = find_slots(table, torch.tensor(nodes, dtype=torch.int32), own, len(outside), -2, fetched)
    assert (where.tolist(), new, stamped) == (wanted[0].tolist(), *wanted[1:])
    assert stamped == len(set(own) & set(nodes))
    missing = fetched[:new].tolist()
    assert len(set(missing)) == new and not set(missing) & (set(own) | set(outside))
    rows = gather_places(values[own.start : own.stop], values[outside], values[missing], where)
    assert torch.equal(rows, values[torch.tensor(nodes, dtype=torch.int64)])


@settings(max_examples=30, deadline=None)
@given(blocks(), st.booleans())
def test_loops_come_first_and_once(block, weighted):
    square = min(block.num_rows, block.num_cols)
    block = random_block(square, square, block.num_edges, 1)
    weight = torch.rand(block.num_edges, dtype=torch.float64) if weighted else None
    found = with_loops(block.indptr, block.indices, weight, None)
    wanted = reference.with_loops(block.indptr, block.indices, weight, None)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    assert (found[2] is None) == (not weighted)
    if found[2] is not None and wanted[2] is not None:
        assert torch.equal(found[2], wanted[2])
    assert found[1][found[0][:-1]].tolist() == list(range(square))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 12), st.integers(0, 80), st.integers(0, 80), st.integers(0, 2**16))
def test_two_sides_merge_by_id(backend, rows, first_edges, second_edges, seed):
    ids = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
    columns = 12

    def side(edges: int, offset: int, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
        block = random_block(rows, columns, edges, seed + shift)
        order = torch.argsort(ids[block.indices.long() + offset], stable=True)
        row = torch.arange(rows).repeat_interleave(block.indptr.diff())
        order = order[torch.argsort(row[order], stable=True)]
        return block.indptr, block.indices[order].contiguous()

    sides = side(first_edges, 0, 1), side(second_edges, columns, 2)
    wanted, pieces = reference.merge_sides(*sides, columns, ids, True), []
    with pytest.MonkeyPatch.context() as patch:
        if backend == "native":
            patch.setattr("weft.kernels.native.sampling.MERGED_ROWS", 5)
        found = merge_sides(*sides, columns, ids, True, lambda: pieces.append(1))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    assert len(pieces) == (-(-rows // 5) if backend == "native" else 1)


@settings(deadline=None)
@given(blocks(), st.integers(0, 30), st.booleans())
def test_columns_are_split_at_a_border(block, border, stood):
    found = split_columns(block.indptr, block.indices, border, stood)
    wanted = reference.split_columns(block.indptr, block.indices, border, stood)
    for mine, other in zip(found, wanted, strict=True):
        assert torch.equal(mine.indptr, other.indptr) and torch.equal(mine.indices, other.indices)
        assert (mine.stood is None) == (not stood)
        if mine.stood is not None and other.stood is not None:
            assert torch.equal(mine.stood, other.stood)
    assert sum(len(side.indices) for side in found) == block.num_edges
