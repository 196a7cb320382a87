"""Graphs of other libraries: PyG and DGL objects, PyG and GraphBolt data set folders."""

import importlib
import math
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.disk.reading import read_yaml
from weft.disk.space import refuse_beyond_memory
from weft.errors import UserError, optional
from weft.graph.build import from_edges
from weft.graph.convert import LabelKind
from weft.graph.edgelist import read_edges, read_npy
from weft.graph.files import Array
from weft.graph.graph import Graph

TIME_KEYS = ("edge_time", "time")  # of edges, in the order in which they are looked for
WEIGHT_KEYS = ("edge_weight", "weight", "w")
DGL_FEATURES, DGL_LABELS = ("feat", "feature", "x"), ("label", "labels", "y")
ROLES = ("train", "val", "test")


class Vertices(NamedTuple):
    """The vertices of one type, as another library's graph holds them; what is None, they do not have."""

    num_nodes: int
    x: Any
    y: Any
    masks: dict[str, Any]  # train, val, test


class Connections(NamedTuple):
    """The edges of one type."""

    ends: Any  # sources and destinations, numbered within their types
    weight: Any
    features: Any = None


def from_pyg(data: Any, name: str = "pyg", num_classes: int | None = None, label_kind: LabelKind = "auto") -> Graph:
    """A Graph from a torch_geometric `Data` or `HeteroData`, or from a data set that holds a single one.

    >>> from torch_geometric.data import Data
    >>> data = Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([0, 1, 1]))
    >>> weft.from_pyg(data).num_edges
    2

    `label_kind` is that of `from_edges`. `edge_type` are relations. `edge_attr` are edge weights where it is one column
    and there are no others, else edge features. `edge_time` or `time` are times of edges where there is one for each
    edge, and `node_time` or `time` those of vertices where there is one for each vertex. The vertices of a `HeteroData`
    lie one type after another, as `meta["node_types"]` counts them.
    """
    if not hasattr(type(data), "num_nodes") and hasattr(data, "num_classes"):  # a data set
        if len(data) != 1:
            raise UserError(f"the PyG data set holds {len(data)} graphs: weft trains on one; pick it by index")
        num_classes, data = num_classes or int(data.num_classes), data[0]
    if hasattr(data, "edge_types"):
        return _from_hetero_pyg(data, name, num_classes, label_kind)
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
    names = ("node_time",) if num_nodes == num_edges and not hasattr(data, "edge_time") else ("node_time", "time")
    return _of_each(data, names, num_nodes)


def _from_hetero_pyg(data: Any, name: str, num_classes: int | None, label_kind: LabelKind) -> Graph:
    nodes = {
        kind: Vertices(
            int(data[kind].num_nodes or 0),
            _dense(getattr(data[kind], "x", None)),
            getattr(data[kind], "y", None),
            _masks(data[kind]),
        )
        for kind in data.node_types
    }
    edges = {}
    for kind in data.edge_types:
        if getattr(data[kind], "edge_index", None) is None:
            raise UserError(
                f"the PyG graph has no edge_index of {kind} (an adj_t only?): convert it to edge_index first"
            )
        features = getattr(data[kind], "edge_attr", None)
        edges[kind] = Connections(data[kind].edge_index, _first(data[kind], *WEIGHT_KEYS), features)
    return _from_types(nodes, edges, name, "pyg", num_classes, label_kind)


def from_dgl(graph: Any, name: str = "dgl") -> Graph:
    """A Graph from a DGL graph with `feat`, `label` and masks in its ndata.

    >>> import dgl
    >>> found = dgl.graph(([0, 1], [1, 2]))
    >>> found.ndata["feat"] = torch.rand(3, 2)
    >>> weft.from_dgl(found).num_edges
    2

    The vertices of a heterogeneous graph lie one type after another, as `meta["node_types"]` counts them.
    """
    if len(graph.ntypes) > 1 or len(graph.etypes) > 1:
        nodes = {
            kind: Vertices(
                int(graph.num_nodes(kind)),
                _first(graph.nodes[kind].data, *DGL_FEATURES),
                _first(graph.nodes[kind].data, *DGL_LABELS),
                _masks(graph.nodes[kind].data),
            )
            for kind in graph.ntypes
        }
        edges = {
            kind: Connections(graph.edges(etype=kind), _first(graph.edges[kind].data, *WEIGHT_KEYS))
            for kind in graph.canonical_etypes
        }
        return _from_types(nodes, edges, name, "dgl")
    src, dst = graph.edges()
    return from_edges(
        src,
        dst,
        num_nodes=int(graph.num_nodes()),
        x=_first(graph.ndata, *DGL_FEATURES),
        y=_first(graph.ndata, *DGL_LABELS),
        weight=_first(graph.edata, *WEIGHT_KEYS),
        **_splits_first(_masks(graph.ndata)),
        name=name,
        meta={"source": "dgl"},
    )


def _from_types(
    nodes: Mapping[str, Vertices],
    edges: Mapping[tuple[str, str, str], Connections],
    name: str,
    source: str,
    num_classes: int | None = None,
    label_kind: LabelKind = "auto",
) -> Graph:
    """One graph of several types of vertices, laid one after another, whose types of edges are its relations."""
    if not edges:
        raise UserError(f"the heterogeneous {source} graph has no edges: nothing to train on")
    labelled = [kind for kind, held in nodes.items() if held.y is not None]
    if len(labelled) > 1:
        raise UserError(f"vertices of the types {', '.join(labelled)} have labels: keep those of the type to predict")
    first = dict(zip(nodes, accumulate((held.num_nodes for held in nodes.values()), initial=0), strict=False))
    ends = [(links.ends[0] + first[kind[0]], links.ends[1] + first[kind[2]]) for kind, links in edges.items()]
    sizes = {kind: held.num_nodes for kind, held in nodes.items()}
    counts = {" ".join(kind): links.ends[0].numel() for kind, links in edges.items()}
    splits = {
        role: _joined("masks", {kind: held.masks.get(role) for kind, held in nodes.items()}, sizes) for role in ROLES
    }
    labels = _joined("labels", {kind: held.y for kind, held in nodes.items()}, sizes, missing=None)
    if labels is not None and labels.is_floating_point():
        num_classes = None
    return from_edges(
        torch.cat([src for src, _ in ends]),
        torch.cat([dst for _, dst in ends]),
        num_nodes=sum(sizes.values()),
        x=_joined("features", {kind: held.x for kind, held in nodes.items()}, sizes),
        y=labels,
        label_kind=label_kind,
        weight=_joined("weights", {" ".join(kind): links.weight for kind, links in edges.items()}, counts, missing=1),
        relation=torch.arange(len(edges)).repeat_interleave(torch.tensor(list(counts.values()))),
        relation_names=list(counts),
        edge_features=_joined("features", {" ".join(kind): links.features for kind, links in edges.items()}, counts),
        **_splits_first({role: mask for role, mask in splits.items() if mask is not None}),
        num_classes=num_classes,
        name=name,
        meta={"source": source, "node_types": sizes},
    )


def _joined(what: str, given: Mapping[str, Any], sizes: Mapping[str, int], missing: int | None = 0) -> Tensor | None:
    """The rows of all types, one type after another; types without any get rows of `missing`.

    None: of what says of labels that they are unknown, -1 or, of numbers, NaN.
    """
    held = {kind: rows for kind, rows in given.items() if rows is not None}
    if not held:
        return None
    shapes = {kind: tuple(rows.shape[1:]) for kind, rows in held.items()}
    if len(set(shapes.values())) > 1:
        widths = ", ".join(f"'{kind}' {list(shape)}" for kind, shape in shapes.items())
        raise UserError(
            f"the types have {what} of different widths ({widths} columns): bring them to one width before you hand "
            f"the graph to weft, or remove the {what} of all but one type"
        )
    like = next(iter(held.values()))
    fill = missing if missing is not None else math.nan if like.is_floating_point() else -1
    return torch.cat([held.get(kind, like.new_full((size, *like.shape[1:]), fill)) for kind, size in sizes.items()])


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
