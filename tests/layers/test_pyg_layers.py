"""PyG's own convolutions as layers: the same numbers as PyG computes, on the full graph and on minibatches."""

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("torch_geometric", reason="PyG is not installed")

from tests.sample.cases import CLASSES, FEATURES, a_graph, spread, start
from tests.workers import WorkerFailed, run_workers
from weft.aggregate import GraphView
from weft.comm import Communicator, all_reduce_gradients
from weft.layers import ModelConfig, Stack
from weft.layers.pyg import Convolution
from weft.partition import Shard, make_shards, whole_shard
from weft.train.loss import GlobalLoss
from weft.train.objective import known
from weft.train.steps import Sampled

KINDS = ("sage", "gat", "gin", "transformer")


def convolution(kind: str, num_in: int, num_out: int) -> nn.Module:
    from torch_geometric.nn import GATConv, GINConv, SAGEConv, TransformerConv

    if kind == "sage":
        return SAGEConv(num_in, num_out)
    if kind == "gat":
        return GATConv(num_in, num_out // 2, heads=2, add_self_loops=False)
    if kind == "gin":
        return GINConv(nn.Sequential(nn.Linear(num_in, num_out), nn.ReLU(), nn.Linear(num_out, num_out)))
    return TransformerConv(num_in, num_out // 2, heads=2, edge_dim=2)


def model(num_in: int, num_out: int, config: ModelConfig) -> Stack:
    kind = config.name.rpartition("_")[2]
    layers = [Convolution(convolution(kind, num_in, 8)), Convolution(convolution(kind, 8, num_out))]
    return Stack(layers, config, [num_in, 8, num_out])


def model_sage(*args: Any) -> Stack:
    return model(*args)


model_gat = model_gin = model_transformer = model_sage


def gradients(comm: Communicator, shards: list[Shard], kind: str, settings: dict[str, Any]) -> Any:
    shard = shards[comm.worker]
    assert shard.y is not None and shard.train_mask is not None
    rows = (shard.train_mask & known(shard.y)).nonzero().squeeze(1)
    config = {"name": f"tests.layers.test_pyg_layers:model_{kind}", "layers": 2, "dropout": 0.4}
    view, module, _, minibatches = start(comm, shard, rows, config, last_epoch=1, **settings)
    steps = Sampled(view, module, minibatches, shard.y, GlobalLoss(shard.y, rows, CLASSES, "none", comm))
    found = []
    for step in steps.epoch(1):
        module.zero_grad()
        step.loss().backward()
        all_reduce_gradients(comm, module.parameters())
        found.append([parameter.grad.clone() for parameter in module.parameters()])
    steps.close()
    return found


@pytest.mark.parametrize("plan", ["macrobatch", "split"])
@pytest.mark.parametrize("kind", KINDS)
def test_workers_train_pyg_layers_as_one_process_does(kind, plan):
    graph = a_graph()
    settings = {"fanout": (3, 4), "plan": plan}
    (wanted,) = run_workers(gradients, 1, [whole_shard(graph, reorder=False)], kind, settings)
    assert all(float(grad.abs().max()) > 0 for grad in wanted[0][:2])
    shards = make_shards(graph, spread(graph.num_nodes, 3), 3)
    for found in run_workers(gradients, 3, shards, kind, settings):
        for step, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(step, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_full_graph_a_pyg_layer_is_itself(kind):
    graph = a_graph()
    shard = whole_shard(graph, reorder=False)
    torch.manual_seed(1)
    layer = convolution(kind, FEATURES, 8)
    rows = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.adjacency.degrees())
    edges = torch.stack([graph.adjacency.indices.long(), rows])
    more = {"edge_attr": graph.adjacency.features} if kind == "transformer" else {}
    wanted = layer(graph.x, edges, **more)
    torch.testing.assert_close(Convolution(layer)(GraphView(shard), shard.x), wanted)


def refuse(comm: Communicator, shards: list[Shard]) -> None:
    view = GraphView(shards[comm.worker], comm)
    Convolution(convolution("sage", FEATURES, 8))(view, view.shard.x)


def test_the_full_graph_of_several_workers_is_refused_with_the_reason():
    graph = a_graph()
    with pytest.raises(WorkerFailed, match="train on minibatches"):
        run_workers(refuse, 2, make_shards(graph, spread(graph.num_nodes, 2), 2))
