"""Messages that have been started and may still be travelling."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

Wait = Callable[[Any, str, int | None], None]
"""Blocks until a transfer is complete: torch's work, what is being done, and the peer, both named in errors."""


class PendingMessages:
    """Messages to and from peers. Their tensors belong to the network until `wait` returns."""

    def __init__(self, wait: Wait, what: str) -> None:
        self.what = what
        self.receives: dict[int, list[Any]] = {}  # torch's works, by peer
        self.sends: dict[int, list[Any]] = {}
        self.staged: dict[int, tuple[Tensor, Tensor]] = {}  # by peer: where it arrives on the host, and its destination
        self.kept: list[Tensor] = []  # tensors must outlive the transfer even where the caller drops them
        self._wait = wait

    def wait_for(self, peer: int) -> None:
        """Until the message from one peer is here; later calls for the same peer return at once."""
        for work in self.receives.pop(peer, ()):
            self._wait(work, f"receiving {self.what}", peer)
        if peer in self.staged:
            host, destination = self.staged.pop(peer)
            destination.copy_(host)

    def wait(self) -> None:
        """Until every message has arrived and every outgoing tensor may be written to again."""
        for peer in list(self.receives):
            self.wait_for(peer)
        for peer, works in self.sends.items():
            for work in works:
                self._wait(work, f"sending {self.what}", peer)
        self.sends.clear()
        self.kept.clear()
