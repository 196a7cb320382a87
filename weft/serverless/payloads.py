"""Tasks in the payloads of invocations, for comparison: far slower than leases, and limited in size."""

import base64
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from weft.errors import UserError
from weft.serverless.invoker import DEADLINE_SECONDS, Lost, Usage
from weft.serverless.lambda_client import invoke, make_client
from weft.serverless.responses import ExpectedResponse, ResponseForms
from weft_function.session import Session, new_key
from weft_function.task import Request, Response
from weft_function.task_message import encode_request
from weft_function.wire import Refused

MAX_PAYLOAD_BYTES = 6_000_000  # of a request, and of a response


class PayloadInvoker:
    """Invokes a function for every attempt: the request is in the payload, and the response in the result."""

    name = "lambda"

    def __init__(
        self, function: str, workers: int, endpoint: str | None = None, as_bfloat16: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:  # fmt: skip
        self._function, self._as_bfloat16 = function, as_bfloat16
        self._client = make_client(endpoint, deadline_seconds, workers)
        self._forms = ResponseForms()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="invocation")
        self._usage, self._lock = Usage(workers=workers, max_workers=workers), threading.Lock()

    def submit(self, request: Request, deadline_seconds: float) -> "Future[Response]":
        return self._threads.submit(self._invoke, request, self._forms.expected(request))

    def _invoke(self, request: Request, expected: ExpectedResponse) -> Response:
        key = new_key()  # of this attempt alone: its response is not valid for any other attempt
        session = Session(key, b"", "server")
        frames = session.seal(encode_request(request, attempt=0), self._as_bfloat16)
        event = {"task": base64.b64encode(b"".join(frames)).decode(), "key": key.hex()}
        size = len(event["task"])
        if size > MAX_PAYLOAD_BYTES:
            raise UserError(
                f"a task of {size / 1e6:.1f} MB does not fit in a payload of {MAX_PAYLOAD_BYTES / 1e6:.0f} MB: set "
                "more executor.intervals, or executor.mode=lease"
            )
        with self._lock:
            self._usage.attempts += 1
            self._usage.requests += 1
            self._usage.bytes_out += size
        out = invoke(self._client, self._function, event)
        try:
            message = session.open_all(base64.b64decode(out["response"]))
            seconds = expected.check(message)
            billed, init = float(out["seconds"]), float(out["init_seconds"])
        except (Refused, KeyError, TypeError, ValueError) as error:
            with self._lock:
                self._usage.refused += 1
            raise Lost(f"the response was refused: {error}") from None
        with self._lock:
            self._usage.tasks += 1
            self._usage.task_seconds += seconds
            self._usage.function_seconds += billed
            self._usage.init_seconds += init
            self._usage.bytes_in += len(out["response"])
        return Response(dict(message.tensors), seconds, self._function)

    def scale(self, workers: int) -> None:
        """Does nothing: the cloud starts functions as they are invoked, and the number of threads is fixed."""

    def usage(self) -> Usage:
        with self._lock:
            return Usage(**vars(self._usage))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
