"""Where training ends from weft's initial weights and from PyG's: three graphs, full batch, raw features.

    WEFT_DATA=FOLDER python -m benchmarks.initialisation [--quick] [--only cora|sage] [--json FILE]

FOLDER holds the data sets as NAME.npz. Both sides train the same model in one run, seed by seed, with the same
hyper-parameters: weft's defaults (2 layers, 64 wide, dropout 0.5, Adam with rate 0.01, no decay, 100 epochs; GAT 8
heads of 8), features as they are, evaluation after every epoch, test accuracy of the epoch that validation chose.
The bar: weft's mean at most one point below PyG's. What five seeds can tell apart is printed beside it (two standard
errors of the difference); where that was more than the bar, there are more seeds. `--quick`: one seed on cora.
"""

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from benchmarks.harness import Bench, parse
from weft.config import make_config
from weft.graph import Graph, open_graph
from weft.run import start
from weft.training.evaluate import pick_masks

GRAPHS = ("cora", "pubmed", "amazon-computers")
EPOCHS, HIDDEN, HEADS, DROPOUT, RATE = 100, 64, 8, 0.5, 0.01
SEEDS, MORE_SEEDS = 5, {"cora": 30, "amazon-computers, sage": 20}
BAR = 1.0  # points below PyG
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"hidden": HIDDEN},
    "sage": {"hidden": HIDDEN},
    "gat": {"hidden": HIDDEN // HEADS, "heads": HEADS},
}
PYG: dict[str, Callable[[int, int], list[nn.Module]]] = {
    "gcn": lambda num_in, num_out: [GCNConv(num_in, HIDDEN, cached=True), GCNConv(HIDDEN, num_out, cached=True)],
    "sage": lambda num_in, num_out: [SAGEConv(num_in, HIDDEN), SAGEConv(HIDDEN, num_out)],
    "gat": lambda num_in, num_out: [GATConv(num_in, HIDDEN // HEADS, HEADS), GATConv(HIDDEN, num_out, 1)],
}


def ours(data: str, model: str, seed: int) -> float:
    """Test accuracy, in per cent."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "data": data, "seed": seed, "run": str(Path(folder) / "run"), "threads": torch.get_num_threads(),
            "model": {"name": model, "layers": 2, "dropout": DROPOUT, **MODELS[model]}, "optim": {"lr": RATE},
            "train": {"epochs": EPOCHS, "checkpoint_every": 0, "trace_epochs": 0},
        }  # fmt: skip
        return 100 * float(start(make_config(settings), quiet=True).summary["test_accuracy"])


def theirs(graph: Graph, model: str, seed: int) -> float:
    """The same of PyG's layers: the epoch is the last of those that are best on validation, as weft chooses it."""
    assert graph.x is not None and graph.y is not None
    torch.manual_seed(seed)
    first, last = (layer for layer in PYG[model](graph.x.shape[1], graph.num_classes))
    layers = nn.ModuleList([first, last])
    edges, masks, y = _edges(graph, dense=model == "gat"), pick_masks(graph, 0), graph.y
    optimiser = torch.optim.Adam(layers.parameters(), lr=RATE)

    def forward(training: bool) -> Tensor:
        rows = functional.dropout(functional.relu(first(graph.x, edges)), DROPOUT, training)
        out: Tensor = last(rows, edges)
        return out

    best, chosen = -1.0, 0.0
    for _ in range(EPOCHS):
        optimiser.zero_grad()
        functional.cross_entropy(forward(True)[masks["train"]], y[masks["train"]]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        with torch.no_grad():
            right = (forward(False).argmax(1) == y).double()
        if float(right[masks["val"]].mean()) >= best:
            best, chosen = float(right[masks["val"]].mean()), float(right[masks["test"]].mean())
    return 100 * chosen


def _edges(graph: Graph, dense: bool) -> Tensor:
    """As PyG's fastest path for the layer wants them: pairs for attention, a sparse matrix otherwise."""
    csr = graph.adjacency
    if not dense:
        ones = torch.ones(csr.num_edges)
        return torch.sparse_csr_tensor(csr.indptr.long(), csr.indices.long(), ones, (csr.num_rows, csr.num_cols))
    return torch.stack([csr.indices.long(), torch.arange(csr.num_rows).repeat_interleave(csr.degrees())])


def measure(bench: Bench, data: str, model: str) -> None:
    graph, found = open_graph(data), {"weft": [], "pyg": []}  # type: tuple[Graph, dict[str, list[float]]]
    case = f"{data}, {model}"
    seeds = 1 if bench.options.quick else MORE_SEEDS.get(case, MORE_SEEDS.get(data, SEEDS))
    for seed in range(seeds):
        found["weft"].append(ours(data, model, seed))
        found["pyg"].append(theirs(graph, model, seed))
        bench.note(f"  seed {seed}: weft {found['weft'][-1]:.2f}, PyG {found['pyg'][-1]:.2f}")
    bench.rows.append({"case": case, **found})
    for side, values in found.items():
        cells = f"mean {statistics.mean(values):6.2f}   worst {min(values):6.2f}   best {max(values):6.2f}"
        print(f"{data:<18} {model:<5} {side:<5} {cells}   {[round(value, 2) for value in values]}", flush=True)
    if not bench.options.quick:
        error = (sum(statistics.variance(values) for values in found.values()) / seeds) ** 0.5
        below = statistics.mean(found["pyg"]) - statistics.mean(found["weft"])
        name = f"{case}: points that weft is below PyG (two standard errors are {2 * error:.2f})"
        bench.bar(name, below, BAR, unit="", at_least=False)


def main() -> int:
    bench = Bench("initialisation", parse(__doc__))
    if "WEFT_DATA" not in os.environ:
        print("WEFT_DATA is not set: it names the folder with the data sets as NAME.npz")
        return 2
    for data in GRAPHS[:1] if bench.options.quick else GRAPHS:
        for model in MODELS:
            if bench.wanted(f"{data}, {model}"):
                measure(bench, data, model)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
