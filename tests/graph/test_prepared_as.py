"""New rows become what rows of the same values became in the graph that a model learned from."""

from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from weft.errors import UserError

OLD, NEW = 40, 12


def tables(folder: Path) -> tuple[Path, Path, Path, Path, np.ndarray, np.ndarray]:
    """Vertices and edges of a graph and of new vertices, and the numbers and names in their columns."""
    rng = np.random.default_rng(0)
    age, town = rng.normal(40, 9, OLD + NEW), np.array(["oslo", "rome", "lima"])[rng.integers(3, size=OLD + NEW)]
    label = rng.integers(2, size=OLD + NEW)
    rows = [f"v{k},{age[k]},{town[k]},{'ab'[label[k]]}" for k in range(OLD + NEW)]
    pairs = rng.integers(OLD, size=(90, 2))
    edges = [f"v{a},v{b}" for a, b in pairs]
    new_edges = [f"v{OLD + k},v{rng.integers(NEW) + OLD}" for k in range(NEW)]
    contents = {
        "nodes.csv": ["id,age,town,label", *rows[:OLD]],
        "edges.csv": ["src,dst", *edges],
        "new-nodes.csv": ["id,age,town,label", *rows[OLD:]],
        "new-edges.csv": ["src,dst", *new_edges],
    }
    for name, lines in contents.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    nodes, edge_list, new_nodes, more = (folder / name for name in contents)
    return nodes, edge_list, new_nodes, more, age, town


def test_new_rows_are_made_by_the_statistics_of_the_old_ones(tmp_path: Path) -> None:
    nodes, edges, new_nodes, new_edges, age, town = tables(tmp_path)
    graph = weft.ingest(edges, features=nodes, split="random:0.5,0.2@0")
    train = graph.train_mask.numpy()
    scaled = (age[OLD:] - age[:OLD][train].mean()) / age[:OLD][train].std()
    other = weft.ingest(new_edges, features=new_nodes, prepared_as=graph.preparation)
    assert graph.preparation is not None and other.preparation is not None
    assert other.preparation.making == graph.preparation.making
    names = graph.preparation.names
    np.testing.assert_allclose(other.x[:, names.index("age")], scaled, rtol=1e-5, atol=1e-6)
    for name in ("oslo", "rome", "lima"):
        assert (other.x[:, names.index(f"town={name}")] == torch.from_numpy(town[OLD:] == name)).all()
    attached = weft.attach(graph, new_edges, new_nodes, label_columns=["label"])
    assert torch.equal(attached.x[:OLD], graph.x) and torch.equal(attached.x[OLD:], other.x)
    own = weft.ingest(new_edges, features=new_nodes)
    assert own.preparation is not None and own.preparation.making != graph.preparation.making
    with pytest.raises(UserError, match="leave out the one or the other"):
        weft.ingest(new_edges, features=new_nodes, prepared_as=graph.preparation, log_columns=["age"])


def test_a_model_is_not_put_on_rows_that_were_made_otherwise(tmp_path: Path) -> None:
    nodes, edges, new_nodes, new_edges, _, _ = tables(tmp_path)
    graph = weft.ingest(edges, features=nodes, split="random:0.5,0.2@0")
    run = weft.train(graph, run=tmp_path / "run", quiet=True, threads=1, train={"epochs": 1})
    with pytest.raises(UserError, match=r"prepared in another way.*--prepared-as"):
        run.predict(weft.ingest(new_edges, features=new_nodes))
    fitting = weft.ingest(new_edges, features=new_nodes, prepared_as=graph.preparation)
    assert run.predict(fitting).values.shape == (NEW, 2)
