"""Splits for graphs that come without one."""

import numpy as np
import torch
from torch import Tensor

from weft.errors import UserError
from weft.graph.files import Array
from weft.graph.graph import Graph


def random_split(graph: Graph, train: float, val: float, seed: int = 0) -> Graph:
    """The same graph with a seeded random split of its labelled vertices; what is neither is test."""
    if not (train > 0 and val >= 0 and train + val <= 1):
        raise UserError(
            f"a split of {train:g} train and {val:g} val is impossible: give fractions that sum to at most 1"
        )
    labelled = _labelled(graph)
    order = np.random.default_rng(seed).permutation(labelled)
    num_train, num_val = round(train * labelled.size), round(val * labelled.size)
    return _with_split(graph, order[:num_train], order[num_train : num_train + num_val], order[num_train + num_val :])


def per_class_split(graph: Graph, per_class: int = 20, val: int = 500, test: int = 1000, seed: int = 0) -> Graph:
    """Planetoid's kind of split: so many training vertices of each class, then val and test from the rest."""
    if graph.y is None or graph.multi_label or graph.num_targets:
        raise UserError(f"graph '{graph.name}' has no single class per vertex: use a random split")
    y = graph.y.numpy()
    order = np.random.default_rng(seed).permutation(_labelled(graph))
    chosen = np.concatenate([order[y[order] == label][:per_class] for label in range(graph.num_classes)])
    rest = order[~np.isin(order, chosen)]
    return _with_split(graph, chosen, rest[:val], rest[val : val + test])


def time_split(graph: Graph, train: float, val: float) -> Graph:
    """The earliest labelled vertices train, later ones validate, the last test; those of one time stay together."""
    if not (train > 0 and val >= 0 and train + val <= 1):
        raise UserError(
            f"a split of {train:g} train and {val:g} val is impossible: give fractions that sum to at most 1"
        )
    if graph.time is None:
        raise UserError(
            f"graph '{graph.name}' has no times of vertices to be split by: name their column with --vertex-time-column"
        )
    labelled, times = _labelled(graph), graph.time.numpy()
    labelled = labelled[~np.isnan(times[labelled])]
    if not labelled.size:
        raise UserError(f"no vertex of graph '{graph.name}' has both a label and a time: there is nothing to split")
    found, ordered = times[labelled], np.sort(times[labelled])
    last_train, last_val = (ordered[max(round(share * found.size), 1) - 1] for share in (train, train + val))
    early, middle = found <= last_train, found <= last_val
    return _with_split(graph, labelled[early], labelled[middle & ~early], labelled[~middle])


def parse_split(graph: Graph, spec: str) -> Graph:
    """`random:0.6,0.2`, `random:0.6,0.2@SEED`, `planetoid` / `planetoid@SEED`, or `time:0.8,0.1`."""
    kind, _, seed_text = spec.partition("@")
    name, _, fractions = kind.partition(":")
    try:
        seed = int(seed_text or 0)
        if name == "planetoid" and not fractions:
            return per_class_split(graph, seed=seed)
        if name == "time" and not seed_text:
            train, val = (float(part) for part in (fractions or "0.8,0.1").split(","))
            return time_split(graph, train, val)
        if name == "random":
            train, val = (float(part) for part in (fractions or "0.6,0.2").split(","))
            return random_split(graph, train, val, seed)
    except UserError:
        raise
    except ValueError:
        pass
    raise UserError(
        f"split '{spec}' is not understood: write random:0.6,0.2@SEED, planetoid@SEED or time:0.8,0.1, or a file"
    )


def known(y: Tensor) -> Tensor:
    """Which vertices have a target, bool [N]."""
    has = ~y.isnan() if y.is_floating_point() else y >= 0
    return has.any(1) if y.dim() == 2 else has


def _labelled(graph: Graph) -> Array:
    if graph.y is None:
        return np.arange(graph.num_nodes)
    labelled = (graph.y >= 0).all(1) if graph.multi_label else known(graph.y)
    return np.flatnonzero(labelled.numpy())


def _with_split(graph: Graph, train: Array, val: Array, test: Array) -> Graph:
    def mask(rows: Array) -> Tensor:
        chosen = torch.zeros(graph.num_nodes, dtype=torch.bool)
        chosen[torch.from_numpy(rows)] = True
        return chosen

    return graph.with_vertex_data(train_mask=mask(train), val_mask=mask(val), test_mask=mask(test))
