"""Embeddings: the rows that enter a model's last layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph, GraphView
from weft.errors import UserError
from weft.graph.typedrows import Rows
from weft.layers import Stack
from weft.training.evaluate import predict


@torch.no_grad()
def embed(model: nn.Module, graph: DistributedGraph, x: Rows) -> Tensor:
    """The rows of own vertices that enter the last layer, [N, D], exact as `predict` is."""
    found: list[Tensor] = []

    def note(layer: nn.Module, given: tuple[Any, ...]) -> None:
        if len(given) > 1 and isinstance(given[0], GraphView) and isinstance(given[1], Tensor):
            found[:] = [x if given[1] is x else given[1][: graph.global_ids.numel()].clone()]

    hooks = [layer.register_forward_pre_hook(note) for layer in _layers(model)]
    try:
        predict(model, graph, x)
    finally:
        for hook in hooks:
            hook.remove()
    if not found or found[0] is x:
        raise UserError(
            "the model has no hidden layer: no layer of it is called with the graph and rows that another layer made; "
            "there are outputs and no embeddings"
        )
    return found[0].float() if found[0].dtype == torch.bfloat16 else found[0]


@contextmanager
def inputs_of_last_layer(model: Stack) -> Iterator[list[Tensor]]:
    """The rows that enter the last layer, pass by pass, as long as the block lasts."""
    found: list[Tensor] = []
    last = _last(model)
    if last is None:
        raise UserError("the model has one layer, so that no hidden rows enter its last: there are no embeddings")
    hook = last.register_forward_pre_hook(lambda layer, given: found.append(given[1].clone()))
    try:
        yield found
    finally:
        hook.remove()


def _last(model: Stack) -> nn.Module | None:
    """The linear map behind a stack's layers, or its last layer; None: the input enters its only layer."""
    if model.output is not None:
        return model.output
    return model.layers[-1] if len(model.layers) > 1 else None


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """The last layer of a stack, or the linear map behind it; of other models, the modules that they are made of."""
    if isinstance(model, Stack):
        last = _last(model)
        if last is not None:
            yield last
        return
    for child in model.children():
        if isinstance(child, Stack | nn.ModuleList | nn.ModuleDict | nn.Sequential):
            yield from _layers(child)
        else:
            yield child
