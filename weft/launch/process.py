"""The process state that a run sets and puts back: threads, random numbers, the current GPU, the memory policy."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from weft.kernels import memory


@contextmanager
def scoped_process_state() -> Iterator[None]:
    """Restores at the end of the block, also after an exception, whatever the block has set in this process.

    A run of one worker happens in the process that asked for it, and that process goes on with its own settings
    afterwards. The signal handlers of training have a scope of their own (`weft.training.stop`).
    """
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    gpu_random = torch.cuda.get_rng_state_all() if gpu is not None else []
    try:
        with memory.scoped_policy():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(random)
        if gpu is not None:
            torch.cuda.set_device(gpu)
            torch.cuda.set_rng_state_all(gpu_random)
