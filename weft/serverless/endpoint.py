"""Cloud functions on this machine: the Lambda Invoke API for clients, the Runtime API for real runtime processes.

    weft lambda serve --function weft

It needs no account, for tests and experiments. Functions run in processes of the cloud's own runtime client. Each
process has its own Runtime API port, which refuses every other process of this machine. If a process is killed, its
invocation fails at once. All processes end when this one ends, however that happens.
"""

import asyncio
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from weft.serverless.deploy import MEMORY_MB, TIMEOUT_SECONDS
from weft.serverless.pool import SINGLE_THREAD
from weft.serverless.runtime_peer import owns_connection

MAX_PAYLOAD_BYTES = 6 << 20
MAX_REQUEST_BYTES = 8 << 20  # accepted from the network
INVOKE_PATH = "/2015-03-31/functions/{name}/invocations"
RUNTIME_PATH = "/2018-06-01/runtime"
STOP_SECONDS = 30.0


@dataclass
class _Invocation:
    id: str
    payload: bytes
    deadline: float  # seconds since the epoch
    result: "asyncio.Future[tuple[bytes, bool]]"  # payload, and whether it is an error


@dataclass
class _Instance:
    """A runtime process of a function, and the Runtime API that serves it."""

    function: str
    process: asyncio.subprocess.Process | None = None
    launched: asyncio.Event = field(default_factory=asyncio.Event)
    runner: web.AppRunner | None = None
    queue: "asyncio.Queue[_Invocation | None]" = field(default_factory=asyncio.Queue)
    current: _Invocation | None = None


class Endpoint:
    """Serves functions by name; each is `package.module.function`, run by awslambdaric."""

    def __init__(
        self, functions: dict[str, str], concurrency: int = 8, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._functions, self._concurrency, self._timeout = functions, concurrency, timeout_seconds
        self._instances: list[_Instance] = []
        self._runner: web.AppRunner | None = None
        self._watching: set[asyncio.Task[None]] = set()
        self.invocations = self.throttled = self.cold_starts = self.refused = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Starts listening; returns the address for a client's `endpoint_url`."""
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_post(INVOKE_PATH, self._invoke)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        listening = self._runner.addresses[0]
        return f"http://{listening[0]}:{listening[1]}"

    async def stop(self) -> None:
        for instance in list(self._instances):
            if instance.process is not None and instance.process.returncode is None:
                instance.process.kill()
        await asyncio.gather(*self._watching)
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def processes(self) -> list[int]:
        return [one.process.pid for one in self._instances if one.process and one.process.returncode is None]

    # -- the Invoke API -----------------------------------------------------------------------------------------------

    async def _invoke(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._functions:
            return _error(404, "ResourceNotFoundException", f"Function not found: {name}")
        payload = await request.read()
        if len(payload) > MAX_PAYLOAD_BYTES:
            return _error(413, "RequestTooLargeException", f"{len(payload)} byte payload is too large")
        loop = asyncio.get_running_loop()
        invocation = _Invocation(str(uuid.uuid4()), payload, time.time() + self._timeout, loop.create_future())
        instance = next((one for one in self._instances if one.current is None and one.function == name), None)
        if instance is None and len(self._instances) >= self._concurrency:
            self.throttled += 1
            return _error(429, "TooManyRequestsException", "Rate Exceeded.")
        self.invocations += 1
        if instance is None:
            instance = _Instance(name, current=invocation)
            self._instances.append(instance)
            await self._launch(instance)
        instance.current = invocation  # before the first await, so that no other invocation takes an idle instance
        await instance.queue.put(invocation)
        try:
            body, failed = await asyncio.wait_for(asyncio.shield(invocation.result), self._timeout)
        except TimeoutError:
            if instance.process is not None:
                instance.process.kill()
            text = f"Task timed out after {self._timeout:.2f} seconds"
            body, failed = json.dumps({"errorMessage": text, "errorType": "Sandbox.Timedout"}).encode(), True
        headers = {"X-Amz-Function-Error": "Unhandled"} if failed else {}
        return web.Response(body=body, headers=headers, content_type="application/json")

    # -- the Runtime API ----------------------------------------------------------------------------------------------

    async def _launch(self, instance: _Instance) -> None:
        """Starts a runtime process and its own Runtime API."""
        self.cold_starts += 1

        @web.middleware
        async def only_its_process(request: web.Request, handler: Any) -> web.StreamResponse:
            """Refuses other processes: an invocation contains the address of a graph server and the key of a lease."""
            await instance.launched.wait()
            process, ends = instance.process, [request.get_extra_info(name) for name in ("peername", "sockname")]
            if process is None or None in ends or not owns_connection(process.pid, *ends):
                self.refused += 1
                raise web.HTTPForbidden
            response: web.StreamResponse = await handler(request)
            return response

        app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=[only_its_process])

        async def next_invocation(request: web.Request) -> web.Response:
            invocation = await instance.queue.get()
            if invocation is None:
                raise web.HTTPGone
            headers = {
                "Lambda-Runtime-Aws-Request-Id": invocation.id,
                "Lambda-Runtime-Deadline-Ms": str(int(1000 * invocation.deadline)),
                "Lambda-Runtime-Invoked-Function-Arn": f"arn:aws:lambda:local:0:function:{instance.function}",
            }
            return web.Response(body=invocation.payload, headers=headers, content_type="application/json")

        async def finished(request: web.Request) -> web.Response:
            self._finish(instance, request.match_info["id"], await request.read(), request.path.endswith("/error"))
            return web.Response(status=202)

        async def init_failed(request: web.Request) -> web.Response:
            if instance.current is not None:
                self._finish(instance, instance.current.id, await request.read(), True)
            return web.Response(status=202)

        app.router.add_get(f"{RUNTIME_PATH}/invocation/next", next_invocation)
        app.router.add_post(f"{RUNTIME_PATH}/invocation/{{id}}/response", finished)
        app.router.add_post(f"{RUNTIME_PATH}/invocation/{{id}}/error", finished)
        app.router.add_post(f"{RUNTIME_PATH}/init/error", init_failed)
        instance.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await instance.runner.setup()
        await web.TCPSite(instance.runner, "127.0.0.1", 0).start()
        host, port = instance.runner.addresses[0][:2]
        environment = {
            **os.environ,
            **SINGLE_THREAD,
            "AWS_LAMBDA_RUNTIME_API": f"{host}:{port}",
            "AWS_LAMBDA_FUNCTION_NAME": instance.function,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(MEMORY_MB),
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{instance.function}",
            "AWS_LAMBDA_LOG_STREAM_NAME": f"{instance.function}-{uuid.uuid4().hex[:8]}",
        }
        instance.process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "weft_function.parent", str(os.getpid()), "awslambdaric",
            self._functions[instance.function], env=environment,
        )  # fmt: skip
        instance.launched.set()
        watch = asyncio.get_running_loop().create_task(self._watch(instance))
        self._watching.add(watch)
        watch.add_done_callback(self._watching.discard)

    async def _watch(self, instance: _Instance) -> None:
        """Fails the current invocation of an instance whose process ends."""
        assert instance.process is not None
        code = await instance.process.wait()
        if instance.current is not None:
            error = {"errorMessage": f"Runtime exited with {code}", "errorType": "Runtime.ExitError"}
            self._finish(instance, instance.current.id, json.dumps(error).encode(), True)
        if instance in self._instances:
            self._instances.remove(instance)
        instance.queue.put_nowait(None)  # ends a request for the next invocation
        await asyncio.sleep(0)
        if instance.runner is not None:
            await instance.runner.cleanup()

    def _finish(self, instance: _Instance, id: str, payload: bytes, failed: bool) -> None:
        invocation = instance.current
        if invocation is None or invocation.id != id:
            return
        instance.current = None
        if not invocation.result.done():
            invocation.result.set_result((payload, failed))


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"Type": "User", "Message": message}, status=status, headers={"x-amzn-ErrorType": kind})


@contextmanager
def serving(functions: dict[str, str], concurrency: int = 8) -> Iterator[tuple[str, Endpoint]]:
    """Runs an endpoint in a thread; yields its address and the endpoint."""
    loop, endpoint = asyncio.new_event_loop(), Endpoint(functions, concurrency)
    thread = threading.Thread(target=loop.run_forever, name="endpoint", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(endpoint.start(), loop).result(STOP_SECONDS), endpoint
    finally:
        asyncio.run_coroutine_threadsafe(endpoint.stop(), loop).result(STOP_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_SECONDS)
        loop.close()


def serve(
    functions: dict[str, str], host: str, port: int, concurrency: int, on_listening: Callable[[str], None]
) -> None:
    """Runs an endpoint until it is interrupted. `on_listening` is called with its address."""

    async def run() -> None:
        endpoint = Endpoint(functions, concurrency)
        on_listening(await endpoint.start(host, port))
        try:
            await asyncio.Event().wait()
        finally:
            await endpoint.stop()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())
