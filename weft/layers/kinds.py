"""Products in which each row has the matrix of its kind: of its vertex' type, or of its edge's relation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.aggregate import GraphView
from weft.errors import UserError


def members_of(graph: GraphView, num_rows: int) -> list[Tensor]:
    """The first rows of each type of vertices, int64."""
    return [members[: int(torch.searchsorted(members, num_rows))] for members in graph.rows_by_type]


def linear_by_type(graph: GraphView, x: Tensor, matrices: Tensor, biases: Tensor | None = None) -> Tensor:
    """Row i of x [N, in] times the matrix of its vertex' type, plus that type's bias: matrices [T, out, in].

    x are the rows of the view, or its first ones.
    """
    pieces, order = [], members_of(graph, x.shape[0])
    for kind, members in enumerate(order):
        bias = None if biases is None else biases[kind].to(x.dtype)
        pieces.append(torch.nn.functional.linear(x.index_select(0, members), matrices[kind].to(x.dtype), bias))
    return _put_back(pieces, torch.cat(order))


def matmul_by_relation(rows: Tensor, relation: Tensor, matrices: Tensor) -> Tensor:
    """Row i of rows [E, G*in], as G groups of columns, times the matrices of its edge's relation [R, G, in, out]."""
    num_relations, groups, num_in, num_out = matrices.shape
    order = torch.argsort(relation, stable=True)
    counts = torch.bincount(relation, minlength=num_relations).tolist()
    sorted_rows = torch.split(rows.index_select(0, order), counts)
    pieces = []
    for piece, matrix in zip(sorted_rows, matrices.unbind(0), strict=True):
        split = piece.view(-1, groups, num_in).transpose(0, 1)
        pieces.append(torch.bmm(split, matrix).transpose(0, 1).reshape(-1, groups * num_out))
    return _put_back(pieces, order)


def _put_back(pieces: Sequence[Tensor], order: Tensor) -> Tensor:
    """The rows of all pieces, each to the place that `order` says it came from."""
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=order.device)
    return torch.cat(list(pieces)).index_select(0, back)


def refuse_untyped(name: str, num_types: int, num_relations: int) -> None:
    """Refuses a graph that does not tell vertices or edges apart, for a layer that has matrices for their kinds."""
    if num_relations == 0:
        raise UserError(
            f"model {name} learns from edges of several relations, but this graph has one kind of edges: ingest it "
            "with --relation-column or as graph.yaml, or use another model"
        )
    if num_types == 0:
        raise UserError(
            f"model {name} learns from vertices of several types, but this graph has one type: ingest it as graph.yaml "
            "or use rgcn or rgat, which tell relations alone apart"
        )
