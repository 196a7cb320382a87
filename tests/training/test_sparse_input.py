"""Input that is nearly all zero and never changes: its non-zeros are listed once, and no number changes by that."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.aggregate.constant import ConstantInput
from weft.graph import Graph
from weft.kernels import native_available

pytestmark = pytest.mark.skipif(not native_available, reason="the native module is not built")
native_products = importlib.import_module("weft.kernels.native.products") if native_available else None

MODELS: dict[str, dict[str, Any]] = {
    "sage": {"name": "sage", "norm": "batch", "residual": True, "output": "linear"},
    "sage of relu": {"name": "sage", "dropout": 0.5},
    "gcn": {"name": "gcn", "norm": "layer"},
}


def words(num_nodes: int = 900, width: int = 400) -> Graph:
    """Rows of few words, whose aggregates have few, too."""
    rng = np.random.default_rng(0)
    x = (rng.random((num_nodes, width)) < 0.004).astype(np.float32)
    ends = rng.integers(0, num_nodes, (2, 2 * num_nodes))
    train = np.arange(num_nodes) < num_nodes // 3
    masks = {"train_mask": train, "val_mask": ~train, "test_mask": ~train}
    return weft.from_edges(*ends, x=x, y=rng.integers(0, 4, num_nodes), num_nodes=num_nodes, **masks)


def train(run: Path, model: dict[str, Any], **more: Any) -> Any:
    return weft.train(
        words(), run=run, quiet=True, seed=1, threads=1, model={"layers": 2, "hidden": 24, **model},
        train={"epochs": 4, "eval_every": 2, "checkpoint_every": 0, "trace_epochs": 0}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"memory": {"restrict": "always"}}, {"memory": {"rematerialise": True}}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_as_without_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: dict[str, Any]
) -> None:
    assert native_products is not None
    monkeypatch.setattr(native_products, "_FEWEST", 0)
    model = MODELS[name]
    if "restrict" in more.get("memory", {}) and model.get("norm") == "batch":  # which needs all vertices
        model = {**model, "norm": "layer"}
    used: list[bool] = []
    reduce = native_products._skip_reduce

    def reduce_and_note(left: Any, right: Any, lists: Any = None) -> Any:
        used.append(lists is not None)
        return reduce(left, right, lists)

    monkeypatch.setattr(native_products, "_skip_reduce", reduce_and_note)
    listed = train(tmp_path / "listed", model, **more)
    assert name == "sage of relu" or sum(used) >= 4, "gradients of the first layer's matrices were summed by lists"
    monkeypatch.setattr(native_products, "WORTH_LISTING", 0.0)
    used.clear()
    without = train(tmp_path / "without", model, **more)
    assert not any(used)
    assert listed.metrics[-1]["train_loss"] == without.metrics[-1]["train_loss"]
    assert np.array_equal(listed.outputs().values, without.outputs().values)


# -- what is known to be constant -----------------------------------------------------------------------------------


def held(lasting: bool = True) -> tuple[torch.Tensor, ConstantInput]:
    x = torch.from_numpy(np.eye(600, dtype=np.float32)).contiguous()
    return x, ConstantInput(x, lambda name: x[: x.shape[0] // 2] * 2, lasting=lasting)


def test_rows_their_first_ones_and_aggregates_are_known() -> None:
    x, constant = held()
    whole, first = constant.nonzeros(x), constant.nonzeros(x[:300])
    assert whole is not None and first is not None and constant.nonzeros(x[:300]) is first
    assert first.by_row.values.data_ptr() == whole.by_row.values.data_ptr(), "listed once"
    assert first.by_column is not None and first.by_column.num_rows == 300
    folded = constant.aggregate(("sum", None, None))
    part = constant.part(400, 100)
    assert constant.nonzeros(folded) is not None
    assert part.nonzeros(part.aggregate(("sum", None, None))) is constant.nonzeros(folded[:100])
    assert part.nonzeros(part.rows) is not None


def test_what_is_not_known_to_be_constant_is_not_listed() -> None:
    x, constant = held()
    for other in (x.clone(), x[1:], x[:, :300], x.t(), x.double(), torch.nn.Parameter(x)):
        assert constant.nonzeros(other) is None
    x, passing = held(lasting=False)
    assert passing.nonzeros(x) is None, "of a minibatch"
