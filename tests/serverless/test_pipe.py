"""A pipeline that waits at every layer computes what one pass over the whole graph does, whoever multiplies."""

import pytest
import torch
from torch import Tensor

from tests.serverless.cases import CASES, build, pipelined, shards_for, some_shards, whole_pass
from tests.workers import run_workers
from weft.aggregate import GraphView
from weft.errors import UserError
from weft.layers import SAGE, Stack, build_model
from weft.layers.learned_columns import LearnedColumn
from weft.serverless.settings import ExecutorConfig
from weft.serverless.stages import MOST_TYPES, compile_stages

EPOCHS = 4


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_pipe_is_the_whole_pass(name, num_workers):
    """Losses and weights after some epochs of training, float64; intervals of some workers are empty."""
    case = CASES[name]
    shards = shards_for(case, num_workers)
    config = ExecutorConfig(intervals=4)
    wanted = run_workers(whole_pass, num_workers, shards, case, EPOCHS)
    found = run_workers(pipelined, num_workers, shards, case, EPOCHS, config)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one["losses"], other["losses"], rtol=1e-12, atol=1e-12)
        for weight, value in other["weights"].items():
            torch.testing.assert_close(one["weights"][weight], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["gcn-three", "sage", "gat", "separable", "types-gcn", "types-sage", "types-gat"])
def test_first_gradient(name):
    """One step of plain descent shows the gradient itself: 1e-12."""
    case = CASES[name]
    shards = shards_for(case, 2)
    case = type(case)(
        **{**vars(case), "optim": case.optim.model_copy(update={"name": "sgd", "lr": 1.0, "momentum": 0})}
    )
    wanted = run_workers(whole_pass, 2, shards, case, 1)
    found = run_workers(pipelined, 2, shards, case, 1, ExecutorConfig(intervals=3))
    start = {key: p.detach() for key, p in build(case).named_parameters()}
    for weight, gradient in wanted[0]["gradients"].items():
        moved = start[weight] - found[0]["weights"][weight]
        torch.testing.assert_close(moved, gradient, rtol=0, atol=1e-12)


def test_every_parameter_of_attention_moves():
    found = run_workers(pipelined, 2, some_shards(2), CASES["gat"], 2, ExecutorConfig(intervals=3, staleness=1))
    for name, weight in build(CASES["gat"]).named_parameters():
        assert (found[0]["weights"][name] != weight).any(), name


@pytest.mark.parametrize("name", ["gcn-three", "gat", "types-gat"])
def test_bitwise_the_same_in_a_pool(name):
    """Whoever does a product, and in whatever order answers come."""
    case = CASES[name]
    shards = shards_for(case, 2)
    here = run_workers(pipelined, 2, shards, case, EPOCHS, ExecutorConfig(intervals=4))
    config = ExecutorConfig(name="pool", intervals=4, workers=2, placement="functions")
    there = run_workers(pipelined, 2, shards, case, EPOCHS, config)
    assert here[0]["losses"] == there[0]["losses"]
    for weight, value in here[0]["weights"].items():
        assert torch.equal(value, there[0]["weights"][weight]), weight
    assert there[0]["usage"]["tasks"] > 0


def test_every_parameter_of_an_encoder_moves():
    case = CASES["types-sage"]
    found = run_workers(pipelined, 2, shards_for(case, 2), case, 2, ExecutorConfig(intervals=3, staleness=1))
    before = dict(build(case).named_parameters())
    assert sum(name.startswith("encoder.") for name in before) == 6
    for name, weight in before.items():
        assert (found[0]["weights"][name] != weight).any(), name


@pytest.mark.parametrize("name", ["types-gcn", "types-sage", "types-gat"])
def test_as_many_types_as_a_program_has_room_for(name):
    config = CASES[name].model.model_copy(update={"residual": True, "dropout": 0.3})
    most = build_model(config, 4, 3, type_widths=[2] * MOST_TYPES)
    assert len(compile_stages(most)[0].program.weights) >= 2 * MOST_TYPES
    with pytest.raises(UserError, match="room for 15 types of vertices, and there are 16"):
        compile_stages(build_model(config, 4, 3, type_widths=[2] * (MOST_TYPES + 1)))
    columns = [LearnedColumn.all_of(((0, 7),)), ()]
    with pytest.raises(UserError, match="ingest types without learned_columns"):
        compile_stages(build_model(config, 4, 3, type_widths=[2, 2], type_columns=columns))


def test_epochs_are_exact_from_a_plateau_on():
    """Where the loss hardly falls, the run goes on exactly."""
    shards, case = some_shards(2), CASES["gcn"]
    config = ExecutorConfig(intervals=3, staleness=1, plateau=0.5)
    found = run_workers(pipelined, 2, shards, case, 40, config)
    assert found[0]["losses"][-1] < found[0]["losses"][0]
    assert found[0]["exact_from"] == found[1]["exact_from"] and 10 < found[0]["exact_from"] <= 40
    never = run_workers(pipelined, 2, shards, case, 12, config.model_copy(update={"plateau": None}))
    assert never[0]["exact_from"] is None


def test_a_layer_whose_forward_was_overridden_is_not_cut_like_its_base() -> None:
    """Its vertex program would be that of the base class."""

    class Doubled(SAGE):
        def forward(self, graph: GraphView, x: Tensor, add_bias: bool = True) -> Tensor:
            return 2 * super().forward(graph, x, add_bias)

    with pytest.raises(UserError, match="not Doubled: use executor inline"):
        compile_stages(Stack([Doubled(3, 2)]), multi_label=False, aggregates_input=False)
