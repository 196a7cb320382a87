"""Graphs of other libraries: PyG and DGL objects, PyG and GraphBolt data set folders."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from weft.disk.reading import read_yaml
from weft.disk.space import refuse_beyond_memory
from weft.errors import UserError, optional
from weft.graph.assemble import ROLES, Connections, Vertices, assemble
from weft.graph.build import from_edges
from weft.graph.convert import LabelKind
from weft.graph.edgelist import read_edges, read_npy
from weft.graph.files import Array
from weft.graph.graph import Graph

TIME_KEYS = ("edge_time", "time")  # of edges, in the order in which they are looked for
VERTEX_TIME_KEYS = ("node_time", "time")
WEIGHT_KEYS = ("edge_weight", "weight", "w")
DGL_FEATURES, DGL_LABELS = ("feat", "feature", "x"), ("label", "labels", "y")


def from_pyg(
    data: Any,
    name: str = "pyg",
    num_classes: int | None = None,
    label_kind: LabelKind = "auto",
    target: str | None = None,
) -> Graph:
    """A Graph from a torch_geometric `Data` or `HeteroData`, or from a data set that holds a single one.

    >>> from torch_geometric.data import Data
    >>> data = Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([0, 1, 1]))
    >>> weft.from_pyg(data).num_edges
    2

    `label_kind` is that of `from_edges`. `edge_type` are relations. `edge_attr` are edge weights where it is one column
    and there are no others, else edge features. `edge_time` or `time` are times of edges where there is one for each
    edge, and `node_time` or `time` those of vertices where there is one for each vertex. The vertices of a `HeteroData`
    lie one type after another, each with features of its own width (`graph.types`), and what its types and relations
    carry is looked for likewise; `target`: the type to be predicted, where several have labels.
    """
    if not hasattr(type(data), "num_nodes") and hasattr(data, "num_classes"):  # a data set
        if len(data) != 1:
            raise UserError(f"the PyG data set holds {len(data)} graphs: weft trains on one; pick it by index")
        num_classes, data = num_classes or int(data.num_classes), data[0]
    if hasattr(data, "edge_types"):
        return _from_hetero_pyg(data, name, num_classes, label_kind, target)
    if getattr(data, "edge_index", None) is None:
        raise UserError("the PyG graph has no edge_index (an adj_t only?): convert it to edge_index first")
    weight = _first(data, *WEIGHT_KEYS)
    features = getattr(data, "edge_attr", None)
    if weight is None and features is not None and features.numel() == data.edge_index.shape[1]:
        weight, features = features.reshape(-1), None
    labels = getattr(data, "y", None)
    if labels is not None and (labels.is_floating_point() or (labels.dim() == 2 and labels.shape[1] > 1)):
        num_classes = None  # PyG counts the values of numbers, too
    return from_edges(
        data.edge_index,
        num_nodes=int(data.num_nodes),
        x=_dense(getattr(data, "x", None)),
        y=labels,
        weight=weight,
        relation=getattr(data, "edge_type", None),
        edge_features=features,
        edge_time=_of_each(data, TIME_KEYS, data.edge_index.shape[1]),
        vertex_time=_vertex_times(data),
        **_splits_first(_masks(data)),
        num_classes=num_classes,
        label_kind=label_kind,
        name=name,
        meta={"source": "pyg"},
    )


def _of_each(data: Any, names: tuple[str, ...], count: int) -> Any:
    """The first of these attributes that has a value for each."""
    held = (getattr(data, name, None) for name in names)
    return next((values for values in held if values is not None and len(values) == count), None)


def _vertex_times(data: Any) -> Any:
    """`node_time`, or a `time` that there is of each vertex and not of each edge."""
    num_nodes, num_edges = int(data.num_nodes), data.edge_index.shape[1]
    names = VERTEX_TIME_KEYS[: 1 + (num_nodes != num_edges or hasattr(data, "edge_time"))]
    return _of_each(data, names, num_nodes)


def _from_hetero_pyg(data: Any, name: str, num_classes: int | None, label_kind: LabelKind, target: str | None) -> Graph:
    nodes = {
        kind: Vertices(
            int(data[kind].num_nodes or 0),
            _dense(getattr(data[kind], "x", None)),
            getattr(data[kind], "y", None),
            _masks(data[kind]),
            time=_of_each(data[kind], VERTEX_TIME_KEYS, int(data[kind].num_nodes or 0)),
        )
        for kind in data.node_types
    }
    edges = {}
    for kind in data.edge_types:
        if getattr(data[kind], "edge_index", None) is None:
            raise UserError(
                f"the PyG graph has no edge_index of {kind} (an adj_t only?): convert it to edge_index first"
            )
        features, ends = getattr(data[kind], "edge_attr", None), data[kind].edge_index
        times = _of_each(data[kind], TIME_KEYS, ends.shape[1])
        edges[kind] = Connections(ends, _first(data[kind], *WEIGHT_KEYS), features, times)
    return assemble(nodes, edges, name, {"source": "pyg"}, num_classes, label_kind=label_kind, target=target)


def from_dgl(graph: Any, name: str = "dgl", target: str | None = None) -> Graph:
    """A Graph from a DGL graph with `feat`, `label` and masks in its ndata.

    >>> import dgl
    >>> found = dgl.graph(([0, 1], [1, 2]))
    >>> found.ndata["feat"] = torch.rand(3, 2)
    >>> weft.from_dgl(found).num_edges
    2

    Its edata may have `weight` (or `w`), `feat`, `time` and, as relations, `etype`; its ndata `time`. The vertices of a
    heterogeneous graph lie one type after another, each with features of its own width (`graph.types`); `target`: the
    type to be predicted, where several have labels.
    """
    if len(graph.ntypes) > 1 or len(graph.etypes) > 1:
        nodes = {
            kind: Vertices(
                int(graph.num_nodes(kind)),
                _first(graph.nodes[kind].data, *DGL_FEATURES),
                _first(graph.nodes[kind].data, *DGL_LABELS),
                _masks(graph.nodes[kind].data),
                time=_first(graph.nodes[kind].data, *VERTEX_TIME_KEYS),
            )
            for kind in graph.ntypes
        }
        edges = {
            kind: Connections(graph.edges(etype=kind), **_dgl_edges(graph.edges[kind].data))
            for kind in graph.canonical_etypes
        }
        return assemble(nodes, edges, name, {"source": "dgl"}, target=target)
    src, dst = graph.edges()
    carried = _dgl_edges(graph.edata)
    return from_edges(
        src,
        dst,
        num_nodes=int(graph.num_nodes()),
        x=_first(graph.ndata, *DGL_FEATURES),
        y=_first(graph.ndata, *DGL_LABELS),
        weight=carried["weight"],
        edge_features=carried["features"],
        edge_time=carried["time"],
        relation=_first(graph.edata, "etype"),
        vertex_time=_first(graph.ndata, *VERTEX_TIME_KEYS),
        **_splits_first(_masks(graph.ndata)),
        name=name,
        meta={"source": "dgl"},
    )


def _dgl_edges(data: Any) -> dict[str, Any]:
    """What the edges of a relation carry, or those of a graph that has none."""
    keys = {"weight": WEIGHT_KEYS, "features": ("feat", "edge_attr"), "time": TIME_KEYS}
    return {name: _first(data, *named) for name, named in keys.items()}


def _first(data: Any, *keys: str) -> Any:
    """The first of these that PyG's or DGL's storage has."""
    return next((value for key in keys if key in data and (value := data[key]) is not None), None)


def _masks(data: Any) -> dict[str, Any]:
    """The split masks that are there, [N] or [N, S]."""
    found = {role: _first(data, f"{role}_mask") for role in ROLES}
    return {role: mask for role, mask in found.items() if mask is not None}


def _splits_first(masks: Mapping[str, Any]) -> dict[str, Any]:
    """Masks by argument name; PyG and DGL keep S splits as [N, S], weft as [S, N]."""
    return {f"{role}_mask": mask.T.contiguous() if mask.dim() == 2 else mask for role, mask in masks.items()}


def load_graphbolt_folder(path: Path) -> Graph:
    """A GraphBolt on-disk data set of one kind of vertices: metadata.yaml with npy and csv files."""
    file = path / "metadata.yaml"
    described = read_yaml(file, "describe a graph there")
    try:
        given = _read_graphbolt(path, file, described)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:  # entries may be anything
        reason = " ".join(str(error).split())
        raise UserError(f"{file} is no GraphBolt description of a graph ({reason})") from None
    return from_edges(**given)


def _read_graphbolt(path: Path, file: Path, described: Any) -> dict[str, Any]:
    """The arguments of `from_edges`."""
    nodes, edges = described["graph"]["nodes"], described["graph"]["edges"]
    count = sum(int(entry["num"]) for entry in nodes)
    if len(nodes) != 1 or len(edges) != 1:
        raise UserError(f"{path} is heterogeneous: weft trains on one kind of vertices and edges")
    refuse_beyond_memory(8 * count, f"the labels of {count:,} vertices, of which {file} tells,")
    edge_file = path / edges[0]["path"]
    listed = read_edges(edge_file, header=False if edges[0].get("format") == "csv" else None)
    if listed.names is not None:
        raise UserError(f"{edge_file} holds text: a GraphBolt graph numbers its vertices")
    x = None
    for entry in described.get("feature_data") or []:
        if entry.get("domain") == "node" and entry.get("name") in ("feat", "feature", "x"):
            x = _graphbolt_array(path, entry)
    y, masks, classes = _graphbolt_task(path, described, count)
    return {
        "src": listed.src,
        "dst": listed.dst,
        "num_nodes": count,
        "x": x,
        "y": y,
        **{f"{role}_mask": mask for role, mask in masks.items()},
        "num_classes": classes,
        "name": str(described.get("dataset_name") or path.name),
        "meta": {"source": "graphbolt"},
    }


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


def require(module: str, why: str) -> ModuleType:
    """An optional package, or a sentence that says how to install it."""
    with optional(why):
        return importlib.import_module(module)


def _dense(x: Any) -> Any:
    return x.to_dense() if isinstance(x, torch.Tensor) and x.layout != torch.strided else x
