"""Edges in memory to a checked graph."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import UserError
from weft.graph import check_trainable, from_edges, to_undirected
from weft.graph.graph import Graph
from weft.graph.ids import IdMap


def edges_of(graph: Graph) -> list[tuple[int, int]]:
    """(src, dst) of every edge, in the order of the CSR."""
    dst = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.adjacency.degrees())
    return list(zip(graph.adjacency.indices.tolist(), dst.tolist(), strict=True))


pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40)


@settings(deadline=None)
@given(pairs)
def test_edges_come_back_grouped_by_destination_and_sorted(listed: list[tuple[int, int]]) -> None:
    src, dst = [u for u, _ in listed], [v for _, v in listed]
    weight = np.arange(len(listed), dtype=np.float32)
    graph = from_edges(src, dst, num_nodes=7, weight=weight)
    assert edges_of(graph) == sorted(listed, key=lambda edge: (edge[1], edge[0]))
    assert graph.adjacency.indptr.dtype == torch.int64 and graph.adjacency.indices.dtype == torch.int32
    carried = [(*listed[int(w)], w) for w in graph.adjacency.weight.tolist()]
    assert [(u, v) for u, v, _ in carried] == edges_of(graph)


@settings(deadline=None)
@given(pairs)
def test_undirected_adds_each_reverse_and_keeps_loops_single(listed: list[tuple[int, int]]) -> None:
    graph = from_edges([u for u, _ in listed], [v for _, v in listed], num_nodes=7, undirected=True)
    expected = listed + [(v, u) for u, v in listed if u != v]
    assert sorted(edges_of(graph)) == sorted(expected)


@settings(deadline=None)
@given(pairs)
def test_drop_duplicates_keeps_the_first_weight(listed: list[tuple[int, int]]) -> None:
    weight = np.arange(len(listed), dtype=np.float32)
    graph = from_edges([u for u, _ in listed], [v for _, v in listed], num_nodes=7, weight=weight, drop_duplicates=True)
    first: dict[tuple[int, int], int] = {}
    for k, edge in enumerate(listed):
        first.setdefault(edge, k)
    assert edges_of(graph) == sorted(set(listed), key=lambda edge: (edge[1], edge[0]))
    assert graph.adjacency.weight.tolist() == [first[edge] for edge in edges_of(graph)]


@settings(deadline=None)
@given(pairs)
def test_to_undirected_is_symmetric_and_simple(listed: list[tuple[int, int]]) -> None:
    graph = to_undirected(from_edges([u for u, _ in listed], [v for _, v in listed], num_nodes=7))
    assert set(edges_of(graph)) == set(listed) | {(v, u) for u, v in listed}
    assert len(set(edges_of(graph))) == graph.num_edges


text_ids = st.text(st.characters(blacklist_characters="\x00", blacklist_categories=["Cs"]), min_size=1, max_size=8)


@settings(deadline=None)
@given(
    st.one_of(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20, unique=True),
        st.lists(text_ids, min_size=1, max_size=20, unique=True),
    ),
    st.data(),
)
def test_ids_of_any_kind_map_to_their_rows(ids: list[int] | list[str], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids)), max_size=30))
    graph = from_edges(
        np.array([u for u, _ in chosen], dtype=np.array(ids).dtype),
        np.array([v for _, v in chosen], dtype=np.array(ids).dtype),
        ids=np.array(ids),
    )
    expected = sorted((ids.index(u), ids.index(v)) for u, v in chosen)  # type: ignore[arg-type]
    assert sorted(edges_of(graph)) == expected
    assert graph.original_ids is not None and graph.original_ids.tolist() == ids


def test_edge_index_and_lists_give_the_same_graph() -> None:
    one = from_edges(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    two = from_edges([0, 1, 2], [1, 2, 0])
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != from_edges([0, 1, 2], [1, 2, 1]).fingerprint
    assert one.fingerprint != from_edges([0, 1, 2], [1, 2, 0], num_nodes=4).fingerprint
    assert one.fingerprint != from_edges([0, 1, 2], [1, 2, 0], weight=[1, 1, 2]).fingerprint


def test_features_become_float32_and_bf16_stays() -> None:
    assert from_edges([0], [1], x=np.ones((2, 3))).x.dtype == torch.float32  # type: ignore[union-attr]
    assert from_edges([0], [1], x=torch.ones(2, 3, dtype=torch.bfloat16)).x.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert from_edges([0], [1], x=np.ones((2, 3), np.uint16)).num_features == 3


def test_missing_labels_and_several_labels() -> None:
    graph = from_edges([0], [1], y=np.array([2.0, np.nan]))
    assert graph.y.tolist() == [2, -1] and graph.num_classes == 3  # type: ignore[union-attr]
    several = from_edges([0], [1], y=np.array([[1, 0, 1], [-1, -1, -1]]))
    assert several.multi_label and several.num_classes == 3 and several.y.dtype == torch.int8  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"src": [0, 5], "dst": [1, 0], "num_nodes": 3}, "edge 1 (5 -> 0) points outside"),
        ({"src": [0, 1], "dst": [-1, 0], "num_nodes": 3}, "edge 0 (0 -> -1) points outside"),
        ({"src": [0], "dst": [1, 0]}, "one length"),
        ({"src": [[0, 1, 2]]}, "[2, E]"),
        ({"src": [0.5], "dst": [1.0], "num_nodes": 2}, "integers"),
        ({"src": ["a"], "dst": ["b"]}, "pass ids="),
        ({"src": [0], "dst": [1], "x": np.ones((3, 2)), "num_nodes": 2}, "features have 3 rows, the graph has 2"),
        ({"src": [0], "dst": [1], "x": [[1.0], [np.nan]]}, "first in row 1"),
        ({"src": [0], "dst": [1], "x": [[np.inf], [1.0]]}, "first in row 0"),
        ({"src": [3], "dst": [9], "ids": [3, 9], "x": [[1.0], [np.nan]]}, "row 1 (id 9)"),
        ({"src": [0], "dst": [1], "x": np.array([["a"], ["b"]])}, "numbers are needed"),
        ({"src": [0], "dst": [1], "y": [0, 4], "num_classes": 3}, "label of vertex 1 is 4, outside 0..2"),
        ({"src": [0], "dst": [1], "y": [0, -2]}, "label of vertex 1 is -2"),
        ({"src": [0], "dst": [1], "y": [0.5, 1], "label_kind": "classes"}, "whole numbers"),
        ({"src": [0], "dst": [1], "y": [0, 1, 2], "num_nodes": 2}, "3 labels for 2 vertices"),
        ({"src": [0], "dst": [1], "y": [[0, 2], [1, 1]]}, "row 0 of the labels"),
        ({"src": [0], "dst": [1], "train_mask": [False, False]}, "no training vertex"),
        ({"src": [0], "dst": [1], "train_mask": [[True, False], [False, False]]}, "split 1 has no training vertex"),
        ({"src": [0], "dst": [1], "train_mask": [True]}, "train_mask has shape [1]"),
        ({"src": [0], "dst": [1], "train_mask": [True, False], "val_mask": [[True, False]]}, "different shapes"),
        ({"src": [0], "dst": [1], "train_mask": [2, 0]}, "true and false"),
        ({"src": [0], "dst": [1], "weight": [1, 2]}, "2] for 1 edges"),
        ({"src": [0], "dst": [1], "weight": [np.nan]}, "edge weights have NaN"),
        ({"src": [7], "dst": [7], "ids": [7, 8, 7]}, "id '7' occurs twice among the ids, in rows 0 and 2"),
        ({"src": ["x"], "dst": ["x"], "ids": ["x", "y", "y"]}, "id 'y' occurs twice among the ids, in rows 1 and 2"),
        ({"src": [7, 9], "dst": [8, 8], "ids": [7, 8]}, "source of edge 1 has id '9'"),
        ({"src": [], "dst": []}, "no vertices"),
        ({"src": [0], "dst": [1], "y": [0, 1], "class_names": ["one"]}, "label of vertex 1 is 1, outside 0..0"),
        ({"src": [0], "dst": [1], "num_nodes": 2**31}, "more than"),
    ],
)
def test_bad_input_is_one_sentence(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        from_edges(**arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nan_is_found_beyond_the_first_chunk() -> None:
    x = np.zeros((70_000, 100), np.float32)
    x[69_999, 7] = np.nan
    with pytest.raises(UserError, match="first in row 69999"):
        from_edges([0], [1], x=x)


def test_what_cannot_be_trained_is_said() -> None:
    with pytest.raises(UserError, match="no labels"):
        check_trainable(from_edges([0], [1]))
    with pytest.raises(UserError, match="no training split"):
        check_trainable(from_edges([0], [1], y=[0, 1]))
    with pytest.raises(UserError, match="no training vertex with a known label"):
        check_trainable(from_edges([0], [1], y=[0, -1], train_mask=[False, True]))
    with pytest.raises(UserError, match=r"splits 0\.\.0, not 1"):
        check_trainable(from_edges([0], [1], y=[0, 1], train_mask=[[True, False]]), split=1)
    check_trainable(from_edges([0], [1], y=[0, 1], train_mask=[[True, False]]))


def test_text_ids_find_integer_ids() -> None:
    known = IdMap(np.array([10, 20]))
    assert known.find(np.array(["20", "10"]), "row").tolist() == [1, 0]
    with pytest.raises(UserError, match="write them alike"):
        known.find(np.array(["ten"]), "row")


def test_large_finite_features_are_fine_and_opposite_infinities_are_not() -> None:
    assert from_edges([0], [1], x=np.full((2, 4), 3e38, np.float32)).num_features == 4
    with pytest.raises(UserError, match="first in row 0"):
        from_edges([0], [1], x=[[np.inf, -np.inf], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"born": [1, 2]}, "'born' has shape [2] for 3 vertices"),
        ({"x": [1, 2, 3]}, "'x' has an argument of its own"),
        ({"local_indptr": [1, 2, 3]}, "weft keeps another array under that name"),
        ({"a/b": [1, 2, 3]}, "rename it"),
        ({"born": ["a", "b", "c"]}, "give numbers"),
        ({"born": [0.0, np.inf, 1.0]}, "vertex data 'born' have NaN or infinite values, first in row 1"),
    ],
)
def test_vertex_data_that_cannot_be_kept(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as raised:
        from_edges([0, 1], [1, 2], vertex_data=columns)
    assert words in str(raised.value)
