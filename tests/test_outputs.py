"""What follows from a model's outputs, and how it looks as a table and in files."""

from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import weft
from weft.errors import UserError
from weft.export import write_outputs
from weft.outputs import Outputs, split_names

VALUES = np.array([[1.0, 2.0, -1.0], [0.5, -0.5, 4.0]])


def test_probabilities_are_softmax_and_predictions_its_largest() -> None:
    found = Outputs(np.array(["a", "b"]), VALUES, ("x", "y", "z"), targets=np.array([1, -1]))
    shares = np.exp(VALUES) / np.exp(VALUES).sum(1, keepdims=True)
    np.testing.assert_allclose(found.probabilities, shares, rtol=1e-6)
    assert found.predictions.tolist() == [1, 2] and found.accuracy == 1.0
    assert found.class_counts == {"y": 1, "z": 1, "x": 0}
    assert found.table("probabilities").column_names == [
        "id", "prediction", "class", "probability_x", "probability_y", "probability_z", "target", "target_class"
    ]  # fmt: skip
    assert found.table("predictions").to_pylist()[1] == {
        "id": "b", "prediction": 2, "class": "z", "target": None, "target_class": None
    }  # fmt: skip


def test_several_labels_have_a_probability_each() -> None:
    found = Outputs(np.arange(2), VALUES, None, "labels", targets=np.array([[1, 0, -1], [0, 1, 1]]))
    np.testing.assert_allclose(found.probabilities, 1 / (1 + np.exp(-VALUES)), rtol=1e-6)
    assert found.accuracy == pytest.approx(2 / 5)
    row = found.table("predictions").to_pylist()[0]
    labels = {"label_0": True, "label_1": True, "label_2": False}
    assert row == {"id": 0, **labels, "target_0": True, "target_1": False, "target_2": None}


def test_numbers_have_no_probabilities() -> None:
    targets = np.array([[0.5, np.nan, 2.0], [1.0, 2.0, 3.0]], np.float32)
    found = Outputs(np.arange(2), VALUES, ("x", "y", "z"), "numbers", targets)
    assert (found.predictions == VALUES).all() and found.accuracy is None and not found.class_counts
    for what in ("outputs", "predictions"):
        assert found.table(what).to_pylist()[0] == {
            "id": 0, "prediction_x": 1.0, "prediction_y": 2.0, "prediction_z": -1.0,
            "target_x": 0.5, "target_y": None, "target_z": 2.0,
        }  # fmt: skip
    single = Outputs(np.arange(2), VALUES[:, :1], None, "numbers", targets[:, 0])
    assert single.predictions.tolist() == [1.0, 0.5]
    assert single.table("predictions").column_names == ["id", "prediction", "target"]
    with pytest.raises(UserError, match="learned numbers, and there are no probabilities"):
        _ = found.probabilities


def test_edges_are_named_by_their_ends() -> None:
    found = Outputs(np.array([["a", "b"], ["b", "a"]]), VALUES, targets=np.array([2, -1]))
    assert repr(found) == "Outputs(2 edges, 3 columns)"
    assert found.pick(slice(1)).table("predictions").to_pylist() == [
        {"source": "a", "destination": "b", "prediction": 1, "target": 2}
    ]


def test_splits_are_named_and_rows_are_picked() -> None:
    found = Outputs(np.arange(2), VALUES, splits=split_names(np.array([0, 3], np.int8)), id_name="paper")
    assert found.table("outputs").to_pylist()[0] == {
        "paper": 0, "prediction": 1, "output_0": 1.0, "output_1": 2.0, "output_2": -1.0, "split": None
    }  # fmt: skip
    assert found.pick(slice(1, None)).table("predictions").to_pylist() == [
        {"paper": 1, "prediction": 2, "split": "test"}
    ]
    assert Outputs(np.arange(2), VALUES, id_name="split").table("predictions").column_names[0] == "split"
    assert "id" in Outputs(np.arange(2), VALUES, id_name="prediction").table("predictions").column_names


def test_files_carry_the_users_own_words(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("from,to\n" + "".join(f"p{k},p{(k * 7 + 1) % 30}\n" for k in range(30)))
    rows = [f"p{k},{k % 2},{'odd' if k % 2 else 'even'},{['train', 'val', 'test'][k % 3]}\n" for k in range(30)]
    (tmp_path / "nodes.csv").write_text("paper,half,parity,split\n" + "".join(rows))
    graph = weft.ingest(
        tmp_path / "edges.csv", features=tmp_path / "nodes.csv", id_column="paper", label_columns=["parity"]
    )
    for workers in (1, 2):
        run = weft.train(graph, run=tmp_path / f"run{workers}", quiet=True, workers=workers, train={"epochs": 2})
        assert write_outputs(run.path, tmp_path / f"{workers}.parquet", what="probabilities") == 30
        table = pq.read_table(tmp_path / f"{workers}.parquet").to_pylist()
        for k, row in enumerate(table):
            assert row["paper"] == f"p{k}" and row["target_class"] == ("odd" if k % 2 else "even")
            assert row["split"] == ["train", "val", "test"][k % 3]
            assert row["probability_even"] + row["probability_odd"] == pytest.approx(1.0)
            assert (row["class"] == "odd") == (row["probability_odd"] > 0.5)
    write_outputs(run.path, tmp_path / "e.npy", what="embeddings")
    write_outputs(run.path, tmp_path / "p.npy", what="predictions")
    write_outputs(run.path, tmp_path / "o.csv")
    assert np.load(tmp_path / "e.npy").shape == (30, 64)
    names = pyarrow.csv.read_csv(tmp_path / "o.csv").column_names
    assert names == ["paper", "prediction", "class", "output_even", "output_odd", "target", "target_class", "split"]
    assert np.load(tmp_path / "p.npy").tolist() == run.outputs().predictions.tolist()
    with pytest.raises(UserError, match="did you mean 'embeddings'"):
        write_outputs(run.path, tmp_path / "x.npy", what="embedings")
    assert not (tmp_path / "x.npy").exists()
