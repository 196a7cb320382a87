"""A stack whose outputs a linear map makes: equal to the same modules of PyG and torch, on any number of workers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.layers.pyg_twins import pyg
from tests.partitioning.drawn import graph_of
from tests.workers import run_workers
from weft.aggregate import DistributedGraph
from weft.comm import Communicator, all_reduce_gradients
from weft.errors import UserError
from weft.layers import ModelConfig, Stack, build_model
from weft.partitioning import Shard, make_shards

NUM_IN, NUM_OUT, HIDDEN = 5, 3, 7
CONFIGS = {
    "gcn": ModelConfig(name="gcn", layers=3, hidden=HIDDEN, norm="layer", dropout=0.0, output="linear"),
    "sage": ModelConfig(
        name="sage", layers=2, hidden=HIDDEN, norm="batch", residual=True, dropout=0.0, output="linear"
    ),
}


def the_model(config: ModelConfig) -> Stack:
    torch.manual_seed(4)
    model = build_model(config, NUM_IN, NUM_OUT)
    assert isinstance(model, Stack)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model.double()


class Reference(nn.Module):
    """Convolution, skip, normalisation, relu; then a linear map: modules of PyG and torch with a stack's weights."""

    def __init__(self, of: Stack) -> None:
        super().__init__()
        self.of = of
        self.convolutions = nn.ModuleList(_convolution(layer) for layer in of.layers)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for depth, convolution in enumerate(self.convolutions):
            out = convolution(x, edge_index)
            if self.of.config.residual:
                out = out + nn.functional.linear(x, self.of.skips[depth])
            x = torch.relu(self._normalised(out, self.of.norms[depth]))
        assert self.of.output is not None
        return nn.functional.linear(x, self.of.output.weight, self.of.output.bias)

    def _normalised(self, x: Tensor, norm: Any) -> Tensor:
        if self.of.config.norm == "layer":
            return nn.functional.layer_norm(x, (HIDDEN,), norm.weight, norm.bias)
        return nn.functional.batch_norm(x, None, None, norm.gain, norm.shift, training=True)


def _convolution(layer: Any) -> nn.Module:
    """PyG's layer, whose parameters are those of ours."""
    if hasattr(layer, "root"):
        theirs = pyg.SAGEConv(layer.num_in, layer.num_out)
        theirs.lin_l.weight, theirs.lin_l.bias, theirs.lin_r.weight = layer.neighbour, layer.bias, layer.root
    else:
        theirs = pyg.GCNConv(layer.num_in, layer.num_out)
        theirs.lin.weight, theirs.bias = layer.weight, layer.bias
    return theirs


def step(comm: Communicator, shards: list[Shard], name: str, rows: Tensor, probe: Tensor) -> Any:
    shard = shards[comm.worker]
    graph, model = DistributedGraph(shard, comm), the_model(CONFIGS[name])
    graph.noise.begin(1)
    out = model(graph.view, rows[graph.global_ids])
    (out * probe[graph.global_ids]).sum().backward()
    all_reduce_gradients(comm, model.parameters())
    return graph.global_ids, out.detach(), {key: parameter.grad for key, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_and_gradients_are_those_of_pyg(name: str) -> None:
    generator = torch.Generator().manual_seed(2)
    pairs = torch.randint(0, 30, (120, 2), generator=generator)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]].unique(dim=0)
    graph = graph_of(30, [tuple(pair) for pair in pairs.tolist()], weighted=False)
    rows = torch.randn(30, NUM_IN, generator=generator, dtype=torch.float64)
    probe = torch.randn(30, NUM_OUT, generator=generator, dtype=torch.float64)
    model = the_model(CONFIGS[name])
    wanted = Reference(model)(rows, pairs.t())
    (wanted * probe).sum().backward()
    for num_workers in (1, 3):
        shards = make_shards(graph, (torch.arange(30) % num_workers).int(), num_workers)
        for ids, out, grads in run_workers(step, num_workers, shards, name, rows, probe):
            torch.testing.assert_close(out, wanted.detach()[ids], rtol=1e-9, atol=1e-10)
            for key, parameter in model.named_parameters():
                torch.testing.assert_close(grads[key], parameter.grad, rtol=1e-8, atol=1e-9, msg=key)


def test_every_layer_is_hidden_wide_and_attention_keeps_its_heads() -> None:
    model = build_model(ModelConfig(name="gat", layers=2, hidden=4, heads=3, output="linear"), NUM_IN, NUM_OUT)
    assert isinstance(model, Stack) and model.widths == (NUM_IN, 12, 12)
    assert model.output is not None and model.output.weight.shape == (NUM_OUT, 12)


def test_without_it_nothing_is_added() -> None:
    model = build_model(ModelConfig(), NUM_IN, NUM_OUT)
    assert isinstance(model, Stack) and model.output is None
    assert not any(name.startswith("output") for name in model.state_dict())


def test_another_kind_is_refused() -> None:
    from weft.config import make_config

    with pytest.raises(UserError, match=r"model\.output"):
        make_config({"model": {"output": "mlp"}})
