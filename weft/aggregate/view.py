"""What a layer sees of the graph: rows of vertices, and verbs that reach across workers.

A layer written against `GraphView` does not know how many workers there are, which schedule runs or how rows look
on the wire: `aggregate`, `attend` and `message` are differentiable and mean the same under each of them.
`weft.aggregate.distributed.DistributedGraph`, which the training loop holds, makes the views.
"""

from typing import Literal

import torch
from torch import Tensor

from weft.aggregate.blocks import Block
from weft.aggregate.constant import Nonzeros
from weft.aggregate.driver import PassDriver, first_rows
from weft.aggregate.elementwise import Dropout, EluDropout, ReluDropout
from weft.aggregate.messages import MessageFn, MessageReduce, Messages, inspect
from weft.aggregate.noise import Noise
from weft.aggregate.reducers import DOT, GAT, GATV2, AttentionDropout, Softmax
from weft.aggregate.topology import By, Reduce, Weight
from weft.comm import Communicator
from weft.errors import UserError
from weft.partitioning import Shard


class GraphView:
    """The rows that one layer reads, the rows that come out of it, and the edges between them.

    >>> class Mean(torch.nn.Linear):
    ...     def forward(self, graph: weft.GraphView, x: torch.Tensor) -> torch.Tensor:  # x: [graph.num_rows, D]
    ...         return super().forward(graph.aggregate(x, "mean"))                      # [graph.num_out, D']
    >>> graph = weft.open_part("synthetic:tiny")
    >>> with graph.training_pass(epoch=1) as view:
    ...     tuple(Mean(16, 4)(view, graph.shard.x).shape)
    (300, 4)

    The rows are the vertices that this worker owns: all of them, or the level of a restricted or sampled pass that
    belongs to the layer. The first `num_out` rows that go in are the vertices whose rows come out.
    """

    def __init__(self, driver: PassDriver) -> None:
        self.driver = driver  # what training and normalisation work with, and layers do without

    # -- facts -------------------------------------------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        """Rows of x."""
        return self.driver.num_rows

    @property
    def num_out(self) -> int:
        """Rows of an aggregate: as many as x has, but for the levels of a restricted or sampled pass."""
        return self.driver.num_out

    @property
    def num_edges(self) -> int:
        """Edges from rows that are here."""
        return sum(block.csr.num_edges for block in self.driver.topology.plain.own)

    @property
    def num_relations(self) -> int:
        """How many kinds of edges the graph has; 0: it does not tell edges apart."""
        return self.shard.num_relations

    @property
    def global_ids(self) -> Tensor:
        """Of the rows of x, int64 [num_rows]."""
        return self.driver.topology.ids

    @property
    def row_types(self) -> Tensor:
        """The type of the vertex of each row of x, int64 [num_rows]."""
        return self.driver.row_types

    @property
    def rows_by_type(self) -> tuple[Tensor, ...]:
        """For each type of vertices the rows of x that are theirs, int64, ascending."""
        return self.driver.rows_by_type

    @property
    def in_degrees(self) -> Tensor:
        """Number of in-edges of each row that comes out, over the whole graph, int64 [num_out]."""
        return self.driver.topology.in_degrees

    @property
    def shard(self) -> Shard:
        """The part of the graph that this worker owns."""
        return self.driver.topology.shard

    @property
    def comm(self) -> Communicator:
        return self.driver.shared.comm

    @property
    def noise(self) -> Noise:
        """What random numbers of this pass are drawn from."""
        return self.driver.shared.noise

    @property
    def exchanges(self) -> bool:
        """Whether rows of other workers come for an aggregate."""
        return bool(self.driver.topology.rounds)

    @property
    def of_minibatch(self) -> bool:
        """Whether the rows are those of a minibatch."""
        return self.driver.topology.of_minibatch

    def is_constant(self, x: Tensor) -> bool:
        """Whether x is known never to change, so that an aggregate of it costs nothing after the first epoch."""
        constant = self.driver.constant
        return constant is not None and x is constant.rows

    def nonzeros(self, x: Tensor) -> Nonzeros | None:
        """Of input that never changes and of its aggregates, the non-zeros for products, where few are none."""
        constant = self.driver.constant
        return None if constant is None else constant.nonzeros(x)

    def own(self, x: Tensor) -> Tensor:
        """The rows of x that an aggregate has too: its first ones."""
        return first_rows(x, self.num_out)

    # -- for models of several layers --------------------------------------------------------------------------

    def level(self, depth: int) -> "GraphView":
        """What layer `depth` of a stack works on; it takes the rows that `enter` gives."""
        return self._of(self.driver.level(depth))

    def enter(self, x: Tensor) -> Tensor:
        """The rows that this level reads, of those that the layer before gave (the first layer: of the input)."""
        return self.driver.enter(x)

    def squared(self) -> "GraphView":
        """This level with as many rows coming out as going in, for layers that rely on it."""
        return self._of(self.driver.squared())

    def _of(self, driver: PassDriver) -> "GraphView":
        return self if driver is self.driver else GraphView(driver)

    # -- verbs -------------------------------------------------------------------------------------------------

    def aggregate(
        self, x: Tensor, reduce: Reduce = "sum", weight: Weight = None, into: Tensor | None = None, by: By = None
    ) -> Tensor:
        """Folds the in-neighbours' rows of x [N, D] into one row per owned vertex.

        `weight`: None, "edge" (the graph's weights; the mean then divides by their sum), "symmetric"
        (D^-1/2 (A + I) D^-1/2, as GCN wants it), or a constant tensor with one entry per edge of this shard, local
        edges first. With `into` (sum and mean only) the result is added there, in place. With by="relation" there is
        one aggregate for each of the graph's R relations, side by side: [N, R*D].
        """
        known = self.driver.aggregate_of_constant(x, reduce, weight, by) if into is None else None
        if known is not None:
            return known
        return self.driver.run(*self.driver.fold(x, reduce, weight, into, by), by)

    def attend(
        self, values: Tensor, source: Tensor, target: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """Attention of GAT over in-edges and one self-loop: softmax of leaky_relu(target_i + source_j), [N, H*D].

        values [N, H*D]; source, target [N, H] are each vertex's logit terms; of target, own rows only.
        """
        reducer = Softmax(GAT, source.shape[1], slope, self.attention_dropout(dropout))
        return self.driver.attend(reducer, (target,), (values, source))

    def attend_dynamic(
        self, query: Tensor, key: Tensor, att: Tensor, slope: float = 0.2, dropout: float = 0.0
    ) -> Tensor:
        """Attention of GATv2: softmax of att . leaky_relu(query_i + key_j) [H, D], values are the keys [N, H*D]."""
        reducer = Softmax(GATV2, att.shape[0], slope, self.attention_dropout(dropout))
        return self.driver.attend(reducer, (query, att), (key,))

    def attend_dot(
        self, query: Tensor, key: Tensor, values: Tensor, heads: int, dropout: float = 0.0, scale: float | None = None
    ) -> Tensor:
        """Attention of a transformer over in-edges alone: softmax of scale * query_i . key_j per head, [N, H*Dv].

        query, key [N, H*D]; values [N, H*Dv]. The scale is 1 / sqrt(D) unless given.
        """
        if heads < 1 or query.shape[1] % heads or values.shape[1] % heads:
            given = f"query has {query.shape[1]} columns and values {values.shape[1]}"
            raise UserError(f"{given}: they do not split into {heads} equal heads")
        scale = (query.shape[1] // heads) ** -0.5 if scale is None else scale
        reducer = Softmax(DOT, heads, scale, self.attention_dropout(dropout))
        return self.driver.attend(reducer, (query,), (key, values), loops=False)

    def message(
        self,
        fn: MessageFn,
        x: Tensor,
        reduce: MessageReduce = "sum",
        own: Tensor | None = None,
        loops: bool = False,
    ) -> Tensor:
        """Any differentiable message: fn sees both ends' rows of every edge and returns [E, ...] to be reduced.

        With "softmax" it returns logits [E, H] and values [E, H*D], and each head's values are averaged by the
        softmax of their logits over a vertex's in-edges. fn works row by row and may use any tensors that train.
        `own` [num_out, D'] are the rows that it sees of destinations, instead of those of x: they stay at home. With
        `loops` (of a softmax only) every vertex has one edge from itself, which carries the mean of what its other
        in-edges carry.
        """
        if reduce not in ("sum", "mean", "max", "softmax"):
            raise UserError(f"message(reduce={reduce!r}) is not known: choose sum, mean, max or softmax")
        if loops and reduce != "softmax":
            raise UserError(f"message(loops=True) is for a softmax: with {reduce}, add the vertex' own row yourself")
        edges = self.driver.topology.mean_looped(x.dtype) if loops else self.driver.topology.plain
        own = self.own(x) if own is None else own
        signature = inspect(fn, x, own, edges.own[0], reduce)
        stands_for = self.driver.topology.message_scale
        reducer = Messages(fn, reduce, signature, stands_for)
        src = (x,) if signature.reads_src else ()
        out = self.driver.run(reducer, edges, (own, *signature.captured), src)
        scale = stands_for.sum_scale if reduce == "sum" else None
        if scale is not None:
            out = out * scale.to(out.dtype)[:, None]
        return out.view(-1, *signature.shapes[-1])

    def aggregate_edges(self, reduce: Reduce, weight: Weight, dtype: torch.dtype) -> Tensor:
        """Folds the features of each vertex' in-edges by sum or mean into one row, [num_out, F], as `aggregate` does.

        They never change, so that over the whole graph it is computed once. `dtype`: of the rows that it stands beside.
        """
        return self.driver.aggregate_edges(reduce, weight, dtype)

    def gathered(self, x: Tensor) -> Tensor:
        """All rows that this level's edges read in one place, own ones first; of constant rows they are kept."""
        return self.driver.gathered(x)

    def joined(self, dtype: torch.dtype, weight: Literal["symmetric"] | None = None) -> Block:
        """This level's edges as one block between the rows that are gathered, with all that they carry.

        With weight="symmetric" they have GCN's coefficients, and every vertex a loop, as in `aggregate`.
        """
        return self.driver.joined(dtype, weight)

    # -- noise and elementwise work, the same for any placement -------------------------------------------------

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Drops entries by a hash of (seed, epoch, call, global id, column); identity outside training."""
        key = self.noise.next_key()
        if key is None or p == 0.0:
            return x
        out: Tensor = Dropout.apply(x, self._ids_of(x), p, key)  # type: ignore[no-untyped-call]
        return out

    def relu_dropout_(self, x: Tensor, bias: Tensor | None, p: float) -> Tensor:
        """relu(x + bias), then dropout, in one pass and in place."""
        key = self.noise.next_key()
        p = 0.0 if key is None else p
        out: Tensor = ReluDropout.apply(x, bias, self._ids_of(x), p, key or 0)  # type: ignore[no-untyped-call]
        return out

    def elu_dropout(self, x: Tensor, bias: Tensor | None, p: float) -> Tensor:
        """elu(x + bias), then dropout; x stays as it is, for those that still need it."""
        key = self.noise.next_key()
        p = 0.0 if key is None else p
        out: Tensor = EluDropout.apply(x, bias, self._ids_of(x), p, key or 0)  # type: ignore[no-untyped-call]
        return out

    def attention_dropout(self, p: float) -> AttentionDropout | None:
        """What drops attention coefficients in this pass; None: nothing does."""
        key = self.noise.next_key()
        return None if key is None or p == 0.0 else AttentionDropout(p, key)

    def _ids_of(self, x: Tensor) -> Tensor:
        return self.global_ids[: x.shape[0]]
