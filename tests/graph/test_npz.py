"""npz files of whoever: what cannot be right is one sentence, before memory is spent on it."""

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from weft.disk import space
from weft.errors import UserError
from weft.graph import load_npz
from weft.graph.npz import read_npz

EDGES = np.array([[0, 1, 2], [1, 2, 0]])
SPARSE = {
    "x_data": np.ones(3, np.float32),
    "x_indices": np.array([0, 1, 0]),
    "x_indptr": np.array([0, 1, 2, 3]),
    "x_shape": np.array([3, 2]),
}


def save(path: Path, **arrays: object) -> Path:
    np.savez(path, edge_index=EDGES, **arrays)  # type: ignore[arg-type]
    return path


def test_sparse_features(tmp_path: Path) -> None:
    graph = load_npz(save(tmp_path / "g.npz", **SPARSE))
    assert graph.x is not None and graph.x.tolist() == [[1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("x_indptr", [0, 3, 1, 3], "offsets fall at row 1"),
        ("x_indptr", [1, 1, 2, 3], "offsets run from 1"),
        ("x_indptr", [0, 1, 2, 9], "offsets run from 0 to 9"),
        ("x_indptr", [0, 3], "offsets torch.int64"),
        ("x_indptr", [0.0, 1.0, 2.0, 3.0], "hold integers"),
        ("x_indices", [0, -1, 0], "holds -1"),
        ("x_indices", [0, 2, 0], "holds 2"),
        ("x_indices", [0, 2**40, 0], "holds 1099511627776"),
        ("x_data", [[1.0, 1.0, 1.0]], "do not fit together"),
        ("x_data", np.array(["a", "b", "c"]), "do not fit together"),
        ("x_shape", [3, 2, 1], "two integers"),
        ("x_shape", [-3, 2], "no shape"),
        ("x_shape", [3, 2**40], "of memory"),
        ("num_nodes", [3, 3], "one integer"),
        ("num_nodes", 2**31 - 1 + 2**40, "more than the"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, name: str, value: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_npz(save(tmp_path / "g.npz", **(SPARSE | {name: np.asarray(value)})))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (300 << 20,)})
        for _ in range(300):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(UserError, match=r"unpacks to 300\.0 MiB, more than 200 times its size"):
        read_npz(tmp_path / "bomb.npz")
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_what_memory_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "g.npz", x=np.random.default_rng(0).random((3, 1000)))
    monkeypatch.setattr(space, "memory_bytes", lambda: 4096)
    with pytest.raises(UserError, match=r"g\.npz, unpacked, would take 2"):
        load_npz(tmp_path / "g.npz")


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
        archive.writestr("edge_index.npy", header.getvalue() + bytes(64))
    with pytest.raises(UserError, match=r"but has \d+ bytes"):
        read_npz(tmp_path / "lies.npz")


@pytest.mark.parametrize("length", [0, 1, 40, 200])
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    data = save(tmp_path / "g.npz").read_bytes()
    (tmp_path / "g.npz").write_bytes(data[:length])
    with pytest.raises(UserError, match="cannot be read as npz"):
        load_npz(tmp_path / "g.npz")


def test_every_altered_byte_is_found_or_harmless(tmp_path: Path) -> None:
    """An archive has a checksum of every member; what lies between members says nothing of the data."""
    path = save(tmp_path / "g.npz")
    data, right = path.read_bytes(), load_npz(path).fingerprint
    for at in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        try:
            found = load_npz(path).fingerprint
        except UserError:
            continue
        assert found == right, at
