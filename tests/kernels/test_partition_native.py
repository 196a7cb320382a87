"""The native half of partitioning at its boundary: permutations, bounds, determinism, what it refuses."""

import importlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.kernels import native_available

pytestmark = pytest.mark.skipif(not native_available, reason="the native module is not built")
native = importlib.import_module("weft.kernels._native") if native_available else None

Csr = tuple[np.ndarray, np.ndarray]


def csr_of(num_nodes: int, edges: list[tuple[int, int]]) -> Csr:
    pairs = sorted((dst, src) for src, dst in edges)
    degrees = np.bincount(np.array([dst for dst, _ in pairs], np.int64), minlength=num_nodes)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return indptr, np.array([src for _, src in pairs], np.int32)


@st.composite
def csrs(draw: st.DrawFn) -> Csr:
    num_nodes = draw(st.integers(0, 30))
    vertex = st.integers(0, max(0, num_nodes - 1))
    return csr_of(num_nodes, draw(st.lists(st.tuples(vertex, vertex), max_size=80 if num_nodes else 0)))


def planted(blocks: int, size: int, seed: int = 0) -> tuple[Csr, np.ndarray]:
    """Dense blocks with few edges between them, ids shuffled; and the block of every vertex."""
    random = np.random.default_rng(seed)
    block = random.permutation(np.repeat(np.arange(blocks), size))
    members = [np.flatnonzero(block == b) for b in range(blocks)]
    inner = [(int(random.choice(members[block[v]])), v) for v in range(blocks * size) for _ in range(8)]
    outer = [tuple(random.integers(0, blocks * size, 2).tolist()) for _ in range(blocks * size)]
    return csr_of(blocks * size, inner + outer), block


@settings(max_examples=150, deadline=None)
@given(csrs(), st.integers(1, 8), st.integers(2, 4))
def test_community_order_is_a_permutation(csr: Csr, room: int, growth: int) -> None:
    order = native.community_order(*csr, room, growth, 3)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(len(csr[0]) - 1))
    assert (order == native.community_order(*csr, room, growth, 3)).all()


def test_community_order_does_not_depend_on_threads() -> None:
    csr, _ = planted(16, 50)
    before = torch.get_num_threads()
    try:
        orders = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            orders.append(native.community_order(*csr, 64, 8, 5))
    finally:
        torch.set_num_threads(before)
    assert (orders[0] == orders[1]).all() and (orders[0] == orders[2]).all()


def test_planted_blocks_become_contiguous() -> None:
    csr, block = planted(16, 50)
    changes = np.count_nonzero(np.diff(block[native.community_order(*csr, 64, 8, 5)]))
    assert changes < 0.15 * np.count_nonzero(np.diff(block))


def test_room_bounds_a_community() -> None:
    """Two cliques of 40 joined by nothing: whatever the room, neither is torn apart in the end."""
    clique = [(i, j) for i in range(40) for j in range(40) if i != j]
    edges = [(2 * i, 2 * j) for i, j in clique] + [(2 * i + 1, 2 * j + 1) for i, j in clique]
    for room in (1, 8, 64):
        order = native.community_order(*csr_of(80, edges), room, 4, 5)
        assert np.count_nonzero(np.diff(order % 2)) == 1, room


@settings(max_examples=150, deadline=None)
@given(csrs(), st.integers(1, 6), st.integers(1, 3), st.randoms(use_true_random=False))
def test_stream_respects_the_limit(csr: Csr, parts: int, passes: int, random: object) -> None:
    """With unit loads there is always room, so the limit is never passed."""
    num_nodes = len(csr[0]) - 1
    order = np.array(random.sample(range(num_nodes), num_nodes), np.int64)  # type: ignore[attr-defined]
    limit = np.array([float(-(-num_nodes // parts))])
    load, nowhere = np.ones((num_nodes, 1)), np.full(num_nodes, -1, np.int32)
    owner = native.stream_partition(*csr, order, nowhere, parts, load, limit, passes)
    assert owner.dtype == np.int32 and owner.shape == (num_nodes,)
    counts = np.bincount(owner, minlength=parts)
    assert len(counts) == parts and counts.max(initial=0) <= limit[0]


def test_stream_finds_planted_blocks() -> None:
    csr, _ = planted(8, 100)
    num_nodes = 800
    order = np.random.default_rng(0).permutation(num_nodes)
    load, limit = np.ones((num_nodes, 1)), np.array([110.0])
    rows = np.repeat(np.arange(num_nodes), np.diff(csr[0]))

    def cut(passes: int) -> float:
        nowhere = np.full(num_nodes, -1, np.int32)
        owner = native.stream_partition(*csr, order, nowhere, 8, load, limit, passes)
        return float(np.mean(owner[rows] != owner[csr[1]]))

    assert cut(1) < 0.75 and cut(4) < cut(1)  # chance: 0.875


@settings(max_examples=150, deadline=None)
@given(csrs(), st.integers(1, 6), st.data())
def test_rebalance_meets_a_limit_that_can_be_met(csr: Csr, parts: int, data: st.DataObject) -> None:
    num_nodes = len(csr[0]) - 1
    part = st.integers(0, parts - 1)
    owner = np.array(data.draw(st.lists(part, min_size=num_nodes, max_size=num_nodes)), np.int32)
    limit = np.array([float(-(-num_nodes // parts))])
    moved = native.rebalance(*csr, owner, parts, np.ones((num_nodes, 1)), limit)
    assert np.bincount(moved, minlength=parts).max(initial=0) <= limit[0]
    if np.bincount(owner, minlength=parts).max(initial=0) <= limit[0]:
        assert (moved == owner).all(), "what is balanced stays as it is"


@settings(max_examples=150, deadline=None)
@given(csrs(), st.integers(2, 4), st.data())
def test_a_weight_is_so_many_edges(csr: Csr, parts: int, data: st.DataObject) -> None:
    num_nodes, num_edges = len(csr[0]) - 1, len(csr[1])
    weight = np.array(data.draw(st.lists(st.integers(1, 4), min_size=num_edges, max_size=num_edges)), np.int32)
    owner = np.zeros(num_nodes, np.int32)
    limit = np.array([float(-(-num_nodes // parts))])
    rows = np.repeat(np.repeat(np.arange(num_nodes), np.diff(csr[0])), weight)
    repeated = csr_of(num_nodes, list(zip(np.repeat(csr[1], weight).tolist(), rows.tolist(), strict=True)))
    load = np.ones((num_nodes, 1))
    moved = native.rebalance(*csr, owner, parts, load, limit, weight)
    assert (moved == native.rebalance(*repeated, owner, parts, load, limit)).all()


def test_those_outside_the_order_stay() -> None:
    csr, block = planted(4, 50)
    owner = np.where(np.arange(200) < 150, block, -1).astype(np.int32)
    load, limit = np.ones((200, 1)), np.array([60.0])
    found = native.stream_partition(*csr, np.arange(150, 200), owner, 4, load, limit, 1)
    assert (found[:150] == block[:150]).all()
    assert (found[150:] == block[150:]).mean() > 0.9


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [([0, 1, 2], [0, 2]), ([0, 1, 2], [0, -1]), ([0, 2, 1], [0, 1]), ([0, 1, 3], [0, 1]), ([], [])],
)
def test_broken_edges_are_refused(indptr: list[int], indices: list[int]) -> None:
    csr = np.array(indptr, np.int64), np.array(indices, np.int32)
    with pytest.raises(ValueError):
        native.community_order(*csr, 4, 4, 2)


def test_broken_arguments_are_refused() -> None:
    csr = csr_of(3, [(0, 1)])
    load, limit, owner = np.ones((3, 1)), np.ones(1), np.zeros(3, np.int32)
    order = np.arange(3)
    for wrong in (np.array([0, 1, 1]), np.array([0, 1, 3])):
        with pytest.raises(ValueError, match="permutation"):
            native.stream_partition(*csr, wrong, owner, 2, load, limit, 1)
    with pytest.raises(ValueError, match="leaves out"):
        native.stream_partition(*csr, np.array([0, 1]), owner - 1, 2, load, limit, 1)
    with pytest.raises(ValueError, match="weight"):
        native.rebalance(*csr, owner, 2, load, limit, np.ones(2, np.int32))
    with pytest.raises(ValueError, match="unknown part"):
        native.rebalance(*csr, owner + 2, 2, load, limit)
    with pytest.raises(ValueError, match="load"):
        native.stream_partition(*csr, order, owner, 2, load[:2].copy(), limit, 1)
    with pytest.raises(ValueError, match="a part"):
        native.stream_partition(*csr, order, owner - 1, 0, load, limit, 1)
