"""What layers read of edges: the same under every plan, schedule and number of workers, and refused where it cannot be.

That the layers of one worker are PyG's is what test_against_pyg.py shows.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.layers.test_pyg_layers import rows_of
from tests.sample.cases import CLASSES, FEATURES, a_graph, spread
from tests.workers import run_workers
from weft.aggregate import MATERIALISED, OVERLAPPED, SEQUENTIAL, DistributedGraph
from weft.comm import Communicator, all_reduce_gradients
from weft.errors import UserError
from weft.graph.graph import Graph
from weft.layers import SAGE, EdgeReads, ModelConfig, build_model, edges_to_read, traits_of
from weft.partitioning import Shard, make_shards, whole_shard
from weft.sample import PartitionBook, SampleConfig, VertexSource
from weft.training.evaluate import predict
from weft.training.loss import GlobalLoss
from weft.training.minibatches import make_loader
from weft.training.steps import FullGraph, VertexSteps

MODELS: dict[str, dict[str, Any]] = {
    "gat": {"name": "gat", "hidden": 3, "heads": 2, "edge_weights": True},
    "gatv2": {"name": "gatv2", "hidden": 3, "heads": 2},
    "transformer": {"name": "transformer", "hidden": 3, "heads": 2, "edge_weights": True},
    "sage": {"name": "sage", "hidden": 8, "edge_weights": True},
    "sage-sum": {"name": "sage", "hidden": 3, "reduce": "sum", "norm": "layer"},
    "sage-max": {"name": "sage", "hidden": 4, "reduce": "max", "edge_weights": True},
    "sage-weights": {"name": "sage", "hidden": 4, "edge_weights": True, "edge_features": "off"},
}
ALL = {"fanout": (-1, -1), "batch": 1 << 20}  # one minibatch of everything: as on the full graph
SCHEDULES = {"materialised": MATERIALISED, "sequential": SEQUENTIAL, "overlapped": OVERLAPPED}


def model_of(config: ModelConfig, shard: Shard) -> Any:
    torch.manual_seed(0)
    reads = edges_to_read(config, shard.num_edge_features, True, shard.graph_name)
    return build_model(config, FEATURES, CLASSES, shard.num_relations, edges=reads).double()


def gradients(
    comm: Communicator, shards: list[Shard], kind: str, plan: str, settings: dict[str, Any], more: dict[str, Any]
) -> tuple[list[list[Tensor]], Tensor, Tensor]:
    """Of each step the gradients; and what the model says of own vertices, with their ids."""
    shard, rows = shards[comm.worker], rows_of(shards[comm.worker])
    schedule = SCHEDULES.get(plan, MATERIALISED)
    graph = DistributedGraph(shard, comm, schedule=schedule)
    graph.noise.seed = 9
    model = model_of(ModelConfig(**{"dropout": 0.0, **MODELS[kind], **more}), shard)
    model.rematerialise = plan == "sequential"
    assert shard.x is not None and shard.y is not None
    x = shard.x.double()
    graph.hold_constant(x)
    loss = GlobalLoss(shard.y, rows, CLASSES, "none", comm)
    if plan in SCHEDULES:
        steps: Any = FullGraph(graph, model, x, loss)
    else:
        sample, book = SampleConfig(**settings), PartitionBook(shard, comm)
        source = VertexSource(rows, shard.global_ids, sample.batch, 9, comm, book.own.start)
        loader = make_loader(graph, model, x, source, book, sample, plan, 9, 1)  # type: ignore[arg-type]
        steps = VertexSteps(graph, model, loader, source, shard.y, loss)
    found = []
    for step in steps.epoch(1):
        model.zero_grad()
        step.loss().backward()
        all_reduce_gradients(comm, model.parameters())
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    steps.close()
    return found, predict(model, graph, x), graph.global_ids


def alone(graph: Graph, kind: str, plan: str, settings: dict[str, Any], more: dict[str, Any]) -> Any:
    return gradients(Communicator.alone(), [whole_shard(graph, reorder=False)], kind, plan, settings, more)


@pytest.mark.parametrize("kind", MODELS)
def test_any_plan_and_number_of_workers_computes_what_one_worker_does(kind: str) -> None:
    graph = a_graph(weighted=True)
    (wanted,), logits, _ = alone(graph, kind, "materialised", {}, {})
    assert all(float(grad.abs().max()) > 0 for grad in wanted)
    (sampled,), _, _ = alone(graph, kind, "independent", ALL, {})
    for grad, expected in zip(sampled, wanted, strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-9)
    shards = make_shards(graph, spread(graph.num_nodes, 3), 3)
    for plan in ("overlapped", "sequential", "macrobatch", "split"):
        for (found,), rows, ids in run_workers(gradients, 3, shards, kind, plan, ALL, {}):
            for grad, expected in zip(found, wanted, strict=True):
                torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(rows, logits[ids], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("gat", "neighbour"),
        ("gat", "weighted"),
        ("transformer", "neighbour"),
        ("sage", "weighted"),
        ("sage-max", "labor"),
    ],
)
def test_what_is_drawn_and_dropped_does_not_depend_on_the_workers(kind: str, method: str) -> None:
    graph, settings = a_graph(weighted=True), {"fanout": (3, 4), "batch": 16, "method": method}
    more = {"dropout": 0.3} | ({"attention_dropout": 0.4} if "heads" in MODELS[kind] else {})
    wanted, _, _ = alone(graph, kind, "macrobatch", settings, more)
    assert len(wanted) > 1
    shards = make_shards(graph, spread(graph.num_nodes, 3), 3)
    for plan in ("macrobatch", "split"):
        for found, _, _ in run_workers(gradients, 3, shards, kind, plan, settings, more):
            for step, expected in zip(found, wanted, strict=True):
                torch.testing.assert_close(step, expected, rtol=1e-9, atol=1e-9)


def test_attention_drops_what_it_drops_without_edges() -> None:
    """With a matrix of zeros edges change nothing, whether coefficients are dropped or not."""
    graph = a_graph(num_edges=300)
    no_loops = graph.adjacency.indices.long() != torch.arange(60).repeat_interleave(graph.adjacency.degrees())
    assert not bool(no_loops.all())  # each of which counts as one loop either way
    for name in ("gat", "gatv2", "transformer"):
        plain = build_model(ModelConfig(name=name, heads=2, hidden=3, attention_dropout=0.5), FEATURES, CLASSES)
        for layer in plain.layers:
            layer.double()
        torch.manual_seed(3)
        with_edges = build_model(
            ModelConfig(name=name, heads=2, hidden=3, attention_dropout=0.5), FEATURES, CLASSES, edges=EdgeReads(2)
        ).double()
        with_edges.load_state_dict(plain.state_dict(), strict=False)
        for layer in with_edges.layers:
            torch.nn.init.zeros_(layer.edge)
        found = []
        for model in (plain, with_edges):
            view = DistributedGraph(whole_shard(graph, reorder=False))
            assert view.shard.x is not None
            with view.training_pass(3) as passing:
                found.append(model(passing, view.shard.x.double()))
        torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


def dense_sage(layer: SAGE, graph: Graph, x: Tensor) -> Tensor:
    """reduce(w (x_j + E e_ij)), vertex by vertex."""
    csr, rows = graph.adjacency, []
    assert csr.features is not None and csr.weight is not None
    for vertex in range(graph.num_nodes):
        at = slice(int(csr.indptr[vertex]), int(csr.indptr[vertex + 1]))
        messages = x[csr.indices[at].long()]
        if layer.edge is not None:
            messages = messages + csr.features[at].double() @ layer.edge.t()
        weight = csr.weight[at].double()[:, None] if layer.edges.weight else torch.ones(len(messages), 1).double()
        if not len(messages):
            rows.append(x.new_zeros(x.shape[1]))
        elif layer.reduce == "max":
            rows.append((messages * weight).max(0).values)
        else:
            total = (messages * weight).sum(0)
            rows.append(total / weight.sum() if layer.reduce == "mean" else total)
    return functional.linear(torch.stack(rows), layer.neighbour) + functional.linear(x, layer.root, layer.bias)


@pytest.mark.parametrize("reduce", ["mean", "sum", "max"])
@pytest.mark.parametrize(("edge_dim", "edge_weight"), [(2, True), (2, False), (0, True)])
@pytest.mark.parametrize("num_out", [3, 9])  # multiplied before rows are folded, or after
def test_sage_folds_rows_with_a_linear_map_of_edges_added(
    reduce: str, edge_dim: int, edge_weight: bool, num_out: int
) -> None:
    torch.manual_seed(4)
    graph = a_graph(num_nodes=30, num_edges=90, weighted=True)
    layer = SAGE(FEATURES, num_out, reduce, edge_dim=edge_dim, edge_weight=edge_weight).double()
    twin = copy.deepcopy(layer)
    rows = torch.randn(30, FEATURES, dtype=torch.float64)
    x, other = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    out = layer(DistributedGraph(whole_shard(graph, reorder=False)).view, x)
    wanted = dense_sage(twin, graph, other)
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-10)
    probe = torch.randn_like(out)
    (out * probe).sum().backward()
    (wanted * probe).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-9, atol=1e-10)
    for mine, their in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, their.grad, rtol=1e-9, atol=1e-10)


def test_what_is_read_is_decided_by_settings_and_by_the_graph() -> None:
    def read(features: int, weighted: bool, **settings: Any) -> EdgeReads:
        return edges_to_read(ModelConfig(**settings), features, weighted, "roads")

    assert read(3, True, name="gat") == EdgeReads(3, False)  # weights keep their meaning: that of no attention
    assert read(3, True, name="gat", edge_features="off", edge_weights=True) == EdgeReads(0, True)
    assert read(0, True, name="sage") == read(3, True, name="gcn") == read(3, True, name="rgcn") == EdgeReads()
    with pytest.raises(UserError, match=r"model\.edge_features=on, but edges of roads have no features"):
        read(0, True, name="gatv2", edge_features="on")
    with pytest.raises(UserError, match=r"model\.edge_weights=true, but edges of roads have none"):
        read(2, False, name="sage", edge_weights=True)
    for more, refused in (({"edge_features": "on"}, "gcn reads none"), ({"edge_weights": True}, "not gcn")):
        with pytest.raises(UserError, match=refused):
            build_model(ModelConfig(name="gcn", **more), 2, 2)
    layers = build_model(ModelConfig(name="sage", edge_weights=True), 4, 2, edges=EdgeReads(0, True)).layers
    assert traits_of(layers[0]).edge_data == {"weight"} and traits_of(layers[0]).input_aggregate == ("mean", "edge")


def test_a_layer_refuses_edges_that_carry_something_else() -> None:
    view = DistributedGraph(whole_shard(a_graph(), reorder=False)).view
    x = torch.randn(60, 4)
    with pytest.raises(UserError, match="SAGE reads 3 features of each edge, and edges of drawn have 2"):
        SAGE(4, 2, edge_dim=3)(view, x)
    with pytest.raises(UserError, match="SAGE reads edge weights, and edges of drawn have none"):
        SAGE(4, 2, edge_weight=True)(view, x)
    with pytest.raises(UserError, match=r"message\(loops=True\) is for a softmax"):
        view.message(lambda edges: edges.src, x, "mean", loops=True)
