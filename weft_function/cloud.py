"""What a cloud's function runs: `weft_function.cloud.handler`.

An invocation is a lease: it connects back to the graph server that paid for it, works through the same loop as any
other worker, and returns before its time is up. Or, for comparison, it brings one task in its payload and returns the
answer in the response, which clouds limit to a few megabytes.
"""

import base64
import os
import time
from typing import Any

from weft_function import STARTED
from weft_function.handler import handle
from weft_function.loop import LeaseTerms, request_of, work
from weft_function.wire import Message, Seal

_READY = time.monotonic()
MARGIN_SECONDS = 3.0  # before the cloud would end the function
_invocations = 0


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """One invocation. `init_seconds` are those that the first one of an instance took to start."""
    global _invocations
    _invocations += 1
    started = time.monotonic()
    left = context.get_remaining_time_in_millis() / 1000 if context is not None else 900.0
    name = os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME") or f"function-{os.getpid()}"
    if "frames" in event:
        out: dict[str, Any] = {"frames": _one_task(event, name)}
    else:
        terms = LeaseTerms(
            idle_seconds=float(event["idle_seconds"]),
            seconds=max(0.0, min(float(event["seconds"]), left - MARGIN_SECONDS)),
        )
        seal = Seal(bytes.fromhex(event["key"]), lasts_until=float(event["expires"]))
        stay = work(event["address"], seal, event["lease"], name, terms, float(event.get("delay_seconds", 0.0)))
        out = {"tasks": stay.tasks, "why": stay.why}
    out["seconds"] = time.monotonic() - started
    out["init_seconds"] = _READY - STARTED if _invocations == 1 else 0.0
    return out


def _one_task(event: dict[str, Any], name: str) -> list[str]:
    seal = Seal(bytes.fromhex(event["key"]), lasts_until=float(event["expires"]))
    message = seal.open([base64.b64decode(frame) for frame in event["frames"]])
    weights = {key[2:]: tensor for key, tensor in message.tensors.items() if key.startswith("w:")}
    answer = handle(request_of(message, weights), name)
    frames = seal.close(Message("answer", {"seconds": answer.seconds}, answer.tensors))
    return [base64.b64encode(frame).decode() for frame in frames]
