"""`python -m tests.on_gpu [options of pytest]`: the kernels' tests and the oracles, on this machine's GPU.

Minibatches are drawn and trained in host memory, so their oracles are left out: tests/oracle/test_minibatch.py,
tests/oracle/test_split.py. Where there is no GPU it says so and ends with exit code 2: nothing was tested.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

from weft.kernels import triton

ROOT = Path(__file__).parents[1]
WHAT = ("tests/kernels/triton", "tests/comm/test_gpu.py", "tests/oracle")
ON_THE_HOST = ("tests/oracle/test_minibatch.py", "tests/oracle/test_split.py")


def main() -> int:
    if not torch.cuda.is_available():
        print(f"no GPU here that torch {torch.__version__} can use: nothing was tested", file=sys.stderr)
        return 2
    problem = triton.problem_with(triton.installed_version())
    if problem is not None:
        print(f"{problem}: nothing was tested", file=sys.stderr)
        return 2
    print(
        f"on {torch.cuda.get_device_name(0)}, torch {torch.__version__}, Triton {triton.installed_version()}",
        flush=True,
    )
    environment = {**os.environ, "WEFT_TEST_DEVICE": "cuda"}
    environment.pop("TRITON_INTERPRET", None)
    ignored = [f"--ignore={path}" for path in ON_THE_HOST]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *WHAT, *ignored, *sys.argv[1:]], cwd=ROOT, env=environment
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
