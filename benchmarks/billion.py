"""A graph of a billion edges on one machine: cut from its edge file by four workers, of which none can hold it, and
trained on by the same number for an epoch of macrobatches over a hundredth of its vertices.

    python -m benchmarks.billion [--quick] [--json FILE]

The graph is drawn here and written in chunks: 30 million vertices in communities of about a thousand, whose members lie
far apart in the order of ids; an edge takes its first end anywhere, in proportion to weights from a power law, and its
second in the same community four times out of five. Every edge is there in both directions. A vertex's class is that of
its community, its 16 features are the class's centre and noise. Everything lies in a temporary folder (some 30 GB at
the most; TMPDIR says where) and is removed at the end. `--quick`: 10 million edges.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Bench, parse
from weft.config import make_config
from weft.out_of_core import Job
from weft.out_of_core.workers import Outcome, partition_files
from weft.run import start

GIB = 1 << 30
PAIRS_PER_CHUNK = 1 << 21
ROWS_PER_CHUNK = 1 << 18
STRIDE = 0x9E3779B1  # a prime: vertex v has the id v * STRIDE mod N, so that neighbours in a community lie far apart
SEEDS = {"train": 0.01, "val": 0.002, "test": 0.002}  # share of the vertices in each split
NOISE = 1.5
PARTS = WORKERS = 4
MEMORY_BYTES = 2 * GIB
BATCH = 4096
SAMPLE = {"cache_aggregates": "never", "memory_mib": 256}
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Drawing:
    """A graph to be drawn."""

    num_nodes: int
    num_edges: int  # directed, both directions counted
    community: int = 1024  # vertices in one
    inside: float = 0.8  # share of edges within a community
    skew: int = 3  # a member's number is size * u^skew: its degree falls with number^(1/skew - 1)
    classes: int = 32
    features: int = 16
    seed: int = 0

    @property
    def communities(self) -> int:
        return -(-self.num_nodes // self.community)

    def ids(self, vertices: Array) -> Array:
        """Shuffled ids, int32."""
        return (vertices.astype(np.int64) * STRIDE % self.num_nodes).astype(np.int32)

    def ends(self, chunk: int, count: int) -> tuple[Array, Array]:
        """Both ends of so many undirected edges."""
        rng = np.random.default_rng([self.seed, chunk])
        first = rng.integers(0, self.communities, count)
        second = np.where(rng.random(count) < self.inside, first, rng.integers(0, self.communities, count))
        return tuple(self.ids(self._member(home, rng)) for home in (first, second))  # type: ignore[return-value]

    def _member(self, community: Array, rng: np.random.Generator) -> Array:
        number = (self.community * rng.random(community.size, dtype=np.float32) ** self.skew).astype(np.int64)
        return np.minimum(community * self.community + number, self.num_nodes - 1)


def chunks(total: int, step: int) -> Iterator[tuple[int, int, int]]:
    """(number, begin, end) of every chunk."""
    for number, begin in enumerate(range(0, total, step)):
        yield number, begin, min(total, begin + step)


def write_edges(drawing: Drawing, path: Path) -> None:
    """int32 [2, E]: chunk after chunk, edges and then their reverses; two processes share the chunks."""
    np.lib.format.open_memmap(path, mode="w+", dtype=np.int32, shape=(2, drawing.num_edges)).flush()
    work = [(drawing, path, *chunk) for chunk in chunks(drawing.num_edges // 2, PAIRS_PER_CHUNK)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(_write_chunk, work, chunksize=4)


def _write_chunk(drawing: Drawing, path: Path, number: int, begin: int, end: int) -> None:
    edges = np.load(path, mmap_mode="r+")
    first, second = drawing.ends(number, end - begin)
    for row, (there, back) in enumerate(((first, second), (second, first))):
        edges[row, 2 * begin : begin + end] = there
        edges[row, begin + end : 2 * end] = back


def write_nodes(drawing: Drawing, folder: Path) -> None:
    """x.npy float32 [N, F], y.npy int16 [N], and the vertices of each split."""
    shape = (drawing.num_nodes, drawing.features)
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.float32, shape=shape)
    y = np.empty(drawing.num_nodes, np.int16)
    rng = np.random.default_rng([drawing.seed, 1 << 32])
    centres = rng.standard_normal((drawing.classes, drawing.features), dtype=np.float32)
    for _, begin, end in chunks(drawing.num_nodes, 1 << 22):
        vertices = np.arange(begin, end)
        y[drawing.ids(vertices)] = vertices // drawing.community % drawing.classes
    for _, begin, end in chunks(drawing.num_nodes, ROWS_PER_CHUNK):
        noise = rng.standard_normal((end - begin, drawing.features), dtype=np.float32)
        x[begin:end] = centres[y[begin:end]] + NOISE * noise
    np.save(folder / "y.npy", y)
    drawn = rng.permutation(drawing.num_nodes)[: round(sum(SEEDS.values()) * drawing.num_nodes)]
    for name, share in SEEDS.items():
        count = round(share * drawing.num_nodes)
        np.save(folder / f"{name}.npy", np.sort(drawn[:count]))
        drawn = drawn[count:]


def write_graph(bench: Bench, drawing: Drawing, folder: Path) -> None:
    started = time.perf_counter()
    write_edges(drawing, folder / "edges.npy")
    write_nodes(drawing, folder)
    bench.note(
        f"drawn and written: {drawing.num_nodes:,} vertices, {drawing.num_edges:,} directed edges in "
        f"{time.perf_counter() - started:.0f} s"
    )


def partition(bench: Bench, folder: Path) -> Outcome:
    job = Job(
        edges=(folder / "edges.npy",),
        features=folder / "x.npy",
        labels=folder / "y.npy",
        split=",".join(str(folder / f"{name}.npy") for name in SEEDS),
        parts=PARTS,
        method="stream",
        memory_bytes=MEMORY_BYTES,
        name="billion",
    )
    outcome = partition_files(job, folder / "parts", WORKERS)
    bench.row(f"partition, {WORKERS} workers", {**outcome.seconds, "in all": sum(outcome.seconds.values())})
    return outcome


def report_partition(bench: Bench, outcome: Outcome) -> None:
    quality, seconds, peak = outcome.info.quality, sum(outcome.seconds.values()), max(outcome.peak_rss_bytes)
    edges = outcome.info.num_edges
    bench.row(
        "partition in numbers",
        {},
        buckets=outcome.num_buckets,
        cut=quality.cut_fraction,
        vertex_balance=quality.vertex_balance,
        edge_balance=quality.edge_balance,
        peaks=[round(bytes_ / GIB, 2) for bytes_ in outcome.peak_rss_bytes],
    )
    limit = 1.0 if bench.options.quick else 15.0
    bench.bar(f"minutes to partition {edges / 1e6:,.0f} million edges", seconds / 60, limit, " min", at_least=False)
    bench.bar("peak memory of a worker", peak / GIB, 3.0, " GiB", at_least=False)
    by_hash = 1 - 1 / quality.num_parts
    bench.bar("cut edges of those that a hash would cut", quality.cut_fraction / by_hash, 0.6, "", at_least=False)
    bench.bar("largest part over the mean, in-edges", quality.edge_balance, 1.12, "", at_least=False)


def train(bench: Bench, folder: Path) -> None:
    """One epoch of SAGE; nothing is evaluated, since rows of all vertices would not fit beside each other."""
    settings = {
        "data": str(folder / "parts"), "run": str(folder / "run"), "strategy": "batchgnn", "workers": WORKERS,
        "threads": 1, "model": {"name": "sage", "layers": 2, "hidden": 64}, "optim": {"lr": 0.003},
        "train": {"epochs": 1, "eval_every": 0}, "sample": {"batch": BATCH, "fanout": [10, 5], **SAMPLE},
    }  # fmt: skip
    started = time.perf_counter()
    summary = start(make_config(settings), quiet=True).summary
    seconds = {"start and epoch": time.perf_counter() - started, "epoch": summary["epoch_seconds"]["total"]}
    peaks = [round(peak / GIB, 2) for peak in summary["peak_rss_bytes"]]
    rows = {f"{name} rows": f"{count:,}" for name, count in summary["rows"].items()}
    megabytes = summary["wire_bytes"]["per_epoch"] / 1e6
    bench.row("train, one epoch", seconds, peaks=peaks, **rows, loss=summary["train_loss"], megabytes=megabytes)
    bench.bar("peak memory of all training workers", sum(summary["peak_rss_bytes"]) / GIB, 12.0, " GiB", at_least=False)


def main() -> int:
    bench = Bench("billion", parse(__doc__))
    drawing = Drawing(300_000, 10_000_000) if bench.options.quick else Drawing(30_000_000, 1_000_000_000)
    with tempfile.TemporaryDirectory(prefix="weft-billion-") as name:
        folder = Path(name)
        write_graph(bench, drawing, folder)
        report_partition(bench, partition(bench, folder))
        (folder / "edges.npy").unlink()
        train(bench, folder)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
