"""Tasks in cloud functions that connect back: an invocation is a lease, and the function is a worker of a broker.

The function works as long as there are tasks and its lease lasts, and returns the time for which it is billed.
"""

import threading
import time
from concurrent.futures import Future
from typing import Any, NamedTuple

from weft.errors import UserError
from weft.serverless.elastic import ElasticBroker
from weft.serverless.invoker import DEADLINE_SECONDS, Throttled, Usage
from weft.serverless.lambda_client import invoke, make_client
from weft_function.backoff import Backoff
from weft_function.task import Request, Response

IDLE_SECONDS = 10.0  # after which a function without tasks leaves
GRACE_SECONDS = 30.0  # by which the client's timeout exceeds the duration of a lease
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 16.0  # after throttling, and after functions that did not register


class _Billed(NamedTuple):
    """What the function of a lease reported when it returned."""

    function_seconds: float
    init_seconds: float


class _Invocation(NamedTuple):
    started: float
    thread: threading.Thread


class _LeaseEnded(NamedTuple):
    lease: str
    outcome: _Billed | Exception


class LambdaInvoker(ElasticBroker):
    """Cloud functions that connect to `advertise`, or else to the address at which this process listens."""

    name = "lambda"

    def __init__(
        self,
        function: str,
        workers: int,
        bind: str,
        endpoint: str | None = None,
        lease_seconds: float = 600.0,
        as_bfloat16: bool = False,
        delay_seconds: float = 0.0,
        max_workers: int = 64,
        advertise: str | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._function, self._lease_seconds, self._delay = function, lease_seconds, delay_seconds
        self._advertise = advertise
        self._client = make_client(endpoint, lease_seconds + GRACE_SECONDS, max(workers, max_workers))
        self._started: dict[str, _Invocation] = {}
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._fault: UserError | None = None  # why functions can never be invoked
        super().__init__(bind, None, as_bfloat16, deadline_seconds)
        self.scale(workers)

    # -- called from other threads ------------------------------------------------------------------------------------

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Response]":
        if self._fault is not None:
            raise self._fault
        return super().submit(request, deadline_seconds)

    def usage(self) -> Usage:
        """Includes the duration of leases so far that have not ended."""
        usage, now = super().usage(), time.monotonic()
        usage.function_seconds += sum(now - invocation.started for invocation in list(self._started.values()))
        return usage

    def _run_lease(self, lease: str, event: dict[str, Any]) -> None:
        """Waits in a thread of its own for one invocation to end."""
        outcome: _Billed | Exception
        try:
            out = invoke(self._client, self._function, event)
            outcome = _Billed(float(out["seconds"]), float(out["init_seconds"]))
        except Exception as error:  # any error ends the lease, and is handled in the broker's thread
            outcome = error
        # Not with `post`: a broker that shuts down waits for its leases to end.
        self._inbox.append(_LeaseEnded(lease, outcome))
        self._wake()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _can_start(self) -> bool:
        return self._fault is None

    def _start_worker(self) -> None:
        lease, key = self._leases.issue(self._lease_seconds + GRACE_SECONDS)
        event = {
            "address": self._advertise or self.address,
            "lease": lease,
            "key": key.hex(),
            "seconds": self._lease_seconds,
            "wait_seconds": min(self._deadline, self._lease_seconds),
            "idle_seconds": IDLE_SECONDS,
            "delay_seconds": self._delay,
        }
        thread = threading.Thread(target=self._run_lease, args=(lease, event), name=f"lease-{lease}", daemon=True)
        self._started[lease] = _Invocation(time.monotonic(), thread)
        self._count(requests=1)
        thread.start()

    def _on_item(self, item: Any) -> None:
        if isinstance(item, _LeaseEnded):
            self._on_lease_ended(item.lease, item.outcome)
            self._adjust_workers()
        else:
            super()._on_item(item)

    def _on_lease_ended(self, lease: str, outcome: _Billed | Exception) -> None:
        invocation = self._started.pop(lease)
        if isinstance(outcome, _Billed):
            self._count(**outcome._asdict())
            self._backoff.reset()
            self._revoke(lease, "its lease has ended")
            return
        if isinstance(outcome, Throttled):
            self._count(throttled=1)
            self._backoff.block()
        elif isinstance(outcome, UserError):
            self._fault = outcome
            self._pending.fail_all(outcome)
        else:
            # The time until a function was lost is billed, too.
            self._count(function_seconds=time.monotonic() - invocation.started)
            self._record_end(lease)
        self._revoke(lease, str(outcome))

    def _no_worker_hint(self) -> str:
        address = self._advertise or self.address
        return f"functions must be able to reach {address} (executor.bind, executor.advertise) and to start at all"
