"""Every byte is verified once, whatever is altered is found, and the next opening is fast."""

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.graph.sealing import reseal
from weft.errors import UserError
from weft.graph import load_graph, save_graph, synthetic, verify
from weft.graph.files import STAMP


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_graph(synthetic("tiny", weighted=True), tmp_path / "g")
    for file in (tmp_path / "g").iterdir():  # as of yesterday: a stamp trusts what is older than itself
        os.utime(file, ns=(1, 1))
    return tmp_path / "g"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose bytes are read."""
    names: list[str] = []
    before = verify._hash

    def note(file: Path, *rest: object) -> verify.Facts:
        names.append(file.stem)
        return before(file, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(verify, "_hash", note)
    # The clock by which a change is told from the next one: without it a test would have to wait.
    monkeypatch.setattr(verify, "TICK_NS", 0)
    monkeypatch.setattr(verify, "COARSE_TICK_NS", 0)
    return names


def test_bytes_are_read_once(folder: Path, hashed: list[str]) -> None:
    load_graph(folder)
    assert sorted(hashed) == sorted(file.stem for file in folder.glob("*.npy"))
    hashed.clear()
    load_graph(folder)
    assert hashed == []
    load_graph(folder, verify=True)
    assert len(hashed) == len(list(folder.glob("*.npy")))


def test_what_was_written_to_is_read_again(folder: Path, hashed: list[str]) -> None:
    load_graph(folder)
    hashed.clear()
    os.utime(folder / "x.npy")
    load_graph(folder)
    assert hashed == ["x"]
    hashed.clear()
    data = bytearray((folder / "weight.npy").read_bytes())
    data[-1] ^= 64
    facts = (folder / "weight.npy").stat()
    (folder / "weight.npy").write_bytes(data)
    os.utime(folder / "weight.npy", ns=(facts.st_atime_ns, facts.st_mtime_ns))  # the time of change tells all the same
    for _ in range(2):
        with pytest.raises(UserError, match=r"weight\.npy was altered"):
            load_graph(folder)


def test_a_change_within_a_tick_of_the_stamp_is_found(folder: Path) -> None:
    """The stamp does not trust a file that changed at the very moment at which it was written."""
    load_graph(folder)
    stamp = folder / STAMP
    noted = json.loads(stamp.read_text())
    changed = max(facts[3] for facts in noted["files"].values())
    os.utime(stamp, ns=(changed, changed))
    assert not verify._read_stamp(folder, noted["manifest"])["files"]


def test_a_copied_stamp_is_worth_nothing(folder: Path, hashed: list[str], tmp_path: Path) -> None:
    load_graph(folder)
    hashed.clear()
    (tmp_path / "copy").mkdir()
    for file in folder.iterdir():
        (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    load_graph(tmp_path / "copy")
    assert len(hashed) == len(list(folder.glob("*.npy")))


@pytest.mark.parametrize("stamp", ["", "[]", "{", '{"format": 1}', "\xff", "[" * 100_000])
def test_a_damaged_stamp_is_no_error(folder: Path, stamp: str) -> None:
    load_graph(folder)
    (folder / STAMP).write_text(stamp)
    load_graph(folder)


def test_a_folder_that_cannot_be_written_has_its_stamp_in_the_cache(
    folder: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder / STAMP).mkdir()  # nobody can write a file there, not even root
    for _ in range(2):
        load_graph(folder)
    assert len(hashed) == len(list(folder.glob("*.npy")))
    assert len(list((tmp_path / "cache" / "weft" / "stamps").iterdir())) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    hashed.clear()
    for _ in range(2):
        load_graph(folder)
    assert len(hashed) == 2 * len(list(folder.glob("*.npy")))


WRONG = {
    "indptr": (lambda a: np.where(np.arange(a.size) == 5, a[-1], a), "offsets fall"),
    "indices": (
        lambda a: np.where(np.arange(a.size) == 5, 300, a).astype(np.int32),
        "indices is damaged: it holds 300,",
    ),
    "weight": (lambda a: np.where(np.arange(a.size) == 5, np.nan, a).astype(np.float32), "NaN"),
    "x": (lambda a: a[:-1], "its x is"),
    "y": (lambda a: np.where(np.arange(a.size) == 5, 99, a), "y is damaged: it holds 99"),
    "train_mask": (lambda a: a.astype(np.uint8), "train_mask.npy holds uint8"),
    "val_mask": (lambda a: a[:-1], "its val_mask is"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_sealed_folder_with_wrong_arrays_is_refused(folder: Path, name: str) -> None:
    """The digests are right, the arrays are not: as of a program that writes such folders."""
    change, words = WRONG[name]
    file = folder / f"{name}.npy"
    np.save(file, change(np.load(file)))
    reseal(folder)
    for _ in range(2):  # and stays refused
        with pytest.raises(UserError, match=words):
            load_graph(folder)


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


DEEDS = {
    "missing": (lambda file: file.unlink(), "is missing|has no manifest"),
    "empty": (lambda file: file.write_bytes(b""), "altered or truncated|is damaged"),
    "folder": (_folder, "is a folder, not a file"),
    "pipe": (_pipe, "is a named pipe, not a file"),
    "loop": (_loop, "is a link that leads to itself"),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("name", ["manifest.json", "indptr.npy", "x.npy"])
def test_whatever_lies_in_the_place_of_a_file_is_named(folder: Path, name: str, deed: str) -> None:
    act, words = DEEDS[deed]
    act(folder / name)
    failure: list[BaseException] = []

    def load() -> None:
        try:
            load_graph(folder)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=load, daemon=True)  # a pipe must not make it wait
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits"
    with pytest.raises(UserError, match=words):
        raise failure[0]
    assert name in str(failure[0]) or deed == "missing"
