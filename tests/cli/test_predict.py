"""`weft predict` and `weft export --what` as a stranger uses them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import weft
from weft.graph import save_graph

OLD = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A graph folder, a run on it, and files of two new vertices."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(OLD, size=(2, 300))
    names = np.array([f"v{k}" for k in range(OLD)])
    graph = weft.from_edges(
        names[src], names[dst], ids=names, x=rng.random((OLD, 3)), y=np.arange(OLD) % 2, class_names=["no", "yes"],
        train_mask=np.arange(OLD) < 40, val_mask=np.arange(OLD) >= 40, undirected=True, name="old",
    )  # fmt: skip
    save_graph(graph, tmp_path / "graph")
    weft.train(tmp_path / "graph", {"name": "sage", "hidden": 8}, run=tmp_path / "run", quiet=True, train={"epochs": 2})
    (tmp_path / "new.csv").write_text("from,to\nv3,new1\nnew1,new2\nnew2,v5\n")
    (tmp_path / "nodes.csv").write_text("id,a,b,c\nnew1,0.1,0.2,0.3\nnew2,0.4,0.5,0.6\n")
    return tmp_path


@pytest.fixture
def run(request: pytest.FixtureRequest, folder: Path) -> Any:
    """The command line; as a parameter its fixture would hide the package of the same name."""
    return request.getfixturevalue("weft")


def test_new_vertices_are_predicted(run: Any, folder: Path) -> None:
    attach = ["--attach", "new.csv", "--features", "nodes.csv", "--undirected"]
    code, out, err = run("predict", "run", *attach, "--what", "probabilities", "--out", "new.parquet")
    assert code == 0, err
    assert "2 vertices written to new.parquet" in out and "class" in out
    rows = pq.read_table("new.parquet").to_pylist()
    assert [row["id"] for row in rows] == ["new1", "new2"]
    joined = weft.attach(weft.load("graph"), "new.csv", "nodes.csv", undirected=True)
    wanted = weft.Run("run").predict(joined).probabilities[OLD:]
    assert [[row["probability_no"], row["probability_yes"]] for row in rows] == wanted.tolist()
    code, out, err = run("predict", "run", "--data", "graph")
    assert code == 0 and "accuracy where a label is known" in out, err
    assert run("export", "run", "--what", "embeddings", "--out", "e.npy")[0] == 0
    assert np.load("e.npy").shape == (OLD, 8)


MISTAKES = [
    (["predict", "run"], "give --data GRAPH, or --attach EDGES"),
    (["predict", "run", "--attach", "new.csv"], "give both --attach EDGES and --features FILE"),
    (["predict", "run", "--data", "synthetic:tiny"], "has 16 features and the run's model was trained on 3"),
    (["predict", "run", "--data", "graph", "--what", "probability"], "did you mean 'probabilities'"),
    (["predict", "run", "--data", "graph", "--out", "x.xlsx"], ".parquet"),
    (["predict", "missing", "--data", "graph"], "does not exist"),
    (["export", "run", "--what", "embedding", "--out", "x.npy"], "did you mean 'embeddings'"),
]


def test_mistakes_get_one_sentence(run: Any, folder: Path) -> None:
    before = {path for path in folder.rglob("*") if not path.name.startswith(".")}
    for args, hint in MISTAKES:
        code, out, err = run(*args)
        assert code == 2 and len(err.strip().splitlines()) == 1 and hint in err, (args, out, err)
    assert {path for path in folder.rglob("*") if not path.name.startswith(".")} == before
