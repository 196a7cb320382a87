"""Edge files in all their forms, read in slices."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.out_of_core.edgefiles import cut_files, same_folders
from weft.errors import UserError
from weft.out_of_core.budget import parse_bytes
from weft.out_of_core.edgefiles import find_edge_files, open_edges
from weft.out_of_core.job import Job

EDGES = np.random.default_rng(0).integers(0, 50, (2, 300))


def write_npy(path: Path, array: Any) -> str:
    np.save(path, array)
    return str(path)


def write_csv(path: Path, edges: Any, header: str = "") -> str:
    path.write_text(header + "".join(f"{u},{v}\n" for u, v in edges.T))
    return str(path)


def write_parquet(path: Path, edges: Any) -> str:
    pq.write_table(pa.table({"src": edges[0], "dst": edges[1]}), path, row_group_size=70)
    return str(path)


def in_folder(folder: Path) -> str:
    folder.mkdir()
    write_csv(folder / "a.csv", EDGES[:, :100], "src,dst\n")
    write_parquet(folder / "b.parquet", EDGES[:, 100:200])
    write_npy(folder / "c.npy", EDGES[:, 200:])
    return str(folder)


FORMS = {
    "rows": lambda at: write_npy(at / "e.npy", EDGES.astype(np.int32)),
    "columns": lambda at: write_npy(at / "e.npy", np.ascontiguousarray(EDGES.T)),
    "Fortran": lambda at: write_npy(at / "e.npy", np.asfortranarray(EDGES)),
    "unsigned": lambda at: write_npy(at / "e.npy", EDGES.astype(np.uint8)),
    "big-endian": lambda at: write_npy(at / "e.npy", EDGES.astype(">i4")),
    "two files": lambda at: write_npy(at / "s.npy", EDGES[0]) + "," + write_npy(at / "d.npy", EDGES[1]),
    "parquet": lambda at: write_parquet(at / "e.parquet", EDGES),
    "csv": lambda at: write_csv(at / "e.csv", EDGES, "# a comment\nfrom,to\n"),
    "csv without header": lambda at: write_csv(at / "e.csv", EDGES),
    "folder": lambda at: in_folder(at / "edges"),
}


@pytest.mark.parametrize("form", FORMS)
def test_slices_are_the_whole_in_order(tmp_path: Path, form: str) -> None:
    edges = open_edges(Job(edges=find_edge_files(FORMS[form](tmp_path)), parts=1))
    for workers in (1, 2, 3, 7, 400):
        for chunk_edges in (1, 64, 1000):
            slices = [edges.read(edges.span(worker, workers), chunk_edges) for worker in range(workers)]
            chunks = [chunk for one in slices for chunk in one]
            assert np.array_equal(np.concatenate([chunk.src for chunk in chunks]), EDGES[0])
            assert np.array_equal(np.concatenate([chunk.dst for chunk in chunks]), EDGES[1])
            assert sum(chunk.amount for chunk in chunks) == sum(file.length for file in edges.files)


def test_all_forms_give_the_same_parts(tmp_path: Path) -> None:
    for number, form in enumerate(FORMS):
        folder = tmp_path / str(number)
        folder.mkdir()
        cut_files(folder / "parts", 1, edges=find_edge_files(FORMS[form](folder)), parts=3, method="hash")
        same_folders(folder / "parts", tmp_path / "0" / "parts")


def test_weights_of_tables(tmp_path: Path) -> None:
    pq.write_table(pa.table({"u": EDGES[0], "v": EDGES[1], "w": np.arange(300.0)}), tmp_path / "e.parquet")
    rows = "".join(f"{u};{v};{k}\n" for k, (u, v) in enumerate(EDGES.T))
    (tmp_path / "e.txt").write_text("u;v;weight\n" + rows)
    for name in ("e.parquet", "e.txt"):
        cut_files(tmp_path / name.replace(".", "-"), 1, edges=(tmp_path / name,), parts=2, method="hash")
    same_folders(tmp_path / "e-parquet", tmp_path / "e-txt")


def test_what_names_edge_files(tmp_path: Path) -> None:
    for name in ("cora", "synthetic:arxiv", "graph.npz", str(tmp_path / "missing")):
        assert find_edge_files(name) == ()
    (tmp_path / "release.txt").write_text("v1")
    (tmp_path / "raw").mkdir()
    assert find_edge_files(str(tmp_path)) == (), "a folder with folders in it is some other library's"
    assert find_edge_files("missing.npy") == (Path("missing.npy"),)


@pytest.mark.parametrize(
    ("text", "expected"), [("2G", 2 << 30), ("512M", 512 << 20), ("1.5 GiB", 3 << 29), ("100", 100), ("4kb", 4096)]
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "much", "-1G", "2X"])
def test_amounts_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="write it as 512M or 2G"):
        parse_bytes(text)
