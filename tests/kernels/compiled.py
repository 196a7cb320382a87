"""Compiles the kernels in Triton for GPUs that need not be there, as calls of weft.kernels would have them compiled.

    python -m tests.kernels.compiled            # every variant, for sm_80 and sm_90, with registers and spills
    python -m tests.kernels.compiled --few 90   # what the tests compile

A launch is caught where it would go to the device: its kernel, the types of its arguments and its constants are what
Triton's own launcher would compile. Nothing runs, so results are whatever memory held.
"""

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

from tests.kernels.graphs import randn, random_block
from tests.kernels.test_attention import RUNS, scalar_of
from tests.kernels.triton.sides import cutting
from weft import kernels
from weft.kernels.backends import only, registered
from weft.kernels.triton import BACKEND, launching

PIECE = 5


@dataclass(frozen=True)
class Variant:
    """One thing to compile."""

    name: str
    function: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[int, ...]  # arguments that 16 divides: addresses and sizes
    num_warps: int
    fusion: bool

    def compile(self, capability: int) -> Any:
        attributes = {(index,): [["tt.divisibility", 16]] for index in self.aligned}
        source = ASTSource(self.function, dict(self.signature), dict(self.constants), attributes)
        options = {"num_warps": self.num_warps, "enable_fp_fusion": self.fusion}
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)

    def __str__(self) -> str:
        types = " ".join(kind for _, kind in self.signature if kind.startswith("*"))
        return f"{self.name} warps={self.num_warps} {types}"


def variant_of(kernel: Any, args: tuple[object, ...], num_warps: int, constants: dict[str, object]) -> Variant:
    """What Triton's launcher compiles for this launch."""
    exact = bool(constants.pop("EXACT", False))
    steady = {getattr(each, "name", each) for each in kernel.do_not_specialize or ()}
    signature, fixed, aligned = {}, dict(constants), []
    for index, (name, value) in enumerate(zip(kernel.arg_names, args, strict=False)):
        signature[name] = kind = mangle_type(value, name not in steady)
        if kind == "constexpr":
            fixed[name] = value
        elif name not in steady:
            number = value.data_ptr() if isinstance(value, torch.Tensor) else value
            aligned += [index] if number % 16 == 0 else []  # type: ignore[operator]
    signature |= dict.fromkeys(constants, "constexpr")
    assert list(signature) == kernel.arg_names or set(signature) == set(kernel.arg_names), kernel.arg_names
    ordered = {name: signature[name] for name in kernel.arg_names}
    name = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__.strip('_')}"
    return Variant(name, kernel, tuple(ordered.items()), tuple(fixed.items()), tuple(aligned), num_warps, not exact)


@contextmanager
def caught() -> Iterator[list[Variant]]:
    """The variants of all launches in the block, none of which happens."""
    found: list[Variant] = []
    real = launching.run

    def note(
        kernel: Any, programs: tuple[int, ...], args: tuple[object, ...], num_warps: int, constants: dict[str, object]
    ) -> None:
        found.append(variant_of(kernel, args, num_warps, dict(constants)))

    launching.run = note
    stand_in = replace(BACKEND, name="caught", devices=frozenset({"cpu"}), edges_per_piece=PIECE)
    try:
        with registered(stand_in), only("caught", "reference"):
            yield found
    finally:
        launching.run = real


def call_rows(dtype: torch.dtype, width: int) -> None:
    block, scalar = random_block(20, 20, 200), scalar_of(dtype)
    x, weight, scale = randn(20, width, dtype=dtype), randn(200, dtype=scalar), randn(20, dtype=scalar)
    best, count = torch.zeros(20, width, dtype=scalar), torch.zeros(20, width, dtype=torch.int32)
    for side in (kernels, cutting(block)):
        side.spmm(block.indptr, block.indices, x)
        side.spmm(block.indptr, block.indices, x, None, scale, scale)
        side.spmm(block.indptr, block.indices, x, weight, out=torch.zeros(20, width, dtype=scalar), accumulate=True)
        side.max_absorb(block.indptr, block.indices, x, None, best, count)
        side.max_absorb(block.indptr, block.indices, x, weight, best, count)
        side.max_backward(block.indptr_t, block.indices_t, x, None, best, best, best)
    kernels.gather(x, block.indices)
    kernels.scatter_add(x, block.indices[:20].long(), x)


def call_attention(dtype: torch.dtype, heads: int, width: int, p: float) -> None:
    block = random_block(20, 20, 200)
    for run in RUNS:
        for side in (kernels, cutting(block)):
            run(side, block, heads, width, dtype, p)


def call_elementwise(dtype: torch.dtype, width: int) -> None:
    scalar = scalar_of(dtype)
    x, bias, ids = randn(20, width, dtype=dtype), randn(width, dtype=scalar), torch.arange(20)
    key = 2**40 + 1
    kernels.dropout_rows(x, ids, 0.5, key)
    for p in (0.0, 0.5):
        kernels.bias_relu_dropout_(x, bias, ids, p, key)
        kernels.bias_elu_dropout(x, bias, ids, p, key)
        kernels.relu_dropout_backward(x, x, p)
        kernels.elu_dropout_backward(x, x, ids, p, key)
    att = bias.view(1, width) if width % 4 else bias.view(4, -1)
    kernels.head_dot(x, att)
    kernels.head_dot_backward(x, att, randn(20, len(att), dtype=scalar), torch.zeros(20, width, dtype=scalar), att)
    kernels.rowwise_head_dot(x, x, len(att))


def call_quantise(width: int) -> None:
    x, bits, ids = torch.randn(20, width), torch.full((20,), 4, dtype=torch.uint8), torch.arange(20)
    offsets, size = kernels.packed_offsets(width, bits)
    message = torch.zeros(size, dtype=torch.uint8)
    for index in (None, ids):
        kernels.pack(x, index, bits, offsets, ids, 2**40, message, torch.zeros(20))
        for add in (False, True):
            kernels.unpack(message, bits, offsets, x, index, add)


Call = Callable[[], None]
FEW: list[Call] = [
    lambda: call_rows(torch.bfloat16, 256),
    lambda: call_attention(torch.float32, 4, 64, 0.5),
    lambda: call_elementwise(torch.float32, 256),
    lambda: call_quantise(256),
]
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def every_call() -> Iterator[Call]:
    for dtype in DTYPES:
        for width in (256, 128, 64, 47, 1):
            yield lambda dtype=dtype, width=width: call_rows(dtype, width)  # type: ignore[misc]
        for heads, width, p in ((4, 64, 0.5), (4, 64, 0.0), (3, 128, 0.5), (8, 8, 0.5), (1, 47, 0.0)):
            yield lambda dtype=dtype, heads=heads, width=width, p=p: call_attention(dtype, heads, width, p)  # type: ignore[misc]
        for width in (256, 47):
            yield lambda dtype=dtype, width=width: call_elementwise(dtype, width)  # type: ignore[misc]
    for width in (256, 47):
        yield lambda width=width: call_quantise(width)  # type: ignore[misc]


def variants(calls: list[Call]) -> list[Variant]:
    """Each once, of all launches of these calls."""
    with caught() as found:
        for call in calls:
            call()
    return list({(one.function, one.signature, one.constants, one.aligned): one for one in found}.values())


def resources(cubin: bytes) -> str:
    """Registers, stack and shared memory of a compiled kernel, as cuobjdump says."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True).stdout
    return " ".join(f"{name}:{number}" for name, number in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", said))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--few", action="store_true", help="the variants that the tests compile")
    parser.add_argument("capabilities", nargs="*", type=int, default=[80, 90], help="80, 90, ...")
    arguments = parser.parse_args()
    chosen = variants(FEW if arguments.few else list(every_call()))
    print(f"Triton {triton.__version__}: {len(chosen)} variants")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for variant in chosen:
            for capability in arguments.capabilities:
                started = time.perf_counter()
                made = variant.compile(capability)
                used = resources(made.asm["cubin"])
                print(f"sm_{capability} {time.perf_counter() - started:5.1f} s {used} {variant}", flush=True)


if __name__ == "__main__":
    main()
