"""A broker that starts its own workers, and keeps as many of them running as `scale` asks for."""

from collections.abc import Mapping
from typing import Any

from weft.serverless.broker import Broker
from weft_function.backoff import Backoff


class ElasticBroker(Broker):
    """Subclasses start a worker (`_start_worker`) and report which ones have not ended (`_started`).

    If a worker ends before it has registered, the next one is started after a pause, since it would probably fail, too.
    """

    _backoff: Backoff
    _started: Mapping[str, Any]  # by lease: the workers that have not ended

    def _start_worker(self) -> None:
        raise NotImplementedError

    def _can_start(self) -> bool:
        return True

    def _adjust_workers(self) -> None:
        while self._wants_more() and not self._backoff.blocked_seconds:
            self._start_worker()
        self._stop_idle_workers(self._started, len(self._started) - self._target_workers)

    def _wants_more(self) -> bool:
        return len(self._started) < self._target_workers and self._can_start()

    def _record_end(self, lease: str) -> None:
        """Adjusts the pause before the next start to whether this worker, which has ended, had registered."""
        if self._leases.has_registered(lease):
            self._backoff.reset()
        else:
            self._backoff.block()

    def _on_wakeup(self) -> None:
        super()._on_wakeup()
        if len(self._started) < self._target_workers:
            self._adjust_workers()

    def _timeout_seconds(self) -> float | None:
        timeout = super()._timeout_seconds()
        if not self._wants_more():
            return timeout
        pause = self._backoff.blocked_seconds
        return pause if timeout is None else min(timeout, pause)

    def _num_started(self) -> int:
        return len(self._started)
