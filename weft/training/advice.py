"""What the user should know of a run beside its numbers: before it trains, and when it is done."""

import math

import torch
from torch import nn

from weft.aggregate import DistributedGraph
from weft.graph.splits import known
from weft.layers import ModelConfig, Stack, traits_of
from weft.layers.registry import layer_names
from weft.partitioning import Shard
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


def unread_edge_data(model: nn.Module, config: ModelConfig, shard: Shard, drawn_by_weight: bool = False) -> list[str]:
    """A sentence on what edges carry and the model does not read, if anything; of layers that say what they read.

    `drawn_by_weight`: minibatches read the weights.
    """
    reads = [traits_of(layer).edge_data for layer in model.layers] if isinstance(model, Stack) else [None]
    known_reads = [names for names in reads if names is not None]
    if len(known_reads) < len(reads):
        return []
    unread, advice = [], []
    read = frozenset[str]().union(*known_reads)
    if shard.num_edge_features and "features" not in read and config.edge_features != "off":
        unread.append("features")
        advice.append(f"features are read by {', '.join(layer_names('edge_features'))}")
    if shard.local.weight is not None and "weight" not in read and not drawn_by_weight:
        unread.append("weights")
        able = "this model" if config.name in layer_names("edge_weights") else ", ".join(layer_names("edge_weights"))
        advice.append(f"weights are read by {able} with model.edge_weights=true")
    if not unread:
        return []
    what = " and ".join(unread)
    return [f"the edges of {shard.graph_name} have {what} that {config.name} does not read: {'; '.join(advice)}"]
