"""What a run adds to a model for its task: a decoder of pairs, and the scale of numbers."""

from torch import nn

from weft.training.decoders import Decoder, PairMLP, add_decoder
from weft.training.modelshape import ModelShape
from weft.training.numbers import TargetScale
from weft.training.settings import LinkConfig


def add_parts(model: nn.Module, shape: ModelShape, task: str, link: LinkConfig, graph_name: str) -> Decoder | None:
    """Adds the parts to the model, as they are before training; returns the decoder of links."""
    if shape.num_targets:
        model.target_scale = TargetScale(shape.num_targets)
    if task == "links":
        return add_decoder(model, link, shape.num_relations, shape.num_out, graph_name)
    if task == "edges":
        model.decoder = PairMLP(shape.num_out, shape.num_pair_outputs, shape.num_pair_features)
        if shape.num_pair_features:
            model.feature_scale = TargetScale(shape.num_pair_features)
    return None
