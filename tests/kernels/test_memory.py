"""Large results come from blocks that earlier ones left, and never from one that is still in use."""

import pytest
import torch

from weft.kernels import memory

SHAPE = (1024, 512)  # 2 MiB of float32


@pytest.fixture(autouse=True)
def _fresh_pool() -> None:
    memory.release()


def test_a_dead_result_is_used_again() -> None:
    first = memory.empty(SHAPE, torch.float32)
    address = first.data_ptr()
    del first
    assert memory.idle_bytes() > 0
    assert memory.empty(SHAPE, torch.float32).data_ptr() == address


def test_a_view_keeps_its_block() -> None:
    first = memory.empty(SHAPE, torch.float32).fill_(1.0)
    kept = first[7:9, 3:]
    del first
    assert memory.idle_bytes() == 0
    memory.empty(SHAPE, torch.float32).fill_(2.0)
    assert bool((kept == 1.0).all())


def test_what_autograd_keeps_is_not_given_away() -> None:
    x = memory.empty(SHAPE, torch.float32).fill_(3.0).requires_grad_()
    loss = (x * x).sum()
    gone = memory.empty(SHAPE, torch.float32).fill_(9.0)
    del gone
    memory.empty(SHAPE, torch.float32).fill_(8.0)
    loss.backward()
    assert x.grad is not None and bool((x.grad == 6.0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_every_dtype_aligned_and_no_view(dtype: torch.dtype) -> None:
    tensor = memory.empty(SHAPE, dtype)
    assert tensor.shape == SHAPE and tensor.dtype == dtype and tensor.is_contiguous()
    assert tensor.data_ptr() % 64 == 0
    assert not tensor._is_view()  # a view could not be written to inside an autograd function


def test_small_and_much_smaller_results_leave_large_blocks_alone() -> None:
    large = memory.empty((4096, 4096), torch.float32)
    del large
    before = memory.idle_bytes()
    memory.empty(SHAPE, torch.float32)
    memory.empty((3, 3), torch.float32)
    assert memory.idle_bytes() >= before


def test_blocks_that_nobody_wants_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_PATIENCE", 4)
    large = memory.empty((4096, 1024), torch.float32)
    del large
    for _ in range(8):
        memory.empty(SHAPE, torch.float32)
    assert memory.idle_bytes() < 4096 * 1024 * 4


def test_results_of_ever_new_sizes_do_not_pile_up() -> None:
    """Each is too large for the blocks that those before it left: idle ones stay below what was live at once."""
    rows = 1024
    for _ in range(12):
        result = memory.empty((rows, 512), torch.float32)
        assert memory.idle_bytes() <= 1.1 * result.nbytes + (1 << 21)
        rows = int(rows * 1.4)
        del result
