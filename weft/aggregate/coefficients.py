"""The coefficients that aggregations give to edges, as functions of edges."""

import torch
from torch import Tensor

from weft.aggregate.topology import By, Edges, Weight
from weft.errors import UserError
from weft.graph.csr import row_sums
from weft.partitioning import Shard


def check_by(shard: Shard, by: By, weight: Weight) -> None:
    """Refuses an aggregate by relation that cannot be, with the reason."""
    if by is None:
        return
    if by != "relation":
        raise UserError(f"aggregate(by={by!r}) is not known: choose relation, or leave it out")
    if not shard.num_relations:
        raise UserError(
            f"{shard.graph_name} has edges of one kind, so that none can be told apart by relation: ingest it "
            "with --relation-column"
        )
    if isinstance(weight, Tensor) or weight == "symmetric":
        raise UserError('aggregate(by="relation") takes no weight but "edge"')


def check_symmetric(reduce: str) -> None:
    if reduce != "sum":
        raise UserError('weight="symmetric" is a sum with fixed coefficients: use reduce="sum"')


def reciprocal(totals: Tensor) -> Tensor:
    """What divides by totals; rows whose total is 0 become 0."""
    return torch.where(totals != 0, 1.0 / totals, 0.0)


def row_totals(edges: Edges) -> Tensor:
    """The sum of the weights of each row's edges, [N]; without weights their number."""
    totals = [row_sums(block.csr) for block in edges.blocks()]
    return torch.stack(totals).sum(0) if len(totals) > 1 else totals[0]


def averaged(edges: Edges) -> Edges:
    """Each row divided by the total of its weights."""
    scale = reciprocal(row_totals(edges))
    return edges.map(lambda block: block.scaled(scale, None, block.csr.weight))


def without_coefficients(edges: Edges) -> Edges:
    return edges.map(lambda block: block.scaled(None, None, None))


def cast(edges: Edges, dtype: torch.dtype) -> Edges:
    """Coefficients in the precision that the kernels want beside rows of `dtype`."""
    return edges.map(lambda block: block.cast(dtype))
