"""Where the kernels in Triton run: on a GPU (WEFT_TEST_DEVICE=cuda), or interpreted on the CPU (TRITON_INTERPRET=1).

Triton reads TRITON_INTERPRET when it is imported, so these tests have a process of their own: test_triton.py starts it.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.kernels.triton.sides import DEVICE, INTERPRETED
from weft.kernels.backends import only, registered

collect_ignore_glob = [] if INTERPRETED or DEVICE == "cuda" else ["test_*.py"]

PIECE = 5  # edges: small, so that rows of small graphs are cut


@pytest.fixture(autouse=True, scope="session")
def backend() -> Iterator[str]:
    """The backend, its long rows cut into small pieces; the reference makes the graphs of its own side."""
    from dataclasses import replace

    from weft.kernels.triton import BACKEND

    name = "interpreted" if INTERPRETED else "triton in small pieces"
    if INTERPRETED:
        _hasten()
    torch.set_num_threads(1)
    with (
        registered(replace(BACKEND, name=name, devices=frozenset({DEVICE}), edges_per_piece=PIECE)),
        only(name, "reference"),
    ):
        yield name


def _hasten() -> None:
    """The interpreter prepares the language anew for every function that a kernel calls; once a launch is enough."""
    from dataclasses import replace

    from triton.runtime import interpreter

    patch, launch, patched = interpreter._patch_lang, interpreter.GridExecutor.__call__, set()

    def patch_once(function: Any) -> Any:
        if function.__module__ not in patched:
            patched.add(function.__module__)
            return patch(function)
        return None

    def launch_anew(self: Any, *args: Any, **named: Any) -> Any:
        patched.clear()
        return launch(self, *args, **named)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, launch_anew
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
