"""Partitioning of graphs that no process can hold: from edge files to part folders, by all workers together."""

from weft.external.divide import SCRATCH, Division, check_inputs, complete, divide
from weft.external.job import Job, parse_bytes
from weft.external.source import find_edge_files

__all__ = [
    "SCRATCH",
    "Division",
    "Job",
    "check_inputs",
    "complete",
    "divide",
    "find_edge_files",
    "parse_bytes",
]
