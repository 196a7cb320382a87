"""The description of a graph of several types: graph.yaml, which names a table for each type and each relation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from weft.disk.reading import read_yaml
from weft.errors import UserError, unknown
from weft.graph.assemble import Triple
from weft.graph.convert import LabelKind
from weft.graph.preparation import FeatureChoices

ADVICE = "docs/types.md shows what such a file says"
Columns = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


class TypeTable(BaseModel):
    """The table of one type of vertices. Without a file its vertices are the ids that edges name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str | None = None
    id: str | None = None  # the column of ids; unless given id, node, ...
    label: Columns = ()
    label_kind: LabelKind = "auto"
    split: str | None = None  # random:0.6,0.2@SEED, planetoid@SEED, or time:0.8,0.1
    split_column: str | None = None
    time_column: str | None = None  # at which time each vertex is looked at
    features: Columns = ()  # columns; unless given all others
    ignore: Columns = ()
    categories: Columns = ()
    learned_columns: Columns = ()
    log: Columns = ()
    raw: bool = False

    @property
    def choices(self) -> FeatureChoices:
        return FeatureChoices(
            features=self.features,
            ignored=self.ignore,
            categories=self.categories,
            learned=self.learned_columns,
            logarithms=self.log,
            raw=self.raw,
        )


class RelationTable(BaseModel):
    """The table of one relation: a row for each edge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    source: str  # a type
    destination: str
    file: str
    source_column: str | None = None  # unless given src, source, ...
    destination_column: str | None = None
    weight_column: str | None = None
    time_column: str | None = None  # when each edge came to be
    edge_features: Columns = ()
    reverse: bool | str = False  # whether edges run backwards too, as a relation rev_NAME, or of the name given

    @property
    def triple(self) -> Triple:
        return self.source, self.name, self.destination

    @property
    def reverse_triple(self) -> Triple | None:
        if self.reverse is False:
            return None
        return self.destination, f"rev_{self.name}" if self.reverse is True else self.reverse, self.source


class GraphTables(BaseModel):
    """All of graph.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    target: str | None = None  # the type whose labels are learned; needed where several have labels
    missing_rows: Literal["error", "drop"] = "error"  # of edges that name an id without a row
    types: dict[str, TypeTable] = Field(min_length=1)
    relations: tuple[RelationTable, ...] = Field(min_length=1)

    @property
    def triples(self) -> list[Triple]:
        """All relations, reverses after those that they reverse."""
        return [one for table in self.relations for one in (table.triple, table.reverse_triple) if one is not None]


def read_tables(path: Path) -> GraphTables:
    """The description, validated; files are looked for beside it."""
    described = read_yaml(path, ADVICE)
    if isinstance(described, Mapping) and isinstance(described.get("types"), Mapping):
        types = {kind: {} if table is None else table for kind, table in described["types"].items()}
        described = {**described, "types": types}  # `tag:` without anything is a type, too
    try:
        tables = GraphTables.model_validate(described)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(key) for key in first["loc"])
        said = "there is no such entry" if first["type"] == "extra_forbidden" else first["msg"].lower()
        raise UserError(f"{path} is no description of tables (at '{place}': {said}): {ADVICE}") from None
    _check(path, tables)
    return tables


def _check(path: Path, tables: GraphTables) -> None:
    """Refuses what no single entry shows to be wrong."""
    seen: set[Triple] = set()
    for triple in tables.triples:
        if triple in seen:
            source, name, destination = triple
            raise UserError(
                f"{path} has two relations '{name}' from '{source}' to '{destination}': give each a name of its own"
            )
        seen.add(triple)
        for end in (triple[0], triple[2]):
            if end not in tables.types:
                raise unknown(f"type in relation '{triple[1]}' of {path}:", end, tables.types)
    if tables.target is not None and tables.target not in tables.types:
        raise unknown(f"target in {path}:", tables.target, tables.types)
    for kind, table in tables.types.items():
        if table.file is None and table != TypeTable():
            given = ", ".join(sorted(table.model_fields_set))
            raise UserError(f"type '{kind}' of {path} has no file, so that {given} cannot be given: add `file`")
        if table.split is not None and table.split_column is not None:
            raise UserError(f"type '{kind}' of {path} has split and split_column: give one of them")
    files = [(f"type '{kind}'", table.file) for kind, table in tables.types.items() if table.file is not None]
    files += [(f"relation '{table.name}'", table.file) for table in tables.relations]
    for what, file in files:
        if not (path.parent / file).is_file():
            raise UserError(f"{path.parent / file} does not exist: mend `file` of {what} in {path}")
