"""PyG's convolutions as layers: unchanged, on whatever part of the graph a layer is handed.

    from torch_geometric.nn import SAGEConv
    layer = weft.layers.pyg.Convolution(SAGEConv(64, 32))

A convolution sees the rows of sources and of destinations and the edges between them, as PyG's own loaders hand them
over: in training those of a minibatch or of this worker, in evaluation those of some destinations at a time.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from weft.aggregate import GraphView
from weft.aggregate.blocks import Block
from weft.aggregate.gathering import edge_weights
from weft.errors import UserError, optional
from weft.graph.csr import CSR
from weft.kernels.hash import hash_key
from weft.layers.heads import wide
from weft.layers.traits import LayerTraits

with optional("weft.layers.pyg"):
    from torch_geometric.nn import GCNConv
    from torch_geometric.nn import norm as pyg_norm

BLOCK_BYTES = 128 << 20  # of the rows at the edges that are evaluated together
CARRIED = {"edge_weight": "weight", "edge_type": "relation", "edge_attr": "features"}  # PyG's names, and ours
SWITCHES = ("edge_dim", "in_edge_channels", "dim")  # by which convolutions say how wide their edge features are
BY_ROW = (pyg_norm.BatchNorm, pyg_norm.LayerNorm, pyg_norm.MessageNorm)  # evaluated, a row depends on itself alone


@dataclass(frozen=True)
class Form:
    """How a convolution is called, as its class says.

    `rows`: "pair" (sources, destinations); "joint", one matrix, of which the first rows come out; "whole", one matrix
    of all vertices, since further hops or degrees of the whole graph may be read.
    """

    name: str
    rows: Literal["pair", "joint", "whole"]
    symmetric: bool = False  # its own normalisation is GCN's, for which it is handed weft's coefficients
    takes: frozenset[str] = frozenset()  # of CARRIED
    wants: frozenset[str] = frozenset()  # those that it does not do without
    hops: int = 1


class Convolution(nn.Module):
    """Any PyG layer that takes rows and edge_index, and where it does so, edge weights, kinds and features.

    `pairs`: whether it takes (x_src, x_dst); where it is left out, as the annotation of its forward says.
    """

    def __init__(self, convolution: nn.Module, pairs: bool | None = None) -> None:
        super().__init__()
        self.convolution = convolution
        self.form = read_form(convolution, pairs)

    @property
    def traits(self) -> LayerTraits:
        reads = {"weight"} if self.form.symmetric else {CARRIED[name] for name in self.form.takes}
        return LayerTraits(
            any_level=True, adds_loops=self.form.symmetric, wants_degrees=self.form.symmetric,
            edge_data=frozenset(reads),
        )  # fmt: skip

    def forward(self, graph: GraphView, x: Tensor) -> Tensor:
        self._check(graph)
        rows, dtype = wide(graph.gathered(x)), x.dtype
        block = graph.joined(rows.dtype, "symmetric" if self.form.symmetric else None)
        if self.form.symmetric:
            carried = {"edge_weight": edge_weights(block, rows.dtype)}
        else:
            carried = self._carried(block.csr, graph.num_relations, rows.dtype, graph.shard.graph_name)
        num_out = graph.num_out
        if self.training or self.form.rows == "whole":
            with _drawing(graph):
                edges = torch.stack([block.csr.indices.long(), block.destinations])
                return self._call(rows, num_out, edges, carried).to(dtype)
        return self._in_blocks(rows, block, carried).to(dtype)

    def _in_blocks(self, rows: Tensor, block: Block, carried: Mapping[str, Tensor]) -> Tensor:
        """The same, some destinations at a time, so that no more is held at once than a block's edges take."""
        widest = max([rows.shape[1], *(max(p.shape) for p in self.convolution.parameters() if p.dim())])
        found: Tensor | None = None
        for span in _spans(block.csr, BLOCK_BYTES // (widest * rows.element_size())):
            columns, edges, at = _cut(block.csr, span)
            out = self._call(rows[columns], span.stop - span.start, edges, {k: v[at] for k, v in carried.items()})
            if found is None:
                found = out if span.stop == block.csr.num_rows else out.new_empty(block.csr.num_rows, *out.shape[1:])
            found[span] = out
        assert found is not None
        return found

    def _call(self, rows: Tensor, num_out: int, edges: Tensor, carried: Mapping[str, Tensor]) -> Tensor:
        """The convolution itself, on rows of which the first are the destinations."""
        x = (rows, rows[:num_out]) if self.form.rows == "pair" else rows
        try:
            with _as_given(self.convolution) if self.form.symmetric else nullcontext():
                out: Tensor = self.convolution(x, edges, **carried)
        except (AssertionError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise UserError(f"{self.form.name} refused what it was handed: {reason}") from error
        return out[:num_out]

    def _carried(self, csr: CSR, num_relations: int, dtype: torch.dtype, where: str) -> dict[str, Tensor]:
        """What the edges carry and the convolution takes, under PyG's names."""
        form, found = self.form, {}
        for name, ours in CARRIED.items():
            data: Tensor | None = getattr(csr, ours)
            if name in form.takes and data is not None:
                found[name] = data.long() if name == "edge_type" else data.to(dtype)
            elif name in form.wants:
                raise UserError(
                    f"{form.name} takes {name}, but the edges of {where} have none: ingest it with "
                    f"{'--relation-column' if name == 'edge_type' else '--edge-features'}, or use another convolution"
                )
        known = getattr(self.convolution, "num_relations", num_relations)
        if "edge_type" in found and known < num_relations:
            raise UserError(f"{form.name} knows {known} relations, but {where} has {num_relations}")
        width, given = getattr(self.convolution, "edge_dim", None), found.get("edge_attr")
        if given is not None and width not in (None, given.shape[1]):
            raise UserError(f"{form.name} has edge_dim={width}, but edges of {where} have {given.shape[1]} features")
        return found

    def _check(self, graph: GraphView) -> None:
        """Refuses what would be computed wrongly, with the reason; on every worker alike."""
        alone = graph.comm.num_workers == 1
        if self.form.rows == "whole" and not (alone and not graph.of_minibatch and graph.num_out == graph.num_rows):
            reason = f"reads {self.form.hops} hops in one layer, and a part of the graph has the edges of one"
            if self.form.hops == 1:
                reason = (
                    "takes one matrix of rows for sources and destinations, or normalises over them all, so that it "
                    "may read degrees or statistics that a part of the graph does not have"
                )
            raise UserError(
                f"{self.form.name} {reason}: train it over the full graph with one worker (--strategy full --workers "
                "1), or use a convolution that takes pairs, as SAGEConv does, or GCNConv"
            )
        if self.training and not alone and any(isinstance(part, _BatchNorm) for part in self.convolution.modules()):
            raise UserError(
                f"{self.form.name} has batch normalisation inside, whose statistics would be those of each worker "
                "alone: normalise between layers (model.norm=batch, over all workers) or by row (LayerNorm), or use "
                "one worker"
            )


def read_form(convolution: nn.Module, pairs: bool | None = None) -> Form:
    """How to call a convolution, by the signature of its forward."""
    name, taken = type(convolution).__name__, inspect.signature(convolution.forward).parameters
    rows, *others = taken.values()
    needed = {p.name for p in others if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    if "edge_index" not in taken or (unknown := needed - {"edge_index", *CARRIED}):
        what = "no edge_index" if "edge_index" not in taken else " and ".join(sorted(unknown))
        raise UserError(
            f"{name} takes {what}, and weft passes rows, edge_index and {', '.join(CARRIED)} alone: write a layer "
            "against `graph` instead"
        )
    if getattr(convolution, "flow", "source_to_target") != "source_to_target":
        raise UserError(f"{name} has flow={convolution.flow!r}, against the edges: use flow='source_to_target'")
    takes, wants = _edge_data(convolution, taken, needed)
    hops = max(getattr(convolution, word, 1) or 1 for word in ("K", "num_layers"))
    if isinstance(convolution, GCNConv):
        plain = convolution.add_self_loops and not convolution.improved
        if convolution.normalize:
            return Form(name, "joint" if plain else "whole", plain, takes, wants)
        return Form(name, "joint", False, takes, wants)
    if pairs is None:
        annotation = str(rows.annotation).lower()
        pairs = "tuple" in annotation or "pairtensor" in annotation
    return Form(name, "pair" if pairs and _by_row(convolution) else "whole", False, takes, wants, hops)


def _edge_data(
    convolution: Any, taken: Mapping[str, inspect.Parameter], needed: set[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Which of CARRIED a convolution takes, and which it does not do without."""
    takes, wants = {name for name in CARRIED if name in taken}, needed & set(CARRIED)
    switch = next((name for name in SWITCHES if hasattr(convolution, name)), None)
    if "edge_attr" in takes and switch is not None:
        if getattr(convolution, switch):
            wants.add("edge_attr")
        else:
            takes.remove("edge_attr")
    elif "edge_attr" in takes and hasattr(convolution, "message"):
        given = inspect.signature(convolution.message).parameters.get("edge_attr")
        if given is not None and given.annotation is Tensor:  # not OptTensor
            wants.add("edge_attr")
    if "edge_type" in takes and getattr(convolution, "num_relations", 0) > 1:
        wants.add("edge_type")
    return frozenset(takes), frozenset(wants & takes)


def _by_row(convolution: nn.Module) -> bool:
    """Whether no part of it looks at all rows at once, as graph normalisation does."""
    return all(
        not type(part).__module__.startswith(pyg_norm.__name__)
        or (isinstance(part, BY_ROW) and getattr(part, "mode", "node") == "node")
        for part in convolution.modules()
    )


@contextmanager
def _as_given(convolution: Any) -> Iterator[None]:
    """A GCNConv takes its coefficients as they come, instead of making them of the edges that it sees."""
    convolution.normalize = False
    try:
        yield
    finally:
        convolution.normalize = True


@contextmanager
def _drawing(graph: GraphView) -> Iterator[None]:
    """What a convolution draws itself (dropout) comes from the run's seed, the step, the call and the worker."""
    key = graph.noise.next_key()
    with torch.random.fork_rng(devices=[], enabled=key is not None):
        if key is not None:
            torch.manual_seed(hash_key(key, graph.comm.worker))
        yield


def _spans(csr: CSR, limit: int) -> Iterator[slice]:
    """Rows in runs of at most `limit` edges, or one row."""
    ends, first = csr.indptr, 0
    while True:
        stop = int(torch.searchsorted(ends, int(ends[first]) + limit, right=True)) - 1
        stop = min(max(stop, first + 1), csr.num_rows)
        yield slice(first, stop)
        if stop == csr.num_rows:
            return
        first = stop


def _cut(csr: CSR, rows: slice) -> tuple[Tensor | slice, Tensor, slice]:
    """The edges into some rows: the columns that they need, these rows first; the edges between those; their place."""
    at = slice(int(csr.indptr[rows.start]), int(csr.indptr[rows.stop]))
    count, sources = rows.stop - rows.start, csr.indices[at].long()
    degrees = csr.indptr[rows.start + 1 : rows.stop + 1] - csr.indptr[rows.start : rows.stop]
    targets = torch.arange(count, device=sources.device).repeat_interleave(degrees)
    if count == csr.num_rows:
        return slice(None), torch.stack([sources, targets]), at
    inside = (sources >= rows.start) & (sources < rows.stop)
    others, place = torch.unique(sources[~inside], return_inverse=True)
    sources = sources - rows.start
    sources[~inside] = place + count
    return torch.cat([torch.arange(rows.start, rows.stop), others]), torch.stack([sources, targets]), at


__all__ = ["Convolution"]
