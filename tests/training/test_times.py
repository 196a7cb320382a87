"""Runs on graphs whose edges have times: what they learn, what they hold out, and what they refuse."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

import weft
from tests.sample.test_times import timed_graph
from weft import linkscores
from weft.comm import Communicator
from weft.config import make_config
from weft.errors import UserError
from weft.graph import load_graph, save_graph
from weft.graph.csr import filter_csr, row_numbers
from weft.partitioning import whole_shard
from weft.run import start
from weft.sample import Drawing, PartitionBook
from weft.sample.moment_sampler import MomentSampler
from weft.training.held_out import HeldOut
from weft.training.links import LinkPrediction
from weft.training.settings import LinkConfig

MODEL = {"name": "sage", "hidden": 8, "layers": 2}


def split(graph):
    time = graph.time
    return graph.with_vertex_data(train_mask=time < 3, val_mask=(time >= 3) & (time < 6), test_mask=time >= 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("timed") / "graph"
    save_graph(split(timed_graph(loops=False)), path)
    return path


def train(data, run, strategy="minibatch", workers=1, **more):
    sample, learn = more.pop("sample", {}), more.pop("train", {})
    settings = {
        "data": str(data), "run": str(run), "model": MODEL, "strategy": strategy, "workers": workers, "threads": 1,
        "sample": {"batch": 32, "fanout": [4, 3], **sample}, "train": {"epochs": 2, "precision": "float64", **learn},
        **more,
    }  # fmt: skip
    return start(make_config(settings), quiet=True)


# -- vertices ---------------------------------------------------------------------------------------------------


def test_runs_on_several_workers_learn_and_say_what_one_does(folder, tmp_path):
    alone = train(folder, tmp_path / "one")
    for number, (strategy, workers) in enumerate([("batchgnn", 3), ("gsplit", 2)]):
        several = train(folder, tmp_path / str(number), strategy, workers)
        assert several.summary["train_loss"] == pytest.approx(alone.summary["train_loss"], rel=1e-9)
        assert several.evaluate() == alone.evaluate()
        np.testing.assert_allclose(several.outputs().values, alone.outputs().values, rtol=1e-9, atol=1e-9)
        hidden = several.outputs("embeddings").values, alone.outputs("embeddings").values
        np.testing.assert_allclose(*hidden, rtol=1e-9, atol=1e-9)


def test_nothing_later_than_the_training_vertices_changes_what_is_learned(folder, tmp_path):
    graph = load_graph(folder)
    past = filter_csr(graph.adjacency, graph.adjacency.time < 3)
    assert past.num_edges < graph.num_edges
    save_graph(replace(graph, adjacency=past), tmp_path / "past")
    wanted = train(folder, tmp_path / "whole", train={"eval_every": 0})
    found = train(tmp_path / "past", tmp_path / "cut", train={"eval_every": 0})
    assert found.summary["weights_sha256"] == wanted.summary["weights_sha256"]
    ignoring = train(folder, tmp_path / "ignoring", train={"eval_every": 0, "times": "ignore"})
    assert ignoring.summary["weights_sha256"] != wanted.summary["weights_sha256"]


def test_a_run_goes_on_to_the_same_weights(folder, tmp_path):
    whole = train(folder, tmp_path / "whole", train={"epochs": 3})
    train(folder, tmp_path / "run", train={"epochs": 2, "checkpoint_every": 1})
    resumed = weft.train(run=tmp_path / "run", resume=True, quiet=True, data=str(folder), model=MODEL,
                         strategy="minibatch", threads=1, sample={"batch": 32, "fanout": [4, 3]},
                         train={"epochs": 3, "precision": "float64", "checkpoint_every": 1})  # fmt: skip
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_own_loops_see_no_later_edges(folder):
    graph = load_graph(folder)
    with weft.Loader(graph, 2, batch=16, fanout=[-1, -1], epochs=1) as loader:
        for batch in loader:
            data = batch.to_pyg()
            ends = data.n_id[data.edge_index]
            time = graph.time[data.n_id[: data.batch_size]]
            seen = {(int(u), int(v)) for u, v in ends.T}
            assert seen and len(data.n_id) > len(set(data.n_id.tolist()))  # a vertex at two times is two
            assert float(time.max()) < 3
            csr = graph.adjacency
            for u, v in seen:
                row = slice(int(csr.indptr[v]), int(csr.indptr[v + 1]))
                assert float(csr.time[row][csr.indices[row] == u].min()) <= float(time.max())
    with weft.Loader(graph, 1, batch=16, fanout=[-1], epochs=1, times="ignore") as loader:
        assert sum(batch.to_pyg().edge_index.shape[1] for batch in loader) == int(
            graph.adjacency.degrees()[graph.train_mask].sum()
        )


def as_it_was(graph, time, inclusive):
    """The graph as it was at a time, of which nobody knows that it had any: it is computed as a whole."""
    csr = graph.adjacency
    past = filter_csr(csr, csr.time <= time if inclusive else csr.time < time)
    assert 0 < past.num_edges < csr.num_edges
    return replace(graph, adjacency=replace(past, time=None)).with_vertex_data(time=None)


@pytest.mark.parametrize("learn", [{}, {"task": "links"}])
def test_vertices_at_a_moment_are_those_of_the_graph_as_it_was(folder, tmp_path, learn):
    graph = load_graph(folder)
    moment = float(graph.adjacency.time.median())  # a time that edges have: links see only what is before it
    past = as_it_was(graph, moment, inclusive=not learn)
    for workers in (1, 2):
        run = train(folder, tmp_path / str(workers), "batchgnn", workers, train=learn, link={"replace": "tails"})
        for what in ("outputs", "embeddings"):
            found, wanted = run.outputs(what=what, at=moment), run.predict(past, 1, what=what)
            np.testing.assert_allclose(found.values, wanted.values, rtol=1e-9, atol=1e-11)
            assert not np.allclose(found.values, run.outputs(what=what).values)


def test_candidates_at_a_moment_know_nothing_later(folder, tmp_path):
    graph = load_graph(folder)
    moment = float(graph.adjacency.time.median())
    run = train(folder, tmp_path / "run", train={"task": "links"})
    assert linkscores.write_candidates(run, tmp_path / "top.csv", 3, at=moment) > 0
    rows = run.outputs(at=moment).values
    known = np.eye(graph.num_nodes, dtype=bool)
    csr = graph.adjacency
    before = (csr.time < moment).numpy()
    known[csr.indices.numpy()[before], row_numbers(csr.indptr).numpy()[before]] = True
    scores = np.where(known, -np.inf, rows @ rows.T)
    with (tmp_path / "top.csv").open() as file:
        found = [(int(row["source"]), int(row["destination"])) for row in csv.DictReader(file)]
    wanted = [(vertex, int(other)) for vertex in range(graph.num_nodes) for other in np.argsort(-scores[vertex])[:3]]
    assert found == wanted


def test_moments_that_make_no_sense_are_refused(folder, tmp_path):
    run = train(folder, tmp_path / "run")
    for at in ("soon", "nan", ""):
        with pytest.raises(UserError, match="the time at which vertices are looked at"):
            run.outputs(at=at)
    ignoring = train(folder, tmp_path / "ignoring", train={"times": "ignore"})
    with pytest.raises(UserError, match="the run ignores times"):
        ignoring.outputs(at=3)
    plain = weft.train("synthetic:tiny", MODEL, run=tmp_path / "plain", quiet=True, train={"epochs": 1})
    with pytest.raises(UserError, match="the edges of synthetic-tiny have no times"):
        plain.outputs(at=3)


# -- links and labels of edges ----------------------------------------------------------------------------------


LINKS = {"task": "links", "metric": "mrr"}


@pytest.mark.parametrize("link", [{}, {"hold_out": "random", "draw": "batch"}, {"replace": "tails", "decoder": "mlp"}])
def test_links_at_their_times_on_several_workers_as_on_one(folder, tmp_path, link):
    runs = [
        train(folder, tmp_path / str(workers), "batchgnn", workers, train=LINKS, sample={"batch": 300},
              link={"eval_negatives": 5, "val": 0.1, "test": 0.2, **link})
        for workers in (1, 3)
    ]  # fmt: skip
    alone, several = (run.summary for run in runs)
    assert several["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-9)
    assert several["test_mrr"] == pytest.approx(alone["test_mrr"]) and 0 < alone["val_mrr"] <= 1
    np.testing.assert_allclose(runs[1].outputs().values, runs[0].outputs().values, rtol=1e-9, atol=1e-9)


def link_sampler(graph):
    comm, config = Communicator.alone(), LinkConfig(val=0.1, test=0.2)
    shard = whole_shard(graph, reorder=False)
    book, held_out = PartitionBook(shard, comm), HeldOut(shard, comm, config, 0, by_time=True, in_graph=True)
    distributed = weft.DistributedGraph(shard, comm)
    links = LinkPrediction(distributed, torch.nn.Identity(), shard.x, held_out, book, config, 0, at=None)
    source = links.source(64)
    return held_out, source, MomentSampler(
        source, shard, book, comm, Drawing((-1, -1), "neighbour", 0, sees="before"), edge_ids=True
    )  # fmt: skip


def test_training_is_before_validation_before_testing():
    graph = timed_graph()
    held_out, source, _ = link_sampler(graph)
    trained = torch.cat([source.draw(1, step).times for step in range(source.steps)])
    assert float(trained.max()) < float(held_out.val.times.min()) <= float(held_out.val.times.max())
    assert float(held_out.val.times.max()) < float(held_out.test.times.min())
    csr = graph.adjacency
    loops = int((csr.indices == row_numbers(csr.indptr)).sum())
    learned = sum(int(source.draw(1, step).exist.sum()) for step in range(source.steps))
    assert learned + held_out.val.count + held_out.test.count == graph.num_edges - loops


def test_no_learned_edge_sees_itself_nor_what_happens_with_it():
    graph = timed_graph()
    _, source, sampler = link_sampler(graph)
    when, edges = sampler.neighbours.history._times, 0
    for batch in sampler.draw(1, range(source.steps)):
        drawn = source.draw(1, batch.step)
        for ends in drawn.moments:
            place = batch.places(ends.nodes, ends.times)
            assert torch.equal(batch.seeds[place], ends.nodes) and torch.equal(batch.seed_times[place], ends.times)
        for hop in batch.hops:
            looked_at = batch.times[: hop.csr.num_rows].repeat_interleave(hop.csr.degrees())
            assert bool((when[hop.edge_ids] < looked_at).all())
            edges += looked_at.numel()
    assert edges > 0


def edge_table(path, timed=True):
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, 60, (2, 200))
    rows = zip(src, dst, rng.integers(0, 9, 200), (src + dst) % 3, strict=True)
    path.write_text("src,dst,time,label\n" + "".join(f"{u},{v},{t},{y}\n" for u, v, t, y in rows))
    return str(path)


def test_labels_of_edges_at_their_times(folder, tmp_path):
    labels = edge_table(tmp_path / "labels.csv")
    runs = [
        train(folder, tmp_path / str(workers), "minibatch", workers, train={"task": "edges"}, edge={"labels": labels})
        for workers in (1, 2)
    ]
    assert runs[1].summary["train_loss"] == pytest.approx(runs[0].summary["train_loss"], rel=1e-9)
    found, wanted = (run.outputs() for run in reversed(runs))
    np.testing.assert_allclose(found.values, wanted.values, rtol=1e-9, atol=1e-9)
    times = np.loadtxt(labels, delimiter=",", skiprows=1)[:, 2]
    newest = {name: times[wanted.splits == name] for name in ("train", "val", "test")}
    assert newest["train"].max() < newest["val"].min() <= newest["val"].max() < newest["test"].min()


# -- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"strategy": "full"}, "plan full would let all vertices see later edges"),
        ({"strategy": "gsplit", "workers": 2, "sample": {"alone_hops": 1}}, "alone_hops is for edges without times"),
        ({"sample": {"method": "last"}, "train": {"times": "ignore"}}, "this run knows no times"),
        ({"sample": {"cache_aggregates": "always"}}, "every seed sees the edges of its own time"),
        ({"train": {"task": "links"}, "link": {"exclude": True}}, "no edge sees itself"),
        ({"sample": {"eval_fanout": [3]}}, "sample.eval_fanout has 1 entries"),
    ],
)
def test_what_makes_no_sense_is_refused(folder, tmp_path, more, sentence):
    with pytest.raises(UserError, match=sentence):
        train(folder, tmp_path / "run", **more)


def test_vertices_without_times_are_refused(folder, tmp_path):
    graph = load_graph(folder)
    save_graph(graph.with_vertex_data(time=None), tmp_path / "none")
    with pytest.raises(UserError, match="its vertices have none"):
        train(tmp_path / "none", tmp_path / "run")
    times = graph.time.clone()
    times[int(graph.val_mask.nonzero()[0])] = torch.nan
    save_graph(graph.with_vertex_data(time=times), tmp_path / "some")
    with pytest.raises(UserError, match="is in a split and has no time"):
        train(tmp_path / "some", tmp_path / "run2")


def test_a_table_of_edges_without_times_is_refused(folder, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("src,dst,label\n1,2,0\n3,4,1\n")
    with pytest.raises(UserError, match="has no times of its edges"):
        train(folder, tmp_path / "run", train={"task": "edges"}, edge={"labels": str(table)})


def test_links_of_the_full_graph_can_be_held_out_by_time(folder, tmp_path):
    settings = {"train": {"task": "links", "times": "ignore"}, "link": {"hold_out": "time", "val": 0.1, "test": 0.2}}
    runs = [train(folder, tmp_path / str(workers), "full", workers, **settings) for workers in (1, 2)]
    assert runs[1].summary["test_roc_auc"] == pytest.approx(runs[0].summary["test_roc_auc"])
    graph = load_graph(folder)
    past = filter_csr(graph.adjacency, graph.adjacency.time <= graph.adjacency.time.sort().values[-1] - 4)
    save_graph(replace(graph, adjacency=replace(past, time=None)), tmp_path / "without")
    with pytest.raises(UserError, match="no times to be held out by"):
        train(tmp_path / "without", tmp_path / "refused", train={"task": "links"}, link={"hold_out": "time"})


def test_auto_takes_a_plan_that_heeds_times(folder, tmp_path):
    assert train(folder, tmp_path / "run", strategy="auto", train={"eval_every": 0}).config.exchange.plan != "full"
