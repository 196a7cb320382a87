"""Edge files cut by workers are the same bytes as the graph cut in memory."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.out_of_core.edgefiles import cut, cut_files, node_files, same_as_in_memory, same_folders, save_edges
from tests.partitioning.drawn import check_shards
from tests.workers import run_workers
from weft.comm import Communicator
from weft.graph import from_edges
from weft.graph.edgelist import EdgeColumns
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.synthetic import parse_synthetic
from weft.out_of_core import Job, spill
from weft.out_of_core.edgedata import Carried
from weft.out_of_core.edgefiles import EdgeChunk, EdgeFiles
from weft.out_of_core.workers import partition_together
from weft.partitioning import PartitionInfo, load_shard, read_owner, read_partition

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Directed graphs with self-loops, multi-edges and isolated vertices, cut into parts that may be empty."""
    num_nodes = draw(st.integers(1, 14))
    vertex = st.integers(0, num_nodes - 1)
    return {
        "num_nodes": num_nodes,
        "edges": draw(st.lists(st.tuples(vertex, vertex), min_size=1, max_size=40)),
        "weighted": draw(st.booleans()),
        "timed": draw(st.booleans()),
        "undirected": draw(st.booleans()),
        "method": draw(st.sampled_from(["hash", "range", "stream"])),
        "parts": draw(st.integers(1, 5)),
        "seed": draw(st.integers(0, 3)),
        "memory_bytes": draw(st.sampled_from([300, 2000, 1 << 20])),
    }


def save(folder: Path, drawn: dict[str, Any]) -> tuple[dict[str, Any], Graph]:
    """The settings of a drawn job, whose files are written, and the graph that they describe."""
    chosen = dict(drawn)
    edges, weighted, timed = chosen.pop("edges"), chosen.pop("weighted"), chosen.pop("timed")
    chosen["edges"] = (save_edges(folder / "edges.npy", edges),)
    weight = time = vertex_time = None
    columns: dict[str, str] = {}
    chosen |= node_files(folder, chosen["num_nodes"])
    if weighted:
        weight = np.arange(1, len(edges) + 1, dtype=np.float32)
        np.save(folder / "w.npy", weight)
        columns |= {"weight": str(folder / "w.npy")}
    if timed:
        time = 1e9 - 0.1 * np.arange(len(edges))  # no float32 numbers
        vertex_time = np.where(np.arange(chosen["num_nodes"]) % 3 == 0, np.nan, 1e9 - 1)
        np.save(folder / "t.npy", time)
        np.save(folder / "vt.npy", vertex_time)
        columns |= {"time": str(folder / "t.npy")}
        chosen["vertex_data"] = {"time": folder / "vt.npy"}
    chosen["columns"] = EdgeColumns(**columns)
    train = np.arange(chosen["num_nodes"]) % 2 == 0
    for name, mask in (("train", train), ("val", ~train), ("test", np.flatnonzero(~train))):
        np.save(folder / f"{name}.npy", mask)
    chosen["split"] = ",".join(str(folder / f"{name}.npy") for name in ("train", "val", "test"))
    pairs = np.array(edges, np.int64)
    graph = from_edges(
        pairs[:, 0],
        pairs[:, 1],
        x=np.load(chosen["features"]),
        y=np.load(chosen["labels"]),
        weight=weight,
        edge_time=time,
        vertex_time=vertex_time,
        num_nodes=chosen["num_nodes"],
        train_mask=train,
        val_mask=~train,
        test_mask=~train,
        undirected=chosen["undirected"],
    )
    return chosen, graph


@settings(PATIENT, max_examples=15)
@given(jobs())
def test_one_worker(tmp_path: Path, drawn: dict[str, Any]) -> None:
    chosen, graph = save(tmp_path, drawn)
    info = cut_files(tmp_path / "parts", 1, **chosen)
    same_as_in_memory(tmp_path / "parts", graph, tmp_path / "memory")
    check_shards(graph, [load_shard(tmp_path / "parts", part, info.num_parts) for part in range(info.num_parts)])


@pytest.mark.parametrize("workers", [2, 4])
@settings(PATIENT, max_examples=3)
@given(drawn=jobs())
def test_several_workers(tmp_path: Path, workers: int, drawn: dict[str, Any]) -> None:
    chosen, graph = save(tmp_path, drawn)
    cut_files(tmp_path / "parts", workers, **chosen)
    same_as_in_memory(tmp_path / "parts", graph, tmp_path / "memory")
    if drawn["method"] != "stream":
        cut_files(tmp_path / "alone", 1, **chosen | {"memory_bytes": 1 << 24})
        same_folders(tmp_path / "parts", tmp_path / "alone")


def random_edges(num_nodes: int, num_edges: int) -> list[tuple[int, int]]:
    pairs = np.random.default_rng(0).integers(0, num_nodes, (num_edges, 2))
    return [(int(u), int(v)) for u, v in pairs]


@pytest.mark.parametrize("method", ["hash", "range"])
def test_little_memory_means_many_buckets_and_the_same_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    at_once: list[int] = []
    chunks, sort = EdgeFiles.read, spill._sort

    def read_and_note(files: EdgeFiles, span: range, chunk_edges: int) -> Iterator[EdgeChunk]:
        for chunk in chunks(files, span, chunk_edges):
            at_once.append(chunk.src.size)
            yield chunk

    def sort_and_note(vertices: range, pairs: Array, data: Carried) -> spill.Rows:
        at_once.append(len(pairs))
        return sort(vertices, pairs, data)

    edges = save_edges(tmp_path / "edges.npy", random_edges(500, 20_000))
    job = {"edges": (edges,), "parts": 3, "method": method, **node_files(tmp_path, 500)}
    ample = cut(tmp_path / "ample", 1, memory_bytes=1 << 26, **job)
    monkeypatch.setattr(EdgeFiles, "read", read_and_note)
    monkeypatch.setattr(spill, "_sort", sort_and_note)
    tight = cut(tmp_path / "tight", 1, memory_bytes=1 << 14, **job)
    assert max(at_once) * 12 <= 1 << 14, "an edge takes 12 bytes at the least while it is sorted"
    assert ample.num_buckets == 1 and tight.num_buckets >= 20
    same_folders(tmp_path / "ample", tmp_path / "tight")


@pytest.fixture(scope="module")
def communities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both directions of every edge of a graph with planted communities, ids shuffled."""
    graph = parse_synthetic("synthetic:demo?nodes=4000,communities=40")
    src = graph.adjacency.indices.numpy()
    dst = np.repeat(np.arange(graph.num_nodes), graph.adjacency.degrees().numpy())
    shuffled = np.random.default_rng(1).permutation(graph.num_nodes)
    path = tmp_path_factory.mktemp("communities") / "edges.npy"
    np.save(path, shuffled[np.stack([src, dst])].astype(np.int32))
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_stream_cuts_less_than_hash_and_keeps_the_balance(tmp_path: Path, communities: Path, workers: int) -> None:
    job = {"edges": (communities,), "parts": 4, "memory_bytes": 1 << 20, "split": "random:0.5,0.2@0"}
    stream = cut_files(tmp_path / "stream", workers, method="stream", **job).quality
    random = cut_files(tmp_path / "hash", 1, method="hash", **job).quality
    assert stream.cut_edges < 0.75 * random.cut_edges
    assert stream.vertex_balance < 1.06 and stream.edge_balance < 1.12 and stream.train_balance < 1.12
    again = cut_files(tmp_path / "again", workers, method="stream", **job).quality
    assert again == stream, "the same workers and memory give the same parts"
    same_folders(tmp_path / "stream", tmp_path / "again")


def together(comm: Communicator, job: str, out: str) -> PartitionInfo:
    return partition_together(comm, Job.model_validate_json(job), Path(out)).info


def test_workers_that_run_already(tmp_path: Path) -> None:
    """As under torchrun: worker 0 makes the folder for all."""
    edges = save_edges(tmp_path / "edges.npy", random_edges(100, 1000))
    job = Job(edges=(edges,), parts=3, method="hash", name="shared")
    infos = run_workers(together, 2, job.model_dump_json(), str(tmp_path / "parts"))
    assert infos[0] == infos[1] == read_partition(tmp_path / "parts")
    assert sorted(os.listdir(tmp_path)) == ["edges.npy", "parts"]
    cut_files(tmp_path / "alone", 1, edges=(edges,), parts=3, method="hash")
    same_folders(tmp_path / "parts", tmp_path / "alone")


def test_ranges_are_contiguous_and_even(tmp_path: Path) -> None:
    edges = save_edges(tmp_path / "edges.npy", random_edges(1000, 30_000))
    quality = cut_files(tmp_path / "parts", 1, edges=(edges,), parts=5, method="range").quality
    owner = read_owner(tmp_path / "parts")
    assert bool((owner[1:] >= owner[:-1]).all()) and quality.edge_balance < 1.02


def test_bfloat16_and_half_features(tmp_path: Path) -> None:
    edges = save_edges(tmp_path / "edges.npy", [(0, 1), (1, 2), (2, 0)])
    x = torch.randn(3, 4)
    np.save(tmp_path / "b.npy", x.bfloat16().view(torch.int16).numpy())
    np.save(tmp_path / "h.npy", x.half().numpy())
    cut_files(tmp_path / "b", 1, edges=(edges,), parts=1, features=tmp_path / "b.npy")
    cut_files(tmp_path / "h", 1, edges=(edges,), parts=1, features=tmp_path / "h.npy")
    bf16, half = load_shard(tmp_path / "b", 0, 1).x, load_shard(tmp_path / "h", 0, 1).x
    assert bf16 is not None and torch.equal(bf16, x.bfloat16())
    assert half is not None and torch.equal(half, x.half().float())


def test_a_drawn_split_covers_the_labelled_vertices(tmp_path: Path) -> None:
    edges = save_edges(tmp_path / "edges.npy", random_edges(2000, 4000))
    files = node_files(tmp_path, 2000)
    cut_files(tmp_path / "parts", 1, edges=(edges,), parts=1, split="random:0.6,0.2@3", **files)
    shard = load_shard(tmp_path / "parts", 0, 1)
    masks = torch.stack([shard.train_mask, shard.val_mask, shard.test_mask])  # type: ignore[list-item]
    assert shard.y is not None and torch.equal(masks.sum(0), (shard.y >= 0).long())
    shares = masks.double().mean(1) / (shard.y >= 0).double().mean()
    assert torch.allclose(shares, torch.tensor([0.6, 0.2, 0.2]).double(), atol=0.05)
