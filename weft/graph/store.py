"""Graph folders: every array of a Graph in a file that memory-maps."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.build import check_graph
from weft.graph.files import Array, FolderWriter, read_array, read_manifest
from weft.graph.graph import CSR, Graph
from weft.graph.progress import progress

KIND = "graph"
MASKS = ("train_mask", "val_mask", "test_mask")


def save_graph(graph: Graph, path: str | Path, overwrite: bool = False) -> None:
    """Writes the graph as a folder, whole or not at all."""
    check_graph(graph)
    arrays: dict[str, Tensor | None] = {
        "indptr": graph.adjacency.indptr,
        "indices": graph.adjacency.indices,
        "weight": graph.adjacency.weight,
        "relation": graph.adjacency.relation,
        "edge_features": graph.adjacency.features,
        "x": graph.x,
        "y": graph.y,
        **{name: getattr(graph, name) for name in MASKS},
    }
    present = {name: tensor for name, tensor in arrays.items() if tensor is not None}
    total = sum(tensor.nbytes for tensor in present.values())
    with (
        FolderWriter(Path(path), KIND, overwrite) as folder,
        progress(f"writing {Path(path).name}", total) as advance,
    ):
        bf16 = []
        for name, tensor in present.items():
            if tensor.dtype == torch.bfloat16:  # numpy has no such type: its bits are kept
                bf16.append(name)
                tensor = tensor.view(torch.int16)
            folder.add(name, tensor.numpy())
            advance(tensor.nbytes)
        if graph.original_ids is not None:
            ids = graph.original_ids
            folder.add("original_ids", ids.astype(np.str_) if ids.dtype.kind == "O" else ids)
        folder.meta = {
            "name": graph.name,
            "fingerprint": graph.fingerprint,
            "num_nodes": graph.num_nodes,
            "num_edges": graph.num_edges,
            "num_classes": graph.num_classes,
            "class_names": graph.class_names,
            "num_relations": graph.num_relations,
            "relation_names": graph.relation_names,
            "bfloat16": bf16,
            "meta": graph.meta,
        }


def load_graph(path: str | Path, verify: bool = False) -> Graph:
    """The graph of a folder, memory-mapped. `verify` reads every byte and compares it with the manifest."""
    path = Path(path)
    manifest = read_manifest(path, KIND)

    def tensor(name: str) -> Tensor | None:
        if name not in manifest["arrays"]:
            return None
        array = torch.from_numpy(read_array(path, manifest, name, verify))
        return array.view(torch.bfloat16) if name in manifest["bfloat16"] else array

    indptr, indices = tensor("indptr"), tensor("indices")
    _check_structure(path, indptr, indices, manifest)
    assert indptr is not None and indices is not None
    adjacency = CSR(
        *(indptr, indices, int(manifest["num_nodes"])), tensor("weight"), tensor("relation"), tensor("edge_features")
    )
    if any(data.shape[0] != adjacency.num_edges for data in adjacency.edge_data.values()):
        raise UserError(f"{path} is damaged: what its edges carry is not one row per edge; make it again")
    ids: Array | None = None
    if "original_ids" in manifest["arrays"]:
        ids = read_array(path, manifest, "original_ids", verify)
    names, relation_names = manifest["class_names"], manifest.get("relation_names")
    graph = Graph(
        adjacency=adjacency,
        x=tensor("x"),
        y=tensor("y"),
        **{name: tensor(name) for name in MASKS},
        num_classes=int(manifest["num_classes"]),
        name=manifest["name"],
        original_ids=ids,
        class_names=None if names is None else tuple(names),
        num_relations=int(manifest.get("num_relations", 0)),  # folders of before relations have no such key
        relation_names=None if relation_names is None else tuple(relation_names),
        meta=dict(manifest["meta"]),
    )
    if not verify:
        adjacency.__dict__["fingerprint"] = manifest["fingerprint"]  # fills the cached property
    elif adjacency.fingerprint != manifest["fingerprint"]:
        raise UserError(f"{path} was altered: its edges do not have the fingerprint of its manifest")
    return graph


def _check_structure(path: Path, indptr: Tensor | None, indices: Tensor | None, manifest: dict[str, Any]) -> None:
    """The cheap half of the truth: enough that a wrong folder is refused before it crashes a kernel."""
    if indptr is None or indices is None:
        raise UserError(f"{path} has no edges (indptr, indices): make it again")
    if (
        indptr.dtype != torch.int64
        or indices.dtype != torch.int32
        or indptr.numel() != manifest["num_nodes"] + 1
        or int(indptr[0]) != 0
        or int(indptr[-1]) != indices.numel()
    ):
        raise UserError(f"{path} is damaged: indptr and indices do not belong together; make it again")
