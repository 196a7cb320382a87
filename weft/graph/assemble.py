"""One graph of several types of vertices, from what is known of each type and of each relation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError, unknown
from weft.graph.build import from_edges
from weft.graph.check import check_graph
from weft.graph.convert import LabelKind, to_features
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.preparation import Preparation
from weft.graph.times import are_dates, say_which_are_dates, to_times
from weft.graph.types import GraphTypes, VertexType, name_relation
from weft.graph.vertexdata import TYPE, block_name, present

ROLES = ("train", "val", "test")
Triple = tuple[str, str, str]  # the types of sources, the name of the relation, and the type of destinations


class Vertices(NamedTuple):
    """The vertices of one type; what is None, they do not have."""

    num_nodes: int
    x: Any = None
    y: Any = None
    masks: Mapping[str, Any] = {}  # train, val, test
    ids: Array | None = None  # as in the user's own files; None: numbers from 0
    id_column: str | None = None
    preparation: Preparation | None = None
    time: Any = None  # at which each is looked at


class Connections(NamedTuple):
    """The edges of one relation."""

    ends: Any  # sources and destinations, numbered within their types
    weight: Any = None
    features: Any = None
    time: Any = None  # when each came to be


def assemble(
    nodes: Mapping[str, Vertices],
    edges: Mapping[Triple, Connections],
    name: str,
    meta: Mapping[str, Any],
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    label_kind: LabelKind = "auto",
    target: str | None = None,
    reverses: Mapping[Triple, Triple] | None = None,  # which relations run others backwards; None: those called rev_...
) -> Graph:
    """The graph in which the vertices of each type follow those of the type before, and each triple is a relation.

    Vertices of one type alone have features in the way of other graphs, and no types.
    """
    if not edges:
        raise UserError(f"the heterogeneous graph '{name}' has no edges: nothing to train on")
    for triple in edges:
        for end in (triple[0], triple[2]):
            if end not in nodes:
                raise unknown(f"type of vertices in relation '{name_relation(*triple)}',", end, nodes)
    target = _target(nodes, target)
    plan = _types(nodes, edges, target, reverses)
    masks = _masks(nodes, target)
    graph = from_edges(
        _ends(plan, edges, 0),
        _ends(plan, edges, 1),
        num_nodes=plan.num_nodes,
        x=None if len(nodes) > 1 else next(iter(nodes.values())).x,
        y=_labels(nodes, target),
        label_kind=label_kind,
        **_edge_data(edges),
        relation_names=[name_relation(*triple) for triple in edges],
        train_mask=masks.get("train"),
        val_mask=masks.get("val"),
        test_mask=masks.get("test"),
        vertex_time=_vertex_times(nodes),
        num_classes=num_classes,
        class_names=class_names,
        name=name,
        meta=_meta(meta, nodes, edges),
    )
    graph = replace(graph, original_ids=_ids(list(nodes.values())))
    if len(nodes) == 1:
        (only,) = nodes.values()
        named = {} if only.id_column is None else {"id_column": only.id_column}
        return replace(graph, preparation=only.preparation, meta={**graph.meta, **named})
    blocks = {block_name(kind): _x(held) for kind, held in enumerate(nodes.values())}
    columns = present({TYPE: plan.column(), **graph.vertex_data, **blocks})
    graph = replace(graph, vertex_data=columns, types=plan)
    check_graph(graph)
    return graph


def _meta(
    meta: Mapping[str, Any], nodes: Mapping[str, Vertices], edges: Mapping[Triple, Connections]
) -> dict[str, Any]:
    """How many vertices each type has, and of what the times are dates."""
    dated = next((links.time for links in edges.values() if are_dates(links.time)), None)
    looked_at = next((held.time for held in nodes.values() if are_dates(held.time)), None)
    counts = {"node_types": {kind: held.num_nodes for kind, held in nodes.items()}}
    return say_which_are_dates({**meta, **counts}, edges=dated, vertices=looked_at)


def _target(nodes: Mapping[str, Vertices], target: str | None) -> str | None:
    """The type whose labels are learned."""
    labelled = [kind for kind, held in nodes.items() if held.y is not None]
    if target is not None and target not in nodes:
        raise unknown("target type", target, nodes)
    if target is not None and labelled and target not in labelled:
        raise UserError(f"the target type '{target}' has no labels, and {', '.join(labelled)} has: name that one")
    if target is None and len(labelled) > 1:
        raise UserError(
            f"vertices of the types {', '.join(labelled)} have labels: say which type is to be predicted, by `target`"
        )
    return target or next(iter(labelled), None)


def _types(
    nodes: Mapping[str, Vertices],
    edges: Mapping[Triple, Connections],
    target: str | None,
    reverses: Mapping[Triple, Triple] | None,
) -> GraphTypes:
    number = {kind: place for place, kind in enumerate(nodes)}
    for kind in nodes:
        if not kind or kind != kind.strip():
            raise UserError(f"a type of vertices is called '{kind}': give it a name without spaces at its ends")
    vertices = []
    for kind, held in nodes.items():
        x = _x(held)
        if x is not None and len(x) != held.num_nodes:
            raise UserError(f"type '{kind}' has {len(x)} rows of features for {held.num_nodes} vertices: give one each")
        vertices.append(
            VertexType(
                name=kind,
                count=held.num_nodes,
                num_features=0 if x is None else x.shape[1],
                id_column=held.id_column,
                preparation=held.preparation,
            )
        )
    ends = tuple((number[triple[0]], number[triple[2]]) for triple in edges)
    if reverses is None:
        named = {triple: (triple[2], f"rev_{triple[1]}", triple[0]) for triple in edges}
        reverses = {there: back for there, back in named.items() if back in edges}
    place = {triple: relation for relation, triple in enumerate(edges)}
    return GraphTypes(
        vertices=tuple(vertices),
        ends=ends,
        target=None if target is None else number[target],
        reverses=tuple((place[there], place[back]) for there, back in reverses.items()),
    )


def _x(held: Vertices) -> Tensor | None:
    """Features of a type, [N, F]; None where it has no column of them."""
    x = None if held.x is None else to_features(held.x)
    return None if x is None or x.shape[1] == 0 else x


def _ends(types: GraphTypes, edges: Mapping[Triple, Connections], side: int) -> Tensor:
    """Sources (side 0) or destinations of all edges, by global id."""
    found = []
    for (triple, links), kinds in zip(edges.items(), types.ends, strict=True):
        local, count = torch.as_tensor(links.ends[side]), types.vertices[kinds[side]].count
        if local.numel() and (int(local.min()) < 0 or int(local.max()) >= count):
            raise UserError(
                f"the edges of '{name_relation(*triple)}' name vertex {int(local.max())} of type "
                f"'{types.names[kinds[side]]}', which has {count}: number them from 0 within their type"
            )
        found.append(local.long() + types.starts[kinds[side]])
    return torch.cat(found)


def _edge_data(edges: Mapping[Triple, Connections]) -> dict[str, Any]:
    """What edges carry: their relation, and where any relation has them weights and features."""
    counts = {name_relation(*triple): len(links.ends[0]) for triple, links in edges.items()}
    weights = {name_relation(*triple): links.weight for triple, links in edges.items()}
    features = {name_relation(*triple): links.features for triple, links in edges.items()}
    return {
        "relation": torch.arange(len(edges)).repeat_interleave(torch.tensor(list(counts.values()))),
        "weight": joined("weights", weights, counts, missing=1),
        "edge_features": joined("features", features, counts),
        "edge_time": _edge_times(edges, counts),
        "num_relations": len(edges),
    }


def _edge_times(edges: Mapping[Triple, Connections], counts: Mapping[str, int]) -> Tensor | None:
    """When each edge came to be; None: no relation has times."""
    without = [name_relation(*triple) for triple, links in edges.items() if links.time is None and len(links.ends[0])]
    if all(links.time is None for links in edges.values()):
        return None
    if without:
        raise UserError(
            f"edges of the relation '{without[0]}' have no times and those of others have: give them times, too (the "
            "earliest of all for edges that were always there), or leave all times out"
        )
    times = {
        name: None if links.time is None else to_times(links.time, counts[name], f"the times of '{name}'")
        for name, links in zip(counts, edges.values(), strict=True)
    }
    return joined("times", times, counts)


def _vertex_times(nodes: Mapping[str, Vertices]) -> Tensor | None:
    """At which time each vertex is looked at; those of types without times are unknown."""
    sizes = {kind: held.num_nodes for kind, held in nodes.items()}
    times = {
        kind: None if held.time is None else to_times(held.time, held.num_nodes, f"the times of type '{kind}'")
        for kind, held in nodes.items()
    }
    return joined("times", times, sizes, missing=None)


def _labels(nodes: Mapping[str, Vertices], target: str | None) -> Tensor | None:
    """Labels of all vertices; those of other types than the target are unknown."""
    if target is None or nodes[target].y is None:
        return None
    sizes = {kind: held.num_nodes for kind, held in nodes.items()}
    return joined("labels", {target: torch.as_tensor(nodes[target].y)}, sizes, missing=None)


def _masks(nodes: Mapping[str, Vertices], target: str | None) -> dict[str, Tensor]:
    """Masks of all vertices, [N] or [S, N]; without a target, of whichever types have them."""
    sizes = {kind: held.num_nodes for kind, held in nodes.items()}
    found = {}
    for role in ROLES:
        given = {
            kind: torch.as_tensor(held.masks[role])
            for kind, held in nodes.items()
            if held.masks.get(role) is not None and target in (None, kind)
        }
        mask = joined("masks", given, sizes)
        if mask is not None:
            found[role] = mask.T.contiguous() if mask.dim() == 2 else mask
    return found


def joined(what: str, given: Mapping[str, Any], sizes: Mapping[str, int], missing: int | None = 0) -> Tensor | None:
    """The rows of all types, one type after another; types without any get rows of `missing`.

    None: of what says of labels that they are unknown, -1 or, of numbers, NaN.
    """
    held = {kind: torch.as_tensor(rows) for kind, rows in given.items() if rows is not None}
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


def _ids(held: Sequence[Vertices]) -> Array | None:
    """The ids of all vertices, each within its type, text where the ids of any type are; None: numbers from 0."""
    if all(one.ids is None for one in held):
        return None
    each = [np.arange(one.num_nodes) if one.ids is None else np.asarray(one.ids) for one in held]
    if any(ids.dtype.kind not in "iu" for ids in each):
        each = [ids.astype(np.str_) for ids in each]
    return np.concatenate(each)
