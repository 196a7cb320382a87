"""A trained model on another graph: what the graph must have, and the folder in which workers find it."""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from weft.config import PartitionConfig, RunConfig
from weft.errors import UserError
from weft.graph import Graph, as_graph, load_graph, save_graph
from weft.graph.preparation import Preparation
from weft.graph.vertexdata import Predicted
from weft.partitioning import PartitionInfo, read_partition
from weft.partitioning.read import targets_of
from weft.prepare import folder_kind, parts_folder, prepare_data
from weft.training.modelshape import Facts, read_shape, refuse_unfit
from weft.training.resume import peek
from weft.training.runfolder import RunFolder

GRAPH = "graph"


def training_graph(config: RunConfig, run: Path) -> Graph | PartitionInfo | None:
    """What the run was trained on, as far as its names go; None where it no longer lies there."""
    with suppress(UserError):
        parts = parts_folder(config, run)
        return as_graph(config.data) if parts is None else read_partition(parts)
    return None


class Placed(NamedTuple):
    """Another graph in a run folder of its own, and what the model's outputs stand for."""

    config: RunConfig
    class_names: tuple[str, ...] | None
    predicted: Predicted


def place_other_graph(config: RunConfig, run: Path, data: Any, workers: int | None, scratch: Path) -> Placed:
    """Makes SCRATCH a run folder of another graph that the run's model fits.

    data: what `as_graph` takes, or a partition folder. Its features must have been made as those of the run's graph.
    """
    shape = read_shape(RunFolder.open(run).checkpoints)
    kind = folder_kind(data) if isinstance(data, str | Path) else None
    graph = None if kind == "partition" else load_graph(data) if kind == "graph" else as_graph(data)
    facts: Facts = read_partition(data) if graph is None else graph
    name = str(data) if isinstance(data, str | Path) or graph is None else f"graph '{graph.name}'"
    before = training_graph(config, run)
    if before is not None:
        _refuse_other_making(facts.preparation, before.preparation, name)
        here, there = (() if one.types is None else one.types.vertices for one in (facts, before))
        for ours, theirs in zip(here, there, strict=False):  # of other numbers of types, `refuse_unfit` says so
            _refuse_other_making(ours.preparation, theirs.preparation, f"type '{ours.name}' of {name}")
    num_targets = targets_of(data) if graph is None else graph.num_targets
    grown = graph is not None and _came_to(graph, RunFolder.open(run).checkpoints)
    refuse_unfit(shape, facts, name, before, num_targets, config.train.task == "vertices", grown)
    placed = config.model_copy(
        update={
            "data": str(data) if kind else str(scratch / GRAPH),
            "run": str(scratch),
            "workers": workers or config.workers,
            "partition": PartitionConfig(),
        }
    )
    RunFolder.create(scratch, placed.model_dump(mode="json"))
    if graph is not None and kind is None:
        save_graph(graph, scratch / GRAPH)
    prepare_data(placed, scratch)
    return Placed(placed, None if before is None else before.class_names, shape.predicted)


def _came_to(graph: Graph, checkpoints: Path) -> bool:
    """Whether vertices were attached to the very graph that a run was trained on, none to types with learned rows."""
    newest = peek(checkpoints)
    trained_on = None if newest is None else newest.manifest["run"]["graph"].get("fingerprint")
    return trained_on is not None and graph.meta.get("attached_to") == trained_on


def _refuse_other_making(found: Preparation | None, wanted: Preparation | None, name: str) -> None:
    """Refuses features that do not mean to the model what those that it learned from did."""
    if found is not None and wanted is not None and found.making != wanted.making:
        raise UserError(
            f"the features of {name} were prepared in another way than those that the model learned from (whose "
            f"columns come from {wanted.source}): make the graph with --prepared-as and the graph folder of the run"
        )
