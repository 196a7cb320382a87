"""Link prediction: ranks against numpy, ways to draw pairs, decoders, given splits, relations, the whole graph."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import weft
from tests.one_run import trained
from tests.partitioning.drawn import graph_edges
from tests.sample.cases import a_graph, spread
from tests.workers import run_workers
from weft.comm import Communicator
from weft.config import make_config, merge
from weft.export import write_outputs
from weft.graph import Graph
from weft.partitioning import Shard, load_shard, make_shards, whole_shard
from weft.prepare import hold_out
from weft.sample import PartitionBook
from weft.training.generation import generations
from weft.training.held_out import Ends, GivenEdges, HeldOut
from weft.training.ranking import is_rank_metric, rank_value, ranks
from weft.training.settings import LinkConfig

ALONE = Communicator.alone()
TINY = "synthetic:tiny?homophily=0.95,noise=1"
BASE: dict[str, Any] = {
    "data": TINY, "model": {"name": "sage", "hidden": 16, "layers": 2, "dropout": 0.0, "norm": "none"},
    "optim": {"lr": 0.02}, "seed": 3, "threads": 1, "sample": {"batch": 256, "fanout": [10, 10]},
    "train": {"task": "links", "epochs": 20, "trace_epochs": 0},
}  # fmt: skip


def brute_rank(score: float, others: list[float]) -> float:
    """From 1; an equal score counts half, and what is no number counts against the edge."""
    return 1 + sum(0.5 if other == score else 0.0 if other < score else 1.0 for other in others)


def test_ranks_equal_a_plain_count_with_ties() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, others = torch.randn(40, generator=generator).round(), torch.randn(40, 30, generator=generator).round()
    scores[3], others[4, 7] = torch.nan, torch.nan
    found = ranks(scores, others)
    wanted = [brute_rank(one, many) for one, many in zip(scores.tolist(), others.tolist(), strict=True)]
    assert found.tolist() == wanted and found[3] == 31
    assert rank_value("mrr", found).tolist() == [1 / rank for rank in wanted]
    assert rank_value("hits@5", found).tolist() == [float(rank <= 5) for rank in wanted]
    assert is_rank_metric("hits@10") and not is_rank_metric("hits@0") and not is_rank_metric("hits@")


# -- pairs ----------------------------------------------------------------------------------------------------------


def drawn(comm: Communicator, shards: list[Shard], config: LinkConfig, batch: int) -> Any:
    """(step, head, tail, exists) of an epoch by global id, and the ranked pairs of testing; turned ones turned back."""
    shard = shards[comm.worker]
    ids = torch.cat([each.global_ids for each in shards])
    held_out = HeldOut(shard, comm, config, 3)
    book = PartitionBook(shard, comm)
    learned, _ = held_out.learned(Ends.of(held_out.without(shard), book))
    ends = learned.turned(book, comm) if held_out.turned else learned
    pooled = config.draw == "batch"
    source = ends.links(book, held_out.absent, batch, config.negatives, 7, comm, both_ways=True, pooled=pooled)
    found = []
    for step in range(source.steps):
        seeds = set(source.seeds(5, step).tolist())
        one = source.draw(5, step)
        assert seeds == set(one.heads.tolist()) | set(one.tails.tolist())
        assert int(source.sizes(5)[step]) == len(one.heads)
        pairs = [ids[end.long()].tolist() for end in (one.heads, one.tails)]
        if held_out.turned:
            pairs.reverse()
        found += list(zip([step] * len(one.heads), *pairs, one.exist.tolist(), strict=True))
    links = held_out.test.links(book, held_out.absent, 30, 4, 7, comm)
    ranked = []
    for step in range(links.steps):
        these = links.ranked(step)
        for head, tail, others in zip(these.heads, these.tails, these.others, strict=True):
            ends_of = (int(ids[head.long()]), int(ids[tail.long()]))
            ranked.append((ends_of[:: -1 if held_out.turned else 1], sorted(ids[others.long()].tolist())))
    return found, ranked


def all_pairs(answers: list[Any]) -> tuple[list[Any], list[Any]]:
    return sorted(pair for answer in answers for pair in answer[0]), sorted(
        one for answer in answers for one in answer[1]
    )


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("more", [{"replace": "tails"}, {"draw": "batch"}, {"replace": "tails", "draw": "batch"}])
def test_pairs_are_none_and_do_not_depend_on_placement(more: dict[str, Any], num_workers: int) -> None:
    graph = a_graph(60, 900)
    config = LinkConfig(val=0.1, test=0.2, negatives=2, **more)
    wanted = all_pairs(run_workers(drawn, 1, [whole_shard(graph, reorder=False)], config, 200))
    shards = make_shards(graph, spread(60, num_workers), num_workers)
    assert all_pairs(run_workers(drawn, num_workers, shards, config, 200)) == wanted
    edges = {(head, tail) for head, tail, _ in graph_edges(graph)}
    found, ranked = wanted
    positive = [(head, tail) for _, head, tail, exists in found if exists]
    negative = [(head, tail) for _, head, tail, exists in found if not exists]
    assert set(positive) <= edges and not set(negative) & edges and len(negative) == 2 * len(positive)
    assert all(head != tail for head, tail in negative)
    fixed = 0 if config.replace == "tails" else 1
    assert sorted(pair[fixed] for pair in positive) * 1 == sorted(pair[fixed] for pair in negative)[::2]
    for (head, tail), others in ranked:
        assert (head, tail) in edges
        pairs = {(head, other) if config.replace == "tails" else (other, tail) for other in others}
        assert not pairs & edges and len(others) == 4


def test_heads_of_the_minibatch_are_drawn_from_it() -> None:
    """All other heads but those that would make an edge are heads of the same step's edges."""
    graph = a_graph(200, 900)
    config = LinkConfig(val=0.0, test=0.2, negatives=3, draw="batch")
    found, _ = all_pairs(run_workers(drawn, 1, [whole_shard(graph, reorder=False)], config, 100))
    heads: dict[int, set[int]] = {}
    for step, head, _, exists in found:
        if exists:
            heads.setdefault(step, set()).add(head)
    inside = [head in heads[step] for step, head, _, exists in found if not exists]
    assert np.mean(inside) > 0.9
    uniform, _ = all_pairs(
        run_workers(drawn, 1, [whole_shard(graph, reorder=False)], config.model_copy(update={"draw": "uniform"}), 100)
    )
    assert np.mean([head in heads[step] for step, head, _, exists in uniform if not exists]) < 0.6


def test_an_edge_and_its_reverse_are_learned_together() -> None:
    graph = weft.load("synthetic:tiny")
    found, _ = all_pairs(run_workers(drawn, 1, [whole_shard(graph, reorder=False)], LinkConfig(), 100))
    steps: dict[frozenset[int], set[int]] = {}
    for step, head, tail, exists in found:
        if exists:
            steps.setdefault(frozenset((head, tail)), set()).add(step)
    assert len(steps) > 100 and all(len(each) == 1 for each in steps.values())


# -- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with three relations, one from even to odd vertices, in three parts."""
    folder = tmp_path_factory.mktemp("links")
    weft.partition(related(), 3, folder / "parts", method="random")
    return folder / "parts"


def related() -> Graph:
    tiny = weft.load(TINY)
    head = tiny.adjacency.indices.long()
    tail = torch.arange(tiny.num_nodes).repeat_interleave(tiny.adjacency.degrees())
    relation = torch.where((head % 2 == 0) & (tail % 2 == 1), 1, torch.where(head + tail > 300, 2, 0))
    names = [f"v{number}" for number in range(tiny.num_nodes)]
    kinds = ["other", "buys", "late"]
    return weft.from_edges(
        [names[k] for k in head], [names[k] for k in tail], ids=names, x=tiny.x, relation=[kinds[k] for k in relation],
        relation_names=kinds, name="shop",
    )  # fmt: skip


def decoded(folder: Path, decoder: str, heads: Any, tails: Any, relations: Any) -> Any:
    """Scores by numpy, with the decoder's best weights."""
    if decoder == "dot":
        return (heads * tails).sum(-1)
    state = load_file(generations(folder / "checkpoints")[-1] / "state.safetensors")
    best = {
        name.removeprefix("best.decoder."): w.double().numpy() for name, w in state.items() if "best.decoder" in name
    }
    if decoder == "distmult":
        return (heads * best["weight"][relations] * tails).sum(-1)
    both = np.concatenate([heads, tails, heads * tails], -1)
    hidden = np.maximum(both @ best["hidden.weight"].T + best["hidden.bias"], 0)
    return (hidden @ best["out.weight"].T + best["out.bias"])[..., 0]


def by_numpy(run: weft.Run, metric: str, config: Any) -> dict[str, float]:
    """The metric on each split from the rows that the run exports and the pairs that one worker draws."""
    rows = run.outputs().values.astype(np.float64)
    shard = whole_shard(related(), reorder=False)
    held_out, _ = hold_out(config, run.path, shard, ALONE)
    book, found = PartitionBook(shard, ALONE), {}
    absent = held_out.by_relation or held_out.absent
    for split, ends in (("val", held_out.val), ("test", held_out.test)):
        links = ends.links(book, absent, 50, config.link.eval_negatives, config.seed, ALONE, held_out.kinds(ends))
        values = []
        for step in range(links.steps):
            one = links.ranked(step)
            heads, tails, others = (shard.global_ids[end.long()].numpy() for end in (one.heads, one.tails, one.others))
            relation = None if one.relations is None else one.relations.numpy()
            for k in range(len(heads)):
                kind = None if relation is None else relation[k]
                near, far = rows[tails[k]], rows[np.concatenate([[heads[k]], others[k]])]
                ends_of = (
                    (near[None].repeat(len(far), 0), far) if held_out.turned else (far, near[None].repeat(len(far), 0))
                )
                scores = decoded(run.path, config.link.decoder, *ends_of, kind)
                rank = brute_rank(scores[0], scores[1:].tolist())
                values.append(1 / rank if metric == "mrr" else float(rank <= int(metric.removeprefix("hits@"))))
        found[f"{split}_{metric}"] = float(np.mean(values))
    return found


@pytest.mark.parametrize(
    ("decoder", "metric", "workers", "more"),
    [
        ("dot", "mrr", 1, {}),
        ("dot", "hits@3", 3, {"replace": "tails"}),
        ("distmult", "mrr", 3, {"draw": "batch", "exclude": True}),
        ("mlp", "hits@10", 3, {"exclude": True, "replace": "tails", "relations": ["buys"]}),
        ("mlp", "mrr", 1, {"relations": ["buys", "late"], "draw": "batch"}),
    ],
)
def test_mrr_and_hits_are_those_of_a_plain_computation(
    tmp_path: Path, parts: Path, decoder: str, metric: str, workers: int, more: dict[str, Any]
) -> None:
    link = {"decoder": decoder, "eval_negatives": 20, **more}
    settings = merge(
        BASE,
        {
            "data": str(parts), "workers": workers, "strategy": "batchgnn", "link": link,
            "train": {"metric": metric, "epochs": 4}, "run": str(tmp_path / "run"),
        },
    )  # fmt: skip
    trained(tmp_path / "run", settings)
    run = weft.Run(tmp_path / "run")
    values = run.evaluate()
    wanted = by_numpy(run, metric, make_config(settings))
    assert values == pytest.approx(wanted, abs=2e-3)  # scores that differ in their last bits may change places
    for name, value in values.items():
        assert run.summary[name] == pytest.approx(value, abs=2e-3)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("full", {}),
        ("sar", {"link": {"decoder": "mlp"}}),
        ("full", {"exchange": {"schedule": "overlapped"}, "link": {"replace": "tails"}}),
        ("minibatch", {"link": {"exclude": True}}),
        ("batchgnn", {"link": {"draw": "batch", "replace": "tails", "exclude": True}}),
    ],
)
def test_links_are_learned_under_every_strategy(
    tmp_path: Path, workers: int, strategy: str, more: dict[str, Any]
) -> None:
    epochs = 60 if strategy in ("full", "sar") else 15
    settings = merge(merge(BASE, more), {"workers": workers, "strategy": strategy, "train": {"epochs": epochs}})
    summary = trained(tmp_path / "run", settings)
    assert summary["metric"] == "roc_auc" and summary["test_roc_auc"] > 0.75


@pytest.mark.parametrize("link", [{}, {"replace": "tails", "draw": "batch", "decoder": "mlp"}])
def test_workers_learn_the_same_links_over_the_whole_graph(tmp_path: Path, parts: Path, link: dict[str, Any]) -> None:
    train = {"epochs": 4, "precision": "float64", "metric": "mrr"}
    settings = merge(BASE, {"data": str(parts), "train": train, "link": link})
    losses = []
    for workers in (1, 3):
        trained(tmp_path / f"{workers}", {**settings, "workers": workers})
        losses.append([record["train_loss"] for record in weft.Run(tmp_path / f"{workers}").metrics])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)


# -- what is held out -----------------------------------------------------------------------------------------------


def held(comm: Communicator, shards: list[Shard], given: dict[str, GivenEdges]) -> Any:
    shard = shards[comm.worker]
    held_out = HeldOut(shard, comm, LinkConfig(), 3, given)
    left = held_out.without(shard)
    book = PartitionBook(shard, comm)
    kept = Ends.of(left, book)
    tests = list(zip(held_out.test.head_ids.tolist(), held_out.test.tail_ids.tolist(), strict=True))
    free = (
        held_out.absent.have(torch.zeros(1, dtype=torch.int64), torch.tensor([59])) if comm.num_workers == 1 else None
    )
    return list(zip(kept.head_ids.tolist(), kept.tail_ids.tolist(), strict=True)), tests, free


@pytest.mark.parametrize("num_workers", [1, 3])
def test_given_edges_and_their_reverses_are_not_trained_on(num_workers: int) -> None:
    graph = a_graph(60, 900)
    edges = [(head, tail) for head, tail, _ in graph_edges(graph) if head != tail]
    some = torch.tensor([*edges[::9], (59, 0)])
    given = {"val": GivenEdges(some[:0, 0], some[:0, 1]), "test": GivenEdges(some[:, 0], some[:, 1])}
    shards = make_shards(graph, spread(60, num_workers), num_workers)
    if num_workers == 1:
        shards = [whole_shard(graph, reorder=False)]
    answers = run_workers(held, num_workers, shards, given)
    kept = sorted(edge for answer in answers for edge in answer[0])
    listed = set(map(frozenset, some.tolist()))
    wanted = sorted((head, tail) for head, tail, _ in graph_edges(graph) if frozenset((head, tail)) not in listed)
    assert kept == wanted and len(kept) < graph.num_edges - len(some) / 2
    assert sorted(edge for answer in answers for edge in answer[1]) == sorted(map(tuple, some.tolist()))
    if num_workers == 1:
        assert not bool(answers[0][2])  # an edge that only the file has is an edge


def test_a_split_of_files_is_what_is_evaluated(tmp_path: Path) -> None:
    graph = related()
    edges = [(head, tail) for head, tail, _ in graph_edges(graph) if head != tail]
    rng = np.random.default_rng(0)
    for split in ("val", "test"):
        chosen = rng.choice(len(edges), 60, replace=False)
        lines = [f"v{edges[k][0]},v{edges[k][1]},buys" for k in chosen]
        (tmp_path / f"{split}.csv").write_text("\n".join(["source,target,relation", *lines]) + "\n")
    link = {f"{split}_edges": str(tmp_path / f"{split}.csv") for split in ("val", "test")}
    more = {"link": {**link, "eval_negatives": 10}, "train": {"epochs": 3, "metric": "mrr"}}
    settings = {**merge(BASE, more), "strategy": "batchgnn"}
    settings.pop("data")
    run = weft.train(graph, run=tmp_path / "run", quiet=True, **settings)
    wanted = by_numpy(run, "mrr", make_config({**run.config.model_dump(), "run": str(run.path)}))
    assert run.evaluate() == pytest.approx(wanted, abs=2e-3)
    lines = (tmp_path / "test.csv").read_text().splitlines()
    (tmp_path / "test.csv").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(weft.UserError, match="edges of link"):
        weft.train(graph, run=tmp_path / "run", quiet=True, resume=True, **merge(settings, {"train": {"epochs": 4}}))
    (tmp_path / "test.csv").write_text("source,target,relation\nv0,nobody,buys\n")
    with pytest.raises(weft.UserError, match="'nobody' is not among the graph's ids"):
        weft.train(graph, run=tmp_path / "other", quiet=True, **settings)


def test_only_edges_of_the_asked_for_relations_are_learned(parts: Path) -> None:
    """Other vertices are those that edges of the relation have at that end."""
    config = make_config({**BASE, "data": str(parts), "link": {"relations": ["buys"], "replace": "tails"}})
    shard = load_shard(parts, 0, 1)
    held_out, _ = hold_out(config, parts, shard, ALONE)
    book = PartitionBook(shard, ALONE)
    learned, _ = held_out.learned(Ends.of(held_out.without(shard), book))
    assert learned.relations is not None and set(learned.relations.tolist()) == {1}
    ends = learned.turned(book, ALONE)
    source = ends.links(book, held_out.by_relation, 10**6, 3, 0, ALONE, held_out.kinds(ends))
    pairs = source.draw(1, 0)
    heads, tails = shard.global_ids[pairs.tails.long()], shard.global_ids[pairs.heads.long()]
    assert bool((heads % 2 == 0).all()) and bool((tails % 2 == 1).all()) and len(heads) > 3 * learned.count


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": {"metric": "accuracy"}}, "links are evaluated by roc_auc, mrr or hits@K"),
        ({"train": {"metric": "hits@500"}}, "counts every edge"),
        ({"train": {"select": "loss"}}, "leave train.select out"),
        ({"train": {"loss": "mse"}}, "train.loss=mse is for labels"),
        ({"link": {"exclude": True}}, "use --strategy minibatch or batchgnn with it"),
        ({"device": "cuda"}, "works in host memory"),
        ({"strategy": "gsplit"}, "an edge's two ends may have two"),
        ({"strategy": "dorylus"}, "use another strategy than dorylus"),
        ({"link": {"decoder": "distmult"}}, "the edges of synthetic-tiny have none"),
        ({"link": {"relations": ["buys"]}}, "have no relations"),
        ({"strategy": "batchgnn", "link": {"exclude": True}, "sample": {"cache_aggregates": "always"}}, "link.exclude"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.UserError, match=message):
        weft.train(**merge(BASE, settings), run=tmp_path / "run", quiet=True)


def test_a_split_without_relations_is_refused_where_several_are_learned(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("source,target\nv0,v1\n")
    settings = {**merge(BASE, {"link": {"test_edges": str(tmp_path / "test.csv"), "decoder": "distmult"}})}
    settings.pop("data")
    with pytest.raises(weft.UserError, match="give it a column 'relation'"):
        weft.train(related(), run=tmp_path / "run", quiet=True, **settings)


@pytest.mark.parametrize("strategy", ["full", "minibatch"])
def test_embeddings_are_learned_without_labels_and_exported(tmp_path: Path, strategy: str) -> None:
    tiny = weft.load(TINY)
    bare = tiny.with_vertex_data(y=None, train_mask=None, val_mask=None, test_mask=None)
    bare = replace(bare, num_classes=0, class_names=None)
    settings = {**merge(BASE, {"link": {"val": 0, "test": 0}, "train": {"epochs": 15}}), "strategy": strategy}
    settings.pop("data")
    run = weft.train(bare, run=tmp_path / "run", quiet=True, **settings)
    assert not [name for name in run.summary if name.startswith(("val_", "test_"))]
    write_outputs(run.path, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", *(f"embedding_{k}" for k in range(16))]
    rows = np.stack([table.column(name).to_numpy() for name in table.column_names[1:]], 1)
    head = tiny.adjacency.indices.numpy()
    tail = np.repeat(np.arange(tiny.num_nodes), tiny.adjacency.degrees().numpy())
    other = np.random.default_rng(0).permutation(tail)
    assert np.mean((rows[head] * rows[tail]).sum(1) > (rows[head] * rows[other]).sum(1)) > 0.75
