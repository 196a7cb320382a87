"""Rows that come later, without workers: what is done when, and that nothing stays behind."""

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn

from tests.partition.drawn import graph_of
from weft.aggregate import GraphView
from weft.aggregate.late import Late, mark
from weft.layers import GCN, SAGE
from weft.partition import whole_shard


def test_what_was_put_off_is_done_once_and_as_it_is_wanted():
    done, late = [], Late(slice(4, 6), 10)
    late.work(lambda rows: done.append((rows.start, rows.stop)))
    assert done == [(4, 6)]
    for wanted, then in ((slice(5, 8), [(6, 8)]), (slice(4, 7), []), (slice(1, 9), [(1, 4), (8, 9)])):
        before = len(done)
        late.reach(wanted)
        assert done[before:] == then
    assert not late.settled
    late.settle()
    assert done[-2:] == [(0, 1), (9, 10)] and late.settled


def test_rows_are_wanted_where_none_leave_first():
    done, late = [], Late(slice(0, 0), 10)
    late.then(lambda rows: done.append((rows.start, rows.stop)))
    late.reach(slice(3, 3))
    late.reach(slice(6, 8))
    late.settle()
    assert done == [(6, 8), (0, 6), (8, 10)]


def test_what_has_arrived_holds_nothing():
    """Tensors, what they wait for, and what that works on are a circle: it ends with the last arrival."""
    x = torch.zeros(4, 2)
    late = Late(slice(0, 2), 4, [(partial(x.add_, 1), slice(2, 4))])
    mark(x, late)
    late.then(lambda rows, x=x: x[rows].mul_(2))
    gc.collect()
    gc.disable()
    try:
        late.settle()
        assert x.tolist() == [[1, 1], [1, 1], [2, 2], [2, 2]]
        gone = weakref.ref(x)
        del x, late
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("layer", [GCN, SAGE])
def test_rows_that_others_read_too_have_the_whole_gradient(layer):
    """A layer may not take rows to be its own: who made them could have used them elsewhere."""
    view = GraphView(whole_shard(graph_of(5, [(0, 1), (2, 1), (1, 0), (3, 3), (0, 2)], False), reorder=False))
    torch.manual_seed(0)
    first, second, skip = nn.Linear(3, 4).double(), layer(4, 4).double(), torch.randn(5, 4, dtype=torch.float64)
    bias = nn.Parameter(torch.randn(4, dtype=torch.float64))
    x = torch.randn(5, 3, dtype=torch.float64)

    def gradients(rows):
        parameters = [bias, *first.parameters(), *second.parameters()]
        return torch.autograd.grad((second(view, rows) * skip).sum() + (rows * skip).sum(), parameters)

    view.noise.begin(1)
    rows = view.relu_dropout_(first(x), bias, 0.5)
    kept = (rows.detach() > 0) / 0.5
    assert 0 < kept.count_nonzero() < kept.numel() / 2
    for one, other in zip(gradients(rows), gradients((first(x) + bias) * kept), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
