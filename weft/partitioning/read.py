"""Partition folders read: a worker's parts as one shard, and the place and owner of every vertex."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.csr import CSR, EDGE_DATA
from weft.graph.files import MANIFEST, Array, read_array, read_manifest, read_tensor, sha256_of
from weft.graph.structure import check_csr, check_permutation, check_range, check_vertex_data
from weft.graph.verify import verify_arrays
from weft.graph.vertexdata import Predicted, concat_vertices, kind_of_labels, present
from weft.partitioning.info import (
    AGAIN,
    PartInfo,
    PartitionInfo,
    check_workers,
    parse_info,
    part_name,
    parts_of,
    position_dtype,
    read_partition,
)
from weft.partitioning.merge import merge_parts
from weft.partitioning.schema import IDS, SIDES, PartSizes, edge_array, find_mistake, is_vertex_data
from weft.partitioning.shard import Edges, Shard


def read_positions(path: Path | str) -> Tensor:
    """The place of every vertex by global id, where all vertices lie part after part; memory-mapped, int [N]."""
    path, info = Path(path), read_partition(path)
    manifest = read_manifest(path, "partition")
    positions = read_array(path, manifest, "position")
    if positions.dtype != position_dtype(info.num_nodes) or positions.shape != (info.num_nodes,):
        raise UserError(f"{path / 'position.npy'} holds {positions.dtype} {list(positions.shape)}: {AGAIN}")
    order = torch.from_numpy(positions)
    verify_arrays(path, manifest, structure=lambda: check_permutation(order, str(path / "position.npy"), AGAIN))
    return order


def read_owner(path: Path | str) -> Tensor:
    """The part of every vertex by global id, int32 [N]."""
    sizes = torch.tensor([part.nodes for part in read_partition(path).parts])
    ends = torch.cumsum(sizes, 0)
    return torch.searchsorted(ends, read_positions(path).long(), right=True).int()


def load_shard(path: Path | str, worker: int, num_workers: int) -> Shard:
    """One worker's parts, verified and merged into one shard; arrays of a single part stay memory-mapped."""
    path = Path(path)
    info = read_partition(path)
    check_workers(path, num_workers, info.num_parts)
    assert 0 <= worker < num_workers
    group = parts_of(worker, num_workers, info.num_parts)
    parts = [_read_part(path, info, part) for part in group]
    if any(part.vertex_data.keys() != parts[0].vertex_data.keys() for part in parts):
        raise UserError(f"{path} is damaged: its parts have different vertex data: {AGAIN}")
    sizes = [part.nodes for part in info.parts]
    ids = [part.global_ids for part in parts]
    edges = merge_parts([part.edges for part in parts], ids, group, sizes, num_workers)
    return Shard(
        worker=worker,
        num_workers=num_workers,
        global_ids=ids[0] if len(ids) == 1 else torch.cat(ids),
        local=edges.local,
        remote=edges.remote,
        halo_ids=edges.halo_ids,
        halo_counts=tuple(torch.bincount(edges.halo_owners, minlength=num_workers).tolist()),
        halo_rows=edges.halo_rows,
        vertex_data=concat_vertices([part.vertex_data for part in parts]),
        num_global_nodes=info.num_nodes,
        num_global_edges=info.num_edges,
        num_classes=info.num_classes,
        graph_name=info.graph_name,
        fingerprint=info.fingerprint,
        num_relations=info.num_relations,
        types=info.types,
    )


def load_global_ids(path: Path | str) -> Array:
    """The global ids of all parts' vertices, part after part, and nothing else of the graph [N]."""
    ids = np.concatenate(list(_each_part(Path(path), "global_ids")))
    check_permutation(torch.from_numpy(ids), f"{path}: global_ids", AGAIN)
    return ids


def predicted_of(path: Path | str) -> Predicted:
    """What labels say of a vertex."""
    found = (kind_of_labels(labels.dtype.kind == "f", labels.ndim) for labels in _each_part(Path(path), "y"))
    return next(found, "class")


def targets_of(path: Path | str) -> int:
    """How many numbers are to be predicted of each vertex; 0: labels are classes, or there are none."""
    found = (math.prod(labels.shape[1:]) if labels.dtype.kind == "f" else 0 for labels in _each_part(Path(path), "y"))
    return next(found, 0)


def _each_part(path: Path, name: str) -> Iterator[Array]:
    """An array of every part that has it, verified and memory-mapped."""
    info = read_partition(path)
    for part in range(info.num_parts):
        folder, manifest, _ = _open_part(path, info, part)
        if name in manifest["arrays"]:
            verify_arrays(folder, manifest, [name])
            yield read_array(folder, manifest, name)


def load_original_ids(path: Path | str, worker: int, num_workers: int) -> Array | None:
    """The ids that the user's own files gave to a shard's vertices [N]; None: they are the global ids."""
    path = Path(path)
    info = read_partition(path)
    check_workers(path, num_workers, info.num_parts)
    pieces = []
    for part in parts_of(worker, num_workers, info.num_parts):
        folder, manifest, _ = _open_part(path, info, part)
        if IDS not in manifest["arrays"]:
            return None
        verify_arrays(folder, manifest, [IDS])
        pieces.append(read_array(folder, manifest, IDS))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _open_part(path: Path, info: PartitionInfo, part: int) -> tuple[Path, dict[str, Any], PartInfo]:
    folder = path / part_name(part)
    if not folder.is_dir():
        raise UserError(f"{folder} is missing: copy it from where the partition was written, or partition again")
    manifest = read_manifest(folder, "part")
    part_info = parse_info(PartInfo, folder, manifest)
    if part_info.partition_id != info.partition_id:
        raise UserError(f"{folder} belongs to another partition than {path / MANIFEST}: partition again")
    if part_info.part != part:
        raise UserError(f"{folder} holds part {part_info.part}, not part {part}: partition again")
    if len(part_info.halo_counts) != info.num_parts or min(part_info.halo_counts) < 0:
        raise UserError(f"{folder / MANIFEST} is damaged (at 'halo_counts'): partition again")
    if sha256_of(folder / MANIFEST) != info.part_manifests[part]:
        raise UserError(f"{folder / MANIFEST} was altered: partition again")
    counts = info.parts[part]
    sizes = PartSizes(counts.nodes, sum(part_info.halo_counts), (counts.edges - counts.cut_edges, counts.cut_edges))
    mistake = find_mistake(manifest["arrays"], sizes, part_info.bfloat16)
    if mistake is not None:
        raise UserError(f"{folder} is damaged: {mistake}: {AGAIN}")
    return folder, manifest, part_info


class _Part(NamedTuple):
    """One part as its files hold it: halo owners are parts, halo rows are rows there."""

    global_ids: Tensor
    edges: Edges
    vertex_data: dict[str, Tensor]


def _read_part(path: Path, info: PartitionInfo, part: int) -> _Part:
    folder, manifest, part_info = _open_part(path, info, part)
    names = manifest["arrays"]

    def read(name: str) -> Tensor:
        return read_tensor(folder, manifest, name, name in part_info.bfloat16)

    def carried(side: str) -> dict[str, Tensor]:
        return {kind: read(name) for kind in EDGE_DATA if (name := edge_array(side, kind)) in names}

    ids, halo_ids = read("global_ids"), read("halo_ids")
    owners = torch.repeat_interleave(torch.arange(info.num_parts), torch.tensor(part_info.halo_counts))
    local, remote = (
        CSR(read(edge_array(side, "indptr")), read(edge_array(side, "indices")), columns, **carried(side))
        for side, columns in zip(SIDES, (ids.numel(), halo_ids.numel()), strict=True)
    )
    edges = Edges(local, remote, halo_ids, owners, read("halo_rows"))
    loaded = _Part(ids, edges, present({name: read(name) for name in names if is_vertex_data(name)}))
    verify_arrays(folder, manifest, structure=lambda: _check_part(info, part, str(folder), loaded))
    return loaded


def _check_part(info: PartitionInfo, number: int, what: str, part: _Part) -> None:
    """What must hold of a part's values; types and lengths have been checked before."""
    ids, edges, num_nodes = part.global_ids, part.edges, info.parts[number].nodes
    for name, tensor in (("global_ids", ids), ("halo_ids", edges.halo_ids), ("halo_rows", edges.halo_rows)):
        check_range(tensor, 0, info.num_nodes, f"{what}: {name}", AGAIN)
    sizes = torch.tensor([counts.nodes for counts in info.parts])
    if bool((edges.halo_rows >= sizes[edges.halo_owners]).any()) or bool((edges.halo_owners == number).any()):
        raise UserError(f"{what} is damaged: its halo names rows that no other part has: {AGAIN}")
    for side, csr in zip(SIDES, (edges.local, edges.remote), strict=True):
        check_csr(csr, num_nodes, info.num_relations, f"{what}: {side}", AGAIN)
        if csr.features is not None and csr.features.shape[1] != info.num_edge_features:
            raise UserError(f"{what} is damaged: its edges have {csr.features.shape[1]} features: {AGAIN}")
    columns = part.vertex_data
    check_vertex_data(columns, num_nodes, info.num_classes, what, AGAIN, info.num_features, info.types)
