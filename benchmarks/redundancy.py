"""What each plan reads, computes and sends for the same minibatches, counted; nothing is timed.

    python -m benchmarks.redundancy [--quick] [--only products] [--json FILE]

4 workers, 8 steps of 4096 seeds over all workers, fan-out 10, 10, 10, on a graph of communities (`synthetic:products`
with 29 million edges) and, where WEFT_DATA names the folder of real graphs, on two of those with smaller steps. Draws
are keyed by vertex, so one process can count for all workers: data parallel, every worker draws around its own seeds;
shared, all of them draw one minibatch together. Rows: those of the input that workers hold for a step; under split,
that owners read, which is each vertex once. Remote: those of them that come from another worker.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.harness import Bench, parse
from weft.comm import Communicator
from weft.graph import Graph, open_graph
from weft.kernels.sampling import Method
from weft.partitioning import assign, whole_shard
from weft.sample import Batch, Drawing, PartitionBook, Presample, Sampler, VertexSource, presampled

WORKERS, STEPS, FANOUT, HIDDEN = 4, 8, (10, 10, 10), 256
MACROBATCH_SIZE = 8
ROWS_BAR = 4.0


@dataclass(frozen=True)
class Counted:
    rows: int
    remote: int
    edges: int
    megabytes: float  # of input rows, and of hidden rows forward and back

    def line(self) -> dict[str, float]:
        return {"rows": self.rows, "remote": self.remote, "edges": self.edges, "megabytes": self.megabytes}


class Minibatches:
    """The minibatches of an epoch's first steps, as one process draws them."""

    def __init__(self, graph: Graph, batch: int, method: Method, dependent: int = 1) -> None:
        shard, comm = whole_shard(graph, reorder=False), Communicator.alone()
        book = PartitionBook(shard, comm)
        mask = graph.train_mask
        assert mask is not None
        rows = (mask if mask.dim() == 1 else mask[0]).nonzero().squeeze(1)
        self.source = VertexSource(rows, shard.global_ids, batch, 0, comm, 0)
        self.steps = range(min(STEPS, self.source.steps))
        self._sampler = Sampler(self.source, shard, book, comm, Drawing(tuple(FANOUT), method, 0, dependent=dependent))

    def shared(self) -> list[Batch]:
        return [self._draw(step, self.source.seeds(1, step)) for step in self.steps]

    def apart(self, owner: Tensor) -> list[list[Batch]]:
        """By worker."""
        found = []
        for worker in range(WORKERS):
            mine = [self.source.seeds(1, step) for step in self.steps]
            found.append([self._draw(s, n[owner[n.long()] == worker]) for s, n in zip(self.steps, mine, strict=True)])
        return found

    def _draw(self, step: int, nodes: Tensor) -> Batch:
        (batch,) = self._sampler.draw_around([nodes], 1, [step])
        return batch


def union_by(batches: Sequence[Tensor], macrobatch_size: int, count: Callable[[Tensor], int]) -> int:
    """Of each `macrobatch_size` consecutive sets of numbers, what `count` says of their union."""
    total = 0
    for first in range(0, len(batches), macrobatch_size):
        total += count(torch.unique(torch.cat(list(batches[first : first + macrobatch_size]))))
    return total


def data_parallel(apart: list[list[Batch]], owner: Tensor, macrobatch_size: int, width: int) -> Counted:
    rows = remote = edges = 0
    for worker, batches in enumerate(apart):
        nodes = [batch.nodes.long() for batch in batches]
        rows += union_by(nodes, macrobatch_size, lambda found: found.numel())
        remote += union_by(nodes, macrobatch_size, lambda found, who=worker: int((owner[found] != who).sum()))  # type: ignore[misc]
        edges += sum(batch.num_edges for batch in batches)
    return Counted(rows, remote, edges, remote * width * 4 / 1e6)


def split(shared: list[Batch], owner: Tensor, macrobatch_size: int, width: int) -> Counted:
    nodes = [batch.nodes.long() for batch in shared]
    rows = union_by(nodes, macrobatch_size, lambda found: found.numel())
    crossing = [[_crossing(batch, hop, owner) for batch in shared] for hop in range(len(FANOUT))]
    remote = union_by(crossing[-1], macrobatch_size, lambda found: found.numel())
    hidden = sum(pairs.numel() for hop in crossing[:-1] for pairs in hop)
    megabytes = (remote * width + 2 * hidden * HIDDEN) * 4 / 1e6
    return Counted(rows, remote, sum(batch.num_edges for batch in shared), megabytes)


def _crossing(batch: Batch, hop: int, owner: Tensor) -> Tensor:
    """(worker, vertex of another that its edges of a hop read), each once, as one number."""
    csr = batch.hops[hop].csr
    where = batch.nodes.long()
    readers = owner[where[: csr.num_rows]].long().repeat_interleave(csr.degrees())
    sources = where[csr.indices.long()]
    away = owner[sources] != readers
    return torch.unique(readers[away] * owner.numel() + sources[away])


def owners(graph: Graph, batch: int, method: str) -> Tensor:
    if method == "presample":
        return presampled(graph, WORKERS, config=Presample(batch=batch, fanouts=FANOUT))[0]
    return assign(graph, WORKERS, method)


def compare(bench: Bench, name: str, graph: Graph, batch: int, methods: Sequence[str]) -> None:
    width = graph.num_features
    drawn = {"neighbour": Minibatches(graph, batch, "neighbour")}
    shared = drawn["neighbour"].shared()
    labor = Minibatches(graph, batch, "labor").shared()
    dependent = Minibatches(graph, batch, "labor", MACROBATCH_SIZE).shared()
    for method in methods:
        owner = owners(graph, batch, method)
        apart = drawn["neighbour"].apart(owner)
        found = {
            "data parallel": data_parallel(apart, owner, 1, width),
            f"macrobatch K = {MACROBATCH_SIZE}": data_parallel(apart, owner, MACROBATCH_SIZE, width),
            "split": split(shared, owner, 1, width),
            f"split K = {MACROBATCH_SIZE}": split(shared, owner, MACROBATCH_SIZE, width),
            f"split K = {MACROBATCH_SIZE}, labor": split(labor, owner, MACROBATCH_SIZE, width),
            f"split K = {MACROBATCH_SIZE}, labor, dependent": split(dependent, owner, MACROBATCH_SIZE, width),
        }
        for case, counted in found.items():
            bench.rows.append({"case": f"{name}, {method}, {case}", **counted.line()})
            print(
                f"{name + ', ' + method:<26} {case:<32} {counted.rows:>11,} rows {counted.remote:>11,} remote "
                f"{counted.edges:>12,} edges {counted.megabytes:>9.1f} MB",
                flush=True,
            )
        base, both = found["data parallel"], found[f"split K = {MACROBATCH_SIZE}"]
        distinct = sum(batch.nodes.numel() for batch in shared)
        bench.bar(
            f"{name}, {method}: rows of split over distinct rows", found["split"].rows / distinct, 1.0, at_least=False
        )
        if name == "products" and method != "random":
            bench.bar(
                f"{name}, {method}: remote rows, data parallel over split K = {MACROBATCH_SIZE}",
                base.remote / both.remote,
                ROWS_BAR,
            )


def main() -> int:
    bench = Bench("redundancy", parse(__doc__))
    quick = bench.options.quick
    if bench.wanted("products"):
        size = "nodes=60000&edges=2900000" if quick else "edges=29000000"
        methods = ("presample", "metis", "random")
        compare(bench, "products", open_graph(f"synthetic:products?{size}"), 512 if quick else 4096, methods)
    data = os.environ.get("WEFT_DATA")
    for name, batch in (("coauthor-physics", 256), ("amazon-computers", 256)):
        if data is None:
            bench.note(f"{name} is left out: set WEFT_DATA to the folder of real graphs")
        elif bench.wanted(name) and not quick:
            compare(bench, name, open_graph(str(Path(data) / f"{name}.npz")), batch, ("presample", "metis", "random"))
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
