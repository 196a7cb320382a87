"""A trained model on other graphs, on new vertices, and on its own: equal to a dense computation with its weights."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import weft
from tests.oracle.dense import gcn
from weft.errors import UserError
from weft.graph import save_graph
from weft.training.summary import weights_digest

TRAINED = "synthetic:tiny?seed=1"
OTHER = "synthetic:tiny?seed=2,nodes=240"
SETTINGS = {"quiet": True, "threads": 1, "train": {"epochs": 3, "precision": "float64"}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> weft.Run:
    path = tmp_path_factory.mktemp("predict") / "run"
    return weft.train(TRAINED, model={"name": "gcn", "hidden": 8}, run=path, **SETTINGS)


def reference(run: weft.Run, graph: weft.Graph) -> tuple[Tensor, Tensor]:
    """The rows before the last layer and the outputs, over a dense matrix."""
    layers = [{name: p.detach() for name, p in layer.named_parameters()} for layer in run.model().layers]
    assert graph.x is not None
    hidden = torch.relu(gcn(layers[0], graph, graph.x.double()))
    return hidden, gcn(layers[1], graph, hidden)


def close(found: np.ndarray, wanted: Tensor) -> None:
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("workers", [1, 3])
def test_outputs_and_embeddings_of_another_graph_are_those_of_a_dense_computation(run: weft.Run, workers: int) -> None:
    graph = weft.load(OTHER)
    hidden, outputs = reference(run, graph)
    found = run.predict(graph, workers)
    close(found.values, outputs)
    close(run.predict(graph, workers, what="embeddings").values, hidden)
    assert found.ids.tolist() == list(range(240)) and found.accuracy is not None
    right = outputs.argmax(1) == graph.y
    assert found.accuracy == pytest.approx(float(right.double().mean()))


def test_so_are_those_of_its_own_graph(run: weft.Run) -> None:
    graph = weft.load(TRAINED)
    hidden, outputs = reference(run, graph)
    close(run.outputs().values, outputs)
    close(run.outputs(what="embeddings").values, hidden)
    assert (run.predict(graph).values == run.outputs().values).all()
    assert run.outputs().targets.tolist() == graph.y.tolist()
    splits = run.outputs().splits
    assert all((splits == name).tolist() == mask.tolist() for name, mask in graph.masks.items())


def test_embeddings_are_what_enters_the_linear_map_behind_the_layers(tmp_path: Path) -> None:
    model = {"name": "gcn", "hidden": 8, "output": "linear"}
    run = weft.train(TRAINED, model, run=tmp_path / "run", **SETTINGS)
    output = run.model().output
    assert output is not None
    embeddings = torch.from_numpy(run.outputs(what="embeddings").values)
    assert embeddings.shape[1] == 8
    close(run.outputs().values, torch.nn.functional.linear(embeddings, output.weight, output.bias).detach())


def test_any_number_of_workers_trained_it(tmp_path: Path) -> None:
    run = weft.train(TRAINED, {"name": "gcn", "hidden": 8}, workers=2, run=tmp_path / "run", **SETTINGS)
    hidden, outputs = reference(run, weft.load(TRAINED))
    for workers in (1, 2):
        close(run.predict(TRAINED, workers).values, outputs)
    close(run.outputs(what="embeddings").values, hidden)


def test_its_model_is_there_without_the_graph(tmp_path: Path) -> None:
    save_graph(weft.load(TRAINED), tmp_path / "graph")
    run = weft.train(tmp_path / "graph", {"name": "sage", "norm": "batch"}, run=tmp_path / "run", **SETTINGS)
    random = torch.get_rng_state()
    shutil.rmtree(tmp_path / "graph")
    model = run.model()
    assert not model.training and weights_digest(model.state_dict()) == run.summary["best_weights_sha256"]
    assert torch.equal(torch.get_rng_state(), random)
    part = weft.open_part(OTHER)
    with torch.no_grad(), part.exact_pass() as view:
        outputs = model(view, part.shard.x.double())
    np.testing.assert_allclose(run.predict(OTHER).values, outputs.numpy(), rtol=1e-12)


def test_learned_rows_are_part_of_the_model_and_fit_no_other_graph(tmp_path: Path) -> None:
    bare = weft.load(TRAINED).with_vertex_data(x=None)
    run = weft.train(bare, run=tmp_path / "run", **SETTINGS)
    assert run.model().embedding.shape == (300, 64)
    assert weights_digest(run.model().state_dict()) == run.summary["best_weights_sha256"]
    with pytest.raises(UserError, match="the run's graph had no features"):
        run.predict(bare)
    with pytest.raises(UserError, match="has no features, so that a model learns a row"):
        weft.attach(bare, "edges.csv", "nodes.csv")


def test_links_give_embeddings(tmp_path: Path) -> None:
    settings = {"quiet": True, "threads": 1, "train": {"task": "links", "epochs": 1}, "sample": {"fanout": [5, 5]}}
    run = weft.train(TRAINED, {"name": "sage", "hidden": 8}, "batchgnn", run=tmp_path / "run", **settings)
    found = run.predict(OTHER)
    assert found.values.shape == (240, 8) and found.accuracy is None
    assert (run.predict(OTHER, what="embeddings").values == found.values).all()
    with pytest.raises(UserError, match="which edges exist and has no predictions of vertices"):
        run.outputs(what="predictions")
    with pytest.raises(UserError, match="rows of vertices, not of classes"):
        _ = found.predictions


@pytest.mark.parametrize(("targets", "workers"), [(1, 1), (2, 3)])
def test_numbers_are_predicted_in_their_unit(tmp_path: Path, targets: int, workers: int) -> None:
    def numbers(graph: weft.Graph) -> weft.Graph:
        assert graph.x is not None
        y = 50_000 + 9_000 * graph.x[:, :targets]
        y[::5] = torch.nan
        names = ("income", "rent") if targets == 2 else None
        return replace(graph.with_vertex_data(y=y.squeeze(1)), num_classes=0, class_names=names)

    graph, other = numbers(weft.load(TRAINED)), numbers(weft.load(OTHER))
    run = weft.train(graph, {"name": "gcn", "hidden": 8}, run=tmp_path / "run", **SETTINGS)
    hidden, outputs = reference(run, other)
    scale = run.model().target_scale
    assert float(scale.std.min()) > 1000
    found = run.predict(other, workers)
    close(found.values, outputs * scale.std + scale.mean)
    close(run.predict(other, what="embeddings").values, hidden)
    assert found.predicted == "numbers" and (run.predict(graph).values == run.outputs().values).all()
    np.testing.assert_array_equal(found.targets, other.y.numpy())
    assert run.predict(other.with_vertex_data(y=None, train_mask=None)).targets is None  # needs neither
    save_graph(other, tmp_path / "other")
    weft.partition(str(tmp_path / "other"), 2, tmp_path / "parts")
    close(run.predict(str(tmp_path / "parts")).values, outputs * scale.std + scale.mean)
    for refused in (lambda: run.outputs(what="probabilities"), lambda: run.predict(other, what="probabilities")):
        with pytest.raises(UserError, match="learned numbers, and there are no probabilities"):
            refused()
    with pytest.raises(UserError, match="are classes and the run's model predicts numbers"):
        run.predict(weft.load(OTHER))
    wider = replace(other.with_vertex_data(y=torch.rand(240, 4)), class_names=None)
    weft.partition(wider, 2, tmp_path / "wider")
    for strange in (wider, str(tmp_path / "wider")):
        with pytest.raises(UserError, match=f"has 4 numbers to predict and the run's model predicts {targets}"):
            run.predict(strange)


def test_a_model_of_classes_refuses_numbers(run: weft.Run) -> None:
    graph = weft.load(OTHER)
    numbers = replace(graph.with_vertex_data(y=torch.rand(240)), num_classes=0)
    with pytest.raises(UserError, match="are numbers and the run's model predicts classes"):
        run.predict(numbers)


@pytest.mark.parametrize("decoder", ["mlp", "distmult"])
def test_learned_decoders_are_loaded_with_the_model(tmp_path: Path, decoder: str) -> None:
    graph = weft.load("synthetic:relational")
    run = weft.train(
        graph, {"name": "rgcn", "hidden": 8}, "full", run=tmp_path / "run", quiet=True, threads=1,
        train={"task": "links", "epochs": 1}, link={"decoder": decoder, "val": 0, "test": 0},
    )  # fmt: skip
    assert (run.predict(graph).values == run.outputs(what="embeddings").values).all()
    assert run.outputs().predicted == "embedding" and hasattr(run.model(), "decoder")


def test_a_model_without_a_hidden_layer_has_no_embeddings(tmp_path: Path) -> None:
    run = weft.train(TRAINED, {"name": "gcn", "layers": 1}, run=tmp_path / "run", **SETTINGS)
    with pytest.raises(UserError, match="the model has no hidden layer"):
        run.outputs(what="embeddings")


def test_a_graph_that_does_not_fit_is_refused_with_what_differs(run: weft.Run) -> None:
    graph = weft.load(OTHER)
    names = ("a", "b", "c", "d")
    for other, message in (
        (graph.with_vertex_data(x=graph.x[:, :5]), "has 5 features and the run's model was trained on 16"),
        (replace(graph, num_classes=5), "has 5 classes and the run's model knows 4"),
        (weft.load("synthetic:relational"), "features|relations"),
    ):
        with pytest.raises(UserError, match=message):
            run.predict(other)
    assert run.predict(graph.with_vertex_data(y=None, train_mask=None)).targets is None  # needs neither
    assert run.predict(replace(graph, class_names=names)).class_names is None  # of numbers nothing is known


def test_classes_are_those_of_the_run_by_name(tmp_path: Path) -> None:
    graph = replace(weft.load(TRAINED), class_names=("a", "b", "c", "d"))
    run = weft.train(graph, run=tmp_path / "run", **SETTINGS)
    y = (weft.load(OTHER).y % 2).contiguous()
    other = replace(weft.load(OTHER).with_vertex_data(y=y), num_classes=2, class_names=("d", "b"))
    found = run.predict(other)
    assert found.class_names == ("a", "b", "c", "d")
    assert found.targets.tolist() == [[3, 1][label] for label in y.tolist()]
    with pytest.raises(UserError, match=r"classes that the run's model does not know \(e; it knows a, b, c, d\)"):
        run.predict(replace(other, class_names=("a", "e")))
