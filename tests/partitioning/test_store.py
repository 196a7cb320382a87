import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from tests.graph.sealing import reseal
from tests.partitioning.drawn import check_shards, cut_graphs, graph_of, same_shard
from weft.errors import UserError
from weft.graph.graph import Graph
from weft.partitioning.info import parts_of, read_partition
from weft.partitioning.quality import quality
from weft.partitioning.read import load_original_ids, load_shard, read_owner
from weft.partitioning.shard import make_shards
from weft.partitioning.write import write_partition

EDGES = [(0, 1), (1, 0), (2, 1), (5, 1), (3, 4), (4, 3), (0, 5), (0, 5), (6, 2), (2, 2), (6, 0)]
OWNER = torch.tensor([0, 1, 2, 0, 1, 2, 3, 3], dtype=torch.int32)


@pytest.fixture
def graph() -> Graph:
    return graph_of(8, EDGES, weighted=True)


@pytest.fixture
def parts(tmp_path: Path, graph: Graph) -> Path:
    write_partition(graph, OWNER, tmp_path / "parts", method="given")
    return tmp_path / "parts"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut_graphs())
def test_files_give_back_the_shards(tmp_path: Path, drawn: tuple[Graph, Tensor, int]) -> None:
    graph, owner, num_parts = drawn
    info = write_partition(graph, owner, tmp_path / "parts", num_parts, overwrite=True)
    loaded = [load_shard(tmp_path / "parts", part, num_parts) for part in range(num_parts)]
    for one, two in zip(loaded, make_shards(graph, owner, num_parts), strict=True):
        same_shard(one, two)
    assert info.quality == quality(graph, owner, num_parts) == read_partition(tmp_path / "parts").quality
    assert info.quality.halo == sum(shard.num_halo for shard in loaded)
    assert torch.equal(read_owner(tmp_path / "parts"), owner)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut_graphs())
def test_fewer_workers_than_parts(tmp_path: Path, drawn: tuple[Graph, Tensor, int]) -> None:
    graph, owner, num_parts = drawn
    write_partition(graph, owner, tmp_path / "parts", num_parts, overwrite=True)
    for workers in range(1, num_parts + 1):
        shards = [load_shard(tmp_path / "parts", worker, workers) for worker in range(workers)]
        check_shards(graph, shards)
        for shard in shards:
            assert all(int(owner[i]) * workers // num_parts == shard.worker for i in shard.global_ids)


def test_merged_parts_equal_a_direct_cut(tmp_path: Path) -> None:
    """With vertices numbered part by part, merging leaves the very rows of a direct cut, bit by bit."""
    generator = torch.Generator().manual_seed(1)
    pairs = torch.randint(0, 40, (300, 2), generator=generator).tolist()
    graph = graph_of(40, [(a, b) for a, b in pairs], weighted=True)
    owner = torch.arange(40) // 8
    write_partition(graph, owner, tmp_path / "parts", 5)
    for workers in (1, 2, 3, 4, 5):
        direct = make_shards(graph, owner * workers // 5, workers)
        for worker in range(workers):
            same_shard(load_shard(tmp_path / "parts", worker, workers), direct[worker])


def test_groups_of_parts_are_contiguous_and_complete() -> None:
    for parts in range(1, 12):
        for workers in range(1, parts + 1):
            groups = [parts_of(worker, workers, parts) for worker in range(workers)]
            assert [part for group in groups for part in group] == list(range(parts))
            assert all(part * workers // parts == w for w, group in enumerate(groups) for part in group)


def test_a_worker_needs_only_its_own_parts(parts: Path, graph: Graph) -> None:
    whole = load_shard(parts, 1, 4)
    for part in (0, 2, 3):
        shutil.rmtree(parts / f"part-{part:04d}")
    (parts / "position.npy").unlink()
    same_shard(load_shard(parts, 1, 4), whole)
    with pytest.raises(UserError, match=r"part-0002 is missing"):
        load_shard(parts, 2, 4)


def test_single_parts_stay_mapped(parts: Path) -> None:
    shard = load_shard(parts, 0, 4)
    assert shard.x is not None and shard.x.data_ptr() % 64 == 0


def test_bfloat16_and_original_ids(tmp_path: Path, graph: Graph) -> None:
    assert graph.x is not None
    names = np.array([f"vertex {i}" for i in range(8)], dtype=object)
    graph = replace(graph.with_vertex_data(x=graph.x.bfloat16()), original_ids=names)
    write_partition(graph, OWNER, tmp_path / "parts")
    for workers in (1, 2, 4):
        shards = [load_shard(tmp_path / "parts", worker, workers) for worker in range(workers)]
        check_shards(graph, shards)
        for shard in shards:
            assert shard.x is not None and shard.x.dtype == torch.bfloat16
            ids = load_original_ids(tmp_path / "parts", shard.worker, workers)
            assert ids is not None and ids.tolist() == [f"vertex {i}" for i in shard.global_ids.tolist()]


def test_no_original_ids(parts: Path) -> None:
    assert load_original_ids(parts, 0, 2) is None


@pytest.mark.parametrize("workers", [5, 100])
def test_more_workers_than_parts(parts: Path, workers: int) -> None:
    with pytest.raises(UserError, match=f"{workers} workers .* has 4 parts.*--parts {workers}"):
        load_shard(parts, 0, workers)


@pytest.mark.parametrize(
    "name",
    ["x", "y", "global_ids", "local_indices", "local_weight", "remote_indptr", "halo_rows", "train_mask"],
)
def test_one_altered_byte_is_refused(parts: Path, name: str) -> None:
    file = parts / "part-0000" / f"{name}.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=rf"{name}\.npy was altered"):
        load_shard(parts, 0, 4)
    load_shard(parts, 1, 4)  # the others are whole


def test_a_truncated_file_is_refused(parts: Path) -> None:
    file = parts / "part-0000" / "x.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"x\.npy was altered or truncated"):
        load_shard(parts, 0, 4)


def test_a_missing_file_is_refused(parts: Path) -> None:
    (parts / "part-0000" / "halo_ids.npy").unlink()
    with pytest.raises(UserError, match=r"halo_ids\.npy is missing"):
        load_shard(parts, 0, 4)


def test_parts_of_two_partitions_do_not_mix(tmp_path: Path, graph: Graph, parts: Path) -> None:
    other = tmp_path / "other"
    write_partition(graph, OWNER.flip(0).contiguous(), other)
    shutil.rmtree(parts / "part-0001")
    shutil.copytree(other / "part-0001", parts / "part-0001")
    with pytest.raises(UserError, match="another partition"):
        load_shard(parts, 1, 4)
    with pytest.raises(UserError, match="another partition"):
        load_shard(parts, 0, 2)


def test_parts_of_other_features_do_not_mix(tmp_path: Path, graph: Graph, parts: Path) -> None:
    """The same edges cut in the same way, but other features: the manifest's own digest tells."""
    assert graph.x is not None
    write_partition(graph.with_vertex_data(x=graph.x + 1), OWNER, tmp_path / "other")
    shutil.rmtree(parts / "part-0001")
    shutil.copytree(tmp_path / "other" / "part-0001", parts / "part-0001")
    with pytest.raises(UserError, match="altered"):
        load_shard(parts, 1, 4)


def test_swapped_parts_are_refused(parts: Path) -> None:
    (parts / "part-0000").rename(parts / "kept")
    (parts / "part-0001").rename(parts / "part-0000")
    (parts / "kept").rename(parts / "part-0001")
    with pytest.raises(UserError, match="holds part 1, not part 0"):
        load_shard(parts, 0, 4)


@pytest.mark.parametrize("key", ["partition_id", "parts", "part_manifests"])
def test_a_damaged_manifest_is_refused(parts: Path, key: str) -> None:
    manifest = json.loads((parts / "manifest.json").read_text())
    del manifest[key]
    (parts / "manifest.json").write_text(json.dumps(manifest))
    reseal(parts)
    with pytest.raises(UserError, match=f"damaged .at '{key}'"):
        load_shard(parts, 0, 4)


def test_nothing_is_overwritten_unasked(parts: Path, graph: Graph) -> None:
    before = (parts / "manifest.json").read_bytes()
    with pytest.raises(UserError, match="exists already"):
        write_partition(graph, OWNER, parts)
    assert (parts / "manifest.json").read_bytes() == before
    write_partition(graph, OWNER * 0, parts, overwrite=True)
    assert read_partition(parts).num_parts == 1 and not (parts / "part-0001").exists()


def test_a_failed_write_leaves_nothing(tmp_path: Path, graph: Graph) -> None:
    with pytest.raises(UserError, match="assignment"):
        write_partition(graph, OWNER[:-1], tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []
