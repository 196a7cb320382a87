"""Partitions on disk: one folder per part that a worker can load alone, and a manifest over all of them.

    PARTS/manifest.json            what was cut, how, how well; the sha256 of every part's manifest
    PARTS/position.npy             int [N], where every vertex stands by global id: all vertices, part after part
    PARTS/part-0000/manifest.json  carries the partition's id, so that parts of two partitions do not mix
    PARTS/part-0000/*.npy          see `_write_part`

A worker needs PARTS/manifest.json and its own part folders; to sample neighbourhoods also PARTS/position.npy, which
workers of one host share, since it stays memory-mapped.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from weft.errors import UserError
from weft.graph.files import MANIFEST, Array, FolderWriter, read_array, read_manifest, sha256_of
from weft.graph.graph import CSR, EDGE_DATA, Graph
from weft.graph.progress import progress
from weft.kernels import memory
from weft.partition.merge import merge_parts
from weft.partition.presample import Forecast
from weft.partition.quality import PartCounts, Quality, train_count
from weft.partition.shard import Edges, Placement, Shard, cut_rows, place

COPY_BYTES = 1 << 26  # rows are written in pieces of this size
ROWS = ("x", "y", "train_mask", "val_mask", "test_mask")


Info = TypeVar("Info", bound=BaseModel)


class PartitionInfo(BaseModel):
    """The metadata of a partition folder."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    partition_id: str
    graph_name: str
    fingerprint: str
    method: str
    seed: int
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    class_names: tuple[str, ...] | None = None
    num_relations: int = 0
    relation_names: tuple[str, ...] | None = None
    num_edge_features: int = 0
    parts: tuple[PartCounts, ...]
    part_manifests: tuple[str, ...]  # sha256
    forecast: Forecast | None = None  # where minibatches were drawn before the graph was cut

    @property
    def num_parts(self) -> int:
        return len(self.parts)

    @property
    def quality(self) -> Quality:
        return Quality(self.parts)


class PartInfo(BaseModel):
    """The metadata of one part's folder."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    partition_id: str
    part: int
    halo_counts: tuple[int, ...]  # one per part
    bfloat16: tuple[str, ...]  # arrays that numpy sees as int16


def part_name(part: int) -> str:
    return f"part-{part:04d}"


def write_partition(
    graph: Graph,
    owner: Tensor,
    path: Path | str,
    num_parts: int | None = None,
    method: str = "given",
    seed: int = 0,
    overwrite: bool = False,
    reorder: bool | None = None,
    forecast: Forecast | None = None,
) -> PartitionInfo:
    """Cuts the graph by owner (int [N]) into a folder; `num_parts` None: the largest part number plus one."""
    if num_parts is None:
        num_parts = int(owner.max()) + 1 if owner.numel() else 1
    path = Path(path)
    with FolderWriter(path, "partition", overwrite) as folder:
        placement = place(graph, owner, num_parts, reorder)
        fingerprint = graph.fingerprint
        partition_id = identity(fingerprint, placement.starts, [placement.order.numpy()])
        halo_counts, cut_edges = [], []
        with progress(f"writing {path.name}", num_parts) as advance:
            for part in range(num_parts):
                edges = cut_rows(graph.adjacency, placement, part)
                counts = torch.bincount(edges.halo_owners, minlength=num_parts)
                with FolderWriter(folder.temporary / part_name(part), "part") as inner:
                    _write_part(inner, graph, placement.members(part), edges, partition_id, part, counts)
                halo_counts.append(counts)
                cut_edges.append(edges.remote.num_edges)
                advance(1)
        folder.add("position", placement.position.numpy().astype(position_dtype(graph.num_nodes)))
        info = PartitionInfo(
            partition_id=partition_id,
            graph_name=graph.name,
            fingerprint=fingerprint,
            method=method,
            seed=seed,
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            num_features=graph.num_features,
            num_classes=graph.num_classes,
            class_names=graph.class_names,
            num_relations=graph.num_relations,
            relation_names=graph.relation_names,
            num_edge_features=graph.num_edge_features,
            parts=_count_parts(graph, owner, placement, torch.stack(halo_counts), cut_edges),
            part_manifests=tuple(sha256_of(folder.temporary / part_name(part) / MANIFEST) for part in range(num_parts)),
            forecast=forecast,
        )
        folder.meta = info.model_dump(mode="json")
    return info


def identity(fingerprint: str, starts: tuple[int, ...], order: Iterable[Array]) -> str:
    """Two partitions have the same id exactly if every vertex of the same graph lies in the same place.

    order: the global ids part after part, int64, in as many pieces as one likes.
    """
    digest = hashlib.sha256(f"{fingerprint} {starts}".encode())
    for piece in order:
        digest.update(np.ascontiguousarray(piece, np.int64).data)
    return digest.hexdigest()


def _count_parts(
    graph: Graph, owner: Tensor, placement: Placement, halo: Tensor, cut_edges: list[int]
) -> tuple[PartCounts, ...]:
    """halo: int64 [P, P], rows that part i needs from part j."""
    num_parts = placement.num_parts
    owner = owner.long()
    degrees = graph.adjacency.degrees().double()
    edges = torch.bincount(owner, weights=degrees, minlength=num_parts).long().tolist()
    train = torch.bincount(owner, weights=train_count(graph), minlength=num_parts).long().tolist()
    needed, sent = halo.sum(1).tolist(), halo.sum(0).tolist()
    return tuple(
        PartCounts(
            nodes=placement.starts[part + 1] - placement.starts[part],
            edges=edges[part],
            cut_edges=cut_edges[part],
            halo=needed[part],
            sent=sent[part],
            train=train[part],
        )
        for part in range(num_parts)
    )


def _write_part(
    folder: FolderWriter,
    graph: Graph,
    members: Tensor,
    edges: Edges,
    partition_id: str,
    part: int,
    halo_counts: Tensor,
) -> None:
    """global_ids [N], local_* and remote_* CSR, halo_ids and halo_rows [H] (row at the owning part), rows."""
    bfloat16: list[str] = []

    def add(name: str, tensor: Tensor) -> None:
        if tensor.dtype == torch.bfloat16:  # numpy has no such type
            bfloat16.append(name)
            tensor = tensor.view(torch.int16)
        folder.add(name, tensor.numpy())

    add("global_ids", members)
    for name, csr in (("local", edges.local), ("remote", edges.remote)):
        add(f"{name}_indptr", csr.indptr)
        add(f"{name}_indices", csr.indices)
        for kind, data in csr.edge_data.items():
            add(f"{name}_{kind}", data)
    add("halo_ids", edges.halo_ids)
    add("halo_rows", edges.halo_rows)
    if graph.x is not None:
        x = graph.x
        if x.dtype == torch.bfloat16:
            bfloat16.append("x")
            x = x.view(torch.int16)
        _copy_rows(folder, "x", x, members)
    if graph.y is not None:
        add("y", graph.y[members])
    for name in ("train_mask", "val_mask", "test_mask"):
        mask = getattr(graph, name)
        if mask is not None:
            add(name, mask[..., members])
    if graph.original_ids is not None:
        original = np.asarray(graph.original_ids)[members.numpy()]
        folder.add("original_ids", original.astype(str) if original.dtype == object else original)
    info = PartInfo(
        partition_id=partition_id,
        part=part,
        halo_counts=tuple(halo_counts.tolist()),
        bfloat16=tuple(bfloat16),
    )
    folder.meta = info.model_dump(mode="json")


def _copy_rows(folder: FolderWriter, name: str, rows: Tensor, members: Tensor) -> None:
    """Selected rows straight into the file, piece by piece: no second copy in memory."""
    file = folder.create(name, (members.numel(), *rows.shape[1:]), rows.numpy().dtype)
    if file.size == 0:
        return
    step = max(1, COPY_BYTES // max(1, file[:1].nbytes))
    for start in range(0, members.numel(), step):
        piece = members[start : start + step]
        torch.index_select(rows, 0, piece, out=torch.from_numpy(file[start : start + step]))


def read_partition(path: Path | str) -> PartitionInfo:
    """The metadata of a partition folder, validated."""
    return _parse(PartitionInfo, Path(path), read_manifest(Path(path), "partition"))


def position_dtype(num_nodes: int) -> Any:
    return np.int32 if num_nodes < 2**31 else np.int64


def read_positions(path: Path | str, verify: bool = True) -> Tensor:
    """Where every vertex stands by global id, all vertices in one order, part after part; memory-mapped, int [N]."""
    path = Path(path)
    return torch.from_numpy(read_array(path, read_manifest(path, "partition"), "position", verify))


def read_owner(path: Path | str, verify: bool = True) -> Tensor:
    """The part of every vertex by global id, int32 [N]."""
    sizes = torch.tensor([part.nodes for part in read_partition(path).parts])
    ends = torch.cumsum(sizes, 0)
    return torch.searchsorted(ends, read_positions(path, verify).long(), right=True).int()


def parts_of(worker: int, num_workers: int, num_parts: int) -> range:
    """Part p belongs to worker p * W // P: contiguous groups, as even as can be."""
    first = -(-worker * num_parts // num_workers)
    return range(first, -(-(worker + 1) * num_parts // num_workers))


def check_workers(path: Path | str, num_workers: int, num_parts: int) -> None:
    if num_workers > num_parts:
        raise UserError(
            f"{num_workers} workers were asked for but {path} has {num_parts} parts: "
            f"use at most {num_parts} workers or partition again with --parts {num_workers}"
        )


def load_shard(path: Path | str, worker: int, num_workers: int, verify: bool = True) -> Shard:
    """One worker's parts, merged into one shard; arrays of a single part stay memory-mapped."""
    path = Path(path)
    info = read_partition(path)
    check_workers(path, num_workers, info.num_parts)
    assert 0 <= worker < num_workers
    group = parts_of(worker, num_workers, info.num_parts)
    parts = [_read_part(path, info, part, verify) for part in group]
    sizes = [part.nodes for part in info.parts]
    ids = [ids for ids, _, _ in parts]
    edges = merge_parts([edges for _, edges, _ in parts], ids, group, sizes, num_workers)

    def join(name: str) -> Tensor | None:
        pieces = [rows[name] for _, _, rows in parts if name in rows]
        if len(pieces) < 2:
            return pieces[0] if pieces else None
        if name != "x":
            return torch.cat(pieces, -1 if name.endswith("mask") else 0)
        return torch.cat(pieces, out=memory.empty((sum(map(len, pieces)), *pieces[0].shape[1:]), pieces[0].dtype))

    return Shard(
        worker=worker,
        num_workers=num_workers,
        global_ids=ids[0] if len(ids) == 1 else torch.cat(ids),
        local=edges.local,
        remote=edges.remote,
        halo_ids=edges.halo_ids,
        halo_counts=tuple(torch.bincount(edges.halo_owners, minlength=num_workers).tolist()),
        halo_rows=edges.halo_rows,
        x=join("x"),
        y=join("y"),
        train_mask=join("train_mask"),
        val_mask=join("val_mask"),
        test_mask=join("test_mask"),
        num_global_nodes=info.num_nodes,
        num_global_edges=info.num_edges,
        num_classes=info.num_classes,
        graph_name=info.graph_name,
        fingerprint=info.fingerprint,
        num_relations=info.num_relations,
    )


def load_global_ids(path: Path | str, verify: bool = False) -> Array:
    """The global ids of all parts' vertices, part after part, and nothing else of the graph [N]."""
    return np.concatenate(list(_each_part(Path(path), "global_ids", verify)))


def has_several_labels(path: Path | str) -> bool:
    """Whether a vertex may have several labels."""
    return next((labels.ndim == 2 for labels in _each_part(Path(path), "y", verify=False)), False)


def _each_part(path: Path, name: str, verify: bool) -> Iterator[Array]:
    """An array of every part that has it, memory-mapped."""
    info = read_partition(path)
    for part in range(info.num_parts):
        folder, manifest, _ = _open_part(path, info, part)
        if name in manifest["arrays"]:
            yield read_array(folder, manifest, name, verify)


def load_original_ids(path: Path | str, worker: int, num_workers: int, verify: bool = True) -> Array | None:
    """The ids that the user's own files gave to a shard's vertices [N]; None: they are the global ids."""
    path = Path(path)
    info = read_partition(path)
    check_workers(path, num_workers, info.num_parts)
    pieces = []
    for part in parts_of(worker, num_workers, info.num_parts):
        folder, manifest, _ = _open_part(path, info, part)
        if "original_ids" not in manifest["arrays"]:
            return None
        pieces.append(read_array(folder, manifest, "original_ids", verify))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _open_part(path: Path, info: PartitionInfo, part: int) -> tuple[Path, dict[str, Any], PartInfo]:
    folder = path / part_name(part)
    if not folder.is_dir():
        raise UserError(f"{folder} is missing: copy it from where the partition was written, or partition again")
    manifest = read_manifest(folder, "part")
    part_info = _parse(PartInfo, folder, manifest)
    if part_info.partition_id != info.partition_id:
        raise UserError(f"{folder} belongs to another partition than {path / MANIFEST}: partition again")
    if part_info.part != part:
        raise UserError(f"{folder} holds part {part_info.part}, not part {part}: partition again")
    if sha256_of(folder / MANIFEST) != info.part_manifests[part]:
        raise UserError(f"{folder / MANIFEST} was altered: partition again")
    return folder, manifest, part_info


def _read_part(path: Path, info: PartitionInfo, part: int, verify: bool) -> tuple[Tensor, Edges, dict[str, Tensor]]:
    """Global ids, edges (owners are parts, rows are rows there) and the arrays of ROWS."""
    folder, manifest, part_info = _open_part(path, info, part)

    def read(name: str) -> Tensor:
        tensor = torch.from_numpy(read_array(folder, manifest, name, verify))
        return tensor.view(torch.bfloat16) if name in part_info.bfloat16 else tensor

    def carried(side: str) -> dict[str, Tensor]:
        names = {kind: f"{side}_{kind}" for kind in EDGE_DATA}
        return {kind: read(name) for kind, name in names.items() if name in manifest["arrays"]}

    ids, halo_ids = read("global_ids"), read("halo_ids")
    owners = torch.repeat_interleave(torch.arange(info.num_parts), torch.tensor(part_info.halo_counts))
    csrs = [
        CSR(read(f"{name}_indptr"), read(f"{name}_indices"), columns, **carried(name))
        for name, columns in (("local", ids.numel()), ("remote", halo_ids.numel()))
    ]
    edges = Edges(csrs[0], csrs[1], halo_ids, owners, read("halo_rows"))
    return ids, edges, {name: read(name) for name in ROWS if name in manifest["arrays"]}


def _parse(model: type[Info], path: Path, manifest: dict[str, Any]) -> Info:
    try:
        return model.model_validate(manifest)
    except ValidationError as error:
        where = ".".join(str(key) for key in error.errors()[0]["loc"])
        raise UserError(f"{path / MANIFEST} is damaged (at '{where}'): partition again") from None
