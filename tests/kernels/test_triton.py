"""The backend in Triton where there is no GPU: interpreted, compiled for GPUs that are not there, and refused."""

import inspect
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.kernels.graphs import random_block
from weft import kernels
from weft.kernels import reference
from weft.kernels import triton as ours
from weft.kernels.backends import only, registered

ROOT = Path(__file__).parents[2]
there = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: make setup")


@there
def test_every_kernel_equals_the_reference_under_the_interpreter() -> None:
    """In a process of its own: Triton reads TRITON_INTERPRET when it is imported."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/kernels/triton"],
        env={**os.environ, "TRITON_INTERPRET": "1", "WEFT_TEST_DEVICE": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert " passed" in run.stdout or "100%" in run.stdout


@there
def test_kernels_compile_for_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few variants of every kernel; `python -m tests.kernels.compiled` compiles all, for sm_80 too."""
    from tests.kernels import compiled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = compiled.variants(compiled.FEW)
    assert {one.name.partition(".")[0] for one in found} >= {
        "rows",
        "maxima",
        "attention_device",
        "elementwise",
        "heads",
    }
    for variant in found:
        assert len(variant.compile(90).asm["cubin"]) > 1000, str(variant)


@there
def test_numbers_of_kernels_are_double_where_rows_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slope of 0.2 that went through float32 would be 0d3FC99999A0000000, and oracles would see it."""
    from tests.kernels import compiled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = compiled.variants([lambda: compiled.call_attention(torch.float64, 2, 4, 0.3)])
    (absorb, *_) = (one for one in found if one.name == "attention_device.absorb")
    ptx = absorb.compile(90).asm["ptx"]
    assert "0d3FC999999999999A" in ptx and "0d3FC99999A0000000" not in ptx
    assert "0d3FF6DB6DB6DB6DB7" in ptx  # 1 / 0.7


@there
def test_quantising_rounds_as_the_cpu_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product and a sum in one rounding, or a quick division, would change bytes."""
    from tests.kernels import compiled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for variant in compiled.variants([lambda: compiled.call_quantise(20)]):
        ptx = variant.compile(90).asm["ptx"]
        assert not variant.fusion and "fma.rn.f32" not in ptx and "div.full" not in ptx, variant.name


@there
def test_real_signatures_are_those_of_the_reference() -> None:
    for module, names in ours.modules().items():
        for name in names:
            assert inspect.signature(ours.load(module, name)) == inspect.signature(reference.KERNELS[name]), name


def test_weft_does_not_import_triton() -> None:
    asked = "import sys, weft, weft.cli.app; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], cwd=ROOT).returncode == 0


def test_a_triton_that_is_missing_or_too_old_is_one_sentence() -> None:
    missing, old = ours.problem_with(None), ours.problem_with("3.2.0")
    assert missing is not None and missing.startswith("weft's kernels for GPUs need Triton 3.6 or newer, which is not")
    assert old == "weft's kernels for GPUs need Triton 3.6 or newer, but 3.2.0 is installed: use a newer torch"
    assert all(ours.problem_with(version) is None for version in ("3.6.0", "3.9.0", "3.10.0+git1", "4.0.0"))


def test_without_it_the_reference_runs_and_says_so() -> None:
    block, x = random_block(6, 5, 20), torch.ones(5, 3)
    backend = replace(ours.BACKEND, name="absent", devices=frozenset({"cpu"}), problem=ours.problem_with(None))
    with (
        registered(backend),
        only("absent", "reference"),
        pytest.warns(
            RuntimeWarning, match="^weft's kernels for GPUs need Triton .* not installed: pip install triton$"
        ),
    ):
        found = kernels.spmm(block.indptr, block.indices, x)
    assert torch.equal(found, reference.spmm(block.indptr, block.indices, x))


def test_cuts_are_made_once_and_only_where_a_backend_wants_them() -> None:
    from weft.aggregate.blocks import Block
    from weft.graph.csr import CSR

    drawn = random_block(4, 9, 60)
    plain = Block(CSR(drawn.indptr, drawn.indices, 9))
    assert plain.cut is None and plain.transposed_cut is None
    with registered(replace(ours.BACKEND, name="cuts", devices=frozenset({"cpu"}), edges_per_piece=7)):
        block = Block(CSR(drawn.indptr, drawn.indices, 9))
        assert block.cut is not None and block.cut is block.scaled(None, None, None).cut
        assert block.cut.edges_per_piece == 7 and block.transposed_cut is block.structure.transposed_cut


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_tests_on_a_gpu_say_where_there_is_none() -> None:
    run = subprocess.run([sys.executable, "-m", "tests.on_gpu"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2 and not run.stdout
    assert run.stderr == f"no GPU here that torch {torch.__version__} can use: nothing was tested\n"
