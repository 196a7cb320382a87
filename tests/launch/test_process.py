"""A run of one worker happens in the process that asked for it, and leaves nothing there that it has set."""

import gc
import os
import resource
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.errors import UserError
from weft.kernels import memory

SPILLED: dict[str, Any] = {"strategy": "sar", "memory": {"spill": "always"}, "threads": 1, "train": {"epochs": 2}}


def state() -> tuple[object, ...]:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    return torch.get_num_threads(), torch.get_rng_state().tolist(), memory._pool.policy, handlers


@pytest.fixture
def run(tmp_path: Path) -> weft.Run:
    return weft.train("synthetic:tiny", run=tmp_path / "run", quiet=True, **SPILLED)


def test_training_evaluating_and_exporting_put_everything_back(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        before = state()
        done = weft.train("synthetic:tiny", run=tmp_path / "run", quiet=True, **SPILLED)
        assert state() == before
        done.evaluate()
        assert state() == before
        done.outputs()
        assert state() == before
    finally:
        torch.set_num_threads(threads)


def test_the_process_trains_on_after_the_folder_of_a_spilled_run_is_gone(run: weft.Run, tmp_path: Path) -> None:
    run.evaluate()
    run.outputs()
    shutil.rmtree(run.path)
    assert memory.empty((memory.SMALLEST_BYTES,), torch.float32).fill_(1).sum() == memory.SMALLEST_BYTES
    again = weft.train("synthetic:tiny", run=tmp_path / "again", quiet=True, **SPILLED)
    assert again.evaluate() == run_values(again)


def run_values(run: weft.Run) -> dict[str, float]:
    return {name: run.summary[name] for name in ("train_accuracy", "val_accuracy", "test_accuracy")}


def test_blocks_in_files_are_not_used_again_by_results_in_memory(tmp_path: Path) -> None:
    """A tensor of a spilled run that is freed only later must not hand its file to those that come after."""
    size = 4 * memory.SMALLEST_BYTES
    with memory.scoped_policy():
        memory.set_policy(memory.Policy(spill_folder=tmp_path))
        spilled = memory.empty((size,), torch.uint8)
        assert lies_in_file(spilled)
    del spilled
    gc.collect()
    assert memory.idle_bytes() == 0
    assert not lies_in_file(memory.empty((size,), torch.uint8))


def lies_in_file(tensor: torch.Tensor) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return line.split()[4] != "0"  # the inode
    raise AssertionError("the tensor lies nowhere")


def test_a_policy_is_set_inside_a_scope_only() -> None:
    with pytest.raises(RuntimeError, match="scoped_policy"):
        memory.set_policy(memory.Policy(low_memory=True))


def test_a_run_that_fails_puts_everything_back_too(run: weft.Run) -> None:
    for file in (run.path / "checkpoints").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    before = state()
    with pytest.raises(UserError):
        run.evaluate()
    assert state() == before


@pytest.mark.parametrize("strategy", ["full", "minibatch"])
def test_training_that_fails_puts_signal_handlers_back_and_leaves_no_thread(tmp_path: Path, strategy: str) -> None:
    before, threads = state(), set(threading.enumerate())
    settings: dict[str, Any] = {"optim": {"lr": 1e30}, "train": {"epochs": 9}, "sample": {"batch": 16}}
    with pytest.raises(UserError, match="loss became"):
        weft.train("synthetic:tiny", strategy=strategy, run=tmp_path / "run", quiet=True, **settings)
    assert state() == before
    assert set(threading.enumerate()) == threads


def test_a_run_of_several_workers_puts_the_limit_of_open_files_back(tmp_path: Path) -> None:
    before = _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/proc/self/fd")) + 60  # tests before this one may have left workers that are used again
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        weft.train("synthetic:tiny", workers=2, run=tmp_path / "run", quiet=True, train={"epochs": 1})
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (few, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
