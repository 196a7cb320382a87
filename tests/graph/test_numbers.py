"""Labels that are numbers to predict: which labels are, and that files, parts and splits keep them as they are."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from weft.graph import Graph, describe, load_graph, random_split, save_graph
from weft.graph.convert import to_labels
from weft.graph.csr import CSR
from weft.graph.splits import known
from weft.out_of_core import Job
from weft.out_of_core.workers import partition_files
from weft.partitioning import load_shard
from weft.partitioning.read import predicted_of

NAN = math.nan


def test_fractions_are_numbers_and_whole_numbers_are_classes_unless_it_is_said() -> None:
    assert to_labels([0.5, 2, NAN]).dtype == torch.float32
    assert torch.equal(to_labels([1.0, NAN, 0.0]), torch.tensor([1, -1, 0]))
    assert torch.equal(to_labels([3, -7, 1], "numbers"), torch.tensor([3.0, -7.0, 1.0]))
    assert to_labels([[0.5], [1.5]]).shape == (2,)
    assert to_labels([[0.5, 1.0], [NAN, 3.0]]).shape == (2, 2)
    assert to_labels([[0, 1.0], [NAN, 1]]).dtype == torch.int8
    with pytest.raises(weft.UserError, match="classes are whole numbers"):
        to_labels([0.5, 1.0], "classes")
    with pytest.raises(weft.UserError, match="the label of vertex 1 is infinite"):
        weft.from_edges([0], [1], y=[0.5, 1e39])
    with pytest.raises(weft.UserError, match="label_kind='numbers'"):
        weft.from_edges([0], [1], y=[0, -5])


def a_graph(y: object, **more: object) -> Graph:
    ends = np.random.default_rng(0).integers(0, 40, (2, 200))
    return weft.from_edges(ends[0], ends[1], x=np.eye(40), y=y, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("targets", [1, 3])
def test_numbers_come_back_from_folders_and_parts(tmp_path: Path, targets: int) -> None:
    y = np.random.default_rng(1).normal(size=(40, targets)).astype(np.float32)
    y[::7, 0] = NAN
    names = ("a", "b", "c") if targets == 3 else None
    graph = random_split(a_graph(y, class_names=names), 0.5, 0.2)
    assert graph.num_classes == 0 and graph.num_targets == targets and not graph.multi_label
    save_graph(graph, tmp_path / "graph")
    again = load_graph(tmp_path / "graph")
    assert again.y is not None and again.class_names == names
    np.testing.assert_array_equal(again.y.numpy().reshape(40, targets), y)
    weft.partition(again, 3, tmp_path / "parts", method="random")
    assert predicted_of(tmp_path / "parts") == "numbers"
    shards = [load_shard(tmp_path / "parts", worker, 3) for worker in range(3)]
    for shard in shards:
        assert shard.num_outputs == targets and shard.y is not None
        np.testing.assert_array_equal(shard.y.numpy().reshape(-1, targets), y[shard.global_ids.numpy()])
    described = describe(graph)
    labelled = (~np.isnan(y)).any(1)
    assert described.labelled == labelled.sum() and described.num_targets == targets and described.homophily is None
    assert graph.train_mask is not None and not bool((graph.train_mask & ~torch.from_numpy(labelled)).any())


def test_an_altered_number_is_found(tmp_path: Path) -> None:
    save_graph(a_graph(np.linspace(0.1, 1, 40)), tmp_path / "graph")
    file = tmp_path / "graph" / "y.npy"
    array = np.load(file)
    array[3] = np.inf
    np.save(file, array)
    with pytest.raises(weft.UserError):
        load_graph(tmp_path / "graph")


def test_vertices_that_a_file_does_not_mention_have_no_number(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst\n1,2\n2,3\n3,4\n")
    (tmp_path / "x.csv").write_text("id,a\n1,1\n2,1\n3,1\n4,0\n")
    (tmp_path / "y.csv").write_text("id,label\n2,10\n4,-1\n")
    graph = weft.graph.ingest(
        tmp_path / "e.csv", features=tmp_path / "x.csv", labels=tmp_path / "y.csv", label_kind="numbers"
    )
    assert graph.y is not None
    np.testing.assert_array_equal(graph.y.numpy(), [NAN, 10.0, NAN, -1.0])
    assert known(graph.y).tolist() == [False, True, False, True]


def test_numbers_beside_edge_files(tmp_path: Path) -> None:
    ends = np.random.default_rng(0).integers(0, 40, (2, 200))
    y = np.random.default_rng(1).normal(size=40)
    y[::5] = NAN
    np.save(tmp_path / "e.npy", ends)
    np.save(tmp_path / "y.npy", y)
    job = Job(
        edges=(tmp_path / "e.npy",), parts=2, labels=tmp_path / "y.npy", label_kind="numbers", split="random:0.5,0.2@0"
    )
    info = partition_files(job, tmp_path / "parts", workers=1).info
    assert info.num_classes == 0
    for worker in range(2):
        shard = load_shard(tmp_path / "parts", worker, 2)
        assert shard.y is not None and shard.train_mask is not None
        np.testing.assert_array_equal(shard.y.numpy(), y[shard.global_ids.numpy()].astype(np.float32))
        assert not bool((shard.train_mask & shard.y.isnan()).any())


def test_a_graph_of_pyg_keeps_its_numbers() -> None:
    data_module = pytest.importorskip("torch_geometric.data", reason="PyG is not installed")
    y = torch.tensor([[0.25], [1.5], [3.0]])
    data = data_module.Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=y)
    graph = weft.from_pyg(data, num_classes=3)
    assert graph.num_classes == 0 and torch.equal(graph.y, y[:, 0])  # type: ignore[arg-type]
    assert isinstance(graph.adjacency, CSR)


@pytest.mark.parametrize("columns", [("rent",), ("rent", "area")])
def test_columns_are_prepared_beside_numbers_to_predict(tmp_path: Path, columns: tuple[str, ...]) -> None:
    """Labels that are numbers are no classes: no column is taken for the label by them."""
    rows = [
        f"{k},{k % 3},{k % 4},{'' if k % 5 == 0 else k % 3 + 0.5},{k}.25,{'train' if k < 8 else 'test'}"
        for k in range(12)
    ]
    (tmp_path / "nodes.csv").write_text("id,rooms,floor,rent,area,split\n" + "\n".join(rows) + "\n")
    (tmp_path / "edges.csv").write_text("from,to\n" + "".join(f"{k},{(k + 1) % 12}\n" for k in range(12)))
    graph = weft.ingest(tmp_path / "edges.csv", features=tmp_path / "nodes.csv", label_columns=columns)
    assert graph.num_targets == len(columns) and graph.preparation is not None
    assert [decision.column for decision in graph.preparation.decisions if decision.column in columns] == []
    assert not [note for note in graph.preparation.notes if "label" in note]
    y = graph.y.reshape(12, -1)[:, 0]
    assert y.isnan().tolist() == [k % 5 == 0 for k in range(12)]
    rooms = np.arange(12) % 3
    wanted = (rooms - rooms[:8].mean()) / rooms[:8].std()
    np.testing.assert_allclose(graph.x[:, graph.preparation.names.index("rooms")], wanted, rtol=1e-6)
