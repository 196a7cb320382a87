"""What must hold of a graph that a user gives, before anything is made of it."""

import math

import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.relations import check_count
from weft.graph.splits import known
from weft.graph.types import GraphTypes, find_mistake
from weft.graph.vertexdata import TYPE, VERTEX_DATA, block_type, check_column_name, vertex_array

VALUES_PER_CHUNK = 1 << 22


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
        check_finite(graph.x, "features", graph.original_ids)
    if graph.adjacency.weight is not None:
        check_finite(graph.adjacency.weight, "edge weights", None)
    _check_times(graph)
    _check_relations(graph)
    if graph.adjacency.features is not None:
        check_edge_features(graph.adjacency.features, graph.num_edges)
    if graph.y is not None:
        _check_labels(graph)
    _check_masks(graph)
    if graph.types is not None:
        _check_types(graph, graph.types)
    _check_further_columns(graph)


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
    if not bool((mask & known(graph.y)).any()):
        raise UserError(f"graph '{graph.name}' has no training vertex with a known label: mark some vertices 'train'")


def check_finite(values: Tensor, what: str, ids: Array | None = None) -> None:
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


def check_targets(y: Tensor, ids: Array | None = None) -> None:
    """Numbers that are to be predicted: NaN says that one is not known, infinity says nothing."""
    infinite = y.isinf().reshape(len(y), -1).any(1)
    if bool(infinite.any()):
        row = int(torch.nonzero(infinite)[0])
        named = "" if ids is None else f" (id {ids[row]})"
        raise UserError(f"the label of vertex {row}{named} is infinite: give a number, or NaN where it is not known")


def check_edge_features(features: Tensor, num_edges: int) -> None:
    if features.dim() != 2 or features.shape[0] != num_edges or features.shape[1] == 0:
        raise UserError(
            f"edge features have shape {list(features.shape)} for {num_edges} edges: give one row per edge, [E, F]"
        )
    check_finite(features, "edge features", None)


def _check_times(graph: Graph) -> None:
    of_edges, of_vertices = graph.adjacency.time, graph.time
    if of_edges is not None:
        check_finite(of_edges, "the times of edges", None)
    if of_vertices is not None and of_vertices.shape != (graph.num_nodes,):
        raise UserError(
            f"there are times of shape {list(of_vertices.shape)} for {graph.num_nodes} vertices: give one each"
        )


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


def _check_labels(graph: Graph) -> None:
    assert graph.y is not None
    if graph.y.shape[0] != graph.num_nodes:
        raise UserError(
            f"there are {graph.y.shape[0]} labels for {graph.num_nodes} vertices: give one each (-1: unknown)"
        )
    if graph.num_targets:
        check_targets(graph.y, graph.original_ids)
        if graph.num_classes:
            raise UserError(
                f"the labels are numbers, and num_classes is {graph.num_classes}: leave that out, or give "
                "label_kind='classes'"
            )
        return
    if graph.y.dim() == 2:
        if graph.y.shape[1] != graph.num_classes:
            raise UserError(f"labels have {graph.y.shape[1]} columns for {graph.num_classes} classes")
        return
    wrong = (graph.y < -1) | (graph.y >= graph.num_classes)
    if bool(wrong.any()):
        row = int(torch.nonzero(wrong)[0])
        named = "" if graph.original_ids is None else f" (id {graph.original_ids[row]})"
        raise UserError(
            f"the label of vertex {row}{named} is {int(graph.y[row])}, outside 0..{graph.num_classes - 1} (-1: "
            "unknown); give numbers that are to be predicted with label_kind='numbers' (--label-kind numbers)"
        )


def _check_masks(graph: Graph) -> None:
    shapes = set()
    for role, mask in graph.masks.items():
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


def _check_types(graph: Graph, types: GraphTypes) -> None:
    """Refuses types that do not make up the graph's vertices, and features that are not theirs."""
    mistake = find_mistake(types)
    if mistake is None and types.num_nodes != graph.num_nodes:
        mistake = f"they have {types.num_nodes} vertices"
    if mistake is None and len(types.ends) != graph.num_relations:
        mistake = f"they have {len(types.ends)} relations"
    if mistake is None and (graph.vertex_type is None or not torch.equal(graph.vertex_type, types.column())):
        mistake = "the vertices do not lie one type after another"
    if mistake is not None:
        raise UserError(
            f"graph '{graph.name}' of {graph.num_nodes} vertices has types that are not its own ({mistake})"
        )
    if graph.x is not None:
        raise UserError(f"graph '{graph.name}' has types of vertices and features of all: give each type its own")
    for number, kind in enumerate(types.vertices):
        x, shape = graph.features_of(number), (kind.count, kind.num_features)
        if x is None and not kind.num_features:
            continue
        if x is None or tuple(x.shape) != shape:
            found = "none" if x is None else str(list(x.shape))
            raise UserError(f"type '{kind.name}' has features {found}, not {list(shape)}: give one row per vertex")
        ids = None if graph.original_ids is None else graph.original_ids[types.span(number)]
        check_finite(x, f"features of '{kind.name}'", ids)


def _check_further_columns(graph: Graph) -> None:
    for name, rows in graph.vertex_data.items():
        check_column_name(name)
        if name in VERTEX_DATA or name == TYPE or block_type(name) is not None:
            continue  # checked above
        if not vertex_array(name).fits(rows, graph.num_nodes):
            raise UserError(
                f"vertex data '{name}' has shape {list(rows.shape)} for {graph.num_nodes} vertices: give one row per "
                "vertex"
            )
        if rows.is_complex():
            raise UserError(f"vertex data '{name}' are complex numbers: give real ones")
        if rows.is_floating_point():
            check_finite(rows, f"vertex data '{name}'", graph.original_ids)
