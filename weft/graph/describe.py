"""What there is to know about a graph before training on it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.graph.graph import Graph
from weft.graph.preparation import Preparation
from weft.graph.splits import known
from weft.graph.types import VertexType
from weft.graph.vertexdata import is_features

EDGES_PER_CHUNK = 1 << 24
VERTICES_LOOKED_AT = 1 << 12


@dataclass(frozen=True)
class Description:
    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    feature_dtype: str | None
    num_classes: int
    multi_label: bool
    num_targets: int  # numbers that are to be predicted of each vertex; 0: labels are classes
    weighted: bool
    relations: tuple[tuple[str, int], ...]  # name (or number) and edges of each relation; empty: one kind of edges
    types: tuple[VertexType, ...]  # of vertices; empty: they are all of one type
    target: str | None  # the type that has labels, of several
    num_edge_features: int
    undirected: bool
    self_loops: int
    duplicate_edges: int
    isolated: int  # vertices without in-edges
    degree_mean: float
    degree_median: int
    degree_p90: int
    degree_p99: int
    degree_max: int
    homophily: float | None  # share of edges between vertices of the same known label
    labelled: int
    splits: tuple[dict[str, int], ...]  # per split: train, val, test, and overlap (vertices in more than one)
    structure_bytes: int
    feature_bytes: int
    fingerprint: str
    feature_moments: tuple[float, float, float] | None  # mean, spread, largest size, of some thousand vertices
    preparation: Preparation | None  # of the features, where a file was ingested
    edge_times: tuple[float, float] | None = None  # the first and the last
    vertex_times: tuple[float, float, int] | None = None  # likewise, and of how many vertices they are known
    dates: tuple[str, ...] = ()  # of what the times are dates: "edges", "vertices"


def describe(graph: Graph) -> Description:
    """Counts, degrees, homophily and split sizes; reads every edge once or twice, and some features."""
    adjacency = graph.adjacency
    degree = adjacency.degrees()
    ordered = torch.sort(degree).values

    def quantile(q: float) -> int:
        return int(ordered[min(int(q * (ordered.numel() - 1) + 0.5), ordered.numel() - 1)])

    same, comparable, loops, duplicates = _edge_counts(graph)
    labelled = 0
    if graph.y is not None:
        labelled = int(known(graph.y).sum())
    tensors = (adjacency.indptr, adjacency.indices, *adjacency.edge_data.values())
    return Description(
        name=graph.name,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_features=graph.num_features,
        feature_dtype=None if graph.x is None else str(graph.x.dtype).removeprefix("torch."),
        num_classes=graph.num_classes,
        multi_label=graph.multi_label,
        num_targets=graph.num_targets,
        weighted=adjacency.weight is not None,
        relations=_relation_sizes(graph),
        types=() if graph.types is None else graph.types.vertices,
        target=None if graph.types is None or graph.types.target is None else graph.types.names[graph.types.target],
        num_edge_features=graph.num_edge_features,
        undirected=is_undirected(graph),
        self_loops=loops,
        duplicate_edges=duplicates,
        isolated=int((degree == 0).sum()),
        degree_mean=graph.num_edges / graph.num_nodes,
        degree_median=quantile(0.5),
        degree_p90=quantile(0.9),
        degree_p99=quantile(0.99),
        degree_max=int(ordered[-1]),
        homophily=same / comparable if comparable else None,
        labelled=labelled,
        splits=_split_sizes(graph),
        structure_bytes=sum(tensor.nbytes for tensor in tensors),
        feature_bytes=sum(rows.nbytes for name, rows in graph.vertex_data.items() if is_features(name)),
        fingerprint=graph.fingerprint,
        feature_moments=_feature_moments(graph),
        preparation=graph.preparation,
        edge_times=_span(adjacency.time),
        vertex_times=_known_span(graph),
        dates=graph.dates,
    )


def _span(times: Tensor | None) -> tuple[float, float] | None:
    return None if times is None or not times.numel() else (float(times.min()), float(times.max()))


def _known_span(graph: Graph) -> tuple[float, float, int] | None:
    times = None if graph.time is None else graph.time[~graph.time.isnan()]
    span = _span(times)
    return None if span is None or times is None else (*span, times.numel())


def _feature_moments(graph: Graph) -> tuple[float, float, float] | None:
    """Mean, spread and largest size of the features of vertices that lie evenly among all."""
    if graph.x is None or not graph.x.numel():
        return None
    values = graph.x[:: -(-graph.num_nodes // VERTICES_LOOKED_AT)].double()
    return float(values.mean()), float(values.std(correction=0)), float(values.abs().max())


def is_undirected(graph: Graph) -> bool:
    """Whether every edge has its reverse as often, by comparing order-free sums of hashes of both directions."""
    forward = backward = 0
    for row, column, _ in _chunks(graph):
        forward += int(_mix(row, column).sum())
        backward += int(_mix(column, row).sum())
    return (forward - backward) % 2**64 == 0


def _mix(a: Tensor, b: Tensor) -> Tensor:
    value = a * -7046029254386353131 + b * -4417276706812531889 + 1609587929392839161
    value = (value ^ (value >> 29)) * -4658895280553007687
    return value ^ (value >> 32)


def _chunks(graph: Graph) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Destination, source and relation of every edge, whole rows at a time."""
    indptr, indices, relation = graph.adjacency.indptr, graph.adjacency.indices, graph.adjacency.relation
    begin = 0
    while begin < graph.num_nodes:
        limit = indptr[begin] + EDGES_PER_CHUNK
        end = max(int(torch.searchsorted(indptr, limit, right=True)) - 1, begin + 1)
        end = min(end, graph.num_nodes)
        degree = indptr[begin + 1 : end + 1] - indptr[begin:end]
        row = torch.repeat_interleave(torch.arange(begin, end), degree)
        edges = slice(int(indptr[begin]), int(indptr[end]))
        yield row, indices[edges].long(), None if relation is None else relation[edges]
        begin = end


def _edge_counts(graph: Graph) -> tuple[int, int, int, int]:
    same = comparable = loops = duplicates = 0
    labels = graph.y if graph.y is not None and graph.y.dim() == 1 and not graph.num_targets else None
    for row, column, relation in _chunks(graph):
        loops += int((row == column).sum())
        repeats = (row[1:] == row[:-1]) & (column[1:] == column[:-1])
        if relation is not None:
            repeats &= relation[1:] == relation[:-1]
        duplicates += int(repeats.sum())
        if labels is not None:
            first, second = labels[row], labels[column]
            both = (first >= 0) & (second >= 0)
            same += int(((first == second) & both).sum())
            comparable += int(both.sum())
    return same, comparable, loops, duplicates


def _relation_sizes(graph: Graph) -> tuple[tuple[str, int], ...]:
    if graph.adjacency.relation is None:
        return ()
    names = graph.relation_names or tuple(str(number) for number in range(graph.num_relations))
    counts = torch.bincount(graph.adjacency.relation.int(), minlength=graph.num_relations)
    return tuple(zip(names, counts.tolist(), strict=True))


def _split_sizes(graph: Graph) -> tuple[dict[str, int], ...]:
    present = {split: mask.reshape(-1, graph.num_nodes) for split, mask in graph.masks.items()}
    if not present:
        return ()
    count = next(iter(present.values())).shape[0]
    sizes = []
    for split in range(count):
        parts = {role: mask[split] for role, mask in present.items()}
        overlap = int((torch.stack(list(parts.values())).sum(0) > 1).sum())
        sizes.append({**{role: int(part.sum()) for role, part in parts.items()}, "overlap": overlap})
    return tuple(sizes)
