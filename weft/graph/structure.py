"""What must hold of arrays before native code sees them: types, shapes, offsets that ascend, indices within range.

A kernel that follows a wrong offset reads memory that is not its own. Every reader of files calls these checks.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.check import check_finite
from weft.graph.csr import CSR, EDGE_DATA
from weft.graph.types import GraphTypes
from weft.graph.vertexdata import TYPE, block_type, rows_in, vertex_array

PIECE = 1 << 24


def check_offsets(indptr: Tensor, num_rows: int, num_entries: int, what: str, advice: str) -> None:
    """indptr int64 [rows + 1] of a CSR matrix with so many entries."""
    if indptr.dtype != torch.int64 or tuple(indptr.shape) != (num_rows + 1,):
        raise UserError(f"{what} has offsets {indptr.dtype} {list(indptr.shape)} for {num_rows} rows: {advice}")
    if int(indptr[0]) != 0 or int(indptr[-1]) != num_entries:
        raise UserError(
            f"{what} is damaged: its offsets run from {int(indptr[0])} to {int(indptr[-1])} for {num_entries} entries "
            f"and do not belong together: {advice}"
        )
    for begin in range(0, num_rows, PIECE):
        piece = indptr[begin : begin + PIECE + 1]
        if bool((piece[1:] < piece[:-1]).any()):
            row = begin + int(torch.nonzero(piece[1:] < piece[:-1])[0])
            raise UserError(f"{what} is damaged: its offsets fall at row {row}: {advice}")


def check_range(values: Tensor, low: int, high: int, what: str, advice: str) -> None:
    """Integers, all in low..high-1."""
    for begin in range(0, values.numel(), PIECE):
        piece = values.reshape(-1)[begin : begin + PIECE]
        least, most = int(piece.min()), int(piece.max())
        if least < low or most >= high:
            wrong = least if least < low else most
            raise UserError(f"{what} is damaged: it holds {wrong}, outside {low}..{high - 1}: {advice}")


def check_csr(csr: CSR, num_rows: int, num_relations: int, what: str, advice: str) -> None:
    """Edges, and what they carry."""
    if csr.indices.dtype != torch.int32 or csr.indices.dim() != 1:
        raise UserError(f"{what} has indices {csr.indices.dtype} {list(csr.indices.shape)}, not int32 [E]: {advice}")
    check_offsets(csr.indptr, num_rows, csr.indices.numel(), f"{what}: indptr", advice)
    check_range(csr.indices, 0, csr.num_cols, f"{what}: indices", advice)
    for name, data in csr.edge_data.items():
        kind = EDGE_DATA[name]
        if data.dtype != kind.dtype or data.dim() != kind.num_dims or data.shape[0] != csr.num_edges:
            raise UserError(
                f"{what} is damaged: what its edges carry as {name}, {data.dtype} {list(data.shape)}, is not one row "
                f"per edge: {advice}"
            )
        if name == "relation":
            check_range(data, 0, num_relations, f"{what}: relation", advice)
        else:
            _finite(data, f"{what}: {name}", advice)


def check_vertex_data(
    columns: Mapping[str, Tensor],
    num_vertices: int,
    num_classes: int,
    what: str,
    advice: str,
    num_features: int | None = None,
    types: GraphTypes | None = None,
) -> None:
    """All columns of vertex data, of so many vertices; num_features: None where nobody says how many there are."""
    _check_types(columns, num_vertices, types, what, advice)
    for name, rows in columns.items():
        members = rows_in(columns, name)
        if not vertex_array(name).fits(rows, num_vertices if members is None else members.numel()):
            raise _misfit(what, name, rows, advice)
        if rows.is_floating_point() and name not in ("y", "time"):
            _finite(rows, f"{what}: {name}", advice)
    x, y = columns.get("x"), columns.get("y")
    if x is not None and num_features not in (None, x.shape[1]):
        raise _misfit(what, "x", x, advice)
    if y is not None and y.is_floating_point():
        if bool(y.isinf().any()):
            raise UserError(f"{what}: y has infinite values: {advice}")
    elif y is not None:
        several = y.dim() == 2
        if several and y.shape[1] != num_classes:
            raise _misfit(what, "y", y, advice)
        check_range(y, -1, 2 if several else num_classes, f"{what}: y", advice)


def _check_types(
    columns: Mapping[str, Tensor], num_vertices: int, types: GraphTypes | None, what: str, advice: str
) -> None:
    """The column of types, and which blocks of features there are, of which width."""
    kinds = columns.get(TYPE)
    blocks = {kind: rows for name, rows in columns.items() if (kind := block_type(name)) is not None}
    if types is None:
        if kinds is not None or blocks:
            raise UserError(f"{what} is damaged: it has columns of types, and no types: {advice}")
        return
    if kinds is None or not vertex_array(TYPE).fits(kinds, num_vertices):
        raise UserError(f"{what} is damaged: it does not say of which type each vertex is: {advice}")
    check_range(kinds, 0, len(types.vertices), f"{what}: {TYPE}", advice)
    wanted = {kind: width for kind, width in enumerate(types.widths) if width}
    found = {kind: rows.shape[1] if rows.dim() == 2 else -1 for kind, rows in blocks.items()}
    if found != wanted:
        raise UserError(f"{what} is damaged: its types have {found} features, not {wanted}: {advice}")


def check_permutation(order: Tensor, what: str, advice: str) -> None:
    """Each of 0..N-1 once."""
    check_range(order, 0, order.numel(), what, advice)
    seen = torch.zeros(order.numel(), dtype=torch.bool)
    for begin in range(0, order.numel(), PIECE):
        seen[order[begin : begin + PIECE].long()] = True
    if not bool(seen.all()):
        raise UserError(f"{what} is damaged: it lacks {int(torch.nonzero(~seen)[0])}: {advice}")


def _misfit(what: str, name: str, tensor: Tensor, advice: str) -> UserError:
    return UserError(f"{what} is damaged: its {name} is {tensor.dtype} {list(tensor.shape)}: {advice}")


def _finite(values: Tensor, what: str, advice: str) -> None:
    try:
        check_finite(values, what)
    except UserError as error:
        raise UserError(f"{error}; {advice}") from None
