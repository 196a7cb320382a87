"""The same minibatch models in DGL and PyG, on blocks that DGL's sampler draws.

DGL lists fan-outs from the input to the seeds, weft from the seeds on. PyG's own NeighborLoader needs torch-sparse or
pyg-lib, which have no wheels for current torch; its layers run on the blocks of DGL's faster sampler then, so that its
time here is a lower bound.
"""

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers import DROPOUT, HEADS, HIDDEN, RATE, endpoints
from weft.graph import Graph

FANOUT = (15, 10, 5)  # first that of the seeds
BATCH = 1024


def load_dgl() -> Any:
    os.environ["DGLBACKEND"] = "pytorch"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dgl
    return dgl


def dgl_graph(graph: Graph, loops: bool = False) -> Any:
    """int64 ids: the fused sampler is wrong on int32."""
    dgl = load_dgl()
    ends = endpoints(graph)
    where = dgl.graph((ends.source, ends.destination), num_nodes=graph.num_nodes, idtype=torch.int64)
    if loops:
        where = dgl.add_self_loop(dgl.remove_self_loop(where))
    where.create_formats_()
    return where


def seeds(graph: Graph, batch: int = BATCH) -> Iterator[Tensor]:
    """Training vertices in shuffled batches, without end."""
    assert graph.train_mask is not None
    rows = graph.train_mask.nonzero().squeeze(1)
    generator = torch.Generator().manual_seed(0)
    while True:
        order = rows[torch.randperm(rows.numel(), generator=generator)]
        yield from (chunk for chunk in torch.split(order, batch) if chunk.numel() == min(batch, rows.numel()))


def dgl_sampler(where: Any) -> Callable[[Tensor], Any]:
    """Input vertices, seeds, blocks."""
    dgl = load_dgl()
    sampler = dgl.dataloading.NeighborSampler(list(reversed(FANOUT)), fused=True)
    return lambda nodes: sampler.sample_blocks(where, nodes)


def pyg_loader(graph: Graph) -> Iterator[Any] | None:
    """PyG's own loader, where something that it samples with is installed."""
    if not any(importlib.util.find_spec(name) for name in ("pyg_lib", "torch_sparse")):
        return None
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    ends = endpoints(graph)
    data = Data(edge_index=torch.stack([ends.source, ends.destination]), num_nodes=graph.num_nodes)
    loader = NeighborLoader(data, list(FANOUT), input_nodes=graph.train_mask, batch_size=BATCH, shuffle=True)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    return batches()


class BlockLayers(nn.Module):
    """Convolutions one after another, each on its block."""

    def __init__(self, convolutions: list[nn.Module], call: Callable[[nn.Module, Any, Tensor], Tensor], elu: bool):
        super().__init__()
        self.convolutions, self.call, self.elu = nn.ModuleList(convolutions), call, elu

    def forward(self, blocks: list[Any], x: Tensor) -> Tensor:
        for depth, (convolution, block) in enumerate(zip(self.convolutions, blocks, strict=True)):
            if depth > 0:
                x = functional.dropout(functional.elu(x) if self.elu else functional.relu(x), DROPOUT, self.training)
            x = self.call(convolution, block, x)
            if x.dim() == 3:  # DGL's GAT keeps heads apart
                x = x.flatten(1)
        return x


def dgl_step(name: str, graph: Graph) -> Callable[[], float]:
    from dgl.nn import GATConv, GraphConv, SAGEConv

    def layer(num_in: int, num_out: int, heads: int) -> nn.Module:
        if name == "gcn":
            return GraphConv(num_in, num_out, allow_zero_in_degree=True)
        if name == "sage":
            return SAGEConv(num_in, num_out, "mean")
        return GATConv(num_in, num_out // heads, heads, allow_zero_in_degree=True)

    return _step(name, graph, layer, lambda convolution, block, x: convolution(block, x), lambda block: block)


def pyg_step(name: str, graph: Graph) -> Callable[[], float]:
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

    def layer(num_in: int, num_out: int, heads: int) -> nn.Module:
        if name == "gcn":  # on two sets of vertices GCNConv cannot normalise by itself: the sum, as it computes it
            return GCNConv(num_in, num_out, normalize=False)
        if name == "sage":
            return SAGEConv(num_in, num_out, "mean")
        return GATConv(num_in, num_out // heads, heads, add_self_loops=False)

    def call(convolution: nn.Module, block: Any, x: Tensor) -> Tensor:
        edges, count = block
        if name == "gcn":
            return convolution(x, edges)[:count]  # type: ignore[no-any-return]
        return convolution((x, x[:count]), edges)  # type: ignore[no-any-return]

    return _step(name, graph, layer, call, lambda block: (torch.stack(block.edges()), block.num_dst_nodes()))


def _step(
    name: str,
    graph: Graph,
    layer: Callable[[int, int, int], nn.Module],
    call: Callable[[nn.Module, Any, Tensor], Tensor],
    as_block: Callable[[Any], Any],
) -> Callable[[], float]:
    """Sample, fetch features, forward, backward, step."""
    assert graph.x is not None and graph.y is not None
    torch.manual_seed(0)
    layers = [
        layer(graph.num_features, HIDDEN, HEADS),
        layer(HIDDEN, HIDDEN, HEADS),
        layer(HIDDEN, graph.num_classes, 1),
    ]
    model = BlockLayers(layers, call, elu=name == "gat")
    model.train()
    sample, source = dgl_sampler(dgl_graph(graph, loops=name != "sage")), seeds(graph)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    x, y = graph.x, graph.y

    def step() -> float:
        inputs, outputs, blocks = sample(next(source))
        optimiser.zero_grad()
        loss = functional.cross_entropy(model([as_block(block) for block in blocks], x[inputs]), y[outputs])
        loss.backward()
        optimiser.step()
        return loss.item()

    return step
