"""Whole runs on minibatches: several workers as one, resumed as uninterrupted, mistakes explained."""

import pytest
import torch

import weft
from weft.comm import Communicator
from weft.config import make_config
from weft.partitioning import whole_shard
from weft.run import start
from weft.sample import Features, PartitionBook, Store
from weft.sample.store import Column

MODEL = {"name": "sage", "hidden": 16, "layers": 2}
SAMPLE = {"batch": 64, "fanout": [5, 4], "cache_aggregates": "never"}


def train(run, epochs=4, resume=False, **more):
    settings = {
        "data": "synthetic:tiny", "run": str(run), "model": MODEL, "strategy": "batchgnn", "seed": 3, "threads": 1,
        "sample": SAMPLE, "train": {"epochs": epochs, "checkpoint_every": 2}, **more,
    }  # fmt: skip
    return start(make_config(settings), resume=resume, quiet=True)


def test_a_run_on_several_workers_learns_what_one_does(tmp_path):
    alone = train(tmp_path / "one", train={"epochs": 4, "precision": "float64"}).summary
    several = train(tmp_path / "three", workers=3, train={"epochs": 4, "precision": "float64"}).summary
    assert several["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-9)
    assert several["test_accuracy"] == alone["test_accuracy"]
    assert several["rows"]["requested"] > several["rows"]["unique"] > several["rows"]["remote"] > 0
    assert alone["rows"]["remote"] == 0
    assert several["wire_bytes"]["features"] == pytest.approx(several["rows"]["remote"] * 16 * 8, rel=0.1)
    assert several["wire_bytes"]["topology"] > 0 and several["wire_bytes"]["gradients"] > 0


def test_bytes_are_counted_once_whether_rows_are_fetched_ahead_or_not(tmp_path):
    ahead, at_once = (
        train(tmp_path / str(overlap), 2, workers=2, sample={**SAMPLE, "macrobatch": 2, "overlap": overlap}).summary
        for overlap in (True, False)
    )
    assert at_once["weights_sha256"] == ahead["weights_sha256"]
    for kind in ("features", "ids", "topology", "gradients"):
        assert at_once["wire_bytes"][kind] == ahead["wire_bytes"][kind] > 0


@pytest.mark.parametrize(("workers", "strategy"), [(1, "batchgnn"), (2, "batchgnn"), (2, "gsplit")])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, workers, strategy):
    whole = train(tmp_path / "whole", workers=workers, strategy=strategy).summary
    train(tmp_path / "run", epochs=2, workers=workers, strategy=strategy)
    resumed = train(tmp_path / "run", resume=True, workers=workers, strategy=strategy).summary
    assert resumed["weights_sha256"] == whole["weights_sha256"]


def test_a_batch_larger_than_the_training_set_is_one_step(tmp_path):
    run = train(tmp_path / "run", sample={**SAMPLE, "batch": 10**6})
    assert len(run.metrics) == 4


def test_vertices_without_features_learn_rows_on_one_worker(tmp_path):
    graph = weft.load("synthetic:tiny")
    bare = graph.with_vertex_data(x=None)
    run = weft.train(
        bare, MODEL, "minibatch", run=tmp_path / "run", quiet=True, sample=SAMPLE, train={"epochs": 15},
        optim={"lr": 0.02},
    )  # fmt: skip
    losses = [record["train_loss"] for record in run.metrics]
    assert losses[-1] < 0.8 * losses[0]
    with pytest.raises(weft.UserError, match="learned rows change"):
        weft.train(bare, MODEL, "minibatch", run=tmp_path / "again", quiet=True, sample={"cache_aggregates": "always"})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sample": {"fanout": [5]}}, "sample.fanout has 1 entries, but the model has 2 layers"),
        ({"sample": {"fanout": [5, 0]}}, "1 or more, or -1 for all"),
        ({"sample": {"macrobatch": 0}}, "at least one minibatch"),
        ({"sample": {"method": "weighted"}}, "has no weights"),
        ({"sample": {"batch": 0}}, "sample.batch"),
        ({"sample": {"fanuot": [1, 1]}}, "did you mean sample.fanout"),
        ({"exchange": {"schedule": "sequential"}}, "schedule sequential orders the exchanges of a full graph"),
        ({"exchange": {"codec": "int8"}}, "set sample.features"),
        ({"model": {**MODEL, "name": "gat"}, "sample": {"cache_aggregates": "always"}}, "cannot be kept"),
        ({"model": {**MODEL, "input_dropout": 0.5}, "sample": {"cache_aggregates": "always"}}, "input_dropout"),
        ({"train": {"task": "links", "metric": "accuracy"}}, "evaluated by roc_auc"),
        ({"train": {"task": "links"}, "link": {"val": 0.6, "test": 0.6}}, "leave no edge"),
        ({"device": "cuda"}, "samples and trains in host memory"),
        ({"strategy": "gsplit", "exchange": {"codec": "adaptive"}}, "others in every step"),
        ({"strategy": "gsplit", "exchange": {"schedule": "overlapped"}}, "computed meanwhile as it is"),
        ({"strategy": "gsplit", "train": {"task": "links"}}, "two ends may have two"),
        ({"strategy": "gsplit", "sample": {"alone_hops": 2}}, "workers share one hop at least"),
        ({"sample": {"alone_hops": 1}}, "sample.alone_hops is for plan split"),
        ({"strategy": "auto", "exchange": {"plan": "split"}}, "strategy auto chooses exchange.plan"),
    ],
)
def test_mistakes_are_explained_and_leave_nothing(tmp_path, more, message):
    with pytest.raises(weft.UserError, match=message):
        train(tmp_path / "run", **more)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kept", ["bfloat16", "int8", "int4", "int2"])
def test_rows_at_rest_are_trained_on_as_they_lie(kept):
    x = torch.randn(50, 7, generator=torch.Generator().manual_seed(1))
    features = Features(kept, 7, torch.float32)
    stored = features.stored(x, torch.arange(50))
    read = features.read(stored)
    steps = {"int8": 255, "int4": 15, "int2": 3}.get(kept)
    step = (x.amax(1) - x.amin(1)) / steps * 1.01 if steps else x.abs().amax(1) / 128
    assert ((read - x).abs() <= step[:, None]).all() and not torch.equal(read, x)
    assert torch.equal(features.read(stored[[3, 1]]), read[[3, 1]])
    x[4, 2] = torch.nan
    if steps:
        with pytest.raises(weft.UserError, match="vertex 4 has a feature that is not finite"):
            features.stored(x, torch.arange(50))


def test_a_worker_without_vertices_knows_how_large_rows_are():
    """All workers choose from it how much to fetch at a time: they must agree."""
    graph = weft.load("synthetic:tiny")
    sizes = []
    for rows in (graph.x, graph.x[:0]):
        comm = Communicator.alone()
        book = PartitionBook(whole_shard(graph), comm)
        sizes.append(Store(comm, book, {"x": Column(rows, "features")}).row_bytes())
    assert sizes == [16 * 4, 16 * 4]
