"""Whole runs with functions: killed, resumed, evaluated on rows that were not trained on, refused with a reason."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.graph.typed import hetero
from tests.launch.launching import ROOT, alive, wait_until
from weft.config import make_config
from weft.errors import UserError
from weft.graph import save_graph
from weft.run import start
from weft.serverless.invokers import server_address

SMALL: dict[str, Any] = {
    "data": "synthetic:demo", "model": {"name": "gcn", "hidden": 8, "dropout": 0.3}, "threads": 1, "workers": 2,
    "train": {"epochs": 12, "checkpoint_every": 2, "precision": "float64"},
    "executor": {"name": "pool", "intervals": 4, "workers": 1, "placement": "functions"},
}  # fmt: skip


def train(folder: Path, **settings: Any) -> dict[str, Any]:
    merged = {**SMALL, **settings, "run": str(folder)}
    merged["executor"] = {**SMALL["executor"], **settings.get("executor", {})}
    return dict(start(make_config(merged), quiet=True).summary)


def test_a_killed_server_resumes_with_the_same_weights(tmp_path: Path) -> None:
    """A graph server, owner of weights, too, ends with SIGKILL: its functions leave, and the run goes on from disk."""
    wanted = train(tmp_path / "whole")
    run = tmp_path / "killed"
    config = tmp_path / "config.yaml"
    settings = {**SMALL, "run": str(run), "executor": {**SMALL["executor"], "delay_ms": 30}}
    config.write_text(json.dumps(settings))
    process = subprocess.Popen([sys.executable, "-m", "weft", "train", str(config)], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    try:
        wait_until(lambda: (run / "checkpoints" / "epoch-000004").exists(), seconds=120)
        servers = children(process.pid)
        functions = [pid for server in servers for pid in children(server)]
        assert len(servers) == 2 and len(functions) >= 2
        os.kill(servers[1], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1 and "was killed by SIGKILL" in err and "Traceback" not in err
    wait_until(lambda: not any(alive(pid) for pid in functions), seconds=20)
    manifest = json.loads(newest(run / "checkpoints").joinpath("manifest.json").read_text())
    assert manifest["notes"]["ledger"] == {"closed": manifest["progress"]["epoch"]}
    done = subprocess.run([sys.executable, "-m", "weft", "train", "--resume", "--run", str(run)], cwd=ROOT, text=True,
                          capture_output=True, timeout=200, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((run / "summary.json").read_text())
    assert found["weights_sha256"] == wanted["weights_sha256"]


def test_types_of_vertices_train_in_a_pool_as_in_whole_passes(tmp_path: Path) -> None:
    save_graph(weft.from_pyg(hetero(learned=False)), tmp_path / "graph")
    more = {"data": str(tmp_path / "graph"), "model": {"name": "gat", "hidden": 4, "heads": 2}}
    found = train(tmp_path / "pool", **more)
    wanted = weft.train(run=tmp_path / "whole", quiet=True, **more, threads=1, train=SMALL["train"]).summary
    assert found["train_loss"] == pytest.approx(wanted["train_loss"], rel=1e-9)
    assert found["test_accuracy"] == wanted["test_accuracy"]
    run = weft.Run(tmp_path / "pool")
    np.testing.assert_allclose(
        run.outputs().values, weft.Run(tmp_path / "whole").outputs().values, rtol=1e-7, atol=1e-9
    )


def test_accuracy_does_not_depend_on_intervals_and_workers(tmp_path: Path) -> None:
    """It is measured over the whole graph, on rows that no training row is among."""
    one = train(tmp_path / "one", workers=1, executor={"intervals": 3, "name": "inline"})
    many = train(tmp_path / "many", workers=3, executor={"intervals": 7, "name": "inline"})
    plain = train(tmp_path / "plain", workers=1, executor={"intervals": None, "name": "inline"})
    for split in ("train", "val", "test"):
        assert one[f"{split}_accuracy"] == many[f"{split}_accuracy"] == plain[f"{split}_accuracy"]
    assert one["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"executor": {"staleness": 1}}, "this run has none"),
        ({"executor": {"intervals": 4, "staleness": -1}}, "use pipe, 0 or more"),
        ({"strategy": "dorylus", "exchange": {"codec": "int8"}}, "leave out"),
        ({"strategy": "dorylus", "exchange": {"plan": "split"}}, "use plan full"),
        ({"strategy": "dorylus", "executor": {"most_workers": 1}}, "less than executor.workers"),
        ({"strategy": "dorylus", "executor": {"name": "lambda", "workers": 0}}, "1 or more"),
        (
            {"strategy": "dorylus", "train": {"precision": "float64"}, "executor": {"wire": "bfloat16"}},
            "halves float32",
        ),
    ],
)
def test_refused_with_a_reason(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_config(settings)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "gin"}, "not GIN"),
        ({"norm": "batch"}, "needs all vertices at once"),
        ({"name": "sage", "reduce": "max"}, "not SAGE"),
        ({"input_dropout": 0.1}, "keep input"),
    ],
)
def test_models_that_cannot_be_taken_apart(model: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = {"workers": 1, "model": {**SMALL["model"], **model}, "executor": {"name": "inline", "intervals": 2}}
    with pytest.raises(UserError, match=message):
        train(tmp_path / "run", **settings)


def children(pid: int) -> list[int]:
    """Of any of its threads."""
    return [int(one) for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]


def newest(folder: Path) -> Path:
    return sorted(folder.glob("epoch-*"))[-1]


def test_a_run_whose_workers_others_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two graph servers on a machine listen at ports one after another, and workers are started by hand for each."""
    first = free_ports(2)
    monkeypatch.setenv("WEFT_KEY", "5" * 64)
    executor = {"workers": 0, "bind": f"tcp://127.0.0.1:{first}", "placement": "auto"}
    workers = [
        subprocess.Popen([sys.executable, "-m", "weft", "worker", f"tcp://127.0.0.1:{first + server}"], cwd=ROOT)
        for server in range(2)
    ]
    try:
        found = train(tmp_path / "brought", executor=executor)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()
    assert found["weights_sha256"] == train(tmp_path / "here")["weights_sha256"]
    records = [json.loads(line) for line in (tmp_path / "brought" / "metrics.jsonl").read_text().splitlines()]
    assert sum(record["functions"]["tasks"] for record in records) > 0


def test_a_run_that_nobody_brings_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_KEY", raising=False)
    with pytest.raises(UserError, match=r"WEFT_KEY here and there \('export WEFT_KEY=\$\(openssl rand -hex 32\)'\)"):
        train(tmp_path / "keyless", workers=1, executor={"workers": 0})
    monkeypatch.setenv("WEFT_KEY", "5" * 64)
    with pytest.raises(UserError, match=r"no worker has come to tcp://127.0.0.1:\d+ in 1 s: start some with 'weft wo"):
        train(tmp_path / "alone", workers=1, deadline_seconds=1.0, executor={"workers": 0})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_waits_for_workers_ends_when_it_is_asked_to(tmp_path: Path, number: int) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({**SMALL, "run": str(tmp_path / "run"), "executor": {"name": "pool", "workers": 0}}))
    environment = {**os.environ, "WEFT_KEY": "5" * 64}
    process = subprocess.Popen([sys.executable, "-m", "weft", "train", str(config)], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)  # fmt: skip
    try:
        assert process.stderr is not None
        said = ""
        while "waiting for workers" not in said:
            said = process.stderr.readline()
            assert said, "it ended"
        assert "at tcp://127.0.0.1:" in said and "(there: weft worker tcp://127.0.0.1:" in said
        servers = children(process.pid)
        process.send_signal(number)
        _, err = process.communicate(timeout=50)  # workers that are deaf would have a minute
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + number and "Traceback" not in err and "did not leave" not in err
    assert len(servers) == 2 and not any(alive(pid) for pid in servers)


def free_ports(count: int) -> int:
    """The first of some consecutive ports that nobody listens at."""
    while True:
        with ExitStack() as opened:
            first = opened.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            with suppress(OSError, OverflowError):
                for port in range(first + 1, first + count):
                    opened.enter_context(socket.create_server(("127.0.0.1", port)))
                return int(first)


def test_servers_of_a_machine_listen_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert server_address("tcp://10.0.0.1:7000") == "tcp://10.0.0.1:7002"
    assert server_address("tcp://127.0.0.1:*") == "tcp://127.0.0.1:*"
