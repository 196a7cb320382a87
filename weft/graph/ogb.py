"""OGB's node classification sets, read from the raw files that OGB publishes (csv.gz or npz); no pickle involved."""

import shutil
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from weft.errors import UserError
from weft.graph.build import from_edges
from weft.graph.edgelist import read_edges
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.npz import read_npz
from weft.graph.progress import progress
from weft.graph.tables import open_table, read_batches, to_numpy

URL = "http://snap.stanford.edu/ogb/data/nodeproppred/{}.zip"
ARCHIVES = {"ogbn-arxiv": "arxiv", "ogbn-products": "products", "ogbn-papers100M": "papers100M-bin"}
UNDIRECTED = ("products",)  # each edge is listed once, and means both directions
CHUNK_BYTES = 1 << 20


def load_ogb(name: str, root: Path) -> Graph:
    """`ogbn-arxiv` and so on: from `root` where it lies already, else downloaded into it."""
    archive = ARCHIVES[name]
    candidates = [root / folder for folder in (name.replace("-", "_"), archive, name)]
    for folder in candidates:
        if is_ogb_folder(folder):
            return load_ogb_folder(folder, name)
    _download(URL.format(archive), archive, root, candidates[0])
    return load_ogb_folder(candidates[0], name)


def is_ogb_folder(path: Path) -> bool:
    raw = path / "raw"
    return (path / "split").is_dir() and ((raw / "edge.csv.gz").exists() or (raw / "data.npz").exists())


def load_ogb_folder(path: Path, name: str | None = None) -> Graph:
    """A folder with OGB's `raw/` and `split/`."""
    raw, name = path / "raw", name or path.name
    if (raw / "data.npz").exists():
        arrays = read_npz(raw / "data.npz")
        src, dst = arrays["edge_index"]
        x, count = arrays.get("node_feat"), int(np.ravel(arrays["num_nodes_list"])[0])
        y = read_npz(raw / "node-label.npz")["node_label"]
    else:
        edges = read_edges(raw / "edge.csv.gz", header=False)
        src, dst = edges.src, edges.dst
        x = _matrix(raw / "node-feat.csv.gz", np.float32) if (raw / "node-feat.csv.gz").exists() else None
        y = _matrix(raw / "node-label.csv.gz", np.float64)
        count = int(_matrix(raw / "num-node-list.csv.gz", np.int64).sum())
    masks = {role: np.zeros(count, np.bool_) for role in ("train", "val", "test")}
    folders = sorted(folder for folder in (path / "split").iterdir() if folder.is_dir())
    if not folders:
        raise UserError(f"{path / 'split'} has no split: download the data set again")
    for role, file in (("train", "train"), ("val", "valid"), ("test", "test")):
        rows = _matrix(folders[0] / f"{file}.csv.gz", np.int64).reshape(-1)
        if rows.size and (rows.min() < 0 or rows.max() >= count):
            raise UserError(f"{folders[0] / f'{file}.csv.gz'} names a vertex outside 0..{count - 1}")
        masks[role][rows] = True
    return from_edges(
        src,
        dst,
        num_nodes=count,
        x=x,
        y=y,
        train_mask=masks.get("train"),
        val_mask=masks.get("val"),
        test_mask=masks.get("test"),
        undirected=any(word in name for word in UNDIRECTED),
        name=name,
        meta={"source": "ogb", "split": folders[0].name},
    )


def _matrix(path: Path, dtype: type) -> Array:
    table = open_table(path, (), header=False)
    parts: list[Array] = [
        np.stack([to_numpy(column).astype(dtype) for column in batch.columns], axis=1)
        for batch in read_batches(table, table.columns)
    ]
    if not parts:
        raise UserError(f"{path} has no rows: download the data set again")
    return np.concatenate(parts)


def _download(url: str, archive: str, root: Path, target: Path) -> None:
    """Fetches and unpacks the archive beside its place, then moves it there whole."""
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root, prefix=".download-") as scratch:
        file = Path(scratch) / "archive.zip"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer, file.open("wb") as out:
                size = int(answer.headers.get("Content-Length") or 0)
                with progress(f"downloading {url.rpartition('/')[2]}", size or None) as advance:
                    while chunk := answer.read(CHUNK_BYTES):
                        out.write(chunk)
                        advance(len(chunk))
            with zipfile.ZipFile(file) as packed:
                packed.extractall(scratch)
        except (urllib.error.URLError, OSError, zipfile.BadZipFile) as error:
            raise UserError(
                f"{url} could not be downloaded ({error}): connect to a network, or unpack the archive into {target}"
            ) from None
        if not is_ogb_folder(Path(scratch) / archive):
            inside = [entry for entry in Path(scratch).iterdir() if is_ogb_folder(entry)]
            if not inside:
                raise UserError(f"{url} did not hold a data set with raw/ and split/: report it")
            archive = inside[0].name
        shutil.move(Path(scratch) / archive, target)
