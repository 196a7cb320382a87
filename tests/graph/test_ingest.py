"""Every file format gives the same graph; every mistake in a file gives one sentence."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.graph.test_build import edges_of
from weft.errors import UserError
from weft.graph import ingest, ingest_edges, load_graph, save_graph
from weft.graph.graph import Graph
from weft.graph.ids import IdMap

EDGES = np.array([[10, 30, 30, 20, 40], [20, 10, 20, 20, 10]])  # ids; one self-loop
IDS = np.array([40, 10, 30, 20])  # the order of the features file
X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([2, 0, 1, -1])
SPLIT = np.array(["test", "train", "val", ""])


def write_edges(path: Path, edges: np.ndarray, weight: np.ndarray | None = None, text: bool = False) -> Path:
    """Writes what the file's ending says; parquet and csv with a header."""
    src, dst = edges.astype(str) if text else edges
    columns = {"src": src, "dst": dst} | ({} if weight is None else {"weight": weight})
    table = pa.table({name: pa.array(column) for name, column in columns.items()})
    match path.name.partition(".")[2]:
        case "csv":
            pyarrow.csv.write_csv(table, path)
        case "csv.gz":
            with gzip.open(path, "wb") as file:
                pyarrow.csv.write_csv(table, file)
        case "tsv":
            pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(delimiter="\t", quoting_style="none"))
        case "txt":
            lines = ["# a comment", "# src dst", *(f"{u} {v}" for u, v in zip(src, dst, strict=True))]
            path.write_text("\n".join(lines) + "\n")
        case "parquet":
            pq.write_table(table, path)
        case "npy":
            np.save(path, np.stack([src, dst]))
        case "npz":
            np.savez(path, edge_index=np.stack([src, dst]), **({} if weight is None else {"weight": weight}))
    return path


def write_nodes(path: Path, columns: dict[str, np.ndarray]) -> Path:
    table = {}
    for name, column in columns.items():
        if column.ndim == 2:
            if path.suffix == ".parquet":
                table[name] = pa.array(list(column))
            else:
                table |= {f"{name}{k}": pa.array(column[:, k]) for k in range(column.shape[1])}
        else:
            table[name] = pa.array(column)
    match path.suffix:
        case ".csv":
            pyarrow.csv.write_csv(pa.table(table), path)
        case ".parquet":
            pq.write_table(pa.table(table), path)
        case ".npz":
            np.savez(path, **columns)
    return path


def named_edges(graph: Graph) -> list[tuple[str, str]]:
    ids = np.arange(graph.num_nodes) if graph.original_ids is None else graph.original_ids
    return sorted((str(ids[u]), str(ids[v])) for u, v in edges_of(graph))


EXPECTED = sorted((str(u), str(v)) for u, v in EDGES.T)
FORMATS = ["csv", "csv.gz", "tsv", "txt", "parquet", "npy", "npz"]


@pytest.mark.parametrize("text", [False, True], ids=["integers", "text"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_every_edge_format_gives_the_same_graph(suffix: str, text: bool, tmp_path: Path) -> None:
    if text and suffix == "txt":
        edges = np.char.add("v", EDGES.astype(str))  # no header in such files: only text that is no number is text
    else:
        edges = np.char.add("v", EDGES.astype(str)) if text else EDGES
    header = False if text and suffix == "txt" else None
    graph = ingest_edges(write_edges(tmp_path / f"e.{suffix}", edges), header=header)
    prefix = "v" if text else ""
    assert named_edges(graph) == [(prefix + u, prefix + v) for u, v in EXPECTED]
    assert graph.original_ids is not None
    assert graph.original_ids.tolist() == sorted(graph.original_ids.tolist())
    assert graph.original_ids.dtype.kind == ("U" if text else "i")


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_weights_follow_their_edges(suffix: str, tmp_path: Path) -> None:
    weight = np.arange(5) / 4
    graph = ingest_edges(write_edges(tmp_path / f"e.{suffix}", EDGES, weight))
    ids = graph.original_ids
    assert ids is not None and graph.adjacency.weight is not None
    carried = zip(edges_of(graph), graph.adjacency.weight.tolist(), strict=True)
    found = sorted((int(ids[u]), int(ids[v]), w) for (u, v), w in carried)
    assert found == sorted((int(u), int(v), float(w)) for (u, v), w in zip(EDGES.T, weight, strict=True))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("together", [True, False], ids=["one-file", "three-files"])
def test_features_labels_and_split_by_id(suffix: str, together: bool, tmp_path: Path) -> None:
    edges = write_edges(tmp_path / "e.csv", EDGES)
    masks = {f"{role}_mask": role == SPLIT for role in ("train", "val", "test")}
    split = masks if suffix == "npz" else {"split": SPLIT}
    if together:
        nodes = write_nodes(tmp_path / f"n.{suffix}", {"id": IDS, "x": X, "y": Y, **split})
        graph = ingest_edges(edges, features=nodes, raw_features=True)
    else:
        mixed = np.array([2, 0, 3, 1])  # each file in another order
        graph = ingest_edges(
            edges,
            features=write_nodes(tmp_path / f"x.{suffix}", {"id": IDS, "x": X}),
            labels=write_nodes(tmp_path / f"y.{suffix}", {"id": IDS[mixed], "y": Y[mixed]}),
            split=write_nodes(
                tmp_path / f"s.{suffix}", {"id": IDS[::-1], **{key: value[::-1] for key, value in split.items()}}
            ),
            raw_features=True,
        )
    assert graph.original_ids is not None and graph.original_ids.tolist() == IDS.tolist()
    assert named_edges(graph) == EXPECTED
    assert torch.equal(graph.x, torch.from_numpy(X))  # type: ignore[arg-type]
    assert graph.y.tolist() == Y.tolist()  # type: ignore[union-attr]
    for role in ("train", "val", "test"):
        assert getattr(graph, f"{role}_mask").tolist() == (role == SPLIT).tolist()
    save_graph(graph, tmp_path / "g")
    assert load_graph(tmp_path / "g", verify=True).fingerprint == graph.fingerprint


def test_arrays_without_ids_are_about_vertices_in_order(tmp_path: Path) -> None:
    edges = write_edges(tmp_path / "e.npy", np.array([[0, 1], [1, 2]]))
    np.save(tmp_path / "x.npy", np.ones((4, 2)))
    np.save(tmp_path / "y.npy", np.array([0, 1, 1, 0]))
    np.savez(tmp_path / "s.npz", train=np.array([0, 3]), valid=np.array([1]), test=np.array([2]))
    graph = ingest_edges(edges, features=tmp_path / "x.npy", labels=tmp_path / "y.npy", split=tmp_path / "s.npz")
    assert graph.num_nodes == 4 and graph.original_ids is None
    assert graph.train_mask.tolist() == [True, False, False, True]  # type: ignore[union-attr]
    assert graph.val_mask.tolist() == [False, True, False, False]  # type: ignore[union-attr]


def test_names_of_classes_and_unlabelled_vertices(tmp_path: Path) -> None:
    edges = write_edges(tmp_path / "e.csv", EDGES)
    (tmp_path / "y.csv").write_text("id,label\n10,dog\n20,cat\n30,\n")
    graph = ingest_edges(edges, labels=tmp_path / "y.csv")
    assert graph.class_names == ("cat", "dog")
    assert graph.y.tolist() == [1, 0, -1, -1]  # type: ignore[union-attr]  # 40 is not mentioned


def test_several_label_columns(tmp_path: Path) -> None:
    edges = write_edges(tmp_path / "e.csv", EDGES)
    (tmp_path / "y.csv").write_text("id,red,green\n10,1,0\n20,0,1\n30,1,1\n")
    graph = ingest_edges(edges, labels=tmp_path / "y.csv")
    assert graph.multi_label and graph.class_names == ("red", "green")
    assert graph.y.tolist() == [[1, 0], [0, 1], [1, 1], [-1, -1]]  # type: ignore[union-attr]


def test_edges_in_rows_and_in_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", EDGES.T)
    assert named_edges(ingest_edges(tmp_path / "e.npy")) == EXPECTED


def test_dense_integers_need_no_ids_and_gaps_do(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array([[0, 2], [1, 0]]))
    assert ingest_edges(tmp_path / "e.npy").original_ids is None
    np.save(tmp_path / "f.npy", np.array([[0, 10**15], [1, -5]]))
    graph = ingest_edges(tmp_path / "f.npy")
    assert graph.original_ids.tolist() == [-5, 0, 1, 10**15]  # type: ignore[union-attr]
    assert ingest_edges(tmp_path / "e.npy", num_nodes=9).num_nodes == 9


def test_undirected_and_duplicates(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array([[0, 1, 0, 2], [1, 0, 1, 2]]))
    graph = ingest_edges(tmp_path / "e.npy", undirected=True, drop_duplicates=True)
    assert edges_of(graph) == [(1, 0), (0, 1), (2, 2)]


def test_a_random_split_can_be_asked_for(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.stack([np.arange(100), np.roll(np.arange(100), 1)]))
    np.save(tmp_path / "y.npy", np.arange(100) % 4)
    graph = ingest_edges(tmp_path / "e.npy", labels=tmp_path / "y.npy", split="random:0.5,0.2@7")
    sizes = [int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]  # type: ignore[union-attr]
    assert sizes == [50, 20, 30]
    again = ingest_edges(tmp_path / "e.npy", labels=tmp_path / "y.npy", split="random:0.5,0.2@8")
    assert not torch.equal(graph.train_mask, again.train_mask)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="not understood"):
        ingest_edges(tmp_path / "e.npy", labels=tmp_path / "y.npy", split="random:many")


text_ids = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.one_of(
        st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=12, unique=True),
        st.lists(text_ids, min_size=1, max_size=12, unique=True),
    ),
    data=st.data(),
)
def test_any_ids_survive_parquet_and_the_folder(
    ids: list[int] | list[str], data: st.DataObject, tmp_path: Path
) -> None:
    pick = st.sampled_from(ids)
    chosen = data.draw(st.lists(st.tuples(pick, pick), min_size=1, max_size=30))
    table = pa.table({"src": pa.array([u for u, _ in chosen]), "dst": pa.array([v for _, v in chosen])})
    pq.write_table(table, tmp_path / "e.parquet", row_group_size=7)
    pq.write_table(pa.table({"id": pa.array(ids)}), tmp_path / "n.parquet")
    graph = ingest_edges(tmp_path / "e.parquet", features=tmp_path / "n.parquet")
    save_graph(graph, tmp_path / "g", overwrite=True)
    loaded = load_graph(tmp_path / "g")
    assert named_edges(loaded) == sorted((str(u), str(v)) for u, v in chosen)
    assert loaded.num_nodes == len(ids)


def test_text_across_many_chunks_keeps_one_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.graph.tables.CHUNK_BYTES", 256)
    rng = np.random.default_rng(0)
    names = np.array([f"n{k}" for k in range(50)])
    ends = rng.integers(0, 50, (2, 500))
    lines = [f"{names[u]},{names[v]}" for u, v in ends.T]
    (tmp_path / "e.csv").write_text("src,dst\n" + "\n".join(lines) + "\n")
    graph = ingest_edges(tmp_path / "e.csv")
    assert named_edges(graph) == sorted((str(names[u]), str(names[v])) for u, v in ends.T)


def test_integers_that_become_text_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.graph.tables.CHUNK_BYTES", 256)
    (tmp_path / "e.csv").write_text("src,dst\n" + "1,2\n" * 500 + "2,three\n")
    graph = ingest_edges(tmp_path / "e.csv")
    assert set(named_edges(graph)) == {("1", "2"), ("2", "three")}


Writer = Callable[[Path], dict[str, object]]


def text(**files: str) -> Writer:
    """Files by name (`_` for the dot); `e` are the edges, `x`, `y`, `s` features, labels and split."""

    def write(folder: Path) -> dict[str, object]:
        arguments: dict[str, object] = {}
        for name, content in files.items():
            path = folder / name.replace("_", ".")
            path.write_text(content)
            arguments[{"e": "edges", "x": "features", "y": "labels", "s": "split"}[name[0]]] = path
        return arguments

    return write


SOUND = "src,dst\n1,2\n2,3\n"


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (text(e_csv=""), {}, "e.csv is empty"),
        (text(e_csv="src,dst\n"), {}, "e.csv has no"),
        (text(e_txt="# only a comment\n"), {}, "e.txt is empty"),
        (text(e_csv="src,dst\n1,2\n3\n"), {}, "e.csv cannot be read"),
        (text(e_csv="src,dst\n1,\n"), {}, "row 0"),
        (text(e_csv="src,dst\na,b\nc,\n"), {}, "row 1"),
        (text(e_csv="alice,bob\ncarol,bob\n"), {}, "may be a header or data"),
        (text(e_csv="a,b,c\n1,2,3\n"), {"header": True}, "--src-column and --dst-column"),
        (text(e_csv="source_node,dst\n1,2\n"), {"src_column": "source_nod"}, "did you mean 'source_node'?"),
        (text(e_csv=SOUND), {"weight_column": "wheight"}, "unknown column 'wheight'"),
        (text(e_csv="src,dst,weight\n1,2,heavy\n"), {}, "cannot be read"),
        (text(e_csv="src,dst,weight\n1,2,nan\n"), {}, "edge weights have NaN"),
        (text(e_csv="src,src\n1,2\n"), {}, "two columns called 'src'"),
        (text(e_csv=SOUND, x_csv="id,a\n1,1\n2,1\n"), {}, "edge 1 of"),
        (text(e_csv=SOUND, x_csv="id,a\n1,1\n2,1\n2,1\n3,1\n"), {}, "id '2' occurs twice"),
        (text(e_csv=SOUND, x_csv="id,a\n1,1\n2,nan\n3,1\n"), {"raw_features": True}, "first in row 1"),
        (text(e_csv=SOUND, x_csv="id,a\n1,1\n2,\n3,1\n"), {"raw_features": True}, "first in row 1"),
        (text(e_csv=SOUND, x_csv="id,a\n1,1\n2,inf\n3,1\n"), {}, "NaN or infinite"),
        (text(e_csv=SOUND, x_csv="id,a\n1,1\n2,red\n3,1\n"), {}, "column 'a'"),
        (text(e_csv=SOUND, x_csv="id,a\n"), {}, "x.csv has no rows"),
        (text(e_csv=SOUND, x_csv="id,a\n1,1\n2,1\n3,1\n"), {"id_column": "di"}, "unknown column 'di'"),
        (text(e_csv=SOUND, x_csv="id,a\n1,1\n,1\n3,1\n"), {}, "row 1"),
        (text(e_csv=SOUND, y_csv="id,label\n1,0\n9,1\n"), {}, "row 1 has id '9'"),
        (text(e_csv=SOUND, y_csv="id,label\n1,0\n1,1\n"), {}, "id '1' occurs twice"),
        (text(e_csv=SOUND, y_csv="id,label\n1,0\n2,5\n"), {"num_classes": 3}, "outside 0..2"),
        (text(e_csv=SOUND, y_csv="id,label\n1,0\n2,-3\n"), {}, "is -3"),
        (text(e_csv=SOUND, y_csv="id,label\n1,0.5\n2,1\n"), {"label_kind": "classes"}, "whole numbers"),
        (text(e_csv=SOUND, y_csv="id,label\n1,0.5\n2,inf\n"), {}, "the label of vertex 1 is infinite"),
        (text(e_csv=SOUND, y_csv="id,label\n1,red\n2,blue\n"), {"label_kind": "numbers"}, "are names"),
        (text(e_csv=SOUND, y_csv="id,label\n1,0.5\n"), {"label_kind": "number"}, "did you mean 'numbers'?"),
        (text(e_csv=SOUND, y_csv="id\n1\n2\n"), {}, "no label column"),
        (text(e_csv=SOUND, s_csv="id,split\n1,trian\n"), {}, "did you mean 'train'?"),
        (text(e_csv=SOUND, s_csv="id,split\n1,test\n2,val\n"), {}, "no training vertex"),
        (text(e_csv=SOUND, s_csv="id,split\n7,train\n"), {}, "has id '7'"),
        (text(e_csv=SOUND, s_csv="id,label\n1,train\n2,x\n"), {"split_column": "splt"}, "unknown column 'splt'"),
        (text(e_xls="?"), {}, "no edge list that weft reads"),
    ],
)
def test_bad_files_are_one_sentence(write: Writer, options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        ingest_edges(**write(tmp_path), **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["parquet", "npy", "npz", "csv.gz"])
def test_truncated_files(suffix: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = write_edges(tmp_path / f"e.{suffix}", rng.integers(0, 1000, (2, 5000)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"cannot be read|truncated"):
        ingest(path)


def test_missing_files_and_wrong_shapes(tmp_path: Path) -> None:
    edges = write_edges(tmp_path / "e.csv", np.array([[0, 1], [1, 2]]))
    for argument in ("features", "labels", "split"):
        with pytest.raises(UserError, match="is missing"):
            ingest_edges(edges, **{argument: tmp_path / "none.csv"})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="does not exist"):
        ingest(tmp_path / "none.csv")
    np.save(tmp_path / "e.npy", np.zeros((3, 4), np.int64))
    with pytest.raises(UserError, match=r"\[2, E\] or \[E, 2\]"):
        ingest_edges(tmp_path / "e.npy")
    np.save(tmp_path / "f.npy", np.zeros((2, 4)))
    with pytest.raises(UserError, match="integers or text"):
        ingest_edges(tmp_path / "f.npy")
    np.save(tmp_path / "x.npy", np.ones((2, 5)))
    with pytest.raises(UserError, match="points outside the graph"):
        ingest_edges(edges, features=tmp_path / "x.npy")
    with pytest.raises(UserError, match="2 rows for 3 vertices"):
        ingest_edges(edges, features=tmp_path / "x.npy", num_nodes=3)
    np.save(tmp_path / "y.npy", np.zeros(5, np.int64))
    np.save(tmp_path / "x.npy", np.ones((3, 5)))
    with pytest.raises(UserError, match="5 rows for 3 vertices"):
        ingest_edges(edges, features=tmp_path / "x.npy", labels=tmp_path / "y.npy")
    np.save(tmp_path / "o.npy", np.array([{"code": 1}]), allow_pickle=True)
    with pytest.raises(UserError, match=r"is no plain npy file"):
        ingest_edges(edges, features=tmp_path / "o.npy")


def test_rows_of_different_length_in_parquet(tmp_path: Path) -> None:
    edges = write_edges(tmp_path / "e.csv", np.array([[0, 1], [1, 2]]))
    ragged = pa.array([[1.0, 2.0], [1.0, 2.0], [3.0]])
    pq.write_table(pa.table({"id": [0, 1, 2], "x": ragged}), tmp_path / "n.parquet")
    with pytest.raises(UserError, match=r"row 2 of .* has 1 features"):
        ingest_edges(edges, features=tmp_path / "n.parquet")


def test_ids_that_would_become_one_stay_two(tmp_path: Path) -> None:
    """ "01" and "1" are the same integer, but not the same id."""
    edges = tmp_path / "edges.csv"
    edges.write_text("src,dst\n01,1\n1,2\n")
    graph = ingest_edges(edges)
    assert graph.original_ids is not None and graph.original_ids.tolist() == ["01", "1", "2"]
    assert edges_of(graph) == [(0, 1), (1, 2)]
    (tmp_path / "x.csv").write_text("id,x\n01,5\n1,6\n2,7\n")
    graph = ingest_edges(edges, features=tmp_path / "x.csv", raw_features=True)
    assert graph.original_ids is not None and graph.original_ids.tolist() == ["01", "1", "2"]
    assert graph.x is not None and graph.x.tolist() == [[5], [6], [7]]
    (tmp_path / "x.csv").write_text("id,x\n0,4\n1,6\n2,7\n")
    with pytest.raises(UserError, match=r"'01'.* integers: write them alike"):
        ingest_edges(edges, features=tmp_path / "x.csv")
    with pytest.raises(UserError, match=r"'01'.* integers: write them alike"):
        IdMap(np.array([0, 1])).find(np.array(["1", "01"]), "row")
    assert IdMap(np.array([0, 7])).find(np.array(["7", "0"]), "row").tolist() == [1, 0]


def test_a_leading_zero_elsewhere_leaves_integers_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst,zip\n5,10,07001\n10,5,10001\n")
    graph = ingest_edges(tmp_path / "edges.csv", src_column="src", dst_column="dst")
    assert graph.original_ids is not None and graph.original_ids.tolist() == [5, 10]
    (tmp_path / "edges.csv").write_text("src,dst,weight\n0,10,0.5\n10,0,0\n")
    graph = ingest_edges(tmp_path / "edges.csv")
    assert graph.original_ids is not None and graph.original_ids.tolist() == [0, 10]
