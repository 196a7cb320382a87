"""A graph of several types from its tables: one for each type of vertices, and one for each relation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from weft.disk.space import refuse_beyond_memory
from weft.errors import UserError
from weft.graph.assemble import Connections, Triple, Vertices, assemble
from weft.graph.build import from_edges
from weft.graph.edgelist import EdgeColumns, EdgeList, read_edges
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.ids import IdMap
from weft.graph.ingest import is_split_spec
from weft.graph.nodefile import NodeFile, read_node_file
from weft.graph.preparation import Preparation, describe_array, fit, prepared_batches
from weft.graph.splits import parse_split
from weft.graph.types import GraphTypes
from weft.graph.typeschema import GraphTables, RelationTable, TypeTable, read_tables

DESCRIPTIONS = (".yaml", ".yml")


def ingest_tables(path: str | Path, name: str | None = None, prepared_as: GraphTypes | None = None) -> Graph:
    """A Graph of several types, as a file such as graph.yaml describes its tables (docs/types.md).

    Ids are those of a type: a user 7 and an item 7 are two vertices. The columns of a type become features as those of
    one table do (docs/tables.md); `prepared_as` are the types of another graph, in whose way they are made instead.
    """
    path = Path(path)
    tables = read_tables(path)
    files = {kind: _read_type(path.parent, kind, table) for kind, table in tables.types.items()}
    lists = [read_relation(path.parent, table) for table in tables.relations]
    ids = {kind: _ids(kind, file, tables, lists) for kind, file in files.items()}
    edges: dict[Triple, Connections] = {}
    notes: dict[str, list[str]] = {kind: [] for kind in files}
    for table, listed in zip(tables.relations, lists, strict=True):
        links = connect(path.parent / table.file, table, listed, ids, tables.missing_rows, notes)
        edges[table.triple] = links
        if table.reverse_triple is not None:
            edges[table.reverse_triple] = links._replace(ends=links.ends[::-1])
    target = _target(path, tables, files)
    nodes, labels = {}, _Labels()
    for kind, file in files.items():
        if kind == target and file is not None:
            labels = _labels(path, kind, tables.types[kind], file)
        as_before = None if prepared_as is None else _same_type(prepared_as, kind)
        chosen = labels if kind == target else _Labels()
        nodes[kind] = _vertices(tables.types[kind], file, ids[kind], chosen, as_before, notes[kind])
    return assemble(
        nodes,
        edges,
        name or tables.name or path.name.partition(".")[0],
        {"source": path.name},
        class_names=labels.class_names,
        label_kind="auto" if target is None else tables.types[target].label_kind,
        target=target,
        reverses={table.triple: back for table in tables.relations if (back := table.reverse_triple) is not None},
    )


def _read_type(folder: Path, kind: str, table: TypeTable) -> NodeFile | None:
    """What is known of a type's vertices; None: only edges know them."""
    if table.file is None:
        return None
    file = read_node_file(
        folder / table.file,
        "features",
        id_column=table.id,
        label_columns=table.label,
        split_column=table.split_column,
        time_column=table.time_column,
        choices=table.choices,
    )
    if table.time_column is not None and file.times is None:
        raise UserError(f"{file.path} has no column '{table.time_column}' with the times of type '{kind}': mend it")
    return file


def read_relation(folder: Path, table: RelationTable) -> EdgeList:
    columns = EdgeColumns(
        table.source_column,
        table.destination_column,
        table.weight_column,
        features=table.edge_features,
        time=table.time_column,
    )
    return read_edges(folder / table.file, columns)


# -- ids -------------------------------------------------------------------------------------------------------------


class _End(NamedTuple):
    """One end of all edges of a table, as ids: distinct ones, and the number of the one that each edge has."""

    ids: Array
    of_edge: Array  # int64 [E]


def _end(listed: EdgeList, side: int) -> _End:
    """Sources (side 0) or destinations."""
    used, of_edge = np.unique((listed.src, listed.dst)[side], return_inverse=True)
    return _End(used if listed.names is None else listed.names[used], of_edge)


def _ids(kind: str, file: NodeFile | None, tables: GraphTables, lists: Sequence[EdgeList]) -> IdMap:
    """The ids of a type's vertices: of its table, else those that edges name, ascending."""
    if file is not None:
        rows = np.arange(file.num_rows) if file.ids is None else file.ids
        return IdMap(rows, f"the ids of type '{kind}' in {file.path}")
    found = [
        _end(listed, side).ids
        for table, listed in zip(tables.relations, lists, strict=True)
        for side, end in enumerate((table.source, table.destination))
        if end == kind
    ]
    if not found:
        raise UserError(f"type '{kind}' has no file and no relation: nothing says which vertices it has")
    if any(ids.dtype.kind not in "iu" for ids in found):
        found = [ids.astype(np.str_) for ids in found]
    return IdMap(np.unique(np.concatenate(found)), f"the ids of type '{kind}'")


def connect(
    path: Path,
    table: RelationTable,
    listed: EdgeList,
    ids: Mapping[str, IdMap],
    missing_rows: str,
    notes: Mapping[str, list[str]],
) -> Connections:
    """Edges between vertices that are numbered within their types."""
    ends, there = [], np.ones(listed.src.size, np.bool_)
    for side, kind in enumerate((table.source, table.destination)):
        end = _end(listed, side)
        vertex = ids[kind].find_or_minus_one(end.ids, f"{('source', 'destination')[side]} of relation '{table.name}'")
        found = vertex[end.of_edge]
        lost = np.flatnonzero(found < 0)
        if lost.size and missing_rows == "error":
            at = int(lost[0])
            raise UserError(
                f"edge {at} of {path} (relation '{table.name}') names '{end.ids[end.of_edge[at]]}', which is not among "
                f"{ids[kind].where}: add that row, remove the edge, or say `missing_rows: drop`"
            )
        if lost.size:
            notes[kind].append(f"{lost.size:,} edges of relation '{table.name}' left out: not among {ids[kind].where}")
        there &= found >= 0
        ends.append(found)
    if not there.any():
        raise UserError(f"no edge of {path} (relation '{table.name}') has both ends among the vertices: mend its ids")
    src, dst = (torch.from_numpy(end[there]) for end in ends)
    weight = None if listed.weight is None else listed.weight[there]
    features, time = (None if rows is None else rows[there] for rows in (listed.features, listed.time))
    return Connections((src, dst), weight, features, time)


# -- labels and features ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Labels:
    """Of the vertices of the target type."""

    y: Array | None = None
    class_names: tuple[str, ...] | None = None
    masks: Mapping[str, Array] = field(default_factory=dict)


def _target(path: Path, tables: GraphTables, files: Mapping[str, NodeFile | None]) -> str | None:
    """The type whose labels are learned."""
    labelled = [kind for kind, file in files.items() if file is not None and file.labels is not None]
    if tables.target is None and len(labelled) > 1:
        raise UserError(
            f"the types {', '.join(labelled)} of {path} have labels: say which is to be predicted, as `target: "
            f"{labelled[0]}`, or name a column that is no label under `features`"
        )
    target = tables.target or next(iter(labelled), None)
    if target is not None and labelled and target not in labelled:
        raise UserError(f"the target '{target}' of {path} has no label column: give it `label`")
    for kind, table in tables.types.items():
        if kind != target and (table.split is not None or table.split_column is not None):
            raise UserError(
                f"type '{kind}' of {path} has a split, and the target is '{target}': give that one the split"
            )
    return target


def _labels(path: Path, kind: str, table: TypeTable, file: NodeFile) -> _Labels:
    """Labels of the target's vertices, and their split."""
    if table.label_kind == "numbers" and file.labels is not None and file.labels.are_names:
        raise UserError(f"the labels of type '{kind}' are names, and numbers are to be predicted: give numbers")
    y = None if file.labels is None else file.labels.y
    class_names = None if file.labels is None else file.labels.class_names
    masks = {} if file.masks is None else dict(file.masks)
    if table.split is not None:
        if not is_split_spec(table.split):
            raise UserError(
                f"split '{table.split}' of type '{kind}' in {path} is not understood: write random:0.6,0.2@SEED, "
                "planetoid@SEED or time:0.8,0.1, or give split_column"
            )
        nothing = np.empty(0, np.int64)
        alone = from_edges(
            nothing,
            nothing,
            num_nodes=file.num_rows,
            y=y,
            label_kind=table.label_kind,
            class_names=class_names,
            vertex_time=file.times,
            name=path.name,
        )
        masks = {role: mask.numpy() for role, mask in parse_split(alone, table.split).masks.items()}
    return _Labels(y, class_names, masks)


def _vertices(
    table: TypeTable,
    file: NodeFile | None,
    ids: IdMap,
    labels: _Labels,
    prepared_as: Preparation | None,
    notes: Sequence[str],
) -> Vertices:
    """A type's vertices with their features."""
    own_ids = None if ids.dense else ids.ids
    if file is None:
        return Vertices(ids.ids.size, ids=own_ids)
    train = labels.masks.get("train")
    training = None if train is None else train if train.ndim == 1 else train[0]
    x, preparation = file.x, None
    if file.table is None and x is not None:
        preparation = describe_array(x, file.path.name, training).with_notes(*notes)
    if file.table is not None:
        preparation = (prepared_as or fit(file.table, table.choices, training, labels.y)).with_notes(*notes)
        x = prepared_rows(file, preparation)
    masks = {role: torch.from_numpy(mask.T.copy() if mask.ndim == 2 else mask) for role, mask in labels.masks.items()}
    return Vertices(file.num_rows, x, _as_tensor(labels.y), masks, own_ids, file.id_name, preparation, file.times)


def prepared_rows(file: NodeFile, preparation: Preparation) -> Array | None:
    """Features of a table, [N, F]; None where no column became one."""
    if not preparation.num_features:
        return None
    assert file.table is not None
    shape = (file.num_rows, preparation.num_features)
    refuse_beyond_memory(4 * shape[0] * shape[1], f"features of {shape[0]} x {shape[1]} numbers")
    x, begin = np.zeros(shape, np.float32), 0
    for rows in prepared_batches(preparation, file.table.table):
        x[begin : begin + len(rows)] = rows
        begin += len(rows)
    return x


def _as_tensor(y: Array | None) -> torch.Tensor | None:
    return None if y is None else torch.from_numpy(np.ascontiguousarray(y))


def _same_type(types: GraphTypes, kind: str) -> Preparation | None:
    return types.vertices[types.number(kind)].preparation
