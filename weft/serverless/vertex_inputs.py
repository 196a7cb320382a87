"""The constant inputs of vertex programs: features, their aggregate, targets and ids."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from weft.aggregate import DistributedGraph
from weft.serverless.stages import Stage
from weft.training.loss import GlobalLoss


def constant_inputs(
    graph: DistributedGraph, stages: Sequence[Stage], x: Tensor, loss_of: GlobalLoss
) -> dict[str, np.ndarray]:
    """Arrays of all own rows. `targets`: -1 if not trained on; `counts`: the weight of each target in the loss."""
    found = {"x": x.detach(), "ids": graph.global_ids}
    aggregate = stages[0].input_aggregate
    if aggregate is not None:
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
    return {name: tensor.contiguous().numpy() for name, tensor in found.items()}
