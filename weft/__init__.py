"""weft: train graph neural networks on graphs that one machine cannot hold.

weft.load("cora"), weft.from_edges(...), weft.from_pyg(data), weft.from_dgl(graph) give a Graph; weft.partition cuts it;
weft.train trains on it and returns a Run. A layer of your own is any module with `forward(graph, x)`, where graph is a
weft.GraphView.
"""

import os

# Before torch allocates: huge pages for large tensors, because fresh pages cost more than most kernels.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# The functions `partition` and `train` stand here under the names of the packages that hold their parts: whoever
# wants a part imports it from the package (`from weft.train.loop import fit`), which works as ever.
from weft.aggregate import EdgeRows, GraphView
from weft.errors import UserError, WorkerLost
from weft.graph import Graph, from_dgl, from_edges, from_pyg
from weft.graph import open_graph as load
from weft.prepare import partition
from weft.run import Run, train

__all__ = [
    "EdgeRows",
    "Graph",
    "GraphView",
    "Run",
    "UserError",
    "WorkerLost",
    "from_dgl",
    "from_edges",
    "from_pyg",
    "load",
    "partition",
    "train",
]
__version__ = "0.1.0"
