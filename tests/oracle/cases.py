"""The layers under test, how to build them, and what a worker does with one."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracle import dense
from tests.partitioning.drawn import RELATIONS
from weft.aggregate import MATERIALISED, DistributedGraph, EdgeRows, GraphView, Schedule, format_named
from weft.comm import Communicator, all_reduce_gradients
from weft.graph.graph import Graph
from weft.layers import GAT, GCN, GIN, RGCN, SAGE, GATv2, Transformer
from weft.partitioning import Shard

WIDTH, OUT = 3, 4


class UserLayer(nn.Module):
    """A layer as a user would write it: a mean, and messages gated by both ends and all that the edge carries."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(num_in, num_out)
        self.root = nn.Linear(num_in, num_out, bias=False)
        self.gate = nn.Parameter(torch.randn(num_in))
        self.kind = nn.Parameter(torch.randn(RELATIONS, num_in))
        self.edge = nn.Parameter(torch.randn(2, num_in))

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        def gated(edges: EdgeRows) -> Tensor:
            message = torch.sigmoid(edges.dst * self.gate + edges.src) * edges.src
            if edges.relation is not None:
                message = message * self.kind[edges.relation]
            if edges.features is not None:
                message = message + edges.features @ self.edge
            return message if edges.weight is None else message * edges.weight[:, None]

        return self.lin(graph.aggregate(x, reduce="mean")) + self.root(graph.message(gated, x, reduce="sum"))


class MessageLayer(nn.Module):
    """Messages of every kind: softmax with learned logits, a maximum, and ones that read no source."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.score = nn.Linear(2 * num_in, 2)
        self.value = nn.Linear(num_in, 4)
        self.log_scale = nn.Parameter(torch.randn(()))
        self.own = nn.Linear(num_in, num_out)
        self.unused = nn.Parameter(torch.randn(2))

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        scale = self.log_scale.exp()  # made outside of the messages and used within, beside what it was made of

        def attended(edges: EdgeRows) -> tuple[Tensor, Tensor]:
            both = torch.cat([edges.src, edges.dst], 1)
            return self.score(both) * scale + self.log_scale, self.value(edges.src)

        soft = graph.message(attended, x, reduce="softmax")
        largest = graph.message(lambda edges: self.value(edges.src) - scale, x, reduce="max")
        at_home = graph.message(lambda edges: self.own(edges.dst), x, reduce="mean")
        return soft + largest + at_home


LAYERS = {
    "gcn": (lambda: GCN(WIDTH, OUT), dense.gcn),
    "gcn-narrow": (lambda: GCN(WIDTH, 2), dense.gcn),
    "sage-mean": (lambda: SAGE(WIDTH, OUT), lambda p, g, x: dense.sage(p, g, x, "mean")),
    "sage-narrow": (lambda: SAGE(WIDTH, 2), lambda p, g, x: dense.sage(p, g, x, "mean")),
    "sage-sum": (lambda: SAGE(WIDTH, OUT, "sum"), lambda p, g, x: dense.sage(p, g, x, "sum")),
    "sage-max": (lambda: SAGE(WIDTH, OUT, "max"), lambda p, g, x: dense.sage(p, g, x, "max")),
    "gat": (lambda: GAT(WIDTH, 2, heads=3), lambda p, g, x: dense.gat(p, g, x, 3, True)),
    "gat-mean": (lambda: GAT(WIDTH, OUT, heads=2, concat=False), lambda p, g, x: dense.gat(p, g, x, 2, False)),
    "gatv2": (lambda: GATv2(WIDTH, 2, heads=3), lambda p, g, x: dense.gatv2(p, g, x, 3, True)),
    "transformer": (lambda: Transformer(WIDTH, 2, heads=3), lambda p, g, x: dense.transformer(p, g, x, 3, True)),
    "transformer-mean": (
        lambda: Transformer(WIDTH, OUT, heads=2, concat=False),
        lambda p, g, x: dense.transformer(p, g, x, 2, False),
    ),
    "gin": (lambda: GIN(WIDTH, OUT, batch_norm=False), lambda p, g, x: dense.gin(p, g, x, False)),
    "gin-norm": (lambda: GIN(WIDTH, 2), lambda p, g, x: dense.gin(p, g, x, True)),
    "rgcn": (lambda: RGCN(WIDTH, OUT, RELATIONS), dense.rgcn),
    "rgcn-bases": (lambda: RGCN(WIDTH, 2, RELATIONS, bases=2), dense.rgcn),
    "user": (lambda: UserLayer(WIDTH, OUT), dense.user),
    "messages": (lambda: MessageLayer(WIDTH, OUT), dense.messages),
}


def layers_for(graph: Graph) -> list[str]:
    """Those that this graph can have: relations are not for every graph."""
    return [name for name in LAYERS if graph.num_relations or not name.startswith("rgcn")]


def build(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(7)
    module = LAYERS[name][0]()
    with torch.no_grad():
        for parameter in module.parameters():  # biases start at zero, where a mistake could hide
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return module.to(dtype)


def inputs(num_nodes: int, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows and the gradient of the output, of the whole graph. Rows repeat, so that a maximum has ties."""
    generator = torch.Generator().manual_seed(11)
    rows = torch.randn(num_nodes, WIDTH, generator=generator, dtype=torch.float64)
    rows[1::3] = rows[::3][: len(rows[1::3])]
    width = build(name, dtype).bias.numel() if hasattr(build(name, dtype), "bias") else OUT
    return rows.to(dtype), torch.randn(num_nodes, width, generator=generator, dtype=torch.float64).to(dtype)


def expected(name: str, graph: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Output, loss, input gradient and every parameter gradient of the dense reference."""
    p = dense.parameters(build(name, dtype))
    x, probe = inputs(graph.num_nodes, name, dtype)
    x.requires_grad_()
    out = LAYERS[name][1](p, graph, x)
    loss = (out * probe).sum()
    loss.backward()
    grads = {f"d {key}": torch.zeros_like(t) if t.grad is None else t.grad for key, t in p.items()}
    assert x.grad is not None
    return {"out": out.detach(), "loss": loss.detach(), "d x": x.grad, **grads}


def worker(
    comm: Communicator,
    shards: list[Shard],
    names: list[str],
    dtype: torch.dtype,
    codec: str = "raw",
    schedule: Schedule = MATERIALISED,
) -> Any:
    """Each layer's output and gradients for the rows that this worker owns; parameter gradients summed over workers."""
    graph = DistributedGraph(shards[comm.worker].to(comm.device), comm, format_named(codec), schedule)
    results = {}
    for name in names:
        module = build(name, dtype).to(comm.device)
        x, probe = (rows.to(comm.device) for rows in inputs(graph.shard.num_global_nodes, name, dtype))
        rows = x[graph.global_ids].requires_grad_()
        graph.noise.begin(1)
        out = module(graph.view, rows)
        loss = (out * probe[graph.global_ids]).sum()
        loss.backward()
        all_reduce_gradients(comm, module.parameters())
        total = comm.all_reduce(loss.detach().clone().view(1), "control", "loss")
        grads = {
            f"d {key}": torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for key, p in module.named_parameters()
        }
        results[name] = {"out": out.detach(), "d x": rows.grad, "loss": total[0], **grads}
    return graph.global_ids, results


def assemble(answers: list[Any], name: str, num_nodes: int) -> dict[str, Tensor]:
    """The workers' rows put back in the graph's order; what all workers hold alike is checked to be alike."""
    whole: dict[str, Tensor] = {}
    for ids, results in answers:
        for key, value in results[name].items():
            if key in ("out", "d x"):
                whole.setdefault(key, value.new_zeros(num_nodes, value.shape[1]))[ids] = value
            else:
                assert torch.equal(whole.setdefault(key, value), value), f"{name}: workers disagree on {key}"
    return whole


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], name: str, dtype: torch.dtype) -> None:
    assert found.keys() == wanted.keys()
    rtol, atol = (1e-9, 1e-10) if dtype == torch.float64 else (1e-4, 1e-4)
    for key in wanted:
        scale = max(1.0, float(wanted[key].abs().max()) if wanted[key].numel() else 1.0)
        torch.testing.assert_close(
            found[key], wanted[key], rtol=rtol, atol=atol * scale, msg=lambda m, k=key: f"{name}: {k}: {m}"
        )
