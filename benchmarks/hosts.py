"""Several hosts on one machine: network namespaces on a switch, each behind a link of a stated bandwidth.

Needs root and iproute2. Only names that this module has made are touched, and they are gone at the end. All hosts use
TCP's plain congestion control (reno), whatever this machine prefers: bbr, for one, does not fill such links.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.prepare import partition

ROOT = Path(__file__).parents[1]
PORT = 29400  # of the rendezvous, in a namespace of its own


def why_not() -> str | None:
    """Why this machine cannot play several hosts; None: it can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    for command in ("ip", "tc"):
        if shutil.which(command) is None:
            return f"network namespaces need iproute2 (the command `{command}`)"
    name = f"weft{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None if made.returncode == 0 else f"network namespaces are not allowed here: {made.stderr.strip()}"


@dataclass
class Hosts:
    switch: str
    names: list[str]
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def address(self, host: int) -> str:
        return f"10.78.0.{host + 1}"

    def shape(self, megabits: float | None) -> None:
        """Every host sends and receives with so many Mb/s; None: as fast as the machine can."""
        for number, name in enumerate(self.names):
            for namespace, device in ((name, "eth0"), (self.switch, f"port{number}")):
                subprocess.run(["ip", "netns", "exec", namespace, "tc", "qdisc", "del", "dev", device, "root"],
                               capture_output=True)  # fmt: skip
                if megabits is not None:
                    burst = max(16_384, int(megabits * 1e6 / 8 / 250))  # what passes in 4 ms
                    # Larger packets would be cut into those of a wire, one by one, by the processors that are timed.
                    _run("ip", "netns", "exec", namespace, "ip", "link", "set", "dev", device, "gso_max_size",
                         str(min(65_536, int(burst * 0.9))))  # fmt: skip
                    _run("ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate",
                         f"{megabits}mbit", "burst", str(burst), "latency", "100ms")  # fmt: skip

    def start(self, host: int, command: list[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
        """A worker on a host, talking over pipes."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *command],
            cwd=ROOT,
            env={
                **os.environ,
                "GLOO_SOCKET_IFNAME": "eth0",
                "MASTER_ADDR": self.address(0),
                "MASTER_PORT": str(PORT),
                "RANK": str(host),
                "WORLD_SIZE": str(len(self.names)),
                "LOCAL_WORLD_SIZE": "1",
                "OMP_NUM_THREADS": "1",
                **variables,
            },
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        return process


def start_workers(hosts: Hosts, module: str, *arguments: str) -> list[subprocess.Popen[str]]:
    """One worker on each host: `python -m MODULE --serve ARGUMENTS`."""
    command = [sys.executable, "-m", module, "--serve", *arguments]
    return [hosts.start(host, command, dict(os.environ)) for host in range(len(hosts.names))]


@contextmanager
def workers_behind_links(
    count: int, module: str, graph: str, method: str = "auto"
) -> Iterator[tuple[Hosts, list[Any]]]:
    """Hosts, and a worker on each that is handed the parts of a graph and then answers questions (see `ask`)."""
    with tempfile.TemporaryDirectory() as folder, hosts_on_a_switch(count) as hosts:
        parts = Path(folder) / "parts"
        partition(graph, count, parts, method)
        yield hosts, start_workers(hosts, module, str(parts))


@contextmanager
def hosts_on_a_switch(count: int) -> Iterator[Hosts]:
    reason = why_not()
    if reason is not None:
        sys.exit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what follows is undone then, too
    tag = uuid.uuid4().hex[:6]
    hosts = Hosts(f"weft{tag}s", [f"weft{tag}{number}" for number in range(count)])
    try:
        for name in (hosts.switch, *hosts.names):
            _run("ip", "netns", "add", name)
        _run("ip", "-n", hosts.switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hosts.switch, "link", "set", "bridge", "up")
        for number, name in enumerate(hosts.names):
            port = f"port{number}"
            _run("ip", "-n", hosts.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "-n", hosts.switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", name, "addr", "add", f"{hosts.address(number)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "netns", "exec", name, "sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")
        yield hosts
    finally:
        for process in hosts.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        for name in (*hosts.names, hosts.switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def workers_here(count: int, module: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Workers of one thread on this machine, without hosts of their own: `python -m MODULE --serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", module, "--serve"],
            env={**os.environ, **shared, "RANK": str(worker)},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for worker in range(count)
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def ask(workers: list[Any], question: dict[str, Any]) -> list[dict[str, Any]]:
    """The same question to workers that read and write lines of JSON; what each of them answers."""
    for worker in workers:
        worker.stdin.write(json.dumps(question) + "\n")
        worker.stdin.flush()
    answers = []
    for worker in workers:
        line = worker.stdout.readline()
        if not line:
            raise RuntimeError("a worker has ended; what it said stands above")
        answers.append(json.loads(line))
    return answers


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
