"""What the user should know of a finished run beside its numbers."""

import math

import torch

from weft.aggregate import DistributedGraph
from weft.graph.splits import known
from weft.training.evaluate import pick_masks
from weft.training.loop import Outcome
from weft.training.settings import TrainConfig

STANDARD_ERRORS = 2.0  # an accuracy within so many of a share may be that share by chance


def advise(graph: DistributedGraph, outcome: Outcome, config: TrainConfig) -> list[str]:
    """Sentences, mostly none; all workers call it together."""
    y = graph.shard.y
    if outcome.metric != "accuracy" or y is None or y.dim() != 1:
        return []
    masks = pick_masks(graph.shard, config.split)
    split = next((name for name in ("test", "val", "train") if name in outcome.values and name in masks), None)
    if split is None:
        return []
    counts = torch.bincount(y[masks[split] & known(y)].cpu(), minlength=graph.shard.num_classes)
    graph.comm.all_reduce(counts, "control", "sizes of classes")
    share, total = int(counts.max()) / int(counts.sum()), int(counts.sum())
    accuracy = outcome.values[split]
    if accuracy > share + STANDARD_ERRORS * math.sqrt(share * (1 - share) / total):
        return []
    return [
        f"the {split} accuracy of {100 * accuracy:.1f} % is no better than that of one answer for every vertex "
        f"({100 * share:.1f} % are of the largest class): look with 'weft inspect' whether features are large or "
        "unscaled, and try more epochs, another optim.lr, or another model"
    ]
