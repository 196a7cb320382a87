"""weft.Loader: minibatches for a loop of one's own, on one worker and several, for weft's layers and PyG's."""

import builtins
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weft
from tests.oracle.test_minibatch import known_seeds
from tests.sample.cases import CLASSES, FEATURES, a_graph, spread, start
from tests.workers import run_workers
from weft.comm import Communicator, all_reduce_gradients
from weft.graph import Graph
from weft.graph.csr import row_numbers
from weft.layers import ModelConfig, Stack, build_model
from weft.layers.sage import SAGE
from weft.loader import Loader, SampledGraph
from weft.partitioning import make_shards, whole_shard, write_partition

MODEL: dict[str, Any] = {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3}


def edges_of(graph: Graph) -> Tensor:
    return torch.stack([graph.adjacency.indices.long(), row_numbers(graph.adjacency.indptr)])


def pyg_model(kind: str) -> nn.ModuleList:
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(1)
    widths = [FEATURES, 8, 8, CLASSES]
    if kind == "gat":
        return nn.ModuleList(pyg.GATConv(into, out) for into, out in pairwise(widths)).double()
    if kind == "gin":
        return nn.ModuleList(pyg.GINConv(nn.Linear(into, out)) for into, out in pairwise(widths)).double()
    return nn.ModuleList(pyg.SAGEConv(into, out) for into, out in pairwise(widths)).double()


def through(layers: nn.ModuleList, x: Tensor, edge_index: Tensor) -> Tensor:
    for layer in layers:
        x = layer(torch.relu(x), edge_index)
    return x


# -- PyG's models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sage", "gat", "gin"])
def test_with_all_neighbours_seeds_get_what_the_full_graph_gives(kind: str) -> None:
    graph, model = a_graph(80, 200), pyg_model(kind)
    assert graph.x is not None
    wanted, seen = through(model, graph.x.double(), edges_of(graph)), []
    loader = Loader(graph, 3, batch=9, fanout=[-1, -1, -1], seeds="all", dtype=torch.float64)
    assert len(loader) == 9
    for batch in loader:
        data = batch.to_pyg()
        assert data.num_nodes < graph.num_nodes and torch.equal(data.n_id[: data.batch_size], batch.seeds)
        assert torch.equal(data.x, graph.x[data.n_id].double()) and graph.y is not None
        assert torch.equal(data.y, graph.y[batch.seeds])
        torch.testing.assert_close(through(model, data.x, data.edge_index)[: data.batch_size], wanted[batch.seeds])
        seen += batch.seeds.tolist()
    assert sorted(seen) == list(range(80))


def test_vertices_are_drawn_around_once_where_they_are_first_reached() -> None:
    pytest.importorskip("torch_geometric")
    from torch_geometric.utils import trim_to_layer

    graph, model, fanouts = a_graph(weighted=True), pyg_model("sage"), (4, 3, 2)
    csr = graph.adjacency
    weights = {}  # by which every edge can be told apart
    for target in range(csr.num_rows):
        for at in range(int(csr.indptr[target]), int(csr.indptr[target + 1])):
            assert csr.weight is not None
            weights[float(csr.weight[at])] = (int(csr.indices[at]), target)
    for batch in Loader(graph, 3, batch=5, fanout=fanouts, seed=4, dtype=torch.float64):
        data = batch.to_pyg()
        assert len(set(data.n_id.tolist())) == len(data.n_id)
        source, target = data.n_id[data.edge_index].tolist()
        edges = [weights[weight] for weight in data.edge_weight.tolist()]
        assert edges == list(zip(source, target, strict=True)) and len(set(data.edge_weight.tolist())) == len(edges)
        drawn, first = data.edge_index[1].bincount(minlength=len(data.n_id)), 0
        for fanout, count in zip(fanouts, data.num_sampled_nodes[:-1], strict=True):
            degrees = csr.degrees()[data.n_id[first : first + count]]
            assert torch.equal(drawn[first : first + count], degrees.clamp(max=fanout))
            first += count
        assert not drawn[first:].any()
        x, edge_index = data.x, data.edge_index
        for depth, layer in enumerate(model):
            x, edge_index, _ = trim_to_layer(depth, data.num_sampled_nodes, data.num_sampled_edges, x, edge_index)
            x = layer(torch.relu(x), edge_index)
        whole = through(model, data.x, data.edge_index)[: data.batch_size]
        torch.testing.assert_close(x[: data.batch_size], whole)


def test_without_pyg_there_are_plain_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without_pyg(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("torch_geometric"):
            raise ImportError(name)
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pyg)
    data = next(iter(Loader(a_graph(), 2, batch=8, fanout=[2, 2]))).to_pyg()
    assert isinstance(data, SampledGraph) and data.batch_size == 8
    assert data.edge_type is not None and data.edge_attr is not None and data.edge_weight is None
    assert len(data.edge_type) == len(data.edge_attr) == data.edge_index.shape[1]


# -- weft's layers ---------------------------------------------------------------------------------------------------


def a_model(model: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    return build_model(ModelConfig(**model), FEATURES, CLASSES).double()


@pytest.mark.parametrize("cache", ["never", "always"])
def test_a_stack_gets_the_losses_and_gradients_of_a_run(cache: str) -> None:
    shard = whole_shard(a_graph(), reorder=False)
    settings: dict[str, Any] = {"fanout": (3, 2), "cache_aggregates": cache}
    setup = start(Communicator.alone(), shard, known_seeds(shard), MODEL, last_epoch=1, **settings)
    setup.graph.noise.seed = 9  # as a run sets it
    model = a_model(MODEL)
    loader = Loader(shard, model, batch=16, seed=9, dtype=torch.float64, **settings)
    assert len(loader) > 1
    for step, batch in zip(setup.steps().epoch(1), loader, strict=True):
        wanted = step.loss()
        wanted.backward()  # type: ignore[no-untyped-call]
        loss = cross_entropy(model(batch.graph, batch.x), batch.y, reduction="sum") / batch.total_seeds
        loss.backward()
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-12)
    for one, other in zip(model.parameters(), setup.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_layers_by_depth_are_a_stack() -> None:
    torch.manual_seed(2)
    first, second = SAGE(FEATURES, 8).double(), SAGE(8, CLASSES).double()
    stack = Stack([first, second], ModelConfig(dropout=0.0), [FEATURES, 8, CLASSES])
    for batch in Loader(a_graph(), [first, second], batch=16, fanout=[3, 2], dtype=torch.float64):
        rows = torch.relu(first(batch.graph.level(0), batch.x))
        level = batch.graph.level(1)
        torch.testing.assert_close(second(level, level.enter(rows)), stack(batch.graph, batch.x))


# -- several workers -------------------------------------------------------------------------------------------------


def own_loop(comm: Communicator, data: Any, model: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Losses of three epochs, of which the second is broken off; the loop that a user writes."""
    module = a_model(model)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    losses, seeds = [], []
    with Loader(data, module, batch=4, seed=9, dtype=torch.float64, comm=comm, epochs=3, **settings) as loader:
        for epoch in range(3):
            for batch in loader:
                optimiser.zero_grad()
                loss = cross_entropy(module(batch.graph, batch.x), batch.y, reduction="sum") / batch.total_seeds
                loss.backward()
                all_reduce_gradients(comm, module.parameters())
                optimiser.step()
                losses.append(float(comm.all_reduce(loss.detach().view(1).clone(), "control", "loss")))
                seeds.append((batch.epoch, batch.step, batch.seeds.tolist()))
                if epoch == 1:
                    break
    return losses, seeds


@pytest.mark.parametrize(("plan", "macrobatch"), [("macrobatch", 2), ("independent", 1), ("split", 2)])
def test_a_loop_of_ones_own_trains_alike_on_any_number_of_workers(tmp_path: Path, plan: str, macrobatch: int) -> None:
    graph, settings = a_graph(), {"fanout": (3, 2), "plan": plan, "macrobatch": macrobatch}
    write_partition(graph, spread(graph.num_nodes, 3, skewed=True), tmp_path / "parts", 3, "random", 0)
    losses, seeds = own_loop(Communicator.alone(), graph, MODEL, settings)
    assert len({epoch for epoch, _, _ in seeds}) == 3 and len(losses) == len(seeds) > 9
    answers = run_workers(own_loop, 3, str(tmp_path / "parts"), MODEL, settings)
    for found, _ in answers:
        assert found == pytest.approx(losses, rel=1e-9)
    for at, (epoch, step, wanted) in enumerate(seeds):
        assert all(answer[1][at][:2] == (epoch, step) for answer in answers)
        assert sorted(seed for answer in answers for seed in answer[1][at][2]) == sorted(wanted)


def pyg_outputs(comm: Communicator, parts: str) -> Any:
    model, found = pyg_model("sage"), {}
    with Loader(parts, 3, batch=20, fanout=[-1] * 3, seeds="all", dtype=torch.float64, comm=comm) as loader:
        for batch in loader:
            data = batch.to_pyg()
            with torch.no_grad():
                out = through(model, data.x, data.edge_index)[: data.batch_size]
            found |= dict(zip(batch.seeds.tolist(), out.tolist(), strict=True))
    return found


def test_pygs_models_run_on_several_workers(tmp_path: Path) -> None:
    graph, model = a_graph(), pyg_model("sage")
    assert graph.x is not None
    write_partition(graph, spread(graph.num_nodes, 3), tmp_path / "parts", 3, "random", 0)
    found: dict[int, list[float]] = {}
    for answer in run_workers(pyg_outputs, 3, str(tmp_path / "parts")):
        assert not found.keys() & answer.keys()
        found |= answer
    wanted = through(model, graph.x.double(), edges_of(graph))
    torch.testing.assert_close(torch.tensor([found[node] for node in range(graph.num_nodes)]).double(), wanted.detach())


# -- seeds and mistakes ----------------------------------------------------------------------------------------------


def test_seeds_are_what_was_asked_for() -> None:
    graph = a_graph()
    assert graph.val_mask is not None and graph.y is not None
    wanted = (graph.val_mask & (graph.y >= 0)).nonzero().squeeze(1)
    loader = Loader(graph, 1, batch=7, seeds="val")
    epochs = [torch.cat([batch.seeds for batch in loader]) for _ in range(2)]
    assert all(torch.equal(seeds.sort().values, wanted) for seeds in epochs) and not torch.equal(*epochs)
    again = torch.cat([batch.seeds for batch in loader.epoch(2)])
    assert torch.equal(again, epochs[1])
    chosen = torch.tensor([3, 59, 4])
    (batch,) = Loader(graph, 1, seeds=chosen)
    assert sorted(batch.seeds.tolist()) == [3, 4, 59] and batch.total_seeds == 3


def test_a_minibatch_that_has_passed_is_refused() -> None:
    loader = Loader(a_graph(), 1, batch=8)
    passed = list(loader)
    for batch in passed:
        with pytest.raises(weft.UserError, match="this minibatch has passed"):
            _ = batch.graph
    first = iter(loader)
    old = next(first)
    assert next(iter(loader)).graph is not None
    with pytest.raises(weft.UserError, match="this minibatch has passed"):
        _ = old.graph
    assert list(first) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": 0}, "1 layer or more"),
        ({"model": nn.Linear(2, 2)}, "Linear does not say how many hops it reads"),
        ({"fanout": [5]}, "sample.fanout has 1 entries, but the model has 2 layers"),
        ({"plan": "full"}, "plan full has no minibatches"),
        ({"bacth": 5}, "did you mean sample.batch"),
        ({"seeds": torch.tensor([60])}, "seeds go from 60 to 60, and vertices from 0 to 59"),
        ({"seeds": torch.tensor([1.0])}, "seeds are global ids"),
        ({"seeds": torch.empty(0, dtype=torch.int64)}, "none of these seeds"),
        ({"seeds": "tests"}, "has no tests vertices: it has train, val, test"),
        ({"x": torch.zeros(3, 2)}, "this worker has 60 vertices"),
        ({"method": "weighted"}, "has no weights"),
        ({"comm": Communicator(1, 3, torch.device("cpu"), 1.0)}, "3 workers need a partition folder"),
    ],
)
def test_mistakes_are_explained(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.UserError, match=message):
        Loader(a_graph(), **{"model": 2, **settings})


def test_so_are_those_of_later(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = a_graph()
    loader = Loader(graph, 1, batch=1000, epochs=1)
    assert len(list(loader)) == 1
    with pytest.raises(weft.UserError, match="this loader has epochs 1 to 1"):
        iter(loader)
    cached = Loader(graph, a_model(MODEL), x=torch.zeros(60, FEATURES).double(), cache_aggregates="always")
    with pytest.raises(weft.UserError, match="set cache_aggregates=never"):
        next(iter(cached)).to_pyg()
    with pytest.raises(weft.UserError, match="give it a number of layers"):
        next(iter(Loader(graph, a_model({"name": "gcn", "layers": 2})))).to_pyg()
    with pytest.raises(weft.UserError, match="the shard is that of worker 1 of 2, and this is worker 0 of 1"):
        Loader(make_shards(graph, spread(60, 2), 2)[1], 1)
    bare = graph.with_vertex_data(x=None)
    with pytest.raises(weft.UserError, match="has no features: give x"):
        Loader(bare, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(weft.UserError, match=r"join them with weft\.init_workers"):
        Loader(graph, 1)
