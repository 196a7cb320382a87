"""All-to-all of variable size: every worker sends some rows to every other, each its own number of them."""

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.kernels import memory


class AllToAllV:
    """Rows on their way. Rows are cut into runs, one for each worker: `send_counts[q]` of them go to worker q, and
    `recv_counts[q]` come from it."""

    def __init__(
        self, comm: Communicator, rows: Tensor, send_counts: list[int], recv_counts: list[int], kind: str, what: str
    ) -> None:
        """`kind` is the class that its bytes are counted in, `what` names the rows in errors."""
        outgoing: list[Tensor | None] = list(torch.split(rows.contiguous(), send_counts))
        self._received = memory.empty((sum(recv_counts), *rows.shape[1:]), rows.dtype)
        incoming: list[Tensor | None] = list(torch.split(self._received, recv_counts))
        own, place = outgoing[comm.worker], incoming[comm.worker]
        assert own is not None and place is not None
        place.copy_(own)
        outgoing[comm.worker] = incoming[comm.worker] = None
        self._pending = comm.post(outgoing, incoming, kind, what)

    def wait(self) -> Tensor:
        """The rows that were received, in the order of workers; this worker's own are among them."""
        self._pending.wait()
        return self._received


def all_to_all_v(
    comm: Communicator, rows: Tensor, send_counts: list[int], recv_counts: list[int], kind: str, what: str
) -> Tensor:
    """The same, waited for at once."""
    return AllToAllV(comm, rows, send_counts, recv_counts, kind, what).wait()
