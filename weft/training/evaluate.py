"""Exact evaluation over the whole graph, layer by layer, with nothing dropped and nothing lossy on the wire."""

import math

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.errors import UserError
from weft.graph.typedrows import Rows
from weft.graph.vertexdata import HasVertexData
from weft.training import metrics


def choose_metric(name: str, several: bool) -> str:
    """`auto`: micro-F1 with several labels per vertex, accuracy otherwise."""
    if name == "auto":
        return "micro_f1" if several else "accuracy"
    if metrics.check_metric(name) not in metrics.CLASS_METRICS:
        raise UserError(
            f"train.metric={name} is not for classes, and these labels are classes: use "
            f"{', '.join(metrics.CLASS_METRICS)}, or ingest numbers to predict with --label-kind numbers"
        )
    return name


def choose_number_metric(name: str) -> str:
    """`auto`: the root of the mean squared error."""
    if name == "auto":
        return "rmse"
    if metrics.check_metric(name) not in metrics.NUMBER_METRICS:
        raise UserError(
            f"train.metric={name} is not for numbers, and these labels are numbers to predict: use "
            f"{', '.join(metrics.NUMBER_METRICS)}"
        )
    return name


@torch.no_grad()
def predict(model: nn.Module, graph: DistributedGraph, x: Rows) -> Tensor:
    """The model's outputs for the rows that this worker owns, [N, C]."""
    was_training = model.training
    model.eval()
    try:
        with graph.exact_pass() as view:
            logits: Tensor = model(view, x)
    finally:
        model.train(was_training)
    return logits.float() if logits.dtype == torch.bfloat16 else logits


def score(
    logits: Tensor, y: Tensor, masks: dict[str, Tensor], metric: str, graph: DistributedGraph
) -> dict[str, float]:
    """The metric on each split, over all workers' rows; a split without a known target is left out."""
    values = {}
    for split, mask in masks.items():
        rows = mask.nonzero().squeeze(1)
        if metrics.needs_scores(metric):
            values[split] = from_scores(logits[rows], y[rows], graph)
        else:
            counts = metrics.confusion_counts(logits[rows], y[rows])
            graph.comm.all_reduce(counts, "control", f"{split} counts")
            values[split] = metrics.from_counts(metric, counts, y.dim() == 2)
    return {split: value for split, value in values.items() if not math.isnan(value)}


def from_scores(logits: Tensor, y: Tensor, graph: DistributedGraph) -> float:
    """The area under the ROC curve of all workers' rows."""
    longest = torch.tensor([len(y)])
    graph.comm.all_reduce(longest, "control", "longest split", op="max")
    scores, positive = metrics.auc_inputs(logits, y, rows=int(longest))
    scores = graph.comm.all_gather(scores, "control", "scores").flatten(0, 1)
    positive = graph.comm.all_gather(positive, "control", "targets").flatten(0, 1)
    return metrics.roc_auc(scores, positive)


def pick_masks(graph: HasVertexData, split: int) -> dict[str, Tensor]:
    """Boolean [N] masks by split name; `split` chooses where a data set has several public ones."""
    return {name: mask[split] if mask.dim() == 2 else mask for name, mask in graph.masks.items()}
