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
from weft.graph.relations import Relations, check_count, number_relations
from weft.kernels import build_csr

MAX_NODES = 2**31 - 1  # column indices are int32
VALUES_PER_CHUNK = 1 << 22
NO_RELATIONS = Relations()
ArrayLike = Tensor | Array | Sequence[Any]


def from_edges(
    src: ArrayLike,
    dst: ArrayLike | None = None,
    *,
    x: ArrayLike | None = None,  # [N, F]
    y: ArrayLike | None = None,  # [N] or [N, C]
    weight: ArrayLike | None = None,  # [E]
    relation: ArrayLike | None = None,  # [E] the kind of each edge, as numbers from 0 or as names
    edge_features: ArrayLike | None = None,  # [E, F]
    num_nodes: int | None = None,
    ids: ArrayLike | None = None,  # [N] original ids, integers or strings; src and dst then hold such ids
    train_mask: ArrayLike | None = None,  # [N] or [S, N]
    val_mask: ArrayLike | None = None,
    test_mask: ArrayLike | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    num_relations: int | None = None,
    relation_names: Sequence[str] | None = None,
    undirected: bool = False,
    drop_duplicates: bool = False,
    name: str = "graph",
    meta: dict[str, Any] | None = None,
) -> Graph:
    """A Graph from two arrays of endpoints, or one `edge_index` of shape [2, E] as `src`.

    With `undirected` each edge u -> v is joined by v -> u of the same weight and features (a self-loop stays
    single); where edges have relations, the reverse of relation r is a relation of its own. `drop_duplicates` keeps
    the first of several equal edges; those of different relations differ. Self-loops are kept as they are. Without
    `num_nodes`, N is the length of `ids`, `x` or `y`, else the largest endpoint + 1.
    """
    src_array, dst_array = _endpoints(src, dst)
    original_ids = None if ids is None else _as_array(ids)
    features = None if x is None else _features(x)
    targets = None if y is None else _targets(y)
    count = _node_count(num_nodes, original_ids, features, targets, src_array, dst_array)
    if original_ids is not None:
        src_array, dst_array = map_endpoints(original_ids, src_array, dst_array)
    num_edges = src_array.size
    relations = Relations(total=num_relations or 0)
    if relation is not None:
        relations = number_relations(_as_array(relation), num_edges, num_relations, relation_names)
    adjacency = csr_from_endpoints(
        src_array,
        dst_array,
        count,
        None if weight is None else _weights(weight, num_edges),
        undirected,
        drop_duplicates,
        relations=relations,
        features=None if edge_features is None else _edge_features(edge_features, num_edges),
    )
    if undirected:
        relations = relations.with_reverses()
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
        num_relations=relations.total,
        relation_names=relations.names,
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
    relations: Relations = NO_RELATIONS,
    features: Tensor | None = None,
) -> CSR:
    """In-edges as CSR, each row in ascending order of source, then relation; ends are integers in [0, num_nodes)."""
    if num_nodes > MAX_NODES:
        raise UserError(f"the graph has {num_nodes} vertices, more than the {MAX_NODES} that weft can hold")
    _check_endpoints(src, dst, num_nodes)
    ends = [np.empty(0, np.int32), np.empty(0, np.int32)]
    for k, (there, back) in enumerate(((src, dst), (dst, src))):
        other = back[src != dst] if undirected else back[:0]
        ends[k] = np.concatenate([there, other], dtype=np.int32, casting="unsafe")
    source, destination = (torch.from_numpy(end) for end in ends)
    data = {"weight": weight, "relation": relations.of_edge, "features": features}
    carried = {name: values for name, values in data.items() if values is not None}
    if undirected and carried:
        check_count(2 * relations.total)
        reversible = torch.from_numpy(src != dst)
        for name, values in carried.items():
            back_values = values[reversible]
            carried[name] = torch.cat([values, back_values + relations.total if name == "relation" else back_values])
    if "relation" in carried:  # equal ends keep their order, so they ascend by relation afterwards too
        by_relation = torch.argsort(carried["relation"], stable=True)
        source, destination = source[by_relation], destination[by_relation]
        carried = {name: values[by_relation] for name, values in carried.items()}
    indptr, indices, order = build_csr(source, destination, num_nodes, num_nodes)
    csr = CSR(indptr, indices, num_nodes, **{name: values[order] for name, values in carried.items()})
    del order
    return _without_duplicates(csr) if drop_duplicates and csr.num_edges else csr


def _without_duplicates(csr: CSR) -> CSR:
    """The first of equal edges, which lie one after another."""
    keep = torch.ones(csr.num_edges, dtype=torch.bool)
    torch.ne(csr.indices[1:], csr.indices[:-1], out=keep[1:])
    if csr.relation is not None:
        keep[1:] |= csr.relation[1:] != csr.relation[:-1]
    keep[csr.indptr[:-1][csr.indptr[:-1] < csr.num_edges]] = True  # a row's first edge has no predecessor
    kept_before = torch.zeros(csr.num_edges + 1, dtype=torch.int64)
    torch.cumsum(keep, 0, out=kept_before[1:])
    return csr.pick(keep, kept_before[csr.indptr])


def to_undirected(graph: Graph) -> Graph:
    """The same graph with every edge in both directions, each once; of equal edges the first counts.

    Where edges have relations, those that run backwards are of relations of their own.
    """
    adjacency = graph.adjacency
    dst = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), adjacency.degrees().numpy())
    relations = Relations(adjacency.relation, graph.num_relations, graph.relation_names)
    both = csr_from_endpoints(
        adjacency.indices.numpy(),
        dst,
        graph.num_nodes,
        adjacency.weight,
        undirected=True,
        drop_duplicates=True,
        relations=relations,
        features=adjacency.features,
    )
    relations = relations.with_reverses()
    return replace(graph, adjacency=both, num_relations=relations.total, relation_names=relations.names)


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
    _check_relations(graph)
    if graph.adjacency.features is not None:
        _check_edge_features(graph.adjacency.features, graph.num_edges)
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


def _edge_features(features: ArrayLike, num_edges: int) -> Tensor:
    array = _as_array(features)
    if array.dtype.kind not in "biuf":
        raise UserError(f"edge features are {array.dtype}: give numbers")
    tensor = torch.from_numpy(_writable(array.reshape(-1, 1) if array.ndim == 1 else array)).to(torch.float32)
    _check_edge_features(tensor, num_edges)
    return tensor


def _check_edge_features(features: Tensor, num_edges: int) -> None:
    if features.dim() != 2 or features.shape[0] != num_edges or features.shape[1] == 0:
        raise UserError(
            f"edge features have shape {list(features.shape)} for {num_edges} edges: give one row per edge, [E, F]"
        )
    _check_finite(features, "edge features", None)


def _check_relations(graph: Graph) -> None:
    relation, count = graph.adjacency.relation, graph.num_relations
    if (relation is None) != (count == 0):
        having = "no relations" if relation is None else "relations"
        raise UserError(f"graph '{graph.name}' has num_relations={count}, but its edges have {having}: give both")
    if relation is None:
        return
    check_count(count)
    if relation.shape != (graph.num_edges,) or relation.dtype != torch.int16:
        raise UserError(f"relations are {relation.dtype} {list(relation.shape)}: give int16, one per edge")
    if relation.numel() and (int(relation.min()) < 0 or int(relation.max()) >= count):
        raise UserError(
            f"the edges' relations are {int(relation.min())}..{int(relation.max())}, but there are 0..{count - 1}"
        )
    if graph.relation_names is not None and len(graph.relation_names) != count:
        raise UserError(f"there are {len(graph.relation_names)} relation names for {count} relations")


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
