"""A table of vertices beside edge files becomes what `weft ingest` makes of it."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from tests.graph.ordinary import ordinary
from tests.out_of_core.edgefiles import cut_files
from weft.cli import app as cli
from weft.errors import UserError
from weft.graph import ingest_edges
from weft.graph.preparation import FeatureChoices
from weft.partitioning import load_shard, read_partition

PEOPLE = 300


def save(folder: Path, suffix: str, **more: Any) -> tuple[Path, Path]:
    """edges.npy and nodes.SUFFIX of people who are numbered."""
    people = ordinary(PEOPLE)
    number = {name: k for k, name in enumerate(people.ids.tolist())}
    ends = [[number[name] for name in side.tolist()] for side in (people.src, people.dst)]
    np.save(folder / "edges.npy", np.array(ends))
    table = people.table().drop_columns(["person"])
    for name, values in more.items():
        table = table.append_column(name, pa.array(values))
    if suffix == "csv":
        pyarrow.csv.write_csv(table, folder / "nodes.csv")
    else:
        pq.write_table(table, folder / "nodes.parquet", row_group_size=50)
    return folder / "edges.npy", folder / f"nodes.{suffix}"


@pytest.mark.parametrize(("suffix", "workers"), [("csv", 1), ("parquet", 1), ("parquet", 2)])
def test_a_table_becomes_what_ingest_makes_of_it(suffix: str, workers: int, tmp_path: Path) -> None:
    split = np.array(["train", "val", "test", "train", ""])[np.arange(PEOPLE) % 5]
    edges, nodes = save(tmp_path, suffix, split=split, id=np.arange(PEOPLE))
    info = cut_files(
        tmp_path / "parts", workers, edges=(edges,), parts=2, method="hash", features=nodes, label_columns=("tariff",),
        choices=FeatureChoices(logarithms=("income",), learned=("city",)), memory_bytes=1 << 20,
    )  # fmt: skip
    graph = ingest_edges(
        edges, features=nodes, label_columns=["tariff"], log_columns=["income"], learned_columns=["city"]
    )
    assert len(info.preparation.learned) == 1
    assert info.preparation == graph.preparation and info.class_names == graph.class_names
    assert info.num_features == graph.num_features and info.num_classes == graph.num_classes
    assert read_partition(tmp_path / "parts") == info
    shard = load_shard(tmp_path / "parts", 0, 1)
    assert shard.vertex_data.keys() == graph.vertex_data.keys()
    for name, rows in graph.vertex_data.items():
        assert torch.equal(shard.vertex_data[name], rows[shard.global_ids]), name
    assert not (tmp_path / "parts" / "scratch").exists()


@pytest.mark.parametrize(("suffix", "columns"), [("csv", ("rent",)), ("parquet", ("rent", "tax"))])
def test_numbers_to_predict_stand_in_a_table(suffix: str, columns: tuple[str, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rent = [None if k % 7 == 0 else float(value) for k, value in enumerate(rng.normal(1000, 300, PEOPLE).round(3))]
    edges, nodes = save(tmp_path, suffix, rent=rent, tax=rng.integers(0, 9, PEOPLE))
    options: dict[str, Any] = {"label_kind": "numbers", "split": "random:0.6,0.2@3"}
    info = cut_files(
        tmp_path / "parts", 1, edges=(edges,), parts=2, method="hash", features=nodes, label_columns=columns,
        memory_bytes=1 << 20, **options,
    )  # fmt: skip
    graph = ingest_edges(edges, features=nodes, label_columns=columns, **options)
    assert info.num_classes == 0 and info.class_names == graph.class_names
    assert "rent" not in {decision.column for decision in graph.preparation.decisions}
    shard = load_shard(tmp_path / "parts", 0, 1)
    assert shard.y is not None and graph.y is not None and shard.num_targets == graph.num_targets == len(columns)
    torch.testing.assert_close(shard.y, graph.y[shard.global_ids], rtol=0, atol=0, equal_nan=True)
    with pytest.raises(UserError, match="label-kind numbers"):
        cut_files(
            tmp_path / "other", 1, edges=(edges,), parts=2, method="hash", features=nodes, label_columns=columns,
            memory_bytes=1 << 20,
        )  # fmt: skip


def test_statistics_are_of_the_vertices_that_a_drawn_split_trains_on(tmp_path: Path) -> None:
    edges, nodes = save(tmp_path, "parquet", only_missing_elsewhere=np.arange(PEOPLE) * 1.0)
    job = {"edges": (edges,), "parts": 2, "features": nodes, "split": "random:0.5,0.2@1", "label_columns": ("tariff",)}
    info = cut_files(tmp_path / "parts", 1, **job)
    shard = load_shard(tmp_path / "parts", 0, 1)
    assert info.preparation is not None and shard.train_mask is not None and shard.x is not None
    assert info.preparation.of_training and info.preparation.num_rows == int(shard.train_mask.sum())
    last = shard.x[shard.train_mask][:, -1]
    assert info.preparation.names[-1] == "only_missing_elsewhere"
    assert float(last.mean()) == pytest.approx(0, abs=1e-6) and float(last.std(correction=0)) == pytest.approx(1)
    assert abs(float(shard.x[~shard.train_mask][:, -1].mean())) > 1e-4


def test_labels_beside_a_table_and_a_table_without_features(tmp_path: Path) -> None:
    edges, nodes = save(tmp_path, "parquet", other=np.arange(PEOPLE) % 3)
    np.save(tmp_path / "y.npy", np.arange(PEOPLE) % 2)
    ignored = FeatureChoices(features=("owner",))
    info = cut_files(
        tmp_path / "one", 1, edges=(edges,), parts=1, features=nodes, labels=tmp_path / "y.npy", choices=ignored
    )
    assert (info.num_classes, info.num_features, info.class_names) == (2, 1, None)
    choices = FeatureChoices(ignored=("age", "income", "city", "joined", "tariff", "other"))
    info = cut_files(
        tmp_path / "three", 1, edges=(edges,), parts=1, features=nodes, label_columns=("owner",), choices=choices
    )
    assert (info.num_classes, info.num_features) == (2, 0)


MISTAKES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"id": [1, 0, 2]}, {}, "row 0 of .* has id 1: .*weft ingest"),
    ({"id": ["a", "b", "c"]}, {}, "no numbers of rows: run 'weft ingest'"),
    ({"v": [1, 2]}, {}, "2 rows for 3 vertices|points outside"),
    ({"v": [1, 2, 3]}, {"num_nodes": 4}, "3 rows for 4 vertices"),
    ({"v": [1, 2, 3], "label": [0.5, 1, 1]}, {}, "row 0 of .* has 0.5 in column 'label'"),
    ({"v": [1, 2, 3], "label": ["a", "b", "a"]}, {"num_classes": 5}, "2 names of classes for 5"),
    ({"v": [1, 2, 3], "split": ["train", "trian", ""]}, {}, "did you mean 'train'"),
    ({"v": [1, 2, 3], "train_mask": [True, False, True]}, {}, "all three masks"),
    ({"v": [1, 2, 3]}, {"split_column": "w"}, "unknown column 'w'"),
    ({"v": [1.0, float("inf"), 3]}, {}, "first in row 1"),
]


@pytest.mark.parametrize(("columns", "options", "words"), MISTAKES, ids=[words for _, _, words in MISTAKES])
def test_mistakes_are_one_sentence(
    columns: dict[str, Any], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "edges.npy", np.array([[0, 1, 2], [1, 2, 0]]))
    pq.write_table(pa.table(columns), tmp_path / "n.parquet")
    with pytest.raises(UserError, match=words) as caught:
        cut_files(
            tmp_path / "parts", 1, edges=(tmp_path / "edges.npy",), parts=1, features=tmp_path / "n.parquet", **options
        )
    assert "\n" not in str(caught.value) and not (tmp_path / "parts").exists()


def test_choices_want_a_table(tmp_path: Path) -> None:
    np.save(tmp_path / "edges.npy", np.array([[0, 1, 2], [1, 2, 0]]))
    with pytest.raises(UserError, match="no csv or parquet file"):
        cut_files(tmp_path / "parts", 1, edges=(tmp_path / "edges.npy",), parts=1, split_column="s")


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    save(tmp_path, "csv")
    monkeypatch.chdir(tmp_path)
    for args in (
        ["partition", "edges.npy", "--features", "nodes.csv", "--label-column", "tariff", "--split", "random:0.5,0.2",
         "--log-columns", "income", "--ignore-columns", "owner", "--parts", "2", "--out", "parts"],
        ["inspect", "parts"],
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["weft", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        out = capsys.readouterr().out
        assert all(text in out for text in ("age", "logarithm", "one-hot", "training vertices")), out
        assert "owner" not in out
    assert json.loads((tmp_path / "parts" / "manifest.json").read_text())["preparation"]["source"] == "nodes.csv"
