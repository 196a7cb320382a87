"""Under torchrun: killed agents and stopped workers leave no process behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos.processes import TOKEN, left, new_token, of_token
from tests.launch.launching import ROOT, epoch_of, epoch_reached, wait_until

DEADLINE_SECONDS = 6


@contextmanager
def torchrun(folder: Path, nodes: int, workers: int, *script: str) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """A torchrun per node, all on this machine, and the token that everything they start carries."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = new_token()
    agents = []
    try:
        for node in range(nodes):
            command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--node-rank={node}",
                       f"--nproc-per-node={workers}", "--master-addr=127.0.0.1",
                       f"--master-port={port}", *script]  # fmt: skip
            variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", TOKEN: token}
            with (folder / f"agent-{node}.log").open("w") as log:
                agents.append(subprocess.Popen(command, cwd=ROOT, env=os.environ | variables, text=True, stdout=log,
                                               stderr=subprocess.STDOUT, start_new_session=True))  # fmt: skip
        yield token, agents
    finally:
        for agent in agents:
            agent.kill()
            agent.wait(10)
        for process in of_token(token):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _exchanging(folder: Path, deadline_seconds: float = 300.0) -> list[str]:
    """Workers that exchange rows without end."""
    return ["-m", "tests.multihost.comm_script", str(folder), "1000000", str(deadline_seconds)]


def _worker(token: str, number: int) -> int:
    """The process id of a worker."""
    found = [p.pid for p in of_token(token) if "comm_script" in p.command and p.variables.get("RANK") == str(number)]
    assert len(found) == 1, found
    return found[0]


def _await_epochs(folder: Path, workers: int, agents: list[subprocess.Popen[str]]) -> None:
    wait_until(lambda: all(epoch_reached(folder, worker, 3) for worker in range(workers)), seconds=180)
    assert [agent.poll() for agent in agents] == [None] * len(agents)


def test_workers_end_with_an_agent_that_is_killed_even_those_that_are_stopped(tmp_path: Path) -> None:
    with torchrun(tmp_path, 1, 2, *_exchanging(tmp_path)) as (token, agents):
        _await_epochs(tmp_path, 2, agents)
        os.kill(_worker(token, 1), signal.SIGSTOP)
        assert len(of_token(token)) == 5  # the agent, and two workers with a guard each
        agents[0].kill()
        agents[0].wait(10)
        assert left(token, seconds=20) == []  # long before the deadline of 300 s


def test_workers_end_with_an_agent_that_is_killed_while_they_start(tmp_path: Path) -> None:
    for delay_seconds in (0.0, 1.0):
        with torchrun(tmp_path, 1, 2, *_exchanging(tmp_path)) as (token, agents):
            wait_until(lambda: len(of_token(token)) > 1, seconds=120)
            time.sleep(delay_seconds)
            agents[0].kill()
            agents[0].wait(10)
            assert left(token, seconds=60) == []


def test_a_stopped_worker_that_is_alone_on_its_host_is_ended(tmp_path: Path) -> None:
    with torchrun(tmp_path, 2, 1, *_exchanging(tmp_path, DEADLINE_SECONDS)) as (token, agents):
        _await_epochs(tmp_path, 2, agents)
        os.kill(_worker(token, 1), signal.SIGSTOP)
        codes = [agent.wait(120) for agent in agents]
        assert left(token, seconds=20) == []
    said = [" ".join((tmp_path / f"agent-{node}.log").read_text().split()) for node in range(2)]
    assert all(codes), said
    assert "worker 0 lost worker 1 during epoch" in said[0], said[0]
    assert f"worker 1 was stopped for longer than the deadline of {DEADLINE_SECONDS} s and was ended" in said[1]


def test_a_worker_that_is_stopped_for_a_moment_goes_on(tmp_path: Path) -> None:
    with torchrun(tmp_path, 1, 2, *_exchanging(tmp_path, 20.0)) as (token, agents):
        _await_epochs(tmp_path, 2, agents)
        pid = _worker(token, 0)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(4.0)
        before = epoch_of(tmp_path, 1)
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: epoch_reached(tmp_path, 1, before + 5), seconds=60)
        assert agents[0].poll() is None
