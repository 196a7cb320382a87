"""Two hosts on one machine: network namespaces joined by a virtual cable, one torchrun in each."""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.hosts import why_not as why_not

ROOT = Path(__file__).parents[2]
RENDEZVOUS_PORT = 29400  # in a namespace of its own, so that it is always free


@dataclass
class Hosts:
    """Two namespaces; `start` runs a command in one of them."""

    names: tuple[str, str]
    cables: tuple[str, str]
    addresses: tuple[str, str] = ("10.77.0.1", "10.77.0.2")
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, host: int, command: list[str], **variables: str) -> subprocess.Popen[str]:
        # Output goes to a file: a full pipe must not stop a host whose output nobody reads yet.
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the host)
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *command],
            cwd=ROOT,
            env=os.environ | {"GLOO_SOCKET_IFNAME": self.cables[host], "OMP_NUM_THREADS": "1"} | variables,
            text=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        process.log = log  # type: ignore[attr-defined]
        self.processes.append(process)
        return process

    def torchrun(self, host: int, workers: int, arguments: list[str]) -> subprocess.Popen[str]:
        """One host's torchrun, as on two real machines."""
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes=2",
            f"--nproc-per-node={workers}",
            f"--node-rank={host}",
            f"--master-addr={self.addresses[0]}",
            f"--master-port={RENDEZVOUS_PORT}",
            *arguments,
        ]
        return self.start(host, command)

    def cut(self) -> None:
        """Pulls the cable: packets vanish, connections stay open."""
        _ip("-n", self.names[1], "link", "set", self.cables[1], "down")

    def mend(self) -> None:
        """Puts the cable back."""
        _ip("-n", self.names[1], "link", "set", self.cables[1], "up")


def finish(process: subprocess.Popen[str], timeout_seconds: float) -> tuple[int, str]:
    """Exit code and output of a command that must end in time."""
    code = process.wait(timeout_seconds)
    return code, output(process)


def output(process: subprocess.Popen[str]) -> str:
    log = process.log  # type: ignore[attr-defined]
    log.seek(0)
    return str(log.read())


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Two joined namespaces with names that nobody else has; gone at the end, with all that runs in them."""
    tag = uuid.uuid4().hex[:6]
    hosts = Hosts((f"weft{tag}a", f"weft{tag}b"), (f"wf{tag}a", f"wf{tag}b"))
    try:
        for name in hosts.names:
            _ip("netns", "add", name)
        first, second = hosts.cables
        _ip("-n", hosts.names[0], "link", "add", first, "type", "veth", "peer", "name", second, "netns", hosts.names[1])
        for name, cable, address in zip(hosts.names, hosts.cables, hosts.addresses, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            _ip("-n", name, "link", "set", cable, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield hosts
    finally:
        for process in hosts.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        for name in hosts.names:
            for pid in _pids_in(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _pids_in(name: str) -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
