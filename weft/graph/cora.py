"""Cora, a small citation graph that comes with weft, so that there is a real graph to try everything on.

2,708 papers on machine learning, words of theirs as features, citations as edges, seven subjects as classes. The two
files in `bundled/` are those of the Python package `graphdatascience`, unaltered; NOTICE says whose they are.
"""

from pathlib import Path

import pyarrow.parquet as pq

from weft.graph.build import from_edges
from weft.graph.graph import Graph
from weft.graph.splits import per_class_split

BUNDLED = Path(__file__).with_name("bundled")
CLASSES = (
    *("Neural_Networks", "Rule_Learning", "Reinforcement_Learning", "Probabilistic_Methods"),
    *("Theory", "Genetic_Algorithms", "Case_Based"),
)


def load_cora() -> Graph:
    """Cora. It comes without a split: this one is seeded, 20 per class / 500 / 1000.

    It is drawn like Planetoid's public split but is not that split, so that accuracies differ by a point or two.
    """
    nodes = pq.read_table(BUNDLED / "cora_nodes.parquet")
    edges = pq.read_table(BUNDLED / "cora_edges.parquet")
    features = nodes["features"].combine_chunks()
    graph = from_edges(
        edges["sourceNodeId"].to_numpy(),
        edges["targetNodeId"].to_numpy(),
        ids=nodes["nodeId"].to_numpy(),
        x=features.flatten().to_numpy().reshape(len(features), -1).astype("float32"),
        y=nodes["subject"].to_numpy(),
        undirected=True,
        drop_duplicates=True,
        class_names=CLASSES,
        name="cora",
        meta={"source": "graphdatascience", "split": "seeded, 20 per class / 500 / 1000, not the public one"},
    )
    return per_class_split(graph)
