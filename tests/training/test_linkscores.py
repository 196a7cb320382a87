"""Scores of pairs and best candidates of vertices: those of a plain numpy computation on the exported rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import weft
from tests.one_run import trained
from tests.sample.cases import a_graph
from weft import linkscores
from weft.errors import UserError
from weft.export import write_outputs
from weft.graph import save_graph
from weft.launch.trained import load_decoder
from weft.results import Run

N, NAMES = 60, ("likes", "buys", "sees")
IDS = np.array([f"v{(7 * k) % N:02d}" for k in range(N)])  # ids are not in the order of vertices
BASE: dict[str, Any] = {
    "model": {"name": "sage", "hidden": 6}, "train": {"task": "links", "epochs": 2, "trace_epochs": 0}, "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("links")
    graph = replace(a_graph(), original_ids=IDS, relation_names=NAMES).with_vertex_data(test_mask=None)
    save_graph(graph, folder / "graph")
    weft.partition(graph, 3, folder / "parts", method="random")
    settings = {**BASE, "data": str(folder / "graph"), "workers": 1}
    trained(folder / "dot", settings)
    trained(folder / "mlp", {**settings, "link": {"decoder": "mlp"}})
    trained(
        folder / "distmult", {**settings, "link": {"decoder": "distmult"}, "data": str(folder / "parts"), "workers": 3}
    )
    trained(folder / "buys", {**settings, "link": {"relations": ["buys"]}})
    return {name: Run(folder / name) for name in ("dot", "mlp", "distmult", "buys")}


def plain_scores(run: Run, heads: np.ndarray, tails: np.ndarray, relation: int | None) -> np.ndarray:
    """Of pairs, in numpy, from the rows that `weft export` writes."""
    out = run.path.parent / f"{run.path.name}-rows.npy"
    write_outputs(run.path, out, overwrite=True)
    rows = np.load(out).astype(np.float64)
    u, v = rows[heads], rows[tails]
    weights = {name: p.detach().double().numpy() for name, p in run.model().named_parameters() if "decoder" in name}
    if "decoder.weight" in weights:
        return (u * weights["decoder.weight"][relation] * v).sum(1)
    if not weights:
        return (u * v).sum(1)
    hidden = np.concatenate([u, v, u * v], 1) @ weights["decoder.hidden.weight"].T + weights["decoder.hidden.bias"]
    return (np.maximum(hidden, 0) @ weights["decoder.out.weight"].T + weights["decoder.out.bias"])[:, 0]


def plain_candidates(run: Run, given: int, count: int, forward: bool, relation: int | None, known: bool) -> list[Any]:
    """(candidate, score), best first, by going through all vertices."""
    csr = a_graph().adjacency
    assert csr.relation is not None
    tails = np.arange(N).repeat(csr.degrees().numpy())
    edges = set()
    pool = set(range(N)) if relation is None else set()
    for head, tail, of in zip(csr.indices.tolist(), tails.tolist(), csr.relation.tolist(), strict=True):
        if relation is None or of == relation:
            edges.add((head, tail) if forward else (tail, head))
            if relation is not None:
                pool.add(tail if forward else head)
    able = [v for v in sorted(pool) if v != given and (known or (given, v) not in edges)]
    pair = np.full(len(able), given), np.array(able, np.int64)
    scores = plain_scores(run, *(pair if forward else pair[::-1]), relation)
    order = np.argsort(-scores, kind="stable")[:count]
    return [(able[k], float(scores[k])) for k in order]


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(
    ("name", "relation", "side", "known"),
    [
        ("dot", None, "destinations", False),
        ("dot", "sees", "sources", False),
        ("mlp", None, "sources", True),
        ("mlp", "likes", "destinations", False),
        ("distmult", "likes", "destinations", False),
        ("buys", None, "destinations", False),  # the one relation that it learned
    ],
)
def test_candidates_are_those_of_a_plain_computation(
    runs: dict[str, Run],
    name: str,
    relation: str | None,
    side: str,
    known: bool,
    small: bool,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    if small:  # several blocks of given vertices, of candidates, and of edges
        monkeypatch.setattr(linkscores, "CANDIDATES", 13)
        monkeypatch.setattr(linkscores, "BLOCK_NUMBERS", 64)
    run, given, number = runs[name], [3, 59, 0, 3], NAMES.index(relation) if relation else None
    number = 1 if name == "buys" else number
    (tmp_path / "ids.csv").write_text("id\n" + "\n".join(IDS[given]) + "\n")
    out = tmp_path / "top.parquet"
    count = linkscores.write_candidates(run, out, 7, tmp_path / "ids.csv", side, relation, known)
    table = pyarrow.parquet.read_table(out).to_pydict()
    wanted = [plain_candidates(run, vertex, 7, side == "destinations", number, known) for vertex in given]
    assert count == len(table["rank"]) == sum(map(len, wanted)) > 0
    asked, found = ("source", "destination") if side == "destinations" else ("destination", "source")
    assert table[asked] == [IDS[v] for v, best in zip(given, wanted, strict=True) for _ in best]
    assert table[found] == [IDS[candidate] for best in wanted for candidate, _ in best]
    assert table["rank"] == [k + 1 for best in wanted for k in range(len(best))]
    np.testing.assert_allclose(table["score"], [score for best in wanted for _, score in best], rtol=1e-4, atol=1e-5)
    assert table.get("relation", [None])[0] == (None if number is None else NAMES[number])


def test_pairs_are_scored_in_the_order_of_their_file(runs: dict[str, Run], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    heads, tails, relations = rng.integers(0, N, 40), rng.integers(0, N, 40), rng.integers(0, 3, 40)
    lines = [f"{IDS[u]},{IDS[v]},{NAMES[r]}" for u, v, r in zip(heads, tails, relations, strict=True)]
    (tmp_path / "pairs.csv").write_text("src,dst,relation\n" + "\n".join(lines) + "\n")
    assert linkscores.write_pair_scores(runs["distmult"], tmp_path / "pairs.csv", tmp_path / "scores.csv") == 40
    table = pyarrow.csv.read_csv(tmp_path / "scores.csv").to_pydict()
    assert table["source"] == IDS[heads].tolist() and table["destination"] == IDS[tails].tolist()
    assert table["relation"] == [NAMES[r] for r in relations]
    each = [plain_scores(runs["distmult"], heads[k : k + 1], tails[k : k + 1], int(r)) for k, r in enumerate(relations)]
    np.testing.assert_allclose(table["score"], np.concatenate(each), rtol=1e-4, atol=1e-5)
    (tmp_path / "plain.csv").write_text("src,dst\n" + "\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    linkscores.write_pair_scores(runs["mlp"], tmp_path / "plain.csv", tmp_path / "mlp.csv")
    found = pyarrow.csv.read_csv(tmp_path / "mlp.csv").to_pydict()
    assert list(found) == ["source", "destination", "score"]
    np.testing.assert_allclose(found["score"], plain_scores(runs["mlp"], heads, tails, None), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dot", "mlp", "distmult"])
def test_a_grid_is_its_pairs(runs: dict[str, Run], name: str) -> None:
    decoder = load_decoder(runs[name].path)
    heads, tails = torch.randn(5, 6), torch.randn(4, 6)
    with torch.no_grad():
        grid = decoder.grid(heads, tails, 2)
        one_by_one = decoder(heads.repeat_interleave(4, 0), tails.repeat(5, 1), torch.full((20,), 2))
    torch.testing.assert_close(grid, one_by_one.view(5, 4))


def test_of_equal_scores_the_first_vertex_is_better() -> None:
    scores = torch.tensor([[1.0, 3, 3, 2, 3, 1], [0, 0, 0, 0, 0, 0], [6, 5, 4, 3, 2, 1]])
    assert linkscores._first_of_largest(scores, 2).tolist() == [[1, 2], [0, 1], [0, 1]]
    assert linkscores._first_of_largest(scores, 9).tolist()[0] == [1, 2, 4, 3, 0, 5]


def test_mistakes_leave_nothing_behind(runs: dict[str, Run], tmp_path: Path) -> None:
    out = tmp_path / "top.csv"
    (tmp_path / "ids.csv").write_text("id\nnobody\n")
    for make, refused in (
        (
            lambda: linkscores.write_candidates(runs["dot"], out, 3, tmp_path / "ids.csv"),
            "'nobody', which is not among",
        ),
        (lambda: linkscores.write_candidates(runs["distmult"], out, 3), "by its relation: name one with --relation"),
        (lambda: linkscores.write_candidates(runs["dot"], out, 3, relation="byus"), "did you mean 'buys'"),
        (lambda: linkscores.write_candidates(runs["dot"], out, 3, side="both"), "destinations or sources, not 'both'"),
        (lambda: linkscores.write_candidates(runs["dot"], tmp_path / "top.npy", 3), "write .parquet or .csv"),
    ):
        with pytest.raises(UserError, match=refused):
            make()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.csv"]
    labels = weft.train("synthetic:tiny", run=tmp_path / "labels", quiet=True, threads=1, train={"epochs": 1})
    with pytest.raises(UserError, match="pairs are scored by runs that learned which edges exist"):
        linkscores.write_candidates(labels, out, 3)
