"""Long rows of a CSR in pieces, for backends in which one program sums a whole row."""

import torch
from torch import Tensor

from weft.kernels.arguments import Cut
from weft.kernels.backends import backend_for


def cut_rows(indptr: Tensor) -> Cut | None:  # int64 [N + 1]
    """How the backend of this device wants rows cut; None: not at all. It waits for the device: call it once."""
    edges = backend_for(indptr).edges_per_piece
    return None if edges is None else cut_into(indptr, edges)


def cut_into(indptr: Tensor, edges_per_piece: int) -> Cut:
    """Rows with more edges, cut into pieces of so many; the last piece of a row may be shorter."""
    degrees = indptr.diff()
    long_rows = (degrees > edges_per_piece).nonzero().squeeze(1)
    counts = (degrees[long_rows] + edges_per_piece - 1) // edges_per_piece
    first_piece = torch.zeros(long_rows.numel() + 1, dtype=torch.int64, device=indptr.device)
    first_piece[1:] = counts.cumsum(0)
    row = long_rows.repeat_interleave(counts)
    number = torch.arange(row.numel(), device=indptr.device) - first_piece[:-1].repeat_interleave(counts)
    return Cut(edges_per_piece, row.int(), indptr[row] + number * edges_per_piece, long_rows, first_piece)
