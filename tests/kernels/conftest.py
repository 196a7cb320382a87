import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch

from weft.kernels.backends import backends, only

SERVING = [each.name for each in backends() if each.serves("cpu", torch.float32) and each.problem is None]


@pytest.fixture(scope="module", params=SERVING)  # of the module: a case of hypothesis draws many examples
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each backend that serves the CPU, alone."""
    with only(request.param):
        yield request.param


@pytest.fixture(scope="module")
def beside_the_reference(backend: str) -> str:
    """Each backend that can be compared with the reference."""
    if backend == "reference":
        pytest.skip("that is the reference itself")
    return backend


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
