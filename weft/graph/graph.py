"""What a graph is: in-edges as CSR, features, targets, splits."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class CSR:
    """Edges grouped by destination: row i's sources are indices[indptr[i]:indptr[i+1]]."""

    indptr: Tensor  # int64 [rows + 1]
    indices: Tensor  # int32 [E], each in [0, num_cols)
    num_cols: int
    weight: Tensor | None = None  # float [E]

    @property
    def num_rows(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    def degrees(self) -> Tensor:
        return self.indptr[1:] - self.indptr[:-1]

    def first_rows(self, num_rows: int) -> "CSR":
        """The first rows, sharing memory."""
        end = int(self.indptr[num_rows])
        weight = None if self.weight is None else self.weight[:end]
        return CSR(self.indptr[: num_rows + 1], self.indices[:end], self.num_cols, weight)

    def to(self, device: torch.device) -> "CSR":
        weight = None if self.weight is None else self.weight.to(device)
        return CSR(self.indptr.to(device), self.indices.to(device), self.num_cols, weight)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the digests of the structure's arrays: equal edges and weights, equal fingerprint."""
        whole = hashlib.sha256(f"weft csr {self.num_cols}".encode())
        for array in (self.indptr, self.indices, self.weight):
            if array is not None:
                raw = array.contiguous().numpy().view(np.uint8)
                whole.update(f" {array.dtype} ".encode() + hashlib.sha256(raw.data).digest())
        return whole.hexdigest()


@dataclass(frozen=True)
class Graph:
    """A directed graph of N vertices; an edge u -> v stands in v's row and carries u's message to v.

    Targets are int64 [N] (-1: unknown) or, with several labels per vertex, int8 [N, C] of 0/1 (-1: unknown).
    Splits are boolean [N], or [S, N] where a data set has S public splits.
    """

    adjacency: CSR
    x: Tensor | None = None  # float32 or bf16 [N, F]; None: vertices without features
    y: Tensor | None = None
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None
    num_classes: int = 0
    name: str = "graph"
    original_ids: np.ndarray[Any, np.dtype[Any]] | None = None  # [N] integers or strings; None: 0..N-1
    class_names: tuple[str, ...] | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        return self.adjacency.num_rows

    @property
    def num_edges(self) -> int:
        return self.adjacency.num_edges

    @property
    def fingerprint(self) -> str:
        return self.adjacency.fingerprint

    @property
    def num_features(self) -> int:
        return 0 if self.x is None else self.x.shape[1]

    @property
    def multi_label(self) -> bool:
        return self.y is not None and self.y.dim() == 2
