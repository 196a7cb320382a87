"""Columns of many categories, of each value of which a run learns a row: the same however it is trained, and kept."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import weft
from tests.layers.test_pyg_layers import rows_of
from tests.one_run import trained
from tests.oracle import dense
from tests.sample.cases import CLASSES, a_graph, spread
from tests.workers import run_workers
from weft.aggregate import MATERIALISED, OVERLAPPED, SEQUENTIAL, DistributedGraph
from weft.comm import Communicator, all_reduce_gradients
from weft.errors import UserError
from weft.graph.graph import Graph
from weft.layers import LearnedColumn, ModelConfig, Stack, build_model
from weft.layers.sage import SAGE
from weft.partitioning import Shard, make_shards, whole_shard
from weft.sample import PartitionBook, SampleConfig, VertexSource
from weft.training.evaluate import predict
from weft.training.loss import GlobalLoss
from weft.training.minibatches import make_loader
from weft.training.objective import input_rows
from weft.training.settings import TrainConfig
from weft.training.steps import FullGraph, VertexSteps

COLUMNS = (LearnedColumn(1, 5), LearnedColumn(4, 3))  # of the six columns of the drawn graph
SCHEDULES = {"materialised": MATERIALISED, "sequential": SEQUENTIAL, "overlapped": OVERLAPPED}
CONFIG = ModelConfig(name="sage", hidden=4, column_embedding=3, dropout=0.0)
FLOAT64 = TrainConfig(precision="float64")


def numbered() -> Graph:
    """The drawn graph with numbers of values in two of its columns."""
    graph = a_graph()
    assert graph.x is not None
    x = graph.x.clone()
    for column in COLUMNS:
        numbers = torch.arange(graph.num_nodes) * 7919 % (column.num_values + 1)
        x[:, column.position] = numbers.float()
    return graph.with_vertex_data(x=x)


def model_of(dtype: torch.dtype = torch.float64) -> Stack:
    torch.manual_seed(0)
    model = build_model(CONFIG, 6, CLASSES, columns=COLUMNS).to(dtype)
    assert isinstance(model, Stack) and model.columns is not None
    with torch.no_grad():
        for table in model.columns.tables:
            assert not table[0].any()
            table[0] += 0.3  # the shared row starts at zero, where a mistake could hide
    return model


def gradients(comm: Communicator, shards: list[Shard], plan: str) -> tuple[list[Tensor], Tensor, Tensor]:
    """Of a step over everything; and what the model says of own vertices, with their ids."""
    shard, rows = shards[comm.worker], rows_of(shards[comm.worker])
    graph, model = DistributedGraph(shard, comm, schedule=SCHEDULES.get(plan, MATERIALISED)), model_of()
    model.rematerialise = plan == "sequential"
    x = input_rows(graph, model, FLOAT64)
    assert shard.y is not None and not graph.view.is_constant(x)
    loss = GlobalLoss(shard.y, rows, CLASSES, "none", comm)
    steps: Any = FullGraph(graph, model, x, loss)
    if plan not in SCHEDULES:
        sample, book = SampleConfig(fanout=(-1, -1), batch=1 << 20), PartitionBook(shard, comm)
        source = VertexSource(rows, shard.global_ids, sample.batch, 9, comm, book.own.start)
        loader = make_loader(graph, model, x, source, book, sample, plan, 9, 1)  # type: ignore[arg-type]
        steps = VertexSteps(graph, model, loader, source, shard.y, loss)
    (step,) = steps.epoch(1)
    step.loss().backward()
    all_reduce_gradients(comm, model.parameters())
    steps.close()
    return [parameter.grad.clone() for parameter in model.parameters()], predict(model, graph, x), graph.global_ids


def test_any_plan_and_number_of_workers_computes_what_embeddings_of_torch_do() -> None:
    graph, model = numbered(), model_of()
    assert graph.x is not None and graph.y is not None and model.columns is not None
    x = graph.x.double()
    rows = [x[:, [0, 2, 3, 5]]]
    for column, table in zip(COLUMNS, model.columns.tables, strict=True):
        rows.append(functional.embedding(x[:, column.position].long(), table))
    hidden = torch.cat(rows, 1)
    for depth, layer in enumerate(model.layers):
        out = dense.sage(dict(layer.named_parameters()), graph, hidden, "mean")
        hidden = out if depth else torch.relu(out)
    seeds = rows_of(graph)
    functional.cross_entropy(hidden[seeds], graph.y[seeds]).backward()
    wanted = [parameter.grad for parameter in model.parameters()]
    assert all(float(grad.abs().max()) > 0 for grad in wanted if grad is not None)
    for workers, plans in ((1, ("materialised", "independent")), (3, (*SCHEDULES, "macrobatch", "split"))):
        shards = [whole_shard(graph, reorder=False)]
        if workers > 1:
            shards = make_shards(graph, spread(graph.num_nodes, workers), workers)
        for plan in plans:
            for found, logits, ids in run_workers(gradients, workers, shards, plan):
                for grad, expected in zip(found, wanted, strict=True):
                    torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-10)
                torch.testing.assert_close(logits, hidden.detach()[ids], rtol=1e-9, atol=1e-10)


# -- from a table ---------------------------------------------------------------------------------------------------

TOWNS, PEOPLE = 200, 1200


def tables(folder: Path, seed: int = 0, unknown: int = 0) -> tuple[Path, Path]:
    """People of towns, whose label is their town's; edges say nothing. The last `unknown` people are from elsewhere."""
    rng = np.random.default_rng(seed)
    town = rng.integers(TOWNS, size=PEOPLE)
    names = [f"town {k:03d}" if row < PEOPLE - unknown else f"elsewhere {row}" for row, k in enumerate(town)]
    names[5] = ""
    label = np.array(["a", "b", "c", "d"])[np.random.default_rng(1).integers(4, size=TOWNS)[town]]
    edges, nodes = folder / f"edges{seed}.csv", folder / f"nodes{seed}.csv"
    nodes.write_text("id,age,town,label\n" + "".join(
        f"p{k},{rng.normal(40, 9):.2f},{names[k]},{label[k]}\n" for k in range(PEOPLE)
    ))  # fmt: skip
    pairs = rng.integers(PEOPLE, size=(PEOPLE, 2))
    edges.write_text("src,dst\n" + "".join(f"p{a},p{b}\n" for a, b in pairs))
    return edges, nodes


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("people")
    edges, nodes = tables(folder)
    weft.ingest(
        edges, features=nodes, split="random:0.7,0.1@0", learned_columns=["town"], label_columns=["label"],
        out=folder / "graph",
    )  # fmt: skip
    return folder


SETTINGS: dict[str, Any] = {
    "model": {"name": "sage", "hidden": 16, "dropout": 0.0}, "optim": {"lr": 0.05}, "threads": 1,
    "train": {"epochs": 40, "trace_epochs": 0, "precision": "float64"},
}  # fmt: skip


def test_values_are_numbered_by_training_vertices_and_so_are_those_of_new_tables(people: Path, tmp_path: Path) -> None:
    graph = weft.load(str(people / "graph"))
    assert graph.preparation is not None and graph.x is not None and graph.train_mask is not None
    (decision,) = [one for one in graph.preparation.decisions if one.becomes == "learned"]
    lines = (people / "nodes0.csv").read_text().splitlines()[1:]
    town = np.array([line.split(",")[2] for line in lines])
    known = sorted({name for name in town[graph.train_mask.numpy()] if name})
    assert list(decision.categories) == known
    ((position, num_values),) = graph.preparation.learned
    assert graph.preparation.names[position] == "town" and num_values == len(known)
    number = {name: k for k, name in enumerate(known, 1)}
    assert graph.x[:, position].tolist() == [number.get(name, 0) for name in town]
    edges, nodes = tables(tmp_path, seed=2, unknown=50)
    other = weft.ingest(edges, features=nodes, prepared_as=graph.preparation, label_columns=["label"])
    assert other.x is not None and other.preparation.learned == graph.preparation.learned
    towns = [line.split(",")[2] for line in nodes.read_text().splitlines()[1:]]
    assert other.x[:, position].tolist() == [number.get(name, 0) for name in towns]
    assert not other.x[-50:, position].any()


def test_learned_rows_tell_values_apart_that_a_hash_does_not(people: Path, tmp_path: Path) -> None:
    learned = trained(tmp_path / "learned", {**SETTINGS, "data": str(people / "graph"), "workers": 1})
    hashed_graph = weft.ingest(
        people / "edges0.csv", features=people / "nodes0.csv", split="random:0.7,0.1@0", label_columns=["label"]
    )
    hashed = weft.train(hashed_graph, run=tmp_path / "hashed", quiet=True, **SETTINGS).summary
    assert learned["test_accuracy"] > 0.9 > 0.7 > hashed["test_accuracy"]


def test_a_run_goes_on_and_is_used_with_the_rows_that_it_learned(people: Path, tmp_path: Path) -> None:
    short = {**SETTINGS, "data": str(people / "graph"), "train": {**SETTINGS["train"], "epochs": 3}}
    one = trained(tmp_path / "one", {**short, "workers": 1})
    trained(tmp_path / "three", {**short, "workers": 3, "exchange": {"codec": "raw"}})
    losses = [[record["train_loss"] for record in weft.Run(tmp_path / name).metrics] for name in ("one", "three")]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-9)
    trained(tmp_path / "again", {**short, "workers": 1}, stop_after=1)
    assert trained(tmp_path / "again", {**short, "workers": 1}, resume=True)["weights_sha256"] == one["weights_sha256"]
    run, graph = weft.Run(tmp_path / "one"), weft.load(str(people / "graph"))
    assert run.model().columns.columns[0].num_values == graph.preparation.learned[0][1]
    np.testing.assert_allclose(run.predict(graph).values, run.outputs().values, rtol=1e-12)
    edges, nodes = tables(tmp_path, seed=3, unknown=20)
    other = weft.ingest(edges, features=nodes, prepared_as=graph.preparation, label_columns=["label"])
    assert run.predict(other, workers=2).values.shape == (PEOPLE, 4)
    with pytest.raises(UserError, match="--prepared-as"):
        run.predict(weft.ingest(edges, features=nodes, learned_columns=["town"], label_columns=["label"]))
    with pytest.raises(UserError, match="has 0 learned columns and the run's model 1"):
        run.predict(replace(other, preparation=None))


def alike(num_in: int, num_out: int, config: ModelConfig) -> Stack:
    return Stack([SAGE(num_in, num_out)], config, [num_in, num_out])


def test_functions_that_build_models_get_the_columns_that_there_are_then(people: Path, tmp_path: Path) -> None:
    short = {"train": {"epochs": 2}, "threads": 1, "quiet": True}
    run = weft.train(str(people / "graph"), model=alike, run=tmp_path / "own", **short)
    assert run.model().columns.num_out == 1 + 16 + 0
    with pytest.raises(UserError, match=r"wants a weft\.layers\.Stack"):
        weft.train(str(people / "graph"), model=lambda *_: torch.nn.Linear(2, 2), run=tmp_path / "linear", **short)
    with pytest.raises(UserError, match="a module that is made already has none"):
        weft.train(str(people / "graph"), model=torch.nn.Linear(2, 4), run=tmp_path / "made", **short)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"train": {"precision": "bfloat16"}}, "bfloat16 rounds the numbers of learned columns"),
        ({"model": {"row_normalise": True}}, "row_normalise divides the numbers"),
        ({"strategy": "batchgnn", "sample": {"features": "int8"}}, "sample.features=int8 rounds the numbers"),
        ({"strategy": "dorylus", "executor": {"name": "inline", "intervals": 2}}, "sent no learned columns"),
    ],
)
def test_what_would_spoil_the_numbers_is_refused(
    people: Path, tmp_path: Path, settings: dict[str, Any], refused: str
) -> None:
    with pytest.raises(UserError, match=refused):
        weft.train(str(people / "graph"), run=tmp_path / "run", threads=1, quiet=True, **settings)


def test_columns_that_cannot_be_learned_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    edges, nodes = tables(tmp_path)
    with pytest.raises(UserError, match="asked for as a category and as a logarithm"):
        weft.ingest(edges, features=nodes, learned_columns=["age"], log_columns=["age"])
    with pytest.raises(UserError, match="did you mean 'town'"):
        weft.ingest(edges, features=nodes, learned_columns=["twon"])
    monkeypatch.setattr("weft.graph.preparation.statistics.DISTINCT_MOST", 50)
    with pytest.raises(UserError, match="a row is learned for so many at most: leave it out of --learned-columns"):
        weft.ingest(edges, features=nodes, learned_columns=["town"], label_columns=["label"])
