"""The fingerprint of a graph that lies in buckets, the same as `CSR.fingerprint` takes of one in memory."""

import hashlib

import numpy as np
import torch

from weft.comm import Communicator, broadcast_text
from weft.graph.csr import EDGE_DATA, fingerprint_of
from weft.graph.files import Array
from weft.out_of_core.budget import pieces
from weft.out_of_core.edgedata import Carried

PIECE_BYTES = 1 << 24


class Fingerprint:
    """Worker 0 hashes what all workers give in turn: rows in ascending order of vertices."""

    def __init__(self, comm: Communicator, num_nodes: int, carried: tuple[str, ...]) -> None:
        self.comm, self.num_nodes, self.carried = comm, num_nodes, carried
        self._digests = {name: hashlib.sha256() for name in ("indices", *carried)}

    def add(self, indices: Array, data: Carried) -> None:
        """One round's rows, this worker's among them; every worker calls it."""
        sizes = self.comm.all_gather(torch.tensor([indices.size]), "control", "sizes of rows").flatten().tolist()
        for peer, size in enumerate(sizes):
            for name, array in {"indices": indices, **data}.items():
                self._pass_on(self._digests[name], peer, array, size)

    def _pass_on(self, digest: "hashlib._Hash", peer: int, own: Array, size: int) -> None:
        """One worker's array of so many values, to worker 0 piece by piece."""
        me, nobody = self.comm.worker, [None] * self.comm.num_workers
        for begin, end in pieces(size, PIECE_BYTES // own.itemsize):
            if peer == me == 0:
                digest.update(own[begin:end].data)
            elif me == 0:
                piece = torch.from_numpy(np.empty(end - begin, own.dtype))
                incoming = [piece if worker == peer else None for worker in range(self.comm.num_workers)]
                self.comm.post(nobody, incoming, "topology", "rows for the fingerprint").wait()
                digest.update(piece.numpy().data)
            elif me == peer:
                outgoing = [torch.from_numpy(own[begin:end]), *nobody[1:]]
                self.comm.post(outgoing, nobody, "topology", "rows for the fingerprint").wait()

    def finish(self, degrees: Array) -> str:
        """degrees: int32 [N], of all vertices."""
        dtypes = {"indices": torch.int32} | {name: EDGE_DATA[name].dtype for name in self.carried}
        digests = {"indptr": (torch.int64, _offsets_digest(degrees))}
        digests |= {name: (dtypes[name], digest.digest()) for name, digest in self._digests.items()}
        return broadcast_text(self.comm, fingerprint_of(self.num_nodes, digests), "the fingerprint")


def _offsets_digest(degrees: Array) -> bytes:
    """Of indptr, int64 [N + 1], without having it as a whole."""
    digest, edges = hashlib.sha256(np.zeros(1, np.int64).data), 0
    for begin, end in pieces(degrees.size, PIECE_BYTES // 8):
        offsets = edges + np.cumsum(degrees[begin:end], dtype=np.int64)
        digest.update(offsets.data)
        edges = int(offsets[-1])
    return digest.digest()
