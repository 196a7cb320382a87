"""From edges in memory to a checked Graph."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.files import Array
from weft.graph.graph import CSR, Graph
from weft.graph.ids import map_endpoints
from weft.kernels import build_csr

MAX_NODES = 2**31 - 1  # column indices are int32
VALUES_PER_CHUNK = 1 << 22
ArrayLike = Tensor | Array | Sequence[Any]


def from_edges(
    src: ArrayLike,
    dst: ArrayLike | None = None,
    *,
    x: ArrayLike | None = None,  # [N, F]
    y: ArrayLike | None = None,  # [N] or [N, C]
    weight: ArrayLike | None = None,  # [E]
    num_nodes: int | None = None,
    ids: ArrayLike | None = None,  # [N] original ids, integers or strings; src and dst then hold such ids
    train_mask: ArrayLike | None = None,  # [N] or [S, N]
    val_mask: ArrayLike | None = None,
    test_mask: ArrayLike | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    undirected: bool = False,
    drop_duplicates: bool = False,
    name: str = "graph",
    meta: dict[str, Any] | None = None,
) -> Graph:
    """A Graph from two arrays of endpoints, or one `edge_index` of shape [2, E] as `src`.

    With `undirected` each edge u -> v is joined by v -> u of the same weight (a self-loop stays single).
    `drop_duplicates` keeps the first of several equal edges. Self-loops are kept as they are. Without
    `num_nodes`, N is the length of `ids`, `x` or `y`, else the largest endpoint + 1.
    """
    src_array, dst_array = _endpoints(src, dst)
    original_ids = None if ids is None else _as_array(ids)
    features = None if x is None else _features(x)
    targets = None if y is None else _targets(y)
    count = _node_count(num_nodes, original_ids, features, targets, src_array, dst_array)
    if original_ids is not None:
        src_array, dst_array = map_endpoints(original_ids, src_array, dst_array)
    edge_weight = None if weight is None else _weights(weight, src_array.size)
    adjacency = csr_from_endpoints(src_array, dst_array, count, edge_weight, undirected, drop_duplicates)
    labels, classes = _classes(targets, num_classes, class_names)
    graph = Graph(
        adjacency=adjacency,
        x=features,
        y=labels,
        train_mask=_mask(train_mask),
        val_mask=_mask(val_mask),
        test_mask=_mask(test_mask),
        num_classes=classes,
        name=name,
        original_ids=original_ids,
        class_names=None if class_names is None else tuple(class_names),
        meta=dict(meta or {}),
    )
    check_graph(graph)
    return graph


def csr_from_endpoints(
    src: Array,
    dst: Array,
    num_nodes: int,
    weight: Tensor | None = None,
    undirected: bool = False,
    drop_duplicates: bool = False,
) -> CSR:
    """In-edges as CSR, each row in ascending order of source; ends are integers in [0, num_nodes)."""
    if num_nodes > MAX_NODES:
        raise UserError(f"the graph has {num_nodes} vertices, more than the {MAX_NODES} that weft can hold")
    _check_endpoints(src, dst, num_nodes)
    ends = [np.empty(0, np.int32), np.empty(0, np.int32)]
    for k, (there, back) in enumerate(((src, dst), (dst, src))):
        other = back[src != dst] if undirected else back[:0]
        ends[k] = np.concatenate([there, other], dtype=np.int32, casting="unsafe")
    if weight is not None and undirected:
        weight = torch.cat([weight, weight[torch.from_numpy(src != dst)]])
    indptr, indices, order = build_csr(torch.from_numpy(ends[0]), torch.from_numpy(ends[1]), num_nodes, num_nodes)
    if weight is not None:
        weight = weight[order]
    del order
    if drop_duplicates and indices.numel():
        keep = torch.ones(indices.numel(), dtype=torch.bool)
        torch.ne(indices[1:], indices[:-1], out=keep[1:])
        keep[indptr[:-1][indptr[:-1] < indices.numel()]] = True  # a row's first edge has no predecessor
        kept_before = torch.zeros(indices.numel() + 1, dtype=torch.int64)
        torch.cumsum(keep, 0, out=kept_before[1:])
        indptr, indices = kept_before[indptr], indices[keep]
        weight = None if weight is None else weight[keep]
    return CSR(indptr, indices, num_nodes, weight)


def to_undirected(graph: Graph) -> Graph:
    """The same graph with every edge in both directions, each once; of equal edges the first weight counts."""
    adjacency = graph.adjacency
    dst = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), adjacency.degrees().numpy())
    both = csr_from_endpoints(
        adjacency.indices.numpy(),
        dst,
        graph.num_nodes,
        adjacency.weight,
        undirected=True,
        drop_duplicates=True,
    )
    return replace(graph, adjacency=both)


def check_graph(graph: Graph) -> None:
    """Raises a UserError if features, targets or splits do not fit the graph or each other."""
    n = graph.num_nodes
    if n == 0:
        raise UserError(f"graph '{graph.name}' has no vertices: give it edges, or num_nodes")
    if graph.original_ids is not None and graph.original_ids.shape != (n,):
        raise UserError(f"there are {graph.original_ids.shape[0]} ids for {n} vertices: give one per vertex")
    if graph.x is not None:
        if graph.x.shape[0] != n:
            raise UserError(
                f"features have {graph.x.shape[0]} rows, the graph has {n} vertices: give one row per vertex"
            )
        _check_finite(graph.x, "features", graph.original_ids)
    if graph.adjacency.weight is not None:
        _check_finite(graph.adjacency.weight, "edge weights", None)
    if graph.y is not None:
        _check_targets(graph)
    _check_masks(graph)


def check_trainable(graph: Graph, split: int = 0) -> None:
    """Raises a UserError unless this split has a training vertex with a known label."""
    if graph.y is None:
        raise UserError(f"graph '{graph.name}' has no labels: ingest it with --labels")
    if graph.train_mask is None:
        raise UserError(f"graph '{graph.name}' has no training split: ingest it with --split")
    mask = graph.train_mask
    if mask.dim() == 2:
        if not 0 <= split < mask.shape[0]:
            raise UserError(f"graph '{graph.name}' has splits 0..{mask.shape[0] - 1}, not {split}")
        mask = mask[split]
    known = graph.y >= 0 if graph.y.dim() == 1 else (graph.y >= 0).any(1)
    if not bool((mask & known).any()):
        raise UserError(f"graph '{graph.name}' has no training vertex with a known label: mark some vertices 'train'")


def _as_array(value: ArrayLike) -> Array:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)


def _endpoints(src: ArrayLike, dst: ArrayLike | None) -> tuple[Array, Array]:
    first = _as_array(src)
    if dst is None:
        if first.ndim != 2 or first.shape[0] != 2:
            raise UserError(f"edge_index has shape {list(first.shape)}: give [2, E], or src and dst separately")
        first, second = first[0], first[1]
    else:
        second = _as_array(dst)
    if first.ndim != 1 or first.shape != second.shape:
        raise UserError(f"src has shape {list(first.shape)} and dst {list(second.shape)}: give lists of one length")
    if first.size == 0:  # an empty Python list is float64 to numpy
        return first.astype(np.int64), second.astype(np.int64)
    return first, second


def _node_count(
    num_nodes: int | None,
    ids: Array | None,
    x: Tensor | None,
    y: Tensor | None,
    src: Array,
    dst: Array,
) -> int:
    if num_nodes is not None:
        return int(num_nodes)
    for holder in (ids, x, y):
        if holder is not None:
            return int(holder.shape[0])
    if src.dtype.kind not in "iu":
        raise UserError(f"edges hold {src.dtype} ids: pass ids= with the original id of each vertex")
    return int(max(src.max(initial=-1), dst.max(initial=-1))) + 1


def _check_endpoints(src: Array, dst: Array, num_nodes: int) -> None:
    for ends, role in ((src, "source"), (dst, "destination")):
        if ends.dtype.kind not in "iu":
            raise UserError(f"edges hold {ends.dtype} {role}s: vertices are numbered by integers")
        if ends.size and (int(ends.min()) < 0 or int(ends.max()) >= num_nodes):
            at = int(np.flatnonzero((ends < 0) | (ends >= num_nodes))[0])
            raise UserError(
                f"edge {at} ({int(src[at])} -> {int(dst[at])}) points outside the graph: its {role} must be "
                f"in 0..{num_nodes - 1}; mend the edge or give more vertices"
            )


def _features(x: ArrayLike) -> Tensor:
    tensor = x if isinstance(x, Tensor) else torch.from_numpy(_writable(np.asarray(x)))
    if tensor.dim() == 1:
        tensor = tensor[:, None]
    if tensor.dim() != 2:
        raise UserError(f"features have shape {list(tensor.shape)}: give one row per vertex, [N, F]")
    if tensor.is_complex():
        raise UserError("features are complex numbers: give real ones")
    return tensor if tensor.dtype == torch.bfloat16 else tensor.to(torch.float32)


def _writable(array: Array) -> Array:
    """torch shares memory with writable arrays only, and has no string or object type."""
    if array.dtype.kind not in "biuf":
        raise UserError(f"an array of {array.dtype} was given where numbers are needed")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        return array.astype(np.int64)
    if array.dtype.byteorder == ">":
        return array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.writeable else array.copy()


def _targets(y: ArrayLike) -> Tensor:
    array = _as_array(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise UserError(f"labels have shape {list(array.shape)}: give [N], or [N, C] of 0/1 for several labels")
    if array.dtype.kind == "f":  # missing labels come as NaN
        known = np.nan_to_num(array, nan=-1)
        if (known != np.floor(known)).any():
            at = int(np.flatnonzero((known != np.floor(known)).reshape(known.shape[0], -1).any(1))[0])
            raise UserError(f"the label of vertex {at} is {array[at]}: labels are whole numbers")
        array = known.astype(np.int64)
    if array.dtype.kind not in "biu":
        raise UserError(f"labels are {array.dtype}: give whole numbers, with class_names for their names")
    if array.ndim == 1:
        return torch.from_numpy(array.astype(np.int64))
    if array.size and (array.astype(np.int64).min() < -1 or array.max() > 1):
        at = int(np.flatnonzero(((array < -1) | (array > 1)).any(1))[0])
        raise UserError(f"row {at} of the labels has values other than 0, 1 and -1 (unknown)")
    return torch.from_numpy(array.astype(np.int8))


def _classes(y: Tensor | None, num_classes: int | None, class_names: Sequence[str] | None) -> tuple[Tensor | None, int]:
    if num_classes is not None:
        count = int(num_classes)
    elif y is not None and y.dim() == 2:
        count = y.shape[1]
    elif class_names is not None:
        count = len(class_names)
    elif y is not None and y.numel():
        count = int(y.max()) + 1
    else:
        count = 0
    if class_names is not None and len(class_names) != count:
        raise UserError(f"there are {len(class_names)} class names for {count} classes")
    return y, count


def _weights(weight: ArrayLike, num_edges: int) -> Tensor:
    array = _as_array(weight)
    if array.dtype.kind not in "biuf":
        raise UserError(f"edge weights are {array.dtype}: give numbers")
    if array.shape not in ((num_edges,), (num_edges, 1)):
        raise UserError(f"edge weights have shape {list(array.shape)} for {num_edges} edges: give one per edge")
    return torch.from_numpy(array.reshape(-1).astype(np.float32))


def _mask(mask: ArrayLike | None) -> Tensor | None:
    if mask is None:
        return None
    array = _as_array(mask)
    if array.dtype != np.bool_:
        if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
            raise UserError("a split mask holds something other than true and false: give one boolean per vertex")
        array = array.astype(np.bool_)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _check_finite(values: Tensor, what: str, ids: Array | None) -> None:
    """In chunks, so that memory-mapped features are read once and never doubled."""
    step = max(1, VALUES_PER_CHUNK * values.shape[0] // max(1, values.numel()))
    for begin in range(0, values.shape[0], step):
        chunk = values[begin : begin + step]
        if math.isfinite(float(chunk.sum(dtype=torch.float32))):  # NaN and infinity do not vanish in a sum
            continue
        finite = torch.isfinite(chunk)
        if not bool(finite.all()):
            rows = finite if finite.dim() == 1 else finite.all(1)
            row = begin + int(torch.nonzero(~rows)[0])
            named = "" if ids is None else f" (id {ids[row]})"
            raise UserError(
                f"{what} have NaN or infinite values, first in row {row}{named}: replace them before training"
            )


def _check_targets(graph: Graph) -> None:
    assert graph.y is not None
    if graph.y.shape[0] != graph.num_nodes:
        raise UserError(
            f"there are {graph.y.shape[0]} labels for {graph.num_nodes} vertices: give one each (-1: unknown)"
        )
    if graph.y.dim() == 2:
        if graph.y.shape[1] != graph.num_classes:
            raise UserError(f"labels have {graph.y.shape[1]} columns for {graph.num_classes} classes")
        return
    wrong = (graph.y < -1) | (graph.y >= graph.num_classes)
    if bool(wrong.any()):
        row = int(torch.nonzero(wrong)[0])
        named = "" if graph.original_ids is None else f" (id {graph.original_ids[row]})"
        raise UserError(
            f"the label of vertex {row}{named} is {int(graph.y[row])}, outside 0..{graph.num_classes - 1} (-1: unknown)"
        )


def _check_masks(graph: Graph) -> None:
    shapes = set()
    for role in ("train", "val", "test"):
        mask = getattr(graph, f"{role}_mask")
        if mask is None:
            continue
        if mask.dim() not in (1, 2) or mask.shape[-1] != graph.num_nodes:
            raise UserError(
                f"{role}_mask has shape {list(mask.shape)} for {graph.num_nodes} vertices: give [N], or "
                "[S, N] for S splits"
            )
        shapes.add(tuple(mask.shape))
    if len(shapes) > 1:
        raise UserError(f"the split masks have different shapes {sorted(shapes)}: give all the same one")
    if graph.train_mask is not None:
        empty = ~graph.train_mask.reshape(-1, graph.num_nodes).any(1)
        if bool(empty.any()):
            which = "" if graph.train_mask.dim() == 1 else f" {int(torch.nonzero(empty)[0])}"
            raise UserError(f"split{which} has no training vertex: mark some vertices 'train'")
