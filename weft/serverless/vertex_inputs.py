"""The constant inputs of vertex programs: features, their aggregate, targets and ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weft.aggregate import DistributedGraph
from weft.graph.typedrows import Rows, TypedRows
from weft.serverless.stages import Stage, features_of, places_of
from weft.training.loss import GlobalLoss


@dataclass(frozen=True)
class RowsOfType:
    """What is known of own vertices of one type; a slice of own rows gives that of those among them."""

    members: np.ndarray  # int64 [n], own rows, ascending
    rows: np.ndarray | None  # [n, F]; None: the slice gives their numbers in it

    def __getitem__(self, span: slice) -> np.ndarray:
        found = slice(*np.searchsorted(self.members, [span.start, span.stop]))
        return self.members[found] - span.start if self.rows is None else self.rows[found]


Constant = np.ndarray | RowsOfType


def constant_inputs(
    graph: DistributedGraph, stages: Sequence[Stage], x: Rows, loss_of: GlobalLoss
) -> dict[str, Constant]:
    """Arrays of all own rows. `targets`: -1 if not trained on; `counts`: the weight of each target in the loss."""
    found: dict[str, Tensor] = {"ids": graph.global_ids}
    if isinstance(x, Tensor):
        found["x"] = x.detach()
    aggregate = stages[0].input_aggregate
    if aggregate is not None:
        assert isinstance(x, Tensor), "what an encoder makes is not constant"
        with torch.no_grad():
            found["gathered"] = graph.view.aggregate(x, *aggregate)
    targets = torch.full((len(x), *loss_of.y.shape[1:]), -1, dtype=torch.int64)
    targets[loss_of.rows] = loss_of.y.long()
    counts = (targets >= 0).double()
    if loss_of.weights is not None:
        if loss_of.multi_label:
            counts = torch.where(targets == 1, loss_of.weights.double(), counts)
        else:
            counts = loss_of.weights.double()[targets.clamp(min=0)] * counts
    found |= {"targets": targets, "counts": (counts / loss_of.divisor).to(x.dtype)}
    arrays: dict[str, Constant] = {name: tensor.contiguous().numpy() for name, tensor in found.items()}
    return arrays | (_by_type(x) if isinstance(x, TypedRows) else {})


def _by_type(x: TypedRows) -> dict[str, Constant]:
    """The features of each type, and which vertices have them."""
    found: dict[str, Constant] = {}
    for kind, (members, rows) in enumerate(x.groups):
        here = members.contiguous().numpy()
        found[features_of(kind)] = RowsOfType(here, rows.to(x.dtype).contiguous().numpy())
        found[places_of(kind)] = RowsOfType(here, None)
    return found
