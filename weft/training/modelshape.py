"""What a run's model was built for, kept in each checkpoint, so that it can be built again without the graph."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.preparation import Preparation
from weft.graph.types import GraphTypes
from weft.graph.vertexdata import Predicted, kind_of_labels
from weft.layers.edge_reads import NO_READS, EdgeReads
from weft.layers.learned_columns import LearnedColumn
from weft.partitioning import Shard
from weft.training.resume import peek

NAMED = 5  # classes or relations that an error names


@dataclass(frozen=True)
class ModelShape:
    """The widths between which a model stands, and what it may read of edges."""

    num_in: int
    num_out: int
    num_relations: int = 0
    num_edge_features: int = 0
    learned_rows: bool = False  # the vertices had no features: the run learned a row for each of them
    several_labels: bool = False  # of what is learned
    num_targets: int = 0  # numbers that are predicted of each vertex or edge; 0: labels are classes
    num_pair_outputs: int = 0  # of the network that judges labelled edges
    num_pair_features: int = 0  # that labelled edges carry
    read_edge_features: int = 0  # of those that edges have, how many the layers read: all or none
    read_edge_weights: bool = False  # by layers that do not always
    learned_columns: tuple[tuple[int, int], ...] = ()  # of the features: position, and how many values it has
    type_widths: tuple[int, ...] = ()  # features of each type of vertices; 0: learned rows
    type_counts: tuple[int, ...] = ()  # vertices of each type
    type_learned_columns: tuple[tuple[tuple[int, int], ...], ...] = ()  # of each type's features, as learned_columns

    @property
    def columns(self) -> tuple[LearnedColumn, ...]:
        return LearnedColumn.all_of(self.learned_columns)

    @property
    def type_columns(self) -> tuple[tuple[LearnedColumn, ...], ...]:
        return tuple(map(LearnedColumn.all_of, self.type_learned_columns))

    @property
    def edge_reads(self) -> EdgeReads:
        return EdgeReads(self.read_edge_features, self.read_edge_weights)

    def learned_ids(self, num_nodes: int) -> Tensor:
        """Of the vertices for which the run learned a row, int64."""
        if not self.type_widths:
            return torch.arange(num_nodes)
        starts = (0, *accumulate(self.type_counts))
        spans = zip(self.type_widths, pairwise(starts), strict=True)
        return torch.cat([torch.arange(*span) for width, span in spans if not width])

    def learned_ids_of(self, ids: Tensor, types: GraphTypes | None) -> Tensor:
        """What the run called these vertices of another graph with the same learned ones, int64."""
        if types is None or not self.type_widths:
            return ids
        starts = torch.tensor((0, *accumulate(self.type_counts)), device=ids.device)
        kinds = types.of(ids)
        return ids - torch.tensor(types.starts, device=ids.device)[kinds] + starts[kinds]

    @property
    def predicted(self) -> Predicted:
        return "numbers" if self.num_targets else "labels" if self.several_labels else "class"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Facts(Protocol):
    """What a Graph and the metadata of a partition say alike."""

    @property
    def num_features(self) -> int: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def num_relations(self) -> int: ...
    @property
    def num_edge_features(self) -> int: ...
    @property
    def class_names(self) -> tuple[str, ...] | None: ...
    @property
    def relation_names(self) -> tuple[str, ...] | None: ...
    @property
    def preparation(self) -> Preparation | None: ...
    @property
    def types(self) -> GraphTypes | None: ...


def shape_for(
    shard: Shard,
    width: int,
    num_out: int,
    y: Tensor | None,
    num_pair_outputs: int = 0,
    num_pair_features: int = 0,
    reads: EdgeReads = NO_READS,
    learned_columns: tuple[tuple[int, int], ...] = (),
) -> ModelShape:
    """The shape of a model that is built for this graph; the same on every worker. `y`: what is learned, if labels."""
    kind = None if y is None else kind_of_labels(y.is_floating_point(), y.dim())
    return ModelShape(
        width,
        num_out,
        shard.num_relations,
        shard.num_edge_features,
        shard.learned is not None,
        kind == "labels",
        (num_pair_outputs or num_out) if kind == "numbers" else 0,
        num_pair_outputs,
        num_pair_features,
        reads.features,
        reads.weight,
        learned_columns,
        () if shard.types is None else shard.types.widths,
        () if shard.types is None else tuple(kind.count for kind in shard.types.vertices),
        () if shard.types is None else shard.types.learned_columns,
    )


def read_shape(checkpoints: Path) -> ModelShape:
    """The shape of the model whose weights lie in a run's checkpoints."""
    newest = peek(checkpoints)
    if newest is None:
        raise UserError(f"{checkpoints} has no checkpoint that can be read: train the run first, with --resume")
    noted = newest.manifest["run"].get("model")
    if not isinstance(noted, Mapping):
        raise UserError(f"{newest.path} is of an older weft, which did not note the model's widths: train again")
    return ModelShape(**noted)


def refuse_unfit(
    shape: ModelShape,
    graph: Facts,
    name: str,
    names: Facts | None,
    num_targets: int,
    of_vertices: bool,
    same_learned: bool = False,
) -> None:
    """Refuses a graph that a trained model cannot be put on.

    names: of the graph that it was trained on, if known. num_targets: how many numbers the graph has as labels.
    of_vertices: whether the model learned labels of vertices. same_learned: whether the vertices for which it learned
    rows are those of the graph.
    """
    if shape.learned_rows and not same_learned:
        raise UserError(
            "the run's graph had no features, so that it learned a row for each of its vertices and has none for those "
            f"of {name}: train on a graph with features"
        )
    _refuse_other_types(shape, graph, name, names)
    for what, here, there in (
        ("features", graph.num_features, 0 if shape.type_widths else shape.num_in),
        ("relations", graph.num_relations, shape.num_relations),
        ("edge features", graph.num_edge_features, shape.num_edge_features),
    ):
        if here != there:
            raise UserError(
                f"{name} has {here} {what} and the run's model was trained on {there}: make it of the same columns, in "
                "the same order"
            )
    learned = () if graph.preparation is None else graph.preparation.learned
    if LearnedColumn.all_of(learned) != shape.columns:
        raise UserError(
            f"{name} has {len(learned)} learned columns and the run's model {len(shape.columns)}, or they have other "
            "values: make the graph with --prepared-as and the graph folder of the run"
        )
    ours, theirs = (None, None) if names is None else (graph.relation_names, names.relation_names)
    if ours is not None and theirs is not None and ours != theirs:
        raise UserError(
            f"the relations of {name} are {_some(ours)}, and those that the run was trained on {_some(theirs)}: name "
            "them alike, in the same order"
        )
    if of_vertices:
        _refuse_other_labels(shape, graph, name, names, num_targets)


def _refuse_other_types(shape: ModelShape, graph: Facts, name: str, names: Facts | None) -> None:
    """Refuses vertices of other types, or with other features."""
    here = () if graph.types is None else graph.types.widths
    if len(here) != len(shape.type_widths):
        raise UserError(
            f"{name} has {len(here) or 1} type{'s' * (len(here) > 1)} of vertices and the run's model was trained on "
            f"{len(shape.type_widths) or 1}: make it of the same tables"
        )
    ours, theirs = (() if one is None or one.types is None else one.types.names for one in (graph, names))
    if ours and theirs and ours != theirs:
        raise UserError(
            f"the types of {name} are {_some(ours)}, and those that the run was trained on {_some(theirs)}: name them "
            "alike, in the same order"
        )
    for kind, (width, wanted) in enumerate(zip(here, shape.type_widths, strict=True)):
        if width != wanted:
            raise UserError(
                f"type '{ours[kind]}' of {name} has {width} features and the run's model was trained on {wanted}: make "
                "it of the same columns, in the same order"
            )
    columns = () if graph.types is None else graph.types.learned_columns
    for kind, (here_learned, wanted_learned) in enumerate(zip(columns, shape.type_columns, strict=True)):
        if LearnedColumn.all_of(here_learned) != wanted_learned:
            raise UserError(
                f"type '{ours[kind]}' of {name} has {len(here_learned)} learned columns and the run's model "
                f"{len(wanted_learned)}, or they have other values: make the graph with --prepared-as and the graph "
                "folder of the run"
            )


def _refuse_other_labels(shape: ModelShape, graph: Facts, name: str, names: Facts | None, num_targets: int) -> None:
    """Refuses labels that the model's outputs cannot be compared with."""
    if bool(graph.num_classes if shape.num_targets else num_targets):
        kinds = ("classes", "numbers") if shape.num_targets else ("numbers", "classes")
        raise UserError(
            f"the labels of {name} are {kinds[0]} and the run's model predicts {kinds[1]}: give a graph of the same "
            "labels, or leave its labels out"
        )
    if num_targets and num_targets != shape.num_targets:
        raise UserError(
            f"{name} has {num_targets} numbers to predict and the run's model predicts {shape.num_targets}: give the "
            "same columns in the same order, or leave its labels out"
        )
    if graph.num_classes > shape.num_out:
        raise UserError(
            f"{name} has {graph.num_classes} classes and the run's model knows {shape.num_out}: give a graph of the "
            "same classes, or leave its labels out"
        )
    ours, theirs = (None, None) if names is None else (graph.class_names, names.class_names)
    if shape.num_targets and ours is not None and theirs is not None and ours != theirs:
        raise UserError(
            f"the numbers to predict of {name} are {_some(ours)}, and those that the run was trained on "
            f"{_some(theirs)}: give the same columns in the same order, or leave its labels out"
        )
    strange = () if ours is None or theirs is None else tuple(one for one in ours if one not in set(theirs))
    if strange:
        raise UserError(
            f"{name} has classes that the run's model does not know ({_some(strange)}; it knows "
            f"{_some(theirs or ())}): name them alike, or leave its labels out"
        )


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
