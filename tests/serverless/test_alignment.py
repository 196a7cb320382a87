"""Where rows lie in memory changes no bit of what is made of them."""

import numpy as np
import pytest
import torch

from tests.serverless.cases import CASES, Case, pipelined, some_shards
from weft.comm import Communicator
from weft.layers import ModelConfig
from weft.serverless.settings import ExecutorConfig
from weft_function.handler import handle
from weft_function.memory import empty
from weft_function.program import Op, Program
from weft_function.task import Request, TaskId, TaskKind

PROGRAM = Program(
    ("x",), ("y",), (Op("linear", ("x",), "h", ("w",)), Op("relu", ("h",), "r"), Op("linear", ("r",), "y", ("v",)))
)
TASK = TaskId("run", 1, 0, 0, 0, TaskKind.APPLY_VERTEX)


def at(array: np.ndarray, offset: int) -> np.ndarray:
    """The same values, so many bytes after a multiple of 64."""
    place = empty(array.nbytes + 64)[offset : offset + array.nbytes]
    place[:] = array.reshape(-1).view(np.uint8)
    return np.frombuffer(place.data, array.dtype).reshape(array.shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_do_not_depend_on_where_rows_lie(dtype: type) -> None:
    for width in range(1, 17):
        draws = np.random.default_rng(width)
        x, w, v = (draws.normal(size=size).astype(dtype) for size in ((37, width), (5, width), (width, 5)))
        grad = draws.normal(size=(37, width)).astype(dtype)
        found = set()
        for offset in range(64):
            tensors = {"x": at(x, offset), "d:y": at(grad, offset)}
            weights = {"w": at(w, offset), "v": at(v, offset)}
            answer = handle(Request(TASK, "both", PROGRAM, 1, weights, tensors), "here")
            assert set(answer.tensors) == {"y", "d:x", "d:w", "d:v"}
            found.add(tuple(answer.tensors[name].tobytes() for name in sorted(answer.tensors)))
        assert len(found) == 1, width


def test_narrow_layers_have_the_same_bits_in_a_pool_each_time() -> None:
    model = ModelConfig(name="gcn", layers=3, hidden=6, dropout=0.2)
    case = Case(model, optim=CASES["gcn"].optim, dtype=torch.float32)
    shards, alone = some_shards(1, 200, 900), Communicator.alone()
    wanted = pipelined(alone, shards, case, 6, ExecutorConfig(intervals=5))
    config = ExecutorConfig(name="pool", intervals=5, workers=2, placement="functions")
    for _ in range(3):
        found = pipelined(alone, shards, case, 6, config)
        assert found["losses"] == wanted["losses"]
        assert all(torch.equal(value, found["weights"][name]) for name, value in wanted["weights"].items())
