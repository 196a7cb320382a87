"""METIS through pymetis, in a process of its own: a crash or a memory blow-up there ends only that process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weft.disk import scratch_folder
from weft.errors import UserError
from weft.graph.csr import CSR
from weft.graph.files import Array, write_npy
from weft.launch.parent import PARENT_VARIABLE

if TYPE_CHECKING:
    import scipy.sparse

PROCESS = Path(__file__).with_name("metis_process.py")
WEIGHT_SCALE = 100  # a mean vertex weighs this much per kind of load
SPREAD = 0.1  # the share of vertices that must carry a kind of load for METIS to see it


def metis_owner(
    adjacency: CSR, parts: int, seed: int, load: Array, edge_weight: Array | None = None, tries: int = 1
) -> Tensor:
    """The part of every vertex, int32 [N]. load: float64 [N, K], each kind of which counts alike in all.

    edge_weight: int32 [E], positive, what it costs to cut each edge; None: 1. tries: cuts of which the best is taken.
    """
    with scratch_folder("metis") as folder:
        graph = symmetric_simple(adjacency, edge_weight)
        write_npy(folder / "indptr.npy", graph.indptr.astype(np.int64))
        write_npy(folder / "indices.npy", graph.indices.astype(np.int64))
        write_npy(folder / "edge_weight.npy", graph.data.astype(np.int64))
        write_npy(folder / "weight.npy", combined_weight(load))
        del graph  # METIS needs the memory more
        _run(folder, parts, seed, tries)
        owner = np.load(folder / "owner.npy", allow_pickle=False)
    if owner.shape != (adjacency.num_rows,) or owner.min() < 0 or owner.max() >= parts:
        raise UserError("METIS answered with an assignment that is none: use method 'stream'")
    return torch.from_numpy(owner.astype(np.int32))


def symmetric_simple(adjacency: CSR, edge_weight: Array | None = None) -> scipy.sparse.csr_array:
    """The undirected graph without self-loops that METIS wants; values: what the directed edges of each weigh in all.

    edge_weight: int32 [E]; None: every edge weighs 1.
    """
    import scipy.sparse  # a tenth of a second, which workers do without

    size = (adjacency.num_rows, adjacency.num_rows)
    weight = np.ones(adjacency.num_edges, np.int32) if edge_weight is None else edge_weight
    directed = scipy.sparse.csr_array((weight, adjacency.indices.numpy(), adjacency.indptr.numpy()), shape=size)
    both = scipy.sparse.csr_array(directed + directed.T)
    both.sum_duplicates()
    rows = np.repeat(np.arange(both.shape[0]), np.diff(both.indptr))
    both.data[rows == both.indices] = 0
    both.eliminate_zeros()
    return both


def combined_weight(load: Array) -> Array:
    """One integer per vertex: the sum of its shares of each kind of load.

    What few vertices carry (60 training vertices of 20,000) would outweigh everything else: it is left out, since
    moving those few afterwards costs little.
    """
    spread = (load > 0).mean(0) >= SPREAD
    shares = load[:, spread] / load[:, spread].mean(0)
    weight: Array = np.maximum(1, np.rint(WEIGHT_SCALE * shares.sum(1))).astype(np.int64)
    return weight


def _run(folder: Path, parts: int, seed: int, tries: int) -> None:
    # -P: the script's own folder is no place to import from
    command = [sys.executable, "-P", str(PROCESS), str(folder), *map(str, (parts, seed, tries))]
    environment = os.environ | {PARENT_VARIABLE: str(os.getpid())}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return
    if result.returncode < 0:
        reason = f"was ended by {signal.Signals(-result.returncode).name}"
        if result.returncode == -signal.SIGKILL:
            reason += " (usually: out of memory)"
    else:
        lines = (result.stderr.strip() or result.stdout.strip() or "no message").splitlines()
        reason = f"failed with exit status {result.returncode} ({lines[-1].strip()})"
    raise UserError(f"METIS {reason}: use method 'stream', which needs far less memory")
