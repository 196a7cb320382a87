"""What is written appears whole or not at all, and nothing that is not weft's is ever removed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.graph.sealing import reseal
from weft.disk import Claim, InUse, output
from weft.errors import UserError
from weft.graph import load_graph, save_graph, synthetic
from weft.graph.files import FolderWriter

WRITER = """
import sys
from pathlib import Path
import numpy as np
from weft.graph.files import FolderWriter
with FolderWriter(Path(sys.argv[1]), "graph", overwrite=len(sys.argv) > 2) as folder:
    folder.add("numbers", np.arange(9))
    print("writing", flush=True)
    sys.stdin.read()
"""


def writer(path: Path, *rest: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), *rest]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    return process


def small(path: Path, value: int = 0, overwrite: bool = False) -> None:
    with FolderWriter(path, "graph", overwrite) as folder:
        folder.add("numbers", np.full(3, value))


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_two_writers_of_one_folder(tmp_path: Path) -> None:
    process = writer(tmp_path / "g")
    try:
        with pytest.raises(InUse, match=rf"g is in use by process {process.pid}"):
            small(tmp_path / "g")
        small(tmp_path / "other")  # beside it, and without harm to it
        _, err = process.communicate("", timeout=60)
        assert process.returncode == 0, err
        assert names(tmp_path) == ["g", "other"]
    finally:
        process.kill()
        process.communicate()


def test_leftovers_of_a_killed_writer_go_with_the_next_one(tmp_path: Path) -> None:
    process = writer(tmp_path / "g")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert names(tmp_path) == [".g.weft-lock", ".g.weft-partial"]
    small(tmp_path / "another")  # any output in that folder will do
    assert names(tmp_path) == ["another"]


def test_a_folder_that_appears_meanwhile_is_left_alone(tmp_path: Path) -> None:
    for content in ("thesis.txt", None):  # rename(2) replaces an empty folder without a word
        path = tmp_path / str(content)
        with (
            pytest.raises(UserError, match="appeared while it was being written"),
            FolderWriter(path, "graph") as folder,
        ):
            folder.add("numbers", np.arange(3))
            path.mkdir()
            if content:
                (path / content).write_text("precious")
        assert names(path) == ([content] if content else [])
    assert names(tmp_path) == ["None", "thesis.txt"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:  # as on a system without renameat2
        monkeypatch.setattr(output, "_EXCHANGE", 1 << 30)
    small(tmp_path / "g", 1)
    small(tmp_path / "g", 2, overwrite=True)
    assert np.load(tmp_path / "g" / "numbers.npy").tolist() == [2, 2, 2]
    assert names(tmp_path) == ["g"]
    with pytest.raises(RuntimeError), FolderWriter(tmp_path / "g", "graph", overwrite=True) as folder:
        folder.add("numbers", np.arange(3))
        raise RuntimeError
    assert np.load(tmp_path / "g" / "numbers.npy").tolist() == [2, 2, 2]
    assert names(tmp_path) == ["g"]


def test_what_lay_there_comes_back_after_a_crash_between_two_renames(tmp_path: Path) -> None:
    small(tmp_path / "g", 1)
    (tmp_path / "g").rename(tmp_path / ".g.weft-old")
    (tmp_path / ".g.weft-partial").mkdir()
    (tmp_path / ".g.weft-lock").write_text("")
    with pytest.raises(UserError, match="exists already"):
        small(tmp_path / "g", 2)
    assert np.load(tmp_path / "g" / "numbers.npy").tolist() == [1, 1, 1]
    assert names(tmp_path) == ["g"]


@pytest.mark.parametrize("manifest", ['{"name": "an app"}', '{"weft": "graph"}', "{", "[" * 100_000])
def test_a_folder_of_others_with_a_manifest_is_never_overwritten(tmp_path: Path, manifest: str) -> None:
    path = tmp_path / "app"
    path.mkdir()
    (path / "manifest.json").write_text(manifest)
    (path / "main.js").write_text("precious")
    with pytest.raises(UserError, match="will not be overwritten"):
        small(path, overwrite=True)
    assert names(path) == ["main.js", "manifest.json"] and names(tmp_path) == ["app"]


def test_what_others_put_into_a_folder_of_wefts_is_never_removed(tmp_path: Path) -> None:
    small(tmp_path / "g")
    (tmp_path / "g" / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match=r"notes\.txt is not a file of weft's"):
        small(tmp_path / "g", overwrite=True)
    (tmp_path / "g" / "notes.txt").unlink()
    (tmp_path / "g" / "sub").mkdir()
    with pytest.raises(UserError, match="sub is not a file of weft's"):
        small(tmp_path / "g", overwrite=True)
    (tmp_path / "g" / "sub").rmdir()
    with pytest.raises(UserError, match="is a graph folder, not a partition folder; it will not be overwritten"):
        FolderWriter(tmp_path / "g", "partition", overwrite=True).__enter__()
    small(tmp_path / "g", overwrite=True)


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    small(tmp_path / "disk" / "g", 1)
    (tmp_path / "g").symlink_to(tmp_path / "disk" / "g")
    small(tmp_path / "g", 2, overwrite=True)
    assert (tmp_path / "g").is_symlink()
    assert np.load(tmp_path / "disk" / "g" / "numbers.npy").tolist() == [2, 2, 2]


def test_a_reader_keeps_what_it_has_while_the_folder_is_replaced(tmp_path: Path) -> None:
    before = synthetic("tiny")
    save_graph(before, tmp_path / "g")
    reader = load_graph(tmp_path / "g")
    save_graph(synthetic("tiny", seed=7), tmp_path / "g", overwrite=True)
    assert reader.x is not None and before.x is not None and bool((reader.x == before.x).all())
    assert load_graph(tmp_path / "g").fingerprint != before.fingerprint


def test_a_sealed_folder_with_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    small(tmp_path / "g")
    manifest = tmp_path / "g" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"numbers"', '"../numbers"'))
    (tmp_path / "numbers.npy").write_bytes((tmp_path / "g" / "numbers.npy").read_bytes())
    reseal(tmp_path / "g")
    with pytest.raises(UserError, match=r"damaged .at 'arrays'"):
        load_graph(tmp_path / "g")


def test_a_claim_on_a_file(tmp_path: Path) -> None:
    for text in ("one", "two"):
        replaces = None if text == "one" else (lambda path: None)
        with Claim(tmp_path / "out.csv", replaces) as claim:
            claim.temporary.write_text(text)
            claim.publish()
    assert (tmp_path / "out.csv").read_text() == "two" and names(tmp_path) == ["out.csv"]
    with pytest.raises(UserError, match="exists already"), Claim(tmp_path / "out.csv"):
        pass
