"""Exact evaluation over the whole graph, layer by layer, with nothing dropped and nothing lossy on the wire."""

import math

import torch
from torch import Tensor, nn

from weft.aggregate import RAW, GraphView
from weft.graph.graph import Graph
from weft.train import metrics

SPLITS = ("train", "val", "test")


def choose_metric(name: str, y: Tensor, num_classes: int) -> str:
    """`auto`: micro-F1 with several labels per vertex, accuracy otherwise."""
    if name != "auto":
        return metrics.check_metric(name)
    return "micro_f1" if y.dim() == 2 else "accuracy"


@torch.no_grad()
def predict(model: nn.Module, view: GraphView, x: Tensor) -> Tensor:
    """The model's outputs for the rows that this worker owns, [N, C]."""
    was_training, format = model.training, view.format
    model.eval()
    view.noise.begin(None)
    view.format = RAW
    try:
        logits: Tensor = model(view, x)
    finally:
        view.format = format
        model.train(was_training)
    return logits.float() if logits.dtype == torch.bfloat16 else logits


def score(logits: Tensor, y: Tensor, masks: dict[str, Tensor], metric: str, view: GraphView) -> dict[str, float]:
    """The metric on each split, over all workers' rows; a split without a known target is left out."""
    values = {}
    for split, mask in masks.items():
        rows = mask.nonzero().squeeze(1)
        if metrics.needs_scores(metric):
            values[split] = from_scores(logits[rows], y[rows], view)
        else:
            counts = metrics.confusion_counts(logits[rows], y[rows])
            view.comm.all_reduce(counts, "control", f"{split} counts")
            values[split] = metrics.from_counts(metric, counts, y.dim() == 2)
    return {split: value for split, value in values.items() if not math.isnan(value)}


def from_scores(logits: Tensor, y: Tensor, view: GraphView) -> float:
    """The area under the ROC curve of all workers' rows."""
    longest = torch.tensor([len(y)])
    view.comm.all_reduce(longest, "control", "longest split", op="max")
    scores, positive = metrics.auc_inputs(logits, y, rows=int(longest))
    scores = view.comm.all_gather(scores, "control", "scores").flatten(0, 1)
    positive = view.comm.all_gather(positive, "control", "targets").flatten(0, 1)
    return metrics.roc_auc(scores, positive)


def pick_masks(graph: Graph | object, split: int) -> dict[str, Tensor]:
    """Boolean [N] masks by split name; `split` chooses where a data set has several public ones."""
    masks = {}
    for name in SPLITS:
        mask: Tensor | None = getattr(graph, f"{name}_mask")
        if mask is not None:
            masks[name] = mask[split] if mask.dim() == 2 else mask
    return masks
