"""What one worker process does with a model that is trained: `weft evaluate`, `weft export`, `weft predict`."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from weft.comm import Communicator
from weft.config import RunConfig, make_config
from weft.errors import UserError
from weft.graph.typedrows import Rows
from weft.graph.vertexdata import SPLITS
from weft.launch.process import scoped_process_state
from weft.launch.worker import Learned, Worker, objective_of, open_worker
from weft.layers import Given, add_embedding, build_model
from weft.sample import PartitionBook
from weft.training.decoders import Decoder
from weft.training.evaluate import pick_masks, predict
from weft.training.hidden import embed
from weft.training.modelparts import add_parts
from weft.training.modelshape import read_shape
from weft.training.numbers import TargetScale
from weft.training.objective import input_rows
from weft.training.resume import load_best, peek
from weft.training.runfolder import RunFolder
from weft.training.timed import MomentRows, sees_of


@scoped_process_state()
def evaluate(run: Path, config: RunConfig | None = None, given: Given | None = None) -> tuple[dict[str, float], int]:
    """The run's metric on each split, with its best weights, over the whole graph; and which worker this is."""
    worker = open_worker(run, config, given=given)
    objective = objective_of(worker, input_rows(worker.graph, worker.model, worker.config.train), training=False)
    load_best(worker.folder.checkpoints, worker.model, worker.comm, worker.graph.learned_ids, worker.graph_id)
    values, _ = objective.evaluate()
    return {f"{split}_{objective.metric}": value for split, value in values.items()}, worker.comm.worker


@scoped_process_state()
def export(
    run: Path,
    out: Path,
    config: RunConfig | None = None,
    what: str = "outputs",
    weights: Path | None = None,
    given: Given | None = None,
    at: float | None = None,
) -> None:
    """Writes this worker's rows and what it knows of them as OUT/WORKER-{rows,ids,y,split}.npy, for the parent to join.

    what: "embeddings", or else outputs. weights: checkpoints of another run, whose model is put on this one's graph;
    None: its own. at: the time at which all vertices are looked at; None: each at its own, or now.
    """
    shape = None if weights is None else read_shape(weights)
    worker = open_worker(run, config, shape=shape, given=given)
    graph, model, comm, train = worker.graph, worker.model, worker.comm, worker.config.train
    x = input_rows(graph, model, train)
    if at is not None:
        _check_moment(worker, what)
    of_edges = train.task == "edges" and what != "embeddings"
    objective = objective_of(worker, x, training=False) if of_edges else None  # it makes parts of the model anew
    of_graph = worker.graph_id if weights is None else None
    learned_ids = graph.learned_ids if shape is None else shape.learned_ids_of(graph.learned_ids, graph.shard.types)
    load_best(weights or worker.folder.checkpoints, model, comm, learned_ids, of_graph)
    arrays = _of_vertices(worker, x, what, at) if objective is None else _of_edges(worker, objective)
    for name, tensor in arrays.items():
        np.save(out / f"{comm.worker}-{name}.npy", tensor.cpu().numpy())
    comm.barrier("export")


def _check_moment(worker: Worker, what: str) -> None:
    """Refuses to look at vertices at a time where nobody knows what was there then."""
    train, name = worker.config.train, worker.graph.shard.graph_name
    if train.times == "ignore":
        raise UserError("the run ignores times (train.times=ignore), so that it knows no moment: leave --at out")
    if sees_of(train, worker.graph.shard) == "all":
        raise UserError(f"the edges of {name} have no times, so that nobody knows what was there then: leave --at out")
    if train.task == "edges" and what != "embeddings":
        raise UserError(
            "the run judges each labelled edge at the edge's own time: leave --at out, or ask for embeddings"
        )


def _of_vertices(worker: Worker, x: Rows, what: str, moment: float | None = None) -> dict[str, Tensor]:
    """What the model says of own vertices, and what is known of them."""
    graph, model, train = worker.graph, worker.model, worker.config.train
    of_labels = train.task == "vertices"  # else decoders judge by the rows that the model gives
    rows = _rows(worker, x, of_labels and what == "embeddings", moment)
    if of_labels and what != "embeddings" and worker.shape.num_targets:
        scale = model.target_scale
        assert isinstance(scale, TargetScale)
        rows = scale(rows).to(rows.dtype)
    split = _split_codes(pick_masks(graph.shard, train.split), graph.shard.num_nodes)
    known = {} if graph.shard.y is None else {"y": graph.shard.y}
    return {"rows": rows, "ids": graph.global_ids, "split": split, **known}


def _rows(worker: Worker, x: Rows, hidden: bool, moment: float | None) -> Tensor:
    """Of own vertices, all at a moment; else each at its own time where labels of vertices at times are learned."""
    graph, model, config = worker.graph, worker.model, worker.config
    sees = sees_of(config.train, graph.shard)
    times = graph.shard.time if sees == "until" else None
    if moment is not None:
        times = torch.full((graph.shard.num_nodes,), moment, dtype=torch.float64)
    if times is None:
        return embed(model, graph, x) if hidden else predict(model, graph, x)
    book = PartitionBook(graph.shard, graph.comm)
    at = MomentRows(graph, model, x, book, config.sample, sees, config.seed)
    return at.embeddings(times) if hidden else at.of_own(times)


def _of_edges(worker: Worker, objective: Learned) -> dict[str, Tensor]:
    """What the model says of own labelled edges, and what is known of them."""
    labelled, ids = worker.edges.labelled, objective.ids.cpu()
    assert labelled is not None
    split = _split_codes({name: mask[ids] for name, mask in labelled.masks.items()}, len(ids))
    return {"rows": objective.outputs(), "ids": ids, "split": split, "y": labelled.y[ids]}


def _split_codes(masks: Mapping[str, Tensor], count: int) -> Tensor:
    """The split of every own vertex or edge as `outputs.split_names` names it, int8 [N]."""
    found = torch.zeros(count, dtype=torch.int8)
    for code, split in enumerate(SPLITS, 1):
        if split in masks:
            found[masks[split].cpu()] = code
    return found


@scoped_process_state()
def load_model(run: Path, given: Given | None = None) -> nn.Module:
    """The run's model with its best weights, in this process alone; the graph is not opened."""
    return _load(run, given)[0]


@scoped_process_state()
def load_decoder(run: Path, given: Given | None = None) -> Decoder:
    """What scores pairs of vertices in a run that learned links, likewise."""
    decoder = _load(run, given)[1]
    assert decoder is not None, "only runs of links have a decoder of pairs"
    return decoder


def _load(run: Path, given: Given | None) -> tuple[nn.Module, Decoder | None]:
    folder = RunFolder.open(run)
    config = make_config(folder.config())
    shape = read_shape(folder.checkpoints)
    torch.manual_seed(config.seed)
    model = build_model(
        config.model, shape.num_in, shape.num_out, shape.num_relations, given, shape.edge_reads, shape.columns,
        shape.type_widths, shape.type_columns,
    )  # fmt: skip
    decoder = add_parts(model, shape, config.train.task, config.link, config.data)
    ids = torch.empty(0, dtype=torch.int64)
    if shape.learned_rows:
        newest = peek(folder.checkpoints)
        assert newest is not None, "its shape has been read"
        ids = shape.learned_ids(int(newest.manifest["run"]["graph"]["vertices"]))
        add_embedding(model, shape.num_in, ids, config.seed)
    if config.train.precision == "float64":
        model.double()
    load_best(folder.checkpoints, model, Communicator.alone(), ids)
    return model.eval(), decoder
