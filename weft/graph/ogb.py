"""OGB's node classification sets, read from the raw files that OGB publishes (csv.gz or npz); no pickle involved."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from weft.disk.space import refuse_beyond_memory
from weft.errors import UserError
from weft.graph.build import from_edges
from weft.graph.edgelist import read_edges
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.npz import read_npz
from weft.graph.tables import open_table, read_batches, to_numpy

URL = "https://snap.stanford.edu/ogb/data/nodeproppred/{}.zip"
ARCHIVES = {"ogbn-arxiv": "arxiv", "ogbn-products": "products", "ogbn-papers100M": "papers100M-bin"}
AGAIN = "download the data set again"
UNDIRECTED = ("products",)  # each edge is listed once, and means both directions


def load_ogb(name: str, root: Path) -> Graph:
    """`ogbn-arxiv` and so on, from `root`, where the archive was unpacked by hand.

    weft does not fetch it: OGB publishes no checksums, so that nobody could tell what has arrived.
    """
    archive = ARCHIVES[name]
    candidates = [root / folder for folder in (name.replace("-", "_"), archive, name)]
    for folder in candidates:
        if is_ogb_folder(folder):
            return load_ogb_folder(folder, name)
    raise UserError(
        f"{name} does not lie in {root}, and weft does not download it, because OGB publishes no checksum of it: fetch "
        f"{URL.format(archive)} from a network that you trust, unpack it, and move its folder, which holds raw/ and "
        f"split/, to {candidates[0]}"
    )


def is_ogb_folder(path: Path) -> bool:
    raw = path / "raw"
    return (path / "split").is_dir() and ((raw / "edge.csv.gz").exists() or (raw / "data.npz").exists())


def load_ogb_folder(path: Path, name: str | None = None) -> Graph:
    """A folder with OGB's `raw/` and `split/`."""
    raw, name = path / "raw", name or path.name
    if (raw / "data.npz").exists():
        arrays = read_npz(raw / "data.npz")
        edges = _taken(arrays, "edge_index", raw / "data.npz")
        if edges.ndim != 2 or len(edges) != 2:
            raise UserError(f"edge_index of {raw / 'data.npz'} has shape {list(edges.shape)}, not [2, E]: {AGAIN}")
        src, dst = edges
        x = arrays.get("node_feat")
        count = _count(_taken(arrays, "num_nodes_list", raw / "data.npz").reshape(-1)[:1], raw / "data.npz")
        y = _taken(read_npz(raw / "node-label.npz"), "node_label", raw / "node-label.npz")
    else:
        listed = read_edges(raw / "edge.csv.gz", header=False)
        src, dst = listed.src, listed.dst
        x = _matrix(raw / "node-feat.csv.gz", np.float32) if (raw / "node-feat.csv.gz").exists() else None
        y = _matrix(raw / "node-label.csv.gz", np.float64)
        count = _count(_matrix(raw / "num-node-list.csv.gz", np.int64), raw / "num-node-list.csv.gz")
    masks = {role: np.zeros(count, np.bool_) for role in ("train", "val", "test")}
    folders = sorted(folder for folder in (path / "split").iterdir() if folder.is_dir())
    if not folders:
        raise UserError(f"{path / 'split'} has no split: {AGAIN}")
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
        np.stack([_numbers(to_numpy(column), dtype, path) for column in batch.columns], axis=1)
        for batch in read_batches(table, table.columns)
    ]
    if not parts:
        raise UserError(f"{path} has no rows: {AGAIN}")
    return np.concatenate(parts)


def _numbers(column: Array, dtype: type, path: Path) -> Array:
    if column.dtype.kind not in "biuf":
        raise UserError(f"{path} holds text where OGB has numbers: {AGAIN}")
    if np.issubdtype(dtype, np.integer) and column.dtype.kind == "f":
        raise UserError(f"{path} holds fractions or gaps where OGB has whole numbers: {AGAIN}")
    return column.astype(dtype)


def _taken(arrays: Mapping[str, Array], name: str, path: Path) -> Array:
    if name not in arrays:
        raise UserError(f"{path} has no array '{name}': {AGAIN}")
    return arrays[name]


def _count(given: Array, path: Path) -> int:
    """A number of vertices, for which there is memory."""
    if not given.size or given.dtype.kind not in "iu" or int(given.min()) < 0:
        raise UserError(f"{path} has no number of vertices: {AGAIN}")
    count = int(given.sum())
    refuse_beyond_memory(3 * count, f"the splits of {count:,} vertices, of which {path} tells,")
    return count
