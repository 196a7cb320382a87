"""What a graph is, where graphs come from, and how they are kept."""

from weft.graph.build import check_graph, check_trainable, csr_from_endpoints, from_edges
from weft.graph.datasets import load_named, open_graph
from weft.graph.graph import CSR, Graph
from weft.graph.npz import load_npz
from weft.graph.splits import per_class_split, random_split
from weft.graph.store import load_graph, save_graph
from weft.graph.synthetic import SyntheticConfig, generate, synthetic

__all__ = [
    "CSR",
    "Graph",
    "SyntheticConfig",
    "check_graph",
    "check_trainable",
    "csr_from_endpoints",
    "from_edges",
    "generate",
    "load_graph",
    "load_named",
    "load_npz",
    "open_graph",
    "per_class_split",
    "random_split",
    "save_graph",
    "synthetic",
]
