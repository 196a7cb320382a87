"""Ids that edges or labels name and that the features file has no row for: refused, added with zeros, or dropped."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from weft.errors import UserError, unknown
from weft.graph.edgelist import EdgeList
from weft.graph.files import Array
from weft.graph.ids import IdMap
from weft.graph.nodefile import NodeFile

MissingRows = Literal["error", "zero", "drop"]
CHOICES: tuple[MissingRows, ...] = ("error", "zero", "drop")


@dataclass(frozen=True)
class Settled:
    """Edges and files whose ids are all among the vertices, but where they are to be refused."""

    edges: EdgeList
    vertices: IdMap
    files: tuple[NodeFile, ...]
    notes: tuple[str, ...] = ()


def settle(edges: EdgeList, vertices: IdMap, files: Sequence[NodeFile], policy: MissingRows) -> Settled:
    """vertices: those of the features file. files: others about vertices."""
    if policy not in CHOICES:
        raise unknown("choice for missing rows", policy, CHOICES)
    if policy == "error":
        return Settled(edges, vertices, tuple(files))
    return _add(edges, vertices, files) if policy == "zero" else _drop(edges, vertices, files)


def _add(edges: EdgeList, vertices: IdMap, files: Sequence[NodeFile]) -> Settled:
    """Further vertices after those that have rows, their ids ascending."""
    ends = np.concatenate([edges.src, edges.dst]) if edges.names is None else edges.names
    lost = [ends[vertices.find_or_minus_one(ends, "edge") < 0]]
    lost += [file.ids[vertices.find_or_minus_one(file.ids, "row") < 0] for file in files if file.ids is not None]
    kind = vertices.ids.dtype.kind
    added = np.unique(np.concatenate([ids.astype(np.str_ if kind == "U" else np.int64) for ids in lost]))
    if not added.size:
        return Settled(edges, vertices, tuple(files))
    if vertices.dense:  # rows are numbered: so are the vertices, those between included
        if int(added[0]) < 0:
            raise UserError(f"'{added[0]}' is not among {vertices.where}, whose rows are numbered from 0: mend that id")
        added = np.arange(vertices.ids.size, int(added[-1]) + 1)
    note = f"{_count(added.size, 'vertex', 'vertices')} without a row among {vertices.where}: their features are zeros"
    return Settled(edges, IdMap(np.concatenate([vertices.ids, added]), vertices.where), tuple(files), (note,))


def _drop(edges: EdgeList, vertices: IdMap, files: Sequence[NodeFile]) -> Settled:
    """Without the edges and rows that name such ids."""
    known = _have_vertices(edges, vertices)
    notes = []
    if not known.all():
        notes.append(f"{_count(int((~known).sum()), 'edge', 'edges')} left out: an end is not among {vertices.where}")
    kept_files = []
    for file in files:
        kept, more = without_unknown(file, vertices)
        kept_files.append(kept)
        notes += more
    return Settled(_select(edges, np.flatnonzero(known)), vertices, tuple(kept_files), tuple(notes))


def without_unknown(file: NodeFile, vertices: IdMap) -> tuple[NodeFile, tuple[str, ...]]:
    """The file's rows about vertices, with a note where there are others."""
    if file.ids is None:
        return file, ()
    found = vertices.find_or_minus_one(file.ids, "row") >= 0
    if found.all():
        return file, ()
    lost = _count(int((~found).sum()), "row", "rows")
    return file.keep(np.flatnonzero(found)), (f"{lost} of {file.path} left out: not among {vertices.where}",)


def _have_vertices(edges: EdgeList, vertices: IdMap) -> Array:
    """Whether both ends of each edge are vertices."""
    if edges.names is None:
        found = [vertices.find_or_minus_one(ends, "edge") >= 0 for ends in (edges.src, edges.dst)]
    else:
        known = vertices.find_or_minus_one(edges.names, "edge") >= 0
        found = [known[edges.src], known[edges.dst]]
    return np.asarray(found[0] & found[1])


def _select(edges: EdgeList, rows: Array) -> EdgeList:
    def pick(values: Array | None) -> Array | None:
        return None if values is None else values[rows]

    return replace(
        edges,
        src=edges.src[rows],
        dst=edges.dst[rows],
        weight=pick(edges.weight),
        relation=pick(edges.relation),
        features=pick(edges.features),
        time=pick(edges.time),
    )


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
