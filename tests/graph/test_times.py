"""Times of edges and vertices: read from tables and arrays, kept in folders, and splits by them."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import weft
from weft.cli.show import graph_rows
from weft.errors import UserError
from weft.graph import describe, load_graph, save_graph
from weft.graph.csr import with_self_loops
from weft.graph.times import time_of
from weft.partitioning import load_shard, whole_shard

NODES = "id,x,label,born\na,1,p,2024-01-03\nb,2,q,2024-01-01\nc,3,p,\nd,4,q,2024-01-02 12:00:00\n"
EDGES = "from,to,when\na,b,2024-01-01\nb,c,2024-01-02\nc,a,2024-01-03\nd,a,2024-01-04\n"
DAY, FIRST = 86_400.0, datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC).timestamp()


def ingest(tmp_path, edges=EDGES, nodes=NODES, **more):
    (tmp_path / "edges.csv").write_text(edges)
    (tmp_path / "nodes.csv").write_text(nodes)
    options = {"time_column": "when", "vertex_time_column": "born", "label_columns": ["label"], **more}
    return weft.ingest(tmp_path / "edges.csv", features=tmp_path / "nodes.csv", **options)


def test_dates_are_seconds_since_1970(tmp_path):
    graph = ingest(tmp_path)
    assert graph.adjacency.time.dtype == graph.time.dtype == torch.float64
    assert sorted(graph.adjacency.time.tolist()) == [FIRST, FIRST + DAY, FIRST + 2 * DAY, FIRST + 3 * DAY]
    born = dict(zip(graph.original_ids.tolist(), graph.time.tolist(), strict=True))
    assert born.pop("c") != born  # not known
    assert born == {"a": FIRST + 2 * DAY, "b": FIRST, "d": FIRST + 1.5 * DAY} and bool(graph.time.isnan().any())
    assert graph.num_features == 1  # the time is none


def test_reverses_have_the_time_of_their_edge_and_folders_keep_it(tmp_path):
    graph = ingest(tmp_path, undirected=True)
    assert sorted(graph.adjacency.time.tolist()) == sorted([FIRST + k * DAY for k in range(4)] * 2)
    save_graph(graph, tmp_path / "g")
    again = load_graph(tmp_path / "g")
    assert torch.equal(again.adjacency.time, graph.adjacency.time) and again.fingerprint == graph.fingerprint
    torch.testing.assert_close(again.time, graph.time, equal_nan=True)
    weft.partition(again, 2, tmp_path / "parts", method="random")
    shards = [load_shard(tmp_path / "parts", worker, 2) for worker in range(2)]
    times = torch.cat([side.time for shard in shards for side in (shard.local, shard.remote)])
    assert torch.equal(times.sort().values, graph.adjacency.time.sort().values)
    assert torch.cat([shard.time for shard in shards]).isnan().sum() == 1
    found = describe(graph)
    assert found.edge_times == (FIRST, FIRST + 3 * DAY) and found.vertex_times == (FIRST, FIRST + 2 * DAY, 3)


def shown(graph):
    return {name: text for name, text in graph_rows(describe(graph)) if name in ("edge times", "vertex times")}


def test_times_that_were_dates_are_shown_as_dates(tmp_path):
    graph = ingest(tmp_path, nodes=NODES.replace("2024-01-01", "2024-01-01 08:30:00.25"))
    save_graph(graph, tmp_path / "g")
    for one in (graph, load_graph(tmp_path / "g")):
        assert one.dates == ("edges", "vertices")
        assert shown(one)["edge times"] == "2024-01-01 to 2024-01-04"
        assert shown(one)["vertex times"] == "2024-01-01 08:30:00.250000 to 2024-01-03, of 3 vertices"
    mixed = ingest(tmp_path, nodes="id,x,label,born\na,1,p,3\nb,2,q,12345678\nc,3,p,\nd,4,q,5\n")
    assert mixed.dates == ("edges",) and shown(mixed)["vertex times"] == "3 to 12,345,678, of 3 vertices"
    days = np.array(["2024-01-01", "2024-01-02"], "datetime64[D]")
    assert weft.from_edges([0, 1], [1, 0], edge_time=days).dates == ("edges",)
    assert weft.from_edges([0, 1], [1, 0], edge_time=[1.5, 2]).dates == ()


def test_one_time_is_a_number_or_a_date():
    assert time_of("3.5", "x") == 3.5 and time_of(7, "x") == 7
    noon = FIRST + DAY / 2
    for given in ("2024-01-01 12:00:00", " 2024-01-01T12:00:00", datetime.datetime(2024, 1, 1, 12)):
        assert time_of(given, "x") == noon
    assert time_of("2024-01-01", "x") == time_of(datetime.date(2024, 1, 1), "x") == FIRST
    assert time_of(np.datetime64("2024-01-01T12", "h"), "x") == noon
    for wrong in ("yesterday", "", "inf", float("nan")):
        with pytest.raises(UserError, match=r"^x "):
            time_of(wrong, "x")


def test_parquet_timestamps_and_npy_numbers(tmp_path):
    moments = [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=k) for k in range(3)]
    pq.write_table(pa.table({"src": [0, 1, 2], "dst": [1, 2, 0], "at": moments}), tmp_path / "e.parquet")
    graph = weft.ingest(tmp_path / "e.parquet", time_column="at")
    assert sorted(graph.adjacency.time.tolist()) == [FIRST, FIRST + 3600, FIRST + 7200]
    np.save(tmp_path / "e.npy", np.array([[0, 1, 2], [1, 2, 0]]))
    np.save(tmp_path / "t.npy", np.array([5, 6, 7]))
    np.save(tmp_path / "v.npy", np.array([1.5, 2.5, np.nan]))
    graph = weft.ingest(
        tmp_path / "e.npy", time_column=str(tmp_path / "t.npy"), vertex_data={"time": tmp_path / "v.npy"}
    )
    assert sorted(graph.adjacency.time.tolist()) == [5, 6, 7] and graph.time[:2].tolist() == [1.5, 2.5]


def test_arrays_of_numpy_and_graphs_of_pyg():
    when = np.array(["2024-01-01", "2024-01-02"], "datetime64[D]")
    graph = weft.from_edges([0, 1], [1, 2], edge_time=when, vertex_time=[1, 2, 3])
    assert graph.adjacency.time.tolist() == [FIRST, FIRST + DAY] and graph.time.tolist() == [1, 2, 3]
    data = pytest.importorskip("torch_geometric.data").Data(
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        num_nodes=3,
        edge_time=torch.tensor([4, 5]),
        time=torch.tensor([7, 8, 9]),
    )
    graph = weft.from_pyg(data)
    assert graph.adjacency.time.tolist() == [4, 5] and graph.time.tolist() == [7, 8, 9]
    data = type(data)(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3, time=torch.tensor([4, 5]))
    assert weft.from_pyg(data).adjacency.time.tolist() == [4, 5] and weft.from_pyg(data).time is None


def test_a_loop_that_is_added_has_always_been_there():
    graph = weft.from_edges([0, 1], [1, 0], edge_time=[3, 4])
    assert sorted(with_self_loops(graph.adjacency).time.tolist()) == [-torch.inf, -torch.inf, 3, 4]
    assert whole_shard(graph).without_times().local.time is None


def test_a_split_by_time_goes_from_the_earliest_to_the_last(tmp_path):
    times = np.array([5.0, 1, 9, 3, 3, 7, np.nan, 2])
    graph = weft.from_edges([0], [1], num_nodes=8, vertex_time=times, y=[0, 0, 1, 0, 1, 1, 1, -1])
    np.save(tmp_path / "unused.npy", times)
    found = weft.graph.splits.parse_split(graph, "time:0.5,0.2")
    chosen = {split: times[mask.numpy()].tolist() for split, mask in found.masks.items()}
    assert chosen == {"train": [1, 3, 3], "val": [5], "test": [9, 7]}  # of six that have a label and a time
    with pytest.raises(UserError, match="no times of vertices"):
        weft.graph.splits.parse_split(graph.with_vertex_data(time=None), "time:0.5,0.2")
    with pytest.raises(UserError, match="is not understood"):
        weft.graph.splits.parse_split(graph, "time:early")


@pytest.mark.parametrize(
    ("edges", "more", "sentence"),
    [
        (EDGES.replace("2024-01-02", ""), {}, "row 1 of .* has no 'when'"),
        (EDGES.replace("2024-01-02", "soon"), {}, "holds string where times are wanted"),
        (EDGES.replace("2024-01-02", "true"), {}, "where times are wanted"),
        (EDGES, {"time_column": "then"}, "then"),
        (EDGES, {"vertex_time_column": "died"}, "no table of vertices has a column 'died'"),
        ("from,to,when\na,b,17199999999999999999\n", {}, "where times are wanted|beyond 2\\^53"),
        ("from,to,when\na,b,1719999999999999999\n", {}, "beyond 2\\^53"),
    ],
)
def test_times_that_cannot_be_are_refused(tmp_path, edges, more, sentence):
    with pytest.raises(UserError, match=sentence):
        ingest(tmp_path, edges, **more)


def test_new_vertices_come_with_times(tmp_path):
    graph = ingest(tmp_path)
    (tmp_path / "new.csv").write_text("from,to,when\na,e,2024-02-01\n")
    (tmp_path / "who.csv").write_text("id,x,born\ne,5,2024-02-02\n")
    joined = weft.attach(
        graph, tmp_path / "new.csv", tmp_path / "who.csv", time_column="when", vertex_time_column="born"
    )
    assert float(joined.time[-1]) == FIRST + 32 * DAY and float(joined.adjacency.time.max()) == FIRST + 31 * DAY
    with pytest.raises(UserError, match="have time and those of"):
        weft.attach(graph, tmp_path / "new.csv", tmp_path / "who.csv", vertex_time_column="born")
