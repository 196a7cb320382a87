"""Models of graphs with several types of vertices: PyG's numbers, on any number of workers and from any minibatch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.graph.typed import CLASSES, COUNTS, RELATIONS, hetero
from tests.sample.cases import spread, train
from tests.workers import run_workers
from weft.aggregate import DistributedGraph
from weft.comm import Communicator, all_reduce_gradients
from weft.graph import from_pyg
from weft.graph.graph import Graph
from weft.layers import ModelConfig, add_embedding, build_model, replicated_parameters
from weft.partitioning import Shard, make_shards, whole_shard
from weft.sample import PartitionBook, SampleConfig, VertexSource
from weft.training.loss import GlobalLoss
from weft.training.minibatches import make_loader
from weft.training.objective import input_rows
from weft.training.settings import TrainConfig
from weft.training.steps import VertexSteps

HIDDEN, HEADS = 8, 2
MODELS: dict[str, dict[str, Any]] = {
    "hgt": {"name": "hgt", "heads": HEADS},
    "rgat": {"name": "rgat", "heads": HEADS, "output_heads": HEADS},
    "rgcn": {"name": "rgcn"},
}
FURTHER = {"rgcn-bases": {"name": "rgcn", "bases": 2}, "sage": {"name": "sage"}, "gat": {"name": "gat", "heads": 2}}


def build(comm: Communicator, shard: Shard, settings: dict[str, Any]) -> tuple[DistributedGraph, Any, Any]:
    graph = DistributedGraph(shard, comm)
    assert shard.types is not None
    torch.manual_seed(7)
    config = ModelConfig(**{"layers": 2, "hidden": HIDDEN, "dropout": 0.0, **settings})
    model = build_model(config, HIDDEN, CLASSES, graph.num_relations, type_widths=shard.types.widths)
    with torch.no_grad():  # what starts as ones or zeros must not hide a mistake
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    if shard.learned is not None:
        add_embedding(model, HIDDEN, graph.learned_ids, 3)
    return graph, model, input_rows(graph, model, TrainConfig(precision="float64"))


def a_step(comm: Communicator, shards: list[Shard], settings: dict[str, Any]) -> dict[str, Any]:
    """Outputs by global id, the loss, and all gradients, of one step over the whole graph."""
    shard = shards[comm.worker]
    graph, model, x = build(comm, shard, settings)
    assert shard.y is not None and shard.train_mask is not None
    loss_of = GlobalLoss(shard.y, shard.train_mask.nonzero().squeeze(1), CLASSES, "none", comm)
    with graph.training_pass(1) as view:
        out = torch.cat([model(view, x)])
    loss = loss_of(out)
    loss.backward()  # type: ignore[no-untyped-call]
    all_reduce_gradients(comm, replicated_parameters(model))
    whole = comm.all_reduce(loss.detach().view(1).clone(), "control", "loss")
    return {
        "ids": graph.global_ids,
        "out": out.detach(),
        "loss": float(whole),
        "weights": {name: value.detach() for name, value in model.named_parameters() if name != "embedding"},
        "gradients": {name: value.grad for name, value in model.named_parameters() if name != "embedding"},
        "learned": None
        if model.embedding is None
        else (graph.learned_ids, model.embedding.detach(), model.embedding.grad),
    }


def joined(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The answers of all workers as one: rows by global id."""
    order = torch.argsort(torch.cat([answer["ids"] for answer in answers]))
    found = {**answers[0], "out": torch.cat([answer["out"] for answer in answers])[order]}
    if answers[0]["learned"] is not None:
        ids, rows, gradients = (torch.cat(list(part)) for part in zip(*(a["learned"] for a in answers), strict=True))
        order = torch.argsort(ids)
        found["learned"] = ids[order], rows[order], gradients[order]
    return found


def on_workers(graph: Graph, settings: dict[str, Any], num_workers: int, skewed: bool = False) -> dict[str, Any]:
    if num_workers == 1:
        shards = [whole_shard(graph, reorder=False)]
    else:
        shards = make_shards(graph, spread(graph.num_nodes, num_workers, skewed), num_workers)
    return joined(run_workers(a_step, num_workers, shards, settings))


# -- PyG's models with the same weights ----------------------------------------------------------------------------


class Theirs(torch.nn.Module):
    """An encoder for each type and two layers of PyG; every parameter is copied from ours, gradients are compared."""

    def __init__(self, name: str, weights: dict[str, Tensor], learned: Tensor) -> None:
        super().__init__()
        self.name = name
        self.ours = torch.nn.ParameterDict({key.replace(".", "/"): value.clone() for key, value in weights.items()})
        self.learned = torch.nn.Parameter(learned.clone())

    def weight(self, name: str) -> Tensor:
        return self.ours[name.replace(".", "/")]

    def forward(self, data: Any) -> Tensor:
        x = {}
        for kind, name in enumerate(data.node_types):
            if "x" in data[name]:
                matrix, bias = (self.weight(f"encoder.{part}.{kind}") for part in ("weights", "biases"))
                x[name] = torch.nn.functional.linear(data[name].x.double(), matrix, bias)
            else:
                x[name] = self.learned
        for depth in range(2):
            layer = {"hgt": self.hgt, "rgat": self.rgat, "rgcn": self.hetero_conv}[self.name]
            x = layer(data, x, depth)
            if depth == 0:
                x = {name: rows.relu() for name, rows in x.items()}
        return torch.cat([x[name] for name in data.node_types])

    def call(self, module: torch.nn.Module, values: dict[str, Tensor], *args: Any) -> Any:
        """The module with these tensors, functions of our weights, in the place of its parameters."""
        module = module.double()
        found = dict(module.named_parameters())
        for name, value in values.items():
            assert found.pop(name).shape == value.shape, name
        return torch.func.functional_call(module, {**found, **values}, args)

    def hgt(self, data: Any, x: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
        nn = pytest.importorskip("torch_geometric.nn")
        conv = nn.HGTConv(HIDDEN, HIDDEN, data.metadata(), heads=HEADS)
        num_out = HIDDEN if depth == 0 else CLASSES
        conv.out_lin = nn.HeteroDictLinear(HIDDEN, num_out, types=data.node_types)
        layer, num_relations, per_head = f"layers.{depth}", len(RELATIONS), HIDDEN // HEADS
        relation = self.weight(f"{layer}.relation")
        values = {}
        for part, heads in (("k_rel", relation[:, :HEADS]), ("v_rel", relation[:, HEADS:])):
            values[f"{part}.weight"] = heads.transpose(0, 1).reshape(HEADS * num_relations, per_head, per_head)
        for kind, name in enumerate(data.node_types):
            keys, rows = self.weight(f"{layer}.sent")[kind].chunk(2)
            key_bias, row_bias = self.weight(f"{layer}.sent_bias")[kind].chunk(2)
            queries, query_bias = (self.weight(f"{layer}.{part}")[kind] for part in ("own", "own_bias"))
            values[f"kqv_lin.lins.{name}.weight"] = torch.cat([keys, queries, rows])
            values[f"kqv_lin.lins.{name}.bias"] = torch.cat([key_bias, query_bias, row_bias])
            values[f"out_lin.lins.{name}.weight"] = self.weight(f"{layer}.out")[kind]
            values[f"out_lin.lins.{name}.bias"] = self.weight(f"{layer}.out_bias")[kind]
            if depth == 0:
                values[f"skip.{name}"] = self.weight(f"{layer}.skip")[kind].view(1)
        for number, triple in enumerate(data.edge_types):
            values[f"p_rel.{'__'.join(triple)}"] = self.weight(f"{layer}.prior")[number].view(1, HEADS)
        found: dict[str, Tensor] = self.call(conv, values, x, data.edge_index_dict)
        return found

    def rgat(self, data: Any, x: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
        nn = pytest.importorskip("torch_geometric.nn")
        first = torch.tensor([0, *COUNTS.values()]).cumsum(0)
        start = dict(zip(data.node_types, first.tolist(), strict=False))
        ends = [
            data[triple].edge_index + torch.tensor([[start[triple[0]]], [start[triple[2]]]])
            for triple in data.edge_types
        ]
        kinds = torch.arange(len(ends)).repeat_interleave(torch.tensor([end.shape[1] for end in ends]))
        num_in = HIDDEN if depth == 0 else HIDDEN * HEADS
        conv = nn.RGATConv(
            num_in, HIDDEN if depth == 0 else CLASSES, len(ends), heads=HEADS, concat=depth == 0, negative_slope=0.2
        )
        layer = f"layers.{depth}"
        parts = {"weight": "weight", "q": "target", "k": "source", "bias": "bias"}
        values = {theirs: self.weight(f"{layer}.{ours}") for theirs, ours in parts.items()}
        out = self.call(conv, values, torch.cat(list(x.values())), torch.cat(ends, 1), kinds)
        return dict(zip(x, out.split(list(COUNTS.values())), strict=True))

    def hetero_conv(self, data: Any, x: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
        nn = pytest.importorskip("torch_geometric.nn")
        num_out, layer = HIDDEN if depth == 0 else CLASSES, f"layers.{depth}"
        conv = nn.HeteroConv(
            {triple: nn.SAGEConv((HIDDEN, HIDDEN), num_out, aggr="mean") for triple in data.edge_types}, aggr="sum"
        )
        into = {name: sum(triple[2] == name for triple in data.edge_types) for name in data.node_types}
        matrices = self.weight(f"{layer}.neighbour").view(num_out, len(data.edge_types), HIDDEN)
        values = {}
        for number, triple in enumerate(data.edge_types):
            kind, key = data.node_types.index(triple[2]), f"convs.<{'___'.join(triple)}>".replace(" ", "#")
            key = next(
                name.removesuffix(".lin_l.weight")
                for at, name in enumerate(n for n, _ in conv.named_parameters() if n.endswith("lin_l.weight"))
                if at == number
            )
            values[f"{key}.lin_l.weight"] = matrices[:, number]
            values[f"{key}.lin_l.bias"] = self.weight(f"{layer}.type_bias")[kind] / into[triple[2]]
            values[f"{key}.lin_r.weight"] = self.weight(f"{layer}.root")[kind] / into[triple[2]]
        found: dict[str, Tensor] = self.call(conv, values, x, data.edge_index_dict)
        return found


@pytest.mark.parametrize("name", MODELS)
def test_models_are_those_of_pyg(name: str) -> None:
    data = hetero()
    graph = from_pyg(data)
    for num_workers in (1, 4):
        ours = on_workers(graph, MODELS[name], num_workers)
        theirs = Theirs(name, ours["weights"], ours["learned"][1])
        out = theirs(data)
        torch.testing.assert_close(ours["out"], out, rtol=1e-9, atol=1e-11)
        users = out[: COUNTS["user"]]
        loss = torch.nn.functional.cross_entropy(
            users[data["user"].train_mask], data["user"].y[data["user"].train_mask]
        )
        assert abs(ours["loss"] - float(loss)) < 1e-9 * abs(float(loss))
        loss.backward()  # type: ignore[no-untyped-call]
        for key, gradient in ours["gradients"].items():
            wanted = theirs.weight(key).grad
            torch.testing.assert_close(
                gradient, wanted, rtol=1e-8, atol=1e-11, msg=lambda said, key=key: f"{key}: {said}"
            )
            assert gradient.abs().sum() > 0, key
        torch.testing.assert_close(ours["learned"][2], theirs.learned.grad, rtol=1e-8, atol=1e-11)


# -- any number of workers, any plan -------------------------------------------------------------------------------


def same(ours: dict[str, Any], wanted: dict[str, Any], rtol: float = 1e-9) -> None:
    torch.testing.assert_close(ours["out"], wanted["out"], rtol=rtol, atol=1e-11)
    assert abs(ours["loss"] - wanted["loss"]) <= rtol * abs(wanted["loss"])
    for key, gradient in wanted["gradients"].items():
        torch.testing.assert_close(ours["gradients"][key], gradient, rtol=10 * rtol, atol=1e-11)
    for mine, other in zip(ours["learned"] or (), wanted["learned"] or (), strict=True):
        torch.testing.assert_close(mine, other, rtol=10 * rtol, atol=1e-11)


@pytest.mark.parametrize("name", MODELS | FURTHER)
def test_numbers_do_not_depend_on_workers(name: str) -> None:
    graph, settings = from_pyg(hetero()), (MODELS | FURTHER)[name]
    wanted = on_workers(graph, settings, 1)
    for num_workers, skewed in ((3, False), (4, True)):
        same(on_workers(graph, settings, num_workers, skewed), wanted)


def minibatch_steps(
    comm: Communicator, shards: list[Shard], settings: dict[str, Any], plan: str, sample: dict[str, Any]
) -> list[tuple[float, dict[str, Tensor]]]:
    """The loss and the gradients of every step of an epoch."""
    graph, model, x = build(comm, shards[comm.worker], settings)
    shard = graph.shard
    assert shard.y is not None and shard.train_mask is not None
    rows, book = shard.train_mask.nonzero().squeeze(1), PartitionBook(shard, comm)
    config = SampleConfig(**{"batch": 5, "fanout": (3, 2), **sample})
    source = VertexSource(rows, graph.global_ids, config.batch, 9, comm, book.own.start)
    loader = make_loader(graph, model, x, source, book, config, plan, 9, 1)  # type: ignore[arg-type]
    loss_of = GlobalLoss(shard.y, rows, CLASSES, "none", comm)
    steps = VertexSteps(graph, model, loader, source, shard.y, loss_of)
    found = []
    for loss in train(comm, steps, model, 1):
        named = model.named_parameters()
        found.append((loss, {name: value.grad.clone() for name, value in named if name != "embedding"}))
    return found


def steps_on(graph: Graph, settings: dict[str, Any], num_workers: int, plan: str, **sample: Any) -> list[Any]:
    if num_workers == 1:
        shards = [whole_shard(graph, reorder=False)]
    else:
        shards = make_shards(graph, spread(graph.num_nodes, num_workers), num_workers)
    answers = run_workers(minibatch_steps, num_workers, shards, settings, plan, sample)
    return list(answers[0])


@pytest.mark.parametrize("name", MODELS | {"sage": FURTHER["sage"]})
def test_a_minibatch_of_all_neighbours_is_the_whole_graph(name: str) -> None:
    settings = (MODELS | FURTHER)[name]
    everything = {"batch": 64, "fanout": (-1, -1)}
    for learned, plans in ((True, ((1, "macrobatch"), (3, "split"))), (False, ((1, "independent"), (3, "macrobatch")))):
        graph = from_pyg(hetero(learned))
        wanted = on_workers(graph, settings, 1)
        for num_workers, plan in plans:
            ((loss, gradients),) = steps_on(graph, settings, num_workers, plan, **everything)
            assert abs(loss - wanted["loss"]) < 1e-9 * abs(wanted["loss"]), (learned, plan)
            for key, gradient in wanted["gradients"].items():
                torch.testing.assert_close(gradients[key], gradient, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", ["hgt", "rgcn"])
def test_minibatches_are_the_same_under_every_plan(name: str) -> None:
    graph = from_pyg(hetero(learned=False))
    wanted = steps_on(graph, MODELS[name], 1, "independent")
    assert len(wanted) > 2
    shared: dict[str, Any] = {"macrobatch": 2}
    for plan, more in (
        ("independent", {}),
        ("macrobatch", shared),
        ("macrobatch", {**shared, "hot_mib": 0.001}),
        ("split", shared),
        ("split", {**shared, "alone_hops": 1}),
    ):
        found = steps_on(graph, MODELS[name], 3, plan, **more)
        assert len(found) == len(wanted)
        for (loss, gradients), (other_loss, others) in zip(found, wanted, strict=True):
            assert abs(loss - other_loss) < 1e-9 * abs(other_loss), (plan, more)
            for key, gradient in others.items():
                torch.testing.assert_close(gradients[key], gradient, rtol=1e-8, atol=1e-11)


def test_rows_may_lie_as_integers() -> None:
    graph = from_pyg(hetero(learned=False))
    whole = steps_on(graph, MODELS["rgcn"], 1, "macrobatch")
    rounded = [steps_on(graph, MODELS["rgcn"], workers, "macrobatch", features="int8") for workers in (1, 3)]
    for (exact, _), (one, _), (three, _) in zip(whole, *rounded, strict=True):
        assert abs(one - three) < 1e-9 * abs(one)
        assert 0 < abs(one - exact) < 0.05 * abs(exact)


def test_learned_rows_are_not_fetched_ahead() -> None:
    graph = from_pyg(hetero())
    with pytest.raises(AssertionError, match="vertices of type 'tag' in pyg have no features, and learned rows"):
        steps_on(graph, MODELS["rgcn"], 3, "macrobatch")


def bytes_of_features(comm: Communicator, shards: list[Shard], sample: dict[str, Any]) -> int:
    """Bytes of features that this worker sends for the minibatches of an epoch."""
    graph, model, x = build(comm, shards[comm.worker], MODELS["rgcn"])
    shard = graph.shard
    assert shard.train_mask is not None
    rows, book = shard.train_mask.nonzero().squeeze(1), PartitionBook(shard, comm)
    config = SampleConfig(**sample)
    source = VertexSource(rows, graph.global_ids, config.batch, 9, comm, book.own.start)
    loader = make_loader(graph, model, x, source, book, config, "macrobatch", 9, 1)
    sent = sum(macrobatch.sent["features"] for macrobatch in loader.macrobatches(1))
    loader.close()
    return int(comm.all_reduce(torch.tensor([sent]), "control", "bytes"))


def test_rows_travel_in_the_width_of_their_type() -> None:
    everything = {"batch": 64, "fanout": (-1, -1), "overlap": False}
    widths = {"user": 5, "item": 3, "tag": 2}
    data = hetero(learned=False)
    sent = []
    for item_width in (3, 300):
        data["item"].x = torch.ones(COUNTS["item"], item_width)
        graph = from_pyg(data)
        shards = make_shards(graph, spread(graph.num_nodes, 3), 3)
        sent.append(run_workers(bytes_of_features, 3, shards, everything)[0])
    added = (sent[1] - sent[0]) // (8 * 297)  # of each item's row that travels, in float64
    assert (sent[1] - sent[0]) % (8 * 297) == 0
    assert 0 < added <= 2 * COUNTS["item"], "an item travels to a worker at most once"
    others = sent[0] - 8 * widths["item"] * added
    assert 0 < others <= 2 * 8 * (COUNTS["user"] * widths["user"] + COUNTS["tag"] * widths["tag"])
