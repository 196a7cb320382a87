"""The partition book: which worker keeps which vertex, and in which of its rows.

Every vertex has a position: all of worker 0's rows come first, then all of worker 1's, and so on. Owner and row
follow from that number alone. Draws are keyed by global ids instead, so that they do not depend on the partition.
"""

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.errors import UserError
from weft.partitioning import Shard

MOST_VERTICES = 2**31


class PartitionBook:
    """Where every vertex is kept: worker q's rows are the positions from starts[q] on."""

    def __init__(self, shard: Shard, comm: Communicator) -> None:
        """All workers make it together."""
        if shard.num_global_nodes >= MOST_VERTICES:
            raise UserError(
                f"{shard.graph_name} has {shard.num_global_nodes} vertices: mini-batch plans number them with 31 bits"
            )
        sizes = comm.all_gather(torch.tensor([shard.num_nodes]), "control", "rows of every worker").flatten()
        self.starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(sizes, 0)])
        self.own = range(int(self.starts[comm.worker]), int(self.starts[comm.worker + 1]))
        self.num_nodes = int(self.starts[-1])
        self._ids, self._comm = shard.global_ids, comm
        self._by_id: Tensor | None = None  # int32 [N], made at the first call of `positions`

    def positions(self, ids: Tensor) -> Tensor:
        """Of vertices given by global id, int32. All workers make the first call together."""
        if self._by_id is None:
            longest = int(self.starts.diff().max())
            padded = torch.full((longest,), -1, dtype=torch.int64)
            padded[: self._ids.numel()] = self._ids
            everyone = self._comm.all_gather(padded, "control", "ids of all vertices").flatten()
            self._by_id = torch.empty(self.num_nodes, dtype=torch.int32)
            self._by_id[everyone[everyone >= 0]] = torch.arange(self.num_nodes, dtype=torch.int32)
        return self._by_id[ids]

    def owners(self, positions: Tensor) -> Tensor:
        """The worker of each vertex."""
        return torch.searchsorted(self.starts[1:].to(positions.dtype), positions, right=True)

    def own_positions(self) -> Tensor:
        """Of this worker's rows, int32 [N]."""
        return torch.arange(self.own.start, self.own.stop, dtype=torch.int32)

    def halo_positions(self, shard: Shard) -> Tensor:
        """Of the vertices of a shard's halo, int32 [H]."""
        owners = torch.repeat_interleave(torch.arange(shard.num_workers), torch.tensor(shard.halo_counts))
        return (self.starts[owners] + shard.halo_rows).int()
