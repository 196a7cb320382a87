"""What a graph is, where graphs come from, and how they are kept."""

from weft.graph.attach import attach
from weft.graph.build import csr_from_endpoints, from_edges, to_undirected
from weft.graph.check import check_graph, check_trainable
from weft.graph.csr import CSR
from weft.graph.datasets import ingest, known_names, load_named, open_graph
from weft.graph.describe import Description, describe
from weft.graph.foreign import from_dgl, from_pyg
from weft.graph.graph import Graph
from weft.graph.ingest import ingest_edges
from weft.graph.interop import as_graph, from_networkx, from_pandas, from_scipy
from weft.graph.npz import load_npz
from weft.graph.splits import parse_split, per_class_split, random_split
from weft.graph.store import load_graph, save_graph
from weft.graph.synthetic import SyntheticConfig, generate, synthetic
from weft.graph.todgl import to_dgl
from weft.graph.topyg import to_pyg

__all__ = [
    "CSR",
    "Description",
    "Graph",
    "SyntheticConfig",
    "as_graph",
    "attach",
    "check_graph",
    "check_trainable",
    "csr_from_endpoints",
    "describe",
    "from_dgl",
    "from_edges",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "from_scipy",
    "generate",
    "ingest",
    "ingest_edges",
    "known_names",
    "load_graph",
    "load_named",
    "load_npz",
    "open_graph",
    "parse_split",
    "per_class_split",
    "random_split",
    "save_graph",
    "synthetic",
    "to_dgl",
    "to_pyg",
    "to_undirected",
]
