"""Layers say what they are, by name and by traits; a layer from elsewhere costs one file."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from tests.one_run import trained
from tests.partitioning.drawn import graph_of
from weft.aggregate import DistributedGraph, GraphView
from weft.config import make_config
from weft.errors import UserError
from weft.layers import (
    GAT,
    GCN,
    GIN,
    SAGE,
    LayerTraits,
    ModelConfig,
    Stack,
    build_model,
    register_layer,
    traits_of,
)
from weft.layers.registry import layer_names
from weft.partitioning import whole_shard

OWN = """
import torch
from weft.layers import LayerTraits, register_layer


class Halved(torch.nn.Module):
    traits = LayerTraits(any_level=True)

    def __init__(self, num_in, num_out):
        super().__init__()
        self.num_out = num_out
        self.lin = torch.nn.Linear(num_in, num_out)

    def forward(self, graph, x):
        return self.lin(graph.own(x) + graph.aggregate(x, "mean")) / 2


register_layer("NAME", lambda config, place: Halved(place.num_in, place.num_out), options=["bases"])
"""


@pytest.mark.parametrize("strategy", ["full", "batchgnn"])
def test_a_layer_from_one_file_is_trained_by_name(tmp_path: Path, monkeypatch: Any, strategy: str) -> None:
    name = f"halved-{strategy}"  # registered once in a process
    (tmp_path / f"elsewhere_{strategy}.py").write_text(OWN.replace("NAME", name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {
        "data": "synthetic:tiny", "workers": 2, "strategy": strategy, "train": {"epochs": 15, "trace_epochs": 0},
        "model": {"name": f"elsewhere_{strategy}:{name}", "hidden": 16, "bases": 0}, "optim": {"lr": 0.02},
    }  # fmt: skip
    if strategy == "batchgnn":
        settings["sample"] = {"batch": 40, "fanout": [4, 3]}
    summary = trained(tmp_path / "run", settings)
    assert summary["workers"] == 2 and summary["test_accuracy"] > 0.5
    again = weft.Run(tmp_path / "run").evaluate(trust=True)
    assert again["test_accuracy"] == pytest.approx(summary["test_accuracy"])
    importlib.import_module(f"elsewhere_{strategy}")
    assert name in layer_names() and name in layer_names("bases")
    stack = build_model(ModelConfig(name=name), 4, 2)  # by its bare name, where it is registered
    assert isinstance(stack, Stack) and type(stack.layers[0]).__name__ == "Halved"
    make_config({"model": {"name": name, "bases": 3}})
    with pytest.raises(UserError, match=r"model\.attention_dropout is for gat, gatv2, transformer"):
        make_config({"model": {"name": name, "attention_dropout": 0.5}})
    with pytest.raises(UserError, match=r"model\.attention_dropout is for"):  # found when the module is imported
        build_model(ModelConfig(name=f"elsewhere_{strategy}:{name}", attention_dropout=0.5), 4, 2)


def test_names_are_registered_once_and_found() -> None:
    assert set(layer_names()) >= {"gcn", "sage", "gat", "gatv2", "transformer", "gin", "rgcn"}
    with pytest.raises(ValueError, match="there is a layer 'gcn' already"):
        register_layer("gcn", lambda config, place: nn.Identity())
    with pytest.raises(ValueError, match="no colon"):
        register_layer("a:b", lambda config, place: nn.Identity())
    with pytest.raises(UserError, match="did you mean 'sage'"):
        make_config({"model": {"name": "saga"}})


@pytest.mark.parametrize(
    ("model", "codec", "refused"),
    [
        ({"name": "sage", "reduce": "max"}, "bf16", "a maximum of rounded rows is biased: use codec raw"),
        ({"name": "sage", "reduce": "max"}, "raw", None),
        ({"name": "sage"}, "int4", None),
        ({"name": "gatv2"}, "int8", "the logits of GATv2 come from the rows themselves.*: use codec raw or bf16"),
        ({"name": "gatv2"}, "bf16", None),
        ({"name": "gat"}, "int8", None),
    ],
)
def test_codecs_that_would_bias_a_layer_are_refused(model: Any, codec: str, refused: str | None) -> None:
    settings = {"model": model, "exchange": {"codec": codec}, "workers": 2}
    if refused is None:
        make_config(settings)
        return
    with pytest.raises(UserError, match=refused):
        make_config(settings)


class Doubled(SAGE):
    def forward(self, graph: GraphView, x: Tensor, add_bias: bool = True) -> Tensor:
        return 2 * super().forward(graph, x)


class Declared(Doubled):
    @property
    def traits(self) -> LayerTraits:
        return LayerTraits(any_level=True, restrictable=True)


class Recombined(GCN):
    def combine(self, graph: GraphView, x: Tensor) -> Tensor:
        return super().combine(graph, x) * 3


def test_a_declaration_holds_for_the_forward_that_it_was_made_for() -> None:
    assert traits_of(SAGE(2, 2, "max")).input_aggregate == ("max", None)
    assert traits_of(nn.Linear(2, 2)) == LayerTraits() == traits_of(Doubled(2, 2)) == traits_of(Recombined(2, 2))
    assert traits_of(Declared(2, 2)).restrictable
    patched = GIN(2, 2)
    assert traits_of(patched).fuses_bias
    patched.forward = lambda graph, x: x  # type: ignore[method-assign, assignment]
    assert traits_of(patched) == LayerTraits()
    wrong = type("Wrong", (nn.Module,), {"traits": {"any_level": True}})()
    with pytest.raises(TypeError, match=r"Wrong\.traits is a dict"):
        traits_of(wrong)


def a_view() -> GraphView:
    edges = [(0, 1), (2, 1), (1, 0), (3, 3), (0, 2), (4, 0)]
    return DistributedGraph(whole_shard(graph_of(5, edges, False), reorder=False)).view


@pytest.mark.parametrize("kind", [SAGE, GCN, GAT, GIN])
@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_hooks_of_native_layers_run_and_may_change_what_comes_out(kind: Any, activation: str) -> None:
    torch.manual_seed(0)
    first, second = kind(3, 4), kind(4, 2)
    model = Stack([first, second], ModelConfig(dropout=0.0, activation=activation), [3, 4, 2])  # type: ignore[arg-type]
    view, x = a_view(), torch.randn(5, 3)
    plain = model(view, x)
    seen: list[Tensor] = []
    handles = [layer.register_forward_hook(lambda layer, args, out: seen.append(out)) for layer in (first, second)]
    kept = model(view, x)
    torch.testing.assert_close(kept, plain)
    assert len(seen) == 2 and seen[0].shape == (5, 4)
    torch.testing.assert_close(seen[0], first(view, x) - first.bias)  # what was kept has not been written to
    for handle in handles:
        handle.remove()
    first.register_forward_hook(lambda layer, args, out: out * 0 - 1)
    assert not torch.allclose(model(view, x), plain)
    bias = first.bias
    hidden = torch.nn.functional.relu(bias - 1) if activation == "relu" else torch.nn.functional.elu(bias - 1)
    torch.testing.assert_close(model(view, x), second(view, hidden.expand(5, 4).contiguous()))


def test_an_overridden_forward_is_what_a_stack_runs() -> None:
    torch.manual_seed(0)
    view, x = a_view(), torch.randn(5, 3)
    for kind in (Doubled, Declared):
        layers = [kind(3, 4), kind(4, 2)]
        model = Stack([*layers], ModelConfig(dropout=0.0), [3, 4, 2])
        hidden = torch.relu(2 * SAGE.forward(layers[0], view, x))
        torch.testing.assert_close(model(view, x), 2 * SAGE.forward(layers[1], view, hidden))


MODELS = """
from weft.layers import GCN, SAGE, Stack, traits_of


class Zero(SAGE):
    def forward(self, graph, x):
        return super().forward(graph, x) * 0


def build(num_in, num_out, config):
    return Stack([Zero(num_in, config.hidden), Zero(config.hidden, num_out)], config, [num_in, config.hidden, num_out])
"""


@pytest.mark.parametrize("strategy", ["full", "minibatch"])
def test_an_overridden_forward_is_what_trains(tmp_path: Path, monkeypatch: Any, strategy: str) -> None:
    (tmp_path / "models_that_override.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {
        "data": "synthetic:tiny", "workers": 1, "strategy": strategy, "train": {"epochs": 2, "trace_epochs": 0},
        "model": {"name": "models_that_override:build", "hidden": 8},
    }  # fmt: skip
    if strategy == "minibatch":
        settings["sample"] = {"batch": 60, "fanout": [4, 3]}
    trained(tmp_path / "run", settings)
    losses = [record["train_loss"] for record in weft.Run(tmp_path / "run").metrics]
    assert losses == pytest.approx([torch.tensor(4.0).log().item()] * 2)  # of four classes, all alike
