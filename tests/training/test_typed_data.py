"""Graphs of several types together with what edges carry, times, learned columns, and candidates for links."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
import torch
from torch import Tensor

import weft
from tests.graph.test_typedtables import SHOP, write
from tests.graph.typed import CLASSES, COUNTS, RELATIONS, WIDTHS, hetero
from tests.sample.cases import spread
from tests.workers import run_workers
from weft import linkscores
from weft.aggregate import DistributedGraph
from weft.comm import Communicator
from weft.errors import UserError
from weft.graph import from_edges, from_pyg, ingest, save_graph, to_pyg
from weft.graph.csr import filter_csr, row_numbers
from weft.graph.graph import Graph
from weft.layers import ModelConfig, Stack, add_embedding, build_model
from weft.layers.edge_reads import EdgeReads
from weft.partitioning import Shard, make_shards, whole_shard
from weft.sample import PartitionBook, SampleConfig
from weft.training.evaluate import predict
from weft.training.objective import input_rows
from weft.training.settings import TrainConfig
from weft.training.timed import MomentRows

HIDDEN, TIMES, EDGE_FEATURES = 8, 6, 3
QUIET: dict[str, Any] = {"quiet": True, "threads": 1, "partition": {"method": "random"}}


def timed(learned: bool = True) -> Any:
    """Users are looked at at times, and edges came to be at some."""
    data, rng = hetero(learned), torch.Generator().manual_seed(6)
    data["user"].time = torch.randint(0, TIMES, (COUNTS["user"],), generator=rng)
    for triple, count in RELATIONS.items():
        data[triple].edge_time = torch.randint(0, TIMES, (count,), generator=rng)
    return data


def with_edge_features() -> Any:
    data, rng = hetero(learned=False), torch.Generator().manual_seed(6)
    for triple, count in RELATIONS.items():
        data[triple].edge_attr = torch.randn(count, EDGE_FEATURES, generator=rng)
    return data


def made(shard: Shard, settings: dict[str, Any], comm: Communicator, reads: EdgeReads = EdgeReads()) -> Any:
    """The graph, a model of float64 behind its encoder, and the rows that it begins with."""
    assert shard.types is not None
    torch.manual_seed(5)
    graph, config = DistributedGraph(shard, comm), ModelConfig(**{"hidden": HIDDEN, "dropout": 0.0, **settings})
    widths = shard.types.widths
    model = build_model(config, HIDDEN, CLASSES, shard.num_relations, edges=reads, type_widths=widths)
    if shard.learned is not None:
        add_embedding(model, HIDDEN, graph.learned_ids, 3)
    return graph, model, input_rows(graph, model, TrainConfig(precision="float64"))


# -- features of edges ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gat", "sage"])
def test_layers_behind_the_encoder_read_edges_as_in_a_graph_of_one_type(name: str) -> None:
    graph = from_pyg(with_edge_features())
    settings = {"name": name, "output": "linear", **({"heads": 2} if name == "gat" else {})}
    reads, alone = EdgeReads(EDGE_FEATURES), Communicator.alone()
    typed, model, x = made(whole_shard(graph, reorder=False), settings, alone, reads)
    found = predict(model, typed, x)
    csr = graph.adjacency
    encoded = model.encoder(x).detach()
    assert isinstance(model, Stack)
    model.encoder = None
    plain = from_edges(csr.indices, row_numbers(csr.indptr), num_nodes=graph.num_nodes, edge_features=csr.features)
    untyped = DistributedGraph(whole_shard(plain, reorder=False))
    torch.testing.assert_close(found, predict(model, untyped, encoded), rtol=1e-10, atol=1e-12)
    assert csr.features is not None
    zeros = replace(plain, adjacency=replace(plain.adjacency, features=torch.zeros_like(csr.features)))
    without = predict(model, DistributedGraph(whole_shard(zeros, reorder=False)), encoded)
    assert (found - without).abs().max() > 1e-3


def test_a_run_reads_edges_on_several_workers_and_is_put_on_another_graph(tmp_path: Path) -> None:
    model = {"name": "gatv2", "hidden": HIDDEN, "heads": 2, "output": "linear"}
    learn = {"epochs": 2, "precision": "float64"}
    runs = [
        weft.train(with_edge_features(), model=model, run=tmp_path / f"{n}", workers=n, train=learn, **QUIET)
        for n in (1, 3)
    ]
    values = [run.outputs().values for run in runs]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(runs[1].predict(with_edge_features()).values, values[0], rtol=1e-7, atol=1e-10)
    with pytest.raises(UserError, match="has 0 edge features and the run's model was trained on 3"):
        runs[0].predict(hetero(learned=False))
    unread = weft.train(with_edge_features(), model={"name": "hgt", "hidden": 8, "heads": 2}, run=tmp_path / "hgt",
                        train=learn, **QUIET)  # fmt: skip
    assert "have features that hgt does not read" in " ".join(unread.summary["notes"])


# -- times -----------------------------------------------------------------------------------------------------------


def at_own_times(comm: Communicator, shards: list[Shard], settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Global ids, and what a model says of own vertices at their times; at the end of time where they have none."""
    shard = shards[comm.worker]
    graph, model, x = made(shard, settings, comm)
    assert shard.time is not None
    at = MomentRows(graph, model, x, PartitionBook(shard, comm), SampleConfig(), "until", 0)
    return shard.global_ids, at.of_own(shard.time)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("name", ["hgt", "rgcn"])
def test_what_is_said_at_a_time_is_what_the_graph_of_that_time_says(name: str, learned: bool) -> None:
    graph, settings = from_pyg(timed(learned)), {"name": name, **({"heads": 2} if name == "hgt" else {})}
    whole, alone = whole_shard(graph, reorder=False), Communicator.alone()
    _, found = at_own_times(alone, [whole], settings)
    assert graph.time is not None and graph.adjacency.time is not None
    assert bool(graph.time[COUNTS["user"] :].isnan().all())  # of other types nobody said any
    for time in graph.time[: COUNTS["user"]].unique():
        cut = filter_csr(replace(graph.adjacency, time=None), graph.adjacency.time <= time)
        then, model, x = made(whole_shard(replace(graph, adjacency=cut), reorder=False), settings, alone)
        wanted, of_then = predict(model, then, x), graph.time == time
        torch.testing.assert_close(found[of_then], wanted[of_then], rtol=1e-10, atol=1e-12)
    for ids, rows in run_workers(at_own_times, 3, make_shards(graph, spread(graph.num_nodes, 3), 3), settings):
        torch.testing.assert_close(rows, found[ids], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("learned", [True, False])
def test_runs_at_times_are_the_same_on_several_workers(learned: bool, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "model": {"name": "rgcn", "hidden": HIDDEN}, "sample": {"batch": 8, "fanout": (3, 2)},
        "train": {"epochs": 2, "precision": "float64"}, **QUIET,
    }  # fmt: skip
    graph = from_pyg(timed(learned))
    one = weft.train(graph, run=tmp_path / "one", strategy="minibatch", **settings)
    for strategy in ("gsplit",) if learned else ("gsplit", "batchgnn"):
        other = weft.train(graph, run=tmp_path / strategy, strategy=strategy, workers=3, **settings)
        assert other.summary["train_loss"] == pytest.approx(one.summary["train_loss"], rel=1e-9)
        assert other.evaluate() == pytest.approx(one.evaluate())
        np.testing.assert_allclose(other.outputs().values, one.outputs().values, rtol=1e-8, atol=1e-10)


def test_times_come_from_tables_and_go_to_pyg(tmp_path: Path) -> None:
    text = SHOP.replace("split_column: role", "split: 'time:0.5,0.25', ignore: role, time_column: when")
    text = text.replace("weight_column: amount", "weight_column: amount, time_column: at").replace(
        "file: tags.csv,", "file: tags.csv, time_column: since,"
    )
    tables = {
        "users": "user,age,segment,role,when\n7,30,a,x,2024-01-01\n3,50,b,x,2024-01-02\n9,40,a,x,2024-01-03\n"
        "5,20,b,x,2024-01-04\n",
        "buys": "who,what,amount,at\n7,8,2,2024-01-01\n3,7,1,2024-01-02\n9,7,4,2024-01-03\n5,8,3,2024-01-01\n",
        "tags": "sku,tag,since\n7,toy,2023-01-01\n8,food,2023-01-01\n8,toy,2023-01-01\n",
    }
    graph = ingest(write(tmp_path, text, **tables))
    assert graph.time is not None and graph.adjacency.time is not None
    day = (graph.time[:4] - graph.time[0]) / 86400
    assert day.tolist() == [0, 1, 2, 3] and bool(graph.time[4:].isnan().all())
    assert [mask.nonzero().flatten().tolist() for mask in graph.masks.values()] == [[0, 1], [2], [3]]
    assert graph.types is not None and graph.types.widths[0] == 1  # the time is no feature
    assert sorted(((graph.adjacency.time - graph.time[0]) / 86400).tolist())[-8:] == [0, 0, 0, 0, 1, 1, 2, 2]
    again = from_pyg(to_pyg(graph), target="user")
    assert torch.equal(again.adjacency.time, graph.adjacency.time)  # type: ignore[arg-type]
    assert torch.equal(again.time[:4], graph.time[:4])  # type: ignore[index]
    with pytest.raises(UserError, match="'item has tag' have no times and those of others have"):
        ingest(write(tmp_path, text.replace("time_column: since,", ""), **tables))
    with pytest.raises(UserError, match="has no column 'wen' with the times of type 'user'"):
        ingest(write(tmp_path, text.replace("time_column: when", "time_column: wen"), **tables))


# -- learned columns ---------------------------------------------------------------------------------------------------


COLOURS = SHOP.replace("{file: items.csv, id: sku}", "{file: items.csv, id: sku, learned_columns: colour}")


def shop(folder: Path, colours: tuple[str, ...] = ("red", "blue", "green"), **more: Any) -> Graph:
    """30 users who buy of 12 items; features of items are a price and a colour."""
    rng = np.random.default_rng(2)
    folder.mkdir(exist_ok=True)
    roles = ["train"] * 18 + ["val"] * 6 + ["test"] * 6
    users = "".join(f"{u},{rng.integers(20, 60)},{'ab'[u % 2]},{roles[u]}\n" for u in range(30))
    items = "".join(f"{i},{i * 1.5},{colours[i % len(colours)]}\n" for i in range(12))
    buys = "".join(f"{u},{(5 * u + k) % 12},{1 + k}\n" for u in range(30) for k in range(3))
    tables = {
        "users": "user,age,segment,role\n" + users, "items": "sku,price,colour\n" + items,
        "buys": "who,what,amount\n" + buys, "tags": "sku,tag\n0,toy\n1,food\n2,toy\n",
    }  # fmt: skip
    text = COLOURS.replace("{name: has, source: item, destination: tag, file: tags.csv, source_column: sku, "
                           "destination_column: tag,\n     reverse: of}", "{name: like, source: item, destination: "
                           "item, file: like.csv}").replace("  tag:\n", "")  # fmt: skip
    (folder / "like.csv").write_text("src,dst\n0,1\n1,2\n")
    return ingest(write(folder, text, **tables), **more)


def test_rows_of_learned_columns_come_before_the_map_of_their_type(tmp_path: Path) -> None:
    graph = shop(tmp_path)
    assert graph.types is not None and graph.types.learned_columns == ((), ((1, 3),))
    save_graph(graph, tmp_path / "graph")
    settings: dict[str, Any] = {
        "model": {"name": "rgcn", "hidden": HIDDEN, "column_embedding": 4},
        "train": {"epochs": 3, "precision": "float64"}, **QUIET,
    }  # fmt: skip
    one, three = (weft.train(str(tmp_path / "graph"), run=tmp_path / f"{n}", workers=n, **settings) for n in (1, 3))
    np.testing.assert_allclose(one.outputs().values, three.outputs().values, rtol=1e-7, atol=1e-10)
    model = three.model()
    table, weight, bias = (
        model.get_parameter(f"encoder.{name}") for name in ("columns.1.tables.0", "weights.1", "biases.1")
    )
    assert table.shape == (4, 4) and weight.shape == (HIDDEN, 1 + 4)
    distributed = DistributedGraph(whole_shard(graph, reorder=False))
    rows = model.encoder(input_rows(distributed, model, TrainConfig(precision="float64")))[30:]  # type: ignore[operator]
    x = graph.features_of(1)
    assert x is not None
    joined = torch.cat([x[:, :1].double(), table[x[:, 1].long()]], 1)
    torch.testing.assert_close(rows, joined @ weight.T + bias, rtol=1e-10, atol=1e-12)
    assert sorted(x[:, 1].unique().tolist()) == [1, 2, 3]
    again = one.predict(shop(tmp_path / "new", prepared_as=graph.types))
    np.testing.assert_allclose(again.values, one.outputs().values, rtol=1e-9)
    other = shop(tmp_path / "other", ("red", "blue"))
    with pytest.raises(UserError, match=r"features of type 'item' of .* were prepared in another way"):
        one.predict(other)
    shutil.rmtree(tmp_path / "graph")  # then the run's own shape tells
    with pytest.raises(UserError, match=r"type 'item' of .* has 1 learned columns and the run's model 1, or they"):
        one.predict(other)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"train": {"precision": "bfloat16"}}, "rounds the numbers of learned columns"),
        ({"model": {"name": "rgcn", "row_normalise": True}}, "divides the numbers of learned columns"),
        ({"strategy": "minibatch", "sample": {"features": "int8"}}, "sample.features=int8 rounds the numbers"),
    ],
)
def test_what_would_spoil_the_numbers_is_refused(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        weft.train(shop(tmp_path), run=tmp_path / "run", **{"model": {"name": "rgcn"}, **QUIET, **more})


# -- candidates for links ----------------------------------------------------------------------------------------------


def test_candidates_are_of_the_type_to_which_a_relation_leads(tmp_path: Path) -> None:
    graph = from_pyg(hetero())
    save_graph(graph, tmp_path / "graph")
    run = weft.train(
        str(tmp_path / "graph"), model={"name": "rgcn", "hidden": 8}, run=tmp_path / "run",
        train={"epochs": 2, "task": "links"}, link={"relations": ("user buys item",)}, **QUIET,
    )  # fmt: skip
    linkscores.write_candidates(run, tmp_path / "best.csv", 2)
    table = pyarrow.csv.read_csv(tmp_path / "best.csv").to_pydict()
    assert table["source"] == [f"user:{number}" for number in range(COUNTS["user"]) for _ in range(2)]
    rows = run.outputs(what="embeddings").values
    csr = graph.adjacency
    assert csr.relation is not None
    buys = (csr.relation == 0).nonzero().flatten()
    taken = set(zip(csr.indices[buys].tolist(), row_numbers(csr.indptr)[buys].tolist(), strict=True))
    sold = sorted({item for _, item in taken})
    for user in range(COUNTS["user"]):
        able = [item for item in sold if (user, item) not in taken]
        scores = rows[able] @ rows[user]
        wanted = [f"item:{able[place] - COUNTS['user']}" for place in np.argsort(-scores, kind="stable")[:2]]
        assert table["destination"][2 * user : 2 * user + 2] == wanted
    (tmp_path / "pairs.csv").write_text("src,dst\nuser:3,item:4\n")
    linkscores.write_pair_scores(run, tmp_path / "pairs.csv", tmp_path / "scores.csv")
    score = pyarrow.csv.read_csv(tmp_path / "scores.csv").to_pydict()["score"][0]
    assert score == pytest.approx(float(rows[3] @ rows[COUNTS["user"] + 4]), rel=1e-5)
    (tmp_path / "ids.csv").write_text("id\nitem:3\n")
    with pytest.raises(UserError, match=r"'item:3' in .* is not of type 'user'"):
        linkscores.write_candidates(run, tmp_path / "x.csv", 2, of=tmp_path / "ids.csv")
    every = weft.train(
        str(tmp_path / "graph"), model={"name": "rgcn", "hidden": 8}, run=tmp_path / "all",
        train={"epochs": 1, "task": "links"}, **QUIET,
    )  # fmt: skip
    with pytest.raises(UserError, match=r"name one with --relation \(user buys item, item bought by user"):
        linkscores.write_candidates(every, tmp_path / "x.csv", 2)
    assert not (tmp_path / "x.csv").exists() and WIDTHS["tag"] == 0
