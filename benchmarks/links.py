"""Link prediction of weft beside PyG: which packages of npm name each other.

    python -m benchmarks.links [--quick] [--json FILE]

A pair of packages of which one names the other is an edge; 5 % of the edges are for validation, 5 % for testing. Both
sides learn a row of 32 for each package and two layers of SAGE, 32 wide, by Adam with rate 0.01, 20 epochs (a step
each) over all other edges and as many pairs, with heads that are drawn evenly; the products of rows are scores. Of
both, the rows that were best on validation (every fifth epoch) are judged by the same numpy computation: ROC AUC of
the test edges and as many pairs of the same tails with heads that are drawn evenly, the same for both. Three seeds;
the bar: weft at most one point below PyG. `--quick`: one seed, five epochs, no bar. With `--json FILE` values are kept
in FILE.partial as they come, and the same command, stopped and started again, goes on after those.
"""

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

import weft
from benchmarks.downloads import npm_dependencies
from benchmarks.harness import Bench, Partial, parse
from weft.errors import UserError
from weft.graph import Graph

WIDTH, RATE, EPOCHS, EVERY, SEEDS = 32, 0.01, 20, 5, 3
BAR = 1.0  # points below PyG
CHUNK = 1 << 19  # edges whose scores PyG's side has at a time


@dataclass(frozen=True)
class Links:
    """Edges by what they are for, int64 [2, E]; `graph` has those for training, both ways."""

    graph: Graph
    train: Tensor
    val: Tensor
    test: Tensor
    none: dict[str, Tensor]  # beside those for "val" and "test": the same tails, with heads that are drawn evenly


def split() -> Links:
    names, edges = npm_dependencies()
    generator = torch.Generator().manual_seed(0)
    edges = edges[:, torch.randperm(edges.shape[1], generator=generator)]
    count = edges.shape[1] // 20
    test, val, train = edges[:, :count], edges[:, count : 2 * count], edges[:, 2 * count :]
    graph = weft.from_edges(train[0], train[1], num_nodes=len(names), undirected=True, name="npm")
    none = {
        part: torch.stack([torch.randint(len(names), held[0].shape, generator=generator), held[1]])
        for part, held in (("val", val), ("test", test))
    }
    return Links(graph, train, val, test, none)


def roc_auc(rows: np.ndarray, edges: Tensor, none: Tensor) -> float:
    """In per cent."""
    scores = [np.einsum("ed,ed->e", rows[one[0]], rows[one[1]]) for one in (edges.numpy(), none.numpy())]
    both = np.concatenate(scores)
    ranks = np.empty(both.size)
    ranks[np.argsort(both, kind="stable")] = np.arange(1, both.size + 1)
    count = scores[0].size
    return 100 * float((ranks[:count].sum() - count * (count + 1) / 2) / (count * scores[1].size))


def ours(links: Links, seed: int, epochs: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        for name, edges in (("val", links.val), ("test", links.test)):
            np.save(Path(folder) / f"{name}.npy", edges.numpy())
        run = weft.train(
            links.graph, run=Path(folder) / "run", seed=seed, threads=torch.get_num_threads(), quiet=True,
            model={"name": "sage", "layers": 2, "hidden": WIDTH, "embedding": WIDTH, "dropout": 0.0},
            optim={"lr": RATE},
            train={
                "task": "links", "metric": "roc_auc", "epochs": epochs, "eval_every": EVERY, "checkpoint_every": 0,
                "trace_epochs": 0,
            },
            link={"val_edges": f"{folder}/val.npy", "test_edges": f"{folder}/test.npy"},
        )  # fmt: skip
        return roc_auc(run.outputs().values, links.test, links.none["test"])


def theirs(links: Links, seed: int, epochs: int) -> float:
    torch.manual_seed(seed)
    csr = links.graph.adjacency
    ones = torch.ones(csr.num_edges)
    adjacency = torch.sparse_csr_tensor(csr.indptr.long(), csr.indices.long(), ones, (csr.num_rows, csr.num_cols))
    rows = nn.Parameter((torch.rand(csr.num_rows, WIDTH) * 2 - 1) * (3 / WIDTH) ** 0.5)
    first, last = SAGEConv(WIDTH, WIDTH), SAGEConv(WIDTH, WIDTH)
    optimiser = torch.optim.Adam([rows, *first.parameters(), *last.parameters()], lr=RATE)
    both_ways = torch.cat([links.train, links.train.flip(0)], 1)  # as weft, which learns an edge in either direction
    best, chosen = -1.0, 0.0
    for epoch in range(1, epochs + 1):
        optimiser.zero_grad()
        out = last(functional.relu(first(rows, adjacency)), adjacency)
        out.backward(_gradient(out.detach(), both_ways))
        optimiser.step()
        if epoch % EVERY == 0:
            with torch.no_grad():
                found = last(functional.relu(first(rows, adjacency)), adjacency).numpy()
            on_val = roc_auc(found, links.val, links.none["val"])
            if on_val >= best:
                best, chosen = on_val, roc_auc(found, links.test, links.none["test"])
    return chosen


def _gradient(rows: Tensor, edges: Tensor) -> Tensor:
    """Of the mean loss of edges and as many pairs with another head each, some at a time."""
    rows = rows.requires_grad_()
    for some in edges.split(CHUNK, 1):
        heads = torch.cat([some[0], torch.randint(rows.shape[0], some[0].shape)])
        scores = (rows[heads] * rows[some[1].repeat(2)]).sum(1)
        exist = (torch.arange(scores.numel()) < some.shape[1]).float()
        loss = functional.binary_cross_entropy_with_logits(scores, exist, reduction="sum")
        (loss / (2 * edges.shape[1])).backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    return rows.grad


def main() -> int:
    bench = Bench("links", parse(__doc__))
    quick = bench.options.quick
    try:
        links = split()
    except UserError as error:
        print(f"error: {error}")
        return 2
    bench.note(f"{links.graph!r}, {links.test.shape[1]:,} edges each for validation and testing")
    found: dict[str, list[float]] = {"weft": [], "pyg": []}
    partial, epochs = Partial(bench.options.json), 5 if quick else EPOCHS
    for seed in range(1 if quick else SEEDS):
        for side, measure in (("weft", ours), ("pyg", theirs)):
            case = {"side": side, "seed": seed, "epochs": epochs}
            value = partial.value(case)
            if value is None:
                value = measure(links, seed, epochs)
                partial.keep(case, value)
            found[side].append(value)
            bench.note(f"  seed {seed}, {side}: {value:.2f}")
    facts = {"vertices": links.graph.num_nodes, "edges": links.graph.num_edges, "test edges": links.test.shape[1]}
    bench.rows.append({"case": "npm, sage", **found, **facts})
    if not quick:
        below = statistics.mean(found["pyg"]) - statistics.mean(found["weft"])
        bench.bar("npm: points of ROC AUC that weft is below PyG", below, BAR, unit="", at_least=False)
    status = bench.finish()
    partial.remove()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
