"""Who owns which vertex: by a hash of its id, by ranges of ids, or by streaming past all vertices.

A method gets a SpilledGraph on every worker, and answers on every worker with the owner of all vertices.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from weft.comm import Communicator
from weft.graph.files import Array
from weft.graph.progress import progress
from weft.out_of_core.buckets import Buckets
from weft.out_of_core.budget import pieces
from weft.out_of_core.draws import hashed
from weft.out_of_core.native import native
from weft.out_of_core.spill import Rows, Spill
from weft.out_of_core.vertexfiles import VertexFile
from weft.partitioning.methods import limits
from weft.partitioning.partitioners import Assignment, Balance, Request, Requires, register_partitioner

PIECE_ROWS = 1 << 20
# How often workers tell each other what they have assigned: at least so many times in a pass, and after so many
# vertices at the latest.
LEAST_TALKS = 128
MOST_SILENT_ROWS = 1 << 14


@dataclass(frozen=True)
class SpilledGraph:
    """A graph whose edges lie in buckets on the workers' disks, sorted by destination, as partition methods see it."""

    comm: Communicator
    buckets: Buckets
    degrees: Array  # int32 [N] in-degrees of all vertices
    spill: Spill  # read_rows(k): the in-edges of this worker's bucket of round k
    train: VertexFile | None  # which vertices train
    passes: int  # over the vertices, for a method that makes several


def hash_owners(num_nodes: int, parts: int, seed: int) -> Array:
    owner = np.empty(num_nodes, np.int16)
    for begin, end in pieces(num_nodes, PIECE_ROWS):
        owner[begin:end] = hashed(np.arange(begin, end), seed) % np.uint64(parts)
    return owner


def range_owners(degrees: Array, parts: int) -> Array:
    """Contiguous ids, of which every part has about as many vertices and in-edges together."""
    total = int(degrees.sum(dtype=np.int64)) + degrees.size
    owner, before = np.empty(degrees.size, np.int16), 0
    for begin, end in pieces(degrees.size, PIECE_ROWS):
        upto = before + np.cumsum(degrees[begin:end].astype(np.int64) + 1)
        owner[begin:end] = (upto - 1) * parts // total
        before = int(upto[-1])
    return owner


class Stream:
    """Vertices pass by in buckets, W at a time, and each joins the part that has most of its in-neighbours so far, less
    a price for size, where there is room (Fennel). Later passes let vertices move to where their neighbours are now.

    Between two talks a worker assigns without knowing what others do. It counts what it places W times, as though all
    did the same: so nobody fills a part that others are filling too.
    """

    def __init__(
        self,
        comm: Communicator,
        buckets: Buckets,
        num_edges: int,
        parts: int,
        train: VertexFile | None,
        balance: Balance,
    ) -> None:
        self.comm, self.buckets, self.train = comm, buckets, train
        num_nodes = buckets.num_nodes
        num_train = 0 if train is None else sum(int(rows.sum()) for _, rows in train.in_pieces())
        self.limit = limits((num_nodes, num_edges, num_train), parts, balance)
        self.filled = np.zeros((parts, self.limit.size))  # vertices, in-edges, training vertices
        self.owner = np.full(num_nodes, -1, np.int16)
        self.price = 1.5 * math.sqrt(parts) * (num_edges / 2) / num_nodes**1.5
        self.per_part = num_nodes / parts
        self.silent_rows = min(MOST_SILENT_ROWS, max(16, num_nodes // (LEAST_TALKS * comm.num_workers)))

    def pass_by(self, round_number: int, rows: Rows) -> None:
        """One round: this worker's bucket and, at the same time, the others' theirs."""
        workers = range(self.comm.num_workers)
        spans = [self.buckets.span(round_number, worker) for worker in workers]
        talks = -(-max(len(span) for span in spans) // self.silent_rows)
        for talk in range(talks):
            shares = [_share(span, talk, talks) for span in spans]
            held = self._assign(shares[self.comm.worker], spans[self.comm.worker].start, rows)
            self._tell(shares, held)

    def _assign(self, vertices: range, bucket_start: int, rows: Rows) -> Array:
        """What parts hold when these vertices are assigned, all counted W times, float64 [parts, 3]."""
        indptr = rows.indptr[vertices.start - bucket_start : vertices.stop - bucket_start + 1]
        load = np.ones((len(vertices), 3))
        load[:, 1] = np.diff(indptr)
        load[:, 2] = 0 if self.train is None else self.train.read(vertices.start, vertices.stop)
        held = self.filled.copy()
        native().stream_rows(
            *(indptr, rows.indices, vertices.start, self.owner, load * self.comm.num_workers, self.limit, held),
            *(self.price, self.per_part),
        )
        return held

    def _tell(self, shares: list[range], held: Array) -> None:
        """Everybody's owners and changes of loads, at everybody: in one message, since talking is what takes time."""
        change = (held - self.filled).reshape(-1) / self.comm.num_workers
        words = change.view(np.int16).size
        message = np.zeros(words + max(map(len, shares)), np.int16)
        mine = shares[self.comm.worker]
        message[:words] = change.view(np.int16)
        message[words : words + len(mine)] = self.owner[mine.start : mine.stop]
        heard = self.comm.all_gather(torch.from_numpy(message), "control", "owners and loads").numpy()
        for told, share in zip(heard, shares, strict=True):
            self.filled += told[:words].view(np.float64).reshape(self.filled.shape)
            self.owner[share.start : share.stop] = told[words : words + len(share)]


def stream_owners(stream: Stream, spill: Spill, passes: int) -> Array:
    rounds = stream.buckets.num_rounds
    with progress("assigning vertices to parts", passes * rounds) as advance:
        for _ in range(passes):
            for number in range(rounds):
                stream.pass_by(number, spill.read_rows(number, carried=()))
                advance(1)
    return stream.owner


def _share(span: range, part: int, of: int) -> range:
    return range(span.start + len(span) * part // of, span.start + len(span) * (part + 1) // of)


def _hash(graph: SpilledGraph, request: Request) -> Array:
    return hash_owners(graph.degrees.size, request.parts, request.seed)


def _range(graph: SpilledGraph, request: Request) -> Array:
    return range_owners(graph.degrees, request.parts)


def _stream(graph: SpilledGraph, request: Request) -> Array:
    num_edges = int(graph.degrees.sum(dtype=np.int64))
    stream = Stream(graph.comm, graph.buckets, num_edges, request.parts, graph.train, request.balance)
    return stream_owners(stream, graph.spill, graph.passes)


def _register(
    name: str, owners: Callable[[SpilledGraph, Request], Array], about: str, native: bool = False, preference: int = 0
) -> None:
    def assign(graph: SpilledGraph, request: Request) -> Assignment:
        return Assignment(torch.from_numpy(owners(graph, request)))

    register_partitioner(name, assign, about, Requires(native=native, whole_graph=False), preference)


_register("stream", _stream, "vertices join their neighbours", native=True, preference=1)
_register("range", _range, "of ids, even in edges")
_register("hash", _hash, "of ids")
