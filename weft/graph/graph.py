"""What a graph is: in-edges as CSR, features, targets, splits."""

import hashlib
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

EDGE_DATA = ("weight", "relation", "features")  # what an edge may carry, beside its ends


@dataclass(frozen=True)
class CSR:
    """Edges grouped by destination: row i's sources are indices[indptr[i]:indptr[i+1]]."""

    indptr: Tensor  # int64 [rows + 1]
    indices: Tensor  # int32 [E], each in [0, num_cols)
    num_cols: int
    weight: Tensor | None = None  # float [E]
    relation: Tensor | None = None  # int16 [E], the kind of each edge
    features: Tensor | None = None  # float32 [E, F]

    @property
    def num_rows(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    @property
    def edge_data(self) -> dict[str, Tensor]:
        """Those of EDGE_DATA that these edges have."""
        return {name: data for name in EDGE_DATA if (data := getattr(self, name)) is not None}

    def degrees(self) -> Tensor:
        return self.indptr[1:] - self.indptr[:-1]

    def pick(self, edges: Tensor, indptr: Tensor | None = None) -> "CSR":
        """The edges at these positions (int64, or bool [E]) with all that they carry, in the rows of `indptr`."""
        rows = self.indptr if indptr is None else indptr
        data = {name: data[edges] for name, data in self.edge_data.items()}
        return CSR(rows, self.indices[edges], self.num_cols, **data)

    def first_rows(self, num_rows: int) -> "CSR":
        """The first rows, sharing memory."""
        end = int(self.indptr[num_rows])
        data = {name: data[:end] for name, data in self.edge_data.items()}
        return CSR(self.indptr[: num_rows + 1], self.indices[:end], self.num_cols, **data)

    def to(self, device: torch.device) -> "CSR":
        moved = {f.name: value.to(device) for f in fields(self) if hasattr(value := getattr(self, f.name), "to")}
        return replace(self, **moved)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the digests of the structure's arrays: equal edges that carry the same, equal fingerprint."""
        whole = hashlib.sha256(f"weft csr {self.num_cols}".encode())
        for name in ("indptr", "indices", *EDGE_DATA):
            array = getattr(self, name)
            if array is not None:
                raw = array.contiguous().numpy().reshape(-1).view(np.uint8)
                label = f"{name} " if name in ("relation", "features") else ""  # older arrays go without a name
                whole.update(f" {label}{array.dtype} ".encode() + hashlib.sha256(raw.data).digest())
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
    num_relations: int = 0  # 0: edges are all of one kind
    relation_names: tuple[str, ...] | None = None
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
    def num_edge_features(self) -> int:
        return 0 if self.adjacency.features is None else self.adjacency.features.shape[1]

    @property
    def multi_label(self) -> bool:
        return self.y is not None and self.y.dim() == 2
