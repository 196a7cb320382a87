"""The batch script that runs a job under Slurm: its resources, one torchrun on each node, and how it goes on.

Before the time limit Slurm signals the workers, which write a checkpoint and leave; the script then queues itself again
and the run goes on. Slurm itself queues it again where a node fails.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import UserError
from weft.submit.job import MEETING_SECONDS, ClusterJob, seconds_of
from weft.submit.programs import call

LEAST_SECONDS = 60  # the unit of Slurm's limits


@dataclass(frozen=True)
class Limits:
    """What Slurm is to be told beside what a run needs."""

    time: str = "04:00:00"
    options: Sequence[str] = ()  # of sbatch, without the dashes: partition=long
    setup: Sequence[str] = ()  # commands of the shell, before anything is started


def script(job: ClusterJob, limits: Limits) -> str:
    """The text for sbatch."""
    heredoc = _end_of_text(job.settings)
    parts = [
        "#!/bin/bash\n" + "".join(f"#SBATCH --{option}\n" for option in _options(job, limits)),
        _HEAD.format(run=shlex.quote(job.run), end=heredoc, settings=job.settings),
        "".join(f"{command}\n" for command in limits.setup),
        _ENVIRONMENT.format(exports=" ".join(f"{name}={value}" for name, value in job.variables().items())),
        _START.format(torchrun=shlex.join(job.torchrun())),
    ]
    return "".join(parts)


def submit(text: str) -> str:
    """Queues a script; returns what Slurm says."""
    return call(["sbatch"], text, "a job cannot be queued from here", "run this where Slurm's commands are")


def _options(job: ClusterJob, limits: Limits) -> list[str]:
    seconds = seconds_of(limits.time)
    if seconds < LEAST_SECONDS + MEETING_SECONDS:
        raise UserError(
            f"--time {limits.time} leaves nothing for training: the last {MEETING_SECONDS} s of it are for the "
            f"checkpoint, so give {(LEAST_SECONDS + MEETING_SECONDS) // 60}m or more"
        )
    for option in limits.options:
        if option.startswith("-") or not option.strip() or not option.isprintable():
            raise UserError(f"--sbatch '{option}' is no option of sbatch: write it without dashes, as partition=long")
    minutes = -(-seconds // 60)
    options = [
        f"job-name={job.name}",
        f"nodes={job.hosts}",
        "ntasks-per-node=1",
        f"cpus-per-task={job.workers_each * job.threads}",
        f"mem={job.memory_mib}M",
        *([f"gpus-per-node={job.gpus_each}"] if job.gpus_each else []),
        f"time={minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00",
        f"signal=TERM@{MEETING_SECONDS}",
        "requeue",
        "open-mode=append",
        f"output={_quoted(job.run.replace('%', '%%') + '-%j.log')}",
    ]
    return [*options, *limits.options]


def _quoted(path: str) -> str:
    """A value as sbatch reads it in a line of a script."""
    if not any(character in path for character in " \t'\"\\#"):
        return path
    if any(character in path for character in '"\\'):
        raise UserError(f"sbatch takes no path with quotation marks or backslashes: rename {path}")
    return f'"{path}"'


def _end_of_text(text: str) -> str:
    """A line that does not stand in the text, at which it ends."""
    end = "END_OF_SETTINGS"
    while end in text.splitlines():
        end += "_"
    return end


_HEAD = """\
set -euo pipefail

run={run}
cat > "$run.yaml" <<'{end}'
{settings}{end}

"""

_ENVIRONMENT = """\
# The interface that rows travel on; name it where the default route is not the fast network.
export GLOO_SOCKET_IFNAME=${{GLOO_SOCKET_IFNAME:-$(ip route show default | awk 'NR == 1 {{print $5}}')}}
export NCCL_SOCKET_IFNAME=${{NCCL_SOCKET_IFNAME:-$GLOO_SOCKET_IFNAME}}
export {exports}

"""

_START = """\
# Which summary lies there: one that was there before says nothing of how the workers end now.
summary() {{ stat -c '%i %Y %s' "$run/summary.json" 2> /dev/null || true; }}
before=$(summary)

# Every node runs the same command; torchrun reads its number from PET_NODE_RANK.
torchrun=({torchrun}
    --master-addr="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk 'NR == 1')"
    --master-port="$((20000 + SLURM_JOB_ID % 10000))")
weft=(weft train "$run.yaml" --resume) # from the start where there is no checkpoint yet
code=0
srun --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" \\
    bash -c 'PET_NODE_RANK=$SLURM_NODEID exec "$@"' _ "${{torchrun[@]}}" -m -- "${{weft[@]}}" || code=$?

# The signal before the time limit came and the checkpoint is written: go on in a new allocation. (A job that is
# cancelled does not come here: Slurm signals this script, too, which ends it.)
if [ "$code" -ne 0 ] && [ "$(summary)" != "$before" ] &&
    grep -qs '"status": "interrupted"' "$run/summary.json"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
