"""Graphs of other libraries: PyG and DGL objects, PyG and GraphBolt data set folders."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import yaml

from weft.errors import UserError
from weft.graph.build import from_edges
from weft.graph.edgelist import read_edges, read_npy
from weft.graph.files import Array
from weft.graph.graph import Graph

WEIGHT_KEYS = ("edge_weight", "weight", "w")


def from_pyg(data: Any, name: str = "pyg", num_classes: int | None = None) -> Graph:
    """A Graph from a torch_geometric `Data`, or from a data set that holds a single one."""
    if not hasattr(type(data), "num_nodes") and hasattr(data, "num_classes"):  # a data set
        if len(data) != 1:
            raise UserError(f"the PyG data set holds {len(data)} graphs: weft trains on one; pick it by index")
        num_classes, data = num_classes or int(data.num_classes), data[0]
    if hasattr(data, "edge_types"):
        raise UserError("the PyG graph is heterogeneous: weft trains on one kind of vertices; use to_homogeneous()")
    if getattr(data, "edge_index", None) is None:
        raise UserError("the PyG graph has no edge_index (an adj_t only?): convert it to edge_index first")
    weight = next((value for key in WEIGHT_KEYS if (value := getattr(data, key, None)) is not None), None)
    attributes = getattr(data, "edge_attr", None)
    if weight is None and attributes is not None and attributes.numel() == data.edge_index.shape[1]:
        weight = attributes.reshape(-1)
    masks = {role: getattr(data, f"{role}_mask", None) for role in ("train", "val", "test")}
    labels = getattr(data, "y", None)
    return from_edges(
        data.edge_index,
        num_nodes=int(data.num_nodes),
        x=_dense(getattr(data, "x", None)),
        y=labels,
        weight=weight,
        **{f"{role}_mask": _splits_first(mask) for role, mask in masks.items()},
        num_classes=None if labels is not None and labels.dim() == 2 and labels.shape[1] > 1 else num_classes,
        name=name,
        meta={"source": "pyg"},
    )


def from_dgl(graph: Any, name: str = "dgl") -> Graph:
    """A Graph from a homogeneous DGL graph with `feat`, `label` and masks in its ndata."""
    if len(graph.ntypes) > 1 or len(graph.etypes) > 1:
        raise UserError("the DGL graph is heterogeneous: weft trains on one kind of vertices; use to_homogeneous()")
    src, dst = graph.edges()
    nodes, edges = graph.ndata, graph.edata

    def first(data: Any, *keys: str) -> Any:
        return next((data[key] for key in keys if key in data), None)

    return from_edges(
        src,
        dst,
        num_nodes=int(graph.num_nodes()),
        x=first(nodes, "feat", "feature", "x"),
        y=first(nodes, "label", "labels", "y"),
        weight=first(edges, *WEIGHT_KEYS),
        **{f"{role}_mask": _splits_first(first(nodes, f"{role}_mask")) for role in ("train", "val", "test")},
        name=name,
        meta={"source": "dgl"},
    )


def load_graphbolt_folder(path: Path) -> Graph:
    """A GraphBolt on-disk data set of one kind of vertices: metadata.yaml with npy and csv files."""
    file = path / "metadata.yaml"
    try:
        described = yaml.safe_load(file.read_text())
        nodes, edges = described["graph"]["nodes"], described["graph"]["edges"]
        count = sum(int(entry["num"]) for entry in nodes)
    except (yaml.YAMLError, KeyError, TypeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} is no GraphBolt description of a graph ({reason})") from None
    if len(nodes) != 1 or len(edges) != 1:
        raise UserError(f"{path} is heterogeneous: weft trains on one kind of vertices and edges")
    edge_file = path / edges[0]["path"]
    listed = read_edges(edge_file, header=False if edges[0].get("format") == "csv" else None)
    if listed.names is not None:
        raise UserError(f"{edge_file} holds text: a GraphBolt graph numbers its vertices")
    x = None
    for entry in described.get("feature_data") or []:
        if entry.get("domain") == "node" and entry.get("name") in ("feat", "feature", "x"):
            x = _graphbolt_array(path, entry)
    y, masks, classes = _graphbolt_task(path, described, count)
    return from_edges(
        listed.src,
        listed.dst,
        num_nodes=count,
        x=x,
        y=y,
        train_mask=masks.get("train"),
        val_mask=masks.get("val"),
        test_mask=masks.get("test"),
        num_classes=classes,
        name=str(described.get("dataset_name") or path.name),
        meta={"source": "graphbolt"},
    )


def _graphbolt_task(
    path: Path, described: dict[str, Any], count: int
) -> tuple[Array | None, dict[str, Array], int | None]:
    """Labels and splits of the first task that has seeds and labels."""
    y = np.full(count, -1, np.int64)
    masks: dict[str, Array] = {}
    classes = None
    for task in described.get("tasks") or []:
        classes = task.get("num_classes")
        for role, key in (("train", "train_set"), ("val", "validation_set"), ("test", "test_set")):
            for part in task.get(key) or []:
                arrays = {entry.get("name"): _graphbolt_array(path, entry) for entry in part["data"]}
                seeds = next((arrays[name] for name in ("seeds", "seed_nodes") if name in arrays), None)
                if seeds is None or seeds.ndim != 1:
                    raise UserError(f"the {key} of {path} lists no seed vertices: weft reads node classification")
                if seeds.size and (int(seeds.min()) < 0 or int(seeds.max()) >= count):
                    raise UserError(f"the {key} of {path} has a seed outside 0..{count - 1}")
                mask = masks.setdefault(role, np.zeros(count, np.bool_))
                mask[seeds] = True
                if "labels" in arrays:
                    y[seeds] = arrays["labels"]
        break
    return (y if (y >= 0).any() else None), masks, None if classes is None else int(classes)


def _graphbolt_array(path: Path, entry: dict[str, Any]) -> Array:
    if entry.get("format") != "numpy":
        raise UserError(
            f"{path / str(entry.get('path'))} has format {entry.get('format')}: weft reads numpy files; save it "
            "as .npy and change metadata.yaml"
        )
    return read_npy(path / entry["path"])


def require(module: str, extra: str, why: str) -> ModuleType:
    """An optional package, or a sentence that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{why}, which needs {module}: pip install 'weft[{extra}]'") from None


def _splits_first(mask: Any) -> Any:
    """PyG and DGL keep S splits as [N, S], weft as [S, N]."""
    return mask.T.contiguous() if mask is not None and mask.dim() == 2 else mask


def _dense(x: Any) -> Any:
    return x.to_dense() if isinstance(x, torch.Tensor) and x.layout != torch.strided else x
