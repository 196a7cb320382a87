"""The recipes of docs/examples start what they say: checked with torchrun's own parser and a make-believe Slurm."""

import os
import subprocess
from pathlib import Path

import yaml
from torch.distributed.run import get_args_parser

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def _fake(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def _slurm(tmp_path: Path, torchrun: str) -> tuple[int, Path]:
    """The script under programs that stand for Slurm: two nodes, run one after the other."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    calls = tmp_path / "calls"
    calls.unlink(missing_ok=True)
    _fake(programs, "srun", 'shift; for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@" || exit $?; done')
    _fake(programs, "scontrol", f'if [ "$1" = show ]; then echo node7; echo node8; else echo "$@" >> {calls}; fi')
    _fake(programs, "torchrun", f'printf "%s\\n" "$*" >> {calls}; {torchrun}')
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_NNODES": "2",
        "SLURM_CPUS_PER_TASK": "32",
        "SLURM_JOB_ID": "123",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    command = ["bash", str(EXAMPLES / "slurm.sh"), "my config.yaml", "/shared/parts", str(tmp_path / "run")]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60)
    return done.returncode, calls


def test_slurm_starts_one_torchrun_per_node(tmp_path: Path) -> None:
    code, calls = _slurm(tmp_path, "exit 0")
    assert code == 0
    lines = calls.read_text().splitlines()
    assert len(lines) == 2
    for node, line in enumerate(lines):
        assert f"--node-rank {node} " in line
        assert "--nnodes 2 --nproc-per-node 4" in line
        assert "--master-addr node7 --master-port 20123" in line
        assert line.endswith(f"-m -- weft train my config.yaml --data /shared/parts --run {tmp_path / 'run'} --resume")


def test_slurm_goes_on_after_an_interruption_only(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints" / "000012").mkdir(parents=True)
    (run / "summary.json").write_text('{\n  "status": "interrupted"\n}')
    code, calls = _slurm(tmp_path, "exit 1")
    assert code == 1
    assert calls.read_text().splitlines()[-1] == "requeue 123"
    assert "--resume" in calls.read_text()
    (run / "summary.json").unlink()
    code, calls = _slurm(tmp_path, "exit 1")
    assert code == 1
    assert "requeue" not in calls.read_text()


def test_kubernetes_manifest_is_whole() -> None:
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    pod = job["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed"
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["torchrun"]
    args = [argument.replace("$(JOB_COMPLETION_INDEX)", "1") for argument in container["args"]]
    parsed = get_args_parser().parse_args(args)
    assert parsed.module and parsed.training_script == "weft"
    assert parsed.training_script_args[0] == "train" and "--run=/data/runs/first" in parsed.training_script_args
    assert int(parsed.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert parsed.node_rank == 1
    assert parsed.master_addr == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert parsed.master_port == container["ports"][0]["containerPort"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}
