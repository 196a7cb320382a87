"""Edges grouped by destination (CSR), what they carry, and the operations on them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from weft import kernels
from weft.errors import UserError


@dataclass(frozen=True)
class EdgeArray:
    """One kind of data that edges may carry, a row per edge."""

    dtype: torch.dtype  # in files
    num_dims: int
    new_loop: float  # the value of a self-loop that is added
    file: str  # the array's name in a graph folder


EDGE_DATA: Mapping[str, EdgeArray] = {  # fields of CSR
    "weight": EdgeArray(torch.float32, 1, 1, "weight"),
    "relation": EdgeArray(torch.int16, 1, -1, "relation"),
    "features": EdgeArray(torch.float32, 2, 0, "edge_features"),
    "time": EdgeArray(torch.float64, 1, float("-inf"), "edge_time"),
}


@dataclass(frozen=True)
class CSR:
    """Edges grouped by destination: row i's sources are indices[indptr[i]:indptr[i+1]]."""

    indptr: Tensor  # int64 [rows + 1]
    indices: Tensor  # int32 [E], each in [0, num_cols)
    num_cols: int
    weight: Tensor | None = None  # float [E]
    relation: Tensor | None = None  # int16 [E], the kind of each edge
    features: Tensor | None = None  # float32 [E, F]
    time: Tensor | None = None  # float64 [E], when each edge came to be

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
        arrays = {"indptr": self.indptr, "indices": self.indices, **self.edge_data}
        raw = {name: array.contiguous().numpy().reshape(-1).view(np.uint8) for name, array in arrays.items()}
        digests = {name: (arrays[name].dtype, hashlib.sha256(numbers.data).digest()) for name, numbers in raw.items()}
        return fingerprint_of(self.num_cols, digests)


def fingerprint_of(num_cols: int, digests: Mapping[str, tuple[torch.dtype, bytes]]) -> str:
    """The fingerprint of edges. digests: type and sha256 of indptr, of indices, and of what the edges carry."""
    whole = hashlib.sha256(f"weft csr {num_cols}".encode())
    for name, (dtype, digest) in digests.items():
        label = f"{name} " if name in ("relation", "features", "time") else ""  # older arrays go without a name
        whole.update(f" {label}{dtype} ".encode() + digest)
    return whole.hexdigest()


# -- orders -----------------------------------------------------------------------------------------------------


def invert(permutation: Tensor) -> Tensor:
    """The inverse of a permutation, int64 [N]."""
    inverse = torch.empty_like(permutation)
    inverse[permutation] = torch.arange(permutation.numel())
    return inverse


def sort_pairs(major: Tensor, minor: Tensor) -> Tensor:
    """The order that sorts by (major, minor); stable. Both int64 [E], not negative."""
    if major.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    radix = int(minor.max()) + 1
    assert (int(major.max()) + 1) * radix < 2**63
    return torch.argsort(major * radix + minor, stable=True)


def row_numbers(indptr: Tensor) -> Tensor:
    """The row of every edge, int64 [E]."""
    rows = torch.arange(indptr.numel() - 1, device=indptr.device)
    return rows.repeat_interleave(indptr[1:] - indptr[:-1])


def rows_ascend(csr: CSR) -> bool:
    """Whether the columns of every row ascend (they do in an ingested graph)."""
    if csr.num_edges < 2:
        return True
    descends = csr.indices[1:] < csr.indices[:-1]
    starts = csr.indptr[1:-1]
    starts = starts[(starts > 0) & (starts < csr.num_edges)]
    descends[starts - 1] = False  # from one row to the next anything goes
    return not bool(descends.any())


def sort_columns(csr: CSR) -> CSR:
    """The same edges, the columns of every row ascending; multi-edges keep their order."""
    return csr if rows_ascend(csr) else csr.pick(sort_pairs(row_numbers(csr.indptr), csr.indices.long()))


# -- selections -------------------------------------------------------------------------------------------------


def take_rows(csr: CSR, rows: Tensor) -> CSR:
    """The given rows (int64) in the given order, each as it is."""
    degrees = csr.degrees()[rows]
    indptr = torch.zeros(rows.numel() + 1, dtype=torch.int64)
    torch.cumsum(degrees, 0, out=indptr[1:])
    total = int(indptr[-1])
    # position of edge k: where its row starts in the whole, plus its number within the row
    position = torch.repeat_interleave(csr.indptr[:-1][rows] - indptr[:-1], degrees) + torch.arange(total)
    return csr.pick(position, indptr)


def filter_csr(csr: CSR, keep: Tensor) -> CSR:
    """The edges for which keep (bool [E]) holds, in the same rows."""
    before = torch.zeros(csr.num_edges + 1, dtype=torch.int64, device=keep.device)
    torch.cumsum(keep, 0, out=before[1:])
    return csr.pick(keep, before[csr.indptr])


def take_columns(csr: CSR, chosen: slice) -> CSR:
    """The edges whose column lies in a span; columns are then counted from its start."""
    if chosen == slice(0, csr.num_cols):
        return csr
    keep = (csr.indices >= chosen.start) & (csr.indices < chosen.stop)
    kept = filter_csr(csr, keep)
    return replace(kept, indices=kept.indices - chosen.start, num_cols=chosen.stop - chosen.start)


# -- joins ------------------------------------------------------------------------------------------------------


def stack_rows(pieces: Sequence[CSR]) -> CSR:
    """The rows of all pieces, one piece after the other; all have the same columns and carry the same kinds of data."""
    if len(pieces) == 1:
        return pieces[0]
    indptr = [pieces[0].indptr[:1]]
    edges = 0
    for piece in pieces:
        indptr.append(piece.indptr[1:] + edges)
        edges += piece.num_edges
    return _concatenated(pieces, torch.cat(indptr))


def merge_rows(first: CSR, second: CSR, keys: Tensor) -> CSR:
    """Both CSRs' edges row by row, each row in the order of keys (int64, first's edges then second's)."""
    row = torch.cat([row_numbers(first.indptr), row_numbers(second.indptr)])
    return _concatenated([first, second], first.indptr + second.indptr).pick(sort_pairs(row, keys))


def _concatenated(pieces: Sequence[CSR], indptr: Tensor) -> CSR:
    """The edges of all pieces with what they carry, one piece after the other, in the rows of `indptr`."""
    data = {name: torch.cat([piece.edge_data[name] for piece in pieces]) for name in pieces[0].edge_data}
    return CSR(indptr, torch.cat([piece.indices for piece in pieces]), pieces[0].num_cols, **data)


# -- what models make of a graph --------------------------------------------------------------------------------


def with_self_loops(csr: CSR) -> CSR:
    """One self-loop on every row: those that have one keep it (the last, where there are several).

    A new one has weight 1, features 0 and relation -1, which is none of the graph's.
    """
    rows = torch.arange(csr.num_rows, device=csr.indptr.device)
    destination = row_numbers(csr.indptr)
    source = csr.indices.long()
    loop = source == destination
    last = last_loops(loop, destination)
    indptr, indices, order = kernels.build_csr(
        torch.cat([source[~loop], rows]), torch.cat([destination[~loop], rows]), csr.num_cols, csr.num_rows
    )
    carried = {}
    for name, data in csr.edge_data.items():
        of_loop = data.new_full((csr.num_rows, *data.shape[1:]), EDGE_DATA[name].new_loop)
        of_loop[destination[last]] = data[last]
        carried[name] = torch.cat([data[~loop], of_loop])[order]
    return CSR(indptr, indices, csr.num_cols, **carried)


def last_loops(loop: Tensor, rows: Tensor) -> Tensor:
    """The edge of each row's last self-loop, int64. loop: bool [E], rows: int64 [E] ascending."""
    found = loop.nonzero().squeeze(1)
    following = rows[found[1:]] != rows[found[:-1]]
    return found[torch.cat([following, following.new_ones(found.numel() - following.numel())])]


def by_relation(csr: CSR, num_relations: int) -> CSR:
    """The same edges with a row for every (destination, relation): row i * R + r holds i's in-edges of relation r.

    Of what edges carry only the weights go along: the rows tell the relations.
    """
    assert csr.relation is not None, "edges of one kind have no relations to be grouped by"
    num_rows = csr.num_rows * num_relations
    if num_rows >= 2**31:
        raise UserError(
            f"{csr.num_rows} vertices of one worker times {num_relations} relations are more rows than weft can "
            "number: use more workers, or join relations"
        )
    relation = csr.relation.long()
    assert not relation.numel() or (int(relation.min()) >= 0 and int(relation.max()) < num_relations)
    indptr, indices, order = kernels.build_csr(
        csr.indices.long(), row_numbers(csr.indptr) * num_relations + relation, csr.num_cols, num_rows
    )
    return CSR(indptr, indices, csr.num_cols, None if csr.weight is None else csr.weight[order])


def row_sums(csr: CSR) -> Tensor:
    """Sum of each row's weights (its degree where there are none), float64 [N]."""
    if csr.weight is None:
        return csr.degrees().double()
    ones = torch.ones(csr.num_cols, 1, dtype=torch.float64, device=csr.indptr.device)
    return kernels.spmm(csr.indptr, csr.indices, ones, weight=csr.weight.double()).squeeze(1)


def inverse_sqrt(degrees: Tensor, ids: Tensor, graph_name: str) -> Tensor:
    """D^-1/2 of weighted degrees float64 [N], 0 where a degree is 0; ids: of the vertices, for the error."""
    bad = (degrees < 0).nonzero().squeeze(1)
    if bad.numel():
        first = int(bad[0])
        raise UserError(
            f"the weights of the edges into vertex {int(ids[first])} of {graph_name} add up to "
            f"{float(degrees[first]):g} with its self-loop, and GCN divides by the root of that: give weights whose "
            "sums are not negative, or use another model"
        )
    return torch.where(degrees > 0, degrees.clamp(min=1e-300).rsqrt(), 0.0)
