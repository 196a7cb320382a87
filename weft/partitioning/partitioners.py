"""Partition methods by name: what each requires, and how one of a user's own is added.

    def halves(graph: Graph, request: Request) -> Assignment:
        return Assignment(torch.arange(graph.num_nodes) * request.parts // graph.num_nodes)

    register_partitioner("halves", halves, "contiguous ids")

Afterwards `weft.partition(graph, 2, out, method="halves")` and `partition.method=halves` use it. Commands know it too
where WEFT_PLUGINS or an installed package names the module (`weft.plugins`).
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import EXTRAS, UserError, not_installed, unknown
from weft.graph.graph import Graph
from weft.kernels.partition import can_stream
from weft.partitioning.touches import Forecast
from weft.plugins import load_plugins

AUTO = "auto"


@dataclass(frozen=True)
class Balance:
    """How much larger than the mean the largest part may be, in vertices, in-edges, training vertices.

    Kept to by `metis` and `stream` as far as single vertices allow (one vertex can have more edges than fit), and by
    `presample`, for which `edges` bounds the work that minibatches cause instead of the in-edges.
    """

    nodes: float = 1.05
    edges: float = 1.10
    train: float = 1.10


@dataclass(frozen=True)
class Request:
    """What is asked of a partitioner."""

    parts: int
    seed: int = 0
    balance: Balance = field(default_factory=Balance)
    minibatches: Any = None  # a weft.sample.Presample: those of training, for a method that needs them


class Assignment(NamedTuple):
    """What a partitioner answers."""

    owner: Tensor  # int [N], the part of every vertex
    forecast: Forecast | None = None  # where minibatches were drawn


@dataclass(frozen=True)
class Requires:
    """What a partitioner cannot do without."""

    package: str | None = None  # an optional package, by the name under which it is imported
    native: bool = False  # the native module
    training_vertices: bool = False
    minibatches: bool = False  # it draws those of training in advance, as Request.minibatches says
    whole_graph: bool = True  # in the memory of one process; else it takes the edges that workers have put on disk


@dataclass(frozen=True)
class Partitioner:
    """A method by its name. `assign` takes (Graph, Request), or (weft.out_of_core.SpilledGraph, Request)."""

    name: str
    assign: Callable[[Any, Request], Assignment]
    about: str
    requires: Requires
    preference: int  # `auto` takes the largest that can run here; 0: never

    @property
    def available(self) -> bool:
        """Whether this machine has what it needs."""
        package = self.requires.package
        return (package is None or _installed(package)) and (not self.requires.native or _has_native())

    def check(self) -> None:
        """Refuses a method that cannot run here, with the reason."""
        package = self.requires.package
        if package is not None and not _installed(package):
            what, known = f"method {self.name}", package in EXTRAS
            error = not_installed(package, what) if known else f"{what} needs {package}: pip install {package}"
            raise UserError(f"{error}, or use another method, such as stream")
        if self.requires.native and not _has_native():
            raise UserError(
                f"method '{self.name}' needs the native module: build it with `pip install -e .`, or use another "
                "method, such as random"
            )

    def run(self, graph: Graph, request: Request) -> Assignment:
        """The part of every vertex of a graph in memory; the same for the same request."""
        if request.parts < 1:
            raise UserError(f"{request.parts} parts were asked for: a graph is cut into 1 part or more")
        self.check()
        if self.requires.training_vertices and graph.train_mask is None:
            raise UserError(
                f"{graph.name} has no training vertices, which method '{self.name}' needs: give it a split "
                "(weft ingest --split), or use method 'metis'"
            )
        if request.parts == 1 and not self.requires.minibatches:
            return Assignment(torch.zeros(graph.num_nodes, dtype=torch.int32))
        return self.assign(graph, request)


_REGISTERED: dict[tuple[str, bool], Partitioner] = {}  # by name, and whether it needs the whole graph


def register_partitioner(
    name: str,
    assign: Callable[[Any, Request], Assignment],
    about: str = "",
    requires: Requires = Requires(),
    preference: int = 0,
) -> None:
    """Adds a method. A name may stand for two: one for graphs in memory, one for edges on disk."""
    key = name, requires.whole_graph
    if name == AUTO or not name:
        raise UserError(f"a partition method cannot be called '{name}': give it another name")
    if key in _REGISTERED and _REGISTERED[key].assign is not assign:
        raise UserError(f"there is a partition method '{name}' already: give this one another name")
    _REGISTERED[key] = Partitioner(name, assign, about, requires, preference)


def list_partitioners(whole_graph: bool = True) -> list[Partitioner]:
    """All methods for graphs in memory, or for edges on disk, best first."""
    load_plugins()
    found = [one for one in _REGISTERED.values() if one.requires.whole_graph == whole_graph]
    return sorted(found, key=lambda one: -one.preference)


def find_partitioner(name: str, whole_graph: bool = True) -> Partitioner:
    """The method of this name, which must be able to run here; `auto`: the best one that is."""
    known = list_partitioners(whole_graph)
    if name == AUTO:
        return next(one for one in known if one.preference and one.available)
    found = next((one for one in known if one.name == name), None)
    if found is None:
        kind = "partition method" if whole_graph else "partition method for edge files"
        raise unknown(kind, name, [AUTO, *(one.name for one in known)])
    found.check()
    return found


def assign(graph: Graph, parts: int, method: str = AUTO, seed: int = 0, balance: Balance | None = None) -> Tensor:
    """The part of every vertex, int [N], by the method of this name."""
    return find_partitioner(method).run(graph, Request(parts, seed, balance or Balance())).owner


def describe_partitioners(whole_graph: bool = True) -> str:
    """The methods in a line, for help."""
    return ", ".join(f"{one.name} ({one.about})" if one.about else one.name for one in list_partitioners(whole_graph))


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _has_native() -> bool:
    return can_stream(torch.empty(0))
