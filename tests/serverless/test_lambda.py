"""Functions behind the Invoke API, in processes of the real runtime client on this machine: nothing is imitated."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("awslambdaric", reason="needs weft[serverless]")
pytest.importorskip("boto3", reason="needs weft[serverless]")

from tests.launch.launching import ROOT, alive, wait_until
from tests.serverless.cases import CASES, Killing, pipelined, some_shards
from tests.workers import run_workers
from weft.comm import Communicator
from weft.errors import UserError
from weft.serverless.deploy import HANDLER, MAX_UPLOAD_BYTES, build_archive, invoke_policy
from weft.serverless.endpoint import Endpoint, serving
from weft.serverless.invoker import Lost
from weft.serverless.lambda_client import invoke, make_client
from weft.serverless.settings import ExecutorConfig


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client signs what it sends, so it wants something to sign with."""
    for name, value in {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "local"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)


def running(concurrency: int = 4) -> AbstractContextManager[tuple[str, Endpoint]]:
    return serving({"weft": HANDLER}, concurrency)


def config(address: str, **settings: object) -> ExecutorConfig:
    return ExecutorConfig(name="lambda", intervals=4, placement="functions", endpoint=address, **settings)  # type: ignore[arg-type]


def run_here(settings: ExecutorConfig, epochs: int = 3, name: str = "gcn-three", make: Any = None) -> dict[str, object]:
    return pipelined(Communicator.alone(), some_shards(1), CASES[name], epochs, settings, make)


@pytest.mark.parametrize("mode", ["lease", "task"])
def test_bitwise_as_inline(mode: str) -> None:
    wanted = run_here(ExecutorConfig(intervals=4))
    with running() as (address, endpoint):
        found = run_here(config(address, mode=mode, workers=2))
    assert found["losses"] == wanted["losses"]
    for name, value in wanted["weights"].items():  # type: ignore[attr-defined]
        assert torch.equal(value, found["weights"][name])  # type: ignore[index]
    assert endpoint.invocations >= 2
    if mode == "lease":
        assert endpoint.invocations <= 4  # a lease does many tasks


@pytest.mark.slow
def test_fifty_kills() -> None:
    """Functions end with SIGKILL at fifty random points, some while they start: the same weights, to the bit."""
    wanted = run_here(ExecutorConfig(intervals=4), epochs=60, name="gat")
    killing = Killing(50, tasks_between=6)
    with running() as (address, endpoint), killing.during(lambda: endpoint.processes):
        found = run_here(config(address, workers=3, delay_ms=10), 60, "gat", killing.make)
    assert killing.kills == 50
    assert endpoint.cold_starts > 40  # who is killed while another takes its place is not always replaced
    assert found["waste"]["retries"] > 0  # type: ignore[index]
    assert found["losses"] == wanted["losses"]
    for name, value in wanted["weights"].items():  # type: ignore[attr-defined]
        assert torch.equal(value, found["weights"][name])  # type: ignore[index]


def test_throttled_runs_finish() -> None:
    """More functions are wanted than the account may have at once."""
    with running(concurrency=1) as (address, endpoint):
        found = run_here(config(address, workers=3))
    assert endpoint.throttled > 0
    assert found["losses"] == run_here(ExecutorConfig(intervals=4))["losses"]


def test_what_cannot_work_is_said_at_once() -> None:
    with running() as (address, _), pytest.raises(UserError, match="cannot be invoked"):
        run_here(config(address, function="another"))
    started = time.monotonic()
    with pytest.raises(UserError, match="does not fit in a payload"), running() as (address, _):
        big = some_shards(1, num_nodes=200_000, num_edges=1000)
        pipelined(Communicator.alone(), big, CASES["gcn"], 1, config(address, mode="task").model_copy(
            update={"intervals": 1}))  # fmt: skip
    assert time.monotonic() - started < 60


def lease(wait_seconds: float) -> dict[str, Any]:
    """An invocation for a server that is not there."""
    return {"address": "tcp://127.0.0.1:9", "key": "5" * 64, "lease": "0" * 16, "seconds": 600.0,
            "wait_seconds": wait_seconds, "idle_seconds": 10.0}  # fmt: skip


def test_only_its_own_process_is_handed_an_invocation() -> None:
    """Any process of this machine can connect to a runtime's port; what comes in holds the key of a lease."""
    with running() as (address, endpoint):
        client = make_client(address, 60.0, 1)
        assert "no server at 127.0.0.1:9 in 0.2 s" in invoke(client, "weft", lease(0.2))["reason"]
        (instance,) = endpoint._instances
        assert instance.runner is not None
        host, port = instance.runner.addresses[0][:2]
        for path in ("invocation/next", "init/error"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"http://{host}:{port}/2018-06-01/runtime/{path}", timeout=30)
        assert endpoint.refused == 2
        assert invoke(client, "weft", lease(0.1))["tasks"] == 0 and endpoint.cold_starts == 1


def test_functions_end_with_who_serves_them() -> None:
    command = [sys.executable, "-m", "weft", "lambda", "serve", "--port", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split(" at ")[1].split(";")[0]
        client = make_client(address, 60.0, 1)
        lost: list[Exception] = []

        def hold() -> None:
            try:
                invoke(client, "weft", lease(300.0))
            except Lost as error:
                lost.append(error)

        thread = threading.Thread(target=hold)
        thread.start()
        tasks = Path(f"/proc/{server.pid}/task")
        wait_until(lambda: any((one / "children").read_text() for one in tasks.iterdir()), seconds=60)
        functions = [int(pid) for one in tasks.iterdir() for pid in (one / "children").read_text().split()]
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in functions), seconds=30)
        thread.join(30)
        assert functions and len(lost) == 1
    finally:
        server.kill()
        server.communicate()


def test_layers_of_ones_own_stay_out_of_clouds() -> None:
    with pytest.raises(UserError, match="not in the function's archive"):
        run_here(config("http://127.0.0.1:1"), name="separable")


def test_two_servers_share_an_account() -> None:
    shards, case = some_shards(2), CASES["sage"]
    wanted = run_workers(pipelined, 2, shards, case, 3, ExecutorConfig(intervals=4))
    with running() as (address, _):
        # Processes of their own: they read the account from their environment.
        found = run_workers(pipelined, 2, shards, case, 3, config(address, workers=1), fresh=True)
    assert [one["losses"] for one in found] == [one["losses"] for one in wanted]


def test_the_archive_holds_the_function_and_no_more(tmp_path: Path) -> None:
    archive = tmp_path / "function.zip"
    try:
        size = build_archive(archive, "x86_64")
    except UserError as error:
        pytest.skip(f"no package registry can be reached: {error}")
    names = zipfile.ZipFile(archive).namelist()
    assert size < MAX_UPLOAD_BYTES
    assert "weft_function/cloud.py" in names and "numpy/__init__.py" in names
    assert not any(name.startswith(("weft/", "torch", "zmq")) or "/tests/" in name for name in names)
    assert json.loads(invoke_policy("f"))["Statement"][0]["Action"] == "lambda:InvokeFunction"
    with pytest.raises(UserError, match="choose x86_64 or arm64"):
        build_archive(archive, "sparc")
