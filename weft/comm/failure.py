"""Who is missing when something fails: every survivor says so in the store, and whoever does not is the one lost."""

import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

# How long survivors wait for each other's word before they name who is missing.
PATIENCE_SECONDS = 3.0


class Reports:
    """A note per worker that failed alive. A dead, stopped or cut-off worker leaves none."""

    def __init__(self, store: Any, worker: int, num_workers: int) -> None:
        # A connection of its own: the main one may be busy in a call that never returns.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._worker = worker
        self._num_workers = num_workers

    def missing(self, operation: str) -> list[int]:
        """Reports this worker's failure; the workers that have not reported theirs; [] when all have or none can."""
        found: list[list[int]] = []
        # In a thread of its own: a store whose host was cut off may never answer, whatever its timeout says.
        asking = threading.Thread(target=self._ask, args=(operation, found), daemon=True)
        asking.start()
        asking.join(PATIENCE_SECONDS + 2.0)
        return found[-1] if found else []

    def _ask(self, operation: str, found: list[list[int]]) -> None:
        with suppress(RuntimeError):
            self._store.set_timeout(timedelta(seconds=1))
            self._store.set(f"weft/failed/{self._worker}", operation)
            _break_connections()
            others = [q for q in range(self._num_workers) if q != self._worker]
            until = time.monotonic() + PATIENCE_SECONDS
            while True:
                absent = [q for q in others if not self._store.check([f"weft/failed/{q}"])]
                if not absent or time.monotonic() > until:
                    break
                time.sleep(0.05)
            found.append(absent)


def _break_connections() -> None:
    """Makes peers that wait for this worker fail too, so that they report at once and are not taken for lost."""
    with suppress(RuntimeError, AttributeError):
        dist.distributed_c10d._get_default_group().abort()
