"""Partitioning of graphs that no process can hold: from edge files to part folders, by all workers together."""

from weft.out_of_core.budget import parse_bytes
from weft.out_of_core.edgefiles import find_edge_files
from weft.out_of_core.job import Job
from weft.out_of_core.partition import SCRATCH, Partitioned, check_inputs, complete, partition_edges

__all__ = [
    "SCRATCH",
    "Job",
    "Partitioned",
    "check_inputs",
    "complete",
    "find_edge_files",
    "parse_bytes",
    "partition_edges",
]
