"""Columns become features by the values of training vertices alone, batch by batch, and the same for new rows."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.graph.ordinary import ordinary
from tests.graph.sealing import reseal
from weft.errors import UserError
from weft.graph import ingest_edges, load_graph, save_graph
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.preparation import FeatureChoices, FeatureTable, Preparation, fit, prepared_batches, prepared_features
from weft.graph.preparation.statistics import TextStatistics
from weft.graph.tables import open_table
from weft.partitioning import read_partition
from weft.prepare import partition


def write(path: Path, columns: dict[str, Any]) -> Path:
    table = pa.table(columns)
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pq.write_table(table, path, row_group_size=7)
    return path


def fitted(path: Path, training: Array | None = None, labels: Array | None = None, **choices: Any) -> Preparation:
    table = open_table(path, (), True)
    chosen = FeatureChoices(**choices)
    return fit(FeatureTable(table, chosen.select(path, table.columns, table.columns)), chosen, training, labels)


def rows_of(preparation: Preparation, path: Path) -> Array:
    return prepared_features(preparation, path, True)


def prepared(path: Path, **given: Any) -> tuple[list[str], list[list[float]]]:
    preparation = fitted(path, **given)
    return preparation.names, rows_of(preparation, path).tolist()


def test_each_kind_of_column(tmp_path: Path) -> None:
    nodes = write(
        tmp_path / "n.parquet",
        {
            "number": [1.0, 3.0, None, 5.0],
            "whole": [4, 4, 8, 8],
            "flag": [True, None, False, True],
            "name": ["b", "a", "", "b"],
            "day": pa.array([0, 2, 4, None], pa.date32()),
            "list": [[1.0, -1.0], [2.0, 0.0], [3.0, 7.0], [4.0, 0.5]],
            "constant": [7, 7, 7, 7],
            "written": ["1", "2", "", "3"],
            "written_day": ["2020-01-01", "2020-01-03", "2020-01-02", ""],
        },
    )
    names, rows = prepared(nodes)
    root = 1.5**0.5
    expected = {
        "number": [-root, 0, 0, root], "number missing": [0, 0, 1, 0], "whole": [-1, -1, 1, 1],
        "flag": [1, 0, 0, 1], "flag missing": [0, 1, 0, 0],
        "name=a": [0, 1, 0, 0], "name=b": [1, 0, 0, 1], "name missing": [0, 0, 1, 0],
        "day": [-root, 0, root, 0], "day missing": [0, 0, 0, 1],
        "list[0]": [1, 2, 3, 4], "list[1]": [-1, 0, 7, 0.5],
        "written": [-root, 0, 0, root], "written missing": [0, 0, 1, 0],
        "written_day": [-root, root, 0, 0], "written_day missing": [0, 0, 0, 1],
    }  # fmt: skip
    assert names == list(expected)
    np.testing.assert_allclose(np.array(rows), np.array(list(expected.values())).T, atol=1e-6)


def test_csv_and_parquet_become_the_same(tmp_path: Path) -> None:
    table = ordinary(150).table().drop_columns(["person"])
    pyarrow.csv.write_csv(table, tmp_path / "n.csv")
    pq.write_table(table, tmp_path / "n.parquet")
    one, two = fitted(tmp_path / "n.csv"), fitted(tmp_path / "n.parquet")
    assert one.decisions == two.decisions
    assert np.array_equal(rows_of(one, tmp_path / "n.csv"), rows_of(two, tmp_path / "n.parquet"))


def test_batches_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ordinary(400).table().drop_columns(["person"])
    training = np.arange(400) % 3 > 0
    for suffix in ("csv", "parquet"):
        path = write(tmp_path / f"n.{suffix}", {name: table[name] for name in table.column_names})
        monkeypatch.setattr("weft.graph.tables.CHUNK_BYTES", 1 << 24)
        monkeypatch.setattr("weft.graph.tables.BATCH_BYTES", 1 << 26)
        monkeypatch.setattr("weft.graph.preparation.apply.PREPARED_BYTES", 1 << 26)
        whole = fitted(path, training)
        rows = rows_of(whole, path)
        monkeypatch.setattr("weft.graph.tables.CHUNK_BYTES", 2000)
        monkeypatch.setattr("weft.graph.tables.BATCH_BYTES", 2000)
        monkeypatch.setattr("weft.graph.preparation.apply.PREPARED_BYTES", 500)
        pieces = fitted(path, training)
        assert all(rows.nbytes <= 500 for rows in prepared_batches(pieces, open_table(path, (), True)))
        assert len(list(prepared_batches(pieces, open_table(path, (), True)))) > 5
        for one, two in zip(whole.decisions, pieces.decisions, strict=True):
            assert one.model_copy(update={"mean": None, "spread": None}) == two.model_copy(
                update={"mean": None, "spread": None}
            )
            for mine, other in ((one.mean, two.mean), (one.spread, two.spread)):
                assert mine == (None if other is None else pytest.approx(other, rel=1e-12))
        np.testing.assert_allclose(rows, rows_of(pieces, path), atol=1e-5)


def test_memory_does_not_grow_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 64 MiB goes by in less than half of that."""
    monkeypatch.setattr("weft.graph.tables.BATCH_BYTES", 1 << 18)
    rng = np.random.default_rng(0)
    piece = pa.table({f"v{k}": rng.normal(size=1 << 16) for k in range(8)})
    with pq.ParquetWriter(tmp_path / "n.parquet", piece.schema) as file:
        for _ in range(16):
            file.write_table(piece)
    before, most = pa.total_allocated_bytes(), 0
    preparation = fitted(tmp_path / "n.parquet")
    for _ in prepared_batches(preparation, open_table(tmp_path / "n.parquet", (), True)):
        most = max(most, pa.total_allocated_bytes() - before)
    assert preparation.num_rows == 16 << 16 and 0 < most < 24 << 20, most


def test_whole_numbers_may_become_others_far_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.graph.tables.CHUNK_BYTES", 256)
    (tmp_path / "n.csv").write_text("a,b\n" + "1,\n" * 200 + "1.5,2\n")
    _, rows = prepared(tmp_path / "n.csv")
    assert (
        rows[-1][0] > 1 and rows[0][0] == pytest.approx(rows[1][0]) and [row[1] for row in rows] == [1.0] * 200 + [0.0]
    )


def test_text_far_below_numbers_is_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.graph.tables.CHUNK_BYTES", 256)
    (tmp_path / "n.csv").write_text("a,b\n" + "1,2\n" * 200 + "red,2\n")
    with pytest.raises(UserError, match=r"invalid value 'red'.*--category-columns"):
        fitted(tmp_path / "n.csv")
    assert len(fitted(tmp_path / "n.csv", categories=("a",)).names) == 2


columns = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6, allow_subnormal=False)), min_size=4, max_size=40)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=columns, data=st.data())
def test_only_training_vertices_decide(values: list[float | None], data: st.DataObject, tmp_path: Path) -> None:
    training = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    others = [
        value if trains else data.draw(st.floats(-1e9, 1e9)) for value, trains in zip(values, training, strict=True)
    ]
    one = fitted(write(tmp_path / "a.parquet", {"v": pa.array(values, pa.float64())}), training)
    two = fitted(write(tmp_path / "b.parquet", {"v": pa.array(others, pa.float64())}), training)
    assert one.decisions == two.decisions
    known = np.array([np.nan if value is None else value for value in values])[training]
    known = known[~np.isnan(known)]
    if known.size and known.max() - known.min() > 1e-3:
        assert one.decisions[0].mean == pytest.approx(known.mean(), abs=1e-6)
        assert one.decisions[0].spread == pytest.approx(known.std(), abs=1e-6)
        rows = rows_of(one, tmp_path / "a.parquet")
        expected = np.array([0.0 if value is None else (value - known.mean()) / known.std() for value in values])
        np.testing.assert_allclose(rows[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_new_rows_are_prepared_as_the_old_ones(tmp_path: Path) -> None:
    people = ordinary(300).table().drop_columns(["person", "tariff"])
    pq.write_table(people, tmp_path / "all.parquet")
    pyarrow.csv.write_csv(people.slice(200), tmp_path / "new.csv")
    kept = Preparation.model_validate_json(fitted(tmp_path / "all.parquet", np.arange(300) < 200).model_dump_json())
    assert np.array_equal(rows_of(kept, tmp_path / "all.parquet")[200:], rows_of(kept, tmp_path / "new.csv"))


def test_what_training_vertices_do_not_have(tmp_path: Path) -> None:
    """Unknown categories are none of the known ones, and a value that never was missing is the mean without a mark."""
    old = write(tmp_path / "old.csv", {"a": [1.0, 3.0], "c": ["x", "y"]})
    new = write(tmp_path / "new.csv", {"c": ["z", "y", ""], "more": [1, 2, 3], "a": [None, 5.0, 1.0]})
    preparation = fitted(old)
    assert preparation.names == ["a", "c=x", "c=y"]
    assert rows_of(preparation, new).tolist() == [[0, 0, 0], [3, 0, 1], [-1, 0, 0]]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": [1.0, 2.0]}, "no column 'c'"),
        ({"a": ["one", "2"], "c": ["x", "y"]}, "row 0 of .* has 'one' in column 'a'"),
        ({"a": [1.0, float("inf")], "c": ["x", "y"]}, "first in row 1"),
        ({"a": pa.array([1, 2], pa.date32()), "c": ["x", "y"]}, "'a' .* holds date32"),
    ],
)
def test_new_rows_that_do_not_fit_are_refused(columns: dict[str, Any], words: str, tmp_path: Path) -> None:
    preparation = fitted(write(tmp_path / "old.csv", {"a": [1.0, 3.0], "c": ["x", "y"]}))
    with pytest.raises(UserError, match=words):
        rows_of(preparation, write(tmp_path / "new.parquet", columns))
    np.save(tmp_path / "x.npy", np.zeros((2, 5)))
    with pytest.raises(UserError, match="3 features for each"):
        prepared_features(preparation, tmp_path / "x.npy")


def test_large_categories_share_columns_by_a_hash(tmp_path: Path) -> None:
    names = [f"city {k % 100}" for k in range(1000)]
    path = write(tmp_path / "n.csv", {"city": names})
    preparation = fitted(path)
    assert preparation.decisions[0].becomes == "hashed" and "100 different values" in preparation.notes[0]
    rows = rows_of(preparation, path)
    assert rows.shape == (1000, 64) and (rows.sum(1) == 1).all() and (rows[:100] == rows[100:200]).all()
    assert len({tuple(row) for row in rows.tolist()}) > 40
    assert rows[0].argmax() == 42, "a hash that changes with the machine or the release makes old weights worthless"


def test_a_column_of_ever_new_texts_is_refused_before_all_of_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.graph.preparation.statistics.DISTINCT_MOST", 100)
    monkeypatch.setattr("weft.graph.tables.BATCH_BYTES", 2000)
    path = write(tmp_path / "n.parquet", {"t": [f"name {k}" for k in range(5000)]})
    read: list[int] = []
    plain = TextStatistics.add

    def add(self: TextStatistics, codes: Array, texts: list[str], labels: Array | None) -> None:
        read.append(codes.size)
        plain(self, codes, texts, labels)

    monkeypatch.setattr(TextStatistics, "add", add)
    with pytest.raises(UserError, match=r"'t' of .* is text"):
        fitted(path)
    assert 100 < sum(read) < 1000
    (decision,) = fitted(path, categories=("t",)).decisions
    assert decision.becomes == "hashed", "who says that they are categories is believed"


def test_declared_categories_logarithms_and_raw_numbers(tmp_path: Path) -> None:
    path = write(
        tmp_path / "n.parquet", {"code": [3.0, 7.0, None, 3.0], "gain": [0, 99, -99, 9], "flag": [True] * 3 + [False]}
    )
    names, rows = prepared(path, categories=("code",), logarithms=("gain",))
    assert names == ["code=3", "code=7", "code missing", "gain", "flag"]
    logs = np.array([0, np.log(100), -np.log(100), np.log(10)])
    np.testing.assert_allclose(np.array(rows)[:, 3], (logs - logs.mean()) / logs.std(), rtol=1e-6)
    assert np.array(rows)[:, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    csv = write(tmp_path / "n.csv", {"code": [3, 7, None, 3], "gain": [0, 99, -99, 9], "flag": [True] * 3 + [False]})
    assert prepared(csv, categories=("code",), logarithms=("gain",)) == (names, rows)
    names, rows = prepared(path, raw=True, features=("gain", "flag"))
    assert names == ["gain", "flag"] and rows == [[0, 1], [99, 1], [-99, 1], [9, 0]]
    with pytest.raises(UserError, match="NaN or infinite values, first in row 2"):
        prepared(path, raw=True)


@pytest.mark.parametrize(
    ("columns", "choices", "words"),
    [
        ({"t": [f"number {k}" for k in range(40)]}, {}, "'t' of .* is text .*--ignore-columns t.*embedding"),
        ({"t": ["a rather long text that says this and that of a thing, and goes on"] * 20 + ["b"]}, {}, "is text"),
        ({"t": ["1", "2", "3", "red"]}, {}, "numbers and text such as 'red'.*--category-columns t"),
        ({"t": ["a", "b"]}, {"raw": True}, "raw features are numbers"),
        ({"t": ["a", "b"]}, {"logarithms": ("t",)}, "no numbers"),
        ({"t": [1, 2]}, {"features": ("u",)}, "unknown column 'u'"),
        ({"t": [1, 2], "u": [1, 2]}, {"features": ("t",), "categories": ("u",)}, "unknown feature column 'u'"),
        ({"t": [1, 2]}, {"features": ("t",), "ignored": ("t",)}, "name it once"),
        ({"t": [1, 2]}, {"categories": ("t",), "logarithms": ("t",)}, "name it once"),
        ({"t": [1, 2]}, {"categories": ("t",), "raw": True}, "leave out categories"),
        ({"t": [b"a", b"b"]}, {}, "holds binary"),
        ({"t": [[1.0], [1.0, 2.0]]}, {}, "row 1 of .* has 2 features"),
        ({"t": [[1.0], [float("nan")]]}, {}, "first in row 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_prepared_is_refused(
    columns: dict[str, Any], choices: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        prepared(write(tmp_path / "n.parquet", columns), **choices)
    assert "\n" not in str(caught.value)


def test_warnings(tmp_path: Path) -> None:
    """What people get wrong in tables, each named with what to do; and none where nothing is wrong."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    sound = {"a": rng.normal(size=200), "c": rng.choice(["x", "y"], 200)}
    assert fitted(write(tmp_path / "sound.parquet", sound), labels=labels).notes == ()
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"v": np.ones(200)}, {}, "the same value at every training vertex: it is left out"),
        ({"v": pa.array([None] * 200, pa.float64())}, {}, "no value at any training vertex"),
        ({"v": 10 * labels}, {}, "looks like the label itself; .*--ignore-columns v"),
        ({"v": np.array(["p", "q", "r"])[labels]}, {}, "looks like the label itself"),
        ({"v": np.append(rng.normal(size=199), 1e6)}, {}, "long tail .*--log-columns v"),
        ({"v": 5000 * rng.normal(size=200)}, {"raw": True, "features": ("a", "v")}, "not scaled, and v is about"),
        ({"v": pa.array((5000 * rng.normal(size=(200, 2))).tolist())}, {}, r"not scaled, and v\[\d\] is about"),
    ]
    for columns, choices, words in cases:
        path = write(tmp_path / "n.parquet", sound | columns)
        (note,) = fitted(path, labels=labels, **choices).notes
        assert re.search(words, note), note
    path = write(tmp_path / "n.parquet", sound | {"v": labels})
    (note,) = fitted(path).notes
    assert "0 to 2 and there are no labels" in note and "--label-column v" in note


def graph_of(folder: Path, **options: Any) -> Graph:
    (folder / "e.csv").write_text("src,dst\na,b\nb,c\nc,x\ny,a\n")
    (folder / "n.csv").write_text("id,v,label\na,1,0\nb,2,1\nc,3,0\n")
    return ingest_edges(folder / "e.csv", features=folder / "n.csv", **options)


def test_ids_without_a_row(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"edge 2 .* 'x' is not among the ids of .*n\.csv"):
        graph_of(tmp_path)
    graph = graph_of(tmp_path, missing_rows="zero")
    assert graph.original_ids is not None and graph.original_ids.tolist() == ["a", "b", "c", "x", "y"]
    assert graph.x is not None and graph.x[3:].tolist() == [[0], [0]] and graph.num_edges == 4
    assert graph.y is not None and graph.y.tolist() == [0, 1, 0, -1, -1]
    assert graph.preparation is not None and "2 vertices without a row" in graph.preparation.notes[0]
    assert graph.preparation.num_rows == 3, "vertices without a row are no part of the statistics"
    graph = graph_of(tmp_path, missing_rows="drop")
    assert graph.original_ids is not None and graph.original_ids.tolist() == ["a", "b", "c"] and graph.num_edges == 2
    assert graph.preparation is not None and "2 edges left out" in graph.preparation.notes[0]
    with pytest.raises(UserError, match="did you mean 'zero'"):
        graph_of(tmp_path, missing_rows="zeros")
    (tmp_path / "y.csv").write_text("id,label\na,1\nz,1\n")
    graph = graph_of(tmp_path, missing_rows="zero", labels=tmp_path / "y.csv")
    assert graph.y is not None and graph.y.tolist() == [1, -1, -1, -1, -1, 1]
    graph = graph_of(tmp_path, missing_rows="drop", labels=tmp_path / "y.csv")
    assert graph.y is not None and graph.y.tolist() == [1, -1, -1]
    assert graph.preparation is not None and len(graph.preparation.notes) == 2


def test_numbered_vertices_without_a_row(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array([[0, 1, 5], [1, 2, 0]]))
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    np.save(tmp_path / "y.npy", np.array([0, 1, 1]))
    files = {"features": tmp_path / "x.npy", "labels": tmp_path / "y.npy"}
    graph = ingest_edges(tmp_path / "e.npy", **files, missing_rows="zero")  # type: ignore[arg-type]
    assert graph.original_ids is None and graph.num_nodes == 6
    assert graph.x is not None and graph.x.sum(1).tolist() == [2, 2, 2, 0, 0, 0]
    assert graph.y is not None and graph.y.tolist() == [0, 1, 1, -1, -1, -1]
    graph = ingest_edges(tmp_path / "e.npy", **files, missing_rows="drop")  # type: ignore[arg-type]
    assert graph.num_nodes == 3 and graph.num_edges == 2


def test_columns_with_a_role_are_features_only_where_they_are_named(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, missing_rows="drop")
    assert graph.preparation is not None and graph.preparation.names == ["v"]
    graph = graph_of(tmp_path, missing_rows="drop", feature_columns=["label"])
    assert graph.preparation is not None and graph.preparation.names == ["label"] and graph.y is None
    graph = graph_of(tmp_path, missing_rows="drop", ignore_columns=["v"])
    assert graph.x is None and graph.preparation is not None and graph.preparation.num_features == 0
    with pytest.raises(UserError, match="give --features"):
        ingest_edges(tmp_path / "e.csv", ignore_columns=["v"])


def test_folders_keep_the_preparation(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, missing_rows="drop", split="random:0.5,0.2@0")
    save_graph(graph, tmp_path / "g")
    loaded = load_graph(tmp_path / "g", verify=True)
    assert loaded.preparation == graph.preparation and loaded.preparation is not None
    partition(loaded, 2, tmp_path / "p", "random")
    assert read_partition(tmp_path / "p").preparation == graph.preparation
    assert np.array_equal(rows_of(loaded.preparation, tmp_path / "n.csv"), loaded.x)
    assert loaded.with_vertex_data(x=torch.zeros(3, 9)).preparation is None, "other features were not prepared so"
    manifest = tmp_path / "g" / "manifest.json"
    sound = manifest.read_text()
    manifest.write_text(sound.replace('"mean": ', '"mean": 1'))
    with pytest.raises(UserError, match="altered"):
        load_graph(tmp_path / "g")
    manifest.write_text(sound.replace('"standardised"', '"squared"'))
    reseal(tmp_path / "g")
    with pytest.raises(UserError, match=r"preparation .* damaged \(at 'decisions.0.becomes'\)"):
        load_graph(tmp_path / "g")
    manifest.write_text(json.dumps({key: value for key, value in json.loads(sound).items() if key != "preparation"}))
    reseal(tmp_path / "g")
    assert load_graph(tmp_path / "g").preparation is None, "folders of earlier versions have none"


def test_arrays_are_described_and_stay_as_they_are(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 2]]))
    x = np.array([[1, 90000], [2, 0], [3, 0]])
    np.save(tmp_path / "x.npy", x)
    graph = ingest_edges(tmp_path / "e.npy", features=tmp_path / "x.npy")
    assert graph.x is not None and np.array_equal(graph.x, x) and graph.preparation is not None
    (decision,) = graph.preparation.decisions
    assert (decision.becomes, decision.size, decision.mean) == ("unchanged", 2, x.mean())
    assert "x[1] is about 5.2e+04, x[0] about 2.16" in graph.preparation.notes[0]


def test_dates_with_times_and_zones(tmp_path: Path) -> None:
    noon = datetime.datetime(1970, 1, 2, 12, tzinfo=datetime.UTC)
    path = write(tmp_path / "n.parquet", {"t": [noon, noon + datetime.timedelta(days=1)]})
    (decision,) = fitted(path).decisions
    assert decision.holds == "dates" and decision.mean == pytest.approx(2.0) and decision.spread == pytest.approx(0.5)
