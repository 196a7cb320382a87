"""What a DistributedGraph prepares: passes, each with the view that its model is called with."""

import pytest
import torch

from tests.partitioning.drawn import graph_of
from weft import UserError
from weft.aggregate import RAW, DistributedGraph, format_named
from weft.aggregate.cached_level import CachedLevel
from weft.partitioning import whole_shard

EDGES = [(0, 1), (2, 1), (1, 0), (3, 3), (0, 2)]


def a_graph():
    return DistributedGraph(whole_shard(graph_of(5, EDGES, False), reorder=False))


def test_an_exact_pass_drops_nothing_and_leaves_the_format_as_it_was():
    graph = a_graph()
    graph.format = packed = format_named("int8")
    with pytest.raises(RuntimeError, match="halfway"), graph.exact_pass() as view:
        assert graph.format is RAW and view.noise.next_key() is None
        raise RuntimeError("halfway")
    assert graph.format is packed


def test_training_passes_draw_by_epoch_and_step():
    graph, keys = a_graph(), []
    for where in ((1,), (1, 1), (1, 2), (2,), (1,)):
        with graph.training_pass(*where) as view:
            keys.append(view.noise.next_key())
    assert keys[0] == keys[-1] and len(set(keys)) == 4


def test_a_restricted_pass_hands_each_layer_its_level():
    graph = a_graph()
    x = graph.shard.x.double()
    whole = graph.view.aggregate(x, "mean")
    graph.restrict([5, 3, 2])
    with graph.training_pass(1) as view:
        first, second = view.level(0), view.level(1)
        assert [(level.num_rows, level.num_out) for level in (first, second)] == [(5, 3), (3, 2)]
        torch.testing.assert_close(first.aggregate(first.enter(x), "mean"), whole[:3])
        square = first.squared()
        assert square.num_out == 5 and not square.aggregate(x, "mean")[3:].any()
    with graph.exact_pass() as view:
        assert view.level(0) is view and view.num_out == 5, "evaluation is over all vertices"


@pytest.mark.parametrize("restricted_first", [True, False])
def test_constant_input_is_known_to_the_levels_of_restricted_passes(restricted_first):
    """A level's aggregate is the first rows of that of the whole graph, whichever of the two was asked for first."""
    graph = a_graph()
    x = graph.shard.x.double()
    if restricted_first:
        graph.restrict([5, 3])
    graph.hold_constant(x)
    if not restricted_first:
        graph.restrict([5, 3])
    with graph.training_pass(1) as view:
        level = view.level(0)
        rows = level.enter(x)
        assert level.is_constant(rows) and not level.is_constant(rows.clone())
        found, square = level.aggregate(rows, "mean"), level.squared().aggregate(rows, "mean")
        assert level.aggregate(rows, "mean") is found
    whole = graph.view.aggregate(x, "mean")
    assert found.data_ptr() == square.data_ptr() == whole.data_ptr(), "computed more than once"
    assert (len(found), len(square)) == (3, 5)


def test_a_sampled_pass_whose_input_is_aggregated_asks_for_no_edges():
    graph = a_graph()
    ids, x = torch.arange(3), torch.randn(3, 2)
    known = torch.randn(3, 2)
    graph.sample([CachedLevel(graph.topology, ids)], x, {("mean", None, None): known})
    with graph.training_pass(1, 1) as view:
        level = view.level(0)
        assert level.of_minibatch and level.squared() is level
        assert level.aggregate(level.enter(x), "mean") is known
        for ask in (
            lambda: level.aggregate(x, "sum"),
            lambda: level.in_degrees,
            lambda: level.message(lambda e: e.src, x),
        ):
            with pytest.raises(UserError, match=r"set sample\.cache_aggregates=never"):
                ask()
