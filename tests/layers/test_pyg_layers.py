"""PyG's own convolutions as layers: the numbers of PyG in one process, trained and evaluated, by any workers."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("torch_geometric", reason="PyG is not installed")

from tests.layers.pyg_models import BLOCKWISE, config_of, drawn, in_plain_pyg
from tests.sample.cases import CLASSES, spread, start
from tests.workers import run_workers
from weft.aggregate import SEQUENTIAL, DistributedGraph
from weft.comm import Communicator, all_reduce_gradients
from weft.graph.graph import Graph
from weft.layers import ModelConfig, build_model
from weft.partitioning import Shard, make_shards, whole_shard
from weft.training.evaluate import predict
from weft.training.loss import GlobalLoss
from weft.training.objective import known
from weft.training.steps import FullGraph

PLANS = ("full", "macrobatch", "split")
ALL = {"fanout": (-1, -1), "batch": 1 << 20}  # one minibatch of everything: as on the full graph


def rows_of(shard: Shard | Graph) -> Tensor:
    assert shard.y is not None and shard.train_mask is not None
    return (shard.train_mask & known(shard.y)).nonzero().squeeze(1)


def gradients(
    comm: Communicator, shards: list[Shard], kind: str, plan: str, settings: dict[str, Any], dropout: float = 0.0
) -> tuple[list[list[Tensor]], Tensor, Tensor]:
    """Of each step the gradients; and what the model says of own vertices, with their ids."""
    shard = shards[comm.worker]
    rows, config = rows_of(shard), config_of(kind, dropout=dropout)
    assert shard.y is not None
    loss = GlobalLoss(shard.y, rows, CLASSES, "none", comm)
    if plan == "full":
        distributed, module, x = on_the_full_graph(comm, shard, config)
        steps: Any = FullGraph(distributed, module, x, loss)
    else:
        setup = start(comm, shard, rows, config, last_epoch=1, plan=plan, **settings)  # type: ignore[arg-type]
        distributed, module, x, steps = setup.graph, setup.model, setup.x, setup.steps()
    found = []
    for step in steps.epoch(1):
        module.zero_grad()
        step.loss().backward()
        all_reduce_gradients(comm, module.parameters())
        found.append([parameter.grad.clone() for parameter in module.parameters()])
    steps.close()
    return found, predict(module, distributed, x), shard.global_ids


def on_the_full_graph(comm: Communicator, shard: Shard, config: dict[str, Any]) -> tuple[DistributedGraph, Any, Tensor]:
    distributed = (
        DistributedGraph(shard, comm, schedule=SEQUENTIAL) if comm.num_workers == 3 else DistributedGraph(shard, comm)
    )
    assert shard.x is not None
    x = shard.x.double()
    distributed.hold_constant(x)
    torch.manual_seed(0)
    return distributed, build_model(ModelConfig(**config), x.shape[1], CLASSES, distributed.num_relations).double(), x


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", BLOCKWISE)
def test_trained_and_evaluated_by_any_number_of_workers_it_is_pyg(kind: str, plan: str) -> None:
    graph = drawn(kind)
    _, model, _ = on_the_full_graph(Communicator.alone(), whole_shard(graph, reorder=False), config_of(kind))
    wanted = in_plain_pyg(model, kind, graph)
    assert graph.y is not None
    rows = rows_of(graph)
    torch.nn.functional.cross_entropy(wanted[rows], graph.y[rows]).backward()  # type: ignore[no-untyped-call]
    for num_workers in (1, 2, 3):
        shards = make_shards(graph, spread(graph.num_nodes, num_workers), num_workers)
        for (found,), logits, ids in run_workers(gradients, num_workers, shards, kind, plan, ALL):
            for grad, parameter in zip(found, model.parameters(), strict=True):
                torch.testing.assert_close(grad, parameter.grad, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(logits, wanted.detach()[ids], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("plan", ["macrobatch", "split"])
@pytest.mark.parametrize("kind", BLOCKWISE)
def test_sampled_steps_do_not_depend_on_the_workers(kind: str, plan: str) -> None:
    graph, settings = drawn(kind), {"fanout": (3, 4)}
    ((wanted, _, _),) = run_workers(gradients, 1, [whole_shard(graph, reorder=False)], kind, plan, settings, 0.4)
    assert len(wanted) > 1 and all(float(grad.abs().max()) > 0 for grad in wanted[0][:2])
    shards = make_shards(graph, spread(graph.num_nodes, 3), 3)
    for found, _, _ in run_workers(gradients, 3, shards, kind, plan, settings, 0.4):
        for step, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(step, expected, rtol=1e-9, atol=1e-9)


def bytes_of_two_passes(comm: Communicator, shards: list[Shard]) -> list[dict[str, int]]:
    distributed, model, x = on_the_full_graph(comm, shards[comm.worker], config_of("sage"))
    sent = []
    for _ in range(2):
        before = dict(comm.sent)
        predict(model, distributed, x)
        sent.append({kind: comm.sent[kind] - before[kind] for kind in ("features", "hidden_forward")})
    return sent


def test_input_rows_travel_once() -> None:
    shards = make_shards(drawn("sage"), spread(60, 2), 2)
    for first, second in run_workers(bytes_of_two_passes, 2, shards):
        assert first["features"] > 0 and second["features"] == 0
        assert first["hidden_forward"] == second["hidden_forward"] > 0


@pytest.mark.parametrize("kind", BLOCKWISE)
def test_evaluation_goes_over_destinations_in_blocks_that_are_bounded(kind: str, monkeypatch: Any) -> None:
    graph = drawn(kind)
    distributed, model, x = on_the_full_graph(Communicator.alone(), whole_shard(graph, reorder=False), config_of(kind))
    wanted = predict(model, distributed, x)
    edges: list[int] = []
    for layer in model.layers:
        layer.convolution.register_forward_pre_hook(lambda _, given: edges.append(given[1].shape[1]))
    largest = max(int(graph.adjacency.degrees().max()) + 1, 40)
    widest = max(max(parameter.shape) for parameter in model.parameters())
    monkeypatch.setattr("weft.layers.pyg.BLOCK_BYTES", 40 * 8 * widest)
    torch.testing.assert_close(predict(model, distributed, x), wanted, rtol=1e-9, atol=1e-9)
    assert len(edges) > 10 and max(edges) <= largest * 8


def drops(comm: Communicator, shards: list[Shard]) -> list[Tensor]:
    from torch_geometric.nn import GATConv

    from weft.layers.pyg import Convolution

    distributed = DistributedGraph(shards[comm.worker], comm)
    torch.manual_seed(1)
    layer = Convolution(GATConv(6, 4, dropout=0.5))
    found = []
    for epoch in (1, 1, 2):
        distributed.noise.begin(epoch)
        found.append(layer(distributed.view, distributed.shard.x).detach())
        torch.rand(3)  # what others draw meanwhile makes no difference
    return found


def test_what_a_convolution_drops_is_the_same_when_an_epoch_is_run_again() -> None:
    shards = make_shards(drawn("sage"), spread(60, 2), 2)
    for first, again, following in run_workers(drops, 2, shards):
        assert torch.equal(first, again) and not torch.equal(first, following)
