"""One door to every graph: `open_graph(spec)`."""

import os
from pathlib import Path

from weft.errors import UserError, unknown
from weft.graph.files import MANIFEST
from weft.graph.graph import Graph
from weft.graph.npz import load_npz
from weft.graph.store import load_graph
from weft.graph.synthetic import PREFIX, PRESETS, parse_synthetic

DATA_FOLDER = "WEFT_DATA"  # environment: a folder of NAME.npz files and graph folders


def open_graph(spec: str | Path) -> Graph:
    """A named data set, a graph folder, an npz file, or `synthetic:NAME?key=value,...`."""
    text = str(spec)
    if text.startswith(PREFIX):
        return parse_synthetic(text)
    path = Path(spec)
    if path.is_dir():
        return load_graph(path)
    if path.suffix == ".npz":
        return load_npz(path)
    if path.exists():
        raise UserError(f"{path} is no graph folder and no npz file: make a graph folder of it with weft ingest")
    return load_named(text)


def load_named(name: str, root: str | Path | None = None) -> Graph:
    folder = Path(root or os.environ.get(DATA_FOLDER, "."))
    if (folder / f"{name}.npz").exists():
        return load_npz(folder / f"{name}.npz")
    if (folder / name / MANIFEST).exists():
        return load_graph(folder / name)
    raise unknown("data set", name, [*(f"{PREFIX}{preset}" for preset in PRESETS)])
