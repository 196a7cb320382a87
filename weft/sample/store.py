"""Constant rows of vertices, kept by their owners: own rows are read in place, others fetched, hot ones cached."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.errors import UserError
from weft.kernels import gather, memory
from weft.kernels.quantise import pack, packed_bytes, packed_offsets, unpack
from weft.kernels.sampling import find_slots, gather_places
from weft.sample.all_to_all import AllToAllV, all_to_all_v
from weft.sample.book import PartitionBook

AtRest = Literal["float32", "bfloat16", "int8", "int4", "int2"]
_ROUNDING = 0x72657374  # key of the rounding of rows at rest
_PIECE = 1 << 16  # rows that are packed at a time


@dataclass(frozen=True)
class Column:
    """One row for every vertex: this worker's, as they lie at rest and as they travel."""

    rows: Tensor  # [N, ...]
    kind: str  # class of its bytes on the wire


@dataclass
class Counts:
    """Rows that minibatches asked for, and where they came from."""

    requested: int = 0  # by each minibatch
    unique: int = 0  # by all minibatches of one fetch together
    remote: int = 0  # of the unique ones, fetched from other workers
    cached: int = 0  # of the unique ones, found among the hot rows of other workers
    loaded: int = 0  # own rows that were read, for oneself and for others, each once in a fetch

    def add(self, other: "Counts") -> None:
        self.requested += other.requested
        self.unique += other.unique
        self.remote += other.remote
        self.cached += other.cached
        self.loaded += other.loaded


@dataclass(frozen=True)
class BatchRows:
    """The rows of one minibatch's vertices, in its order."""

    store: "Store"
    fetched: dict[str, Tensor]  # by column, of other workers' vertices, of several minibatches each once
    places: Tensor  # int32, of each vertex: an own row, a hot row or a fetched one, numbered in this order

    def column(self, name: str) -> Tensor:
        """A column's rows, as they lie at rest."""
        store = self.store
        return gather_places(store.columns[name].rows, store.hot[name], self.fetched[name], self.places)


@dataclass(frozen=True)
class Fetched:
    """The rows of several minibatches' vertices."""

    store: "Store"
    rows: dict[str, Tensor]
    places: list[Tensor]  # by minibatch
    counts: Counts

    def batch(self, number: int) -> BatchRows:
        return BatchRows(self.store, self.rows, self.places[number])


@dataclass(frozen=True)
class Request:
    """Which vertices' rows go where in one fetch."""

    index: Tensor  # int64, own rows that others want, in the order of workers
    asked: list[int]  # how many of them each worker wants
    wanted: list[int]  # how many rows this worker wants of each
    order: Tensor  # int64, of the vertices that this worker wants, in the order in which their rows come
    back: Tensor  # int64, its inverse


class Store:
    """Columns of constant rows over all workers."""

    def __init__(self, comm: Communicator, book: PartitionBook, columns: dict[str, Column]) -> None:
        self._comm, self._book = comm, book
        self.columns = {name: Column(column.rows.contiguous(), column.kind) for name, column in columns.items()}
        self.num_hot = 0
        self.hot = {name: column.rows[:0] for name, column in self.columns.items()}
        # By vertex: the slot of another worker's row, negative where it has none; of own vertices, a stamp that says
        # in which fetch they were last wanted.
        self._table = torch.full((book.num_nodes,), -1, dtype=torch.int32)
        self._stamp = -1

    def row_bytes(self) -> int:
        """Bytes of a vertex over all columns."""
        shapes = ((column.rows.shape[1:], column.rows.element_size()) for column in self.columns.values())
        return sum(math.prod(shape) * size for shape, size in shapes)  # the same on workers without a vertex

    def keep_hot(self, nodes: Tensor) -> None:
        """Fetches these vertices' rows (none of them own, int32) once and for all."""
        assert self.num_hot == 0, "hot rows are chosen once"
        self.hot, _ = self._fetch(nodes)
        self.num_hot = nodes.numel()
        self._table[nodes.long()] = torch.arange(self.num_hot, dtype=torch.int32)

    def fetch(self, batches: Sequence[Tensor]) -> Fetched:
        """Rows of the vertices of several minibatches (int32); what they share travels once."""
        self._stamp -= 1
        places, wanted, slots, own = [], [], self.num_hot, 0
        for nodes in batches:
            new = memory.empty((nodes.numel(),), torch.int32)
            where, count, stamped = find_slots(self._table, nodes, self._book.own, slots, self._stamp, new)
            places.append(where)
            wanted.append(new[:count])
            slots += count
            own += stamped
        nodes = torch.cat(wanted) if len(wanted) > 1 else wanted[0]
        self._table[nodes.long()] = -1
        requested, hot = sum(where.numel() for where in places), self._count_hot(places)
        rows, served = self._fetch(nodes)
        counts = Counts(requested, own + hot + len(nodes), len(nodes), hot, own + served)
        return Fetched(self, rows, places, counts)

    def _count_hot(self, places: Sequence[Tensor]) -> int:
        """How many of the hot rows are among those that are wanted."""
        if self.num_hot == 0:
            return 0
        seen, first = torch.zeros(self.num_hot, dtype=torch.bool), len(self._book.own)
        for where in places:
            seen[where[(where >= first) & (where < first + self.num_hot)].long() - first] = True
        return int(seen.sum())

    def _fetch(self, nodes: Tensor) -> tuple[dict[str, Tensor], int]:
        """Columns of other workers' vertices; and how many own ones others wanted that were not wanted here."""
        if self._comm.num_workers == 1:
            return self._nothing(), 0
        owners = self._book.owners(nodes)
        order = torch.argsort(owners, stable=True)
        counts = torch.bincount(owners, minlength=self._comm.num_workers)
        asked = self._comm.all_gather(counts, "control", "numbers of rows")[:, self._comm.worker]
        mine, theirs = counts.tolist(), asked.tolist()
        wanted = all_to_all_v(self._comm, nodes[order], mine, theirs, "ids", "vertices whose rows are wanted")
        _, _, served = find_slots(self._table, wanted, self._book.own, 0, self._stamp, torch.empty_like(wanted))
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel())
        index = (wanted - self._book.own.start).long()
        return self._answer(Request(index, theirs, mine, order, back)), served

    def _nothing(self) -> dict[str, Tensor]:
        """Columns of no vertex."""
        return {name: column.rows[:0] for name, column in self.columns.items()}

    def _answer(self, request: "Request") -> dict[str, Tensor]:
        """Columns of the vertices that this worker wants; others get those that they want."""
        index, asked, wanted = request.index, request.asked, request.wanted
        posts = {
            name: AllToAllV(self._comm, gather(column.rows, index), asked, wanted, column.kind, f"rows of {name}")
            for name, column in self.columns.items()
        }
        return {name: gather(post.wait(), request.back) for name, post in posts.items()}


@dataclass(frozen=True)
class Features:
    """How input rows lie at rest and on the wire, and how they are read."""

    at_rest: AtRest
    width: int
    dtype: torch.dtype  # that they are trained in

    @property
    def bits(self) -> int | None:
        """Of a value where rows are integers; None where they are not."""
        return int(self.at_rest.removeprefix("int")) if self.at_rest.startswith("int") else None

    def stored(self, x: Tensor, ids: Tensor) -> Tensor:
        """Rows as they are kept."""
        if self.at_rest == "float32":
            return x if x.dtype in (torch.float32, torch.float64, torch.bfloat16) else x.float()
        if self.bits is None:
            return x.bfloat16()
        kept = torch.empty((len(x), packed_bytes(self.width, self.bits)), dtype=torch.uint8)
        for start in range(0, len(x), _PIECE):
            rows = x[start : start + _PIECE].float().contiguous()
            bits, offsets = self._layout(len(rows), self.bits)
            flat = kept[start : start + _PIECE].view(-1)
            bad = pack(rows, None, bits, offsets, ids[start : start + _PIECE], _ROUNDING, flat)
            if bad >= 0:
                raise UserError(
                    f"vertex {int(ids[start + bad])} has a feature that is not finite: clean the features, or keep "
                    "them as float32 (sample.features)"
                )
        return kept

    def read(self, rows: Tensor) -> Tensor:
        """Rows as they are trained on."""
        if self.bits is None:
            return rows.to(self.dtype)
        out = memory.empty((len(rows), self.width), torch.float32)
        unpack(rows.view(-1), *self._layout(len(rows), self.bits), out)
        return out.to(self.dtype)

    def _layout(self, rows: int, bits: int) -> tuple[Tensor, Tensor]:
        """Bits and offset of every row, all alike."""
        every = torch.full((rows,), bits, dtype=torch.uint8)
        return every, packed_offsets(self.width, every)[0]


@dataclass(frozen=True)
class PlainRows:
    """Input rows that are all of one width, as a store keeps them."""

    features: Features
    x: Tensor
    wants_ids: ClassVar[bool] = False  # whether ids of vertices are needed beside their rows

    def make_store(self, comm: Communicator, book: PartitionBook, columns: dict[str, Column], ids: Tensor) -> Store:
        """A store of input rows beside other columns; ids: global, of own vertices."""
        return Store(comm, book, {"x": Column(self.features.stored(self.x, ids), "features"), **columns})

    def read(self, rows: BatchRows) -> Tensor:
        """Of a minibatch's vertices."""
        return self.features.read(rows.column("x"))
