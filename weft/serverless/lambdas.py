"""Tasks in a cloud's functions, through the Lambda Invoke API.

An invocation is a lease: the function connects back, works for as long as there is work, and returns what it did,
which is what is billed. Nothing is invoked twice behind our back: the client's own retries are off, and its patience is
longer than a lease. `OneTask` sends each task in a payload of its own instead, for comparison: far slower, and limited.
"""

import base64
import json
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from weft.errors import UserError
from weft.serverless.hub import Hub
from weft.serverless.invoker import Lost, Throttled, Usage
from weft_function.loop import request_fields
from weft_function.request import Answer, Request
from weft_function.wire import Message, Refused, Seal, new_key

MOST_PAYLOAD_BYTES = 6_000_000  # of a request, and of a response
IDLE_SECONDS = 10.0  # until a function without work leaves
GRACE_SECONDS = 30.0  # that the client waits longer than a lease lasts
FIRST_PAUSE_SECONDS = 0.5  # after a refusal, doubled up to
LONGEST_PAUSE_SECONDS = 16.0


def make_client(endpoint: str | None, patience_seconds: float, connections: int) -> Any:
    """A client that tries once, and waits for as long as a function may work."""
    config = Config(
        retries={"total_max_attempts": 1},
        read_timeout=patience_seconds,
        connect_timeout=10,
        max_pool_connections=connections,
    )
    try:
        region = os.environ.get("AWS_REGION")  # boto3 itself reads AWS_DEFAULT_REGION and its files alone
        return boto3.client("lambda", region_name=region, endpoint_url=endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise UserError(
            f"executor lambda has no account to work with ({error}): set AWS_REGION and credentials, or "
            "executor.endpoint"
        ) from None


def invoke(client: Any, function: str, event: dict[str, Any]) -> dict[str, Any]:
    """One invocation; raises Throttled, Lost, or UserError where no other try can help."""
    try:
        response = client.invoke(FunctionName=function, Payload=json.dumps(event).encode())
        payload = json.loads(response["Payload"].read() or b"{}")
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in ("TooManyRequestsException", "ThrottlingException", "EC2ThrottledException"):
            raise Throttled(str(error)) from None
        if code in ("ResourceNotFoundException", "AccessDeniedException", "UnrecognizedClientException"):
            raise UserError(
                f"function {function} cannot be invoked ({error}): deploy it with 'weft lambda package', and see that "
                "the policy that it prints is granted"
            ) from None
        raise Lost(str(error)) from None
    except (BotoCoreError, OSError, ValueError) as error:
        raise Lost(f"{type(error).__name__}: {error}") from None
    if response.get("FunctionError"):
        raise Lost(f"function {function}: {payload.get('errorType')}: {payload.get('errorMessage')}")
    return dict(payload)


@dataclass
class _Lease:
    started: float
    thread: threading.Thread


class LambdaInvoker(Hub):
    """Leases of functions that connect back to `address`, which must be one that they reach."""

    name = "lambda"

    def __init__(
        self,
        function: str,
        workers: int,
        bind: str,
        endpoint: str | None = None,
        lease_seconds: float = 600.0,
        key: bytes | None = None,
        halve: bool = False,
        delay_seconds: float = 0.0,
        most_workers: int = 64,
        advertise: str | None = None,
    ) -> None:
        self._function, self._lease_seconds, self._delay = function, lease_seconds, delay_seconds
        self._advertise = advertise
        self._client = make_client(endpoint, lease_seconds + GRACE_SECONDS, max(workers, most_workers))
        self._leases: dict[str, _Lease] = {}
        self._ended: list[tuple[str, dict[str, Any] | BaseException]] = []
        self._pause, self._hold_until = FIRST_PAUSE_SECONDS, 0.0
        self.fault: UserError | None = None
        super().__init__(bind, key, halve)
        self.scale(workers)

    def _adjust(self) -> None:
        """Invokes as many functions as are missing, unless the cloud has asked us to wait."""
        while len(self._leases) < self._wanted and time.monotonic() >= self._hold_until and self.fault is None:
            lease, key, expires = self._new_lease(self._lease_seconds + GRACE_SECONDS)
            event = {
                "address": self._advertise or self.address,
                "lease": lease,
                "key": key.hex(),
                "expires": expires,
                "seconds": self._lease_seconds,
                "idle_seconds": IDLE_SECONDS,
                "delay_seconds": self._delay,
            }
            thread = threading.Thread(target=self._hold, args=(lease, event), name=f"lease-{lease}", daemon=True)
            self._leases[lease] = _Lease(time.monotonic(), thread)
            self._add(requests=1)
            thread.start()
        spare = len(self._leases) - self._wanted
        for lease in list(self._leases):
            peer = self._peers.get(lease)
            if spare > 0 and peer is not None and not peer.attempts:
                self._say(lease, Message("stop"))
                self._forget(lease, "it was asked to leave")
                spare -= 1

    def _hold(self, lease: str, event: dict[str, Any]) -> None:
        """A thread that waits for one lease to end."""
        outcome: dict[str, Any] | BaseException
        try:
            outcome = invoke(self._client, self._function, event)
        except (Throttled, Lost, UserError) as error:
            outcome = error
        with self._lock:
            self._ended.append((lease, outcome))
            if not self._closed or self._thread.is_alive():
                self._wake_up.send(b"")

    def _look(self, events: dict[object, int]) -> None:
        with self._lock:
            ended, self._ended = self._ended, []
        for lease, outcome in ended:
            self._settle(lease, outcome)
        if ended or (self._wanted > len(self._leases) and time.monotonic() >= self._hold_until):
            self._adjust()

    def _settle(self, lease: str, outcome: dict[str, Any] | BaseException) -> None:
        held = self._leases.pop(lease)
        if isinstance(outcome, dict):
            self._add(function_seconds=float(outcome["seconds"]), init_seconds=float(outcome["init_seconds"]))
            self._pause = FIRST_PAUSE_SECONDS
            self._drop_lease(lease, "its lease has ended")
            return
        if isinstance(outcome, Throttled):
            self._add(throttled=1)
            self._wait()
        elif isinstance(outcome, UserError):
            self.fault = outcome
            for number in list(self._attempts):
                attempt = self._attempts.pop(number)
                attempt.future.set_exception(outcome)
        else:
            # What a function worked before it was lost is billed, too.
            self._add(function_seconds=time.monotonic() - held.started)
            if lease in self._peers:
                self._pause = FIRST_PAUSE_SECONDS
            else:
                self._wait()  # it never came: another would not come, either
        self._drop_lease(lease, str(outcome))

    def _wait(self) -> None:
        self._hold_until = time.monotonic() + self._pause
        self._pause = min(LONGEST_PAUSE_SECONDS, 2 * self._pause)

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Answer]":
        if self.fault is not None:
            raise self.fault
        return super().submit(request, deadline_seconds)

    def usage(self) -> Usage:
        """Leases that are not over yet are billed for as long as they have lasted."""
        usage, now = super().usage(), time.monotonic()
        usage.function_seconds += sum(now - lease.started for lease in list(self._leases.values()))
        return usage

    def _patience_ms(self) -> int | None:
        patience = super()._patience_ms()
        if len(self._leases) >= self._wanted or self.fault is not None:
            return patience
        held = max(0, int(1000 * (self._hold_until - time.monotonic())) + 1)
        return held if patience is None else min(patience, held)

    def _there(self) -> int:
        return len(self._leases)


class OneTask:
    """An invocation for every task, which brings it along and takes the answer back: for comparison."""

    name = "lambda"

    def __init__(self, function: str, workers: int, endpoint: str | None = None, halve: bool = False) -> None:
        self._function, self._key, self._halve = function, new_key(), halve
        self._client = make_client(endpoint, 900.0, workers)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="invocation")
        self._usage, self._lock = Usage(workers=workers, most_workers=workers), threading.Lock()

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Answer]":
        return self._threads.submit(self._invoke, request, deadline_seconds)

    def _invoke(self, request: Request, deadline_seconds: float) -> Answer:
        expires = time.time() + max(deadline_seconds, 60.0)
        seal = Seal(self._key, lasts_until=expires, halve=self._halve)
        tensors = {**request.tensors, **{f"w:{name}": weight for name, weight in request.weights.items()}}
        frames = seal.close(Message("task", request_fields(request, 0), tensors))
        texts = [base64.b64encode(frame).decode() for frame in frames]
        event = {"frames": texts, "key": self._key.hex(), "expires": expires}
        size = sum(len(text) for text in texts)
        if size > MOST_PAYLOAD_BYTES:
            raise UserError(
                f"a task of {size / 1e6:.1f} MB does not fit in a payload of {MOST_PAYLOAD_BYTES / 1e6:.0f} MB: set "
                "more executor.intervals, or executor.mode=lease"
            )
        with self._lock:
            self._usage.attempts += 1
            self._usage.requests += 1
            self._usage.bytes_out += size
        out = invoke(self._client, self._function, event)
        answered = [base64.b64decode(frame) for frame in out["frames"]]
        try:
            message = seal.open(answered)
        except Refused as error:
            raise Lost(f"an answer that was refused: {error}") from None
        with self._lock:
            self._usage.tasks += 1
            self._usage.task_seconds += float(message.fields["seconds"])
            self._usage.function_seconds += float(out["seconds"])
            self._usage.init_seconds += float(out["init_seconds"])
            self._usage.bytes_in += sum(len(frame) for frame in out["frames"])
        return Answer(dict(message.tensors), float(message.fields["seconds"]), self._function)

    def scale(self, workers: int) -> None:
        """As many threads as at the start: the cloud starts functions as they are needed."""

    def usage(self) -> Usage:
        with self._lock:
            return Usage(**vars(self._usage))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
