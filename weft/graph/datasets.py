"""One door to every graph: `open_graph(spec)`."""

import importlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import UserError, unknown
from weft.graph.build import to_undirected
from weft.graph.cora import load_cora
from weft.graph.edgelist import EDGE_FILES
from weft.graph.files import MANIFEST
from weft.graph.foreign import from_pyg, load_graphbolt_folder, require
from weft.graph.graph import Graph
from weft.graph.ingest import SPLIT_SPECS, ingest_edges, is_edge_file, is_split_spec
from weft.graph.npz import KEYS, load_npz, read_npz_names
from weft.graph.ogb import ARCHIVES, is_ogb_folder, load_ogb, load_ogb_folder
from weft.graph.splits import parse_split
from weft.graph.store import load_graph
from weft.graph.synthetic import PREFIX, PRESETS, parse_synthetic
from weft.graph.typedtables import DESCRIPTIONS, ingest_tables
from weft.graph.types import GraphTypes

DATA_FOLDER = "WEFT_DATA"  # environment: a folder of NAME.npz files and graph folders; downloads go there too
MISSING_ROWS = "error"  # where nothing is said about ids without a row
ABOUT_EDGES = {"edge_index", "weight", "relation", "edge_features"}  # arrays of an npz that holds no whole graph
PYG_PREFIX = "pyg:"
PYG = {  # name: class in torch_geometric.datasets, its name argument
    "citeseer": ("Planetoid", "CiteSeer"),
    "pubmed": ("Planetoid", "PubMed"),
    "amazon-computers": ("Amazon", "Computers"),
    "amazon-photo": ("Amazon", "Photo"),
    "coauthor-cs": ("Coauthor", "CS"),
    "coauthor-physics": ("Coauthor", "Physics"),
    "tolokers": ("HeterophilousGraphDataset", "Tolokers"),
    "wikics": ("WikiCS", None),
    "flickr": ("Flickr", None),
    "reddit": ("Reddit", None),
    "yelp": ("Yelp", None),
    "amazon-products": ("AmazonProducts", None),
}


def open_graph(spec: str | Path, root: str | Path | None = None) -> Graph:
    """A named data set, a graph folder, an npz file, `synthetic:NAME?key=value,...`, another library's folder.

    >>> weft.load("synthetic:tiny?nodes=500").num_nodes  # as weft.load("cora"), weft.load("my-graph")
    500

    root: where named data sets lie or are downloaded to, instead of the folder that WEFT_DATA names.
    """
    text = str(spec)
    if text.startswith(PREFIX):
        return parse_synthetic(text)
    path = Path(spec)
    if path.is_dir():
        return _open_folder(path)
    if path.is_file():
        if path.suffix == ".npz":
            return load_npz(path)
        raise UserError(f"{path} is no graph folder and no npz file: make a graph folder of it with weft ingest")
    if path.suffix in EDGE_FILES or os.sep in text:
        raise UserError(f"{path} does not exist: give a graph folder, an npz file or the name of a data set")
    return load_named(text, root)


def ingest(source: str | Path, **options: Any) -> Graph:
    """Whatever weft can read: an edge list with `ingest_edges`' options, else what `open_graph` takes.

    A graph.yaml describes tables of several types of vertices; it takes `name` and `prepared_as`, the types of another
    graph. A graph that is whole already takes a name, `undirected`, and a split such as `random:0.6,0.2@SEED`.
    """
    given = {key: value for key, value in options.items() if value not in (None, False, (), {}, MISSING_ROWS)}
    path = Path(source)
    if path.suffix in DESCRIPTIONS:
        wrong = ", ".join(sorted(given.keys() - {"name", "prepared_as"}))
        if wrong:
            raise UserError(f"{path} says itself what its tables hold, so that {wrong} cannot be given: write it there")
        if not isinstance(given.get("prepared_as"), GraphTypes | None):
            raise UserError(f"{path} has types of vertices, and the graph to be prepared as has none: give another")
        return ingest_tables(path, **given)
    if isinstance(given.get("prepared_as"), GraphTypes):
        raise UserError(f"{path} is no graph.yaml, and the graph to be prepared as has types of vertices: give another")
    if is_edge_file(path) and not _is_whole(path):
        return ingest_edges(path, **options)
    spec = str(given.get("split", SPLIT_SPECS[0]))
    unfit = sorted(given.keys() - {"name", "undirected", "split"})
    if not is_split_spec(spec):
        unfit.append("split")
    if unfit:
        raise UserError(
            f"{source} is a whole graph, not a list of edges, so that {', '.join(unfit)} cannot be given with it: "
            "leave that out, or give the edges as a file of their own"
        )
    undirected = "undirected" in given
    if path.suffix == ".npz" and path.is_file():
        graph = load_npz(path, undirected=True if undirected else None)
    else:
        graph = to_undirected(open_graph(source)) if undirected else open_graph(source)
    graph = replace(graph, name=given.get("name", graph.name))
    return parse_split(graph, spec) if "split" in given else graph


def _is_whole(path: Path) -> bool:
    """Whether an npz file says more than edges: then its features, labels and splits must not get lost."""
    return path.suffix == ".npz" and bool(set(read_npz_names(path)) & (set(KEYS) - ABOUT_EDGES))


def load_named(name: str, root: str | Path | None = None) -> Graph:
    """A data set by name, from `root` or the folder in WEFT_DATA where it lies there, else from its source."""
    if name.startswith(PREFIX):
        return parse_synthetic(name)
    folder = data_folder(root)
    if (folder / f"{name}.npz").is_file():
        return load_npz(folder / f"{name}.npz")
    if (folder / name / MANIFEST).is_file():
        return load_graph(folder / name)
    if name == "cora":
        return load_cora()
    if name in ARCHIVES:
        return load_ogb(name, folder)
    if name in PYG:
        return _load_pyg(*PYG[name], name, folder)
    if name.startswith(PYG_PREFIX):
        dataset, _, argument = name.removeprefix(PYG_PREFIX).partition("/")
        return _load_pyg(dataset, argument or None, name.replace(":", "-").replace("/", "-").lower(), folder)
    raise unknown("data set", name, known_names(folder))


def known_names(root: str | Path | None = None) -> list[str]:
    """Every name that `load_named` takes."""
    folder = data_folder(root)
    local = [file.stem for file in folder.glob("*.npz")] if folder.is_dir() else []
    return sorted({"cora", *ARCHIVES, *PYG, *(f"{PREFIX}{preset}" for preset in PRESETS), *local})


def data_folder(root: str | Path | None = None) -> Path:
    return Path(root or os.environ.get(DATA_FOLDER) or Path.home() / ".cache" / "weft")


def _open_folder(path: Path) -> Graph:
    if (path / MANIFEST).is_file():
        return load_graph(path)
    if (path / "metadata.yaml").is_file():
        return load_graphbolt_folder(path)
    if is_ogb_folder(path):
        return load_ogb_folder(path)
    if (path / "processed").is_dir():
        raise UserError(
            f"{path} is a PyG data set, whose files hold pickled code: load it with PyG, then weft.from_pyg"
        )
    raise UserError(
        f"{path} is no folder that weft knows: a graph folder has {MANIFEST}, GraphBolt metadata.yaml, OGB raw/ and "
        "split/, PyG processed/"
    )


def _load_pyg(dataset: str, argument: str | None, name: str, root: Path) -> Graph:
    require("torch_geometric", f"the data set '{name}'")
    known = importlib.import_module("torch_geometric.datasets")
    if not hasattr(known, dataset):
        raise unknown("PyG data set", dataset, known.__all__)
    folder = root / "pyg" / name
    fresh = not folder.exists()
    arguments = {} if dataset == "KarateClub" else {"root": str(folder)}
    if argument is not None:
        arguments["name"] = argument
    try:
        data = getattr(known, dataset)(**arguments)
    except Exception as error:  # a download fails in many ways
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"PyG could not provide the data set '{name}' ({reason}): connect to a network, or put {name}.npz into "
            f"the folder that {DATA_FOLDER} names"
        ) from None
    return from_pyg(data, name=name)
