"""Sampling in one process against DGL's fused sampler and, where it can run, PyG's NeighborLoader.

    python -m benchmarks.sampling [--quick] [--only arxiv|products] [--json FILE]

Fan-out 15, 10, 5 from the seeds on, batches of 1024 training vertices, 2 threads, huge pages for every side. Rates are
sampled edges per second, since no two systems draw the same; with features, every input vertex's row is fetched too.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.blocks import BATCH, FANOUT, dgl_graph, dgl_sampler, pyg_loader, seeds
from benchmarks.harness import Bench, parse, tuned_allocator
from weft.comm import Communicator
from weft.graph import Graph, open_graph
from weft.partitioning import whole_shard
from weft.sample import Drawing, Features, PartitionBook, Sampler, Store, VertexSource
from weft.sample.store import Column

THREADS = 2
BARS = {"edges": 4.0, "edges and features": 3.0}
GRAPHS = {"arxiv": "synthetic:arxiv", "products": "synthetic:products"}
QUICK = {"arxiv": "synthetic:arxiv", "products": "synthetic:products?nodes=150000"}


class Side:
    """A sampler that is called again and again, and how many edges it has drawn since it was last asked."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self._draw = draw
        self.edges = self.calls = 0

    def __call__(self) -> None:
        self.edges += self._draw()
        self.calls += 1

    def mean_edges(self) -> float:
        return self.edges / self.calls


def ours(graph: Graph, features: bool) -> Side:
    shard = whole_shard(graph)
    comm = Communicator.alone()
    assert shard.x is not None and shard.train_mask is not None
    book = PartitionBook(shard, comm)
    store = Store(comm, book, {"x": Column(shard.x, "features")})
    read = Features("float32", shard.x.shape[1], torch.float32)
    rows = shard.train_mask.nonzero().squeeze(1)
    order = rows[torch.randperm(rows.numel(), generator=torch.Generator().manual_seed(0))]
    batches, step = torch.split(order.int(), BATCH), 0
    source = VertexSource(rows, shard.global_ids, BATCH, 0, comm, 0)
    sampler = Sampler(source, shard, book, comm, Drawing(tuple(FANOUT), "neighbour", 0))

    def draw() -> int:
        nonlocal step
        step += 1
        (batch,) = sampler.draw_around([batches[step % (len(batches) - 1)]], 1, [step])
        if features:
            read.read(store.fetch([batch.nodes]).batch(0).column("x"))
        return batch.num_edges

    return Side(draw)


def dgl(graph: Graph, features: bool) -> Side:
    sample, source = dgl_sampler(dgl_graph(graph)), seeds(graph)
    x = graph.x
    assert x is not None

    def draw() -> int:
        inputs, _, blocks = sample(next(source))
        if features:
            x[inputs]
        return sum(block.num_edges() for block in blocks)

    return Side(draw)


def pyg(graph: Graph, features: bool) -> Side | None:
    loader = pyg_loader(graph)
    if loader is None:
        return None
    x = graph.x
    assert x is not None

    def draw() -> int:
        batch: Any = next(loader)
        if features:
            x[batch.n_id]
        return int(batch.edge_index.shape[1])

    return Side(draw)


def run(bench: Bench, name: str, graph: Graph) -> None:
    for what, bar in BARS.items():
        features = what != "edges"
        sides = {"weft": ours(graph, features), "dgl": dgl(graph, features), "pyg": pyg(graph, features)}
        present = {side: call for side, call in sides.items() if call is not None}
        seconds = bench.measure(present, rounds=15, seconds_a_sample=0.3)
        rates = {side: call.mean_edges() / seconds[side] / 1e6 for side, call in present.items()}
        bench.row(f"{name}, {what}", seconds, **{f"{side} Medges/s": rate for side, rate in rates.items()})
        best = max(rate for side, rate in rates.items() if side != "weft")
        bench.bar(f"{name}: {what} a second against the best peer", rates["weft"] / best, bar)


def main() -> int:
    tuned_allocator()
    torch.set_num_threads(THREADS)
    bench = Bench("sampling", parse(__doc__))
    for name, spec in (QUICK if bench.options.quick else GRAPHS).items():
        if bench.wanted(name):
            graph = open_graph(spec)
            bench.note(f"{spec}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges; {THREADS} threads")
            run(bench, name, graph)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
