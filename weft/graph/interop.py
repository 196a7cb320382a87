"""Graphs that lie in memory as objects of other libraries: networkx graphs, scipy matrices, data frames.

None of these libraries is imported with this module: what is handed over brings its own, and scipy takes a while.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from weft.disk import scratch_folder
from weft.errors import UserError, unknown
from weft.graph.assemble import ROLES
from weft.graph.build import from_edges
from weft.graph.convert import as_array
from weft.graph.datasets import open_graph
from weft.graph.files import Array
from weft.graph.foreign import DGL_FEATURES, from_dgl, from_pyg
from weft.graph.graph import Graph
from weft.graph.ingest import ingest_edges
from weft.graph.nodefile import ID_NAMES, LABEL_NAMES, MASK_NAMES, SPLIT_NAMES
from weft.graph.nodefile import ROLES as SPELLINGS

FEATURE_NAMES = (*DGL_FEATURES, "features")


def as_graph(data: Any) -> Graph:
    """A Graph of whatever stands for one: a Graph, a path or name, an object of PyG, DGL or networkx."""
    if isinstance(data, Graph):
        return data
    if isinstance(data, str | Path):
        return open_graph(data)
    made_by = {kind.__module__.partition(".")[0] for kind in type(data).__mro__}
    for package, convert in (("torch_geometric", from_pyg), ("dgl", from_dgl), ("networkx", from_networkx)):
        if package in made_by:
            return convert(data)
    raise UserError(
        f"a {type(data).__module__}.{type(data).__qualname__} is no graph that weft knows: give a weft.Graph, a name, "
        "a path, or a graph of PyG, DGL or networkx (of frames weft.from_pandas makes one, of a matrix weft.from_scipy)"
    )


def from_networkx(
    graph: Any,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    split: str | None = None,
    weight: str | None = None,
    relation: str | None = None,
    name: str = "networkx",
) -> Graph:
    """A Graph from a networkx graph; edges of an undirected one lead both ways.

    >>> import networkx
    >>> club = networkx.karate_club_graph()
    >>> graph = weft.from_networkx(club, label="club")
    >>> graph.num_nodes, graph.num_edges, graph.class_names
    (34, 156, ('Mr. Hi', 'Officer'))

    features: the attribute of vertices, or several whose values stand side by side; unless given x, feat, feature or
    features. label: unless given label, y, class, ...; a vertex without it has an unknown label. split: an attribute
    that says train, val or test; unless given split, or masks (train_mask, ...). weight, relation: attributes of edges;
    weight unless given. Nodes that are neither all integers nor all text get their text as ids.
    """
    nodes, attributes = list(graph.nodes), [graph.nodes[node] for node in graph.nodes]
    place = {node: number for number, node in enumerate(nodes)}
    edges = list(graph.edges(data=True))
    known = {key for held in attributes for key in held}
    label = _pick("vertex", label, LABEL_NAMES, known)
    y, class_names = (None, None) if label is None else _labels([held.get(label) for held in attributes])
    about_edges = {key for _, _, held in edges for key in held}
    weight = _pick("edge", weight, ("weight",), about_edges)
    relation = _pick("edge", relation, (), about_edges)
    converted = from_edges(
        np.array([place[u] for u, _, _ in edges], np.int64),
        np.array([place[v] for _, v, _ in edges], np.int64),
        num_nodes=len(nodes),
        x=_features(nodes, attributes, features, known),
        y=y,
        weight=None if weight is None else [held.get(weight, 1) for _, _, held in edges],
        relation=None if relation is None else [_of_edge(u, v, held, relation) for u, v, held in edges],
        class_names=class_names,
        undirected=not graph.is_directed(),
        **_splits(attributes, _pick("vertex", split, SPLIT_NAMES, known), known),
        name=name,
        meta={"source": "networkx"},
    )
    return replace(converted, original_ids=_ids(nodes))


def from_scipy(adjacency: Any, x: Any = None, weighted: bool | None = None, **options: Any) -> Graph:
    """A Graph from a scipy sparse matrix [N, N] (or a dense array): an entry (u, v) is an edge u -> v.

    >>> import scipy.sparse
    >>> ring = scipy.sparse.csr_array(([1, 1, 1], ([0, 1, 2], [1, 2, 0])), shape=(3, 3))
    >>> weft.from_scipy(ring, x=[[0.0], [1.0], [2.0]], y=[0, 1, 1], undirected=True).num_edges
    6

    x: features [N, F], dense or a sparse matrix too. weighted: whether entries are edge weights; None: where they are
    not all 1. Further options are those of `weft.from_edges`.
    """
    import scipy.sparse

    matrix = scipy.sparse.coo_array(adjacency)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise UserError(f"the adjacency matrix has shape {list(matrix.shape)}: give one that is square, [N, N]")
    src, dst = (np.asarray(ends, np.int64) for ends in matrix.coords)
    if weighted is None:
        weighted = bool((matrix.data != 1).any())
    given = {"num_nodes": matrix.shape[0], "name": "scipy", "meta": {"source": "scipy"}}
    if weighted:
        given["weight"] = matrix.data
    if x is not None:
        given["x"] = x.toarray() if scipy.sparse.issparse(x) else x
    return from_edges(src, dst, **{**given, **options})


def from_pandas(edges: Any, nodes: Any = None, **options: Any) -> Graph:
    """A Graph from a data frame of edges and one of vertices, read as `weft.ingest` reads such files.

    >>> import pandas
    >>> edges = pandas.DataFrame({"from": ["ann", "bob"], "to": ["bob", "eve"]})
    >>> nodes = pandas.DataFrame({"id": ["ann", "bob", "eve"], "age": [31, 40, 25], "label": ["a", "b", "a"]})
    >>> graph = weft.from_pandas(edges, nodes, undirected=True)
    >>> graph.num_nodes, graph.num_features, graph.class_names, graph.original_ids.tolist()
    (3, 1, ('a', 'b'), ['ann', 'bob', 'eve'])

    Options are those of `weft.ingest`, such as src_column, dst_column, id_column, label_columns, split and undirected.
    The index of `nodes` is its ids where it has a name, or where no column holds ids. Frames of polars and tables of
    pyarrow do as well.
    """
    with frames_as_files(edges, nodes, options.get("id_column")) as (edge_file, node_file):
        graph = ingest_edges(edge_file, features=node_file, **{"name": "pandas", **options})
    return replace(graph, meta={**graph.meta, "source": "pandas"})


@contextmanager
def frames_as_files(edges: Any, nodes: Any, id_column: str | None) -> Iterator[tuple[Path, Path | None]]:
    """The frames as files for the block, so that tables are read in one way; mistakes name frames and arguments.

    What is a path already stays one.
    """
    with scratch_folder("frames") as folder:
        edge_file, node_file = folder / "edges.parquet", folder / "nodes.parquet"
        if isinstance(edges, str | Path):
            edge_file = Path(edges)
        else:
            pq.write_table(_table(edges, "the edge frame"), edge_file, compression="none")
        if isinstance(nodes, str | Path):
            node_file = Path(nodes)
        elif nodes is not None:
            pq.write_table(_table(_with_index(nodes, id_column), "the node frame"), node_file, compression="none")
        try:
            yield edge_file, None if nodes is None else node_file
        except UserError as error:
            if edge_file.parent != folder and node_file.parent != folder:
                raise
            said = str(error)
            for name, frame in (("edges", "the edge frame"), ("nodes", "the node frame")):
                said = said.replace(str(folder / f"{name}.parquet"), frame)
            as_arguments = re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda found: found[1].replace("-", "_") + "=", said)
            raise UserError(as_arguments) from None


def _table(frame: Any, what: str) -> pa.Table:
    try:
        if hasattr(frame, "reset_index"):
            return pa.Table.from_pandas(frame, preserve_index=False)
        return pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{what} is no table of plain columns ({reason}): give a data frame") from None


def _with_index(nodes: Any, id_column: str | None) -> Any:
    """The frame of vertices with its index as a column, where that holds ids."""
    index = getattr(nodes, "index", None)
    if index is None or not hasattr(nodes, "reset_index"):
        return nodes
    columns = [str(column) for column in nodes.columns]
    if getattr(index, "nlevels", 1) > 1:
        raise UserError("the node frame has an index of several levels: give it a column of ids instead")
    if index.name is not None:
        return nodes if str(index.name) in columns else nodes.reset_index()
    has_ids = id_column is not None or any(column.lower().strip() in ID_NAMES for column in columns)
    counts = len(index) == 0 or bool((np.asarray(index) == np.arange(len(index))).all())
    return nodes if has_ids or counts else nodes.reset_index(names="id")


def _pick(of: str, asked: str | None, usual: Sequence[str], known: set[str]) -> str | None:
    """The attribute of a role: the one asked for, else the first of the usual names that is there."""
    if asked is not None and asked not in known:
        raise unknown(f"{of} attribute", asked, (key for key in known if isinstance(key, str)))
    return asked if asked is not None else next((name for name in usual if name in known), None)


def _ids(nodes: Sequence[Any]) -> Array | None:
    """Original ids; None where nodes are 0, 1, 2, ... already."""
    if all(isinstance(node, int | np.integer) and not isinstance(node, bool) for node in nodes):
        ids = np.array(nodes, np.int64)
        return None if np.array_equal(ids, np.arange(len(nodes))) else ids
    texts = np.array([str(node) for node in nodes])
    if len(set(texts.tolist())) < len(nodes):
        seen: dict[str, Any] = {}
        first, second = next((seen[str(node)], node) for node in nodes if seen.setdefault(str(node), node) != node)
        raise UserError(f"the nodes {first!r} and {second!r} have the same text: relabel one of them")
    return texts


def _features(
    nodes: Sequence[Any], attributes: Sequence[Mapping[str, Any]], asked: str | Sequence[str] | None, known: set[str]
) -> Array | None:
    """The values of attributes side by side, [N, F]."""
    if asked is None:
        usual = _pick("vertex", None, FEATURE_NAMES, known)
        asked = [] if usual is None else [usual]
    columns = []
    for name in [asked] if isinstance(asked, str) else asked:
        _pick("vertex", name, (), known)
        without = next((node for node, held in zip(nodes, attributes, strict=True) if held.get(name) is None), None)
        if without is not None:
            raise UserError(f"vertex {without!r} has no '{name}': give every vertex its features")
        try:
            values = np.array([as_array(held[name]) for held in attributes], np.float32)
        except (TypeError, ValueError):
            raise UserError(f"'{name}' is not the same number of numbers for every vertex: features must be") from None
        columns.append(values.reshape(len(nodes), -1))
    return np.concatenate(columns, axis=1) if columns else None


def _labels(values: Sequence[Any]) -> tuple[Array, list[str] | None]:
    """Labels as numbers, -1 or NaN where there is none, and the names of classes where labels are text."""
    if any(isinstance(value, str) for value in values):
        names = sorted({str(value) for value in values if value is not None})
        number = {name: position for position, name in enumerate(names)}
        return np.array([-1 if value is None else number[str(value)] for value in values], np.int64), names
    given = [as_array(value) for value in values if value is not None]
    shape = given[0].shape if given else ()
    unknown_label = np.full(shape, np.nan if any(label.dtype.kind == "f" for label in given) else -1)
    return np.array([unknown_label if value is None else as_array(value) for value in values]), None


def _splits(attributes: Sequence[Mapping[str, Any]], split: str | None, known: set[str]) -> dict[str, Any]:
    """Masks by argument name."""
    if split is None:
        names = [name for name in MASK_NAMES if name in known]
        return {name: np.array([bool(held.get(name, False)) for held in attributes]) for name in names}
    said = [str(held.get(split) or "").strip().lower() for held in attributes]
    strange = next((text for text in said if text not in SPELLINGS), None)
    if strange is not None:
        raise unknown("split", strange, ROLES)
    return {f"{role}_mask": np.array([SPELLINGS[text] == role for text in said]) for role in ROLES}


def _of_edge(u: Any, v: Any, held: Mapping[str, Any], relation: str) -> Any:
    if relation not in held:
        raise UserError(f"the edge {u!r} -> {v!r} has no '{relation}': give every edge one")
    return held[relation]
