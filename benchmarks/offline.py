"""Test accuracy of weft beside PyG on graphs that package managers carry: WordNet (npm) and Debian's packages (apt).

    python -m benchmarks.offline [--quick] [--only wordnet|debian|rgcn|sage] [--json FILE]

Both sides train the same two layers, 32 wide, with dropout 0.5, Adam with rate 0.01, no decay and 60 epochs, on the
same features (hashed words of each description), edges and split, for three seeds; every fifth epoch is evaluated, and
the test accuracy is that of the epoch that validation chose. SAGE leaves relations out, R-GCN has a matrix for each.
The bar: weft's mean at most one point below PyG's. `--quick`: one seed, ten epochs, no bar.
"""

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import RGCNConv, SAGEConv

import weft
from benchmarks.downloads import debian, wordnet
from benchmarks.harness import Bench, parse
from weft.errors import UserError
from weft.graph import Graph

GRAPHS: dict[str, Callable[[], Graph]] = {"wordnet": wordnet, "debian": debian}
MODELS = ("sage", "rgcn")
HIDDEN, DROPOUT, RATE, EPOCHS, EVERY, SEEDS = 32, 0.5, 0.01, 60, 5, 3
BAR = 1.0  # points below PyG


def ours(graph: Graph, model: str, seed: int, epochs: int) -> float:
    """Test accuracy, in per cent."""
    with tempfile.TemporaryDirectory() as folder:
        run = weft.train(
            graph, model={"name": model, "layers": 2, "hidden": HIDDEN, "dropout": DROPOUT}, run=Path(folder) / "run",
            seed=seed, threads=torch.get_num_threads(), quiet=True, optim={"lr": RATE},
            train={"epochs": epochs, "eval_every": EVERY, "checkpoint_every": 0, "trace_epochs": 0},
        )  # fmt: skip
        return 100 * float(run.summary["test_accuracy"])


def theirs(graph: Graph, model: str, seed: int, epochs: int) -> float:
    """The same of PyG's layers: the epoch is the last of those that are best on validation, as weft chooses it."""
    assert graph.x is not None and graph.y is not None
    torch.manual_seed(seed)
    first, last = _layers(model, graph)
    optimiser = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=RATE)
    edges, y, masks = _edges(graph, model), graph.y, graph.masks

    def forward(training: bool) -> Tensor:
        rows = functional.dropout(functional.relu(first(graph.x, *edges)), DROPOUT, training)
        out: Tensor = last(rows, *edges)
        return out

    best, chosen = -1.0, 0.0
    for epoch in range(1, epochs + 1):
        optimiser.zero_grad()
        functional.cross_entropy(forward(True)[masks["train"]], y[masks["train"]]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if epoch % EVERY:
            continue
        with torch.no_grad():
            right = (forward(False).argmax(1) == y).double()
        if float(right[masks["val"]].mean()) >= best:
            best, chosen = float(right[masks["val"]].mean()), float(right[masks["test"]].mean())
    return 100 * chosen


def _layers(model: str, graph: Graph) -> list[nn.Module]:
    widths = [(graph.num_features, HIDDEN), (HIDDEN, graph.num_classes)]
    if model == "sage":
        return [SAGEConv(*pair) for pair in widths]
    return [RGCNConv(*pair, graph.num_relations) for pair in widths]


def _edges(graph: Graph, model: str) -> tuple[Any, ...]:
    """As PyG's fastest path for the layer wants them: a sparse matrix, or pairs with their relations."""
    csr = graph.adjacency
    if model == "sage":
        ones = torch.ones(csr.num_edges)
        return (torch.sparse_csr_tensor(csr.indptr.long(), csr.indices.long(), ones, (csr.num_rows, csr.num_cols)),)
    assert csr.relation is not None
    rows = torch.arange(csr.num_rows).repeat_interleave(csr.degrees())
    return torch.stack([csr.indices.long(), rows]), csr.relation.long()


def one_kind(graph: Graph) -> Graph:
    """The graph with its edges' relations left out."""
    return replace(graph, adjacency=replace(graph.adjacency, relation=None), num_relations=0, relation_names=None)


def measure(bench: Bench, graph: Graph, model: str) -> None:
    quick = bench.options.quick
    seeds, epochs = (1, 10) if quick else (SEEDS, EPOCHS)
    chosen = graph if model == "rgcn" else one_kind(graph)
    found: dict[str, list[float]] = {"weft": [], "pyg": []}
    for seed in range(seeds):
        found["weft"].append(ours(chosen, model, seed, epochs))
        found["pyg"].append(theirs(chosen, model, seed, epochs))
        bench.note(f"  {graph.name}, {model}, seed {seed}: weft {found['weft'][-1]:.2f}, PyG {found['pyg'][-1]:.2f}")
    assert graph.y is not None
    largest = 100 * float(graph.y[graph.masks["test"]].bincount().max() / graph.masks["test"].sum())
    facts = {"vertices": graph.num_nodes, "edges": graph.num_edges, "relations": graph.num_relations}
    bench.rows.append({"case": f"{graph.name}, {model}", **found, "largest class": largest, **facts})
    for side, values in found.items():
        print(f"{graph.name:<8} {model:<5} {side:<5} mean {statistics.mean(values):6.2f}   of {values}", flush=True)
    if not quick:
        below = statistics.mean(found["pyg"]) - statistics.mean(found["weft"])
        bench.bar(f"{graph.name}, {model}: points that weft is below PyG", below, BAR, unit="", at_least=False)


def main() -> int:
    bench = Bench("offline", parse(__doc__))
    for name, make in GRAPHS.items():
        wanted = [model for model in MODELS if bench.wanted(f"{name}, {model}")]
        try:
            graph = make() if wanted else None
        except UserError as error:
            print(f"error: {error}")
            return 2
        if graph is not None:
            bench.note(f"{graph!r}, {graph.num_relations} relations")
        for model in wanted:
            assert graph is not None
            measure(bench, graph, model)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
