"""A graph in memory cut into a partition folder."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weft.graph.files import MANIFEST, ArrayWriter, FolderWriter, sha256_of, to_file
from weft.graph.graph import Graph
from weft.graph.progress import progress
from weft.graph.vertexdata import index_of_rows, vertex_array
from weft.partitioning.info import PartInfo, PartitionInfo, part_name, partition_id_of, position_dtype
from weft.partitioning.quality import PartCounts, train_count
from weft.partitioning.schema import IDS, SIDES, PartSizes, edge_array, find_mistake
from weft.partitioning.shard import Edges, Placement, cut_rows, place
from weft.partitioning.touches import Forecast

COPY_BYTES = 1 << 26  # rows are written in pieces of this size


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
        partition_id = partition_id_of(fingerprint, placement.starts, [placement.order.numpy()])
        halo_counts, cut_edges = [], []
        with progress(f"writing {path.name}", num_parts) as advance:
            for part in range(num_parts):
                edges = cut_rows(graph.adjacency, placement, part)
                counts = torch.bincount(edges.halo_owners, minlength=num_parts)
                with ArrayWriter(folder.temporary / part_name(part), "part") as inner:
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
            preparation=graph.preparation,
            types=graph.types,
            id_column=graph.id_column,
            parts=_count_parts(graph, owner, placement, torch.stack(halo_counts), cut_edges),
            part_manifests=tuple(sha256_of(folder.temporary / part_name(part) / MANIFEST) for part in range(num_parts)),
            forecast=forecast,
        )
        folder.meta = info.model_dump(mode="json")
    return info


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
    folder: ArrayWriter,
    graph: Graph,
    members: Tensor,
    edges: Edges,
    partition_id: str,
    part: int,
    halo_counts: Tensor,
) -> None:
    """The arrays that weft.partitioning.schema declares."""
    folder.add("global_ids", members.numpy())
    for side, csr in zip(SIDES, (edges.local, edges.remote), strict=True):
        for kind, data in {"indptr": csr.indptr, "indices": csr.indices, **csr.edge_data}.items():
            folder.add(edge_array(side, kind), data.numpy())
    folder.add("halo_ids", edges.halo_ids.numpy())
    folder.add("halo_rows", edges.halo_rows.numpy())
    bfloat16 = tuple(name for name, rows in graph.vertex_data.items() if rows.dtype == torch.bfloat16)
    for name, rows in graph.vertex_data.items():
        if vertex_array(name).vertex_dim == 0:
            index = index_of_rows(graph.vertex_data, name, members)
            _copy_rows(folder, name, torch.from_numpy(to_file(rows)), index)
        else:
            folder.add(name, to_file(rows[..., members]))
    if graph.original_ids is not None:
        original = np.asarray(graph.original_ids)[members.numpy()]
        folder.add(IDS, original.astype(str) if original.dtype == object else original)
    info = PartInfo(partition_id=partition_id, part=part, halo_counts=tuple(halo_counts.tolist()), bfloat16=bfloat16)
    folder.meta = info.model_dump(mode="json")
    sizes = PartSizes(len(members), len(edges.halo_ids), (edges.local.num_edges, edges.remote.num_edges))
    mistake = find_mistake(folder.arrays, sizes, bfloat16)
    assert mistake is None, mistake


def _copy_rows(folder: ArrayWriter, name: str, rows: Tensor, members: Tensor) -> None:
    """Selected rows straight into the file, piece by piece: no second copy in memory."""
    file = folder.create(name, (members.numel(), *rows.shape[1:]), rows.numpy().dtype)
    if file.size == 0:
        return
    step = max(1, COPY_BYTES // max(1, file[:1].nbytes))
    for start in range(0, members.numel(), step):
        piece = members[start : start + step]
        torch.index_select(rows, 0, piece, out=torch.from_numpy(file[start : start + step]))
