"""The in-degree of every vertex, counted from slices of the edge files."""

import numpy as np
import torch

from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.files import Array
from weft.graph.progress import progress
from weft.out_of_core.budget import Budget
from weft.out_of_core.edgefiles import EdgeFiles
from weft.out_of_core.native import native

REDUCE_VALUES = 1 << 22  # degrees are summed over the workers in pieces


def count_degrees(comm: Communicator, edges: EdgeFiles, budget: Budget, num_nodes: int | None) -> Array:
    """The in-degree of every vertex, int32 [N], the same on all workers; N is the largest id + 1 if nobody says."""
    degrees, highest, ends = np.zeros(num_nodes or 0, np.int32), -1, 0
    span = edges.span(comm.worker, comm.num_workers)
    with progress("counting edges", len(span)) as advance:
        for chunk in edges.read(span, budget.chunk_edges):
            if num_nodes is None and chunk.src.size:
                highest = max(highest, int(chunk.src.max()), int(chunk.dst.max()))
                degrees = _at_least(degrees, highest + 1)
            native().count_edges(chunk.src, chunk.dst, budget.both_ways, degrees)
            loops = int((chunk.src == chunk.dst).sum()) if budget.both_ways else 0
            ends += chunk.src.size * (2 if budget.both_ways else 1) - loops
            advance(chunk.amount)
    if num_nodes is None:
        num_nodes = int(comm.all_reduce(torch.tensor([highest + 1]), "control", "the number of vertices", "max"))
        degrees = _at_least(degrees, num_nodes)[:num_nodes]
    for begin in range(0, num_nodes, REDUCE_VALUES):
        comm.all_reduce(torch.from_numpy(degrees[begin : begin + REDUCE_VALUES]), "topology", "degrees")
    total = int(comm.all_reduce(torch.tensor([ends]), "control", "the number of edges"))
    if int(degrees.sum(dtype=np.int64)) != total:
        raise UserError("a vertex has 2^31 in-edges or more, which is beyond what weft can count: leave it out")
    return degrees


def _at_least(degrees: Array, count: int) -> Array:
    if degrees.size >= count:
        return degrees
    grown = np.zeros(max(count, 2 * degrees.size), np.int32)
    grown[: degrees.size] = degrees
    return grown
