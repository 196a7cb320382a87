"""The instruction sets that this processor has but does not prefer compute the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.kernels.build import native_available, native_module_isa

ROOT = Path(__file__).parents[2]
CASES = [
    "tests/kernels/test_rows.py::test_spmm",
    "tests/kernels/test_rows.py::test_max_with_ties",
    "tests/kernels/test_elementwise.py::test_fused_passes",
    "tests/kernels/test_attention.py::test_against_the_reference",
]


@pytest.mark.skipif(not native_available, reason="the native module is not built")
@pytest.mark.parametrize("isa", ["plain", "avx2"])
def test_narrower_instruction_sets_agree_with_the_reference(isa):
    if isa == native_module_isa():
        pytest.skip("the other tests run it")
    environment = {**os.environ, "WEFT_ISA": isa}
    asked = "from weft.kernels.build import native_module_isa; print(native_module_isa())"
    found = subprocess.run(
        [sys.executable, "-c", asked], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    if found.stdout.strip() != isa:
        pytest.skip(f"this processor has no {isa}")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "native", *CASES],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:]
