"""What a PyG convolution cannot be given is refused in a sentence; what one process can run, it runs as PyG does."""

import re
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric", reason="PyG is not installed")

import torch_geometric.nn as pyg

from tests.layers.pyg_models import config_of, drawn, in_plain_pyg
from tests.layers.test_pyg_layers import gradients, on_the_full_graph
from tests.partitioning.drawn import graph_of
from tests.sample.cases import spread
from tests.workers import run_workers
from weft import UserError
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.layers.pyg import Convolution, read_form
from weft.partitioning import Shard, make_shards, whole_shard
from weft.training.evaluate import predict

HOPS = "TAGConv reads 3 hops in one layer.*with one worker"


def refusal(comm: Communicator, shards: list[Shard], kind: str, plan: str) -> str:
    """What a worker is told; the group goes on."""
    try:
        gradients(comm, shards, kind, plan, {"fanout": (3, 4)})
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("workers", "plan"), [(2, "full"), (1, "macrobatch"), (2, "split")])
def test_several_hops_in_a_layer_want_the_whole_graph_on_one_worker(workers: int, plan: str) -> None:
    graph = drawn("tag")
    shards = make_shards(graph, spread(graph.num_nodes, workers), workers)
    for told in run_workers(refusal, workers, shards, "tag", plan):
        assert re.search(HOPS, told), told


def test_several_hops_in_a_layer_run_on_one_worker() -> None:
    graph = drawn("tag")
    distributed, model, x = on_the_full_graph(Communicator.alone(), whole_shard(graph, reorder=False), config_of("tag"))
    wanted = in_plain_pyg(model, "tag", graph).detach()
    torch.testing.assert_close(predict(model, distributed, x), wanted, rtol=1e-9, atol=1e-9)


def batch_norm_inside(comm: Communicator, shards: list[Shard]) -> str:
    distributed = DistributedGraph(shards[comm.worker], comm)
    mlp = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    try:
        Convolution(pyg.GINConv(mlp))(distributed.view, distributed.shard.x)
    except UserError as error:
        return str(error)
    return ""


def test_batch_normalisation_inside_is_for_one_worker() -> None:
    shards = make_shards(drawn("gin"), spread(60, 2), 2)
    for told in run_workers(batch_norm_inside, 2, shards):
        assert told.startswith("GINConv has batch normalisation inside")


@pytest.mark.parametrize(
    ("convolution", "relations", "edge_features", "message"),
    [
        (lambda: pyg.RGCNConv(6, 4, 3), 0, 2, "RGCNConv takes edge_type, but the edges of drawn have none.*--relation"),
        (lambda: pyg.RGCNConv(6, 4, 2), 3, 2, "RGCNConv knows 2 relations, but drawn has 3"),
        (lambda: pyg.GINEConv(torch.nn.Linear(6, 4), edge_dim=2), 0, 0, "GINEConv takes edge_attr.*--edge-features"),
        (lambda: pyg.GATConv(6, 4, edge_dim=5), 0, 2, "GATConv has edge_dim=5, but edges of drawn have 2 features"),
        (lambda: pyg.GINEConv(torch.nn.Linear(6, 4)), 0, 2, "GINEConv refused.*dimensionalities do not match"),
    ],
)
def test_edges_must_carry_what_a_convolution_takes(
    convolution: Any, relations: int, edge_features: int, message: str
) -> None:
    graph = graph_of(5, [(0, 1), (1, 2), (3, 4)], False, 6, relations, edge_features)
    distributed = DistributedGraph(whole_shard(graph, reorder=False))
    with pytest.raises(UserError, match=message):
        Convolution(convolution())(distributed.view, distributed.shard.x)


@pytest.mark.parametrize(
    ("convolution", "message"),
    [
        (lambda: pyg.GCN2Conv(6, 0.5), "GCN2Conv takes x_0"),
        (lambda: pyg.HypergraphConv(6, 4), "HypergraphConv takes no edge_index"),
        (lambda: pyg.SAGEConv(6, 4, flow="target_to_source"), "flow='target_to_source'"),
    ],
)
def test_what_weft_cannot_hand_over_is_refused_when_it_is_built(convolution: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Convolution(convolution())


class Bare(pyg.MessagePassing):  # type: ignore[misc]
    """Of a user's own, without annotations."""

    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        return self.propagate(edge_index, x=x)


@pytest.mark.parametrize(
    ("convolution", "rows", "takes", "wants"),
    [
        (lambda: pyg.SAGEConv(6, 4), "pair", set(), set()),
        (lambda: pyg.GraphConv(6, 4), "pair", {"edge_weight"}, set()),
        (lambda: pyg.GATConv(6, 4), "pair", set(), set()),
        (lambda: pyg.GATConv(6, 4, edge_dim=2), "pair", {"edge_attr"}, {"edge_attr"}),
        (lambda: pyg.CGConv(6), "pair", set(), set()),
        (lambda: pyg.RGCNConv(6, 4, 3), "pair", {"edge_type"}, {"edge_type"}),
        (lambda: pyg.GCNConv(6, 4), "joint", {"edge_weight"}, set()),
        (lambda: pyg.GCNConv(6, 4, improved=True), "whole", {"edge_weight"}, set()),
        (lambda: pyg.PNAConv(6, 4, ["mean"], ["identity"], torch.ones(3)), "whole", set(), set()),
        (lambda: pyg.GINConv(torch.nn.Sequential(torch.nn.Linear(6, 4), pyg.GraphNorm(4))), "whole", set(), set()),
        (lambda: pyg.GINConv(torch.nn.Sequential(torch.nn.Linear(6, 4), pyg.LayerNorm(4, mode="node"))), "pair", set(),
         set()),
        (lambda: Bare(), "whole", set(), set()),
    ],
)  # fmt: skip
def test_the_signature_says_how_a_convolution_is_called(
    convolution: Any, rows: str, takes: set[str], wants: set[str]
) -> None:
    form = read_form(convolution())
    assert (form.rows, set(form.takes), set(form.wants)) == (rows, takes, wants)


def test_a_convolution_without_annotations_may_be_said_to_take_pairs() -> None:
    assert Convolution(Bare(), pairs=True).form.rows == "pair"
