"""A full-graph epoch in one process against DGL and PyG, and against the floor of what must be computed.

    python -m benchmarks.single [--quick] [--only gcn|sage|gat] [--json FILE]

`synthetic:arxiv`, 3 layers, hidden 256 (GAT: 4 heads of 64), 2 threads, huge pages for every side. The floor of an
epoch is its dense products and its aggregations, each timed alone at the best rate measured here: what a library
would take that did nothing else. Memory is the growth of the resident set in a fresh process for each side.
"""

import gc
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.harness import Bench, parse, trim_memory, tuned_allocator
from benchmarks.peers import HIDDEN, MODELS, RATE, Epoch, dgl_epoch, our_model, pyg_epoch
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.graph import Graph, load_graph, open_graph, save_graph
from weft.graph.splits import known
from weft.kernels import spmm, transpose_csr
from weft.layers import build_model
from weft.partitioning import Shard, whole_shard
from weft.training.loss import GlobalLoss
from weft.training.objective import input_rows, labels_and_masks
from weft.training.optim import OptimConfig, build_optimiser
from weft.training.settings import TrainConfig

THREADS = 2

# Model -> (times faster than DGL, times faster than PyG) that an epoch must be.
SPEED_BARS = {"gcn": (1.25, 3.0), "sage": (1.25, 3.0), "gat": (3.0, 8.0)}
BF16_BAR, FLOOR_BAR = 1.6, 1.2


def ours(name: str, graph: Graph, precision: str = "float32", device: str = "cpu") -> Epoch:
    """One epoch of weft's own: what the training loop does, without evaluation and records."""
    torch.manual_seed(0)
    distributed = DistributedGraph(whole_shard(graph).to(torch.device(device)), Communicator.alone(device))
    model = build_model(our_model(name), graph.num_features, graph.num_classes).to(device)
    training = TrainConfig(precision=precision)  # type: ignore[arg-type]
    x, (y, masks) = input_rows(distributed, model, training), labels_and_masks(distributed, training)
    rows = (masks["train"] & known(y)).nonzero().squeeze(1)
    loss_of = GlobalLoss(y, rows, graph.num_classes, "none", distributed.comm)
    optimiser = build_optimiser(OptimConfig(lr=RATE), model)
    number = 0

    def epoch() -> float:
        nonlocal number
        number += 1
        model.train()
        optimiser.zero_grad()
        distributed.noise.begin(number)
        loss = loss_of(model(distributed.view, x))
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.item()

    return epoch


SIDES: dict[str, Callable[[str, Graph], Epoch]] = {"weft": ours, "dgl": dgl_epoch, "pyg": pyg_epoch}


# -- the floor ---------------------------------------------------------------------------------------------------


def floor_seconds(bench: Bench, name: str, graph: Graph, shard: Shard) -> tuple[float, float]:
    """Seconds of the dense products and of the aggregations that an epoch of GCN or SAGE cannot avoid."""
    matrices = 2 if name == "sage" else 1  # SAGE has one for the vertex itself and one for its neighbours
    widths = [graph.num_features, HIDDEN, HIDDEN, graph.num_classes]
    rows = graph.num_nodes
    dense = 0.0
    for depth, (num_in, num_out) in enumerate(itertools.pairwise(widths)):
        x, w, g = torch.randn(rows, num_in), torch.randn(num_out, num_in), torch.randn(rows, num_out)
        out, d_x, d_w = torch.empty_like(g), torch.empty_like(x), torch.empty_like(w)
        for left, right, to, used in (
            (x, w.t(), out, True),  # forward
            (g.t(), x, d_w, True),  # gradient of the weights
            (g, w, d_x, depth > 0),  # gradient of the input, which the features do not need
        ):
            if used:
                dense += matrices * _product_seconds(bench, left, right, to)
    # The features do not change: their aggregate is computed once. The others go over the narrower side, both ways.
    local = shard.local
    transposed = transpose_csr(local.indptr, local.indices, local.num_cols)[:2]
    folded = 0.0
    for num_in, num_out in itertools.pairwise(widths[1:]):
        x = torch.randn(rows, min(num_in, num_out))
        out = torch.empty_like(x)
        timed = bench.measure(
            {
                "forward": lambda x=x, out=out: spmm(local.indptr, local.indices, x, out=out),
                "backward": lambda x=x, out=out: spmm(*transposed, x, out=out),
            }
        )
        folded += sum(timed.values())
    return dense, folded


def _product_seconds(bench: Bench, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> float:
    """The faster of one product and one in blocks of rows that stay in cache, into memory that is reused."""
    ways: dict[str, Callable[[], object]] = {"whole": lambda: torch.mm(left, right, out=out)}
    for block in (1024, 4096):
        ways[f"blocks of {block}"] = lambda block=block: _blocked(left, right, out, block)
    return min(bench.measure(ways).values())


def _blocked(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, block: int) -> None:
    if left.shape[0] > left.shape[1]:
        for start in range(0, left.shape[0], block):
            torch.mm(left[start : start + block], right, out=out[start : start + block])
    else:  # a sum over the rows
        out.zero_()
        for start in range(0, left.shape[1], block):
            out.addmm_(left[:, start : start + block], right[start : start + block])


# -- memory ------------------------------------------------------------------------------------------------------


def peak_growth_bytes(side: str, name: str, folder: Path) -> int:
    """Growth of the resident set over two epochs of one side, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.single", "--peak", side, name, str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(answer.stdout.split()[-1])


def report_peak(side: str, name: str, folder: str) -> None:
    """The child of `peak_growth_bytes`: everything after loading the graph counts, its own formats included."""
    torch.set_num_threads(THREADS)
    graph = load_graph(folder)
    for tensor in (graph.x, graph.y, graph.adjacency.indptr, graph.adjacency.indices):
        assert tensor is not None
        tensor.sum()  # mapped files count once they are read
    gc.collect()
    before = _reset_peak()
    epoch = SIDES[side](name, graph)
    for _ in range(2):
        epoch()
    print(_status_bytes("VmHWM") - before)


def _reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


# -- the benchmark -----------------------------------------------------------------------------------------------


def run_model(bench: Bench, name: str, graph: Graph, folder: Path) -> None:
    epochs: dict[str, Epoch] = {side: make(name, graph) for side, make in SIDES.items()}
    judges_bf16 = name != "gat"
    if judges_bf16:
        epochs["weft bf16"] = ours(name, graph, "bfloat16")
    seconds = bench.measure(epochs, warmup=2)
    del epochs
    trim_memory()
    bench.row(f"{name} epoch", seconds)
    to_dgl, to_pyg = SPEED_BARS[name]
    bench.bar(f"{name}: epoch against DGL", seconds["dgl"] / seconds["weft"], to_dgl)
    bench.bar(f"{name}: epoch against PyG with edge_index", seconds["pyg"] / seconds["weft"], to_pyg)
    if name == "gat":
        peaks = {side: peak_growth_bytes(side, name, folder) for side in SIDES}
        bench.note("gat peak memory  " + "   ".join(f"{s} {b / 2**20:.0f} MiB" for s, b in peaks.items()))
        bench.rows.append({"case": "gat peak memory", "bytes": peaks})
        bench.bar("gat: peak memory against DGL", peaks["weft"] / peaks["dgl"], 1.0, at_least=False)
        return
    if judges_bf16:
        bench.bar(f"{name}: bf16 epoch against DGL", seconds["dgl"] / seconds["weft bf16"], BF16_BAR)
    dense, folded = floor_seconds(bench, name, graph, whole_shard(graph))
    bench.row(f"{name} floor", {"dense": dense, "aggregation": folded, "floor": dense + folded})
    bench.bar(f"{name}: epoch against the floor", seconds["weft"] / (dense + folded), FLOOR_BAR, at_least=False)


def main() -> int:
    torch.set_num_threads(THREADS)
    bench = Bench("single", rounds=5, options=parse(__doc__))
    graph = open_graph("synthetic:arxiv" + ("?nodes=10000" if bench.options.quick else ""))
    bench.note(f"{graph.name}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges; {THREADS} threads")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "graph"
        save_graph(graph, folder)
        for name in MODELS:
            if bench.wanted(name):
                run_model(bench, name, graph, folder)
                trim_memory()
    return bench.finish()


if __name__ == "__main__":
    os.environ.setdefault("DGLBACKEND", "pytorch")
    tuned_allocator()
    if sys.argv[1:2] == ["--peak"]:
        report_peak(*sys.argv[2:5])
    else:
        raise SystemExit(main())
