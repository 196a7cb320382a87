"""What `weft doctor` says of GPUs: which there are, their driver, Triton, and how fast a copy and an SpMM are there."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from weft import kernels
from weft.disk.space import size
from weft.kernels import triton

COPIED_BYTES = 1 << 30
ROWS, EDGES, COLUMNS = 200_000, 4_000_000, 128
TIMES = 10


@dataclass(frozen=True)
class Finding:
    name: str
    state: Literal["ok", "note", "missing"]
    text: str


def gpu_findings() -> list[Finding]:
    version = triton.installed_version()
    problem = triton.problem_with(version)
    if not torch.cuda.is_available():
        found = "not installed" if version is None else version
        return [
            Finding("gpu", "note", f"none that torch {torch.__version__} can use: weft runs on the CPU"),
            Finding("triton", "note", f"{found}; no GPU needs it here"),
        ]
    gpus = [_gpu(number) for number in range(torch.cuda.device_count())]
    named = Finding("triton", "missing", problem) if problem else Finding("triton", "ok", f"{version}")
    return [*gpus, Finding("cuda", "ok", _driver()), named, _copy(), _spmm()]


def _gpu(number: int) -> Finding:
    about = torch.cuda.get_device_properties(number)
    text = f"{about.name}, {size(about.total_memory)}, compute capability {about.major}.{about.minor}"
    return Finding(f"gpu {number}", "ok", text)


def _driver() -> str:
    reported = getattr(torch._C, "_cuda_getDriverVersion", None)  # of CUDA that the driver has: 13000 is 13.0
    driver = "unknown" if reported is None else f"{reported() // 1000}.{reported() % 1000 // 10}"
    return f"torch was built for CUDA {torch.version.cuda}, the driver has {driver}"


def _copy() -> Finding:
    source = torch.ones(COPIED_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    seconds = seconds_on_gpu(lambda: target.copy_(source))
    return Finding("gpu copy", "ok", f"{2 * COPIED_BYTES / seconds / 1e9:,.0f} GB/s (read and written)")


def _spmm() -> Finding:
    draw = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(ROWS, (EDGES,), generator=draw).cuda() for _ in range(2))
    indptr, indices, _ = kernels.build_csr(src, dst, ROWS, ROWS)
    x, cut = torch.ones(ROWS, COLUMNS, device="cuda"), kernels.cut_rows(indptr)
    seconds = seconds_on_gpu(lambda: kernels.spmm(indptr, indices, x, cut=cut))
    gathered = EDGES * COLUMNS * 4 / seconds / 1e9
    text = f"{seconds * 1e3:.2f} ms for {EDGES:,} edges of {COLUMNS} columns ({gathered:,.0f} GB/s gathered)"
    return Finding("gpu spmm", "ok", text)


def seconds_on_gpu(work: Callable[[], object]) -> float:
    """The median of several times, as events on the device see them; the first two are not counted."""
    found = []
    for _ in range(TIMES + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return float(statistics.median(found[2:]))
