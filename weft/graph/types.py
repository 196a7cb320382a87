"""Types of vertices: users, items, and what else a graph may have, each with columns of its own.

All vertices share one space of numbers. Those of a type are consecutive in it, one type after another, so that the
type of a vertex follows from its global id. Rows of features, whose width differs from type to type, lie in a block for
each type, with a row for every vertex of that type in the order of the vertices: nothing is padded.
"""

from functools import cached_property
from itertools import accumulate

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from weft.errors import UserError, unknown
from weft.graph.preparation.schema import Preparation

MAX_TYPES = 2**15 - 1  # the column of types is int16


class VertexType(BaseModel):
    """One type of vertices."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    count: int = Field(ge=0)
    num_features: int = Field(0, ge=0)  # 0: a row is learned for each vertex
    id_column: str | None = None  # what the user's own files call ids
    preparation: Preparation | None = None  # how the features came out of a file; None: nobody knows


class GraphTypes(BaseModel):
    """The types of a graph's vertices, in the order in which they lie, and between which of them its relations lead."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    vertices: tuple[VertexType, ...]
    ends: tuple[tuple[int, int], ...]  # of each relation: the type of its sources, and that of its destinations
    target: int | None = None  # the type that has labels
    reverses: tuple[tuple[int, int], ...] = ()  # relations whose edges are those of another, run backwards

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in self.vertices)

    @property
    def widths(self) -> tuple[int, ...]:
        """Features of each type; 0: its rows are learned."""
        return tuple(kind.num_features for kind in self.vertices)

    @property
    def learned_columns(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Of each type those of its features that hold numbers of values, as `Preparation.learned` says."""
        return tuple(() if kind.preparation is None else kind.preparation.learned for kind in self.vertices)

    @property
    def learned(self) -> bool:
        """Whether rows are learned for the vertices of any type."""
        return any(kind.count and not kind.num_features for kind in self.vertices)

    @property
    def num_nodes(self) -> int:
        return sum(kind.count for kind in self.vertices)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The global id of each type's first vertex, and the number of vertices."""
        return tuple(accumulate((kind.count for kind in self.vertices), initial=0))

    def of(self, ids: Tensor) -> Tensor:
        """The type of each vertex, by global id, int64."""
        ends = torch.tensor(self.starts[1:], device=ids.device)
        return torch.searchsorted(ends, ids, right=True)

    def number(self, name: str) -> int:
        if name not in self.names:
            raise unknown("type of vertices", name, self.names)
        return self.names.index(name)

    def span(self, kind: int) -> slice:
        """The global ids of a type's vertices."""
        return slice(self.starts[kind], self.starts[kind + 1])

    def with_reverses(self) -> "GraphTypes":
        """Of a graph whose edges also run backwards: the reverse of relation r is relation r + their number."""
        count = len(self.ends)
        backwards = tuple((destination, source) for source, destination in self.ends)
        pairs = tuple((relation, relation + count) for relation in range(count))
        return self.model_copy(update={"ends": self.ends + backwards, "reverses": self.reverses + pairs})

    def column(self) -> Tensor:
        """The type of every vertex, int16 [N]."""
        counts = torch.tensor([kind.count for kind in self.vertices])
        return torch.arange(len(self.vertices), dtype=torch.int16).repeat_interleave(counts)


def name_relation(source: str, name: str, destination: str) -> str:
    """What a graph calls the edges of one name between two types."""
    return f"{source} {name} {destination}"


def short_name(types: GraphTypes, relation: int, full: str) -> str:
    """The name of a relation without those of the types between which it leads."""
    source, destination = (types.names[end] for end in types.ends[relation])
    begin, end = f"{source} ", f" {destination}"
    fits = full.startswith(begin) and full.endswith(end) and len(full) > len(begin) + len(end)
    return full[len(begin) : -len(end)] if fits else full


def parse_types(described: object, where: str, advice: str) -> GraphTypes | None:
    """Types as a manifest describes them; None: the graph's vertices are all alike."""
    if described is None:
        return None
    try:
        types = GraphTypes.model_validate(described)
    except ValidationError:
        raise UserError(f"{where} describes types of vertices that cannot be: {advice}") from None
    mistake = find_mistake(types)
    if mistake:
        raise UserError(f"{where} describes types of vertices that cannot be ({mistake}): {advice}")
    return types


def find_mistake(types: GraphTypes) -> str | None:
    """What is wrong with types; None: nothing."""
    count = len(types.vertices)
    if not 0 < count <= MAX_TYPES:
        return f"there are {count} types"
    if len(set(types.names)) < count:
        return "two types have one name"
    if any(not 0 <= end < count for ends in types.ends for end in ends):
        return "a relation leads between types that are not there"
    if any(not 0 <= number < len(types.ends) for pair in types.reverses for number in pair):
        return "a relation that is not there is the reverse of another"
    if types.target is not None and not 0 <= types.target < count:
        return "the target is none of the types"
    return None
