"""Functions on this machine: the Lambda Invoke API towards clients, the Runtime API towards real runtime processes.

    weft lambda serve --function weft

For tests and for trying things out: nothing here needs an account, and what runs is what would run in the cloud,
started by the cloud's own runtime client. Every instance has a port of its own, so that it is known who does what, and
one that is killed fails its invocation at once.
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

from aiohttp import web


@dataclass
class _Invocation:
    id: str
    payload: bytes
    deadline: float  # epoch seconds
    answer: "asyncio.Future[tuple[bytes, bool]]"  # payload, and whether it is an error


@dataclass
class _Instance:
    function: str
    process: asyncio.subprocess.Process | None = None
    runner: web.AppRunner | None = None
    wants: "asyncio.Queue[_Invocation | None]" = field(default_factory=asyncio.Queue)
    current: _Invocation | None = None


class Endpoint:
    """Serves functions by name; each is `package.module.function`, run by awslambdaric."""

    def __init__(self, functions: dict[str, str], concurrency: int = 8, timeout_seconds: float = 900.0) -> None:
        self._functions, self._concurrency, self._timeout = functions, concurrency, timeout_seconds
        self._instances: list[_Instance] = []
        self._runner: web.AppRunner | None = None
        self._watching: set[asyncio.Task[None]] = set()
        self.invocations = self.throttled = self.cold_starts = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listens; the address for `endpoint_url`."""
        app = web.Application(client_max_size=8 << 20)
        app.router.add_post("/2015-03-31/functions/{name}/invocations", self._invoke)
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

    # -- towards clients ----------------------------------------------------------------------------------------------

    async def _invoke(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._functions:
            return _error(404, "ResourceNotFoundException", f"Function not found: {name}")
        payload = await request.read()
        if len(payload) > 6 << 20:
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
        instance.current = invocation  # before anything is awaited, if it was there: nobody else takes it
        await instance.wants.put(invocation)
        try:
            answer, failed = await asyncio.wait_for(asyncio.shield(invocation.answer), self._timeout)
        except TimeoutError:
            if instance.process is not None:
                instance.process.kill()
            text = f"Task timed out after {self._timeout:.2f} seconds"
            answer, failed = json.dumps({"errorMessage": text, "errorType": "Sandbox.Timedout"}).encode(), True
        headers = {"X-Amz-Function-Error": "Unhandled"} if failed else {}
        return web.Response(body=answer, headers=headers, content_type="application/json")

    # -- towards runtimes ---------------------------------------------------------------------------------------------

    async def _launch(self, instance: _Instance) -> None:
        """Starts a runtime process, with a port that is its alone."""
        self.cold_starts += 1
        app = web.Application(client_max_size=8 << 20)
        version = "/2018-06-01/runtime"

        async def following(request: web.Request) -> web.Response:
            invocation = await instance.wants.get()
            if invocation is None:
                raise web.HTTPGone
            headers = {
                "Lambda-Runtime-Aws-Request-Id": invocation.id,
                "Lambda-Runtime-Deadline-Ms": str(int(1000 * invocation.deadline)),
                "Lambda-Runtime-Invoked-Function-Arn": f"arn:aws:lambda:local:0:function:{instance.function}",
            }
            return web.Response(body=invocation.payload, headers=headers, content_type="application/json")

        async def answered(request: web.Request) -> web.Response:
            self._finish(instance, request.match_info["id"], await request.read(), request.path.endswith("/error"))
            return web.Response(status=202)

        async def never_started(request: web.Request) -> web.Response:
            if instance.current is not None:
                self._finish(instance, instance.current.id, await request.read(), True)
            return web.Response(status=202)

        app.router.add_get(f"{version}/invocation/next", following)
        app.router.add_post(f"{version}/invocation/{{id}}/response", answered)
        app.router.add_post(f"{version}/invocation/{{id}}/error", answered)
        app.router.add_post(f"{version}/init/error", never_started)
        instance.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await instance.runner.setup()
        await web.TCPSite(instance.runner, "127.0.0.1", 0).start()
        host, port = instance.runner.addresses[0][:2]
        environment = {
            **os.environ,
            "AWS_LAMBDA_RUNTIME_API": f"{host}:{port}",
            "AWS_LAMBDA_FUNCTION_NAME": instance.function,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1769",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{instance.function}",
            "AWS_LAMBDA_LOG_STREAM_NAME": f"{instance.function}-{uuid.uuid4().hex[:8]}",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        instance.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "awslambdaric", self._functions[instance.function], env=environment
        )
        watch = asyncio.get_running_loop().create_task(self._watch(instance))
        self._watching.add(watch)
        watch.add_done_callback(self._watching.discard)

    async def _watch(self, instance: _Instance) -> None:
        """Fails the invocation of an instance that ends."""
        assert instance.process is not None
        code = await instance.process.wait()
        if instance.current is not None:
            error = {"errorMessage": f"Runtime exited with {code}", "errorType": "Runtime.ExitError"}
            self._finish(instance, instance.current.id, json.dumps(error).encode(), True)
        if instance in self._instances:
            self._instances.remove(instance)
        instance.wants.put_nowait(None)  # whoever waits there for the next one waits no longer
        await asyncio.sleep(0)
        if instance.runner is not None:
            await instance.runner.cleanup()

    def _finish(self, instance: _Instance, id: str, payload: bytes, failed: bool) -> None:
        invocation = instance.current
        if invocation is None or invocation.id != id:
            return
        instance.current = None
        if not invocation.answer.done():
            invocation.answer.set_result((payload, failed))


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"Type": "User", "Message": message}, status=status, headers={"x-amzn-ErrorType": kind})


@contextmanager
def serving(functions: dict[str, str], concurrency: int = 8) -> Iterator[tuple[str, Endpoint]]:
    """An endpoint in a thread of its own, and its address."""
    loop, endpoint = asyncio.new_event_loop(), Endpoint(functions, concurrency)
    thread = threading.Thread(target=loop.run_forever, name="endpoint", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(endpoint.start(), loop).result(30), endpoint
    finally:
        asyncio.run_coroutine_threadsafe(endpoint.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def serve(functions: dict[str, str], host: str, port: int, concurrency: int, told: Callable[[str], None]) -> None:
    """Runs until it is interrupted; the address is told once it listens."""

    async def run() -> None:
        endpoint = Endpoint(functions, concurrency)
        told(await endpoint.start(host, port))
        try:
            await asyncio.Event().wait()
        finally:
            await endpoint.stop()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())
