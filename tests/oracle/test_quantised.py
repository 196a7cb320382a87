"""Quantised rows on the wire: bytes by the formula, the same numbers under every schedule, no bias, clear refusals."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given

from tests.oracle.test_equivalence import PIECES, slow, stack_step
from tests.oracle.test_volume import a_graph, spread
from tests.partitioning.drawn import cut_graphs, graph_of
from tests.workers import WorkerFailed, run_workers
from weft.aggregate import (
    MATERIALISED,
    OVERLAPPED,
    SEQUENTIAL,
    Adaptive,
    DistributedGraph,
    Quantised,
    Schedule,
    format_named,
)
from weft.comm import Channels, Communicator
from weft.kernels import packed_bytes
from weft.layers import ModelConfig, build_model
from weft.partitioning import Shard, make_shards
from weft.training.evaluate import predict

PACKED = Schedule(rounds="each", keep="packed", blocks=2)


def shards_of(num_workers: int) -> list[Shard]:
    return make_shards(a_graph(60, 500), spread(60, num_workers), num_workers)


def traffic(comm: Communicator, shards: list[Shard], codec: str, schedule: Schedule, epochs: int) -> Any:
    """Bytes of the last of some epochs of a GAT, and the bits of the rows that this worker sent."""
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm, format_named(codec, cycle=2), schedule)
    torch.manual_seed(0)
    module = build_model(ModelConfig(name="gat", layers=2, hidden=8, heads=4, dropout=0.0), 6, 5).to(comm.device)
    x = graph.shard.x
    for epoch in range(1, epochs + 1):
        before = dict(comm.sent)
        graph.noise.begin(epoch)
        module(graph.view, x).sum().backward()
        if epoch < epochs:
            graph.format.end_epoch(epoch, comm)
    sent = {kind: comm.sent[kind] - before[kind] for kind in comm.sent}
    assert isinstance(graph.format, Quantised)
    return sent, {
        key: {q: layout.bits for q, layout in messages.leaving.items()}
        for key, messages in graph.format.message_sets.items()
    }


@pytest.mark.parametrize("codec", ["int8", "int4", "int2", "adaptive"])
@pytest.mark.parametrize(("schedule", "fetches"), [(MATERIALISED, 1), (PIECES, 1), (SEQUENTIAL, 2), (PACKED, 1)])
def test_bytes_equal_the_formula(codec, schedule, fetches):
    """Values of 32 and 5 columns as integers, logit terms of 4 and 1 heads as they are; refetched or not."""
    answers = run_workers(traffic, 3, shards_of(3), codec, schedule, 3)
    seen = set()
    for sent, bits_sent in answers:
        wanted = {"forward": 0, "backward": 0}
        for (number, _, tensor, direction), by_peer in bits_sent.items():
            width, heads = (32, 4) if number == 1 else (5, 1)
            assert tensor == 0, "logit terms travel as they are"
            for bits in by_peer.values():
                seen |= set(bits.tolist())
                wanted[direction] += sum(packed_bytes(width, int(b)) for b in bits) + bits.numel() * heads * 4
        assert sent["hidden_forward"] == fetches * wanted["forward"]
        assert sent["hidden_backward"] == wanted["backward"]
    if codec == "adaptive":
        assert len(seen) > 1, "every row got the same bits"
    else:
        assert seen == {int(codec.removeprefix("int"))}


@pytest.mark.parametrize("codec", ["int8", "int2", "adaptive"])
@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "transformer"])
def test_every_schedule_sees_the_same_rounded_rows(codec, name):
    """Rounding is keyed by vertex and column, so the schedules differ by far less than rounding costs.

    Sums of another order differ in their last bits, and here and there one of them is rounded the other way.
    """
    model = {"name": name, "layers": 3, "hidden": 8, "heads": 2, "dropout": 0.3}
    shards = shards_of(3)

    def gradients(schedule: Schedule, codec: str) -> torch.Tensor:
        answers = run_workers(stack_step, 3, shards, model, schedule, codec, False, torch.float32, 2)
        return torch.cat([gradient.flatten() for answer in answers for gradient in answer[1]["model"].values()])

    rounded = gradients(MATERIALISED, codec)
    cost = (rounded - gradients(MATERIALISED, "raw")).norm()
    assert cost > 0
    for schedule in (PIECES, SEQUENTIAL, PACKED):
        found = gradients(schedule, codec)
        assert (found - rounded).norm() < 0.1 * cost
        assert torch.isclose(found, rounded, rtol=1e-4, atol=1e-4).float().mean() > 0.9


def averaged(comm: Communicator, shards: list[Shard], codec: str, epochs: int, delta: bool = False) -> Any:
    """The mean over epochs of an aggregate and of its gradient, and the raw ones."""
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm, format_named(codec, delta=delta))
    rows = torch.randn(60, 12, generator=torch.Generator().manual_seed(1)).to(comm.device)[graph.global_ids]
    probe = torch.randn(60, 12, generator=torch.Generator().manual_seed(2)).to(comm.device)[graph.global_ids]
    outs, grads = [], []
    for epoch in range(1, epochs + 1):
        x = rows.clone().requires_grad_()
        graph.noise.begin(epoch)
        out = graph.view.aggregate(x, "sum", "symmetric")
        (out * probe).sum().backward()
        outs.append(out.detach())
        grads.append(x.grad)
    graph.format = format_named("raw")
    x = rows.clone().requires_grad_()
    exact = graph.view.aggregate(x, "sum", "symmetric")
    (exact * probe).sum().backward()
    return torch.stack(outs), torch.stack(grads), exact.detach(), x.grad


@pytest.mark.parametrize("codec", ["int8", "int4", "int2"])
def test_aggregates_and_gradients_are_unbiased(codec):
    epochs = 400
    for outs, grads, exact, exact_grad in run_workers(averaged, 2, shards_of(2), codec, epochs):
        for drawn, wanted in ((outs, exact), (grads, exact_grad)):
            error, sigma = drawn.double().mean(0) - wanted, drawn.double().std(0)
            assert float(sigma.max()) > 0, "nothing was rounded"
            rare = 20 * float(sigma.max()) / epochs  # a value close to a step is seldom rounded away from it
            assert bool((error.abs() <= 5 * sigma / epochs**0.5 + rare).all())


def test_differences_to_the_last_rows_lose_less_and_less():
    """Rows that do not change: what is still missing is sent, epoch by epoch, in ever finer steps."""
    for outs, _, exact, _ in run_workers(averaged, 2, shards_of(2), "int2", 12, True):
        errors = [(out - exact).abs().max().item() for out in outs]
        assert errors[0] > 0.05 and errors[-1] < 1e-4, errors


def bits_at_both_ends(comm: Communicator, shards: list[Shard], schedule: Schedule, epochs: int) -> Any:
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm, format_named("adaptive", cycle=1), schedule)
    torch.manual_seed(0)
    module = build_model(ModelConfig(name="sage", layers=3, hidden=16), 6, 5).to(comm.device)
    rows = torch.randn(graph.shard.num_global_nodes, 6, generator=torch.Generator().manual_seed(1)).to(comm.device)
    for epoch in range(1, epochs + 1):
        graph.noise.begin(epoch)
        module(graph.view, rows[graph.global_ids]).sum().backward()
        assert isinstance(graph.format, Adaptive)
        assert graph.format.end_epoch(epoch, comm) is not None
    return {
        key: [{q: layout.bits for q, layout in side.items()} for side in (messages.leaving, messages.arriving)]
        for key, messages in graph.format.message_sets.items()
    }


def check_both_ends(shards: list[Shard], schedule: Schedule, epochs: int) -> int:
    """That senders and receivers agree on the bits of every row; how many rows there are."""
    answers, rows = run_workers(bits_at_both_ends, len(shards), shards, schedule, epochs), 0
    for worker, by_key in enumerate(answers):
        for key, (leaving, _) in by_key.items():
            for peer, bits in leaving.items():
                assert torch.equal(bits, answers[peer][key][1][worker])
                rows += bits.numel()
    return rows


@pytest.mark.parametrize("schedule", [MATERIALISED, OVERLAPPED, PIECES], ids=["materialised", "overlapped", "pieces"])
def test_both_ends_agree_on_the_bits(schedule):
    assert check_both_ends(shards_of(4), schedule, 2) > 0


@pytest.mark.parametrize("schedule", [MATERIALISED, OVERLAPPED, PIECES], ids=["materialised", "overlapped", "pieces"])
def test_bits_of_rows_that_go_one_way_only(schedule):
    """Worker 1 reads rows of worker 0 and sends none: time and again, it has nothing to choose."""
    graph = graph_of(6, [(0, 3), (1, 4), (2, 5), (0, 4)], weighted=False)
    shards = make_shards(graph, torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.int32), 2)
    assert check_both_ends(shards, schedule, 3) > 0


@pytest.mark.parametrize("num_workers", [2, 3, 4])
def test_bits_on_drawn_graphs(num_workers):
    @slow
    @given(cut_graphs(max_parts=num_workers))
    def run(cut: Any) -> None:
        graph, owner, _ = cut
        if graph.num_nodes:
            check_both_ends(make_shards(graph, owner, num_workers), PIECES, 3)

    run()


def bits_in_pieces(comm: Communicator, shards: list[Shard], rounds: int) -> Any:
    """Of the first aggregation's rows on their way out, by peer: the bits, and into how many messages they go."""
    schedule = replace(PIECES, target_rounds=rounds)
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm, format_named("adaptive", cycle=1), schedule)
    assert isinstance(graph.format, Adaptive)
    speeds = torch.full((comm.num_workers, comm.num_workers), 1e-6, dtype=torch.float64)
    graph.format.channels = Channels(speeds, speeds)
    torch.manual_seed(0)
    module = build_model(ModelConfig(name="gcn", layers=2, hidden=16), 6, 5).to(comm.device)
    graph.noise.begin(1)
    module(graph.view, graph.shard.x).sum().backward()
    graph.format.end_epoch(1, comm)
    found: dict[int, list[torch.Tensor]] = {}
    for (number, _, _, direction), messages in sorted(graph.format.message_sets.items()):
        if number == min(graph.format.message_sets)[0] and direction == "forward":
            for peer, layout in messages.leaving.items():
                found.setdefault(peer, []).append(layout.bits)
    return found


def test_bits_do_not_depend_on_the_pieces_of_a_message():
    shards = shards_of(3)
    whole, cut = (run_workers(bits_in_pieces, 3, shards, rounds) for rounds in (1, 8))
    for one, other in zip(whole, cut, strict=True):
        for peer, bits in one.items():
            assert len(bits) == 1 and len(other[peer]) == 4
            assert len(bits[0].unique()) > 1
            assert torch.equal(bits[0], torch.cat(other[peer]))


def outputs(comm: Communicator, shards: list[Shard], codec: str) -> Any:
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm, format_named(codec))
    torch.manual_seed(0)
    module = build_model(ModelConfig(name="gcn", layers=2, hidden=8), 6, 4).to(comm.device)
    return predict(module, graph, graph.shard.x)


def test_evaluation_is_not_quantised():
    shards = shards_of(2)
    for a, b in zip(run_workers(outputs, 2, shards, "int2"), run_workers(outputs, 2, shards, "raw"), strict=True):
        assert torch.equal(a, b)


def refuse(comm: Communicator, shards: list[Shard], what: str) -> None:
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm, format_named("int4"))
    graph.noise.begin(1)
    x = torch.randn(graph.view.num_rows, 8).to(comm.device)
    if what == "max":
        graph.view.aggregate(x, "max")
    elif what == "message":
        graph.view.message(lambda edges: edges.src, x, reduce="max")
    else:
        x[graph.global_ids == 17, 3] = float("nan")
        module = build_model(ModelConfig(name="gcn", layers=2, hidden=8, dropout=0.0), 8, 8).to(comm.device)
        module(graph.view, x)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("max", "a maximum of rounded rows is biased"),
        ("message", "a maximum"),
        ("nan", "vertex 17 .* not finite in layer 1, forward"),
    ],
)
def test_refusals(what, words):
    with pytest.raises(WorkerFailed, match=words) as failure:
        run_workers(refuse, 2, shards_of(2), what, fresh=True)
    assert failure.value.kind == "UserError"
