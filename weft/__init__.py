"""weft: train graph neural networks on graphs that one machine cannot hold.

weft.load("cora"), weft.ingest("edges.csv"), weft.from_edges, from_pyg, from_dgl, from_networkx, from_scipy and
from_pandas give a Graph; weft.partition cuts it; weft.train trains on it and returns a Run. A layer of your own is any
module with `forward(graph, x)`, where graph is a weft.GraphView. A training loop of your own begins with
weft.init_workers() and weft.open_part(data, comm), takes minibatches from a weft.Loader, and sums gradients with
weft.all_reduce_gradients.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from weft.launch.path import LEFT as LEFT  # first: nothing is imported from the current folder by accident

# Before torch allocates: huge pages for large tensors, because fresh pages cost more than most kernels.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from weft.launch.parent import STARTED_BY as STARTED_BY  # it notes who started this process, before what takes seconds

if TYPE_CHECKING:
    from weft.aggregate import DistributedGraph, EdgeRows, GraphView
    from weft.comm import all_reduce_gradients
    from weft.errors import StopTraining, UserError, WorkerLost
    from weft.graph import Graph, from_dgl, from_edges, from_networkx, from_pandas, from_pyg, from_scipy, to_dgl, to_pyg
    from weft.graph import open_graph as load
    from weft.graph.attach import attach
    from weft.launch.ending import RunFailed
    from weft.loader import Loader
    from weft.own_loop import init_workers, open_part
    from weft.prepare import ingest, partition
    from weft.results import Run
    from weft.run import train

__all__ = [
    "DistributedGraph",
    "EdgeRows",
    "Graph",
    "GraphView",
    "Loader",
    "Run",
    "RunFailed",
    "StopTraining",
    "UserError",
    "WorkerLost",
    "all_reduce_gradients",
    "attach",
    "from_dgl",
    "from_edges",
    "from_networkx",
    "from_pandas",
    "from_pyg",
    "from_scipy",
    "ingest",
    "init_workers",
    "load",
    "open_part",
    "partition",
    "to_dgl",
    "to_pyg",
    "train",
]
__version__ = "0.1.0"

# Where each name is defined. A module is imported when one of its names is asked for: most need torch, which takes
# seconds, and the command line prints help and answers mistakes without it.
_MODULES = {
    "weft.aggregate": ("DistributedGraph", "EdgeRows", "GraphView"),
    "weft.comm": ("all_reduce_gradients",),
    "weft.errors": ("StopTraining", "UserError", "WorkerLost"),
    "weft.graph": (
        *("Graph", "attach", "from_dgl", "from_edges", "from_networkx", "from_pandas", "from_pyg", "from_scipy"),
        *("load", "to_dgl", "to_pyg"),
    ),
    "weft.launch.ending": ("RunFailed",),
    "weft.loader": ("Loader",),
    "weft.own_loop": ("init_workers", "open_part"),
    "weft.prepare": ("ingest", "partition"),
    "weft.results": ("Run",),
    "weft.run": ("train",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_NAME_THERE = {"load": "open_graph"}


def __getattr__(name: str) -> Any:
    """A name of the interface, or a package of weft, which is imported now."""
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(_MODULE_OF[name]), _NAME_THERE.get(name, name))
        globals()[name] = value
        return value
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"weft.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"weft.{name}":
                raise
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
