"""Layers, and the stack that makes a model of them."""

from weft.layers.gat import GAT, GATv2
from weft.layers.gcn import GCN
from weft.layers.gin import GIN
from weft.layers.layer import Layer
from weft.layers.norm import BatchNorm, LayerNorm
from weft.layers.rgcn import RGCN
from weft.layers.sage import SAGE
from weft.layers.separable import Separable
from weft.layers.stack import (
    ModelConfig,
    Stack,
    add_embedding,
    build_model,
    check_model,
    replicated_parameters,
)
from weft.layers.transformer import Transformer

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "RGCN",
    "SAGE",
    "BatchNorm",
    "GATv2",
    "Layer",
    "LayerNorm",
    "ModelConfig",
    "Separable",
    "Stack",
    "Transformer",
    "add_embedding",
    "build_model",
    "check_model",
    "replicated_parameters",
]
