"""Runs that lie on disk, as Python sees them: their records, their metric, and what their model says of vertices."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from weft.config import RunConfig, make_config
from weft.disk import scratch_folder
from weft.errors import UserError
from weft.graph import Graph, open_graph
from weft.graph.attach import new_vertices
from weft.graph.files import Array
from weft.graph.times import Moment, time_of
from weft.graph.types import GraphTypes
from weft.launch import trained, worker
from weft.launch.ending import Ending, RunFailed
from weft.launch.handing import pack
from weft.launch.launcher import launch
from weft.layers import Given
from weft.outputs import Outputs, What, check_what, split_names
from weft.predict import place_other_graph
from weft.prepare import folder_kind, labelled_edges, vertex_names
from weft.training.loop import OnRecord
from weft.training.modelshape import read_shape
from weft.training.runfolder import RunFolder
from weft.trust import check as check_trust

WORKER = "weft.launch.worker_main"  # the module of a worker process


def check_ending(ending: Ending) -> None:
    """Raises what workers failed of: the user's mistake that one of them found, or RunFailed."""
    if ending.code and ending.kind == "user":
        raise UserError(ending.text)
    if ending.code:
        raise RunFailed(ending)


def launch_workers(
    config: RunConfig,
    verb: str,
    run: Path,
    *rest: str,
    model: Given | None = None,
    on_record: OnRecord | None = None,
) -> Ending:
    """Processes that do a verb; `model` is handed to them where the run was given it as an object."""
    return launch(
        WORKER,
        [verb, str(run), *rest],
        config.workers,
        config.threads,
        deadline_seconds=config.deadline_seconds,
        documents={worker.CONFIG: config.model_dump_json()},
        handed=None if model is None else pack(model),
        on_record=on_record,
    )


@dataclass(frozen=True, init=False, repr=False)
class Run:
    """A run on disk.

    >>> path = weft.train("synthetic:tiny", run="my-run", quiet=True, train={"epochs": 2}).path
    >>> run = weft.Run("my-run")  # later, or elsewhere
    >>> run  # doctest: +ELLIPSIS
    Run('my-run': gcn on synthetic:tiny, 1 worker, 2 epochs, test accuracy ...)
    >>> run.summary["epochs"], [record["epoch"] for record in run.metrics]
    (2, [1, 2])
    >>> run.outputs().values.shape
    (300, 4)
    """

    path: Path
    given: Given | None = field(compare=False)

    def __init__(self, path: str | Path, model: Given | None = None) -> None:
        """`model`: what the run was trained with, where that was an object of a script or notebook."""
        object.__setattr__(self, "path", Path(path))
        object.__setattr__(self, "given", model)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self._described()})"

    def _described(self) -> str:
        folder = RunFolder(self.path)
        if not folder.exists():
            return "no run lies there"
        try:
            config, summary = self.config, folder.summary()
            workers = f"{config.workers} worker{'s' * (config.workers > 1)}"
            what = f"{config.model.name} on {config.data}, {workers}"
            if summary is None:
                return f"{what}, not finished, {len(self.metrics)} of {config.train.epochs} epochs"
            return ", ".join([what, f"{summary['epochs']} epochs", *_test_metric(summary)])
        except (UserError, OSError) as error:
            return str(error)

    @property
    def config(self) -> RunConfig:
        return make_config(RunFolder.open(self.path).config())

    @property
    def summary(self) -> dict[str, Any]:
        summary = RunFolder.open(self.path).summary()
        if summary is None:
            raise UserError(f"{self.path} has not finished: go on with it by --resume")
        return summary

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return list(RunFolder.open(self.path).metrics())

    @property
    def graph(self) -> Graph:
        """The graph that the run was trained on, where it still lies."""
        if folder_kind(self.config.data) == "partition":
            raise UserError(
                f"{self.path} was trained on the partition {self.config.data}, and parts are no whole graph: give the "
                "graph that they were cut from"
            )
        return open_graph(self.config.data)

    def evaluate(self, trust: bool = False) -> dict[str, float]:
        """The metric on each split, exact, over the whole graph, with the best weights.

        `trust`: the model's code may be run though this user did not make the run.
        """
        self._check_trust(trust)
        with scratch_folder("values") as scratch:
            file = scratch / "values.json"
            if self.config.workers == 1:
                return trained.evaluate(self.path, given=self.given)[0]
            check_ending(launch_workers(self.config, "evaluate", self.path, str(file), model=self.given))
            values: dict[str, float] = json.loads(file.read_text())
            return values

    def outputs(self, trust: bool = False, what: What = "outputs", at: Moment | None = None) -> Outputs:
        """The model's outputs for every vertex, in the graph's order; or embeddings, the rows before its last layer.

        Predictions and probabilities follow from outputs: `run.outputs().probabilities`. Of a run that learns labels
        of edges there is a row for every edge of its table. Where decoders judge pairs of vertices, embeddings are the
        rows that they judge by. `trust` as for `evaluate`.

        `at`, where edges have times: a time or a date, at which all vertices are looked at, so that they see what was
        there then (docs/times.md).
        """
        self.check_what(what)
        self._check_trust(trust)
        return self._read(self.config, self.path, what, at=at)

    def model(self, trust: bool = False) -> nn.Module:
        """The model with its best weights, in evaluation mode: a torch module, called as model(graph_view, x).

        The graph is not needed for it. Of a run that learned numbers, `model.target_scale` makes them of its outputs.
        `trust` as for `evaluate`.
        """
        self._check_trust(trust)
        return trained.load_model(self.path, self.given)

    def predict(self, data: Any, workers: int | None = None, trust: bool = False, what: What = "outputs") -> Outputs:
        """The model's outputs for every vertex of another graph, exact, layer by layer over the whole graph.

        >>> run = weft.train("synthetic:tiny?seed=1", run="my-run", quiet=True, train={"epochs": 2})
        >>> run.predict("synthetic:tiny?seed=2").predictions.shape
        (300,)

        data: a Graph, a graph of PyG, DGL or networkx, a name or path, a partition folder; of the features, relations
        and classes that the model was trained on. workers: on how many, as the run had unless given. `trust` and
        `what` as for `outputs`. For vertices that come to the run's own graph see `weft.attach`.
        """
        self.check_what(what, elsewhere=True)
        self._check_trust(trust)
        with scratch_folder("predict") as scratch:
            placed = place_other_graph(self.config, self.path, data, workers, scratch / "run")
            found = self._read(placed.config, scratch / "run", what, RunFolder(self.path).checkpoints)
        targets, here, there = found.targets, found.class_names, placed.class_names
        of_classes = targets is not None and targets.ndim == 1 and targets.dtype.kind != "f"
        if targets is not None and of_classes and here is not None and there is not None and here != there:
            number = np.array([there.index(name) for name in here] + [-1])  # -1, an unknown label, stays
            targets = number[targets]
        predicted = "embedding" if found.predicted == "embedding" else placed.predicted
        return replace(found, targets=targets, class_names=there, predicted=predicted)

    def check_what(self, what: str, elsewhere: bool = False) -> None:
        """Refuses kinds of output that the run has none of; `elsewhere`: of another graph."""
        task = self.config.train.task
        check_what(what, task, lambda: read_shape(RunFolder(self.path).checkpoints).num_targets > 0)
        if elsewhere and task == "edges" and what != "embeddings":
            raise UserError(
                "the run learned labels of the edges of its own table, and another graph has no such table: ask for "
                "embeddings"
            )

    def _check_trust(self, trust: bool) -> None:
        """A model that was given as an object is the caller's own, whatever the run folder names."""
        if self.given is None:
            check_trust(self.path, self.config.model.name, trust)

    def _read(
        self, config: RunConfig, run: Path, what: str, weights: Path | None = None, at: Moment | None = None
    ) -> Outputs:
        """Rows for the vertices of a run's graph; `weights`: by the model whose checkpoints these are."""
        time = None if at is None else time_of(at, "the time at which vertices are looked at")
        with scratch_folder("outputs") as scratch:
            if config.workers == 1:
                trained.export(run, scratch, config, what, weights, self.given, time)
            else:
                more = ["" if weights is None else str(weights), "" if time is None else repr(time)]
                check_ending(launch_workers(config, "export", run, str(scratch), what, *more, model=self.given))
            found = {name: _joined(scratch, config.workers, name) for name in ("rows", "y", "split")}
        values, split = found["rows"], found["split"]
        assert values is not None and split is not None
        names, task = vertex_names(config, run), config.train.task
        known = found["y"], split_names(split) if split.any() else None, names.id_name
        if task == "edges" and what != "embeddings":
            edges = labelled_edges(config, run)
            ends = torch.stack([edges.heads, edges.tails], 1).numpy()
            return Outputs(names.ids_of_all()[ends], values, edges.class_names, edges.predicted, *known)
        predicted = "embedding" if what == "embeddings" or task == "links" else names.predicted
        outputs = Outputs(names.ids_within_types(), values, names.class_names, predicted, *known)
        return outputs if names.types is None else _of_types(outputs, names.types, predicted == "embedding")


def _of_types(outputs: Outputs, types: GraphTypes, embeddings: bool) -> Outputs:
    """With the type of each vertex; of what is learned of the target type, its vertices alone."""
    kinds = np.array(types.names)[types.column().numpy()]
    outputs = replace(outputs, types=kinds)
    if embeddings or types.target is None:
        return outputs
    id_name = types.vertices[types.target].id_column or "id"
    return replace(outputs.pick(types.span(types.target)), id_name=id_name)


def rows_of_new(outputs: Outputs, before: Graph, after: Graph) -> Outputs:
    """The rows of the vertices that were attached to a graph, of those that the outputs are about."""
    vertices, types = new_vertices(before, after).numpy(), after.types
    if types is not None and types.target is not None and len(outputs.ids) < after.num_nodes:
        span = types.span(types.target)
        vertices = vertices[(vertices >= span.start) & (vertices < span.stop)] - span.start
        if not vertices.size:
            raise UserError(
                f"none of the new vertices is of type '{types.names[types.target]}', of which the run says something: "
                "give new rows of that type, or ask for embeddings"
            )
    return outputs.pick(vertices)


def _test_metric(summary: Mapping[str, Any]) -> list[str]:
    """The metric on the test split, or on validation or training vertices where there is none, in words."""
    metric = summary.get("metric")
    for split in ("test", "val", "train"):
        value = summary.get(f"{split}_{metric}")
        if value is not None:
            return [f"{split} {str(metric).replace('_', ' ')} {value:.4f}"]
    return []


def _joined(folder: Path, workers: int, name: str) -> Array | None:
    """All workers' rows in the graph's order: one array, into which theirs are read piece by piece."""
    files = [folder / f"{worker}-{name}.npy" for worker in range(workers)]
    if not all(file.exists() for file in files):
        return None
    ids = [np.load(folder / f"{worker}-ids.npy") for worker in range(workers)]
    pieces = [np.load(file, mmap_mode="r") for file in files]
    values = np.empty((sum(map(len, ids)), *pieces[0].shape[1:]), pieces[0].dtype)
    for rows, piece in zip(ids, pieces, strict=True):
        values[rows] = piece
    return values
