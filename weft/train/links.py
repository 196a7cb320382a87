"""Which edges exist, as what a run learns: edges held out, minibatches of the others, and ROC AUC of pairs."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.comm import Communicator
from weft.errors import UserError
from weft.kernels.reference import splitmix64
from weft.partition import Shard
from weft.partition.shard import filter_csr, row_numbers
from weft.sample import Links, SampleConfig, Standing, Store
from weft.sample.seeds import edge_key
from weft.sample.store import Column
from weft.train.evaluate import from_scores, predict
from weft.train.minibatches import MakeMinibatches
from weft.train.settings import LinkConfig
from weft.train.steps import LinkPasses, Steps

_HELD_OUT = 0x68656C64  # tells the draw of held-out edges from others


class Edges:
    """Which pairs of vertices are edges: scores are products of the rows that the model gives them."""

    metric = "roc_auc"

    def __init__(
        self,
        view: GraphView,
        model: nn.Module,
        x: Tensor,
        held: "HeldOut",
        config: LinkConfig,
        minibatches: MakeMinibatches | None,
        sample: SampleConfig,
        seed: int,
    ) -> None:
        self._view, self._model, self._x, self._held = view, model, x, held
        self._config, self._seed = config, seed
        self.has_validation = config.val > 0
        self._standing = Standing(view.shard, view.comm)
        if minibatches is None:
            return

        def source(standing: Standing, comm: Communicator) -> Links:
            ends = Ends.of(view.shard, standing)
            return ends.links(standing, sample.batch, config.negatives, seed, comm)

        self.steps: Steps = LinkPasses(view, model, minibatches(x, source))

    def judge(self) -> tuple[dict[str, float], float | None]:
        rows = self.outputs().float()
        store = Store(self._view.comm, self._standing, {"rows": Column(rows, "hidden_forward")})
        values = {}
        for split, ends in (("val", self._held.val), ("test", self._held.test)):
            links = ends.links(self._standing, max(1, ends.count), 1, self._seed, self._view.comm)
            pairs = [links.pairs(0, step) for step in range(links.steps)]
            heads, tails, exist = (torch.cat(column) for column in zip(*pairs, strict=True))
            fetched = store.fetch([heads])
            scores = (fetched.of(0, "rows") * rows[tails.long() - self._standing.own.start]).sum(1, keepdim=True)
            values[split] = from_scores(scores, exist.long(), self._view)
        return {split: value for split, value in values.items() if not math.isnan(value)}, None

    def outputs(self) -> Tensor:
        return predict(self._model, self._view, self._x)


class Ends:
    """The two ends of some in-edges of own vertices: where they stand, and their global ids."""

    def __init__(self, heads: Tensor, tails: Tensor, head_ids: Tensor, tail_ids: Tensor) -> None:
        self.heads, self.tails, self.head_ids, self.tail_ids = heads, tails, head_ids, tail_ids
        self.count = heads.numel()

    @staticmethod
    def of(shard: Shard, standing: Standing) -> "Ends":
        """Those of all of a shard's edges."""
        own = torch.arange(standing.own.start, standing.own.stop, dtype=torch.int32)
        heads, tails, head_ids, tail_ids = [], [], [], []
        for csr, where, ids in (
            (shard.local, own, shard.global_ids),
            (shard.remote, standing.of_halo(shard), shard.halo_ids),
        ):
            rows, columns = row_numbers(csr.indptr), csr.indices.long()
            heads.append(where[columns])
            tails.append(own[rows])
            head_ids.append(ids[columns])
            tail_ids.append(shard.global_ids[rows])
        return Ends(torch.cat(heads), torch.cat(tails), torch.cat(head_ids), torch.cat(tail_ids))

    def pick(self, which: Tensor) -> "Ends":
        return Ends(self.heads[which], self.tails[which], self.head_ids[which], self.tail_ids[which])

    def links(self, standing: Standing, batch: int, negatives: int, seed: int, comm: Communicator) -> Links:
        return Links(self.heads, self.tails, self.head_ids, self.tail_ids, standing, batch, negatives, seed, comm)


class HeldOut:
    """Edges that training does not see, chosen by a hash of their ends: both directions go together."""

    def __init__(self, shard: Shard, comm: Communicator, config: LinkConfig, seed: int) -> None:
        if config.val + config.test >= 1.0:
            raise UserError(f"link.val {config.val} and link.test {config.test} leave no edge to train on")
        ends = Ends.of(shard, Standing(shard, comm))
        low = torch.minimum(ends.head_ids, ends.tail_ids)
        high = torch.maximum(ends.head_ids, ends.tail_ids)
        draw = ((splitmix64(edge_key(low, high) ^ (seed ^ _HELD_OUT)) >> 11) & ((1 << 53) - 1)).double() / (1 << 53)
        self.val, self.test = ends.pick(draw < config.val), ends.pick(draw >= 1.0 - config.test)
        keep = (draw >= config.val) & (draw < 1.0 - config.test)
        count = comm.all_reduce(keep.sum().view(1), "control", "edges to train on")
        if not int(count):
            raise UserError(f"{shard.graph_name} has no edge left to train on: hold out fewer (link.val, link.test)")
        self.keep_local, self.keep_remote = keep[: shard.local.num_edges], keep[shard.local.num_edges :]

    def without(self, shard: Shard) -> Shard:
        """The shard with the edges that training may see."""
        return replace(
            shard,
            local=filter_csr(shard.local, self.keep_local),
            remote=filter_csr(shard.remote, self.keep_remote),
        )
