"""A description of the machine that a measurement was made on."""

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from weft.disk.space import machine_memory_bytes
from weft.kernels.backends import backend_for


def describe_machine() -> dict[str, Any]:
    """The processor, memory and software under this process, as plain JSON values."""
    description: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": _num_cores(),
        "threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "memory_bytes": machine_memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": _kernels(),
        "huge_pages": _huge_pages(),
        "huge_page_allocator": os.environ.get("THP_MEM_ALLOC_ENABLE") == "1",
    }
    if torch.cuda.is_available():
        description["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return description


def peak_rss_bytes() -> int:
    """The most physical memory this process has held.

    VmHWM belongs to this program alone; getrusage's maximum also covers what the process was before exec, so
    a worker started by a large parent would report the parent.
    """
    known = _status_bytes("VmHWM:")
    if known is not None:
        return known
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def rss_bytes() -> int:
    """The physical memory this process holds now; where the system does not say, the most it has held."""
    known = _status_bytes("VmRSS:")
    return peak_rss_bytes() if known is None else known


def peak_gpu_bytes(device: torch.device) -> int:
    """The most that tensors of this process have held of a GPU's memory; 0 for the CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _status_bytes(name: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _num_cores() -> int:
    """Cores this process may use, which in a container or under Slurm are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _kernels() -> str:
    """Which backend runs the kernels of tensors in memory."""
    return backend_for(torch.empty(0)).name


def _huge_pages() -> str:
    """The kernel's mode of transparent huge pages: always, madvise, never or unknown."""
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unknown"
    return text[text.find("[") + 1 : text.find("]")]
