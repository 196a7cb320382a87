"""A headless Chromium that a test drives by the browser's own protocol, over aiohttp's WebSockets."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--window-size=1100,900"),
)
STARTS_WITHIN_SECONDS = 60


def find_chromium() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("Chromium is not installed")
    return found


class Tab:
    """A page in the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._count = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    async def value(self, expression: str) -> Any:
        """What JavaScript makes of an expression."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str, seconds: float = 60) -> None:
        ends = time.monotonic() + seconds
        while not await self.value(expression):
            assert time.monotonic() < ends, f"never true: {expression}"
            await asyncio.sleep(0.2)


@asynccontextmanager
async def open_tab(address: str, profile: Path) -> AsyncIterator[Tab]:
    """A page at this address; `profile` is a folder of the browser's own."""
    command = [find_chromium(), *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        port = await _port(profile / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                targets = await answer.json()
            (page,) = (target for target in targets if target["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                await tab.call("Page.navigate", url=address)
                await tab.until(f"location.href === {address!r} && document.readyState === 'complete'")
                yield tab
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _port(file: Path, process: subprocess.Popen[bytes]) -> str:
    """The port that the browser listens at, which it writes into its profile."""
    ends = time.monotonic() + STARTS_WITHIN_SECONDS
    while not file.exists() or not file.read_text().strip():
        assert process.poll() is None, "Chromium ended at its start"
        assert time.monotonic() < ends, "Chromium does not start"
        await asyncio.sleep(0.1)
    return file.read_text().split()[0]
