"""Slurm on this machine: its own daemons on the loopback interface, with nodes that are names; all in one folder."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.launch.launching import alive, wait_until
from weft.launch.parent import end_with_parent

PROGRAMS = ("munged", "slurmctld", "slurmd", "slurmstepd", "sbatch", "srun", "scontrol", "squeue", "scancel")
FOLDERS = ("/usr/sbin", "/sbin")  # of daemons, which the PATH of a user lacks
NODES = ("127.0.0.1", "127.0.0.2")  # names by which they find each other without a name server

CONF = """\
ClusterName=weft
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=30
NodeName=127.0.0.1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=4 RealMemory=16000
NodeName=127.0.0.2 NodeHostname={host} NodeAddr=127.0.0.2 Port={port2} CPUs=4 RealMemory=16000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why Slurm cannot be started here; None: it can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [name for name in PROGRAMS if _find(name) is None and name != "slurmstepd"]
    return f"Slurm is not installed: no {missing[0]} (Debian: slurm-wlm, munge)" if missing else None


def _find(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *FOLDERS)))


@dataclass(frozen=True)
class Slurm:
    """A running cluster of two nodes, NODES."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def field(self, job: str, name: str) -> str:
        """What `scontrol show job` says: JobState, Restarts, Reason."""
        shown = dict(word.split("=", 1) for word in self.call("scontrol", "show", "job", job).split() if "=" in word)
        return shown[name]

    def wait_for(self, job: str, states: Sequence[str], seconds: float) -> str:
        """Waits until a job is in one of these states, and returns it. It asks seldom: each time starts a process."""
        until = time.monotonic() + seconds
        while (state := self.field(job, "JobState")) not in states:
            assert time.monotonic() < until, f"job {job} is {state} after {seconds:g} s\n{self.logs()}"
            time.sleep(1)
        return state

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in self.folder.glob("*.log"))


@contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """The daemons, until the end of the block; whatever of them or their jobs is left then is killed."""
    folder.mkdir(mode=0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname().split(".")[0]
    ctld_port, port1, port2 = _free_ports(3)
    (folder / "slurm.conf").write_text(
        CONF.format(host=host, folder=folder, ctld_port=ctld_port, port1=port1, port2=port2)
    )
    slurm = Slurm(folder)
    with ExitStack() as stack:
        stack.callback(_end_all, folder)
        _start(stack, slurm, "munged", ["--foreground", "--force", f"--socket={folder}/munge.socket",
               f"--key-file={folder}/munge.key", f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log",
               f"--seed-file={folder}/munged.seed"])  # fmt: skip
        wait_until((folder / "munge.socket").exists, seconds=60)
        _start(stack, slurm, "slurmctld", ["-D", "-i"])
        for node in NODES:
            _start(stack, slurm, "slurmd", ["-D", "-N", node])
        try:
            wait_until(lambda: _idle(slurm) == 2, seconds=90)
        except AssertionError:
            raise AssertionError(slurm.logs()) from None
        yield slurm
        subprocess.run(["scancel", "--signal=KILL", "--full", "--user=root"], env=slurm.environment, timeout=60)


def _start(stack: ExitStack, slurm: Slurm, program: str, arguments: Sequence[str]) -> None:
    path = _find(program)
    assert path is not None
    log = stack.enter_context((slurm.folder / f"{program}-output.log").open("a"))
    process = subprocess.Popen(
        [path, *arguments],
        env=slurm.environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
        cwd=slurm.folder,
        preexec_fn=partial(end_with_parent, os.getpid()),  # also where whoever runs the tests is killed
    )
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def _idle(slurm: Slurm) -> int:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%t"], env=slurm.environment, capture_output=True, text=True, timeout=30
    )
    return done.stdout.split().count("idle")


def left(folder: Path) -> list[int]:
    """Processes whose environment names this cluster: step daemons, batch scripts and what they started."""
    mark = f"SLURM_CONF={folder / 'slurm.conf'}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid() and alive(pid)]


def _end_all(folder: Path) -> None:
    for pid in left(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]
