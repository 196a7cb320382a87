"""Seeded synthetic graphs with planted communities: a degree-corrected stochastic block model.

Vertices have a class and a community inside it, and a weight from a power law. An edge takes its first end in
proportion to the weights, its second from the same community, the same class, or anywhere. Features are the
class's centre plus noise, so that one vertex says little about its class and its neighbourhood says much. With
relations, edges inside a class and edges between classes are of different kinds, up to a tenth of them.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from weft.errors import UserError, unknown
from weft.graph.build import from_edges
from weft.graph.files import Array
from weft.graph.graph import Graph
from weft.graph.progress import progress
from weft.graph.splits import random_split

PREFIX = "synthetic:"


@dataclass(frozen=True)
class SyntheticConfig:
    nodes: int = 2000
    degree: float = 12.0  # mean number of neighbours: nodes * degree / 2 undirected edges
    edges: int = 0  # undirected edges; 0: as `degree` says
    features: int = 32
    classes: int = 8
    communities: int = 40  # at least one per class
    exponent: float = 2.6  # of the degree law P(d) ~ d^-exponent; larger is more even
    homophily: float = 0.65  # share of edges that join vertices of the same label, as far as label noise allows
    locality: float = 0.8  # share of those that stay inside a community
    imbalance: float = 0.7  # class k has weight (k+1)^-imbalance; 0: classes of equal size
    noise: float = 3.0  # standard deviation of the features around their class's centre, whose own is 1
    label_noise: float = 0.0  # share of vertices whose label is drawn anew
    train: float = 0.54
    val: float = 0.18
    seed: int = 0
    directed: bool = False
    weighted: bool = False
    relations: int = 0  # kinds of edges, of which the first half says much about the classes; 0: one kind


PRESETS = {
    "tiny": SyntheticConfig(nodes=300, degree=8, features=16, classes=4, communities=8, noise=2.0),
    "demo": SyntheticConfig(
        nodes=20_000, degree=12, features=64, classes=12, communities=200, homophily=0.5, noise=5.0, label_noise=0.15
    ),
    "arxiv": SyntheticConfig(
        nodes=169_343,
        edges=1_166_243,
        features=128,
        classes=40,
        communities=800,
        exponent=2.4,
        homophily=0.48,
        noise=5.5,
        label_noise=0.27,
        train=0.537,
        val=0.176,
    ),
    "products": SyntheticConfig(
        nodes=600_000,
        edges=15_000_000,
        features=100,
        classes=47,
        communities=2_000,
        exponent=2.4,
        homophily=0.6,
        noise=5.5,
        label_noise=0.15,
        train=0.08,
        val=0.02,
    ),
    "dense": SyntheticConfig(  # no cut is a good one: every part's edges read nearly every vertex
        nodes=60_000,
        degree=80,
        features=128,
        classes=16,
        communities=16,
        exponent=6.0,
        homophily=0.2,
        imbalance=0.0,
        noise=5.5,
    ),
    "community": SyntheticConfig(
        nodes=200_000,
        edges=3_000_000,
        features=64,
        classes=20,
        communities=1_000,
        exponent=3.0,
        homophily=0.95,
        locality=0.97,
        imbalance=0.0,
        noise=4.0,
    ),
    "relational": SyntheticConfig(
        nodes=3_000,
        degree=24,
        features=16,
        classes=6,
        communities=30,
        homophily=0.35,
        noise=4.0,
        directed=True,
        relations=4,
    ),
}
RELATION_SLIP = 0.1  # share of edges whose relation belongs to the other half than their ends' classes say


def synthetic(preset: str = "tiny", **settings: int | float | bool) -> Graph:
    """The synthetic graph of a preset, with any field of SyntheticConfig changed."""
    if preset not in PRESETS:
        raise unknown("synthetic graph", preset, PRESETS)
    known = {field.name for field in fields(SyntheticConfig)}
    for key in settings:
        if key not in known:
            raise unknown(f"setting of {PREFIX}{preset}", key, known)
    if "degree" in settings and "edges" not in settings:
        settings["edges"] = 0
    base = PRESETS[preset]
    if base.edges and "nodes" in settings and "edges" not in settings:  # keep the preset's mean degree
        settings["edges"] = round(base.edges * settings["nodes"] / base.nodes)
    if "nodes" in settings and "communities" not in settings:  # and the size of its communities
        communities = round(base.communities * settings["nodes"] / base.nodes)
        settings["communities"] = max(int(settings.get("classes", base.classes)), communities)
    return generate(replace(base, **settings), name=f"synthetic-{preset}")  # type: ignore[arg-type]


def parse_synthetic(spec: str) -> Graph:
    """`synthetic:NAME?key=value,key=value`"""
    name, _, query = spec.removeprefix(PREFIX).partition("?")
    if name not in PRESETS:
        raise unknown("synthetic graph", name, PRESETS)
    kinds = {field.name: type(getattr(PRESETS[name], field.name)) for field in fields(SyntheticConfig)}
    settings: dict[str, int | float | bool] = {}
    for part in query.replace("&", ",").split(",") if query else []:
        key, equals, text = part.partition("=")
        if key not in kinds:
            raise unknown(f"setting of {PREFIX}{name}", key, kinds)
        try:
            if not equals:
                raise ValueError
            settings[key] = _parse(kinds[key], text)
        except (ValueError, KeyError):
            raise UserError(f"'{part}' in '{spec}' is no {kinds[key].__name__}: write {key}=VALUE") from None
    return synthetic(name, **settings)


def _parse(kind: type, text: str) -> int | float | bool:
    if kind is bool:
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
    if kind is int:
        return int(text.replace("_", ""))
    return float(text)


def generate(config: SyntheticConfig, name: str = "synthetic") -> Graph:
    """The graph of a config: the same config gives the same graph, bit for bit."""
    _check(config)
    rng = np.random.default_rng(config.seed)
    label, community = _members(config, rng)  # both ascending: communities lie inside classes
    weight = _weights(config, rng)
    num_edges = config.edges or round(config.nodes * config.degree / 2)
    u, v = _edges(config, num_edges, label, community, weight, rng)
    shuffled = rng.permutation(config.nodes)
    u, v = shuffled[u], shuffled[v]
    if config.directed:
        flip = rng.random(u.size) < 0.5
        u, v = np.where(flip, v, u), np.where(flip, u, v)
    true_label = np.empty(config.nodes, np.int64)
    true_label[shuffled] = label
    x = _features(config, true_label, rng)
    y = true_label
    if config.label_noise:
        redrawn = rng.random(config.nodes) < config.label_noise
        y = np.where(redrawn, true_label[rng.permutation(config.nodes)], true_label)
    relation = _relations(config, true_label[u] == true_label[v], rng) if config.relations else None
    graph = from_edges(
        u,
        v,
        x=x,
        y=y,
        relation=relation,
        num_relations=config.relations or None,
        relation_names=_relation_names(config) if config.relations else None,
        weight=rng.uniform(0.5, 1.5, u.size) if config.weighted else None,
        num_classes=config.classes,
        num_nodes=config.nodes,
        undirected=not config.directed,
        name=name,
        meta={"source": "synthetic", "config": {f.name: getattr(config, f.name) for f in fields(config)}},
    )
    return random_split(graph, config.train, config.val, config.seed)


def _check(config: SyntheticConfig) -> None:
    if config.nodes < 2 or config.classes < 1 or config.features < 1:
        raise UserError("a synthetic graph needs at least 2 nodes, 1 class and 1 feature")
    if config.communities < config.classes or config.nodes < config.communities:
        raise UserError(
            f"a synthetic graph of {config.nodes} nodes and {config.classes} classes cannot have "
            f"{config.communities} communities: at least one per class, at most one per node"
        )
    if config.relations < 0 or config.relations == 1:
        raise UserError(
            f"relations={config.relations} of a synthetic graph: give 0 for one kind of edges, else 2 or more"
        )
    if config.exponent <= 2:
        raise UserError(f"exponent={config.exponent:g} has no mean degree: give more than 2")
    for key in ("homophily", "locality", "label_noise", "train", "val"):
        if not 0 <= getattr(config, key) <= 1:
            raise UserError(f"{key}={getattr(config, key):g} of a synthetic graph is not in 0..1")
    num_edges = config.edges or round(config.nodes * config.degree / 2)
    if num_edges > config.nodes * (config.nodes - 1) // 4:
        raise UserError(f"{num_edges} edges among {config.nodes} nodes are too dense for a random graph: give fewer")


def _members(config: SyntheticConfig, rng: np.random.Generator) -> tuple[Array, Array]:
    """Class and community of each vertex, in ascending order of both."""
    share = np.arange(1, config.classes + 1) ** -config.imbalance
    per_class = 1 + _apportion(config.communities - config.classes, share)
    class_of = np.repeat(np.arange(config.classes), per_class)
    size = rng.uniform(0.5, 1.5, config.communities) * (share / share.sum() / per_class)[class_of]
    size_of = 1 + _apportion(config.nodes - config.communities, size)
    community = np.repeat(np.arange(config.communities), size_of)
    return class_of[community], community


def _apportion(total: int, share: Array) -> Array:
    """Whole numbers in proportion to `share` that sum to `total`."""
    ends = np.floor(np.cumsum(share) / share.sum() * total + 0.5).astype(np.int64)
    ends[-1] = total
    return np.diff(ends, prepend=0)


def _weights(config: SyntheticConfig, rng: np.random.Generator) -> Array:
    """Expected degrees up to a factor: a Pareto law, cut where a hub would touch a twentieth of the graph."""
    weight = (1 - rng.random(config.nodes)) ** (-1 / (config.exponent - 1))
    return np.minimum(weight, max(config.nodes / 20, 3.0))


def _edges(
    config: SyntheticConfig,
    num_edges: int,
    label: Array,
    community: Array,
    weight: Array,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Distinct undirected edges u < v, exactly `num_edges`."""
    bounds = np.concatenate([[0.0], np.cumsum(weight)])
    by_class = bounds[np.searchsorted(label, np.arange(config.classes + 1))]
    by_community = bounds[np.searchsorted(community, np.arange(config.communities + 1))]
    chance = float(((np.diff(by_class) / bounds[-1]) ** 2).sum())  # same class by accident
    wanted_inside = round(num_edges * _structural_homophily(config, chance))
    keys = np.empty(0, np.int64)
    with progress("drawing edges", num_edges) as advance:
        for attempt in range(200):
            missing = num_edges - keys.size
            if missing <= 0:
                break
            same = int((label[keys // config.nodes] == label[keys % config.nodes]).sum())
            draws = missing if attempt == 0 else int(missing * 1.1) + 64
            u = _draw(bounds, rng.random(draws) * bounds[-1])
            # Repeated edges are mostly those inside communities: each round makes up what the last ones lack.
            inside = min(max((wanted_inside - same) / missing, 0.0), 1.0)
            inside = max(0.0, (inside - chance) / (1 - chance)) if chance < 1 else 0.0
            kind = rng.random(draws)
            group = community[u]
            low, high = by_community[group], by_community[group + 1]
            wider = kind >= inside * (config.locality if attempt < 3 else 0.0)  # small communities fill up
            low[wider], high[wider] = by_class[label[u[wider]]], by_class[label[u[wider]] + 1]
            anywhere = kind >= inside
            low[anywhere], high[anywhere] = 0.0, bounds[-1]
            v = _draw(bounds, low + rng.random(draws) * (high - low))
            pair = np.minimum(u, v) * config.nodes + np.maximum(u, v)
            fresh = _without(_distinct(pair[u != v]), keys)
            if fresh.size > missing:
                fresh = fresh[np.sort(rng.choice(fresh.size, missing, replace=False))]
            keys = np.sort(np.concatenate([keys, fresh]), kind="stable")  # stable: merges the two sorted runs
            advance(fresh.size)
        else:
            raise UserError(
                f"only {keys.size} of {num_edges} distinct edges could be drawn: give fewer edges, fewer or "
                "larger communities, or less locality"
            )
    return keys // config.nodes, keys % config.nodes


def _relations(config: SyntheticConfig, same_class: Array, rng: np.random.Generator) -> Array:
    """Edges inside a class are mostly of the first half of the relations, edges between classes of the second."""
    first_half = config.relations // 2
    telling = same_class ^ (rng.random(same_class.size) < RELATION_SLIP)
    drawn = rng.random(same_class.size)
    return np.where(
        telling,
        (drawn * first_half).astype(np.int64),
        first_half + (drawn * (config.relations - first_half)).astype(np.int64),
    )


def _relation_names(config: SyntheticConfig) -> list[str]:
    inside = config.relations // 2
    return [f"inside-{k}" for k in range(inside)] + [f"across-{k}" for k in range(config.relations - inside)]


def _structural_homophily(config: SyntheticConfig, chance: float) -> float:
    """What the planted classes need so that the labels, some of them redrawn, have the homophily asked for."""
    both_true = (1 - config.label_noise) ** 2
    if both_true < 1e-6:
        return config.homophily
    return min(max((config.homophily - (1 - both_true) * chance) / both_true, 0.0), 1.0)


def _distinct(values: Array) -> Array:
    """Sorted, each once; numpy's own unique hashes, which is several times slower on millions of values."""
    values = np.sort(values)
    keep = np.ones(values.size, np.bool_)
    np.not_equal(values[1:], values[:-1], out=keep[1:])
    return values[keep]


def _without(values: Array, known: Array) -> Array:
    """The values that are not among the sorted known ones."""
    if known.size == 0:
        return values
    place = np.minimum(np.searchsorted(known, values), known.size - 1)
    new: Array = values[known[place] != values]
    return new


def _draw(bounds: Array, at: Array) -> Array:
    """The vertex whose stretch of the cumulative weight holds each point."""
    return np.minimum(np.searchsorted(bounds, at, side="right") - 1, bounds.size - 2)


def _features(config: SyntheticConfig, label: Array, rng: np.random.Generator) -> torch.Tensor:
    centre = rng.standard_normal((config.classes, config.features), dtype=np.float32)
    x = rng.standard_normal((config.nodes, config.features), dtype=np.float32)
    x *= config.noise
    for begin in range(0, config.nodes, 65536):
        x[begin : begin + 65536] += centre[label[begin : begin + 65536]]
    return torch.from_numpy(x)
