import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch


@pytest.fixture(scope="session")
def with_threads() -> Callable[[int], AbstractContextManager[None]]:
    """`with with_threads(2): ...`; the kernels follow torch.get_num_threads()."""

    @contextlib.contextmanager
    def change(count: int) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return change
