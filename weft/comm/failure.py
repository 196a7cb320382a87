"""Finding out who is lost: every survivor of a failure leaves a note in the store, and who leaves none is lost."""

import re
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

NEVER_SENT_TAG = (1 << 24) + 1  # above every tag that the communicator uses


def patience_seconds(deadline_seconds: float) -> float:
    """How long survivors wait for each other's notes before they name who is lost."""
    return min(2.0, deadline_seconds / 4)


class Reports:
    """A note per worker that failed alive. A dead, stopped or cut-off worker leaves none."""

    def __init__(self, store: Any, worker: int, num_workers: int) -> None:
        # A connection of its own: the main one may be busy in a call that never returns.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._worker = worker
        self._num_workers = num_workers

    def missing(self, operation: str, deadline_seconds: float, peer: int | None) -> list[int]:
        """Reports this worker's failure; the workers that have not reported theirs, or else the likeliest ones.

        `peer` is whom the operation waited for, where it waited for one.
        """
        found: list[list[int]] = []
        # In a thread of its own: a store whose host was cut off may never answer, whatever its timeout says.
        patience = patience_seconds(deadline_seconds)
        asking = threading.Thread(target=self._ask, args=(operation, patience, found), daemon=True)
        asking.start()
        asking.join(patience + 1.0)
        if found and found[-1]:
            return found[-1]
        if peer is not None:
            return [peer]
        # The store does not answer: it lies on worker 0's host. (Or all are here, and nobody knows.)
        others = [q for q in range(self._num_workers) if q != self._worker]
        return others[:1] if not found or len(others) == 1 else []

    def _ask(self, operation: str, patience: float, found: list[list[int]]) -> None:
        with suppress(RuntimeError):
            self._store.set_timeout(timedelta(seconds=1))
            self._store.set(f"weft/failed/{self._worker}", operation)
            _break_connections(self._worker, self._num_workers)
            others = [q for q in range(self._num_workers) if q != self._worker]
            until = time.monotonic() + patience
            while True:
                absent = [q for q in others if not self._store.check([f"weft/failed/{q}"])]
                if not absent or time.monotonic() > until:
                    break
                time.sleep(0.05)
            found.append(absent)


def _break_connections(worker: int, num_workers: int) -> None:
    """Makes peers that wait for this worker fail too, so that they report at once and are not taken for lost."""
    with suppress(RuntimeError, ValueError):
        if dist.get_backend() != "gloo":
            dist.distributed_c10d._get_default_group().abort()
            return
    # Gloo has no abort, but a receive that times out closes every connection of the process; from whom does not
    # matter, except that receiving from the lost worker fails at once and closes nothing.
    for peer in range(num_workers):
        if peer != worker:
            with suppress(RuntimeError, ValueError):
                never = dist.irecv(torch.empty(1, dtype=torch.uint8), peer, tag=NEVER_SENT_TAG)
                if never is not None:
                    never.wait(timedelta(milliseconds=1))


def first_sentence(text: str) -> str:
    """What a message of torch says, without source lines and advice."""
    lines = text.strip().splitlines()
    if not lines:
        return "no reason given"
    # Gloo begins with a source line and ends with advice.
    text = re.sub(r"^\[\S*\]\s*", "", lines[0].strip()).split(". This is typically", 1)[0]
    return text.rstrip(".!")
