"""Times in edge files that are cut without `weft ingest`: the same parts as with it, and training heeds them."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from tests.out_of_core.edgefiles import cut, cut_files, save_edges
from weft.cli import app as cli
from weft.config import make_config
from weft.errors import UserError
from weft.graph import Graph, ingest_edges
from weft.graph.edgelist import EdgeColumns
from weft.graph.files import Array
from weft.out_of_core import edgefiles
from weft.out_of_core.budget import Budget
from weft.out_of_core.splits import nth_smallest
from weft.partitioning import load_shard, read_owner, write_partition
from weft.run import start

PEOPLE, EDGES = 120, 900
DATES = np.datetime64("2024-02-28T23:59:58") + np.arange(EDGES) % 700 * np.timedelta64(911, "s")


@dataclass(frozen=True)
class Form:
    """Edges with times in one form: files of a folder, and how both ways are told of them."""

    name: str
    times: Array
    undirected: bool = False

    def save(self, folder: Path) -> tuple[Path, EdgeColumns]:
        pairs = np.random.default_rng(0).integers(0, PEOPLE, (2, EDGES))
        pairs[:, -1] = PEOPLE - 1  # the last vertex occurs
        stem, kind = self.name.split(" ")
        path = folder / f"{stem}.{kind}"
        if kind == "npy":
            np.save(path, pairs)
            np.save(folder / "t.npy", self.times)
            return path, EdgeColumns(time=str(folder / "t.npy"))
        if kind == "parquet":
            table = {"src": pairs[0], "dst": pairs[1], "weight": np.arange(EDGES, dtype=np.float32)}
            pq.write_table(pa.table({**table, "at": self.times}), path, row_group_size=70)
        else:
            rows = "".join(f"{u},{v},{at}\n" for u, v, at in zip(*pairs, self.times, strict=True))
            path.write_text(f"src,dst,at\n{rows}")
        return path, EdgeColumns(time="at")


def days_then_moments() -> Array:
    """Text: more days than are looked at to tell what times are, then moments and fractions of seconds."""
    days = [str(date)[:10] for date in DATES]
    return np.array([*days[:800], *(f"{date} 12:30:00" for date in days[800:890]), *["2024-05-31 00:00:00.25"] * 10])


FORMS = [
    Form("numbers npy", np.random.default_rng(1).normal(0, 1e9, EDGES), undirected=True),
    Form("whole npy", np.arange(EDGES)[::-1].copy(), undirected=True),
    Form("dates npy", DATES),
    Form("whole csv", np.arange(EDGES) % 50, undirected=True),
    Form("fractions csv", np.array([*map(str, range(EDGES - 1)), "0.125"])),
    Form("moments csv", np.array([str(date).replace("T", " ") for date in DATES]), undirected=True),
    Form("days csv", days_then_moments()),
    Form("zones csv", np.array([f"{date}Z" for date in DATES])),
    Form("numbers parquet", np.random.default_rng(1).normal(0, 1e9, EDGES), undirected=True),
    Form("dates parquet", DATES.astype("datetime64[ns]")),
    Form("text parquet", np.array([str(date) for date in DATES])),
]


def as_ingest_cuts(parts: Path, graph: Graph, folder: Path) -> None:
    """Every array of every part is what `weft ingest` and `weft partition` write for the same owners."""
    owner = read_owner(parts)
    num = int(owner.max()) + 1
    write_partition(graph, owner, folder, num, "hash", 0, True, reorder=False)
    for part in range(num):
        mine, other = load_shard(parts, part, num), load_shard(folder, part, num)
        for a, b in ((mine.local, other.local), (mine.remote, other.remote)):
            assert torch.equal(a.indptr, b.indptr) and torch.equal(a.indices, b.indices)
            assert a.edge_data.keys() == b.edge_data.keys()
            assert all(torch.equal(data, b.edge_data[name]) for name, data in a.edge_data.items())
        assert torch.equal(mine.halo_ids, other.halo_ids) and mine.vertex_data.keys() == other.vertex_data.keys()
        for name, data in mine.vertex_data.items():
            torch.testing.assert_close(data, other.vertex_data[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
@pytest.mark.parametrize("memory", [1 << 12, 1 << 20])
def test_parts_are_those_of_ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Form, memory: int) -> None:
    monkeypatch.setattr(edgefiles, "HEAD", 1 << 10)
    edges, columns = form.save(tmp_path)
    options = {"undirected": form.undirected, "num_nodes": PEOPLE, "name": "graph"}
    made = cut(
        tmp_path / "parts", 1, edges=(edges,), columns=columns, parts=3, method="hash", memory_bytes=memory, **options
    )
    assert (made.num_buckets > 5) == (memory == 1 << 12)
    graph = ingest_edges(edges, time_column=columns.time, **options)
    assert graph.adjacency.time is not None and graph.adjacency.time.unique().numel() > 10
    assert made.info.fingerprint == graph.adjacency.fingerprint
    as_ingest_cuts(tmp_path / "parts", graph, tmp_path / "memory")


def test_a_column_called_edge_time_is_found(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst,edge_time\n0,1,5\n1,2,3\n")
    cut_files(tmp_path / "parts", 1, edges=(tmp_path / "edges.csv",), parts=1)
    assert load_shard(tmp_path / "parts", 0, 1).local.time.tolist() == [5.0, 3.0]


def test_several_workers_and_weights_beside_times(tmp_path: Path) -> None:
    edges, columns = FORMS[8].save(tmp_path)
    cut_files(
        tmp_path / "parts", 3, edges=(edges,), columns=columns, parts=4, method="hash", memory_bytes=1 << 13,
        undirected=True, num_nodes=PEOPLE,
    )  # fmt: skip
    graph = ingest_edges(edges, time_column="at", undirected=True, num_nodes=PEOPLE, name="graph")
    assert graph.adjacency.weight is not None
    as_ingest_cuts(tmp_path / "parts", graph, tmp_path / "memory")


# -- vertices ---------------------------------------------------------------------------------------------------


def save_people(folder: Path, suffix: str) -> Path:
    """A table with labels, features, and dates, some of which are missing, as some labels are."""
    dates: list[Any] = [str(date)[:10] for date in DATES[: 5 * PEOPLE : 5]]
    dates[7] = dates[20] = None
    labels: list[Any] = [None if k % 11 == 0 else k % 3 for k in range(PEOPLE)]
    columns = {"id": range(PEOPLE), "income": np.arange(PEOPLE) ** 1.5, "label": labels, "asked": dates}
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    if suffix == "csv":
        pyarrow.csv.write_csv(table, folder / "people.csv")
    else:
        pq.write_table(table, folder / "people.parquet", row_group_size=50)
    return folder / f"people.{suffix}"


@pytest.mark.parametrize("split", ["time:0.6,0.2", "time", "random:0.6,0.2@0"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_times_of_a_table_of_vertices(tmp_path: Path, suffix: str, split: str) -> None:
    edges, columns = FORMS[2].save(tmp_path)
    people = save_people(tmp_path, suffix)
    options = {"features": people, "vertex_time_column": "asked", "split": split}
    cut_files(tmp_path / "parts", 2, edges=(edges,), columns=columns, parts=3, method="hash", **options)
    if split.startswith("random"):  # drawn by another rule: vertex by vertex, not so many of all
        shard = load_shard(tmp_path / "parts", 0, 1)
        masks = {role: getattr(shard, f"{role}_mask")[shard.global_ids.argsort()] for role in ("train", "val", "test")}
        np.savez(tmp_path / "split.npz", **{f"{role}_mask": mask.numpy() for role, mask in masks.items()})
        options["split"] = tmp_path / "split.npz"
    graph = ingest_edges(edges, time_column=columns.time, name="graph", **options)
    assert graph.time is not None and int(graph.time.isnan().sum()) == 2
    as_ingest_cuts(tmp_path / "parts", graph, tmp_path / "memory")


def test_times_of_vertices_in_a_file_of_their_own(tmp_path: Path) -> None:
    edges, columns = FORMS[2].save(tmp_path)
    dates = DATES[:PEOPLE].copy()
    dates[3] = np.datetime64("NaT")
    np.save(tmp_path / "asked.npy", dates)
    np.save(tmp_path / "y.npy", np.arange(PEOPLE) % 4 - 1)
    options: dict[str, Any] = {
        "labels": tmp_path / "y.npy", "vertex_data": {"time": tmp_path / "asked.npy"}, "split": "time:0.5,0.25",
        "num_nodes": PEOPLE,
    }  # fmt: skip
    cut_files(tmp_path / "parts", 1, edges=(edges,), columns=columns, parts=2, method="hash", **options)
    graph = ingest_edges(edges, time_column=columns.time, name="graph", **options)
    as_ingest_cuts(tmp_path / "parts", graph, tmp_path / "memory")


def test_the_value_of_a_rank_needs_no_list_of_all() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 1e12, 500), rng.integers(-3, 4, 500), [0.0, -0.0, 5e-324, -1e308]])

    def pieces() -> Iterator[Array]:
        yield from np.array_split(values, 7)

    found = [nth_smallest(pieces, rank) for rank in range(values.size)]
    assert found == np.sort(values).tolist()


# -- training ---------------------------------------------------------------------------------------------------


def train(data: Path, run: Path, workers: int, **more: Any) -> Any:
    settings = {
        "data": str(data), "run": str(run), "model": {"name": "sage", "hidden": 8, "layers": 2}, "workers": workers,
        "threads": 1, "strategy": "minibatch", "sample": {"batch": 16, "fanout": [4, 3]},
        "train": {"epochs": 2, "precision": "float64", **more},
    }  # fmt: skip
    return start(make_config(settings), quiet=True)


def test_training_heeds_the_times_of_parts_cut_from_files(tmp_path: Path) -> None:
    edges, columns = FORMS[2].save(tmp_path)
    options: dict[str, Any] = {
        "features": save_people(tmp_path, "csv"), "vertex_time_column": "asked", "split": "time:0.6,0.2",
        "undirected": True,
    }  # fmt: skip
    cut_files(tmp_path / "parts", 2, edges=(edges,), columns=columns, parts=2, method="hash", **options)
    graph = ingest_edges(edges, time_column=columns.time, name="graph", **options)
    write_partition(graph, read_owner(tmp_path / "parts"), tmp_path / "memory", 2, "hash", 0, True)
    runs = [train(tmp_path / data, tmp_path / f"run-{data}", 2) for data in ("parts", "memory")]
    assert runs[0].summary["train_loss"] == pytest.approx(runs[1].summary["train_loss"], rel=1e-9)
    np.testing.assert_allclose(runs[0].outputs().values, runs[1].outputs().values, rtol=1e-9, atol=1e-9)
    ignored = train(tmp_path / "parts", tmp_path / "ignored", 2, times="ignore")
    assert ignored.summary["train_loss"] != pytest.approx(runs[0].summary["train_loss"], rel=1e-6)
    with pytest.raises(UserError, match="times"):
        start(make_config({"data": str(tmp_path / "parts"), "run": str(tmp_path / "full")}), quiet=True)


# -- room, and mistakes -----------------------------------------------------------------------------------------


def test_times_are_counted_in_the_memory_that_work_takes() -> None:
    plain, timed, both = (Budget(1 << 20, 2, carried, False) for carried in ((), ("time",), ("weight", "time")))
    assert timed.bucket_bytes_per_edge >= plain.bucket_bytes_per_edge + 2 * 8
    assert both.bucket_bytes_per_edge >= timed.bucket_bytes_per_edge + 2 * 4
    assert both.chunk_edges < timed.chunk_edges < plain.chunk_edges


TABLE_MISTAKES = [
    ("src,dst,at\n0,1,5\n1,2,\n", "without 'at'"),
    ("src,dst,at\n0,1,5\n1,2,nan\n", "without 'at'"),
    ("src,dst,at\n0,1,5\n1,2,inf\n", "reach inf, beyond 2\\^53"),
    ("src,dst,at\n0,1,ann\n1,2,bob\n", "'at' of .* holds string where times are wanted: give numbers, or dates"),
    ("src,dst,at\n0,1,2024-05-31\n1,2,soon\n", "holds string where times are wanted"),
    ("src,dst,at\n0,1,2024-05-31\n" + "1,2,2024-05-31\n" * 9000 + "1,2,20240531\n", "cannot be read .*timestamp"),
    ("src,dst,at\n" + "1,2,20240531\n" * 9000 + "0,1,2024-05-31\n", "cannot be read .*conversion error to double"),
    ("src,dst,when\n0,1,5\n", "no column 'at'|column 'at'"),
    ("src,dst,at\n0,1,9007199254740994\n", "beyond 2\\^53"),
]


@pytest.mark.parametrize(("content", "hint"), TABLE_MISTAKES, ids=range(len(TABLE_MISTAKES)))
def test_mistakes_in_times_of_tables(tmp_path: Path, content: str, hint: str) -> None:
    path = tmp_path / "edges.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=hint) as found:
        cut_files(tmp_path / "parts", 1, edges=(path,), columns=EdgeColumns(time="at"), parts=2)
    assert "\n" not in str(found.value)
    assert [file.name for file in tmp_path.iterdir()] == ["edges.csv"]


NPY_MISTAKES = [
    ("time", np.array([1.0, np.nan, 2.0]), "edge 1 of .* has no time"),
    ("time", np.array(["2024-01-01", "NaT", "2024-01-02"], "M8[D]"), "edge 1 of .* has no time"),
    ("time", np.array(["a", "b", "c"]), "give one number or date per edge"),
    ("time", np.ones(4), "for 3 edges: give one number or date per edge"),
    ("vertex", np.array(["a", "b", "c"]), "times of vertices are numbers or dates"),
    ("vertex", np.ones((3, 2)), "times of vertices are numbers or dates"),
    ("vertex", np.ones(4), "4 rows for 3 vertices|one row per vertex"),
    ("split", np.ones(3), "no times of vertices to be split by"),
    ("column", np.ones(3), "no csv or parquet file"),
]


@pytest.mark.parametrize(("what", "array", "hint"), NPY_MISTAKES, ids=range(len(NPY_MISTAKES)))
def test_mistakes_in_files_of_times(tmp_path: Path, what: str, array: Array, hint: str) -> None:
    edges = save_edges(tmp_path / "edges.npy", [(0, 1), (1, 2), (2, 0)])
    np.save(tmp_path / "t.npy", array)
    job: dict[str, Any] = {"edges": (edges,), "parts": 2, "num_nodes": 3}
    job |= {
        "time": {"columns": EdgeColumns(time=str(tmp_path / "t.npy"))},
        "vertex": {"vertex_data": {"time": tmp_path / "t.npy"}},
        "split": {"split": "time:0.6,0.2"},
        "column": {"vertex_time_column": "asked"},
    }[what]
    with pytest.raises(UserError, match=hint):
        cut_files(tmp_path / "parts", 1, **job)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["edges.npy", "t.npy"]


def test_a_table_without_the_column_of_times(tmp_path: Path) -> None:
    edges, columns = FORMS[2].save(tmp_path)
    job: dict[str, Any] = {"edges": (edges,), "columns": columns, "parts": 2, "features": save_people(tmp_path, "csv")}
    with pytest.raises(UserError, match="has a column 'wanted' with their times: give it in --features"):
        cut_files(tmp_path / "parts", 1, vertex_time_column="wanted", **job)


def test_some_files_with_times_and_some_without(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst,edge_time\n0,1,5\n")
    (tmp_path / "b.csv").write_text("src,dst\n0,1\n")
    with pytest.raises(UserError, match="some of the 2 edge files have times and some have none"):
        cut_files(tmp_path / "parts", 1, edges=(tmp_path / "a.csv", tmp_path / "b.csv"), parts=2)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    edges, _ = FORMS[5].save(tmp_path)
    people = save_people(tmp_path, "csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    command = [
        "weft", "partition", str(edges), "--features", str(people), "--time-column", "at", "--vertex-time-column",
        "asked", "--split", "time:0.6,0.2", "--method", "hash", "--parts", "2", "--out", "parts",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code in (0, None)
    assert "written to parts" in capsys.readouterr().out
    graph = ingest_edges(
        edges, features=people, time_column="at", vertex_time_column="asked", split="time:0.6,0.2", name="moments"
    )
    as_ingest_cuts(Path("parts"), graph, tmp_path / "memory")
