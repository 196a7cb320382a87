"""Asynchronous rows: what is done when, that nothing stays behind, and that a layer need not know of them."""

import copy
import gc
import io
import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from tests.partitioning.drawn import graph_of
from tests.workers import run_workers
from weft.aggregate import MATERIALISED, OVERLAPPED, DistributedGraph, order_for_overlap
from weft.aggregate.async_rows import AsyncRows, Completion, Deferred, asynchronous, split
from weft.layers import GCN, SAGE
from weft.layers.linear import linear
from weft.partitioning import make_shards, whole_shard


def noted(done):
    return lambda rows: done.append((rows.start, rows.stop))


def test_deferred_work_is_done_once_and_as_it_is_wanted():
    done, deferred = [], Deferred(10)
    deferred.do(noted(done))
    assert done == []
    for wanted, then in ((slice(4, 6), [(4, 6)]), (slice(5, 8), [(6, 8)]), (slice(4, 7), []), (slice(3, 3), [])):
        before = len(done)
        deferred.reach(wanted)
        assert done[before:] == then
    deferred.reach(slice(1, 9))
    assert done[-2:] == [(1, 4), (8, 9)] and not deferred.done
    deferred.wait()
    assert done[-2:] == [(0, 1), (9, 10)] and deferred.done
    deferred.wait()
    assert len(done) == 6


def test_steps_follow_each_arrival_in_the_order_in_which_they_came():
    done = []
    completion = Completion([slice(0, 2)], [(partial(done.append, "first"), [slice(4, 6), slice(2, 4)])])
    completion.do(noted(done))
    assert done == [(0, 2)] and not completion.done
    completion.do(lambda rows: done.append("second step"))
    completion.do_later(lambda rows: done.append("third step"))
    del done[:]
    completion.wait()
    steps = ["second step", "third step"]
    assert done == ["first", (4, 6), *steps, (2, 4), *steps] and completion.done
    completion.wait()
    assert len(done) == 7


def test_rows_that_did_not_arrive_are_an_error_for_everybody_who_reads_them():
    def lost():
        raise ConnectionError("worker 1 is gone")

    x = AsyncRows(torch.zeros(4, 2), Completion([], [(lost, [slice(0, 4)])]))
    with pytest.raises(ConnectionError):
        x.sum()
    with pytest.raises(RuntimeError, match="never arrived: worker 1 is gone"):
        x + 1


def pending(rows=4):
    """Zeros that an arrival makes ones, and what was waited for."""
    plain, waited = torch.zeros(rows, 2), []

    def arrive():
        waited.append(True)
        plain.add_(1)

    return AsyncRows(plain, Completion([], [(arrive, [slice(0, rows)])])), waited


def saved(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x + 0,
        lambda x: torch.cat([x[:2], x[2:]]),
        lambda x: x.clone(),
        lambda x: x.mul_(1),
        lambda x: torch.zeros(4, 2).add_(x),
        lambda x: torch.mul(x, 1, out=torch.empty(4, 2)),
        lambda x: torch._foreach_mul([x], 1)[0],
        lambda x: torch.from_numpy(x.numpy().copy()),
        lambda x: torch.from_numpy(np.asarray(x)),
        lambda x: torch.tensor(x.tolist()),
        lambda x: torch.from_dlpack(x),
        lambda x: torch.empty(0).set_(x.untyped_storage(), 0, (4, 2)),
        lambda x: x.detach() + 0,
        lambda x: x.data + 0,
        lambda x: copy.deepcopy(x),
        saved,
        lambda x: torch.stack(list(x)),
        lambda x: nn.functional.linear(x, torch.eye(2)),
    ],
)
def test_whatever_reads_values_waits_and_has_a_plain_result(read):
    x, waited = pending()
    assert (x.shape, x.dtype, x.requires_grad, x.is_contiguous(), len(x), waited) == (
        (4, 2),
        torch.float32,
        0,
        1,
        4,
        [],
    )
    found = read(x)
    assert torch.equal(found, torch.ones(4, 2)) and waited == [True]
    assert type(found) is torch.Tensor or found is x
    assert str(x) == str(torch.ones(4, 2)) and x.data_ptr() == x.plain.data_ptr()
    assert asynchronous(x.plain, x.completion) is x.plain and split(x) == (x.plain, None)


def test_what_has_arrived_holds_nothing():
    """Tensors, what they wait for, and what that works on are no circle, and nothing stays after the last arrival."""
    plain = torch.zeros(4, 2)
    x = AsyncRows(plain, Completion([slice(0, 2)], [(partial(plain.add_, 1), [slice(2, 4)])]))
    x.completion.do(lambda rows, plain=plain: plain[rows].mul_(2))
    gc.collect()
    gc.disable()
    try:
        assert x.tolist() == [[1, 1], [1, 1], [2, 2], [2, 2]]
        gone, completion = weakref.ref(plain), x.completion
        del x, plain
        assert gone() is None and completion.done
    finally:
        gc.enable()


@pytest.mark.parametrize("layer", [GCN, SAGE])
def test_rows_that_others_read_too_have_the_whole_gradient(layer):
    """A layer may not take rows to be its own: who made them could have used them elsewhere."""
    shard = whole_shard(graph_of(5, [(0, 1), (2, 1), (1, 0), (3, 3), (0, 2)], False), reorder=False)
    view = DistributedGraph(shard).view
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


# -- layers that know nothing of asynchronous rows, on several workers -------------------------------------------------

WIDTH = 4


def reads_twice(graph, x, p):
    rows = graph.aggregate(x @ p[0])
    return rows @ p[1] + rows.relu()


def reads_again_after_waiting(graph, x, p):
    rows = graph.aggregate(x @ p[0])
    total = rows.sum(0)
    return linear(rows, p[1]) * total + linear(graph.relu_dropout_(linear(rows, p[2]), None, 0.0), p[3])


def adds_to_something(graph, x, p):
    return graph.aggregate(x @ p[0], "mean") + x @ p[1]


def asks_numpy(graph, x, p):
    rows = graph.aggregate(x @ p[0])
    limit = float(np.median(np.abs(rows.detach().numpy()).sum(1) > 1e9))
    return rows * (1 + limit)


def has_hooks(graph, x, p):
    messages = x @ p[0]
    messages.register_hook(lambda grad: grad * 2)
    rows = graph.aggregate(messages)
    rows.register_hook(lambda grad: grad.clamp(-1, 1))
    return linear(rows, p[1])


def works_in_place(graph, x, p):
    rows = graph.aggregate(x @ p[0])
    rows.mul_(2).add_(x)
    rows[1:3] = rows[1:3] * 3
    return graph.relu_dropout_(rows, p[4][0], 0.0) @ p[1]


def concatenates(graph, x, p):
    rows = graph.aggregate(x @ p[0], "max")
    return torch.cat([rows, x], 1) @ torch.cat([p[1], p[2]])


def adds_in_place_to_plain_rows(graph, x, p):
    rows = x @ p[0]
    graph.aggregate(x @ p[1], "mean", into=rows)
    return rows * 2 + rows


def aggregates_what_two_read(graph, x, p):
    messages = linear(x, p[0])
    return linear(graph.aggregate(messages), p[1]) + graph.aggregate(messages, "max") + messages


def keeps_what_nobody_reads(graph, x, p):
    kept = graph.aggregate(x @ p[0], "max")
    rows = graph.aggregate(x @ p[1])
    lost = graph.aggregate(rows)
    return rows if kept.shape == lost.shape else kept


class Ignores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return torch.ones(grad.shape, dtype=grad.dtype)


def ignores_its_gradient(graph, x, p):
    return linear(graph.aggregate(Ignores.apply(linear(x, p[0]))), p[1])


def three_in_a_row(graph, x, p):
    for matrix in p[:3]:
        x = graph.relu_dropout_(graph.aggregate(linear(x, matrix), "mean"), p[4][0], 0.0)
    x = graph.elu_dropout(linear(graph.aggregate(x), p[3]), p[4][1], 0.0)
    return linear(graph.aggregate(linear(x, p[0])), p[1])


def asks_for_gradients_within(graph, x, p):
    rows = graph.aggregate(linear(x, p[0]))
    with torch.enable_grad():
        inner = rows.detach().requires_grad_()
        (slope,) = torch.autograd.grad((inner**3).sum(), inner)
    return rows * slope


LAYERS = {
    layer.__name__: layer
    for layer in (
        reads_twice, reads_again_after_waiting, adds_to_something, asks_numpy, has_hooks, works_in_place, concatenates,
        adds_in_place_to_plain_rows, aggregates_what_two_read, keeps_what_nobody_reads, ignores_its_gradient,
        three_in_a_row, asks_for_gradients_within,
    )
}  # fmt: skip
PIECES = replace(OVERLAPPED, smallest_piece=1)


def graph_and_shards(num_workers):
    generator = torch.Generator().manual_seed(9)
    near = torch.randint(0, 60, (160, 1), generator=generator)
    edges = torch.cat([near, (near + torch.randint(-3, 4, near.shape, generator=generator)) % 60], 1)
    graph = graph_of(60, [tuple(edge) for edge in edges.tolist()], weighted=False)
    return make_shards(graph, (torch.arange(60) * num_workers // 60).int(), num_workers)


def make_graph(comm, shards, schedule):
    return DistributedGraph(order_for_overlap(shards[comm.worker], comm), comm, schedule=schedule)


def step(comm, shards, name, schedule, constant):
    """By global id, outputs and input gradients; gradients of parameters, which torch.autograd.grad gives, too."""
    graph = make_graph(comm, shards, schedule)
    view = graph.view
    ids = view.global_ids
    generator = torch.Generator().manual_seed(3)
    p = [nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) / 2) for _ in range(5)]
    rows = torch.randn(60, WIDTH, generator=generator, dtype=torch.float64)
    probe = torch.randn(60, WIDTH, generator=generator, dtype=torch.float64)
    for _ in range(2):  # gradients are added to those that are there
        x = rows[ids].requires_grad_(not constant)
        if constant:
            graph.hold_constant(x)
        view.noise.begin(None)
        out = LAYERS[name](view, x, p)
        (out * probe[ids]).sum().backward()
    again = torch.autograd.grad((LAYERS[name](view, x, p) * probe[ids]).sum(), p, allow_unused=True)
    for parameter, grad in zip(p, again, strict=True):
        if grad is not None:
            torch.testing.assert_close(parameter.grad, 2 * grad, rtol=1e-12, atol=1e-12)
    grads = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad + 0 for parameter in p]
    return ids, out.detach() + 0, None if constant else x.grad + 0, grads


@pytest.mark.parametrize("num_workers", [2, 3])
def test_layers_that_know_nothing_are_right(num_workers):
    shards = graph_and_shards(num_workers)
    for name in LAYERS:
        for constant in (False, True):
            results = []
            for schedule in (MATERIALISED, PIECES):
                answers = run_workers(step, num_workers, shards, name, schedule, constant)
                ids = torch.cat([answer[0] for answer in answers]).argsort()
                out = torch.cat([answer[1] for answer in answers])[ids]
                d_x = None if constant else torch.cat([answer[2] for answer in answers])[ids]
                grads = [torch.stack(shares).sum(0) for shares in zip(*(answer[3] for answer in answers), strict=True)]
                results.append((out, d_x, grads))
            torch.testing.assert_close(
                results[1], results[0], rtol=1e-11, atol=1e-11, msg=partial("{}: {}".format, name)
            )


def watched(comm, shards):
    """What is asynchronous when, as somebody sees it who looks without reading."""
    view = make_graph(comm, shards, PIECES).view
    x = torch.randn(view.num_rows, WIDTH, requires_grad=True)
    matrix = nn.Parameter(torch.randn(WIDTH, WIDTH))
    seen, kept = {}, []

    def hook(grad):
        kept.append(grad)
        seen["gradient"] = isinstance(grad, AsyncRows) and not grad.completion.done

    messages = linear(x, matrix)
    messages.register_hook(hook)
    rows = view.aggregate(messages, "mean")
    completion = rows.completion
    product = linear(view.relu_dropout_(rows, None, 0.0), matrix)
    seen["forward"] = not completion.done and product.completion is completion
    gc.collect()
    gc.disable()
    try:
        gone = [weakref.ref(rows.plain), weakref.ref(product.plain), weakref.ref(completion)]
        loss = product.sum()
        seen["waited"] = completion.done
        del completion
        loss.backward()
        seen["at the end"] = kept[0].completion.done and x.grad.isfinite().all().item()
        gone += [weakref.ref(kept[0].plain), weakref.ref(kept[0].completion)]
        del rows, product, messages, loss
        kept.clear()
        matrix.grad = x.grad = None
        seen["held"] = [ref() is not None for ref in gone[:2] + gone[3:4]]
    finally:
        gc.enable()
    return seen


def test_results_and_gradients_are_asynchronous_and_gone_without_a_collector():
    for seen in run_workers(watched, 2, graph_and_shards(2)):
        everything = dict.fromkeys(("gradient", "forward", "waited", "at the end"), True)
        assert seen == {**everything, "held": [False, False, False]}


def misused(comm, shards):
    view = make_graph(comm, shards, PIECES).view
    x = torch.randn(view.num_rows, WIDTH, requires_grad=True)
    taken = x.exp()  # whose gradient needs what it was
    return linear(view.aggregate(x), torch.eye(WIDTH), into=taken).sum().backward()


def test_rows_that_were_given_away_are_not_read_again():
    with pytest.raises(AssertionError, match="modified by an inplace operation"):
        run_workers(misused, 2, graph_and_shards(2))
