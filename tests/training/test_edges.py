"""Labels of edges: learned alike by any number of workers and by every plan, judged as numpy judges them, exported."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import weft
from tests.one_run import trained
from weft.config import merge
from weft.export import write_outputs
from weft.graph.ids import IdMap
from weft.training.labelled import read_labelled_edges
from weft.training.settings import EdgeConfig

BASE: dict[str, Any] = {
    "model": {"name": "sage", "hidden": 16, "layers": 2, "dropout": 0.0, "norm": "none"}, "seed": 3, "threads": 1,
    "optim": {"lr": 0.02}, "sample": {"batch": 128, "fanout": [-1, -1]},
    "train": {"task": "edges", "epochs": 30, "trace_epochs": 0},
}  # fmt: skip
NUM_EDGES = 600


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parts of a graph whose vertices have names, and a table of payments between them, most of which are no edges."""
    folder = tmp_path_factory.mktemp("edges")
    tiny = weft.load("synthetic:tiny")
    assert tiny.x is not None
    head = tiny.adjacency.indices.long()
    tail = torch.arange(tiny.num_nodes).repeat_interleave(tiny.adjacency.degrees())
    names = np.array([f"v{number}" for number in range(tiny.num_nodes)])
    graph = weft.from_edges(names[head], names[tail], ids=names, x=tiny.x, name="shop")
    weft.partition(graph, 3, folder / "parts", method="random")
    rng = np.random.default_rng(0)
    source, destination = rng.integers(0, tiny.num_nodes, (2, NUM_EDGES))
    x, paid = tiny.x.numpy(), 1000 + 300 * rng.normal(size=NUM_EDGES)
    score = x[source, 0] - x[destination, 1] + (paid - 1000) / 300
    risk = 50 + 20 * score
    split = rng.choice(["train", "train", "train", "val", "test"], NUM_EDGES)
    rows = ["source,destination,paid,verdict,risk,alarm,fold"]
    for k in range(NUM_EDGES):
        verdict = "" if k % 13 == 0 else "fraud" if score[k] > 0.7 else "odd" if score[k] > 0 else "fine"
        shown = "" if k % 11 == 0 else f"{risk[k]:.4f}"
        ends = f"{names[source[k]]},{names[destination[k]]}"
        rows.append(f"{ends},{paid[k]:.3f},{verdict},{shown},{int(score[k] > 0)},{split[k]}")
    (folder / "payments.csv").write_text("\n".join(rows) + "\n")
    return folder


def settings(shop: Path, label: str, **more: Any) -> dict[str, Any]:
    edge = {
        "labels": str(shop / "payments.csv"), "label_columns": [label], "features": ["paid"], "split_column": "fold"
    }  # fmt: skip
    return merge({**BASE, "data": str(shop / "parts"), "edge": edge}, more)


def table(shop: Path) -> dict[str, list[str]]:
    lines = [line.split(",") for line in (shop / "payments.csv").read_text().splitlines()]
    return {name: [line[k] for line in lines[1:]] for k, name in enumerate(lines[0])}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("strategy", "label", "metric", "least"),
    [("full", "verdict", "accuracy", 0.7), ("full", "risk", "r2", 0.8), ("minibatch", "verdict", "accuracy", 0.7),
     ("batchgnn", "risk", "r2", 0.8), ("sar", "alarm", "roc_auc", 0.9)],
)  # fmt: skip
def test_labels_of_edges_are_learned(
    shop: Path, tmp_path: Path, strategy: str, label: str, metric: str, least: float, workers: int
) -> None:
    epochs = 80 if strategy in ("full", "sar") else 25
    train = {"metric": metric, "epochs": epochs}
    summary = trained(tmp_path / "run", settings(shop, label, strategy=strategy, workers=workers, train=train))
    assert summary["metric"] == metric and summary[f"test_{metric}"] > least


@pytest.mark.parametrize("label", ["verdict", "risk"])
def test_workers_and_plans_learn_the_same(shop: Path, tmp_path: Path, label: str) -> None:
    """A minibatch of all edges, with all neighbours, is the whole graph."""
    losses = []
    train = {"epochs": 4, "precision": "float64"}
    for name, workers, more in (
        ("one", 1, {}),
        ("three", 3, {}),
        ("all at once", 1, {"strategy": "minibatch", "sample": {"batch": 10**6, "cache_aggregates": "never"}}),
        ("three at once", 3, {"strategy": "batchgnn", "sample": {"batch": 10**6, "cache_aggregates": "never"}}),
    ):
        trained(tmp_path / name, settings(shop, label, workers=workers, train=train, **more))
        losses.append([record["train_loss"] for record in weft.Run(tmp_path / name).metrics])
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=1e-8)


@pytest.mark.parametrize(("label", "workers"), [("verdict", 3), ("risk", 3), ("verdict", 1)])
def test_metrics_are_numpys_on_what_is_exported(shop: Path, tmp_path: Path, label: str, workers: int) -> None:
    config = settings(shop, label, workers=workers, train={"epochs": 5, "eval_every": 5})
    trained(tmp_path / "run", config)
    run, known = weft.Run(tmp_path / "run"), table(shop)
    values = run.evaluate()
    assert write_outputs(run.path, tmp_path / "out.parquet") == NUM_EDGES
    out = pq.read_table(tmp_path / "out.parquet")
    assert out.column("source").to_pylist() == known["source"]
    assert out.column("destination").to_pylist() == known["destination"]
    has = np.array([text != "" for text in known[label]])
    for split in ("train", "val", "test"):
        rows = np.flatnonzero(has & (np.array(known["fold"]) == split))
        if label == "verdict":
            right = np.array(out.column("class").to_pylist())[rows] == np.array(known[label])[rows]
            assert values[f"{split}_accuracy"] == pytest.approx(right.mean())
        else:
            error = out.column("prediction").to_numpy()[rows] - np.array([float(known[label][k]) for k in rows])
            assert values[f"{split}_rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-4)


@pytest.mark.parametrize(("label", "workers"), [("verdict", 1), ("risk", 3)])
def test_outputs_are_of_edges_and_embeddings_of_vertices(shop: Path, tmp_path: Path, label: str, workers: int) -> None:
    trained(tmp_path / "run", settings(shop, label, workers=workers, train={"epochs": 2}))
    run, known = weft.Run(tmp_path / "run"), table(shop)
    found = run.outputs()
    assert found.ids.T.tolist() == [known["source"], known["destination"]]
    assert found.splits is not None and found.splits.tolist() == known["fold"]
    assert found.targets is not None
    unknown = found.targets < 0 if label == "verdict" else np.isnan(found.targets)
    assert unknown.tolist() == [text == "" for text in known[label]]
    names = {"prediction", "class", "target", "target_class"} if label == "verdict" else {"prediction", "target"}
    assert names | {"source", "destination", "split"} == set(found.table("predictions").column_names)
    rows = run.outputs(what="embeddings")
    assert rows.ids.tolist() == [f"v{number}" for number in range(300)] and rows.values.shape == (300, 16)
    again = run.predict(str(shop / "parts"), what="embeddings")
    assert (again.values == rows.values).all()
    with pytest.raises(weft.UserError, match="another graph has no such table: ask for embeddings"):
        run.predict(str(shop / "parts"))
    if label == "risk":
        with pytest.raises(weft.UserError, match="there are no probabilities"):
            run.outputs(what="probabilities")
    decoder = run.model().decoder
    assert decoder.hidden.in_features == 3 * 16 + 1


@pytest.mark.parametrize(("strategy", "workers"), [("full", 3), ("batchgnn", 1)])
def test_a_stopped_run_goes_on_to_the_same_weights(shop: Path, tmp_path: Path, strategy: str, workers: int) -> None:
    config = settings(shop, "risk", strategy=strategy, workers=workers, train={"epochs": 6, "select": "loss"})
    wanted = trained(tmp_path / "whole", config)
    trained(tmp_path / "run", config, stop_after=3)
    again = trained(tmp_path / "run", config, resume=True)
    for name in ("weights_sha256", "best_weights_sha256"):
        assert again[name] == wanted[name]


def test_splits_are_drawn_where_no_column_says_them(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "payments.csv").write_text((shop / "payments.csv").read_text().replace("fold", "note", 1))
    config = EdgeConfig(labels=str(tmp_path / "payments.csv"), label_columns=("alarm",), val=0.2, test=0.3)
    ids = IdMap(np.array([f"v{number}" for number in range(300)]))
    edges = read_labelled_edges(config, ids, 3)
    together = torch.stack([edges.masks[split] for split in ("train", "val", "test")]).sum(0)
    assert bool((together == 1).all()) and edges.num_classes == 2
    assert edges.masks["val"].double().mean() == pytest.approx(0.2, abs=0.06)
    assert edges.masks["test"].double().mean() == pytest.approx(0.3, abs=0.06)
    none = config.model_copy(update={"val": 0.5, "test": 0.5})
    with pytest.raises(weft.UserError, match="leave no edge to train on"):
        read_labelled_edges(none, ids, 3)
    assert torch.equal(read_labelled_edges(config, ids, 3).masks["val"], edges.masks["val"])
    assert not torch.equal(read_labelled_edges(config, ids, 4).masks["val"], edges.masks["val"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"edge": {"labels": None}}, "name it with edge.labels"),
        ({"edge": {"label_columns": ["verdikt"]}}, "did you mean 'verdict'"),
        ({"edge": {"features": ["verdict"]}}, "invalid value .fine."),
        ({"edge": {"label_kind": "numbers"}}, "are names, and numbers are to be predicted"),
        ({"train": {"metric": "rmse"}}, "train.metric=rmse is not for classes"),
        ({"device": "cuda"}, "works in host memory"),
        ({"strategy": "gsplit"}, "an edge's two ends may have two"),
        ({"strategy": "dorylus"}, "use another strategy than dorylus"),
    ],
)
def test_what_makes_no_sense_is_refused(shop: Path, tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.UserError, match=message):
        weft.train(**settings(shop, "verdict", **more), run=tmp_path / "run", quiet=True)


def test_another_table_is_another_run(shop: Path, tmp_path: Path) -> None:
    copy = tmp_path / "payments.csv"
    copy.write_text((shop / "payments.csv").read_text())
    config = settings(shop, "verdict", edge={"labels": str(copy)}, train={"epochs": 2})
    trained(tmp_path / "run", config)
    copy.write_text(copy.read_text().replace("fraud", "fine", 1))
    with pytest.raises(weft.UserError, match="edges of edge"):
        weft.train(**merge(config, {"train": {"epochs": 3}}), run=tmp_path / "run", quiet=True, resume=True)
