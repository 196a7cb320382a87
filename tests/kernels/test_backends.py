"""Who runs a kernel: what each backend has, who is asked first, what is said where a kernel is missing."""

import inspect
import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor

from tests.kernels.graphs import Block, randn, random_block
from weft import kernels
from weft.cli import doctor
from weft.kernels import reference
from weft.kernels.arguments import Cut
from weft.kernels.backends import Backend, backend_for, backends, kernel, only, register_backend, registered

ON_THE_CPU_ALONE = [  # graphs are cut and minibatches drawn there
    "community_order",
    "find_slots",
    "forget",
    "gather_places",
    "list_nonzeros",
    "merge_sides",
    "number_known",
    "number_new",
    "rebalance",
    "sample",
    "split_columns",
    "stream_partition",
    "with_loops",
]
LACKING: dict[str, list[str]] = {"native": [], "triton": ON_THE_CPU_ALONE, "reference": []}  # what each does not have


def ones(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    row_scale: Tensor | None = None,
    col_scale: Tensor | None = None,
    out: Tensor | None = None,
    accumulate: bool = False,
    cut: Cut | None = None,
) -> Tensor:
    """An spmm that is easy to tell from others."""
    return x.new_ones(indptr.numel() - 1, x.shape[1])


def toy(device: str = "cpu", **traits: object) -> Backend:
    return Backend("toy", frozenset({device}), {"spmm": ones}, **traits)  # type: ignore[arg-type]


@pytest.fixture
def block() -> Block:
    return random_block(6, 5, 20)


def test_every_backend_is_listed_with_what_it_lacks() -> None:
    found = {each.name: each.lacks() for each in backends() if each.problem is None}
    assert found == {name: LACKING[name] for name in found} and "reference" in found


def test_kernels_have_the_signature_of_their_reference() -> None:
    for each in backends():
        for name, function in each.kernels.items():
            assert inspect.signature(function) == inspect.signature(reference.KERNELS[name]), f"{each.name}: {name}"


def test_a_backend_of_ones_own_runs_what_it_has_and_names_what_it_lacks(block: Block) -> None:
    x = randn(5, 3)
    before = kernels.spmm(block.indptr, block.indices, x)
    gathered = kernels.gather(x, block.indices)
    beneath = backend_for(x).name
    with registered(toy()):
        assert backend_for(x).name == "toy" and not backend_for(x).by_rows
        assert torch.equal(kernels.spmm(block.indptr, block.indices, x), torch.ones(6, 3))
        with pytest.warns(
            RuntimeWarning, match=f"^backend toy has no kernel gather: backend {beneath} runs it$"
        ) as said:
            assert torch.equal(kernels.gather(x, block.indices), gathered)
        assert [warning.filename for warning in said] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it was said once
            kernels.gather(x.double(), block.indices)
    assert torch.equal(kernels.spmm(block.indptr, block.indices, x), before)


def test_the_reference_stands_in_where_no_other_backend_is(block: Block) -> None:
    x = randn(5, 3)
    with (
        registered(toy()),
        only("toy", "reference"),
        pytest.warns(RuntimeWarning, match="no kernel max_finish: .* ref"),
    ):
        assert kernel(reference.max_finish, x) is reference.max_finish


def test_backends_serve_their_devices_and_dtypes_alone(block: Block) -> None:
    x = randn(5, 3)
    with registered(toy("meta")):
        assert backend_for(x).name != "toy" and backend_for(x.to("meta")).name == "toy"
        assert kernel(reference.spmm, x.to("meta")) is ones
    with registered(toy(dtypes=frozenset({torch.float64}))):
        assert torch.equal(kernels.spmm(block.indptr, block.indices, x.double()), torch.ones(6, 3).double())
        assert not torch.equal(kernels.spmm(block.indptr, block.indices, x), torch.ones(6, 3))


def test_a_backend_that_cannot_run_here_is_passed_over_with_a_word(block: Block) -> None:
    x = randn(5, 3)
    with registered(toy(problem="toy needs a toy")):
        assert backend_for(x).name != "toy"
        with pytest.warns(RuntimeWarning, match="^toy needs a toy$"):
            assert not torch.equal(kernels.spmm(block.indptr, block.indices, x), torch.ones(6, 3))


def test_only_some_are_asked(block: Block) -> None:
    with only("reference"):
        assert [each.name for each in backends()] == ["reference"]
        assert kernel(reference.spmm, block.indices) is reference.spmm
    with (
        registered(toy()),
        only("toy"),
        pytest.raises(ValueError, match=r"no backend has kernel max_finish for torch\.float32 on cpu"),
    ):
        kernels.max_finish(randn(5, 3), torch.ones(5, 3).int())


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="a backend named reference is registered already"):
        register_backend(Backend("reference", None, {}))
    with pytest.raises(ValueError, match="has a kernel spnm, but weft has none of that name"):
        register_backend(Backend("toy", None, {"spnm": ones}))
    with pytest.raises(
        ValueError, match=r"kernel gather of backend toy takes .* must take what the reference takes: \(x"
    ):
        register_backend(Backend("toy", None, {"gather": ones}))
    with pytest.raises(ValueError, match=r"no backend named toy is registered"), only("toy"):
        pass
    assert "toy" not in [each.name for each in backends()]


def test_the_doctor_shows_backends_and_what_they_lack() -> None:
    with registered(toy()):
        findings = {finding.name: finding for finding in doctor.examine()}
    assert (
        findings["kernels: toy"].state == "note"
        and "cpu: 1 of 41 kernels, lacks attend_finish, " in findings["kernels: toy"].text
    )
    assert findings["kernels: reference"].text == "every device: all 41 kernels"


WITHOUT_THE_MODULE = """
import sys
sys.modules["weft.kernels._native"] = None  # importing it fails
import torch
from weft import kernels
from weft.kernels.build import native_module
for _ in range(2):
    print(kernels.spmm(torch.tensor([0, 1]), torch.tensor([0]).int(), torch.full((1, 1), 7.0)).item())
print(kernels.backends.backend_for(torch.empty(0)).name)
try:
    native_module("this test")
except ValueError as error:
    print(error)
"""


def test_without_the_native_module_the_reference_runs_and_says_so_once() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_THE_MODULE], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert lines[:3] == ["7.0", "7.0", "reference"]
    assert lines[3].startswith("this test needs native code, but weft's native kernels are not built: build them with")
    assert run.stderr.count("until then slow torch versions run") == 1
