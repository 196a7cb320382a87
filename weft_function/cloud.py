"""The entry point of a cloud function: `weft_function.cloud.handler`.

An invocation is a lease: it connects back to the graph server that pays for it, runs the same loop as every other
worker, and returns before its time is up. For comparison, an invocation can also contain one task in its payload and
return the response, which clouds limit to a few megabytes.
"""

import base64
import os
import time
from typing import Any

from weft_function import STARTED
from weft_function.handler import handle
from weft_function.session import Session
from weft_function.task_message import decode_request, weights_in
from weft_function.wire import Message
from weft_function.worker import LeaseTerms, work

_READY = time.monotonic()
MARGIN_SECONDS = 3.0  # before the cloud would kill the function
_invocations = 0


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Runs one invocation. `init_seconds`: the start-up time of the instance, reported by its first invocation.

    The duration is limited by the server and by the cloud. The cloud's deadline is a time of day: it is read once, and
    ignored if the clock has been set so that it lies in the past.
    """
    global _invocations
    _invocations += 1
    started = time.monotonic()
    left = context.get_remaining_time_in_millis() / 1000 - MARGIN_SECONDS if context is not None else 0.0
    name = os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME") or f"function-{os.getpid()}"
    key = bytes.fromhex(event["key"])
    if "task" in event:
        out: dict[str, Any] = {"response": run_payload(event["task"], key, name)}
    else:
        seconds = float(event["seconds"])
        terms = LeaseTerms(
            idle_seconds=float(event["idle_seconds"]),
            seconds=min(seconds, left) if left > 0 else seconds,
            wait_seconds=float(event["wait_seconds"]),
        )
        report = work(event["address"], key, event["lease"], name, terms, float(event.get("delay_seconds", 0.0)))
        out = {"tasks": report.tasks, "reason": report.reason}
    out["seconds"] = time.monotonic() - started
    out["init_seconds"] = _READY - STARTED if _invocations == 1 else 0.0
    return out


def run_payload(task: str, key: bytes, name: str) -> str:
    """Runs a sealed task message in base64, and returns the sealed response in base64. `key`: of this attempt alone."""
    session = Session(key, b"", "worker")
    message = session.open_all(base64.b64decode(task))
    response = handle(decode_request(message, weights_in(message)), name)
    frames = session.seal(Message("response", {"seconds": response.seconds}, response.tensors))
    return base64.b64encode(b"".join(frames)).decode()
