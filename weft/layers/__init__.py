"""Layers, and the stack that makes a model of them.

`weft.layers.pyg` needs PyG and is imported when it is asked for.
"""

import importlib
from typing import Any

from weft.layers.config import ModelConfig, check_model, reducer_traits
from weft.layers.edge_reads import EdgeReads
from weft.layers.encoder import TypeEncoder
from weft.layers.gat import GAT, GATv2
from weft.layers.gcn import GCN
from weft.layers.gin import GIN
from weft.layers.hgt import HGT
from weft.layers.layer import NATIVE, Layer
from weft.layers.learned_columns import LearnedColumn, LearnedColumns, learns_columns
from weft.layers.norm import BatchNorm, LayerNorm
from weft.layers.registry import Place, register_layer
from weft.layers.rgat import RGAT
from weft.layers.rgcn import RGCN
from weft.layers.sage import SAGE
from weft.layers.separable import Separable
from weft.layers.stack import GIVEN, Given, Stack, add_embedding, build_model, edges_to_read, replicated_parameters
from weft.layers.traits import LayerTraits, traits_of
from weft.layers.transformer import Transformer

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "GIVEN",
    "HGT",
    "NATIVE",
    "RGAT",
    "RGCN",
    "SAGE",
    "BatchNorm",
    "EdgeReads",
    "GATv2",
    "Given",
    "Layer",
    "LayerNorm",
    "LayerTraits",
    "LearnedColumn",
    "LearnedColumns",
    "ModelConfig",
    "Place",
    "Separable",
    "Stack",
    "Transformer",
    "TypeEncoder",
    "add_embedding",
    "build_model",
    "check_model",
    "edges_to_read",
    "learns_columns",
    "reducer_traits",
    "register_layer",
    "replicated_parameters",
    "traits_of",
]


def __getattr__(name: str) -> Any:
    if name == "pyg":
        return importlib.import_module("weft.layers.pyg")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
