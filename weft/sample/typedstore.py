"""The store of input rows where vertices are of several types: rows travel in the width of their type."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.graph.typedrows import Rows, TypedRows
from weft.kernels import gather
from weft.kernels.sampling import gather_places
from weft.sample.all_to_all import AllToAllV
from weft.sample.book import PartitionBook
from weft.sample.store import AtRest, BatchRows, Column, Features, PlainRows, Request, Store

TYPE, RANK = "type", "rank"  # of each vertex; and its row in the block of its type


@dataclass(frozen=True)
class BlockRows:
    """Input rows in a block for each type, as a store keeps them."""

    at_rest: AtRest
    x: TypedRows
    wants_ids: ClassVar[bool] = True  # types of vertices follow from them

    @cached_property
    def features(self) -> Mapping[int, Features]:
        """How the rows of each type lie at rest, and how they are read."""
        blocks = {kind: block for kind, block in enumerate(self.x.blocks) if block is not None}
        return {kind: Features(self.at_rest, block.shape[1], self.x.dtype) for kind, block in blocks.items()}

    def make_store(
        self, comm: Communicator, book: PartitionBook, columns: dict[str, Column], ids: Tensor
    ) -> "TypedStore":
        kept = {}
        for kind, features in self.features.items():
            members, rows = self.x.groups[kind]
            kept[kind] = features.stored(rows, ids[members]).contiguous()
        return TypedStore(comm, book, columns, self.x.types, kept)

    def read(self, rows: BatchRows) -> TypedRows:
        store = rows.store
        assert isinstance(store, TypedStore)
        return store.typed_rows(rows, self.features, self.x.dtype)


class TypedStore(Store):
    """Columns of constant rows over all workers, and of each type of vertices a block of rows of its own width."""

    def __init__(
        self,
        comm: Communicator,
        book: PartitionBook,
        columns: dict[str, Column],
        types: Tensor,
        blocks: dict[int, Tensor],
    ) -> None:
        """types: of own vertices, int64 [N]. blocks: rows of own vertices of each type, in their order."""
        super().__init__(comm, book, columns | {TYPE: Column(types.to(torch.int16), "topology")})
        self.blocks, self._types = blocks, types
        self.rank = _ranks(types)
        self.hot |= self._nothing()

    def row_bytes(self) -> int:
        """Bytes of a vertex over all columns and, on average over all workers' vertices, of the row of its type."""
        held = sum(block.nbytes for block in self.blocks.values())
        totals = torch.tensor([held, len(self._types)])
        self._comm.all_reduce(totals, "control", "bytes of rows")
        return super().row_bytes() + int(totals[0]) // max(1, int(totals[1]))

    def _nothing(self) -> dict[str, Tensor]:
        blocks = {block_name(kind): block[:0] for kind, block in self.blocks.items()}
        return super()._nothing() | {RANK: torch.empty(0, dtype=torch.int32)} | blocks

    def _answer(self, request: Request) -> dict[str, Tensor]:
        found = super()._answer(request)
        sent, arrived = self._types[request.index], found[TYPE][request.order].long()
        workers = torch.arange(self._comm.num_workers)
        to = workers.repeat_interleave(torch.tensor(request.asked))
        by = workers.repeat_interleave(torch.tensor(request.wanted))
        posts = {}
        for kind, block in self.blocks.items():
            rows = gather(block, self.rank[request.index[sent == kind]].long())
            ends = to[sent == kind], by[arrived == kind]
            outgoing, incoming = (torch.bincount(end, minlength=len(workers)).tolist() for end in ends)
            posts[block_name(kind)] = AllToAllV(self._comm, rows, outgoing, incoming, "features", block_name(kind))
        found[RANK] = _ranks(arrived)[request.back]
        return found | {name: post.wait() for name, post in posts.items()}

    def typed_rows(self, rows: BatchRows, features: Mapping[int, Features], dtype: torch.dtype) -> TypedRows:
        """The rows of one minibatch's vertices."""
        types = rows.column(TYPE).long()
        own, places = len(self._types), rows.places
        ranks = gather_places(self.rank, self.hot[RANK], rows.fetched[RANK], places)
        found: list[Tensor | None] = []
        for kind in range(max(self.blocks, default=-1) + 1):
            if kind not in self.blocks:
                found.append(None)
                continue
            block, hot, fetched = self.blocks[kind], self.hot[block_name(kind)], rows.fetched[block_name(kind)]
            here = types == kind
            where = places[here]
            before = torch.where(where < own + self.num_hot, len(block), len(block) + len(hot))
            row = torch.where(where < own, 0, before) + ranks[here]
            found.append(features[kind].read(gather_places(block, hot, fetched, row.int())))
        return TypedRows.of(types, found, None, dtype)


def block_name(kind: int) -> str:
    return f"rows of type {kind}"


def _ranks(types: Tensor) -> Tensor:
    """How many rows before each have its type, int32 [N]."""
    order = torch.argsort(types, stable=True)
    counts = torch.bincount(types)
    first = torch.cumsum(counts, 0) - counts
    ranks = torch.empty(types.numel(), dtype=torch.int32)
    ranks[order] = (torch.arange(types.numel()) - first[types[order]]).int()
    return ranks


def keep_rows(at_rest: AtRest, x: Rows) -> PlainRows | BlockRows:
    """How a store keeps these input rows."""
    if isinstance(x, TypedRows):
        return BlockRows(at_rest, x)
    return PlainRows(Features(at_rest, x.shape[1], x.dtype), x)
