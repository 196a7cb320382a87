"""Edges that a user's files name for a run: those held out for validation and testing."""

import hashlib
from pathlib import Path

import torch

from weft.errors import UserError, unknown
from weft.graph.edgelist import EdgeColumns, EdgeList, number_vertices, read_edges
from weft.graph.ids import IdMap
from weft.graph.times import to_times
from weft.graph.types import GraphTypes
from weft.training.held_out import GivenEdges
from weft.training.labelled import find_time_column


def read_given_edges(
    path: Path, ids: IdMap, num_relations: int, names: tuple[str, ...] | None, timed: bool = False
) -> GivenEdges:
    """The edges of a file as global ids; `ids` are the vertices' own, `names` the relations'.

    `timed`: each must have a time.
    """
    edges = read_edges(path, EdgeColumns(time=find_time_column(path)) if timed else EdgeColumns())
    heads, tails, _ = number_vertices(edges, ids, path)
    relations = None
    if edges.relation is not None:
        spelled = edges.relation_names or tuple(str(number) for number in range(int(edges.relation.max()) + 1))
        numbers = torch.tensor([find_relation(name, num_relations, names) for name in spelled])
        relations = numbers[torch.from_numpy(edges.relation).long()]
    return GivenEdges(torch.from_numpy(heads).long(), torch.from_numpy(tails).long(), relations, _times(edges))


def _times(edges: EdgeList) -> torch.Tensor | None:
    return None if edges.time is None else to_times(edges.time, edges.src.size, "the times of edges")


def find_relation(name: str | int, num_relations: int, names: tuple[str, ...] | None) -> int:
    """The number of a relation that is given by its name or its number."""
    if names is not None and str(name) in names:
        return names.index(str(name))
    if str(name).isdecimal() and int(name) < num_relations:
        return int(name)
    if not num_relations:
        raise UserError(f"relation '{name}' is asked for, and the edges of the graph have no relations")
    raise unknown("relation", str(name), names or [str(number) for number in range(num_relations)])


def find_reverses(relations: list[int], names: tuple[str, ...] | None, types: GraphTypes | None = None) -> list[int]:
    """The relations that run the other way beside these, as `weft ingest --undirected` makes and names them."""
    if types is not None:
        found = {there: back for pair in types.reverses for there, back in (pair, pair[::-1])}
        return sorted({found[number] for number in relations if number in found} - set(relations))
    if names is None:
        return []
    mine = {names[number] for number in relations}
    wanted = {f"{name} (reverse)" for name in mine} | {name.removesuffix(" (reverse)") for name in mine}
    return [number for number, name in enumerate(names) if name in wanted and number not in relations]


def digest(given: dict[str, GivenEdges]) -> str:
    """sha256 of the edges of every split."""
    found = hashlib.sha256()
    for split in sorted(given):
        edges = given[split]
        columns = (edges.heads, edges.tails, edges.relations)
        for column in columns if edges.times is None else (*columns, edges.times):
            found.update(split.encode() if column is None else column.contiguous().numpy().tobytes())
    return found.hexdigest()
