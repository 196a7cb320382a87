"""What a graph is, where graphs come from, and how they are kept."""

from weft.graph.build import check_graph, check_trainable, csr_from_endpoints, from_edges, to_undirected
from weft.graph.datasets import ingest, known_names, load_named, open_graph
from weft.graph.describe import Description, describe
from weft.graph.foreign import from_dgl, from_pyg
from weft.graph.graph import CSR, Graph
from weft.graph.ingest import ingest_edges
from weft.graph.npz import load_npz
from weft.graph.splits import parse_split, per_class_split, random_split
from weft.graph.store import load_graph, save_graph
from weft.graph.synthetic import SyntheticConfig, generate, synthetic

__all__ = [
    "CSR",
    "Description",
    "Graph",
    "SyntheticConfig",
    "check_graph",
    "check_trainable",
    "csr_from_endpoints",
    "describe",
    "from_dgl",
    "from_edges",
    "from_pyg",
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
    "to_undirected",
]
