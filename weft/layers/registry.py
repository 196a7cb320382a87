"""Layers by name: what `--model NAME` builds, and which settings of a model are for which layers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from weft.aggregate.reducers import Traits
from weft.errors import unknown
from weft.layers.edge_reads import NO_READS, EdgeReads
from weft.plugins import load_plugins

if TYPE_CHECKING:
    from weft.layers.config import ModelConfig


@dataclass(frozen=True)
class Place:
    """Where in a model a layer stands."""

    num_in: int
    num_out: int  # columns that are wanted; of layers with heads that are put side by side, of each head
    last: bool
    num_relations: int  # of the graph; 0: it does not tell edges apart
    edges: EdgeReads = NO_READS  # what it is to read of edges, if it has the options edge_features and edge_weights
    num_types: int = 0  # of the graph's vertices; 0: they are all of one type


Build = Callable[["ModelConfig", Place], nn.Module]  # a layer with `num_out`, the columns that come out of it


@dataclass(frozen=True)
class LayerKind:
    """What a name stands for."""

    name: str
    build: Build
    options: frozenset[str]
    reducer: Callable[[ModelConfig], Traits]


_kinds: dict[str, LayerKind] = {}


def register_layer(
    name: str,
    build: Build,
    options: Collection[str] = (),
    reducer: Callable[[ModelConfig], Traits] = lambda config: Traits(),
) -> None:
    """Makes `--model name` a stack of the layers that build(config, place) returns.

    `options`: the settings of a model that not every layer has and this one does (heads, output_heads, reduce, bases,
    attention_dropout, negative_slope, edge_features, edge_weights). `reducer`: the traits of what its aggregations
    fold with, so that a codec that would bias them is refused before the run.

    From a module of your own, which registers its layer when it is imported, it is `--model package.module:name`.
    """
    if ":" in name:
        raise ValueError(f"a layer's name has no colon, which stands between a module and a name in it: {name!r}")
    if name in _kinds:
        raise ValueError(f"there is a layer {name!r} already")
    _kinds[name] = LayerKind(name, build, frozenset(options), reducer)


def layer_kind(name: str) -> LayerKind:
    if name not in _kinds:
        load_plugins()
    if name not in _kinds:
        raise unknown("model", name, _kinds)
    return _kinds[name]


def layer_names(option: str | None = None) -> tuple[str, ...]:
    """All names, or those of layers that have an option, in the order in which they were registered."""
    return tuple(kind.name for kind in _kinds.values() if option is None or option in kind.options)
