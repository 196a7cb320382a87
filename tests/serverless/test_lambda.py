"""Functions behind the Invoke API, in processes of the real runtime client on this machine: nothing is imitated."""

import json
import time
import zipfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("awslambdaric", reason="needs weft[serverless]")
pytest.importorskip("boto3", reason="needs weft[serverless]")

from tests.serverless.cases import CASES, Killing, pipelined, some_shards
from tests.workers import run_workers
from weft.comm import Communicator
from weft.errors import UserError
from weft.serverless.deploy import HANDLER, MOST_UPLOAD_BYTES, build_archive, invoke_policy
from weft.serverless.endpoint import Endpoint, serving
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
    killing = Killing(50, tasks_between=8)
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
    assert size < MOST_UPLOAD_BYTES
    assert "weft_function/cloud.py" in names and "numpy/__init__.py" in names and "zmq/__init__.py" in names
    assert not any(name.startswith(("weft/", "torch")) or "/tests/" in name for name in names)
    assert json.loads(invoke_policy("f"))["Statement"][0]["Action"] == "lambda:InvokeFunction"
    with pytest.raises(UserError, match="choose x86_64 or arm64"):
        build_archive(archive, "sparc")
