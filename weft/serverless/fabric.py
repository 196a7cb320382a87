"""Messages between graph servers that nobody waits for: rows, gradients and weights go when they are there.

Addresses and the key that seals messages are told over the run's communicator, once. One thread receives; everything
that comes is put where the server looks.
"""

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import zmq

from weft.comm import Communicator
from weft_function.wire import Message, Refused, Seal, new_key

_ADDRESS_BYTES = 64


class Fabric:
    """One server's hold on the others."""

    def __init__(self, comm: Communicator, heard: Callable[[Message], None]) -> None:
        self._comm, self._heard = comm, heard
        self.refused = 0
        self._peers: dict[int, zmq.Socket[bytes]] = {}
        self._thread: threading.Thread | None = None
        if comm.num_workers == 1:
            return
        key = torch.frombuffer(bytearray(new_key()), dtype=torch.uint8)
        key = comm.broadcast(key, 0, "control", "key of messages between servers")
        self._key = bytes(key.tolist())
        self._seal, self._opens = Seal(self._key), Seal(self._key)
        self._context = zmq.Context()
        self._ear = self._context.socket(zmq.PULL)
        self._ear.setsockopt(zmq.RCVHWM, 0)
        self._ear.bind(f"tcp://{own_address()}:*")
        address = self._ear.getsockopt_string(zmq.LAST_ENDPOINT).encode().ljust(_ADDRESS_BYTES)
        known = comm.all_gather(torch.frombuffer(bytearray(address), dtype=torch.uint8), "control", "addresses")
        for server, text in enumerate(known.tolist()):
            if server != comm.worker:
                peer = self._context.socket(zmq.PUSH)
                peer.setsockopt(zmq.SNDHWM, 0)
                peer.setsockopt(zmq.LINGER, 0)
                peer.connect(bytes(text).decode().strip())
                self._peers[server] = peer
        self._thread = threading.Thread(target=self._listen, name="fabric", daemon=True)
        self._thread.start()

    def tell(self, server: int, fields: dict[str, Any], tensors: dict[str, np.ndarray], kind: str) -> None:
        """Sends to another server; `kind` is the class that the bytes are counted in."""
        self._comm.sent[kind] += sum(tensor.nbytes for tensor in tensors.values())
        self._peers[server].send_multipart(self._seal.close(Message("rows", fields, tensors)), copy=False)

    def close(self) -> None:
        if self._thread is None:
            return
        end = self._context.socket(zmq.PUSH)
        end.connect(self._ear.getsockopt_string(zmq.LAST_ENDPOINT))
        end.send_multipart(Seal(self._key).close(Message("stop")))
        self._thread.join(10)
        end.close(0)
        for peer in self._peers.values():
            peer.close()
        self._ear.close(0)
        self._context.term()

    def _listen(self) -> None:
        while True:
            frames = self._ear.recv_multipart(copy=False)
            try:
                message = self._opens.open([frame.buffer for frame in frames])
            except Refused:
                self.refused += 1
                continue
            if message.kind == "stop":
                return
            self._heard(message)


def own_address() -> str:
    """The address under which other servers of the run reach this one: that of the way to the first of them."""
    first = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((first, 9))  # nothing is sent
        return str(probe.getsockname()[0])
