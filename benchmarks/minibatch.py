"""Training on minibatches in one process against DGL and PyG: sampling, features, forward, backward and step.

    python -m benchmarks.minibatch [--quick] [--only gcn|sage|gat] [--json FILE]

3 layers, hidden 256 (GAT: 4 heads of 64), fan-out 15, 10, 5 from the seeds on, batches of 1024 training vertices, 2
threads, huge pages for every side. A sample is a run of steps; the table gives the time of a step, and an epoch has as
many steps for every side. weft runs twice: as everybody does, and as it would by itself, with the aggregates of its
constant input kept where they can be.
"""

from collections.abc import Callable

import torch

from benchmarks.blocks import BATCH, FANOUT, dgl_step, pyg_step
from benchmarks.harness import Bench, parse, trim_memory, tuned_allocator
from benchmarks.peers import MODELS, RATE, our_model
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.graph import Graph, open_graph
from weft.graph.splits import known
from weft.layers import build_model
from weft.partitioning import whole_shard
from weft.sample import PartitionBook, SampleConfig, VertexSource
from weft.training.loss import GlobalLoss
from weft.training.minibatches import make_loader
from weft.training.objective import input_rows, labels_and_masks
from weft.training.optim import OptimConfig, build_optimiser
from weft.training.settings import TrainConfig
from weft.training.steps import VertexSteps

THREADS = 2
DGL_BAR, PYG_BAR = 1.5, 4.0
GRAPHS = {"arxiv": "synthetic:arxiv", "products": "synthetic:products"}
QUICK = {"arxiv": "synthetic:arxiv"}


def ours(name: str, graph: Graph, cache: str = "never") -> Callable[[], float]:
    """One step of weft's own: what the training loop does, without evaluation and records."""
    torch.manual_seed(0)
    distributed = DistributedGraph(whole_shard(graph), Communicator.alone())
    model = build_model(our_model(name), graph.num_features, graph.num_classes)
    training = TrainConfig()
    x, (y, masks) = input_rows(distributed, model, training), labels_and_masks(distributed, training)
    rows = (masks["train"] & known(y)).nonzero().squeeze(1)
    sample = SampleConfig(batch=BATCH, fanout=FANOUT, cache_aggregates=cache)  # type: ignore[arg-type]
    book = PartitionBook(distributed.shard, distributed.comm)
    seeds = VertexSource(rows, distributed.global_ids, BATCH, 0, distributed.comm, book.own.start)
    loader = make_loader(distributed, model, x, seeds, book, sample, "independent", 0, 10**6)
    loss_of = GlobalLoss(y, rows, graph.num_classes, "none", distributed.comm)
    steps = VertexSteps(distributed, model, loader, seeds, y, loss_of)
    optimiser = build_optimiser(OptimConfig(lr=RATE), model)
    model.train()
    source = (step for epoch in range(1, 10**6) for step in steps.epoch(epoch))

    def step() -> float:
        optimiser.zero_grad()
        loss = next(source).loss()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.item()

    return step


def run(bench: Bench, where: str, name: str, graph: Graph) -> None:
    sides = {"weft": ours(name, graph), "dgl": dgl_step(name, graph), "pyg": pyg_step(name, graph)}
    if name != "gat":
        sides["weft, kept aggregates"] = ours(name, graph, "always")
    seconds = bench.measure(sides, seconds_a_sample=1.0)
    case = f"{where}, {name}"
    bench.row(f"{case}: a step", seconds)
    bench.bar(f"{case}: against DGL", seconds["dgl"] / seconds["weft"], DGL_BAR)
    bench.bar(f"{case}: against PyG", seconds["pyg"] / seconds["weft"], PYG_BAR)


def main() -> int:
    tuned_allocator()
    torch.set_num_threads(THREADS)
    bench = Bench("minibatch", parse(__doc__))
    for where, spec in (QUICK if bench.options.quick else GRAPHS).items():
        graph = open_graph(spec)
        bench.note(f"{spec}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges; {THREADS} threads")
        for name in MODELS:
            if bench.wanted(name):
                run(bench, where, name, graph)
                trim_memory()
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
