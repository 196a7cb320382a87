"""What this machine can do for weft, and what is missing."""

import importlib.util
import shutil
import time

import torch
import torch.distributed as dist

from weft.cli.gpu import Finding, gpu_findings
from weft.disk.space import size
from weft.errors import EXTRAS
from weft.kernels import build
from weft.kernels.backends import backends
from weft.training.machine import describe_machine

GIVES = {
    "pymetis": "METIS partitions",
    "torch_geometric": "data sets of PyG",
    "boto3": "cloud functions",
    "ray": "a Ray cluster's actors",
}


def examine() -> list[Finding]:
    machine = describe_machine()
    memory = size(machine["memory_bytes"])
    findings = [
        Finding("machine", "ok", f"{machine['cpu']}, {machine['cores']} cores, {memory}"),
        Finding("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        _kernels(),
        *_kernel_backends(),
        *_channels(),
        _bandwidth(),
        _huge_pages(machine["huge_pages"]),
        *gpu_findings(),
    ]
    findings += [_extra(module, what) for module, what in GIVES.items()]
    tools = shutil.which("ip") is not None
    findings.append(
        Finding("iproute2", "ok" if tools else "note", "" if tools else "tests of several hosts are skipped")
    )
    return findings


def _kernels() -> Finding:
    if build.problem is None:
        return Finding("native kernels", "ok", f"built for {build.native_module_isa()}")
    return Finding("native kernels", "missing", build.problem)


def _kernel_backends() -> list[Finding]:
    """Each by the devices that it serves, in the order in which they are asked."""
    findings = []
    for backend in backends():
        name, where = f"kernels: {backend.name}", "every device"
        if backend.devices is not None:
            where = ", ".join(sorted(backend.devices))
        lacks, has = backend.lacks(), len(backend.kernels)
        if backend.problem is not None:
            here = "cuda" not in where or torch.cuda.is_available()
            findings.append(Finding(name, "missing" if here else "note", f"{where}: {backend.problem}"))
        elif lacks:
            text = f"{where}: {has} of {has + len(lacks)} kernels, lacks {', '.join(lacks)}"
            findings.append(Finding(name, "note", text))
        else:
            findings.append(Finding(name, "ok", f"{where}: all {has} kernels"))
    return findings


def _channels() -> list[Finding]:
    if not dist.is_available():
        return [Finding("torch.distributed", "missing", "this torch has none: only one worker can run")]
    have = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    return [Finding("torch.distributed", "ok", ", ".join(name for name, there in have.items() if there))]


def _bandwidth(num_bytes: int = 1 << 28) -> Finding:
    source, target = torch.ones(num_bytes // 4), torch.empty(num_bytes // 4)
    target.copy_(source)
    started = time.perf_counter()
    for _ in range(3):
        target.copy_(source)
    rate = 3 * 2 * num_bytes / (time.perf_counter() - started)
    return Finding("memory bandwidth", "ok", f"{rate / 1e9:.0f} GB/s (copy, read and written)")


def _huge_pages(state: str) -> Finding:
    if "never" in state:
        return Finding("huge pages", "note", "off in this kernel: large tensors cost more page faults")
    return Finding("huge pages", "ok", state)


def _extra(module: str, what: str) -> Finding:
    if importlib.util.find_spec(module) is not None:
        return Finding(module, "ok", "")
    return Finding(module, "note", f"not installed; it gives {what}: pip install '.[{EXTRAS[module]}]'")
