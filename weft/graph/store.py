"""Graph folders: every array of a Graph in a file that memory-maps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.check import check_graph
from weft.graph.csr import CSR, EDGE_DATA
from weft.graph.files import AGAIN, FolderWriter, read_array, read_manifest, read_tensor, to_file
from weft.graph.graph import Graph
from weft.graph.preparation import read_preparation
from weft.graph.progress import progress
from weft.graph.structure import check_csr, check_vertex_data
from weft.graph.types import parse_types
from weft.graph.verify import verify_arrays
from weft.graph.vertexdata import present

KIND = "graph"
EDGE_ARRAYS = ("indptr", "indices", *(kind.file for kind in EDGE_DATA.values()))
IDS = "original_ids"


def save_graph(graph: Graph, path: str | Path, overwrite: bool = False) -> None:
    """Writes the graph as a folder, whole or not at all."""
    check_graph(graph)
    adjacency = graph.adjacency
    edges = {"indptr": adjacency.indptr, "indices": adjacency.indices}
    carried = {EDGE_DATA[name].file: data for name, data in adjacency.edge_data.items()}
    arrays = {**edges, **carried, **graph.vertex_data}
    total = sum(tensor.nbytes for tensor in arrays.values())
    with (
        FolderWriter(Path(path), KIND, overwrite) as folder,
        progress(f"writing {Path(path).name}", total) as advance,
    ):
        bf16 = []
        for name, tensor in arrays.items():
            if tensor.dtype == torch.bfloat16:
                bf16.append(name)
            folder.add(name, to_file(tensor))
            advance(tensor.nbytes)
        if graph.original_ids is not None:
            ids = graph.original_ids
            folder.add(IDS, ids.astype(np.str_) if ids.dtype.kind == "O" else ids)
        folder.meta = {
            "name": graph.name,
            "fingerprint": graph.fingerprint,
            "num_nodes": graph.num_nodes,
            "num_edges": graph.num_edges,
            "num_classes": graph.num_classes,
            "class_names": graph.class_names,
            "num_relations": graph.num_relations,
            "relation_names": graph.relation_names,
            "types": None if graph.types is None else graph.types.model_dump(mode="json"),
            "preparation": None if graph.preparation is None else graph.preparation.model_dump(mode="json"),
            "bfloat16": bf16,
            "meta": graph.meta,
        }


def load_graph(path: str | Path, verify: bool = False) -> Graph:
    """The graph of a folder, memory-mapped.

    Every byte is verified when the folder is opened for the first time, and when its files have changed since;
    `verify` does it again in any case.
    """
    path = Path(path)
    manifest = read_manifest(path, KIND)
    try:
        graph = _read_graph(path, manifest)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} has a manifest that lacks something ({error}): {AGAIN}") from None

    def structure() -> None:
        _check_structure(str(path), graph)
        if graph.fingerprint != manifest["fingerprint"]:
            raise UserError(f"{path} was altered: its edges do not have the fingerprint of its manifest; {AGAIN}")

    verify_arrays(path, manifest, structure=structure, always=verify)
    graph.adjacency.__dict__["fingerprint"] = manifest["fingerprint"]  # fills the cached property
    return graph


def _read_graph(path: Path, manifest: Mapping[str, Any]) -> Graph:
    names = manifest["arrays"]

    def tensor(name: str) -> Tensor:
        return read_tensor(path, manifest, name, name in manifest["bfloat16"])

    if not {"indptr", "indices"} <= set(names):
        raise UserError(f"{path} has no edges (indptr, indices): {AGAIN}")
    carried = {name: tensor(kind.file) for name, kind in EDGE_DATA.items() if kind.file in names}
    adjacency = CSR(tensor("indptr"), tensor("indices"), int(manifest["num_nodes"]), **carried)
    class_names, relation_names = manifest["class_names"], manifest.get("relation_names")
    return Graph(
        adjacency=adjacency,
        vertex_data=present({name: tensor(name) for name in names if name not in (*EDGE_ARRAYS, IDS)}),
        num_classes=int(manifest["num_classes"]),
        name=manifest["name"],
        original_ids=read_array(path, manifest, IDS) if IDS in names else None,
        class_names=None if class_names is None else tuple(class_names),
        num_relations=int(manifest["num_relations"]),
        relation_names=None if relation_names is None else tuple(relation_names),
        preparation=read_preparation(manifest, path, AGAIN),
        types=parse_types(manifest.get("types"), str(path), AGAIN),
        meta=dict(manifest["meta"]),
    )


def _check_structure(where: str, graph: Graph) -> None:
    num_nodes = graph.adjacency.num_cols
    check_csr(graph.adjacency, num_nodes, graph.num_relations, where, AGAIN)
    check_vertex_data(graph.vertex_data, num_nodes, graph.num_classes, where, AGAIN, types=graph.types)
    if len({tuple(mask.shape) for mask in graph.masks.values()}) > 1:
        raise UserError(f"{where} is damaged: its masks have different numbers of splits: {AGAIN}")
    if graph.original_ids is not None and graph.original_ids.shape != (num_nodes,):
        raise UserError(f"{where} has {graph.original_ids.size} original ids for {num_nodes} vertices: {AGAIN}")
    if graph.preparation is not None and graph.preparation.num_features != graph.num_features:
        raise UserError(
            f"{where} has {graph.num_features} features, and a preparation of {graph.preparation.num_features}: {AGAIN}"
        )
    outputs = graph.num_classes or graph.num_targets
    for names, count in ((graph.class_names, outputs), (graph.relation_names, graph.num_relations)):
        if names is not None and len(names) != count:
            raise UserError(f"{where} has {len(names)} names for {count} classes or relations: {AGAIN}")
